"""How a column or a target is read from now on, and how one of another table is read again."""

import numpy as np

from kernax._spelling import listed, nearest
from kernax.tables._column import Column
from kernax.tables._dates import UNITS, time_text
from kernax.tables._read import Table, TableError, refused
from kernax.tables._values import BOOLEANS, MAX_LEVELS, leave_out, level_names, number_of, read_values

_PLURALS = {
    "number": "numbers",
    "date": "dates without a time zone",
    "zoned date": "times with a time zone",
    "category": "text",
}


def _as_levels(
    table: Table, name: str, texts: np.ndarray, max_levels: int, role: str
) -> tuple[Column, np.ndarray, list[str]]:
    """A column of categories or a target of classes, the code of each row, and what to know about it."""
    levels, codes = np.unique(texts.astype(str), return_inverse=True)
    shown, count = levels.tolist(), len(levels)
    is_target = role != "feature"
    called, kind = (f"target {name!r}", "classes") if is_target else (f"column {name!r}", "categories")
    if count > max_levels:
        remedy = "join some of them" if is_target else leave_out(name)
        raise TableError(
            f"{table.source}: {'the ' * is_target}{called} has {count} different values ({listed(shown, 3)}), more than the "
            f"limit of {max_levels} {kind}: {remedy}, or raise the limit (--max-levels {count}, or max_levels={count} in "
            "Python)."
        )
    if is_target and count < 2:
        raise TableError(f"{table.source}: the {called} is {shown[0]} in every row: there is nothing to learn.")
    if role == "classes" and count > 2 and name not in table.categories:
        numbers = [number_of(level) for level in shown]
        if None not in numbers and not all(float(n or 0).is_integer() for n in numbers):
            raise TableError(
                f"{table.source}: {name!r} does not hold classes, which are text, booleans or whole numbers "
                f"(--categories {name}, or categories={name!r} in Python, makes a class of each value)."
            )
    note = f"{called}: {count} {kind}"
    if is_target:
        note += f" ({listed(shown, 8)})"
    elif count == 1:
        note = f"{name} is {shown[0]} in every row: it is constant and has no effect"
    elif count == len(texts):
        note += f", and no two rows have the same one: {leave_out(name)}"
    return Column(name, "category", low=0.0, high=float(count - 1), levels=tuple(shown)), codes.astype(np.float64), [note]


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
    if date_unit is not None and date_unit not in UNITS:
        raise TableError(f"the unit of dates must be one of {', '.join(UNITS)}, got {date_unit!r}.")
    values, kind = read_values(table, name, role=role)
    if kind == "category" and role in ("feature", "any", "classes"):
        return _as_levels(table, name, values, max_levels, role)
    if kind == "category":
        numbers = None if role == "plain number" else _of_booleans(values)
        if numbers is None:
            then = ", and the target must be a number here. Classes are for kernax fit and kernax compare."
            raise refused(table, name, f"has {values[0]!r}", range(len(values)), then)
        values, kind = numbers, "number"
    unit = origin = None
    notes = []
    if kind != "number":
        if role != "feature":
            raise TableError(f"{table.source}: the target {name!r} holds dates, but must be a number.")
        start, span = values.min(), np.ptp(values)
        unit = date_unit or next((unit for unit, length in UNITS.items() if span >= 2 * length), "seconds")
        origin, values = time_text(np.datetime64(int(start), "us")), (values - start) / UNITS[unit]
        notes.append(f"{name}: {unit} since {origin}{', times in UTC' if kind == 'zoned date' else ''}")
    low, high = float(values.min()), float(values.max())
    check_size(table.source, name, low, high)
    if role == "counts":
        wrong = np.flatnonzero((values < 0) | (values != np.floor(values)))
        if len(wrong):
            then = ", and counts are 0, 1, 2, …: correct or remove these rows, or choose another likelihood."
            raise refused(table, name, f"has {values[wrong[0]]:g}", wrong, then)
        return Column(name, kind, low=low, high=high), values, notes
    if role == "any" and len(np.unique(values)) == 2:
        notes.append(
            f"target {name!r} has two values and is regressed: --categories {name} (categories= in Python) classifies it"
        )
    centre = float(values.mean())
    scale, constant = scale_of(name, centre, float(values.std()), low, high, role)
    return Column(name, kind, unit, origin, centre, scale, low, high), values, [*notes, *constant]


def check_size(source: str, name: str, low: float, high: float) -> None:
    """Raise `TableError` for numbers whose squares overflow or vanish."""
    largest = max(abs(low), abs(high))
    if largest > 1e150 or 0 < largest < 1e-150:
        raise TableError(f"{source}: column {name!r} has values of about {largest:.0e}: give it in other units.")


def scale_of(name: str, centre: float, sd: float, low: float, high: float, role: str) -> tuple[float, list[str]]:
    """The standard deviation, or 1 for a constant column, and a note about it."""
    if sd > 1e-12 * max(abs(centre), 1e-300):
        return sd, []
    same = "in every row" if low == high else "but for rounding in every row"
    explains = ": it is constant and has no effect" if role == "feature" else ""
    return 1.0, [f"{name} is {low:.6g} {same}{explains}"]


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
        raise TableError(
            f"{table.source}: column {column.name!r} holds {_PLURALS[kind]}, but held {_PLURALS[column.kind]} when the "
            f"model was fitted: give {_PLURALS[column.kind]}."
        )
    return column.of_times(values) if column.is_date else values


def _of_booleans(texts: np.ndarray) -> np.ndarray | None:
    """0 for false and 1 for true; None if there is other text."""
    return (texts == "true").astype(np.float64) if set(texts) <= set(BOOLEANS) else None


def _codes(table: Table, column: Column) -> np.ndarray:
    """The place of each row's category among those that the model knows."""
    places = {level: i for i, level in enumerate(column.levels)}
    names = level_names(table, column.name)
    unknown = [i for i, name in enumerate(names) if name not in places]
    if unknown:
        others = sorted({names[i] for i in unknown})
        several = f"{len(others)} categories" if len(others) > 1 else "a category"
        then = (
            f", {several} that no row had when the model was fitted.{nearest(others[0], column.levels)} It knows "
            f"{listed(column.levels, 8)}. Leave these rows out, or fit again with rows of this category."
        )
        raise refused(table, column.name, f"has {listed(others, 5)}", unknown, then)
    return np.array([places[name] for name in names], dtype=np.float64)
