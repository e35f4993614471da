"""The datasets of a long table, one for each value of a group column."""

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernax._spelling import listed as quoted
from kernax._spelling import nearest
from kernax.data._columns import Columns, Wanted, is_a, listed, whole
from kernax.data._files import PARQUET, File, in_pieces, numeric_batches, once, opened
from kernax.data._host import Group, HostData, at_place
from kernax.data._places import Place, Source


class Groups:
    """The datasets of a table, from `kx.data.groups`. Iterate to get each as a `Group(key, x, y)`."""

    def __init__(
        self,
        begin: Callable[[], Iterator[Group]],
        names: Sequence[Hashable] | None,
        description: str,
        places: Callable[[], Iterator[HostData] | None] | None = None,
    ):
        self._begin = begin
        self.names = names
        """The names of the datasets; `None` if they are known only after reading."""
        self._description = description
        self._places = places

    def __iter__(self) -> Iterator[Group]:
        return self._begin()

    def __len__(self) -> int:
        if self.names is None:
            raise TypeError("how many groups a file or a stream has is known only after reading it.")
        return len(self.names)

    # A file has no known length, but is not empty.
    def __bool__(self) -> bool:
        return self.names is None or len(self.names) > 0

    def __repr__(self):
        return f"Groups({'' if self.names is None else f'{len(self.names)} groups '}{self._description})"


def groups(table: Any, by: Any, x: Any, y: Any, *, rows_at_a_time: int = 65536) -> Groups:
    """The datasets of a long table: rows with the same value of the column `by` are one dataset.

    Datasets come in the order of their first rows. Missing numbers become NaN, and the fit of that dataset reports them.
    Text such as `NA` or `nan` counts as missing, too. In the column `by`, missing values are an error. Numbers are float32
    if all columns of `x` and `y` are, and float64 otherwise.

    **Arguments:**

    - `table`: a pandas or polars frame (also a lazy one), an Arrow table, dataset or reader, a DuckDB relation, a dict of
      columns, or the path of a Parquet, Arrow, Feather, CSV or TSV file.
    - `by`: the name of the column that says to which dataset a row belongs, or a list of names.
    - `x`: the name of the input column, or a list of names.
    - `y`: the name of the target column, for targets of shape (n,), or a list of names, for (n, p).
    - `rows_at_a_time`: files, datasets and readers are read in pieces of about this many rows. In these, the rows of a
      group must be consecutive.

    **Returns:**

    `Groups`, which [`kernax.fit_many`][] accepts. They can be iterated and pickled.
    """
    wanted = Wanted(by, x, y)
    if not listed(by) or not listed(x) or not listed(y):
        raise ValueError("by, x and y must each name at least one column.")
    described = f"by {by!r}, x={x!r}, y={y!r}"
    if is_stream(table):
        names, batches, source = _batches(table, wanted, rows_at_a_time)
        check_columns(wanted.columns, names)
        where = source.where if isinstance(source, File) else None
        pieces = functools.partial(_pieces, batches, rows_at_a_time, where)
        is_parquet = isinstance(source, File) and source.kind == PARQUET
        places = functools.partial(_places, source, wanted, rows_at_a_time) if is_parquet else None
        named = source.path if isinstance(source, File) else source
        return Groups(functools.partial(_read, pieces, wanted), None, f"{described}, from {named}", places)

    columns = whole(table, wanted.columns)
    check_columns(wanted.columns, columns.names)
    keys = wanted.groups_in(columns, 0)
    xs, ys = wanted.numbers_in(columns, 0, keys)
    seen: dict = {}
    codes = np.fromiter((seen.setdefault(key, len(seen)) for key in keys), np.intp, len(keys))
    order = np.argsort(codes, kind="stable")
    xs, ys, stops = xs[order], ys[order], np.cumsum(np.bincount(codes, minlength=len(seen)))
    return Groups(functools.partial(_in_order, list(seen), xs, ys, stops.tolist()), list(seen), described)


def is_stream(table: Any) -> bool:
    """Whether a table is read in pieces: a path, or a dataset or reader of pyarrow."""
    is_path = isinstance(table, str | os.PathLike)
    return is_path or is_a(table, "pyarrow", "RecordBatchReader") or is_a(table, "pyarrow.dataset", "Dataset")


# Not nested functions: these can be pickled, and with them `Groups`.


def _batches(table: Any, wanted: Wanted, rows: int) -> tuple[list, Callable[[], Iterator[Any]], Any]:
    """The names of all columns, a function that begins to read those that are wanted, and the source."""
    if is_a(table, "pyarrow", "RecordBatchReader"):
        return table.schema.names, once(table), "a reader"
    if is_a(table, "pyarrow.dataset", "Dataset"):
        # Of many files, one at a time; within a file pyarrow reads ahead as it likes.
        options = {"columns": wanted.columns, "batch_size": rows, "batch_readahead": 1, "fragment_readahead": 1}
        return table.schema.names, functools.partial(table.to_batches, **options), "a dataset"
    file = opened(table)
    return file.names, functools.partial(numeric_batches, file, wanted.columns, wanted.numbers, rows), file


