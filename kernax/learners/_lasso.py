"""The lasso, for one penalty or a whole path of them."""

import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kernax._arrays import is_concrete, matmul
from kernax._programs import compiled
from kernax.data import Data
from kernax.learners._design import AbstractLinearFit, Design, as_penalties, check_data, make_design
from kernax.learners._features import as_features
from kernax.learners._homotopy import lasso_weights
from kernax.solvers import Result, throw_unless


class LassoFit(AbstractLinearFit):
    """A lasso fit at one penalty. Coefficients of columns that are left out are exactly 0.

    `kkt_residual` is the largest violation of the optimality conditions: with the correlations `g = Φᵀ(y - Φw)` it is
    `|g_j - (λ/2) sign(w_j)|` where `w_j ≠ 0` and `max(|g_j| - λ/2, 0)` elsewhere, relative to `max |Φᵀy|` (columns and y
    centred if there is an intercept).
    """

    features: Any
    """The feature map."""
    coefficients: Float[Array, " q"]
    """One for each feature."""
    intercept: Float[Array, ""]
    """The intercept; 0 without one."""
    penalty: Float[Array, ""]
    """λ."""
    kkt_residual: Float[Array, ""]
    num_steps: Int[Array, ""]
    """The number of knots of the path that were passed."""
    result: Any
    """How the computation ended; it depends on `kkt_residual`."""


class LassoPath(eqx.Module):
    """Lasso fits at descending penalties. Entry i of every array belongs to `penalties[i]`, and `path[i]` is that fit."""

    features: Any
    """The feature map."""
    penalties: Float[Array, " l"]
    """λ of `½‖y - Φw‖² + (λ/2)‖w‖₁`, from the largest down."""
    coefficients: Float[Array, "l q"]
    """Exactly 0 for features that are left out."""
    intercepts: Float[Array, " l"]
    """The intercept of each fit; 0 without one."""
    kkt_residual: Float[Array, " l"]
    """The largest violation of the optimality conditions."""
    num_steps: Int[Array, ""]
    """The number of knots of the path, for all penalties together."""
    result: Any
    """How each fit ended."""

    @property
    def num_nonzero(self) -> Int[Array, " l"]:
        """The number of coefficients that are not 0."""
        return jnp.sum(self.coefficients != 0, axis=-1)

    def __len__(self) -> int:
        return self.penalties.shape[0]

    def __getitem__(self, index: int) -> LassoFit:
        # JAX clamps what is out of range, and a loop over the path would never end.
        index = range(len(self))[operator.index(index)]
        return LassoFit(
            features=self.features,
            coefficients=self.coefficients[index],
            intercept=self.intercepts[index],
            penalty=self.penalties[index],
            kkt_residual=self.kkt_residual[index],
            num_steps=self.num_steps,
            result=jax.tree.map(lambda leaf: leaf[index], self.result),
        )


def lasso(
    data: Any,
    penalty: Any,
    *,
    features: Any = None,
    intercept: bool = True,
    max_steps: int | None = None,
    rtol: float | None = None,
    throw: bool = True,
) -> LassoFit:
    """Minimise `½‖y - Φw‖² + (λ/2)‖w‖₁`. scikit-learn's alpha is `λ/(2n)`.

    The solution is exact: the path is followed down to λ, knot by knot (see [`kernax.learners.lasso_path`][] for the cost).
    Differentiable with respect to λ, y, x and the parameters of the feature map, to any order, by implicit differentiation
    on the active columns.

    **Arguments:**

    - `data`: the rows.
    - `penalty`: λ.
    - `features`: a map of one point to a vector; by default the columns of x.
    - `intercept`: add an intercept, which is not penalised.
    - `max_steps`: the largest number of knots.
    - `rtol`: the KKT residual up to which the status is a success; by default the root of the rounding unit.
    - `throw`: raise an error if there is no solution; with `False` return the status.

    **Returns:**

    A [`kernax.learners.LassoFit`][]: a function of new rows, with coefficients and the KKT residual.
    """
    check_data(data, "lasso")
    penalties = as_penalties(penalty, "penalty")[None]
    fit = _path(data, penalties, as_features(features), intercept, *_as_limits(max_steps, rtol), 1, None)[0]
    if throw:
        throw_unless((), fit.result, "the lasso")
    return fit


