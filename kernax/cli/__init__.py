"""The command line: `kernax` or `python -m kernax` (extra `cli`)."""

try:
    import platformdirs  # noqa: F401
    import rich  # noqa: F401  (optional: said before the files below fail to find them)
    import typer  # noqa: F401
except ImportError as error:
    raise ImportError('kernax.cli needs more packages: pip install ".[cli]" in a clone of the repository.') from error

from kernax.cli._app import app, run

__all__ = ["app", "run"]
