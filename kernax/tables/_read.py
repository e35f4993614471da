"""Tables as they come: named columns of text, numbers or times, and where each row stands in its file."""

import csv
import datetime
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernax.data._columns import Columns, whole
from kernax.tables._errors import TableError, listed, nearest

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nat"})
"""What stands for a missing value in a text file, in small letters."""
_EXACT = 2**53
"""From here on, floating-point numbers have no room for every integer."""


class Table(NamedTuple):
    """Columns by name: text (`object`), numbers (NaN where missing) or times (`datetime64[us]`).

    Text is what stands in the file, None where a value is missing. `zoned` names the columns whose times are UTC,
    `categories` those that are categories whatever they hold, and `unreadable` those of lists, durations and the like.
    """

    columns: dict[str, np.ndarray]
    source: str
    lines: np.ndarray | None = None
    """The line of each row in a text file."""
    zoned: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    texts: dict[str, np.ndarray] | None = None
    """What stands in a text file, to the letter."""
    categories: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def column(self, name: str) -> np.ndarray:
        """One column, or the nearest spelling of its name."""
        if name not in self.columns:
            raise TableError(
                f"{self.source}: there is no column {name!r}.{nearest(name, self.names)} "
                f"Its columns are {listed(self.names)}."
            )
        return self.columns[name]

    def places(self, rows: Sequence[int] | np.ndarray) -> str:
        """`line 3` or `lines 3, 7, 9, … (12 in all)`; rows counted from 0 where there are no lines."""
        shown = [int(i) if self.lines is None else int(self.lines[i]) for i in rows[:5]]
        word = "row" if self.lines is None else "line"
        more = [f"{len(rows)} in all"] if len(rows) > len(shown) else []
        counted = ["counted from 0"] if self.lines is None else []
        extra = f" ({', '.join(more + counted)})" if more or counted else ""
        return f"{word}{'s' if len(rows) > 1 else ''} {', '.join(map(str, shown))}{', …' if more else ''}{extra}"

    def taken(self, rows: np.ndarray) -> "Table":
        """Some of the rows."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        texts = None if self.texts is None else {name: values[rows] for name, values in self.texts.items()}
        return self._replace(columns=columns, lines=None if self.lines is None else self.lines[rows], texts=texts)

    def copied(self) -> dict[str, np.ndarray]:
        """The columns for another file: text as it stands in this one, times with their zone."""
        if self.texts is not None:
            return self.texts
        zoned = {name: np.array([_utc(time) for time in self.columns[name]], dtype=object) for name in self.zoned}
        return {**self.columns, **zoned}


def as_table(table: Any) -> Table:
    """A `Table` of a path to a CSV, Parquet, Arrow or Feather file, a frame, an Arrow table or a dict of columns."""
    if isinstance(table, Table):
        return table
    if isinstance(table, str | os.PathLike):
        return read_table(table)
    columns = whole(table)
    if columns is None:
        raise TypeError(
            f"a table is a path, a pandas or polars frame, an Arrow table or a dict of columns, not {type(table).__name__}."
        )
    _check_names([str(name) for name in columns.names], "the table")
    return _checked(_of_columns(columns, "the table", table))


def read_table(path: str | os.PathLike) -> Table:
    """Read a table from a file.

    **Arguments:**

    - `path`: a CSV or TSV file, which Python's own reader reads, or a Parquet, Arrow or Feather file, which needs pyarrow.

    **Returns:**

    A `Table`. Raises `TableError` if the file does not exist or cannot be read.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise TableError(f"{path}: this is a folder; give a file.")
    if not os.path.exists(path):
        folder = os.path.dirname(path) or "."
        others = os.listdir(folder) if os.path.isdir(folder) else []
        raise TableError(f"{path}: there is no such file.{nearest(os.path.basename(path), others)}")
    match os.path.splitext(path)[1].lower():
        case ".csv" | ".txt":
            return _checked(_read_text(path, ","))
        case ".tsv":
            return _checked(_read_text(path, "\t"))
        case ".parquet" | ".pq" | ".arrow" | ".feather" as kind:
            return _checked(_read_arrow(path, kind))
        case _:
            raise TableError(f"{path}: kernax reads .csv, .tsv, .parquet, .arrow and .feather; write it as one of these.")


