"""The values of a column, and what kind of column they make."""

import re
from typing import NoReturn

import numpy as np

from kernax._spelling import listed, nearest
from kernax.tables._column import Column
from kernax.tables._dates import (
    FIRST,
    LAST,
    UNITS,
    check_unit,
    choose_unit,
    iso,
    looks_like_date,
    looks_like_other_date,
    microseconds,
)
from kernax.tables._errors import TableError
from kernax.tables._read import Table
from kernax.tables._write import time_text

_BOOLEANS = ("false", "true")
_WHOLE = re.compile(r"-?\d+\.0+")
MAX_LEVELS = 50
"""How many categories a column may have, unless another limit is given."""
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.' ]\d{3})*[,.]\d+|[+-]?\d+,\d+|[+-]?\d{1,3}([,' ]\d{3})+")


def missing_rows(table: Table, names: list[str]) -> dict[str, np.ndarray]:
    """Of each column that lacks values, the rows that do."""
    found = {}
    for name in names:
        values = table.column(name)
        if values.dtype == object:
            rows = np.flatnonzero(np.array([value is None for value in values]))
        else:
            rows = np.flatnonzero(np.isnat(values) if values.dtype.kind == "M" else np.isnan(values))
        if len(rows):
            found[name] = rows
    return found


def without_missing(table: Table, names: list[str], missing: str) -> tuple[Table, np.ndarray]:
    """The table's rows that lack nothing in these columns, and their numbers; or an error that says where."""
    if missing not in ("error", "drop"):
        raise TableError(f"missing must be 'error' or 'drop', got {missing!r}.")
    found = missing_rows(table, names)
    if not found:
        return table, np.arange(table.num_rows)
    if missing == "error":
        found_in = "; ".join(f"column {name!r} in {table.places(rows)}" for name, rows in list(found.items())[:5])
        more = f"; and {len(found) - 5} more columns" if len(found) > 5 else ""
        raise TableError(
            f"{table.source}: values are missing: {found_in}{more}. Fill them in, drop these rows (--missing drop, or "
            "missing='drop' in Python), or leave the column out."
        )
    dropped = np.zeros(table.num_rows, bool)
    for rows in found.values():
        dropped[rows] = True
    if dropped.all():
        raise TableError(f"{table.source}: every row lacks a value in {', '.join(map(repr, found))}: no rows remain.")
    note = f"{dropped.sum()} of {table.num_rows} rows dropped: values are missing in {', '.join(map(repr, found))}"
    kept = np.flatnonzero(~dropped)
    return table.taken(kept)._replace(notes=(*table.notes, note)), kept


def read_values(table: Table, name: str, *, role: str = "feature") -> tuple[np.ndarray, str]:
    """The values of a column that lacks none, and its kind: numbers, microseconds since 1970, or texts of categories."""
    values = table.column(name)
    if name in table.unreadable:
        raise TableError(
            f"{table.source}: column {name!r} has {str(values[0])[:60]!r} in {table.places(range(len(values)))}, and kernax "
            f"takes numbers, dates and text: {_leave_out(name)}, or encode it as numbers."
        )
    if values.dtype.kind == "b" or role == "classes" or (name in table.categories and role in ("feature", "any")):
        return level_names(table, name), "category"
    if values.dtype.kind == "M":
        _check_days(table, name, values.astype(np.int64))
        return values.astype(np.int64).astype(np.float64), "zoned date" if name in table.zoned else "date"
    if values.dtype != object:
        return _finite(table, name, values.astype(np.float64)), "number"
    numbers = [_number(value) for value in values]
    if all(number is not None for number in numbers):
        return _finite(table, name, np.array(numbers, dtype=np.float64)), "number"
    lowered = [value.lower() for value in values]
    if all(value in _BOOLEANS for value in lowered):
        return level_names(table, name), "category"
    dates = [looks_like_date(value) for value in values]
    if sum(dates) * 2 > len(values):
        return _dates(table, name, values)
    _check_text(table, name, values, [i for i, number in enumerate(numbers) if number is None])
    return level_names(table, name), "category"


def level_names(table: Table, name: str) -> np.ndarray:
    """The category of each row, as text: that of `group_names`; True and true are one category."""
    names = group_names(table, name)
    return np.array([name.lower() if name.lower() in _BOOLEANS else name for name in names], dtype=object)


def group_names(table: Table, by: str) -> list[str]:
    """The group of each row, as text: 3 and 3.0 are one group, and so are a day and its midnight, in every kind of file."""
    values = table.column(by)
    if values.dtype.kind == "M":
        return [time_text(value) for value in values]
    if values.dtype != object:
        return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values.tolist()]
    return [text.split(".")[0] if _WHOLE.fullmatch(text) else text.removesuffix("T00:00:00") for text in values]


