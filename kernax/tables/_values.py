"""The values of a column: what is missing, and whether they are numbers, dates or text."""

import re

import numpy as np

from kernax.tables._dates import FIRST, ISO, LAST, OTHER, microseconds, time_text
from kernax.tables._read import Table, TableError, refused

BOOLEANS = ("false", "true")
MAX_LEVELS = 50
"""How many categories a column may have, unless another limit is given."""
_WHOLE = re.compile(r"-?\d+\.0+")
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.' ]\d{3})*[,.]\d+|[+-]?\d+,\d+|[+-]?\d{1,3}([,' ]\d{3})+")
_CORRECT = ": correct or remove these rows."


def missing_rows(table: Table, names: list[str]) -> dict[str, np.ndarray]:
    """Of each column that lacks values, the rows that do."""
    found = {}
    for name in names:
        values = table.column(name)
        missing = np.array([value is None for value in values]) if values.dtype == object else values != values
        if missing.any():
            found[name] = np.flatnonzero(missing)
    return found


def complete_rows(table: Table, names: list[str]) -> np.ndarray:
    """Which rows lack no value in these columns."""
    complete = np.ones(table.num_rows, bool)
    for rows in missing_rows(table, names).values():
        complete[rows] = False
    return complete


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
    kept, lacking = np.flatnonzero(complete_rows(table, names)), ", ".join(map(repr, found))
    if not len(kept):
        raise TableError(f"{table.source}: every row lacks a value in {lacking}: no rows remain.")
    note = f"{table.num_rows - len(kept)} of {table.num_rows} rows dropped: values are missing in {lacking}"
    return table.taken(kept)._replace(notes=(*table.notes, note)), kept


def read_values(table: Table, name: str, *, role: str = "feature") -> tuple[np.ndarray, str]:
    """The values of a column that lacks none, and its kind: numbers, microseconds since 1970, or texts of categories."""
    values = table.column(name)
    if name in table.unreadable:
        then = f", and kernax takes numbers, dates and text: {leave_out(name)}, or encode it as numbers."
        raise refused(table, name, f"has {str(values[0])[:60]!r}", range(len(values)), then)
    if values.dtype.kind == "b" or role == "classes" or (name in table.categories and role in ("feature", "any")):
        return level_names(table, name), "category"
    if values.dtype.kind == "M":
        times = values.astype(np.int64)
        wrong = np.flatnonzero((times < FIRST) | (times > LAST))
        if len(wrong):
            raise refused(table, name, "has days before the year 1 or after 9999", wrong, _CORRECT)
        return times.astype(np.float64), "zoned date" if name in table.zoned else "date"
    numbers = [number_of(value) for value in values] if values.dtype == object else values
    wrong = [i for i, number in enumerate(numbers) if number is None] if values.dtype == object else []
    if not wrong:
        numbers = np.asarray(numbers, np.float64)
        infinite = np.flatnonzero(~np.isfinite(numbers))
        if len(infinite):
            raise refused(table, name, "is infinite", infinite, _CORRECT)
        return numbers, "number"
    if not all(value.lower() in BOOLEANS for value in values):
        if 2 * sum(ISO.fullmatch(value) is not None for value in values) > len(values):
            return _dates(table, name, values)
        _check_text(table, name, values, wrong)
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


def number_of(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # Python would read 1_000
    except ValueError:
        return None


def _dates(table: Table, name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
    times = [microseconds(value) for value in values]
    wrong = [i for i, time in enumerate(times) if time is None]
    if wrong:
        what = f"holds dates, but {values[wrong[0]]!r} is not one,"
        raise refused(table, name, what, wrong, ": write it as 2020-01-31 or 2020-01-31T12:00:00.")
    numbers, zoned = np.array(times, dtype=np.float64).T
    if 0 < zoned.sum() < len(zoned):
        fewer = 2 * zoned.sum() <= len(zoned)
        where, word = table.places(np.flatnonzero(zoned == fewer)), "have" if fewer else "lack"
        raise TableError(
            f"{table.source}: column {name!r} has times with and without a time zone; {where} {word} one: give all of them "
            "a zone, or none."
        )
    return numbers, "zoned date" if zoned.any() else "date"


def _check_text(table: Table, name: str, values: np.ndarray, wrong: list[int]) -> None:
    """Raise `TableError` for text that looks like numbers or dates that are written in another way."""
    first = values[wrong[0]]
    if _GROUPED.fullmatch(first):
        then = ", which may be a decimal comma or a thousands separator: kernax does not guess. Write numbers as 1234.5."
    elif OTHER.fullmatch(first.split(" ")[0]):
        then = ", a date that may be read in two ways: write dates as 2020-01-31 (ISO 8601)."
    elif 2 * len(wrong) <= len(values):
        then = (
            f", but numbers elsewhere: correct these rows, or read the column as categories (--categories {name}, or "
            f"categories={name!r} in Python)."
        )
    else:
        return
    raise refused(table, name, f"has {first!r}", wrong, then)