def _checked(table: Table) -> Table:
    if not table.columns:
        raise TableError(f"{table.source}: the table has no columns.")
    sizes = {name: len(values) for name, values in table.columns.items()}
    if len(set(sizes.values())) > 1:
        raise TableError(f"{table.source}: the columns differ in length: {sizes}.")
    if not table.num_rows:
        raise TableError(f"{table.source}: the table has no rows, only column names: {listed(table.names)}.")
    return table


def _read_text(path: str, separator: str) -> Table:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows, lines = _records(file, separator)
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: byte {error.start} is not UTF-8; save the file in that encoding.") from None
    except csv.Error as error:
        raise TableError(f"{path}: this is not a text table ({error}).") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}).") from None
    if not rows:
        raise TableError(f"{path}: the file is empty; the first line is to name the columns.")
    head, rows, lines = [name.strip() for name in rows[0]], rows[1:], np.array(lines[1:], dtype=int)
    _check_head(head, path, separator)
    _check_ragged(head, rows, lines, path)
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(head)
    columns, texts, nameless = {}, {}, 0
    for name, values in zip(head, cells, strict=True):
        if name:
            columns[name] = np.array([None if v.strip().lower() in MISSING else v.strip() for v in values], dtype=object)
            texts[name] = np.array(values, dtype=object)
        else:
            nameless += 1
    notes = (f"{nameless} column{'s' if nameless > 1 else ''} without a name left out",) if nameless else ()
    return Table(columns, path, lines, notes=notes, texts=texts)


def _records(file: Any, separator: str) -> tuple[list[list[str]], list[int]]:
    """The records of a text file that are not blank, and the line on which each begins."""
    reader = csv.reader(file, delimiter=separator, strict=True)
    rows, lines, last = [], [], 0
    for record in reader:
        if (record and any(cell.strip() for cell in record)) or len(record) > 1:
            rows.append(record)
            lines.append(last + 1)
        last = reader.line_num
    return rows, lines


def _check_head(head: list[str], path: str, separator: str) -> None:
    for other, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
        if other != separator and len(head) == 1 and other in head[0]:
            wanted = "commas (or tabs, named .tsv)" if separator == "," else "tabs (or commas, named .csv)"
            raise TableError(
                f"{path}: the columns seem to be separated by {called}; write it with {wanted} and decimal points."
            )
    if all(_is_number(name) for name in head):
        raise TableError(
            f"{path}: the first line, {','.join(head)[:60]!r}, holds numbers; it is to name the columns: put names above it."
        )
    _check_names([name for name in head if name], path)


def _check_names(names: list[str], source: str) -> None:
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise TableError(f"{source}: several columns are called {listed(double)}: rename them.")


def _check_ragged(head: list[str], rows: list[list[str]], lines: np.ndarray, path: str) -> None:
    ragged = [i for i, row in enumerate(rows) if len(row) != len(head)]
    if ragged:
        where = Table({}, path, lines).places(ragged)
        raise TableError(
            f"{path}: the first line names {len(head)} columns, but {where} {'has' if len(ragged) == 1 else 'have'} "
            f"{len(rows[ragged[0]])}{' and other numbers' if len(ragged) > 1 else ''} of values: "
            "add what is missing, or put values that contain commas in quotes."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower() not in MISSING


def _read_arrow(path: str, kind: str) -> Table:
    try:
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path!r} needs pyarrow: pip install pyarrow.") from error
    try:
        table = pyarrow.parquet.read_table(path) if kind in (".parquet", ".pq") else pyarrow.feather.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise TableError(f"{path}: cannot be read as {kind[1:]} ({str(error).splitlines()[0]}).") from None
    _check_names(table.column_names, path)
    columns = whole(table)
    assert columns is not None
    return _of_columns(columns, path, table)


