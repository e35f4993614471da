"""The steps of time series: months, days, hours and so on, or any number."""

import dataclasses
from typing import Any

import numpy as np

from kernax.tables._read import Table, TableError
from kernax.tables._values import read_values

_DAY = 86_400_000_000
_LENGTHS = {"day": _DAY, "hour": _DAY // 24, "minute": _DAY // 1440, "second": 1_000_000, "microsecond": 1}
_MOST_STEPS = 366
"""Longer seasons of a day are not assumed by themselves."""
DATES = ("date", "zoned date")


@dataclasses.dataclass(frozen=True)
class Clock:
    """A regular sequence of times: it converts the numbers of steps to times."""

    kind: str
    """`months`, `dates` of a fixed step, or `numbers`."""
    start: Any
    """The time of step 0."""
    step: Any
    """In months, microseconds, or the numbers' own unit."""
    offset: int = 0
    """Microseconds from the beginning of the month; from its end if negative."""
    is_zoned: bool = False

    @property
    def name(self) -> str:
        if self.kind == "numbers":
            return f"{self.step:g}"
        if self.kind == "months":
            number, unit = (self.step // 12, "year") if self.step % 12 == 0 else (self.step, "month")
        else:
            unit = next(unit for unit, length in _LENGTHS.items() if self.step % length == 0)
            number = self.step // _LENGTHS[unit]
        return f"{number} {unit}{'s' if number > 1 else ''}"

    def periods(self, longest: int) -> tuple[float, ...]:
        """The season that suits the step, if a series is at least two of them long."""
        period = 1.0
        if self.kind == "months" and 12 % self.step == 0:
            period = 12 / self.step
        elif self.kind == "dates" and self.step < _DAY:
            period = _DAY / self.step if _DAY / self.step <= _MOST_STEPS else 1.0
        elif self.kind == "dates":
            period = {_DAY: 7.0, 7 * _DAY: 365.25 / 7}.get(self.step, 1.0)
        return (period,) if period > 1 and longest >= 2 * period else ()

    def times(self, numbers: np.ndarray) -> np.ndarray:
        if self.kind == "numbers":
            return self.start + self.step * numbers
        if self.kind == "dates":
            times = (self.start + self.step * numbers).astype("M8[us]")
        else:
            months = (self.start + self.step * numbers).astype("M8[M]")
            anchor = months if self.offset >= 0 else months + 1
            times = anchor.astype("M8[us]") + np.timedelta64(self.offset, "us")
        return np.array([f"{moment}Z" for moment in times], object) if self.is_zoned else times


def clock_of(table: Table, name: str) -> tuple[Clock, np.ndarray]:
    """The step of a column of times, and the number of the step of each row."""
    values, kind = read_values(table, name)
    unique = np.unique(values)
    if len(unique) < 2:
        raise TableError(f"{table.source}: column {name!r} has one time only: a series needs several.")
    if kind == "number":
        step = float(np.min(np.diff(unique)))
        numbers = np.round((values - unique[0]) / step)
        if np.any(np.abs(unique[0] + step * numbers - values) > 0.05 * step):
            raise TableError(
                f"{table.source}: the times in column {name!r} are not regular: they are not multiples of {step:g}, the "
                "smallest step. Bring them to a common step first."
            )
        is_whole = np.all(unique == np.round(unique)) and step == round(step)
        start, step = (int(unique[0]), int(step)) if is_whole else (float(unique[0]), step)
        return Clock("numbers", start, step), numbers.astype(np.int64)
    if kind not in DATES:
        raise TableError(f"{table.source}: column {name!r} holds neither dates nor numbers: name the times with --time.")
    is_zoned = kind == "zoned date"
    times = values.astype(np.int64)
    months = times.astype("M8[us]").astype("M8[M]")
    for anchor in (months, months + 1):  # as far from the beginning, or from the end, of every month
        offsets = times - anchor.astype("M8[us]").astype(np.int64)
        if np.all(offsets == offsets[0]) and len(np.unique(months)) > 1:
            counted = months.astype(np.int64)
            step = int(np.gcd.reduce(counted - counted.min()))
            return Clock("months", int(counted.min()), step, int(offsets[0]), is_zoned), (counted - counted.min()) // step
    step = int(np.gcd.reduce(times - times.min()))
    return Clock("dates", int(times.min()), step, is_zoned=is_zoned), (times - times.min()) // step
