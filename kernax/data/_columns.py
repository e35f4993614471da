"""The columns of tables of every kind: frames through narwhals, and dicts of columns as they are.

narwhals is imported when a frame comes, and frames' own libraries by whoever has one.
"""

import datetime
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "+nan", "<na>", "null", "none", "nat"})
"""Text that stands for a missing value, in small letters and without blanks around it."""


def _row(number: int) -> str:
    return f"row {number}"


class Columns(NamedTuple):
    """What every kind of table comes down to."""

    names: list
    values: Callable[[Any], np.ndarray]
    """A column as an array: numbers with NaN, times, or objects with `None` where a value is missing."""
    keys: Callable[[Any], list]
    """A column as Python's own values, `None` where one is missing."""
    trait: Callable[[Any], str] = lambda name: ""
    """What the type of a column says beyond its values: `zoned`, `category`, `unreadable` or nothing."""
    where: Callable[[int], str] = _row
    """What a message calls a row, counted from the beginning of the whole table."""


class Wanted(NamedTuple):
    """The columns that make datasets: each a name, or several of them."""

    by: Any
    x: Any
    y: Any

    @property
    def columns(self) -> list:
        return list(dict.fromkeys([*listed(self.by), *listed(self.x), *listed(self.y)]))

    @property
    def numbers(self) -> list:
        return [*listed(self.x), *listed(self.y)]

    def groups_in(self, columns: Columns, offset: int) -> list:
        """The group of each row of a table, or of a piece of one that begins at row `offset`."""
        by = [columns.keys(name) for name in listed(self.by)]
        for name, keys in zip(listed(self.by), by, strict=True):
            missing = [i for i, key in enumerate(keys) if key is None]
            if missing:
                raise ValueError(
                    f"column {name!r} names no group in {len(missing)} of the rows {offset} to {offset + len(keys) - 1} "
                    f"(first: {columns.where(offset + missing[0])}): drop them, or fill them in."
                )
        _check_lengths(listed(self.by), by)
        return list(zip(*by, strict=True)) if is_several(self.by) else by[0]

    def numbers_in(self, columns: Columns, offset: int, keys: list | None = None) -> tuple[np.ndarray, np.ndarray]:
        """x and y, likewise; as many as there are `keys`, if these are given."""
        x, y = (
            [as_numbers(columns.values(n), n, offset, columns.where) for n in listed(names)] for names in (self.x, self.y)
        )
        _check_lengths(self.numbers, [*x, *y], {} if keys is None else {listed(self.by)[0]: len(keys)})
        dtype = np.float32 if all(values.dtype == np.float32 for values in (*x, *y)) else np.float64
        inputs = np.stack(x, axis=1, dtype=dtype, casting="unsafe")
        targets = np.stack(y, axis=1, dtype=dtype, casting="unsafe") if is_several(self.y) else y[0].astype(dtype)
        return inputs, targets


def _check_lengths(names: list, columns: list, known: Mapping[Any, int] = types.MappingProxyType({})) -> None:
    sizes = {**known, **{name: len(values) for name, values in zip(names, columns, strict=True)}}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the columns differ in length: {sizes}.")


def is_several(names: Any) -> bool:
    """Whether columns are named in a list."""
    return isinstance(names, list | tuple)


def listed(names: Any) -> list:
    """Columns in a list, also if there is one."""
    return list(names) if is_several(names) else [names]


def as_numbers(values: np.ndarray, name: Any, offset: int, where: Callable[[int], str] = _row) -> np.ndarray:
    """A column as numbers, NaN where one is missing. Raises `ValueError` that names the first row with anything else.

    **Arguments:**

    - `values`: the column.
    - `name`: its name.
    - `offset`: the number of its first row in the whole table.
    - `where`: what a message calls a row.
    """
    if values.ndim != 1:
        raise ValueError(f"column {name!r} has shape {values.shape}: it must be one number a row.")
    if values.dtype.kind in "biuf":
        return values
    is_time = values.dtype.kind in "mM"
    numbers = np.full(len(values), np.nan)
    text, plain = None, values.tolist()
    for i, value in enumerate([] if is_time else plain):
        if value is None:
            continue
        is_time = isinstance(value, datetime.date | datetime.time | datetime.timedelta)
        try:
            numbers[i] = float(value)
        except (TypeError, ValueError):
            text = i
            break
        if text is None and isinstance(value, str | bytes):
            text = i
    if is_time:
        raise ValueError(
            f"column {name!r} holds dates or times, and kernax takes numbers: convert it first, "
            "for example to days since the first observation."
        )
    if text is not None:
        raise ValueError(
            f"column {name!r} has {plain[text]!r} in {where(offset + text)}, and kernax takes numbers: convert it first."
        )
    return numbers


