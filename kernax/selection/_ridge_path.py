"""A whole grid of ridges from one eigendecomposition: `alpha(λ) = V (Λ + λ)⁻¹ Vᵀ (y - μ)`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.model import Conditioned, recondition
from kernax.model._checks import check_conditioned
from kernax.posterior import safe_sqrt
from kernax.selection._kfold import Folds, as_folds, fold_mse, mean_over_folds
from kernax.selection._leave_one_out import loo_mse, loo_residuals
from kernax.selection._likelihood import log_marginal_likelihood
from kernax.selection._smoother import effective_degrees_of_freedom, fit_residuals, gcv
from kernax.solvers import largest_eigenvalue


class RidgePath(eqx.Module):
    """Kernel ridge regression at each ridge of a grid. The first axis of every array runs over the ridges."""

    ridges: Float[Array, " l"]
    """The ridges."""
    alpha: Float[Array, "l n *p"]
    """`(K + λI)⁻¹ (y - mean)`."""
    fitted: Float[Array, "l n *p"]
    """`f̂(x_i)`; 0 where the data is masked."""
    residual_norm: Float[Array, "l *p"]
    """`‖y - f̂_X‖`."""
    rkhs_norm: Float[Array, "l *p"]
    """`‖f̂ - μ‖` in the kernel's space."""
    effective_degrees_of_freedom: Float[Array, "l ..."]
    """The trace of the matrix that maps targets to fitted values."""
    loo_residuals: Float[Array, "l n *p"]
    """`y_i - f^(-i)(x_i)`."""
    loo_mse: Float[Array, " l"]
    """The mean square of the leave-one-out residuals."""
    gcv: Float[Array, " l"]
    """The generalised cross-validation score."""
    log_marginal_likelihood: Float[Array, " l"]
    """The log marginal likelihood at each ridge."""
    jitter: Float[Array, " l"]
    """The jitter that was added to the diagonal in addition to the ridge."""
    result: Any
    """The status of the factorisation, one for each ridge."""
    fold_mse: Float[Array, "l k"] | None
    """The mean squared residual in each held-out fold, if `folds` was given."""
    folds: Folds | None
    """The folds; `None` if there are none."""

    @property
    def kfold_mse(self) -> Float[Array, " l"]:
        """The mean of `fold_mse` over folds."""
        scores, table = self._folds()
        return jax.vmap(lambda row: mean_over_folds(row, table))(scores)

    def best_mean_score(self) -> Float[Array, ""]:
        """Rule 1 to choose a ridge from several folds: the ridge of the grid with the best mean score.

        **Returns:**

        One number. Raises `ValueError` if the path has no folds.
        """
        return self.ridges[_lowest(self.kfold_mse)]

    def mean_of_best(self) -> Float[Array, ""]:
        """Rule 2 to choose a ridge from several folds: the mean, over the folds, of the best ridge in each.

        **Returns:**

        One number. Raises `ValueError` if the path has no folds.
        """
        scores, table = self._folds()
        return mean_over_folds(self.ridges[_lowest(scores)], table)

    def _folds(self) -> tuple[Float[Array, "l k"], Folds]:
        if self.fold_mse is None or self.folds is None:
            raise ValueError("this path was made without folds: write ridge_path(c, ridges, folds=10).")
        return self.fold_mse, self.folds

    def __repr__(self):
        return f"RidgePath({self.ridges.shape[-1]} ridges, alpha={self.alpha.shape}, {self.alpha.dtype})"


def ridge_path(c: Conditioned, ridges: Any = None, *, folds: Any = None, key: Key[Array, ""] | None = None) -> RidgePath:
    """Kernel ridge regression for a whole grid of ridges, from one factorisation. O(n²) a ridge with `Eigh`.

    **Arguments:**

    - `c`: a model conditioned with a solver that can move to another noise: `kx.condition(model, data, kx.Eigh())`, or
      `LowRank`, `StateSpace`, `Kronecker`.
    - `ridges`: a vector of ridges, not negative, in any order; `default_ridges(c)` if not given.
    - `folds`, `key`: also compute the scores of k-fold cross-validation, O(n³/k) a ridge with `Eigh` and O(k n) with
      `StateSpace`; see `kfold_residuals`.

    **Returns:**

    A `RidgePath`.
    """
    check_one_noise(c)
    ridges = None if ridges is None else as_ridges(ridges, c.data.dtype)
    return _ridge_path(c, ridges, None if folds is None else as_folds(folds, c.data, key))


