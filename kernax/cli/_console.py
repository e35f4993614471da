"""What commands print, and how they end."""

import functools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernax.io import FileError
from kernax.solvers import FailedError
from kernax.tables import KernelExpressionError, TableError, write_table
from kernax.tables._dates import time_text
from kernax.tables._write import csv_text

NUMERICAL, BAD_INPUT, INTERRUPTED = 1, 2, 130


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose errors are one message on standard error and an exit code, never a traceback."""

    @functools.wraps(command)
    def inner(*args: Any, **options: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: note(str(message))
                return command(*args, **options)
        except KeyboardInterrupt:
            message, code = "interrupted.", INTERRUPTED
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer ends the command; a closed pipe means that its reader has ended
        except Exception as error:
            # Ctrl-C while LAPACK runs inside a compiled program comes out as an error of JAX.
            message, code = ("interrupted.", INTERRUPTED) if "KeyboardInterrupt" in str(error) else _explained(error)
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(code)

    return inner


def _explained(error: Exception) -> tuple[str, int]:
    """The message and the exit code of an error in the input or in the numbers; other errors are raised again."""
    match error:
        case FailedError():
            return error.explanation, NUMERICAL
        case TableError() | KernelExpressionError() | FileError():
            return str(error), BAD_INPUT
        case FileNotFoundError(filename=str(path)):
            return f"{path}: there is no such file.", BAD_INPUT
        case OSError():
            words = error.strerror or str(error)
            return f"{error.filename}: {words}" if error.filename else words, BAD_INPUT
        case MemoryError():
            return f"{error or 'there is not enough memory'} On the command line: --solver auto, or --sample.", NUMERICAL
        case ValueError() | TypeError() | ImportError():
            return str(error), BAD_INPUT
    raise error


def note(message: str) -> None:
    """A note on standard error."""
    typer.echo(f"note: {message}", err=True)


def notes(messages: Iterable[str], *, quiet: bool) -> None:
    """Notes on standard error, unless they are part of a JSON answer."""
    for message in () if quiet else messages:
        note(message)


def print_json(value: Any) -> None:
    """One JSON object on standard output; what is not finite is null."""
    typer.echo(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Python's own values, for JSON."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        return [time_text(time) for time in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table on standard output."""
    Console(soft_wrap=False, width=None if sys.stdout.isatty() else 160).print(as_table(title, rows))


def as_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Rows for rich to print. Text from data is shown as it is, not as markup."""
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        numeric = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def deliver(
    columns: dict[str, Any], output: str | None, about: dict[str, Any], messages: Sequence[str], sentence: str, json: bool
) -> None:
    """Columns into a file, which a sentence says, or as CSV on standard output; with `json`, one object with `about`."""
    path = None if output == "-" else output
    if path is not None:
        write_table(path, columns)
    notes(messages, quiet=json)
    if json:
        print_json(about | {"notes": messages} | ({"columns": columns} if path is None else {"output": path}))
    else:
        typer.echo(csv_text(columns) if path is None else f"{sentence} → {path}\n", nl=False)


def set_precision(float32: bool) -> Any:
    """The floating type to fit in. Kernel matrices are ill-conditioned: 64 bits, unless 32 are asked for."""
    if float32:  # as asked for
        warnings.filterwarnings("ignore", message=".*JAX is set to float32")
    else:
        jax.config.update("jax_enable_x64", True)
    return np.float32 if float32 else np.float64


def shows_progress(quiet: bool) -> bool:
    """Whether to show progress bars: only on a terminal."""
    return sys.stderr.isatty() and not quiet


def check_output(output: str | None, inputs: Iterable[str], endings: tuple[str, ...] = ()) -> None:
    """Refuse, before any work, an output that cannot be written or that would replace an input."""
    if output is None:
        return
    folder = os.path.dirname(output) or "."
    for is_wrong, message in (
        (output == "-", "this cannot be written to standard output: give the name of a file with -o."),
        (not os.path.isdir(folder), f"there is no folder {folder!r}: make it first."),
        (os.path.isdir(output), "this is a folder; give the name of a file in it."),
        (not os.access(folder, os.W_OK), f"the folder {folder!r} is not writable."),
        (
            os.path.realpath(output) in map(os.path.realpath, inputs),
            "this is the input, which is not overwritten: give another name with -o.",
        ),
    ):
        if is_wrong:
            raise TableError(f"{output}: {message}")
    if endings and os.path.splitext(output)[1].lower() not in endings:
        raise TableError(f"{output}: the file name must end in {', '.join(endings[:-1])} or {endings[-1]}.")
