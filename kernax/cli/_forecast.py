"""`kernax forecast`: the next values of each series of a table."""

from collections import Counter
from typing import Annotated, Any

import numpy as np
import typer

from kernax.cli import _options as options
from kernax.cli._console import NUMERICAL, check_output, note, notes, print_json, say, set_precision, shows_progress
from kernax.tables import forecast_table, write_table
from kernax.tables._write import csv_text, time_text


def forecast(
    data: options.Data,
    horizon: Annotated[int, typer.Option("--horizon", min=1, help="How many steps to forecast.", show_default=False)],
    by: Annotated[
        str | None, typer.Option("--by", help="The column that names the series of each row.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="The column to forecast. (default: the only one left)", show_default=False),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="The column of times. (default: the only column of dates)", show_default=False),
    ] = None,
    period: Annotated[
        list[float] | None,
        typer.Option(
            "--period",
            help="The length of a season in steps, such as 12 for months; may be repeated; 0 for no season. "
            "(default: by the step of the dates)",
            show_default=False,
        ),
    ] = None,
    level: Annotated[float, typer.Option("--level", help="The probability that an interval is to have.")] = 0.95,
    json: options.Json = False,
    no_cache: options.NoCache = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="A .csv or .parquet file. (default: standard output)", show_default=False),
    ] = None,
) -> None:
    """Forecast the next steps of one series, or of each series of a table."""
    to_file = output is not None and output != "-"
    check_output(output if to_file else None, [data], (".csv", ".parquet", ".pq"))
    set_precision(False)
    found = forecast_table(
        data, horizon, by=by, target=target, time=time, periods=period, level=level, progress=shows_progress(json)
    )
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
