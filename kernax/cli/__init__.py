"""The command line: `kernax` or `python -m kernax` (extra `cli`)."""

from kernax.cli._app import app, run

__all__ = ["app", "run"]