def _of_columns(columns: Columns, source: str, table: Any) -> Table:
    kinds = {name: None if isinstance(table, dict) else _kind(table[name]) for name in columns.names}
    zoned = [name for name, kind in kinds.items() if getattr(kind, "tz", None) or getattr(kind, "time_zone", None)]
    read = {str(name): _column(columns, name) for name in columns.names}
    return Table(
        {name: values for name, (values, _) in read.items()},
        source,
        zoned=frozenset(map(str, zoned)),
        categories=frozenset(str(name) for name, kind in kinds.items() if _is_category(kind)),
        unreadable=frozenset(name for name, (_, is_readable) in read.items() if not is_readable),
    )


def _kind(column: Any) -> Any:
    """The type of the values, as a frame's or an Arrow table's column says it."""
    return getattr(column, "type", None) or getattr(column, "dtype", None)


def _is_category(kind: Any) -> bool:
    """Whether this is pandas' category, polars' Categorical or Enum, or Arrow's dictionary."""
    return hasattr(kind, "index_type") or str(kind).lower().startswith(("category", "categorical", "enum"))


_UNREADABLE = (list, tuple, dict, set, bytes, np.ndarray, np.timedelta64, datetime.timedelta)


def _column(columns: Columns, name: Any) -> tuple[np.ndarray, bool]:
    """A column as text, numbers or datetime64[us], and whether it is one of these.

    What is none of these (lists, durations, bytes) becomes text that is refused where it is used.
    """
    try:
        given = np.asarray(columns.values(name))
        values = _plain(given)
    except Exception:  # whatever its library makes of it: the column may not be wanted at all
        return np.array([repr(value) for value in columns.keys(name)], dtype=object), False
    if given.ndim != 1 or given.dtype.kind in "mVS":
        return values, False
    if given.dtype == object and any(isinstance(value, _UNREADABLE) for value in given):
        return values, False
    if values.dtype.kind == "f" and np.any(np.abs(values) >= _EXACT):
        whole_numbers = columns.keys(name)
        if all(value is None or isinstance(value, int) for value in whole_numbers):
            # Names, such as those of groups, are to stay apart; as numbers they are read again from the text.
            return np.array([None if value is None else str(value) for value in whole_numbers], dtype=object), True
    return values, True


def _plain(values: Any) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 1:
        return np.array([repr(value) for value in values], dtype=object)
    if values.dtype.kind in "biuf":
        return values
    if values.dtype.kind == "M":
        return values.astype("M8[us]")
    if values.dtype.kind == "m":  # durations, whose unit would be lost: text, and so refused where it is used
        return np.array([None if np.isnat(value) else str(value) for value in values], dtype=object)
    plain = values.tolist()
    missing = [_is_missing(value) for value in plain]
    some = [value for value, lacks in zip(plain, missing, strict=True) if not lacks]
    if some and all(isinstance(value, bool | np.bool_) for value in some):
        texts = [None if lacks else str(bool(value)).lower() for value, lacks in zip(plain, missing, strict=True)]
        return np.array(texts, dtype=object)
    if some and all(isinstance(value, int | float | np.number) for value in some):
        return np.array([np.nan if lacks else value for value, lacks in zip(plain, missing, strict=True)], dtype=np.float64)
    return np.array([None if lacks else _text(value) for value, lacks in zip(plain, missing, strict=True)], dtype=object)


def _utc(time: np.datetime64) -> str | None:
    return None if np.isnat(time) else f"{time}Z"


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or another library's NA."""
    try:
        return value is None or bool(value != value)
    except ValueError:  # an array has no truth
        return False
    except (TypeError, ArithmeticError):  # neither has pandas.NA, nor a NaN that signals
        return True


def _text(value: Any) -> str | None:
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return None if text.strip().lower() in MISSING else text.strip()
