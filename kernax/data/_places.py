"""Rows of a Parquet file that are read when they are needed, by whoever needs them: a worker process, for example."""

import functools
import hashlib
import os
from typing import NamedTuple

import numpy as np

from kernax.data._columns import Wanted, is_several, whole

_KEPT = 2
"""Row groups that a process keeps after reading them: the datasets of a block come in the order of the file."""


class UnreadableError(OSError):
    """A file is absent, damaged, or not the one that it was."""


class Source(NamedTuple):
    """A Parquet file as it was when its groups were looked up."""

    path: str
    wanted: Wanted
    """With tuples for lists, so that it can be hashed."""
    footer: str
    """A digest of its metadata (schema, sizes, statistics), by which a file that has changed is recognised."""
    dtype: str
    """The floating type of x and y."""

    @classmethod
    def of(cls, path: str, wanted: Wanted) -> "Source | None":
        """`None` if x and y are not all columns of numbers: anything else is converted, or refused, row by row."""
        import pyarrow.parquet
        from pyarrow import types

        if not os.path.isfile(path):
            return None  # on the net, for example
        fields = [pyarrow.parquet.read_schema(path).field(name).type for name in wanted.numbers]
        kinds = (types.is_floating, types.is_integer, types.is_boolean)
        if not all(any(is_kind(field) for is_kind in kinds) for field in fields):
            return None
        hashable = Wanted(*(tuple(names) if is_several(names) else names for names in wanted))
        dtype = "float32" if all(types.is_float32(field) for field in fields) else "float64"
        return cls(os.path.abspath(path), hashable, _footer(path), dtype)


class Place(NamedTuple):
    """Consecutive rows of a file."""

    source: Source
    begin: int
    stop: int

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y. Raises `UnreadableError`."""
        source = self.source
        try:
            facts = os.stat(source.path)
            # The time is that of this machine's file: another one may have a copy, made at another time.
            stops = _stops(source, facts.st_mtime_ns)
            first, last = np.searchsorted(stops, [self.begin, self.stop - 1], side="right")
            groups = [_row_group(source, facts.st_mtime_ns, number) for number in range(first, last + 1)]
        except Exception as error:
            why = " ".join(str(error).split())  # pyarrow's messages have several lines
            raise UnreadableError(f"{source.path}, rows {self.begin} to {self.stop - 1}: {why}") from error
        before = stops[first - 1] if first else 0
        x, y = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*groups, strict=True))
        return x[self.begin - before : self.stop - before], y[self.begin - before : self.stop - before]


@functools.lru_cache(maxsize=8)
def _stops(source: Source, changed: int) -> np.ndarray:
    """The row after the last of each row group."""
    import pyarrow.parquet

    if _footer(source.path) != source.footer:
        raise ValueError("the file is not the one that the groups were looked up in")
    about = pyarrow.parquet.read_metadata(source.path)
    return np.cumsum([about.row_group(i).num_rows for i in range(about.num_row_groups)])


@functools.lru_cache(maxsize=_KEPT)
def _row_group(source: Source, changed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow.parquet

    names = list(dict.fromkeys(source.wanted.numbers))
    with pyarrow.parquet.ParquetFile(source.path, pre_buffer=False) as file:
        return source.wanted.numbers_in(whole(file.read_row_group(number, columns=names, use_threads=False)), 0)


def _footer(path: str) -> str:
    """A Parquet file ends with its metadata, their length in four bytes, and four letters."""
    with open(path, "rb") as file:
        size = file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(size - length)
        return f"{size} {hashlib.blake2b(file.read(length), digest_size=16).hexdigest()}"
