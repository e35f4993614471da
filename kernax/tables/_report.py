"""Reports of models of tables: how the columns are read, what is known of the fit, and its pictures."""

import dataclasses
import functools
from typing import Any

import numpy as np

from kernax.fitting._fits import NUM_FACTS
from kernax.reports import Report, Table
from kernax.reports._describe import report_of_fit, report_of_fits
from kernax.reports._page import Picture
from kernax.reports._parameters import names_of
from kernax.reports._pictures import pictures_of_many
from kernax.solvers import is_usable
from kernax.tables._column import Column, parts_of, values_of
from kernax.tables._likelihoods import CLASSES, COUNTS, NORMAL, held_out_entries
from kernax.tables._pictures import pictures_of_latent

_MOST_LEVELS = 6


def report_of_table_fit(fitted: Any, c: Any) -> Report:
    """The report of a `TableFit`; `c` is its model conditioned on the training rows."""
    names = table_names(fitted, fitted.data)._replace(lines=fitted.lines)
    if fitted.likelihood in (*CLASSES, *COUNTS):
        names = names._replace(target="")
    report = report_of_fit(fitted.fit, c, names, fitted.columns, fitted.target)
    if fitted.likelihood != NORMAL and bool(is_usable(c.result)):
        entries = (*report.entries, *held_out_entries(fitted.fit, fitted.target))
        report = dataclasses.replace(report, entries=entries, draw=lambda: pictures_of_latent(fitted, c))
    return _with_columns(
        report, fitted, values_of(fitted.columns, fitted.data.x), np.asarray(fitted.data.y, np.float64), fitted.data.n, ()
    )


def report_of_table_fits(fitted: Any) -> Report:
    """The report of a `ManyTableFits`. Leave-one-out errors are computed when the page is made, and not for its text."""
    table, errors = fitted.table(), functools.cache(fitted.loo_rmse)

    def groups() -> dict[str, np.ndarray]:
        """Those whose fits failed come first, then those with the largest errors."""
        order = np.lexsort((-np.nan_to_num(errors(), nan=np.inf), table["result"] == "successful"))
        rest = {name: values for name, values in table.items() if name != "dataset"}
        shown = {fitted.by: table["dataset"], "leave-one-out RMSE": errors()} | rest
        return {name: values[order] for name, values in shown.items()}

    def draw() -> list[Picture]:
        spreads = {f"Leave-one-out RMSE of {fitted.target.name}": errors()} | dict(list(table.items())[NUM_FACTS:])
        return pictures_of_many(spreads, fitted.fits, fitted.datasets, errors(), fitted.columns, fitted.target)

    report = dataclasses.replace(report_of_fits(fitted.fits, table, table_names(fitted, None)), draw=draw)
    worst_first = Table("Groups", groups, "The worst first.", can_be_searched=True)
    return _with_columns(report, fitted, fitted.x, np.asarray(fitted.y, np.float64), fitted.num_rows, (worst_first,))


def table_names(fitted: Any, data: Any) -> Any:
    """What reports call columns, target and parameters, and the factors that convert them to the units of the table."""
    names = [f"{column.name} ({column.unit})" if column.is_date else column.name for column in fitted.columns]
    scales = tuple(column.scale for column in fitted.columns), fitted.target.scale
    return names_of(data, names, fitted.target.name, scales, parts_of(fitted.columns))


def _with_columns(report: Report, fitted: Any, x: np.ndarray, y: np.ndarray, n: int, tables: tuple[Table, ...]) -> Report:
    """The report with the kernel, the source, the notes and a table of the columns, with their quartiles if x and y hold
    the `n` rows.
    """
    rows = column_rows(fitted)
    for row, column, values in zip(rows, (*fitted.columns, fitted.target), (*x.T, y), strict=True):
        has_none = column.is_category or not len(values)
        quarters = ["–"] * 3 if has_none else map(column.shown, column.restored(np.quantile(values, (0.25, 0.5, 0.75))))
        row |= dict(zip(_QUARTERS, quarters, strict=True))
    names = ("column", "role", "read as", "mean", "sd", "from", *_QUARTERS, "to")
    own = [Table("Columns", {name: [row[name] for row in rows] for name in names})]
    if fitted.notes:
        own.append(Table("Notes", {"about the table and the fit": list(fitted.notes)}))
    inputs = ", ".join(column.name for column in fitted.columns)
    several = f" for each of {len(fitted)} groups by {fitted.by}" if fitted.by else ""
    return dataclasses.replace(
        report,
        title=f"{fitted.target.name} from {inputs}{several}",
        about=f"{n} rows of {fitted.source}; kernel {fitted.kernel}, chosen by {fitted.selected_by}.",
        tables=(*tables, *own),
    )


def column_rows(fitted: Any) -> list[dict[str, Any]]:
    """How each column is read, for a table."""
    return [_column_row(column, "input") for column in fitted.columns] + [_column_row(fitted.target, "target")]


def _column_row(column: Column, role: str) -> dict[str, Any]:
    row = {"column": column.name, "role": role}
    if column.is_category:
        more = ", …" if len(column.levels) > _MOST_LEVELS else ""
        levels = f"{len(column.levels)} categories: {', '.join(column.levels[:_MOST_LEVELS])}{more}"
        return row | {"read as": levels} | dict.fromkeys(("mean", "sd", "from", "to"), "–")
    return row | {
        "read as": f"{column.unit} since {column.origin}" if column.is_date else "number",
        "mean": column.shown(column.centre),
        "sd": f"{column.scale:.4g}{f' {column.unit}' if column.is_date else ''}",
        "from": column.shown(column.low),
        "to": column.shown(column.high),
    }


_QUARTERS = ("25 %", "50 %", "75 %")
