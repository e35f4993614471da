"""`kernax forecast`: the next values of each series of a table."""

from collections import Counter
from typing import Annotated, Any, Literal

import typer

from kernax.cli import _console as console
from kernax.cli import _options as options
from kernax.tables import forecast_table


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
    output: options.ToTable = None,
) -> None:
    """Forecast the next steps of one series, or of each series of a table."""
    console.check_output(None if output == "-" else output, [data], options.TABLES)
    console.set_precision(False)
    chosen: dict[str, Any] = {"by": by, "target": target, "time": time, "periods": period, "level": level}
    found = forecast_table(data, horizon, missing=missing, progress=console.shows_progress(json), **chosen)
    about = {"series": len(found.results), "horizon": horizon, "level": level, "step": found.step, "periods": found.periods}
    about["results"] = dict(Counter(found.results.values()))
    many = f"{len(found.results)} series" if by is not None else "one series"
    console.deliver(found.columns, output, about, found.notes, f"{horizon} steps of {found.step} for {many}", json)
    if found.is_lost:
        console.note("no series could be forecast.")
        raise typer.Exit(console.NUMERICAL)
