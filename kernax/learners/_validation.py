"""The loss on held-out rows: an objective for machines without a likelihood."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from kernax._programs import compiled
from kernax.data import Data, refuse_gaps
from kernax.learners._machines import AbstractExpansion, AbstractMachine, check_labels
from kernax.model import Conditioned
from kernax.posterior import mean
from kernax.selection._kfold import as_folds

RowLoss = Callable[[Float[Array, " m"], Float[Array, " m"]], Float[Array, " m"]]
"""A loss of targets and values, row by row."""


def squared_error(y: Float[Array, " m"], values: Float[Array, " m"]) -> Float[Array, " m"]:
    """`(y - f)²`."""
    return (y - values) ** 2


def holdout_loss(c: Any, data: Any, *, loss: RowLoss | None = None) -> Float[Array, ""]:
    """Mean loss on other data, for `kx.fit(model, data, objective=lambda c: learners.holdout_loss(c, others))`.

    **Arguments:**

    - `c`: a conditioned machine or model.
    - `data`: the other data.
    - `loss`: `loss(y, values)`, one number a row. By default the machine's own: the squared error for regression, the loss
      that it was trained with for classification.

    **Returns:**

    One number.
    """
    if not isinstance(data, Data):
        raise TypeError(
            f"the second argument of holdout_loss must be a kx.Data, got {type(data).__name__}: write kx.Data(x, y)."
        )
    refuse_gaps(data, "holdout_loss")
    if isinstance(c, Conditioned):
        values, own = mean(c, data.x), squared_error
    elif isinstance(c, AbstractExpansion):
        if c.model.wants_labels:
            check_labels(data, "holdout_loss of a classifier")
        values, own = c(data.x), c.model.held_out_loss
    else:
        raise TypeError(f"holdout_loss needs the result of kx.condition, got {type(c).__name__}.")
    return _mean((loss or own)(data.y, values), data.mask)


def kfold_loss(
    c: Any, folds: Any = 5, *, key: Key[Array, ""] | None = None, loss: RowLoss | None = None
) -> Float[Array, ""]:
    """K-fold cross-validated loss: the mean over the folds of the mean loss on the fold. One solve for each fold.

    Use it as an objective of `kx.fit`: `functools.partial(learners.kfold_loss, folds=3)`. For squared errors
    [`kernax.kfold_mse`][] is faster.

    **Arguments:**

    - `c`: a conditioned machine or model.
    - `folds`: a number of folds, or a fold number for each row.
    - `key`: random key that assigns rows to folds. Pass one if the rows are sorted: if a fold leaves only one class, the
      logistic loss with an intercept has no minimum, and the result is NaN.
    - `loss`: as for [`kernax.learners.holdout_loss`][].

    **Returns:**

    One number.
    """
    if not isinstance(c, AbstractExpansion) or not isinstance(c.model, AbstractMachine):
        raise TypeError(f"kfold_loss needs a conditioned machine, kx.condition(machine, data), got {type(c).__name__}.")
    table, loss = as_folds(folds, c.data, key), loss or c.model.held_out_loss
    rows = jnp.arange(c.data.n)
    left_out = jnp.any((table.rows[:, :, None] == rows) & table.filled[:, :, None], axis=1)
    return _kfold_loss(c, left_out, loss)


@compiled
def _kfold_loss(c: AbstractExpansion, left_out: Bool[Array, "k n"], loss: RowLoss) -> Float[Array, ""]:
    def of_fold(left_out: Bool[Array, " n"]) -> Float[Array, ""]:
        others = eqx.tree_at(lambda data: data.mask, c.data, c.data.mask & ~left_out)
        machine = c.model.conditioned_near(c, others, jnp.asarray(True), c.solver)
        return _mean(loss(c.data.y, machine(c.data.x)), left_out & c.data.mask)

    scores = jax.lax.map(of_fold, left_out)
    # NaN of an empty fold stays out of the mean, and NaN of a machine that failed stays in.
    held = jnp.any(left_out & c.data.mask, axis=1)
    return jnp.sum(jnp.where(held, scores, 0.0)) / jnp.sum(held)


def _mean(losses: Float[Array, " m"], counts: Bool[Array, " m"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(counts, losses, 0.0)) / jnp.maximum(jnp.sum(counts), 1)
