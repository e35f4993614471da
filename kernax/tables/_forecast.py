"""Forecasts of the series in a table: its times become steps, and steps become times again."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np

from kernax._spelling import listed
from kernax.forecasting import Seasonal, forecast_many
from kernax.tables._clock import DATES, clock_of
from kernax.tables._read import Table, TableError, as_table
from kernax.tables._table_fit import check_level
from kernax.tables._values import complete_rows, group_names, read_values, without_missing

_SPARSE = 10
"""The largest number of steps for each row: with more, the times are not regular."""


@dataclasses.dataclass(frozen=True)
class TableForecast:
    """The next values of each series of a table, from [`kernax.tables.forecast_table`][]."""

    columns: dict[str, np.ndarray]
    """The name of the series (if there are several), the time, and `mean`, `sd`, `lower`, `upper`."""
    step: str
    """The step between two times, such as `1 month`."""
    periods: tuple[float, ...]
    """The periods of the seasons, in steps."""
    results: dict[Hashable, str]
    """How the fit of each series ended."""
    notes: tuple[str, ...]
    """Notes about the table."""

    @property
    def is_lost(self) -> bool:
        """Whether no series could be forecast."""
        return not np.isfinite(self.columns["mean"]).any()


def forecast_table(
    table: Any,
    horizon: int,
    *,
    by: str | None = None,
    target: str | None = None,
    time: str | None = None,
    periods: float | Sequence[float] | None = None,
    model: Seasonal | None = None,
    level: float = 0.95,
    missing: Literal["error", "drop"] = "error",
    progress: bool = False,
) -> TableForecast:
    """Forecast the next steps of one series, or of each series of a table.

    The step is found from the times: months, days, hours and so on for dates, any number otherwise. It is the same for all
    series. Steps without a row, and rows without a target, are gaps.

    **Arguments:**

    - `table`: a path, a frame, a relation, an Arrow table or a dict of columns, with a row for each time and series.
    - `horizon`: the number of steps to forecast after the end of each series.
    - `by`: the column that names the series of each row; `None` if there is only one.
    - `target`: the column to forecast; if `None`, the only remaining column.
    - `time`: the column of times; if `None`, the only column of dates.
    - `periods`: the periods of the seasons, in steps; 0 for none. If `None`, those that suit the step: 12 for months, 4 for
      quarters, 7 for days, a year for weeks, a day for shorter steps, none for numbers.
    - `model`: a [`kernax.forecasting.Seasonal`][] in place of `periods`.
    - `level`: the probability of the intervals.
    - `missing`: `error`, or `drop` to leave out rows without a time or the name of a series.
    - `progress`: show a progress bar.

    **Returns:**

    A [`kernax.tables.TableForecast`][]. Raises `TableError` if the table cannot be forecast as asked.
    """
    check_level(level)
    if model is not None and periods is not None:
        raise ValueError("give periods or a model, which has periods of its own, not both.")
    read = as_table(table)
    time = time or _only_dates(read, by, target)
    others = [name for name in read.names if name not in (by, time)]
    target = target or _only(read, others, "columns to forecast", "name one with --target (target= in Python)")
    if len({by, target, time}) < 3:
        raise TableError(f"{read.source}: the target, the times and the names of the series must be different columns.")
    notes, total = [], read.num_rows
    known = np.flatnonzero(complete_rows(read, [target]))
    if not len(known):
        raise TableError(f"{read.source}: no row has a value of {target!r}.")
    if len(known) < total:
        notes.append(f"{total - len(known)} of {total} rows have no {target}: they are gaps")
        read = read.taken(known)
    read, _ = without_missing(read, [time] if by is None else [time, by], missing)
    notes += read.notes
    clock, numbers = clock_of(read, time)
    values, kind = read_values(read, target, role="target")
    if kind != "number":
        raise TableError(f"{read.source}: the target {target!r} does not hold numbers: name another (--target).")
    names = group_names(read, by) if by is not None else [target] * read.num_rows
    series, ends, few = _series(read, names, numbers, values)
    if few:
        notes.append(f"series with fewer than two values are left out: {listed([str(name) for name in few])}")
    if not series:
        raise TableError(f"{read.source}: no series has two values or more.")
    longest = max(map(len, series.values()))
    if model is None:
        chosen = clock.periods(longest) if periods is None else tuple(p for p in np.atleast_1d(periods).tolist() if p)
        model = Seasonal(periods=chosen)
    notes.append(f"steps of {clock.name}; periods in steps: {', '.join(f'{p:g}' for p in model.periods) or 'none'}")
    found = forecast_many(series, horizon, model=model, progress=progress)
    lost = [str(name) for name, one in found.items() if not np.isfinite(one.mean).all()]
    if lost:
        notes.append(f"series that could not be forecast are left blank: {listed(lost)}")
    columns: dict[str, np.ndarray] = {} if by is None else {by: np.repeat(np.array(list(found), object), horizon)}
    columns[time] = clock.times(np.concatenate([ends[name] + 1 + np.arange(horizon) for name in found]))
    bands = np.concatenate([(one.mean, one.sd, *one.interval(level)) for one in found.values()], axis=1)
    columns |= zip(("mean", "sd", "lower", "upper"), bands, strict=True)
    results: dict[Hashable, str] = {name: one.result for name, one in found.items()}
    return TableForecast(columns, clock.name, model.periods, results, tuple(notes))


def _only_dates(table: Table, by: str | None, target: str | None) -> str:
    """The only column of dates."""
    dates = []
    for name in table.names:
        try:
            if name not in (by, target) and read_values(without_missing(table, [name], "drop")[0], name)[1] in DATES:
                dates.append(name)
        except TableError:
            continue
    return _only(table, dates, "columns of dates", "name the column of times with --time (time= in Python)")


def _only(table: Table, names: list[str], what: str, remedy: str) -> str:
    if len(names) == 1:
        return names[0]
    which = f"several {what} ({listed(names)})" if names else f"no {what}"
    raise TableError(f"{table.source}: there are {which}: {remedy}.")


def _series(
    table: Table, names: list[str], numbers: np.ndarray, values: np.ndarray
) -> tuple[dict[Hashable, np.ndarray], dict[Hashable, int], list[str]]:
    """Values by step of each series, NaN in gaps; the number of its last step; and the series with too few values."""
    series: dict[Hashable, np.ndarray] = {}
    ends: dict[Hashable, int] = {}
    few, labels = [], np.array(names, object)
    for name in dict.fromkeys(names):
        rows = np.flatnonzero(labels == name)
        own = numbers[rows]
        first, counts = np.unique(own, return_counts=True)
        if np.any(counts > 1):
            twice = rows[own == first[counts > 1][0]]
            raise TableError(
                f"{table.source}: series {name!r} has several rows for one time, in {table.places(twice)}: name the column "
                "that tells series apart with --by, or add the rows up first."
            )
        if len(own) < 2:
            few.append(name)
            continue
        steps = int(own.max() - own.min()) + 1
        if steps > _SPARSE * len(own):
            raise TableError(
                f"{table.source}: series {name!r} has {len(own)} rows in {steps} steps: its times are not regular. "
                "Bring them to a common step first, such as the day or the month."
            )
        series[name] = np.full(steps, np.nan)
        series[name][own - own.min()] = values[rows]
        ends[name] = int(own.max())
    return series, ends, few
