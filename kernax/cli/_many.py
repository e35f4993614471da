"""`kernax fit-many`: a model for each group of a table."""

from collections import Counter
from typing import Annotated, Any

import typer

from kernax.cli import _options as options
from kernax.cli._console import (
    INTERRUPTED,
    NUMERICAL,
    check_output,
    note,
    notes,
    print_json,
    print_table,
    say,
    set_precision,
    shows_progress,
)
from kernax.cli._executors import executor_of
from kernax.io import save
from kernax.tables import fit_table_many, write_table
from kernax.tables._report import column_rows


def fit_many(
    data: options.Data,
    target: options.Target,
    by: Annotated[str, options.option("--by", help="The column that names the group of each row.")],
    fitting: dict[str, Any],
    reading: dict[str, Any],
    float32: options.Float32 = False,
    json: options.Json = False,
    no_cache: options.NoCache = False,
    executor: Annotated[
        str | None,
        options.option(
            "--executor", help="Where to compute: processes:4, or dask://scheduler:8786. (default: threads of this process)"
        ),
    ] = None,
    table: Annotated[
        str | None,
        options.option("--table", help="A .csv, .parquet or .feather file with one row for each fit."),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Output file.")] = "fits.kx",
) -> None:
    """Fit a model to each group of a table and save them all.

    The whole table is read into memory, and the saved file contains its numbers, which predictions are made from.
    """
    check_output(output, [data])
    check_output(table, [data, output], options.TABLES)
    dtype, progress = set_precision(float32), shows_progress(json)
    with executor_of(executor) as computes:
        fitted = fit_table_many(data, target, by, dtype=dtype, progress=progress, executor=computes, **reading, **fitting)
    save(output, fitted)
    if table is not None:
        write_table(table, fitted.table() | {"loo_rmse": fitted.loo_rmse()})
    ended = Counter(fitted.fits.result_names.tolist())
    notes(fitted.notes, quiet=json)
    if json:
        print_json(
            {
                "groups": len(fitted),
                "rows": len(fitted.y),
                "results": dict(ended),
                "kernel": fitted.kernel,
                "output": output,
                "notes": fitted.notes,
            }
        )
    else:
        print_table("columns", column_rows(fitted))
        say(f"\n{fitted.report()}\n\n{len(fitted)} groups by {by}, {len(fitted.y)} rows of {data} → {output}")
    if ended["interrupted"]:
        note(f"interrupted: {output} holds what was fitted so far.")
        raise typer.Exit(INTERRUPTED)
    if not any(name in ended for name in ("successful", "max_steps_reached", "stalled", "diverged", "singular")):
        note("no group could be fitted.")
        raise typer.Exit(NUMERICAL)
