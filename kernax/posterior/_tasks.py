"""Predictions of several outputs that were learned from long rows."""

from typing import Any

import numpy as np

from kernax.kernels._coregion import coregion_in
from kernax.model._checks import check_conditioned
from kernax.posterior._predict import Prediction, predict
from kernax.rows import Grid, as_rows, num_rows, take


def predict_tasks(c: Any, x: Any, *, noisy: bool = False) -> Prediction:
    """Posterior mean and variance of every task at new inputs.

    **Arguments:**

    - `c`: a model with a [`kernax.kernels.Coregion`][] (such as one of [`kernax.kernels.ICM`][]) that is conditioned on rows
      `{"x": x, "task": tasks}`, or on a grid of them.
    - `x`: new inputs, `(m, d)`; as a dict of all parts of a row but the task, if there are several.
    - `noisy`: add the noise variance, for the spread of a new observation instead of the function.

    **Returns:**

    A `Prediction` whose `mean` and `variance` have the shape `(m, p)`, a column for each of p tasks.
    """
    rows, shape = _every_task(c, x)
    prediction = predict(c, rows, noisy=noisy)
    return prediction._replace(mean=prediction.mean.reshape(shape), variance=prediction.variance.reshape(shape))


def _every_task(c: Any, x: Any) -> tuple[Any, tuple[int, int]]:
    """Rows with each new input beside each task, the task fastest; and the numbers of inputs and of tasks."""
    coregion, parts = tasks_of(c)
    if not isinstance(x, dict) and len(parts) == 1:
        x = {next(iter(parts)): x}
    if not isinstance(x, dict) or set(x) != parts:
        raise ValueError(f"predict_tasks needs new inputs as a dict with the keys {sorted(parts)}.")
    x = take(as_rows(x, "x", one="one new point is a row of its own"))
    rows = Grid((x, np.arange(coregion.number))).rows()
    return rows[0] | {coregion.key: rows[1]}, (num_rows(x), coregion.number)


def tasks_of(c: Any) -> tuple[Any, set[Any]]:
    """The `Coregion` with a key of a conditioned model, and the keys of its rows but that one."""
    check_conditioned(c)
    coregion = coregion_in(c.model.kernel)
    if coregion is None:
        raise TypeError(
            "the predictions of tasks need a kernel with a kx.kernels.Coregion, such as kx.kernels.ICM(kx.RBF(), 2): with a "
            "kernel of your own, write the tasks into new rows and call kx.predict."
        )
    if c.data.y.ndim != 1:
        raise TypeError(f"tasks need targets of shape (n,), one for each row, and the data has {c.data.y.shape}.")
    return coregion, set(c.data.x.keys if isinstance(c.data.x, Grid) else c.data.x) - {coregion.key}
