"""`kernax fit-many`: a model for each group of a table."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Any

import typer

from kernax.cli import _console as console
from kernax.cli import _options as options
from kernax.io import save
from kernax.tables import TableError, fit_table_many, write_table
from kernax.tables._report import column_rows


def fit_many(
    data: options.Data,
    target: options.Target,
    by: Annotated[str, options.option("--by", help="The column that names the group of each row.")],
    fitting: dict[str, Any],
    reading: dict[str, Any],
    float32: options.Float32 = False,
    json: options.Json = False,
    stream: Annotated[
        bool,
        options.option(
            "--stream",
            help="Read the file in pieces: for files that do not fit into memory, sorted by group, with columns of numbers. "
            "Predictions read it again.",
        ),
    ] = False,
    executor: Annotated[
        str | None,
        options.option(
            "--executor", help="Where to compute: processes:4, or dask://scheduler:8786. (default: threads of this process)"
        ),
    ] = None,
    table: Annotated[str | None, options.option("--table", help=f"{options.FILE} with one row for each fit.")] = None,
    output: options.Output = "fits.kx",
) -> None:
    """Fit a model to each group of a table and save them all.

    Without --stream the whole table is read into memory, and the saved file contains its numbers, which predictions are made
    from.
    """
    console.check_output(output, [data])
    console.check_output(table, [data, output], options.TABLES)
    dtype, progress = console.set_precision(float32), console.shows_progress(json)
    with _executor_of(executor) as computes:
        how = {"dtype": dtype, "progress": progress, "executor": computes, "stream": stream}
        fitted = fit_table_many(data, target, by, **how, **reading, **fitting)
    save(output, fitted)
    if table is not None:
        write_table(table, fitted.table() | {"loo_rmse": fitted.loo_rmse()})
    ended = Counter(fitted.fits.result_names.tolist())
    console.notes(fitted.notes, quiet=json)
    if json:
        about = {"groups": len(fitted), "rows": fitted.num_rows, "results": dict(ended), "kernel": fitted.kernel}
        console.print_json(about | {"output": output, "notes": fitted.notes})
    else:
        console.print_table("columns", column_rows(fitted))
        typer.echo(f"\n{fitted.report()}\n\n{len(fitted)} groups by {by}, {fitted.num_rows} rows of {data} → {output}")
    if ended["interrupted"]:
        console.note(f"interrupted: {output} holds what was fitted so far.")
        raise typer.Exit(console.INTERRUPTED)
    if not any(name in ended for name in ("successful", "max_steps_reached", "stalled", "diverged", "singular")):
        console.note("no group could be fitted.")
        raise typer.Exit(console.NUMERICAL)


@contextlib.contextmanager
def _executor_of(text: str | None) -> Iterator[Executor | None]:
    """The executor of a text such as `processes:4` or `dask://scheduler:8786`, shut down afterwards; `None` without text."""
    if text is None:
        yield None
    elif text.startswith("dask://"):
        with _dask_client(text.removeprefix("dask://")) as client:
            yield client.get_executor()
    elif found := re.fullmatch(r"processes(?::0*([1-9]\d*)?)?", text):
        number = int(found[1]) if found[1] else None
        with ProcessPoolExecutor(number, mp_context=get_context("spawn")) as pool:  # not forked: JAX has threads
            yield pool
    else:
        raise TableError(f"there is no executor {text!r}: write processes:4 (four of them), or dask://scheduler:8786.")


def _dask_client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError('--executor dask://… needs more packages: pip install ".[dask]" in a clone.') from error
    try:
        return Client(f"tcp://{address}", timeout=10)
    except (OSError, TimeoutError, ValueError) as error:
        raise TableError(f"dask://{address}: the scheduler does not answer ({error or type(error).__name__}).") from None