def lasso_path(
    data: Any,
    penalties: Any = None,
    *,
    num: int = 100,
    smallest: float = 1e-3,
    features: Any = None,
    intercept: bool = True,
    max_steps: int | None = None,
    rtol: float | None = None,
    throw: bool = True,
) -> LassoPath:
    """The lasso for every penalty of a descending grid, from one walk along the piecewise linear path.

    O(nq²) once, then O(q²) for each knot (where a column enters or leaves) and each penalty. It uses `ΦᵀΦ`, so
    nearly dependent columns reduce the accuracy. If it becomes too low, the status is `stalled`.

    **Arguments:**

    - `data`: the rows.
    - `penalties`: the grid. `None` for a geometric one, which derivatives treat as fixed.
    - `num`: the number of penalties of that grid.
    - `smallest`: the last penalty of that grid, relative to its first, which is the smallest penalty at which all
      coefficients are 0.
    - `features`: a map of one point to a vector; by default the columns of x.
    - `intercept`: add an intercept, which is not penalised.
    - `max_steps`: the largest number of knots, by default `20·min(n, q) + 100`. Penalties that are not reached have the last
      solution and the status `max_steps_reached`.
    - `rtol`: the KKT residual up to which the status is a success; by default the root of the rounding unit.
    - `throw`: raise an error if there is no solution; with `False` return the statuses.

    **Returns:**

    A [`kernax.learners.LassoPath`][]: coefficients, KKT residuals and statuses for every penalty.
    """
    check_data(data, "lasso_path")
    if penalties is not None:
        penalties = as_penalties(penalties, "penalties", ndim=1)
        if is_concrete(penalties) and not np.array_equal(penalties, np.sort(penalties)[::-1]):
            raise ValueError("penalties must be in descending order: write np.sort(penalties)[::-1].")
    elif num < 1 or not 0 < smallest <= 1:
        raise ValueError(f"num must be at least 1 and smallest between 0 and 1, got {num} and {smallest}.")
    limits = _as_limits(max_steps, rtol)
    path = _path(data, penalties, as_features(features), intercept, *limits, num, jnp.asarray(smallest))
    if throw:
        _throw_at_first_failure(path)
    return path


def _as_limits(max_steps: int | None, rtol: float | None) -> tuple[Int[Array, ""] | None, Float[Array, ""] | None]:
    """As arrays, so that other limits do not compile again."""
    if max_steps is not None and max_steps < 0:
        raise ValueError(f"max_steps must be 0 or more, got {max_steps}.")
    return None if max_steps is None else jnp.asarray(max_steps), None if rtol is None else jnp.asarray(float(rtol))


@compiled
def _path(
    data: Data,
    penalties: Float[Array, " l"] | None,
    features: Any,
    intercept: bool,
    max_steps: Int[Array, ""] | None,
    rtol: Float[Array, ""] | None,
    num: int,
    smallest: Float[Array, ""] | None,
) -> LassoPath:
    if data.y.ndim != 1:
        raise ValueError(
            f"the lasso takes one output, got y of shape {data.y.shape}: map over its columns, "
            "jax.vmap(lambda column: learners.lasso(kx.Data(x, column), penalty), in_axes=1)(y)."
        )
    design = make_design(data, features, intercept)
    n, q = design.matrix.shape
    if penalties is None:
        assert smallest is not None
        top = 2.0 * jnp.max(jnp.abs(matmul(design.matrix.T, design.targets)))
        penalties = jax.lax.stop_gradient(top) * smallest ** jnp.linspace(0.0, 1.0, num)
    penalties = penalties.astype(data.dtype)
    steps = jnp.asarray(20 * min(n, q) + 100 if max_steps is None else max_steps)
    weights, recorded, num_steps = lasso_weights(design.matrix, design.targets, 0.5 * penalties, steps)

    residual = _kkt_residual(*jax.lax.stop_gradient((design, weights, penalties)))
    tolerance = jnp.finfo(data.dtype).eps ** 0.5 if rtol is None else rtol
    reached = jnp.arange(penalties.shape[0]) < recorded
    result = jax.vmap(lambda *of: _status(design.result, tolerance, *of))(penalties, residual, reached)
    ready = design.result == Result.successful
    weights = jnp.where(ready, weights, jnp.nan)
    intercepts = design.level - matmul(weights, design.center)
    return LassoPath(design.features, penalties, weights, intercepts, residual, num_steps, result)


def _kkt_residual(design: Design, weights: Float[Array, "l q"], penalties: Float[Array, " l"]) -> Float[Array, " l"]:
    levels = 0.5 * penalties[:, None]
    correlations = matmul(design.targets - matmul(weights, design.matrix.T), design.matrix)
    inside = jnp.maximum(jnp.abs(correlations) - levels, 0.0)
    violations = jnp.where(weights != 0, jnp.abs(correlations - levels * jnp.sign(weights)), inside)
    scale = jnp.max(jnp.abs(matmul(design.matrix.T, design.targets)))
    return jnp.max(violations, axis=1) / jnp.where(scale > 0, scale, 1.0)


def _status(design_result: Any, tolerance: Any, penalty: Array, residual: Array, reached: Array) -> Any:
    result = Result.where(reached, Result.stalled, Result.max_steps_reached)
    result = Result.where(residual <= tolerance, Result.successful, result)
    # Traced penalties could not be refused.
    result = Result.where(jnp.isfinite(penalty) & (penalty >= 0), result, Result.nonfinite)
    return Result.where(design_result == Result.successful, result, design_result)


def _throw_at_first_failure(path: LassoPath) -> None:
    failed = path.result != Result.successful
    if is_concrete(failed) and failed.ndim == 1 and np.any(failed):
        first = int(np.argmax(failed))
        throw_unless((), path[first].result, f"the lasso at penalty {float(path.penalties[first]):.4g}")
