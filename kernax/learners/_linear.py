"""Ordinary least squares and ridge regression on explicit features."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import matmul
from kernax._programs import compiled
from kernax.data import Data
from kernax.learners._design import AbstractLinearFit, Design, as_penalties, check_data, make_design
from kernax.learners._features import as_features
from kernax.solvers import Result, factorise_columns, factorise_matrix, is_usable, solve_saddle_point, throw_unless

FORMS = ("primal", "dual", "saddle_point")


class LeastSquaresFit(AbstractLinearFit):
    """An ordinary least squares fit: coefficients (q,) or (q, p), and the leverage and residual of every row.

    If `result` is not `successful`, all numbers except the rank are NaN.
    """

    features: Any
    """The feature map."""
    coefficients: Float[Array, "q *p"]
    """One for each feature."""
    intercept: Float[Array, "*p"]
    """The intercept; 0 without one."""
    residuals: Float[Array, "n *p"]
    """y minus the fitted values."""
    leverage: Float[Array, " n"]
    """`ℓᵢ² = [Φ(ΦᵀΦ)⁻¹Φᵀ]ᵢᵢ`, the weight of row i in its own fitted value. Its sum is `rank`."""
    rank: Int[Array, ""]
    """The numerical rank, which includes the intercept."""
    result: Any
    """How the computation ended: `rank_deficient` if the coefficients are not unique."""

    @property
    def interpolated(self) -> Bool[Array, " n"]:
        """The rows whose leverage is 1 up to rounding. The fit goes through them, and is not unique without them."""
        margin = 10 * jnp.finfo(self.leverage.dtype).eps * self.leverage.shape[-1]
        return self.leverage >= 1.0 - margin

    @property
    def loo_residuals(self) -> Float[Array, "n *p"]:
        """`y_i - f^(-i)(x_i)` for every i without a refit, `rᵢ/(1 - ℓᵢ²)`; NaN in rows that are `interpolated`."""
        through = self.interpolated
        room = jnp.where(through, 1.0, 1.0 - self.leverage)
        if self.residuals.ndim > self.leverage.ndim:
            through, room = through[..., None], room[..., None]
        return jnp.where(through, jnp.nan, self.residuals / room)


class RidgeFit(AbstractLinearFit):
    """A ridge regression fit: coefficients (q,) or (q, p), the form that was solved, and the jitter that was needed."""

    features: Any
    """The feature map."""
    coefficients: Float[Array, "q *p"]
    """One for each feature."""
    intercept: Float[Array, "*p"]
    """The intercept; 0 without one."""
    penalty: Float[Array, ""]
    """λ."""
    jitter: Float[Array, ""]
    """The jitter that was added to the diagonal."""
    result: Any
    """How the computation ended."""
    form: str = eqx.field(static=True)
    """The form that was solved."""


def least_squares(data: Any, *, features: Any = None, intercept: bool = True, throw: bool = True) -> LeastSquaresFit:
    """Minimise `‖y - Φθ‖²` by a QR factorisation of the design, O(nq²).

    Derivatives with respect to y, x and the parameters of the feature map are right to any order.

    **Arguments:**

    - `data`: the rows.
    - `features`: a map of one point to a vector; by default the columns of x.
    - `intercept`: add a constant column.
    - `throw`: raise `FailedError` if columns depend linearly on each other (status `rank_deficient`); with `False` return
      the status.

    **Returns:**

    A [`kernax.learners.LeastSquaresFit`][]: a function of new rows, with leverages and leave-one-out residuals.
    """
    check_data(data, "least_squares")
    fit = _least_squares(data, as_features(features), intercept)
    if throw:
        throw_unless((), fit.result, "least squares")
    return fit


@compiled
def _least_squares(data: Data, features: Any, intercept: bool) -> LeastSquaresFit:
    design = make_design(data, features, intercept)
    n, q = design.matrix.shape
    if n < q + intercept:
        raise ValueError(
            f"least squares needs as many rows as coefficients, got {n} rows for {q + intercept} coefficients (with the "
            "intercept): give more rows or fewer features, or use learners.ridge."
        )
    factor = factorise_columns(design.matrix)
    result = Result.where(design.result == Result.successful, factor.result, design.result)
    coefficients = _or_nan(result, factor.solve(design.targets))
    leverage = factor.leverage()
    if intercept:
        leverage = leverage + data.mask / jnp.maximum(data.count, 1)
    return LeastSquaresFit(
        features=design.features,
        coefficients=coefficients,
        intercept=design.intercept(coefficients),
        residuals=_or_nan(result, data.zero_where_masked(design.targets - matmul(design.matrix, coefficients))),
        leverage=_or_nan(result, data.zero_where_masked(leverage)),
        rank=factor.rank + (jnp.any(data.mask) if intercept else 0),
        result=result,
    )


def ridge(
    data: Any, penalty: Any, *, features: Any = None, intercept: bool = True, form: str | None = None, throw: bool = True
) -> RidgeFit:
    """Minimise `‖y - Φθ‖² + λ‖θ‖²`.

    **Arguments:**

    - `data`: the rows.
    - `penalty`: λ. With 0 this is least squares, and may be `rank_deficient`.
    - `features`: a map of one point to a vector; by default the columns of x.
    - `intercept`: add an intercept, which is not penalised.
    - `form`: how it is solved; by default the cheaper of the first two.
        - `"primal"`: `θ = (ΦᵀΦ + λI)⁻¹ Φᵀy`, O(nq² + q³).
        - `"dual"`: `θ = Φᵀ(ΦΦᵀ + λI)⁻¹ y`, O(n²q + n³). If the answer depends on the jitter rather than on λ, the status is
          `singular`.
        - `"saddle_point"`: `[[λI, Φᵀ], [Φ, -I]] [θ; r] = [0; y]`, O((n + q)³). It does not square the condition number.
    - `throw`: raise an error if there is no solution; with `False` return the status.

    **Returns:**

    A [`kernax.learners.RidgeFit`][]: a function of new rows, with its coefficients.
    """
    check_data(data, "ridge")
    if form is not None and form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, or None for the cheaper one, got {form!r}.")
    fit = _ridge(data, as_penalties(penalty, "penalty"), as_features(features), intercept, form)
    if throw:
        throw_unless((), fit.result, "ridge regression")
    return fit


@compiled
def _ridge(data: Data, penalty: Float[Array, ""], features: Any, intercept: bool, form: str | None) -> RidgeFit:
    design = make_design(data, features, intercept)
    penalty = penalty.astype(data.dtype)
    n, q = design.matrix.shape
    form = form or ("primal" if q <= n else "dual")
    coefficients, jitter, result = _SOLUTIONS[form](design, penalty, data.mask)
    # An answer that jitter decides beside the penalty is one of many; in the dual form, of a matrix that has to be singular
    # without a penalty if there are more rows than features.
    jittered = jitter > jnp.sqrt(jnp.finfo(jitter.dtype).eps) * penalty
    undecided = Result.rank_deficient if form == "primal" else Result.singular
    result = Result.where(is_usable(result) & jittered, undecided, result)
    result = Result.where(jnp.isfinite(penalty) & (penalty >= 0), result, Result.nonfinite)
    result = Result.where(design.result == Result.successful, result, design.result)
    coefficients = _or_nan(result, coefficients)
    return RidgeFit(
        features=design.features,
        coefficients=coefficients,
        intercept=design.intercept(coefficients),
        penalty=penalty,
        jitter=jitter,
        result=result,
        form=form,
    )


def _primal(design: Design, penalty: Float[Array, ""], mask: Bool[Array, " n"]) -> tuple[Array, Array, Any]:
    del mask
    q = design.matrix.shape[1]
    system = factorise_matrix(matmul(design.matrix.T, design.matrix), penalty, jnp.ones(q, bool))
    return system.solve(matmul(design.matrix.T, design.targets)).value, system.jitter, system.result


def _dual(design: Design, penalty: Float[Array, ""], mask: Bool[Array, " n"]) -> tuple[Array, Array, Any]:
    system = factorise_matrix(matmul(design.matrix, design.matrix.T), penalty, mask)
    return matmul(design.matrix.T, system.solve(design.targets).value), system.jitter, system.result


def _saddle_point(design: Design, penalty: Float[Array, ""], mask: Bool[Array, " n"]) -> tuple[Array, Array, Any]:
    del mask
    coefficients, result = solve_saddle_point(design.matrix, penalty, design.targets)
    return coefficients, jnp.zeros((), penalty.dtype), result


_SOLUTIONS = {"primal": _primal, "dual": _dual, "saddle_point": _saddle_point}


def _or_nan(result: Any, values: Array) -> Array:
    return jnp.where(is_usable(result), values, jnp.nan)
