"""Many groups of a frame, as a function from frame to frame: what Spark and pandas apply to groups."""

from typing import Any

import jax
import numpy as np

from kernax.tables._many import fit_table_many

_SQL = {"f8": "double", "f4": "float", "i8": "bigint", "i4": "int", "b1": "boolean"}


def fit_frame(frame: Any, target: str, by: str, *, float64: bool = True, **options: Any) -> Any:
    """One fit for each group of a frame, as a frame with one row for each group.

    A pure function, for `pyspark`'s `applyInPandas` and pandas' `groupby(...).apply(...)`. Columns are standardised over the
    frame that is given: with one group in each frame, each group by itself.

    **Arguments:**

    - `frame`: a pandas frame with the rows of some groups.
    - `target`, `by`: the names of the target column and of the column that names the groups.
    - `float64`: compute in double precision, independent of the setting of JAX in the worker.
    - `options`: those of `fit_table_many`.

    **Returns:**

    A pandas frame with the columns of `ManyTableFits.table()`: the group, how its fit ended, and every parameter in the
    units of the table.
    """
    import pandas as pd

    with jax.enable_x64(float64):
        return pd.DataFrame(fit_table_many(frame, target, by, **options).table())


def frame_schema(sample: Any, target: str, by: str, *, float64: bool = True, **options: Any) -> str:
    """The columns of `fit_frame`'s answer and their types, as Spark needs them.

    **Arguments:**

    - `sample`: a pandas frame with some of the rows; one group is enough. It is fitted.
    - `target`, `by`, `float64`, `options`: as in `fit_frame`.

    **Returns:**

    Text, such as ``"`dataset` string, `value` double"``.
    """
    with jax.enable_x64(float64):
        columns = fit_table_many(sample, target, by, **options).table()
    types = {name: _SQL.get(np.asarray(values).dtype.str[1:], "string") for name, values in columns.items()}
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())