def whole(table: Any, wanted: list | None = None) -> Columns:
    """The columns of a table in memory; of a lazy frame or a relation, only those of `wanted` are computed.

    Raises `TypeError` if it is not a table.
    """
    if isinstance(table, Mapping):
        return Columns(list(table), lambda name: _array(table[name]), lambda name: _listed(table[name]))
    import narwhals

    if is_a(table, "pyarrow.dataset", "Dataset"):
        table = table.to_table(columns=wanted)
    try:
        frame = narwhals.from_native(table)
    except narwhals.exceptions.DuplicateError as error:
        raise ValueError(_doubles(list(table.columns)) or str(error)) from None
    except TypeError:
        if not hasattr(table, "__arrow_c_stream__"):
            raise TypeError(
                "table must be a pandas or polars frame, an Arrow table, dataset or reader, a DuckDB relation, a dict of "
                f"columns, or a path, got {type(table).__name__}."
            ) from None
        frame = narwhals.from_arrow(table, backend="pyarrow")
    names = frame.collect_schema().names()
    doubles = _doubles(names)
    if doubles:
        raise ValueError(doubles)
    if isinstance(frame, narwhals.LazyFrame):
        if wanted is not None and set(wanted) <= set(names):
            frame = frame.select(wanted)
        frame = frame.collect()
    return Columns(
        names,
        lambda name: _series_values(frame.get_column(name)),
        lambda name: _series_keys(frame.get_column(name)),
        lambda name: _series_trait(frame.get_column(name)),
    )


def _doubles(names: list) -> str:
    return next(
        (
            f"the table has {names.count(name)} columns called {name!r}: rename them."
            for name in names
            if names.count(name) > 1
        ),
        "",
    )


def _series_values(series: Any) -> np.ndarray:
    kind = series.dtype
    if kind.is_numeric() and not str(kind).startswith("Decimal"):
        return series.to_numpy()
    if kind.is_temporal() and str(kind) != "Time":
        return series.to_numpy()
    if str(kind) == "Boolean" and not series.null_count():
        return series.to_numpy().astype(bool)
    return _objects(_series_keys(series))


def _series_keys(series: Any) -> list:
    return cleared(
        [None if gone else value for value, gone in zip(series.to_list(), series.is_null().to_list(), strict=True)]
    )


def _series_trait(series: Any) -> str:
    kind = str(series.dtype)
    if kind.startswith(("Categorical", "Enum")):
        return "category"
    if getattr(series.dtype, "time_zone", None):
        return "zoned"
    return "unreadable" if kind.startswith(("List", "Array", "Struct", "Duration", "Binary", "Time")) else ""


def _objects(values: list) -> np.ndarray:
    return np.fromiter(values, object, len(values))  # np.array would make a matrix of lists


def cleared(values: list) -> list:
    """Values with `None` for each that is missing: NaN, NaT, another library's NA, and the text of `MISSING`."""
    texts = {value for value in values if isinstance(value, str)}
    absent = {text for text in texts if text.strip().lower() in MISSING}
    return [None if _is_missing(value, absent) else value for value in values]


def _is_missing(value: Any, absent: set[str]) -> bool:
    if value is None or isinstance(value, str):
        return value is None or value in absent
    try:
        return bool(value != value)
    except ValueError:  # an array has no truth
        return False
    except (TypeError, ArithmeticError):  # neither has pandas.NA, nor a signalling NaN
        return True


def _listed(values: Any) -> list:
    """A column of a dict as Python's own values."""
    if isinstance(values, list | tuple):
        return cleared([value.item() if isinstance(value, np.generic) else value for value in values])
    values = _unmasked(values)
    # Nanoseconds have no Python type: NumPy would give integers.
    return cleared((values.astype("M8[us]") if values.dtype.kind == "M" else values).tolist())


def _array(values: Any) -> np.ndarray:
    """A column of a dict as an array."""
    values = _unmasked(values)
    if values.ndim != 1 or values.dtype.kind not in "OU":
        return values
    return _objects(cleared(values.tolist()))


def _unmasked(values: Any) -> np.ndarray:
    """An array; what a masked one hides is missing."""
    if not isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    hidden = np.ma.getmaskarray(values)
    if values.dtype.kind in "biuf":
        return np.where(hidden, np.nan, values.data)
    if values.dtype.kind in "mM":
        return values.filled("NaT")
    plain = np.array(values.data, dtype=object)
    plain[hidden] = None
    return plain


def is_a(table: Any, module: str, name: str) -> bool:
    """Whether `table` is of that class, without importing its library: who holds one has imported it."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(table, getattr(loaded, name))
