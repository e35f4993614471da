"""The values of a column: what is missing, and whether they are numbers, dates or text."""

import re

import numpy as np

from kernax.tables._dates import (
    FIRST,
    LAST,
    looks_like_date,
    looks_like_other_date,
    microseconds,
)
from kernax.tables._errors import TableError
from kernax.tables._read import Table
from kernax.tables._write import time_text

BOOLEANS = ("false", "true")
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
            f"takes numbers, dates and text: {leave_out(name)}, or encode it as numbers."
        )
    if values.dtype.kind == "b" or role == "classes" or (name in table.categories and role in ("feature", "any")):
        return level_names(table, name), "category"
    if values.dtype.kind == "M":
        _check_days(table, name, values.astype(np.int64))
        return values.astype(np.int64).astype(np.float64), "zoned date" if name in table.zoned else "date"
    if values.dtype != object:
        return _finite(table, name, values.astype(np.float64)), "number"
    numbers = [number_of(value) for value in values]
    if all(number is not None for number in numbers):
        return _finite(table, name, np.array(numbers, dtype=np.float64)), "number"
    lowered = [value.lower() for value in values]
    if all(value in BOOLEANS for value in lowered):
        return level_names(table, name), "category"
    dates = [looks_like_date(value) for value in values]
    if sum(dates) * 2 > len(values):
        return _dates(table, name, values)
    _check_text(table, name, values, [i for i, number in enumerate(numbers) if number is None])
    return level_names(table, name), "category"


def level_names(table: Table, name: str) -> np.ndarray:
    """The category of each row, as text: that of `group_names`; True and true are one category."""
    names = group_names(table, name)
    return np.array([name.lower() if name.lower() in BOOLEANS else name for name in names], dtype=object)


def group_names(table: Table, by: str) -> list[str]:
    """The group of each row, as text: 3 and 3.0 are one group, and so are a day and its midnight, in every kind of file."""
    values = table.column(by)
    if values.dtype.kind == "M":
        return [time_text(value) for value in values]
    if values.dtype != object:
        return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values.tolist()]
    return [text.split(".")[0] if _WHOLE.fullmatch(text) else text.removesuffix("T00:00:00") for text in values]


def leave_out(name: str) -> str:
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


def number_of(text: str) -> float | None:
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
