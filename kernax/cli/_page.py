"""One HTML page about a model of a table, with nothing outside of it."""

import dataclasses
import functools
from typing import Any

import numpy as np

from kernax.cli._fit import column_rows
from kernax.fitting._fits import NUM_FACTS
from kernax.plot._units import Inputs
from kernax.reports import Report, Table
from kernax.reports._pictures import pictures_of_many
from kernax.tables import ManyTableFits, TableFit


def page(fitted: TableFit | ManyTableFits, name: str) -> str:
    """The page, as text. All words that come from the table are escaped."""
    report = _of_one(fitted) if isinstance(fitted, TableFit) else _of_many(fitted)
    x = Inputs(fitted, fitted.columns).values if isinstance(fitted, TableFit) else fitted.x
    y = fitted.data.y if isinstance(fitted, TableFit) else fitted.y
    about = f"{name}: {len(y)} rows of {fitted.source}; kernel {fitted.kernel}, chosen by {fitted.selected_by}."
    columns = _columns(fitted, np.asarray(x, np.float64), np.asarray(y, np.float64))
    advice = (*report.advice, *fitted.notes)
    return dataclasses.replace(report, about=about, advice=advice, tables=(*report.tables, columns)).to_html()


def _of_one(fitted: TableFit) -> Report:
    return dataclasses.replace(fitted.report(), title=_title(fitted))


def _of_many(fitted: ManyTableFits) -> Report:
    """The worst group comes first: those that did not end well, then those that are predicted worst."""
    report, table, errors = fitted.report(), fitted.table(), fitted.loo_rmse()
    order = np.lexsort((-np.nan_to_num(errors, nan=np.inf), table["result"] == "successful"))
    shown = {fitted.by: table.pop("dataset"), "leave-one-out RMSE": errors} | table
    groups = Table("Groups", {key: values[order] for key, values in shown.items()}, "The worst first.", can_be_searched=True)
    spreads = {f"Leave-one-out RMSE of {fitted.target.name}": errors} | dict(list(fitted.table().items())[NUM_FACTS:])
    title = f"{_title(fitted)}: {len(fitted)} models by {fitted.by}"
    own = (fitted.fits, fitted.datasets(), errors, fitted.columns, fitted.target)
    draw = functools.partial(pictures_of_many, spreads, *own)
    return dataclasses.replace(report, title=title, tables=(groups,), draw=draw)


def _title(fitted: Any) -> str:
    return f"{fitted.target.name} from {', '.join(column.name for column in fitted.columns)}"


def _columns(fitted: Any, x: np.ndarray, y: np.ndarray) -> Table:
    """How each column is read, with its quartiles."""
    rows = column_rows(fitted)
    for row, column, values in zip(rows, (*fitted.columns, fitted.target), (*x.T, y), strict=True):
        quarters = column.restored(np.quantile(values, (0.25, 0.5, 0.75)))
        is_category = getattr(column, "is_category", False)
        row |= dict(zip(("25 %", "50 %", "75 %"), ["–"] * 3 if is_category else map(column.shown, quarters), strict=True))
    names = ("column", "role", "read as", "mean", "sd", "from", "25 %", "50 %", "75 %", "to")
    return Table("Columns", {name: [row[name] for row in rows] for name in names})
