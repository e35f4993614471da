"""The datasets of a long table, one for each value of a group column."""

import difflib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from kernax.data._columns import Columns, as_numbers, is_a, stream, whole
from kernax.data._many import Group


class Groups:
    """The datasets of a table, as `groups` finds them: iterate to get each as a `Group(key, x, y)`."""

    def __init__(self, begin: Callable[[], Iterator[Group]], size: int | None, description: str):
        self._begin = begin
        self._size = size
        self._description = description

    def __iter__(self) -> Iterator[Group]:
        return self._begin()

    def __len__(self) -> int:
        if self._size is None:
            raise TypeError("how many groups a file or a stream has is known only after reading it.")
        return self._size

    # A file is not empty for want of a length.
    def __bool__(self) -> bool:
        return self._size != 0

    def __repr__(self):
        return f"Groups({'' if self._size is None else f'{self._size} groups '}{self._description})"


class _Wanted(NamedTuple):
    by: Any
    x: Any
    y: Any

    @property
    def columns(self) -> list:
        return list(dict.fromkeys([*_listed(self.by), *_listed(self.x), *_listed(self.y)]))


def groups(table: Any, by: Any, x: Any, y: Any, *, rows_at_a_time: int = 65536) -> Groups:
    """The datasets of a long table: the rows with one value of the column `by`, or of several columns, are one dataset.

    `table` is a pandas or polars frame, a pyarrow table, dataset or reader, a dict of columns, or the path of a parquet,
    arrow, feather or CSV file. `x` and `y` name one column each, or a list; a `y` given as one name makes targets (n,).
    Groups come in order of their first row. A dataset, a reader or a file is read in pieces of about `rows_at_a_time`
    rows, and the rows of a group must stand together there. Missing numbers become NaN, and the fit of that dataset
    reports them. The numbers are float32 if all columns of x and y are, else float64.
    """
    wanted = _Wanted(by, x, y)
    if not _listed(by) or not _listed(x) or not _listed(y):
        raise ValueError("by, x and y must each name at least one column.")
    if is_a(table, "polars", "LazyFrame"):
        check_columns(wanted.columns, table.collect_schema().names())
        table = table.select(wanted.columns).collect()
    described = f"by {by!r}, x={x!r}, y={y!r}"

    columns = whole(table)
    if columns is not None:
        check_columns(wanted.columns, columns.names)
        keys, xs, ys = _taken(columns, wanted, 0)
        seen: dict = {}
        codes = np.fromiter((seen.setdefault(key, len(seen)) for key in keys), np.intp, len(keys))
        order = np.argsort(codes, kind="stable")
        xs, ys, stops = xs[order], ys[order], np.cumsum(np.bincount(codes, minlength=len(seen)))

        return Groups(functools.partial(_in_order, list(seen), xs, ys, stops.tolist()), len(seen), described)

    names, pieces, source = stream(table, wanted.columns, [*_listed(x), *_listed(y)], rows_at_a_time)
    check_columns(wanted.columns, names)
    return Groups(functools.partial(_read, pieces, wanted), None, f"{described}, from {source}")


# Not nested functions: these can be pickled, and with them `Groups`.


def _in_order(keys: list, xs: np.ndarray, ys: np.ndarray, stops: list[int]) -> Iterator[Group]:
    """The groups of a table in memory, whose rows stand together."""
    start = 0
    for key, stop in zip(keys, stops, strict=True):
        yield Group(key, xs[start:stop], ys[start:stop])
        start = stop


def _read(pieces: Callable[[], Iterator[Columns]], wanted: _Wanted) -> Iterator[Group]:
    """The groups of a file or a stream."""
    return _streamed(pieces(), wanted)


def _streamed(pieces: Iterable[Columns], wanted: _Wanted) -> Iterator[Group]:
    """Groups as they pass by, each held until its last row is seen; of those before it, only the names."""
    seen: set = set()
    current, parts, offset = None, [], 0
    for piece in pieces:
        keys, x, y = _taken(piece, wanted, offset)
        starts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
        for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True):
            key = keys[start]
            if not parts or key != current:
                if parts:
                    yield _joined(current, parts)
                if key in seen:
                    raise ValueError(
                        f"group {key!r} begins again in row {offset + start}, but in a file or a stream its rows must stand "
                        f"together: sort the table by {', '.join(map(repr, _listed(wanted.by)))} first, or load it whole."
                    )
                seen.add(key)
                current, parts = key, []
            parts.append((x[start:stop], y[start:stop]))
        offset += len(keys)
    if parts:
        yield _joined(current, parts)


def _joined(key: Any, parts: list) -> Group:
    x, y = parts[0] if len(parts) == 1 else (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    return Group(key, x, y)


def _taken(columns: Columns, wanted: _Wanted, offset: int) -> tuple[list, np.ndarray, np.ndarray]:
    """The group of each row, x and y, of the whole table or a piece of it that begins at row `offset`."""
    by = [columns.keys(name) for name in _listed(wanted.by)]
    for name, keys in zip(_listed(wanted.by), by, strict=True):
        missing = [i for i, key in enumerate(keys) if key is None or key != key]
        if missing:
            raise ValueError(
                f"column {name!r} names no group in {len(missing)} of the rows {offset} to {offset + len(keys) - 1} "
                f"(first: row {offset + missing[0]}): drop them, or fill them in."
            )
    x, y = ([as_numbers(columns.values(n), n, offset) for n in _listed(names)] for names in (wanted.x, wanted.y))
    names = [*_listed(wanted.by), *_listed(wanted.x), *_listed(wanted.y)]
    sizes = {name: len(values) for name, values in zip(names, (*by, *x, *y), strict=True)}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"the columns differ in length: {sizes}.")
    dtype = np.float32 if all(values.dtype == np.float32 for values in (*x, *y)) else np.float64
    keys = list(zip(*by, strict=True)) if _is_several(wanted.by) else by[0]
    x = np.stack(x, axis=1, dtype=dtype, casting="unsafe")
    y = np.stack(y, axis=1, dtype=dtype, casting="unsafe") if _is_several(wanted.y) else y[0].astype(dtype)
    return keys, x, y


def check_columns(wanted: list, names: list) -> None:
    """Raise `ValueError` if a wanted column is missing, or there twice."""
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(str(name), [str(other) for other in names], n=1)
            shown = ", ".join(map(repr, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            raise ValueError(
                f"the table has no column {name!r}{f'; did you mean {near[0]!r}?' if near else '.'} Its columns are {shown}."
            )
        if names.count(name) > 1:
            raise ValueError(f"the table has {names.count(name)} columns called {name!r}: rename them.")


def _is_several(names: Any) -> bool:
    return isinstance(names, list | tuple)


def _listed(names: Any) -> list:
    return list(names) if _is_several(names) else [names]