def _pieces(batches: Callable[[], Iterator[Any]], rows: int, where: Callable[[int], str] | None = None) -> Iterator[Columns]:
    for piece in map(whole, in_pieces(batches, rows)):
        yield piece if where is None else piece._replace(where=where)


def unread(datasets: Any) -> Any:
    """The groups of a Parquet file as datasets of which only the names have been read; anything else unchanged.

    Groups are also unchanged if x or y are not columns of numbers: reading then finds the wrong values.
    """
    places = datasets._places() if isinstance(datasets, Groups) and datasets._places is not None else None
    return datasets if places is None else places


def _in_order(keys: list, xs: np.ndarray, ys: np.ndarray, stops: list[int]) -> Iterator[Group]:
    """The groups of a table in memory, whose rows stand together."""
    start = 0
    for key, stop in zip(keys, stops, strict=True):
        yield Group(key, xs[start:stop], ys[start:stop])
        start = stop


def _read(pieces: Callable[[], Iterator[Columns]], wanted: Wanted) -> Iterator[Group]:
    """The groups of a file or a stream."""

    def numbers(piece: Columns, offset: int, keys: list) -> tuple[np.ndarray, ...]:
        return wanted.numbers_in(piece, offset, keys)

    return (Group(key, *arrays) for key, arrays in together(_parts(pieces(), wanted, numbers), listed(wanted.by)))


def _places(file: File, wanted: Wanted, rows: int) -> Iterator[HostData] | None:
    """The places of the groups in a Parquet file."""
    source = Source.of(file.path, wanted)
    if source is None:
        return None
    pieces = _pieces(functools.partial(file.batches, listed(wanted.by), rows), rows, file.where)

    def row_numbers(piece: Columns, offset: int, keys: list) -> tuple[np.ndarray, ...]:
        return (np.arange(offset, offset + len(keys)),)

    found = enumerate(together(_parts(pieces, wanted, row_numbers), listed(wanted.by)))
    return (at_place(Place(source, int(own[0]), int(own[-1]) + 1), key, number) for number, (key, (own,)) in found)


class Part(NamedTuple):
    """A piece of a table, for `together`."""

    keys: list
    """The group of each row."""
    arrays: tuple[np.ndarray, ...]
    """Arrays over the rows, of which each group gets its own rows."""
    where: Callable[[int], str]
    """What a message calls a row of the piece."""


def _parts(
    pieces: Iterable[Columns], wanted: Wanted, arrays_of: Callable[[Columns, int, list], tuple[np.ndarray, ...]]
) -> Iterator[Part]:
    """`arrays_of(piece, offset, keys)` are the arrays of a piece that begins at row `offset`."""
    offset = 0
    for piece in pieces:
        keys = wanted.groups_in(piece, offset)
        yield Part(keys, arrays_of(piece, offset, keys), lambda row, offset=offset: f"row {offset + row}")
        offset += len(keys)


def together(parts: Iterable[Part], by: list) -> Iterator[tuple[Any, tuple[np.ndarray, ...]]]:
    """Groups as they pass by, each held until its last row is seen; of those before it, only the names.

    `by` are the names of the columns of the groups, for a message.
    """
    seen: set = set()
    current, held = None, []
    for keys, arrays, where in parts:
        starts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
        for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True):
            key = keys[start]
            if not held or key != current:
                if held:
                    yield current, _joined(held)
                if key in seen:
                    raise ValueError(
                        f"group {key!r} begins again in {where(start)}, but in a file or a stream its rows must be "
                        f"consecutive: sort the table by {', '.join(map(repr, by))} first, or load it whole."
                    )
                seen.add(key)
                current, held = key, []
            held.append(tuple(array[start:stop] for array in arrays))
    if held:
        yield current, _joined(held)


def _joined(parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    return parts[0] if len(parts) == 1 else tuple(np.concatenate(pieces) for pieces in zip(*parts, strict=True))


def check_columns(wanted: list, names: list) -> None:
    """Raise `ValueError` if a column of `wanted` is missing or occurs twice."""
    for name in wanted:
        if name not in names:
            near = nearest(name, names)
            hint = f"; did you mean{near.removeprefix(' Did you mean')}" if near else "."
            raise ValueError(f"the table has no column {name!r}{hint} Its columns are {quoted(names)}.")
        if names.count(name) > 1:
            raise ValueError(f"the table has {names.count(name)} columns called {name!r}: rename them.")
