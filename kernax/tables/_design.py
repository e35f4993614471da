"""From a table to inputs and targets, and how its columns are read again."""

import csv
import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from kernax._spelling import nearest
from kernax.tables._column import Column
from kernax.tables._columns import fitted_column, new_values
from kernax.tables._read import Table, TableError, as_table
from kernax.tables._values import MAX_LEVELS, without_missing


@dataclasses.dataclass(frozen=True)
class Reading:
    """The options of `fit_table`, `fit_table_many`, `compare_table` and of their commands that say how a table is read."""

    columns: Sequence[str] | str | None = None
    ignore: Sequence[str] | str = ()
    missing: Literal["error", "drop"] = "error"
    date_unit: str | None = None
    categories: Sequence[str] | str = ()
    max_levels: int = MAX_LEVELS
    sample: int | None = None
    seed: int = 0


class Design(NamedTuple):
    """Standardised inputs and targets, how each column is read, and the table of the rows that were kept."""

    x: np.ndarray
    """A matrix; categories are their places among the levels. `rows_of` makes rows of it."""
    y: np.ndarray
    columns: tuple[Column, ...]
    target: Column
    table: Table
    notes: tuple[str, ...]


def feature_names(table: Table, target: str, reading: Reading, others: Sequence[str] = ()) -> list[str]:
    """The columns to learn from: those named, or all but the target, `others` and those to ignore."""
    table.column(target)
    columns, ignore = as_names(reading.columns), [*(as_names(reading.ignore) or []), *others]
    for name in (*(columns or ()), *ignore):
        table.column(name)
    names = list(columns) if columns is not None else [name for name in table.names if name != target]
    if target in names:
        raise TableError(f"{table.source}: {target!r} is the target, and cannot be an input: leave it out of the columns.")
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise TableError(f"column {double[0]!r} is named twice.")
    names = [name for name in names if name not in ignore]
    if not names:
        raise TableError(f"{table.source}: no columns remain to learn {target!r} from.")
    return names


def make_design(
    table: Any,
    target: str,
    reading: Reading = Reading(),
    *,
    role: str = "number",
    others: Sequence[str] = (),
    most_rows: int | None = None,
) -> Design:
    """Standardised numbers of the columns to learn from.

    `role` is what the target may be, see `fitted_column`; `others` are columns that are not inputs but must not lack values,
    such as the names of groups; more rows than `most_rows` are refused.
    """
    table = as_table(table)
    categories = as_names(reading.categories) or []
    for name in (*others, *categories):
        table.column(name)
    table = table._replace(categories=table.categories | frozenset(categories))
    names = feature_names(table, target, reading, others)
    table, _ = without_missing(table, [*names, target, *others], reading.missing)
    table = _sampled(table, reading.sample, reading.seed, most_rows)
    limit = reading.max_levels
    read = [fitted_column(table, name, date_unit=reading.date_unit, max_levels=limit) for name in names]
    own, y, target_notes = fitted_column(table, target, role=role, max_levels=limit)
    if table.num_rows < 2:
        raise TableError(f"{table.source}: one row is not enough to learn from.")
    x = np.stack([column.standardised(values) for column, values, _ in read], axis=1)
    notes = (*table.notes, *(note for _, _, some in read for note in some), *target_notes)
    return Design(x, own.standardised(y), tuple(column for column, _, _ in read), own, table, notes)


def _sampled(table: Table, sample: int | None, seed: int, most_rows: int | None) -> Table:
    n = table.num_rows
    if sample is not None and sample < 2:
        raise TableError(f"sample must be at least 2 rows, got {sample}.")
    if sample is not None and sample < n:
        rows = np.sort(np.random.default_rng(seed).choice(n, sample, replace=False))
        return table.taken(rows)._replace(notes=(*table.notes, f"{sample} of {n} rows drawn at random"))
    if most_rows is not None and n > most_rows:
        raise TableError(
            f"{table.source}: {n} rows are more than the {most_rows} for which all methods end in reasonable time: use "
            f"fewer rows (--sample {most_rows}, or sample={most_rows} in Python)."
        )
    return table


def new_inputs(
    table: Table, columns: tuple[Column, ...], *, missing: str, model: str, others: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Standardised inputs of a new table, the numbers of the rows that were kept, and what to know about them."""
    wanted = [*(column.name for column in columns), *others]
    for name in wanted:
        if name not in table.columns:
            raise TableError(
                f"{table.source}: there is no column {name!r}, with which {model} was fitted.{nearest(name, table.names)} "
                f"Required: {', '.join(map(repr, wanted))}."
            )
    table, kept = without_missing(table, wanted, missing)
    values = [new_values(table, column) for column in columns]
    notes = list(table.notes)
    for column, own in zip(columns, values, strict=True):
        if column.is_category:
            continue
        reach = 1e-9 * (column.high - column.low)
        outside = int(np.sum((own < column.low - reach) | (own > column.high + reach)))
        if outside:
            notes.append(
                f"{outside} of {len(own)} rows lie outside the training range of {column.name} "
                f"({column.shown(column.low)} to {column.shown(column.high)}): extrapolated there"
            )
    return np.stack([c.standardised(v) for c, v in zip(columns, values, strict=True)], axis=1), kept, tuple(notes)


def as_names(names: Any) -> list[str] | None:
    """None, a comma-separated text or a sequence of names, as a list."""
    if names is None:
        return None
    if not isinstance(names, str):
        return [str(name) for name in names]
    split = next(csv.reader([names], skipinitialspace=True), [])  # a name that contains a comma is in quotes
    return [name.strip() for name in split if name.strip()]
