"""Many groups of a frame, as a function from frame to frame: what Spark and pandas apply to groups."""

from typing import Any

import jax
import numpy as np

from kernax.solvers import Result, result_name
from kernax.tables._clock import DATES
from kernax.tables._dates import UNITS
from kernax.tables._design import Reading, as_names, feature_names
from kernax.tables._many import LEAST_ROWS, fit_table_many
from kernax.tables._read import TableError, as_table
from kernax.tables._values import complete_rows, group_names, read_values

_SQL = {"f8": "double", "f4": "float", "i8": "bigint", "i4": "int", "b1": "boolean"}


def fit_frame(frame: Any, target: str, by: str, *, float64: bool = True, **options: Any) -> Any:
    """One fit for each group of a frame, as a frame with one row for each group.

    A pure function, for `pyspark`'s `applyInPandas` and pandas' `groupby(...).apply(...)`. Columns are standardised over the
    frame that is given: with one group in each frame, each group by itself.

    **Arguments:**

    - `frame`: a pandas frame with the rows of some groups.
    - `target`, `by`: the names of the target column and of the column that names the groups.
    - `float64`: compute in double precision, independent of the setting of JAX in the worker.
    - `options`: those of `fit_table_many`. If there is a column of dates, `date_unit` is required, so that all groups have
      the same unit.

    **Returns:**

    A pandas frame with the columns of `ManyTableFits.table()`: the group, how its fit ended, and every parameter in the
    units of the table. A group with fewer than two rows that lack no value has the status `too_few_rows`, and NaN as
    parameters. Raises `TableError` for a frame that cannot be used as asked; a missing value is one, unless rows that lack
    values are left out with `missing="drop"`.
    """
    import pandas as pd

    reading = Reading(**{name: options[name] for name in ("columns", "ignore", "categories") if name in options})
    read = as_table(frame)
    read = read._replace(categories=read.categories | frozenset(as_names(reading.categories) or []))
    names = feature_names(read, target, reading, [by])
    for name in names if options.get("date_unit") is None else ():
        rows = np.flatnonzero(complete_rows(read, [name]))
        if len(rows) and read_values(read.taken(rows), name)[1] in DATES:
            raise TableError(
                f"{read.source}: column {name!r} has dates, and each frame would choose a unit for them by its own span: "
                f"give date_unit={' or '.join(map(repr, UNITS))}."
            )
    complete = complete_rows(read, [*names, target])
    named = complete_rows(read, [by])
    groups = np.full(read.num_rows, None, object)
    groups[named] = group_names(read.taken(np.flatnonzero(named)), by)
    order = [name for name in dict.fromkeys(groups) if name is not None]
    counts = {name: int(np.sum(complete & (groups == name))) for name in order}
    few = [name for name in order if counts[name] < LEAST_ROWS]
    if options.get("missing") != "drop":
        few = [name for name in few if complete[groups == name].all()]  # the others raise an error
    with jax.enable_x64(float64):
        if not few:
            return pd.DataFrame(fit_table_many(frame, target, by, **options).table())
        if len(few) == len(order):
            standing_in = _filled(frame.iloc[np.flatnonzero(named)], [*names, target]).iloc[[0, 0]]
            quick: dict[str, Any] = {**options, "max_steps": 1, "restarts": 0}
            fitted = pd.DataFrame(fit_table_many(standing_in, target, by, **quick).table()).iloc[:0]
        else:
            fitted = pd.DataFrame(fit_table_many(frame[~np.isin(groups, few)], target, by, **options).table())
    known = {"dataset": few, "rows": [counts[name] for name in few], "result": result_name(Result.too_few_rows)}
    known |= {"at_bound": "", "num_steps": 0}
    unknown = {name: np.nan for name in fitted.columns if name not in known}
    without = pd.DataFrame(known | unknown)[list(fitted.columns)].astype(fitted.dtypes.to_dict())
    if not len(fitted):
        return without
    return pd.concat([fitted, without]).set_index("dataset", drop=False).loc[order].reset_index(drop=True)


def frame_schema(sample: Any, target: str, by: str, *, float64: bool = True, **options: Any) -> str:
    """The columns of `fit_frame`'s answer and their types, as Spark needs them.

    **Arguments:**

    - `sample`: a pandas frame with some of the rows; one group is enough. It is fitted.
    - `target`, `by`, `float64`, `options`: as in `fit_frame`.

    **Returns:**

    Text, such as ``"`dataset` string, `value` double"``.
    """
    columns = fit_frame(sample, target, by, float64=float64, **options)
    types = {name: _SQL.get(np.asarray(columns[name]).dtype.str[1:], "string") for name in columns.columns}
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


def _filled(frame: Any, names: list[str]) -> Any:
    """Rows without missing values, to learn only which parameters there are."""
    frame = frame.copy()
    for name in names:
        other = np.datetime64("2000-01-01") if frame[name].dtype.kind == "M" else 0.0
        frame[name] = frame[name].ffill().bfill() if frame[name].notna().any() else [other] * len(frame)
    return frame
