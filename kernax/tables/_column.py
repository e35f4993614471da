"""How a column is read: its kind, its unit, and the centre and scale that make it a standardised number."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np

from kernax.expressions import numbers_key
from kernax.io import register
from kernax.tables._dates import UNITS, time_text


class Column(eqx.Module):
    """How a column is read: a model sees `(value - centre) / scale`.

    The value of a date is the number of `unit`s since `origin`, the value of a category its place among the `levels`.
    """

    name: str = eqx.field(static=True)
    """The name."""
    kind: str = eqx.field(static=True)
    """`number`, `date`, `zoned date` or `category`."""
    unit: str | None = eqx.field(static=True, default=None)
    """Of dates: `years`, `days`, `hours` or `seconds`."""
    origin: str | None = eqx.field(static=True, default=None)
    """Of dates: when counting begins."""
    centre: float = eqx.field(static=True, default=0.0)
    """The mean of the training rows."""
    scale: float = eqx.field(static=True, default=1.0)
    """The standard deviation of the training rows."""
    low: float = eqx.field(static=True, default=0.0)
    """The smallest value in the training rows."""
    high: float = eqx.field(static=True, default=0.0)
    """The largest value in the training rows."""
    levels: tuple[str, ...] = eqx.field(static=True, default=())
    """The names of the categories."""

    @property
    def is_date(self) -> bool:
        """Whether it holds dates."""
        return self.kind in ("date", "zoned date")

    @property
    def is_category(self) -> bool:
        """Whether it holds categories or classes."""
        return self.kind == "category"

    @property
    def label(self) -> str:
        """The name, and for dates what their numbers count."""
        return f"{self.name} ({self.unit} since {self.origin})" if self.is_date else self.name

    def standardised(self, values: np.ndarray) -> np.ndarray:
        """Convert values to the numbers that a model sees.

        **Arguments:**

        - `values`: numbers in the units of the table.

        **Returns:**

        `(values - centre) / scale`.
        """
        return (values - self.centre) / self.scale

    def restored(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `standardised`.

        **Arguments:**

        - `values`: standardised numbers.

        **Returns:**

        Numbers in the units of the table.
        """
        return values * self.scale + self.centre

    def shown(self, value: float) -> str:
        """A value in the spelling of the table: a date as a date, a category by its name.

        **Arguments:**

        - `value`: its number.

        **Returns:**

        Text.
        """
        if self.is_category:
            return self.levels[int(value)]
        if not self.is_date:
            return f"{value:.6g}"
        text = time_text(self.times(np.float64(value)))
        return text[:10] if self.unit in ("years", "days") else text

    def _clock(self) -> tuple[Any, float]:
        """Where a date's numbers begin and how long one is, in microseconds since 1970."""
        return np.datetime64(self.origin or "1970", "us").astype(np.int64), UNITS[self.unit or "days"]

    def times(self, values: Any) -> Any:
        """Convert the numbers of a column of dates to dates.

        **Arguments:**

        - `values`: how many `unit`s since `origin`.

        **Returns:**

        An array of `datetime64[us]`.
        """
        start, length = self._clock()
        return (start + values * length).astype(np.int64).astype("M8[us]")

    def of_times(self, times: np.ndarray) -> np.ndarray:
        """The inverse of `times`.

        **Arguments:**

        - `times`: microseconds since 1970.

        **Returns:**

        Numbers in the units of the table.
        """
        start, length = self._clock()
        return (times - start) / length


register(Column, name="kernax.tables.Column")


def rows_of(columns: Sequence[Column], values: np.ndarray, dtype: Any) -> Any:
    """The rows that a model sees: a matrix, or with categories a dict of the codes of each and the numbers.

    `values` is a matrix of standardised numbers and codes, in the order of the columns.
    """
    numbers = [i for i, column in enumerate(columns) if not column.is_category]
    if len(numbers) == len(columns):
        return values.astype(dtype)
    rows = {column.name: values[:, i].astype(np.int32) for i, column in enumerate(columns) if column.is_category}
    return rows | ({numbers_key(columns): values[:, numbers].astype(dtype)} if numbers else {})


def values_of(columns: Sequence[Column], rows: Any) -> np.ndarray:
    """The inverse of `rows_of`: the matrix of numbers and codes."""
    if not isinstance(rows, dict):
        return np.asarray(rows, np.float64)
    numbers = iter(np.asarray(rows.get(numbers_key(columns), np.zeros((0, 0)))).T)
    parts = [np.asarray(rows[column.name]) if column.is_category else next(numbers) for column in columns]
    return np.stack(parts, axis=1).astype(np.float64)


def parts_of(columns: Sequence[Column]) -> dict[str, list[int]] | None:
    """Which columns each part of the rows holds; `None` if the rows are one matrix."""
    if not any(column.is_category for column in columns):
        return None
    parts = {column.name: [i] for i, column in enumerate(columns) if column.is_category}
    return parts | {numbers_key(columns): [i for i, column in enumerate(columns) if not column.is_category]}
