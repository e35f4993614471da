"""A report as one HTML page, with nothing outside of it."""

import base64
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

_MOST_ROWS = 5000


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report: one entry of each column for each row. Long tables can be sorted and searched in the page."""

    title: str
    """The heading."""
    columns: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    """The columns by name, or a function that computes them when the page is made."""
    note: str = ""
    """The text below it."""
    can_be_searched: bool = False
    """Whether the page has a field to search the rows."""


class Picture(NamedTuple):
    """A picture of a report, as an `<svg>` element."""

    title: str
    """The heading."""
    svg: str
    """The `<svg>` element."""
    caption: str
    """The text below it."""


class _Head(NamedTuple):
    name: str
    is_number: bool


class _Cell(NamedTuple):
    text: str
    value: str
    """What a number is sorted by: nothing if it is not finite."""
    is_number: bool


class _Laid(NamedTuple):
    """A table as the template wants it."""

    title: str
    note: str
    can_be_searched: bool
    heads: list[_Head]
    rows: list[list[_Cell]]


def page(report: Any, pictures: list[Picture]) -> str:
    """The page, as text. Everything in it is escaped; its only script, if any, is the one that sorts and searches tables."""
    tables = [_laid(table) for table in report.tables]
    script = _read("page.js") if any(table.can_be_searched for table in tables) else ""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    return _template().render(report=report, tables=tables, pictures=pictures, script=script, policy=policy)


def _laid(table: Table) -> _Laid:
    given = table.columns() if callable(table.columns) else table.columns
    columns = {str(name): np.asarray(values) for name, values in given.items()}
    heads = [_Head(name, values.dtype.kind in "iuf") for name, values in columns.items()]
    count = max((len(values) for values in columns.values()), default=0)
    note = table.note
    if count > _MOST_ROWS:
        note = f"{note} The first {_MOST_ROWS:,} of {count:,} rows are shown.".strip()
    rows = [[_cell(values[i]) for values in columns.values()] for i in range(min(count, _MOST_ROWS))]
    return _Laid(table.title, note, table.can_be_searched, heads, rows)


def _cell(value: Any) -> _Cell:
    if isinstance(value, np.integer):
        return _Cell(str(value), str(value), True)
    if isinstance(value, np.floating):
        known = math.isfinite(value)
        return _Cell(f"{value:.4g}" if known else "–", repr(float(value)) if known else "", True)
    return _Cell(str(value), "", False)


def _read(name: str) -> str:
    return files("kernax.reports").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template() -> Any:
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise ImportError("Report.to_html makes its page with Jinja: pip install jinja2.") from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(_read("page.html.jinja"))
