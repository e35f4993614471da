"""Where fits of tables start, what they minimise, and which parameters they keep fixed."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._spelling import nearest
from kernax.data import Data
from kernax.expressions import Built, written_values
from kernax.fitting import fit, initialise
from kernax.fitting._starts import with_best_lengthscales
from kernax.io import register
from kernax.kernels import Constant, Linear, Product, Scale, Select, Sum
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
from kernax.solvers import AbstractSolver, Cholesky, Result, check_memory
from kernax.tables._read import TableError


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
_MANY = 300
"""From so many rows on, the start of a series is chosen by the likelihood."""
BLIND_TO_SCALE = ("loo", "gcv", "kfold")
"""Criteria of the mean alone: they do not change if kernel and noise are multiplied by the same number."""


def objective_of(select: str) -> Any:
    """What `select` minimises."""
    if select not in OBJECTIVES:
        raise TableError(f"select must be one of {', '.join(OBJECTIVES)}, got {select!r}.{nearest(select, OBJECTIVES)}")
    return OBJECTIVES[select]


def fit_or_stop(model: Any, data: Data, *, trainable: Any, **options: Any) -> Any:
    """The fitted model, or the model if no parameter is free. Raises `KeyboardInterrupt` if the fit was interrupted."""
    if not any(jax.tree.leaves(trainable)):
        return model
    found = fit(model, data, trainable=trainable, **options)
    if found.result == Result.interrupted:
        raise KeyboardInterrupt
    return found.model


def start_of(built: Built, noise: float | None, data: Data | None, *, mean: Any = None) -> tuple[Model, Any]:
    """The model at its start, and the tree of what is free. Without data, values that were not written stay as they are.

    `noise` is a variance in standardised units, and not fitted; `mean` is where the level starts, if one is fitted.
    """
    variance: Any = 0.1 if noise is None else noise
    model = Model(built.kernel, variance) if mean is None else Model(built.kernel, variance, mean)
    model, free = started(built, model, data)
    if noise is None:
        return model, free
    if data is not None:
        model = eqx.tree_at(lambda m: m.noise, model, jnp.asarray(noise, data.dtype))
    return model, eqx.tree_at(lambda m: m.noise, free, False)


def started(built: Built, model: Any, data: Data | None) -> tuple[Any, Any]:
    """The model with values that suit the data where none were written, and the tree of what is free."""
    if data is not None:
        model = initialise(model, data)
        kernel = jax.tree.map(jnp.asarray, written_values(built, model.kernel))
        model = eqx.tree_at(lambda m: m.kernel, model, kernel)
    every = trainable(model)
    free = jax.tree.map(lambda mine, held: mine and not held, every.kernel, built.tree(built.held))
    return model, eqx.tree_at(lambda m: m.kernel, every, free)


def suited_to_series(model: Any, built: Built, data: Data, solver: AbstractSolver | None) -> Any:
    """The model at its start, with shorter lengthscales if they suit the data better; values that were written stay.

    Only for one column of numbers and many rows, such as a long series: its length says little about its lengthscales.
    """
    numbers = [leaf.shape[-1] for leaf in jax.tree.leaves(data.x) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if sum(numbers) != 1 or data.n < _MANY:
        return model
    solver = Cholesky() if solver is None else solver
    check_memory(model, data, solver, "fit", gradient=True)  # what `fit` would say, and not `condition`
    movable = jax.tree.map(lambda given: not given, built.tree(built.given))
    every = eqx.tree_at(lambda m: m.kernel, jax.tree.map(lambda _: True, model), movable)
    return with_best_lengthscales(model, data, solver, every)


def mean_square_score(c: Conditioned) -> Float[Array, ""]:
    """The mean square of leave-one-out errors in their standard deviations: 1 if variances are right."""
    scores = loo_residuals(c) ** 2 / jnp.where(c.data.mask, loo_variance(c, noisy=True), 1.0)
    return jnp.sum(scores) / c.data.count


def note_on_variances(select: str, is_held: bool) -> str:
    """How variances were chosen after a criterion of the mean alone."""
    if is_held:
        return f"{select} does not determine variances, and some are fixed: intervals are those of the values given"
    return f"{select} does not determine variances; they were scaled so that leave-one-out errors are as large as expected"


def with_calibrated_variance(
    model: Model, data: Data, select: str, is_held: bool, solver: AbstractSolver | None
) -> tuple[Model, str | None]:
    """Kernel and noise times the factor that makes the mean square of leave-one-out z-scores 1, where `select` left it open.

    The mean of the posterior stays as it is.
    """
    if select not in BLIND_TO_SCALE:
        return model, None
    if not is_held:
        factor = float(mean_square_score(condition(model, data, solver)))
        if not np.isfinite(factor) or not factor > 0:
            return model, None
        kernel = times(model.kernel, factor)
        kernel = Scale(model.kernel, factor) if kernel is None else kernel  # pyright: ignore[reportArgumentType]
        model = eqx.tree_at(lambda m: (m.kernel, m.noise), model, (kernel, model.noise * factor))
    return model, note_on_variances(select, is_held)


def times(kernel: Any, factor: Any) -> Any:
    """A kernel times a number, or kernels with a leading axis times a number each, in a tree of the same shape; None where
    no variance of it can take the number.
    """
    if isinstance(kernel, Sum):
        parts = [times(part, factor) for part in kernel.kernels]
        return None if any(part is None for part in parts) else Sum(tuple(parts))
    if isinstance(kernel, Product):
        taken = next(((i, k) for i, part in enumerate(kernel.kernels) if (k := times(part, factor)) is not None), None)
        return None if taken is None else Product((*kernel.kernels[: taken[0]], taken[1], *kernel.kernels[taken[0] + 1 :]))
    if isinstance(kernel, Select):
        inner = times(kernel.kernel, factor)
        return None if inner is None else eqx.tree_at(lambda k: k.kernel, kernel, inner)
    if isinstance(kernel, Scale | Constant | Linear):
        factor = np.asarray(factor, kernel.variance.dtype)
        factor = factor.reshape(factor.shape + (1,) * (kernel.variance.ndim - factor.ndim))
        return eqx.tree_at(lambda k: k.variance, kernel, jnp.asarray(kernel.variance * factor))
    return None
