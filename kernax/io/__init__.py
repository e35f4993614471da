"""Save and load: one file, arrays by safetensors, structure as JSON, nothing that could run."""

from kernax.io._allowed import register
from kernax.io._file import FileError
from kernax.io._save import load, save

__all__ = ["FileError", "load", "register", "save"]
