"""`kernax fit-many`: a model for each group of a table."""

from collections import Counter
from typing import Annotated

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
from kernax.cli._fit import column_rows
from kernax.io import save
from kernax.tables import fit_table_many, write_table


def fit_many(
    data: options.Data,
    target: options.Target,
    by: Annotated[str, typer.Option("--by", help="The column that names the group of each row.", show_default=False)],
    columns: options.Columns = None,
    ignore: options.Ignore = None,
    kernel: options.Kernel = "matern52",
    select: options.Select = "likelihood",
    noise: options.Noise = None,
    restarts: options.Restarts = 0,
    missing: options.Missing = "error",
    date_unit: options.DateUnit = None,
    categories: options.Categories = None,
    max_levels: options.MaxLevels = 50,
    seed: options.Seed = 0,
    max_steps: options.MaxSteps = 500,
    float32: options.Float32 = False,
    json: options.Json = False,
    no_cache: options.NoCache = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="A folder that keeps fits as they end: the same command resumes an interrupted one.",
            show_default=False,
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            help="Where to compute: processes:4, or dask://scheduler:8786. (default: threads of this process)",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="A .csv or .parquet file with one row for each fit.", show_default=False)
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="Where the models go.")] = "fits.kx",
) -> None:
    """Fit a model to each group of a table and save them all."""
    check_output(output, [data])
    check_output(table, [data, output], (".csv", ".parquet", ".pq"))
    with executor_of(executor) as computes:
        fitted = fit_table_many(
            data,
            target,
            by,
            columns=columns,
            ignore=ignore or (),
            kernel=kernel,
            select=select,
            noise=noise,
            restarts=restarts,
            missing=missing,
            date_unit=date_unit,
            categories=categories or (),
            max_levels=max_levels,
            seed=seed,
            dtype=set_precision(float32),
            max_steps=max_steps,
            progress=shows_progress(json),
            checkpoint=checkpoint,
            executor=computes,
        )
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
                "kernel": kernel,
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
