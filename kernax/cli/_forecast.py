"""`kernax forecast`: the next values of each series of a table."""

from collections import Counter
from typing import Annotated, Any, Literal

import numpy as np
import typer

from kernax.cli import _options as options
from kernax.cli._console import NUMERICAL, check_output, note, notes, print_json, say, set_precision, shows_progress
from kernax.tables import forecast_table, write_table
from kernax.tables._write import csv_text, time_text


def forecast(
    data: options.Data,
    horizon: Annotated[int, options.option("--horizon", min=1, help="Number of steps to forecast.")],
    by: Annotated[str | None, options.option("--by", help="The column that names the series of each row.")] = None,
    target: Annotated[
        str | None, options.option("--target", "-t", help="The column to forecast. (default: the only remaining one)")
    ] = None,
    time: Annotated[
        str | None, options.option("--time", help="The column of times. (default: the only column of dates)")
    ] = None,
    period: Annotated[
        list[float] | None,
        options.option(
            "--period",
            help="The length of a season in steps, such as 12 for months; may be repeated; 0 for no season. "
            "(default: by the step of the dates)",
        ),
    ] = None,
    level: options.Level = 0.95,
    missing: Annotated[
        Literal["error", "drop"],
        typer.Option("--missing", help="What to do with rows that lack a time or a series. Rows without a target are gaps."),
    ] = "error",
    json: options.Json = False,
    no_cache: options.NoCache = False,
    output: options.ToTable = None,
) -> None:
    """Forecast the next steps of one series, or of each series of a table."""
    to_file = output is not None and output != "-"
    check_output(output if to_file else None, [data], options.TABLES)
    set_precision(False)
    chosen: dict[str, Any] = {"by": by, "target": target, "time": time, "periods": period, "level": level}
    found = forecast_table(data, horizon, missing=missing, progress=shows_progress(json), **chosen)
    if output is not None and to_file:
        write_table(output, found.columns)
    notes(found.notes, quiet=json)
    if json:
        answer: dict[str, Any] = {"series": len(found.results), "horizon": horizon, "level": level, "step": found.step}
        answer |= {"periods": found.periods, "results": dict(Counter(found.results.values())), "notes": found.notes}
        columns = {name: _texts(values) for name, values in found.columns.items()}
        print_json(answer | ({"output": output} if to_file else {"columns": columns}))
    elif to_file:
        many = f"{len(found.results)} series" if by is not None else "one series"
        say(f"{horizon} steps of {found.step} for {many} → {output}")
    else:
        typer.echo(csv_text(found.columns), nl=False)
    if found.is_lost:
        note("no series could be forecast.")
        raise typer.Exit(NUMERICAL)


def _texts(values: np.ndarray) -> Any:
    """Times as text; anything else as it is."""
    return [time_text(value) for value in values] if values.dtype.kind == "M" else values
