"""Tables from files and frames: named columns of text, numbers or times, and the place of each row in its file."""

import datetime
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernax._spelling import listed, nearest
from kernax.data._columns import Columns, whole
from kernax.data._files import TEXT, File, in_pieces, opened, without_missing_text

_EXACT = 2**53
"""From here on, floating-point numbers have no room for every integer."""
_ROWS_OF_PIECE = 16384
"""Of a file that is read in pieces."""


class TableError(ValueError):
    """A table that cannot be used as asked. The message names the file, the column and the lines, and says what to do."""


class Table(NamedTuple):
    """Columns by name: text (`object`), numbers (NaN where missing) or times (`datetime64[us]`)."""

    columns: dict[str, np.ndarray]
    """The columns. Text has no blanks around it, and is `None` where a value is missing."""
    source: str
    """What messages call the table: its file."""
    at: np.ndarray | Callable[[], np.ndarray | None] | None = None
    """The line of each row in a text file, or a function that finds them."""
    zoned: frozenset[str] = frozenset()
    """The columns whose times are UTC."""
    notes: tuple[str, ...] = ()
    """Notes about the table."""
    original: Any = None
    """The columns of a text file to the letter, as a table of pyarrow."""
    categories: frozenset[str] = frozenset()
    """The columns that are read as categories, also if they hold numbers."""
    unreadable: frozenset[str] = frozenset()
    """The columns of lists, durations and the like."""
    first: int = 0
    """The number of the first row in the file, for a piece of a table."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    @property
    def lines(self) -> np.ndarray | None:
        """The line of each row in a text file, else `None`."""
        return self.at() if callable(self.at) else self.at

    def column(self, name: str) -> np.ndarray:
        """One column.

        **Arguments:**

        - `name`: its name.

        **Returns:**

        Its values. Raises `TableError` with the nearest spelling if there is no such column.
        """
        if name not in self.columns:
            raise TableError(
                f"{self.source}: there is no column {name!r}.{nearest(name, self.names)} "
                f"Its columns are {listed(self.names)}."
            )
        return self.columns[name]

    def places(self, rows: Sequence[int] | np.ndarray) -> str:
        """Where rows stand, for a message.

        **Arguments:**

        - `rows`: their numbers, counted from 0.

        **Returns:**

        Text such as `line 3` or `lines 3, 7, 9, … (12 in all)`; rows counted from 0 if the table is not a text file.
        """
        lines = self.lines
        shown = [self.first + int(i) if lines is None else int(lines[i]) for i in rows[:5]]
        word = "row" if lines is None else "line"
        more = [f"{len(rows)} in all"] if len(rows) > len(shown) else []
        counted = ["counted from 0"] if lines is None else []
        extra = f" ({', '.join(more + counted)})" if more or counted else ""
        return f"{word}{'s' if len(rows) > 1 else ''} {', '.join(map(str, shown))}{', …' if more else ''}{extra}"

    def taken(self, rows: np.ndarray) -> "Table":
        """Some of the rows.

        **Arguments:**

        - `rows`: their numbers, counted from 0.

        **Returns:**

        A `Table`.
        """
        columns = {name: values[rows] for name, values in self.columns.items()}
        at = self.at[rows] if isinstance(self.at, np.ndarray) else self.at and functools.partial(_some, self.at, rows)
        original = None if self.original is None else self.original.take(np.asarray(rows))
        return self._replace(columns=columns, at=at, original=original)

    def copied(self) -> dict[str, np.ndarray]:
        """The columns for another file.

        **Returns:**

        Columns by name: text to the letter, times with their zone.
        """
        if self.original is not None:
            return {name: self.original.column(name).to_numpy() for name in self.names}
        zoned = {name: _texts(self.columns[name], lambda time: f"{time}Z") for name in self.zoned}
        return {**self.columns, **zoned}


def refused(table: Table, name: str, what: str, rows: Sequence[int] | np.ndarray, then: str) -> TableError:
    """The error of a column with something wrong in some rows."""
    return TableError(f"{table.source}: column {name!r} {what} in {table.places(rows)}{then}")


def _some(lines: Callable[[], np.ndarray | None], rows: np.ndarray) -> np.ndarray | None:
    found = lines()
    return None if found is None else found[rows]


def _lines(file: File, rows: int) -> np.ndarray | None:
    """The line of each row; `None` if the file has changed since it was read."""
    try:
        found = file.lines(rows)
    except (ValueError, OSError):
        return None
    return found if len(found) == rows else None


def _lines_of_piece(file: File, first: int, rows: int) -> np.ndarray | None:
    """The same for some rows of the file."""
    try:
        found = file.lines()[first : first + rows]
    except (ValueError, OSError):
        return None
    return found if len(found) == rows else None


def as_table(table: Any) -> Table:
    """A `Table` of a path, a frame, a relation, an Arrow table or a dict of columns."""
    if isinstance(table, Table):
        return table
    if isinstance(table, str | os.PathLike):
        return read_table(table)
    try:
        columns = whole(table)
    except ValueError as error:
        raise TableError(str(error)) from None
    _check_names([str(name) for name in columns.names], "the table")
    return _checked(_of_columns(columns, "the table"))


def read_table(path: str | os.PathLike) -> Table:
    """Read a table from a file.

    **Arguments:**

    - `path`: a CSV, TSV, Parquet, Arrow or Feather file.

    **Returns:**

    A `Table`. Raises `TableError` if the file does not exist or cannot be read, and `ImportError` without pyarrow.
    """
    path = os.fspath(path)
    try:
        file = opened(path)
        _check_names(file.names, path)
        table = file.read()
    except (ValueError, FileNotFoundError) as error:
        raise TableError(str(error)) from None
    return _checked(_of_text(file, table) if file.kind == TEXT else _of_columns(whole(table), path))


def read_head(path: str) -> Table:
    """The names of the columns of a file, without rows. Raises `TableError`, as `read_table` does."""
    try:
        file = opened(path)
        _check_names(file.names, path)
    except (ValueError, FileNotFoundError) as error:
        raise TableError(str(error)) from None
    return Table({name: np.zeros(0) for name in file.names}, path, notes=_nameless(file))


def read_pieces(path: str, names: Sequence[str]) -> Iterator[Table]:
    """Some columns of a file, as tables of consecutive rows. Raises `TableError`, as `read_table` does."""
    try:
        file, first = opened(path), 0
        for rows in in_pieces(functools.partial(file.batches, names, _ROWS_OF_PIECE), _ROWS_OF_PIECE):
            rows = rows.select(list(names))
            piece = _of_text(file, rows) if file.kind == TEXT else _of_columns(whole(rows), path)
            lines = functools.partial(_lines_of_piece, file, first, rows.num_rows)
            yield piece._replace(at=functools.cache(lines) if file.kind == TEXT else None, first=first)
            first += rows.num_rows
    except (ValueError, FileNotFoundError) as error:
        raise TableError(str(error)) from None


def _checked(table: Table) -> Table:
    if not table.columns:
        raise TableError(f"{table.source}: the table has no columns.")
    sizes = {name: len(values) for name, values in table.columns.items()}
    if len(set(sizes.values())) > 1:
        raise TableError(f"{table.source}: the columns differ in length: {sizes}.")
    if not table.num_rows:
        raise TableError(f"{table.source}: the table has no rows, only column names: {listed(table.names)}.")
    return table


def _check_names(names: list[str], source: str) -> None:
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise TableError(f"{source}: several columns are called {listed(double)}: rename them.")


def _of_text(file: File, table: Any) -> Table:
    return Table(
        {name: without_missing_text(table.column(name)).to_numpy() for name in table.column_names},
        file.path,
        functools.cache(functools.partial(_lines, file, table.num_rows)),
        notes=_nameless(file),
        original=table,
    )


def _nameless(file: File) -> tuple[str, ...]:
    """A note on the columns of a text file without a name."""
    count = len(file.head) - len(file.names) if file.kind == TEXT else 0
    return (f"{count} column{'s' if count > 1 else ''} without a name left out",) if count else ()


def _of_columns(columns: Columns, source: str) -> Table:
    read = {name: _column(columns, name) for name in columns.names}
    traits = {str(name): columns.trait(name) for name in columns.names}
    return Table(
        {str(name): values for name, (values, _) in read.items()},
        source,
        zoned=frozenset(name for name, trait in traits.items() if trait == "zoned"),
        categories=frozenset(name for name, trait in traits.items() if trait == "category"),
        unreadable=frozenset(str(name) for name, (_, is_readable) in read.items() if not is_readable),
    )


_UNREADABLE = (list, tuple, dict, set, bytes, np.ndarray, np.timedelta64, datetime.timedelta)


def _column(columns: Columns, name: Any) -> tuple[np.ndarray, bool]:
    """A column as text, numbers or datetime64[us], and whether it is one of these.

    Anything else (lists, durations, bytes) becomes text that is refused where it is used.
    """
    try:
        values = np.asarray(columns.values(name))
        kind = values.dtype.kind
        is_odd = values.ndim != 1 or kind in "mVS" or columns.trait(name) == "unreadable"
        if is_odd or (kind == "O" and any(isinstance(value, _UNREADABLE) for value in values)):
            return _texts(values, str), False
        if kind not in "biufM":
            values = _plain(values)
    except Exception:  # an error of its library: the column may not be needed at all
        return _texts(columns.keys(name), repr), False
    if kind == "M":
        return values.astype("M8[us]"), True
    if values.dtype.kind == "f" and np.any(np.abs(values) >= _EXACT):
        whole_numbers = columns.keys(name)
        if all(value is None or isinstance(value, int) for value in whole_numbers):
            # The names of groups must remain distinct; as numbers they are read again from the text.
            return _texts(whole_numbers, str), True
    return values, True


def _plain(values: np.ndarray) -> np.ndarray:
    """Objects as numbers if all are, else as text; booleans as `true` and `false`."""
    some = [value for value in values if value is not None]
    if some and all(isinstance(value, bool | np.bool_) for value in some):
        return _texts(values, lambda value: str(value).lower())
    if some and all(isinstance(value, int | float | np.number) for value in some):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return _texts(values, lambda value: (value.isoformat() if hasattr(value, "isoformat") else str(value)).strip())


def _texts(values: Any, text: Callable[[Any], str]) -> np.ndarray:
    """The text of each value, `None` where one is missing."""
    return np.array([None if value is None or _is_nat(value) else text(value) for value in values], dtype=object)


def _is_nat(value: Any) -> bool:
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))