def _leave_out(name: str) -> str:
    return f"leave it out (--drop {name}, or ignore={name!r} in Python)"


def _check_days(table: Table, name: str, times: np.ndarray) -> None:
    wrong = np.flatnonzero((times < FIRST) | (times > LAST))
    if len(wrong):
        raise TableError(
            f"{table.source}: column {name!r} has days before the year 1 or after 9999 in {table.places(wrong)}: correct or "
            "remove these rows."
        )


def _finite(table: Table, name: str, numbers: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise TableError(
            f"{table.source}: column {name!r} is infinite in {table.places(wrong)}: correct or remove these rows."
        )
    return numbers


def _number(text: str) -> float | None:
    if "_" in text:  # Python would read 1_000
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _dates(table: Table, name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
    times = [microseconds(value) for value in values]
    wrong = [i for i, time in enumerate(times) if time is None]
    if wrong:
        raise TableError(
            f"{table.source}: column {name!r} holds dates, but {values[wrong[0]]!r} is not one, in {table.places(wrong)}: "
            "write it as 2020-01-31 or 2020-01-31T12:00:00."
        )
    zoned = [i for i, time in enumerate(times) if time is not None and time[1]]
    if zoned and len(zoned) < len(times):
        some, word = (
            (zoned, "have") if 2 * len(zoned) <= len(times) else (sorted(set(range(len(times))) - set(zoned)), "lack")
        )
        raise TableError(
            f"{table.source}: column {name!r} has times with and without a time zone; {table.places(some)} {word} one: "
            "give all of them a zone, or none."
        )
    numbers = np.array([time[0] for time in times if time is not None], dtype=np.float64)
    return numbers, "zoned date" if zoned else "date"


def _check_text(table: Table, name: str, values: np.ndarray, wrong: list[int]) -> None:
    """Raise `TableError` for text that looks like numbers or dates that are written in another way."""
    first, where = values[wrong[0]], table.places(wrong)
    start = f"{table.source}: column {name!r} has {first!r} in {where}"
    if _GROUPED.fullmatch(first):
        raise TableError(
            f"{start}, which may be a decimal comma or a thousands separator: kernax does not guess. Write numbers "
            "as 1234.5."
        )
    if looks_like_other_date(first):
        raise TableError(f"{start}, a date that may be read in two ways: write dates as 2020-01-31 (ISO 8601).")
    if 2 * len(wrong) <= len(values):
        raise TableError(
            f"{start}, but numbers elsewhere: correct these rows, or read the column as categories (--categories {name}, or "
            f"categories={name!r} in Python)."
        )


def _refuse_target(table: Table, name: str, values: np.ndarray) -> NoReturn:
    where = table.places(range(len(values)))
    raise TableError(
        f"{table.source}: column {name!r} has {values[0]!r} in {where}, and the target must be a number here. Classes are "
        "for kernax fit and kernax compare."
    )


def _check_counts(table: Table, name: str, values: np.ndarray) -> None:
    wrong = np.flatnonzero((values < 0) | (values != np.floor(values)))
    if len(wrong):
        raise TableError(
            f"{table.source}: column {name!r} has {values[wrong[0]]:g} in {table.places(wrong)}, and counts are 0, 1, 2, …: "
            "correct or remove these rows, or choose another likelihood."
        )


def _as_levels(
    table: Table, name: str, texts: np.ndarray, max_levels: int, role: str
) -> tuple[Column, np.ndarray, list[str]]:
    """A column of categories or a target of classes, the code of each row, and what to know about it."""
    levels, codes = np.unique(texts.astype(str), return_inverse=True)
    shown, count = levels.tolist(), len(levels)
    is_target = role != "feature"
    called, kind = (f"the target {name!r}", "classes") if is_target else (f"column {name!r}", "categories")
    if count > max_levels:
        remedy = "join some of them" if is_target else _leave_out(name)
        raise TableError(
            f"{table.source}: {called} has {count} different values ({listed(shown, 3)}), more than the limit of "
            f"{max_levels} {kind}: {remedy}, or raise the limit (--max-levels {count}, or max_levels={count} in Python)."
        )
    if is_target and count < 2:
        raise TableError(f"{table.source}: the target {name!r} is {shown[0]} in every row: there is nothing to learn.")
    if role == "classes" and count > 2 and name not in table.categories:
        numbers = [_number(level) for level in shown]
        if all(number is not None for number in numbers) and not all(float(n or 0).is_integer() for n in numbers):
            raise TableError(
                f"{table.source}: {name!r} does not hold classes, which are text, booleans or whole numbers "
                f"(--categories {name}, or categories={name!r} in Python, makes a class of each value)."
            )
    notes = [
        f"{'target' if is_target else 'column'} {name!r}: {count} {kind}" + (f" ({listed(shown, 8)})" if is_target else "")
    ]
    if not is_target and count == 1:
        notes = [f"{name} is {shown[0]} in every row: it is constant and has no effect"]
    elif not is_target and count == len(texts):
        notes = [f"{notes[0]}, and no two rows have the same one: {_leave_out(name)}"]
    return Column(name, "category", low=0.0, high=float(count - 1), levels=tuple(shown)), codes.astype(np.float64), notes


def fitted_column(
    table: Table, name: str, *, date_unit: str | None = None, role: str = "feature", max_levels: int = MAX_LEVELS
) -> tuple[Column, np.ndarray, list[str]]:
    """How this column is read from now on, its numbers in the table's units, and what to know about it.

    The role is `feature`, or for a target what it may be:

    - `any`: text and booleans are classes, and so is a column that is named as one of categories. Numbers are numbers.
    - `classes`: every value is a class.
    - `number`: numbers; booleans are 0 and 1.
    - `plain number`: numbers only.
    - `counts`: whole numbers from 0.
    """
    check_unit(date_unit)
    values, kind = read_values(table, name, role=role)
    if kind == "category" and role in ("feature", "any", "classes"):
        return _as_levels(table, name, values, max_levels, role)
    if kind == "category":
        numbers = None if role == "plain number" else _of_booleans(values)
        if numbers is None:
            _refuse_target(table, name, values)
        values, kind = numbers, "number"
    unit = origin = None
    notes = []
    if kind != "number":
        if role != "feature":
            raise TableError(f"{table.source}: the target {name!r} holds dates, but must be a number.")
        unit = date_unit or choose_unit(values)
        origin = iso(values.min())
        values = (values - values.min()) / UNITS[unit]
        notes.append(f"{name}: {unit} since {origin}{', times in UTC' if kind == 'zoned date' else ''}")
    largest = float(np.max(np.abs(values)))
    if largest > 1e150 or 0 < largest < 1e-150:
        raise TableError(f"{table.source}: column {name!r} has values of about {largest:.0e}: give it in other units.")
    if role == "counts":
        _check_counts(table, name, values)
        return Column(name, kind, low=float(values.min()), high=float(values.max())), values, notes
    if role == "any" and len(np.unique(values)) == 2:
        notes.append(
            f"target {name!r} has two values and is regressed: --categories {name} (categories= in Python) classifies it"
        )
    centre, scale = float(values.mean()), float(values.std())
    if not scale > 1e-12 * max(abs(centre), 1e-300):
        scale = 1.0
        same = "in every row" if values.min() == values.max() else "but for rounding in every row"
        explains = ": it is constant and has no effect" if role == "feature" else ""
        notes.append(f"{name} is {values[0]:.6g} {same}{explains}")
    return Column(name, kind, unit, origin, centre, scale, float(values.min()), float(values.max())), values, notes


def new_values(table: Table, column: Column) -> np.ndarray:
    """The numbers of a column of another table, read as the training column was."""
    if column.is_category:
        return _codes(table, column)
    values, kind = read_values(table, column.name)
    if column.kind == "number" and kind == "category":
        numbers = _of_booleans(values)  # models that were saved when these were numbers
        if numbers is not None:
            return numbers
    if kind != column.kind:
        remedy = {
            "number": "give numbers",
            "date": "give dates without a time zone",
            "zoned date": "give times with a time zone",
        }[column.kind]
        raise TableError(
            f"{table.source}: column {column.name!r} holds {_PLURALS[kind]}, but held {_PLURALS[column.kind]} when the "
            f"model was fitted: {remedy}."
        )
    return column.of_times(values) if column.is_date else values


_PLURALS = {
    "number": "numbers",
    "date": "dates without a time zone",
    "zoned date": "times with a time zone",
    "category": "text",
}


def _of_booleans(texts: np.ndarray) -> np.ndarray | None:
    """0 for false and 1 for true; None if there is other text."""
    return (texts == "true").astype(np.float64) if set(texts) <= set(_BOOLEANS) else None


def _codes(table: Table, column: Column) -> np.ndarray:
    """The place of each row's category among those that the model knows."""
    places = {level: i for i, level in enumerate(column.levels)}
    names = level_names(table, column.name)
    unknown = [i for i, name in enumerate(names) if name not in places]
    if unknown:
        others = sorted({names[i] for i in unknown})
        several = f"{len(others)} categories" if len(others) > 1 else "a category"
        raise TableError(
            f"{table.source}: column {column.name!r} has {listed(others, 5)} in {table.places(unknown)}, {several} that no "
            f"row had when the model was fitted.{nearest(others[0], column.levels)} It knows {listed(column.levels, 8)}. "
            "Leave these rows out, or fit again with rows of this category."
        )
    return np.array([places[name] for name in names], dtype=np.float64)
