"""The groups of a file that does not fit into memory: read once for statistics, and again for each use of their rows."""

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from kernax.data import Group, Groups
from kernax.data._tables import Part, together
from kernax.tables._column import Column
from kernax.tables._columns import check_size, scale_of
from kernax.tables._design import Reading, as_names, feature_names
from kernax.tables._read import Table, TableError, read_head, read_pieces
from kernax.tables._values import group_names, leave_out, missing_rows, read_values, without_missing

START_ROWS = 300
"""From which starting values are estimated if some are written."""


class Grouped(NamedTuple):
    """The standardised rows of each group, and how columns are read."""

    datasets: Groups
    sizes: Int[np.ndarray, " b"]
    columns: tuple[Column, ...]
    target: Column
    source: str
    notes: tuple[str, ...]
    x: Float[np.ndarray, "n d"]
    """The inputs of all groups; without rows if they are read from the file when they are needed."""
    y: Float[np.ndarray, " n"]
    largest: tuple[Any, Any]
    """The rows of the largest group."""
    start: tuple[Any, Any]
    """Rows from which starting values are estimated."""


@dataclasses.dataclass
class _Pass:
    """One reading of a file: groups of consecutive rows, with the numbers of some columns."""

    path: str
    by: str
    names: list[str]
    missing: str = "drop"
    num_rows: int = 0
    """Rows read so far, also those without a value."""
    lacking: dict[str, None] = dataclasses.field(default_factory=dict)
    """The columns that lacked a value so far."""

    def groups(self) -> Iterator[tuple[str, np.ndarray]]:
        """The name and the numbers of each group."""
        try:
            for name, (values,) in together(self._parts(), [self.by]):
                yield name, values
        except TableError:
            raise
        except ValueError as error:
            raise TableError(f"{self.path}: {error}") from None

    def _parts(self) -> Iterator[Part]:
        wanted = [*self.names, self.by]
        for piece in read_pieces(self.path, list(dict.fromkeys(wanted))):
            lacking = missing_rows(piece, wanted)
            if lacking and self.missing != "drop":
                without_missing(piece, wanted, self.missing)  # raises, and says where
            rows = np.delete(np.arange(piece.num_rows), np.concatenate([np.zeros(0, int), *lacking.values()]))
            self.num_rows, self.lacking = self.num_rows + piece.num_rows, self.lacking | dict.fromkeys(lacking)
            if len(rows):
                kept = piece.taken(rows)
                values = np.stack([self._numbers(kept, name) for name in self.names], axis=1)
                yield Part(
                    group_names(kept, self.by), (values,), lambda i, piece=piece, rows=rows: piece.places(rows[i : i + 1])
                )

    def _numbers(self, table: Table, name: str) -> np.ndarray:
        values, kind = read_values(table, name)
        if kind != "number":
            remedy = "write it as numbers" if name == self.names[-1] else f"write it as numbers, {leave_out(name)}"
            raise TableError(
                f"{self.path}: column {name!r} holds {'text or booleans' if kind == 'category' else 'dates'}, but a file is "
                f"streamed only if all columns are numbers: {remedy}, or fit without --stream (stream=False in Python)."
            )
        return values


def streamed(table: Any, target: str, by: str, reading: Reading, dtype: Any) -> Grouped:
    """The groups of a file, of which this reads only names, sizes and statistics."""
    if not isinstance(table, str | os.PathLike):
        raise TableError("stream=True is for files: give the path of a file, or leave stream out for a table in memory.")
    for name, value in (("categories", as_names(reading.categories)), ("sample", reading.sample)):
        if value:
            raise TableError(f"{name} cannot be used with --stream (stream=True in Python): leave one of them out.")
    path = os.path.abspath(table)
    head = read_head(path)
    head.column(by)
    names = [*feature_names(head, target, reading, [by]), target]
    without_missing(head, names, reading.missing)  # raises if that is none of its options
    first = _Pass(path, by, names, reading.missing)
    count, mean, square = 0, np.zeros(len(names)), np.zeros(len(names))
    low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    sizes: dict[str, int] = {}
    largest, start, num_start = np.zeros((0, len(names))), [], 0
    for name, values in first.groups():
        sizes[name] = n = len(values)
        largest = values if n > len(largest) else largest
        if num_start < START_ROWS:
            start, num_start = [*start, values[: START_ROWS - num_start]], num_start + n
        low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
        with np.errstate(over="ignore", invalid="ignore"):  # values that are too large are refused below
            # Chan's formula for the moments of two samples together.
            count, centre = count + n, values.mean(axis=0)
            step = centre - mean
            mean = mean + step * (n / count)
            square = square + ((values - centre) ** 2).sum(axis=0) + step**2 * (n * (count - n) / count)
    lacking = ", ".join(map(repr, [name for name in (*names, by) if name in first.lacking]))
    if count < 2:
        why = f"every row lacks a value in {lacking}: no rows remain." if first.num_rows and not count else ""
        raise TableError(f"{path}: {why or f'{count} rows are not enough to learn from.'}")
    dropped = first.num_rows - count
    notes = [f"{dropped} of {first.num_rows} rows dropped: values are missing in {lacking}"] if dropped else []
    columns = []
    for i, name in enumerate(names):
        check_size(path, name, low[i], high[i])
        role = "plain number" if name == target else "feature"
        scale, own = scale_of(name, mean[i], float(np.sqrt(square[i] / count)), low[i], high[i], role)
        columns.append(Column(name, "number", None, None, float(mean[i]), scale, float(low[i]), float(high[i])))
        notes += own
    again = Again(path, by, columns, tuple(sizes), tuple(sizes.values()), dtype)
    return Grouped(
        Groups(again.groups, list(sizes), f"by {by!r}, from {path}"),
        np.array(again.sizes),
        tuple(columns[:-1]),
        columns[-1],
        path,
        (*head.notes, *notes),
        *again.standardised(largest[:0]),
        again.standardised(largest),
        again.standardised(np.concatenate(start)),
    )


class Again(NamedTuple):
    """The groups of a file that has been read before."""

    path: str
    by: str
    columns: Sequence[Column]
    """The inputs and the target."""
    names: Sequence[str]
    sizes: Sequence[int]
    dtype: Any

    def standardised(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of rows of the file."""
        own = np.stack([column.standardised(values[:, i]) for i, column in enumerate(self.columns)], axis=1)
        return own[:, :-1].astype(self.dtype), own[:, -1].astype(self.dtype)

    def groups(self) -> Iterator[Group]:
        """The standardised rows of each group. Raises `TableError` if the file is gone or its groups differ."""
        if not os.path.exists(self.path):
            raise TableError(
                f"{self.path}: there is no such file. The models were fitted with --stream (stream=True in Python), so "
                "their rows are read from this file: put it back, or fit again without --stream, which saves the rows, too."
            )
        found = _Pass(self.path, self.by, [column.name for column in self.columns]).groups()
        for expected, group in itertools.zip_longest(zip(self.names, self.sizes, strict=True), found):
            size = None if group is None else (group[0], len(group[1]))
            if group is None or size != expected:
                then, now = (
                    "no more groups" if own is None else f"group {own[0]!r} of {own[1]} rows" for own in (expected, size)
                )
                raise TableError(
                    f"{self.path}: the file has changed since the models were fitted: where it had {then}, it has {now}. "
                    "Put the file back as it was, or fit again."
                )
            yield Group(group[0], *self.standardised(group[1]))
