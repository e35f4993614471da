"""Where fits of tables start, what they minimise, and what they hold."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax.data import Data
from kernax.fitting import fit, initialise
from kernax.io import register
from kernax.kernels import AbstractKernel, Constant, Linear, Scale, Select, Sum
from kernax.model import Conditioned, Model, condition
from kernax.parameters import trainable
from kernax.selection import (
    gcv,
    kfold_mse,
    loo_mse,
    loo_negative_log_density,
    loo_residuals,
    loo_variance,
    negative_log_marginal_likelihood,
)
from kernax.solvers import Result
from kernax.tables._errors import TableError, nearest
from kernax.tables._expressions import Built, written_values


def shuffled_kfold_mse(c: Conditioned) -> Float[Array, ""]:
    """Tenfold cross-validation on shuffled rows: rows of tables are often sorted."""
    return kfold_mse(c, 10 if c.data.n >= 10 else c.data.n, key=jax.random.key(0))


register(shuffled_kfold_mse, name="kernax.tables.shuffled_kfold_mse")

OBJECTIVES: dict[str, Any] = {
    "likelihood": negative_log_marginal_likelihood,
    "loo": loo_mse,
    "gcv": gcv,
    "kfold": shuffled_kfold_mse,
    "loo_density": loo_negative_log_density,
}
BLIND_TO_SCALE = ("loo", "gcv", "kfold")
"""Criteria of the mean alone: kernel and noise times any number do as well, so they say nothing of variances."""


def objective_of(select: str) -> Any:
    """What `select` minimises."""
    if select not in OBJECTIVES:
        raise TableError(f"select must be one of {', '.join(OBJECTIVES)}, got {select!r}.{nearest(select, OBJECTIVES)}")
    return OBJECTIVES[select]


def fit_or_stop(model: Any, data: Data, **options: Any) -> Any:
    """The fitted model; Ctrl-C, after which `fit` returns the best so far, stops the whole."""
    found = fit(model, data, **options)
    if found.result == Result.interrupted:
        raise KeyboardInterrupt
    return found.model


def start_of(built: Built, noise: float | None, data: Data | None, *, mean: Any = None) -> tuple[Model, Any]:
    """The model at its start, and the tree of what is free. Without data, values that were not written stay as they are.

    `noise` is a variance in standardised units, and held; `mean` is where a fitted level starts, if there is to be one.
    """
    variance: Any = 0.1 if noise is None else noise
    model = Model(built.kernel, variance) if mean is None else Model(built.kernel, variance, mean)
    if data is not None:
        model = initialise(model, data)
        kernel = jax.tree.map(jnp.asarray, written_values(built, model.kernel))
        model = eqx.tree_at(lambda m: m.kernel, model, kernel)
        if noise is not None:
            model = eqx.tree_at(lambda m: m.noise, model, jnp.asarray(noise, data.dtype))
    free = jax.tree.map(lambda mine, held: mine and not held, trainable(model).kernel, built.tree(built.held))
    flags = eqx.tree_at(lambda m: m.kernel, trainable(model), free)
    return model, flags if noise is None else eqx.tree_at(lambda m: m.noise, flags, False)


def with_calibrated_variance(model: Model, data: Data, select: str, is_held: bool) -> tuple[Model, str | None]:
    """Kernel and noise times the factor that makes the mean square of leave-one-out z-scores 1, where `select` left it open.

    The mean of the posterior stays as it is.
    """
    if select not in BLIND_TO_SCALE:
        return model, None
    if is_held:
        return model, f"{select} says nothing of variances, and some are held: intervals are those of the values given"
    c = condition(model, data)
    scores = np.asarray(loo_residuals(c)) ** 2 / np.asarray(loo_variance(c, noisy=True))
    factor = float(np.mean(scores))
    if not np.isfinite(factor) or not factor > 0:
        return model, None
    kernel = _times(model.kernel, factor)
    model = eqx.tree_at(lambda m: (m.kernel, m.noise), model, (kernel, model.noise * factor))
    return model, f"{select} says nothing of variances: scaled so that leave-one-out errors are as large as expected"


def _times(kernel: AbstractKernel, factor: float) -> AbstractKernel:
    """A kernel times a number, in a tree of the same shape where one of its variances can take it."""
    if isinstance(kernel, Sum):
        return Sum(tuple(_times(k, factor) for k in kernel.kernels))
    if isinstance(kernel, Select):
        return eqx.tree_at(lambda k: k.kernel, kernel, _times(kernel.kernel, factor))
    if isinstance(kernel, Scale | Constant | Linear):
        return eqx.tree_at(lambda k: k.variance, kernel, kernel.variance * factor)
    return Scale(kernel, factor)  # pyright: ignore[reportArgumentType]