def default_ridges(c: Conditioned, num: int = 50) -> Float[Array, " l"]:
    """Ridges from where the fit nearly interpolates to where it is nearly the mean function.

    They go from 1e-10 of the largest eigenvalue of K (1e-5 in float32) to ten times that eigenvalue, evenly spread on a
    logarithmic axis.

    **Arguments:**

    - `c`: a model conditioned on data, with one noise for all rows.
    - `num`: how many ridges.

    **Returns:**

    A vector of increasing ridges.
    """
    check_one_noise(c)
    top = largest_eigenvalue(c.system)
    least = max(1e-10, 100 * float(jnp.finfo(c.data.dtype).eps))
    return top * jnp.geomspace(least, 10.0, num, dtype=c.data.dtype)


def increasing_ridges(c: Conditioned, ridges: Float[Array, " l"] | None) -> Float[Array, " l"]:
    """The default grid if none is given, else the given one in order."""
    return default_ridges(c) if ridges is None else jnp.sort(ridges)


def check_one_noise(c: Any) -> None:
    """Raise unless `c` is a model conditioned with one noise for all rows, which can be moved to another."""
    check_conditioned(c, "a ridge path", "fit the kernel and the likelihood with kx.fit")
    if c.system.noise.ndim > 0:
        raise ValueError("a ridge path needs one noise for all rows; this model has one per row.")


def as_ridges(ridges: Any, dtype: Any) -> Float[Array, " l"]:
    """A grid of ridges as an array; negative, NaN and empty ones are refused."""
    ridges = jnp.asarray(ridges, dtype)
    if ridges.ndim != 1 or ridges.shape[0] == 0:
        raise ValueError(f"ridges must be a vector of at least one number, got shape {ridges.shape}.")
    if is_concrete(ridges):
        bad = ~(np.asarray(ridges) >= 0) | np.isinf(np.asarray(ridges))
        if np.any(bad):
            raise ValueError(f"ridges must be finite and not negative, got {np.asarray(ridges)[bad][0]}.")
    return ridges


def fitted_norm(c: Conditioned) -> Float[Array, "*p"]:
    """`√(alphaᵀ K alpha)`, by one product with K over the training rows."""
    columns = c.alpha.reshape(c.data.n, -1)
    squared = jnp.sum(columns * c.system.gram.mv(columns), axis=0).reshape(c.alpha.shape[1:])
    return safe_sqrt(jnp.maximum(squared, 0.0))


def _lowest(scores: Float[Array, "l *k"]) -> Array:
    """The index of the lowest score along the ridges, ignoring NaN."""
    return jnp.argmin(jnp.where(jnp.isnan(scores), jnp.inf, scores), axis=0)


@compiled
def _ridge_path(c: Conditioned, ridges: Float[Array, " l"] | None, folds: Folds | None) -> RidgePath:
    ridges = default_ridges(c) if ridges is None else ridges

    def at(ridge: Float[Array, ""]) -> dict[str, Any]:
        here = recondition(c, noise=ridge)
        residuals = fit_residuals(here)
        return {
            "alpha": here.alpha,
            "fitted": c.data.zero_where_masked(c.data.y - residuals),
            "residual_norm": safe_sqrt(jnp.sum(residuals**2, axis=0)),
            "rkhs_norm": fitted_norm(here),
            "effective_degrees_of_freedom": effective_degrees_of_freedom(here),
            "loo_residuals": loo_residuals(here),
            "loo_mse": loo_mse(here),
            "gcv": gcv(here),
            "log_marginal_likelihood": log_marginal_likelihood(here),
            "jitter": here.jitter,
            "result": here.result,
        }

    # One ridge after another: the folds of all ridges at once would need as many n × n matrices.
    scores = None if folds is None else jax.lax.map(lambda ridge: fold_mse(recondition(c, noise=ridge), folds), ridges)
    return RidgePath(ridges=ridges, **jax.vmap(at)(ridges), fold_mse=scores, folds=folds)
