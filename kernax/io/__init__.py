"""Save and load models: one file with arrays (safetensors) and structure (JSON), and without executable code."""

from kernax.io._allowed import register
from kernax.io._file import FileError
from kernax.io._save import load, save

__all__ = ["FileError", "load", "register", "save"]
