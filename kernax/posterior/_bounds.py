"""Error bounds by the power function, and norms in the kernel's own function space."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.model import Conditioned
from kernax.posterior._predict import safe_sqrt, variance
from kernax.rows import take


def power_function(c: Conditioned, x: Any) -> Float[Array, "m *p"]:
    """The power function `P(x) = √(k(x,x) - k_xX (K + noise·I)⁻¹ k_Xx)`: the posterior's standard deviation.

    It is also the factor in the bound of the error at x, `error_bound`. Without noise it is 0 at the data.

    **Arguments:**

    - `c`: a model conditioned on data.
    - `x`: new inputs, `(m, d)`.

    **Returns:**

    An array of shape `(m,)`.
    """
    return safe_sqrt(variance(c, x))


def error_bound(c: Conditioned, x: Any, norm: float | Float[Array, "*p"]) -> Float[Array, "m *p"]:
    """How far the prediction can be from a function f of known norm: `P(x) √(norm² - (y-μ)ᵀ(K + noise·I)⁻¹(y-μ))`.

    It holds if the data are values of f, and `‖f - μ‖` in the kernel's space is at most `norm`. With noise 0 this is the
    classical bound, where `(y-μ)ᵀK⁻¹(y-μ)` is the squared norm of the interpolant. With noise λ it is the same argument in
    the space of the kernel `k + λδ`. If the targets themselves have errors e, use `norm² = ‖f - μ‖² + ‖e‖²/λ`.

    **Arguments:**

    - `c`: a model conditioned on data.
    - `x`: new inputs, `(m, d)`.
    - `norm`: a bound of `‖f - μ‖`, not negative; one number, or one for each output.

    **Returns:**

    An array of shape `(m,)` or `(m, p)`. NaN where no function of that norm fits the data; an eager call raises
    `ValueError` then.
    """
    if is_concrete(norm) and np.any(np.asarray(norm) < 0):
        raise ValueError(f"norm must not be negative, got {norm}.")
    explained = data_norm_squared(c)
    left = jnp.asarray(norm, c.data.dtype) ** 2 - explained
    # A norm that is just that of the interpolant may fall short by rounding.
    slack = 100 * jnp.finfo(c.data.dtype).eps * c.data.n * explained
    if is_concrete(left) and np.any(np.asarray(left < -slack)):
        raise ValueError(
            f"no function of norm {norm} fits the data: the smallest norm that does is {np.sqrt(np.asarray(explained))}."
        )
    left = jnp.where(left < -slack, jnp.nan, jnp.maximum(left, 0.0))
    return jnp.multiply(*jnp.broadcast_arrays(_along(power_function(c, x), left), safe_sqrt(left)))


def data_norm_squared(c: Conditioned) -> Float[Array, "*p"]:
    """The squared norm of the data, `(y-μ)ᵀ (K + noise·I)⁻¹ (y-μ)`.

    **Arguments:**

    - `c`: a model conditioned on data, from [`kernax.condition`][].

    **Returns:**

    One number, or one for each output.
    """
    return jnp.sum(c.residual * c.alpha, axis=0)


def rkhs_norm(c: Conditioned) -> Float[Array, "*p"]:
    """The norm of the fitted function in the kernel's space, `‖f̂ - μ‖ = √(alphaᵀ K alpha)`. O(n²).

    For a spline, whose polynomials are not penalised, it is the square root of the bending energy: `√∫ f''²` for the cubic
    spline.

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    A scalar, or one number for each output.
    """
    return safe_sqrt(jnp.maximum(rkhs_inner(c, c), 0.0))


def rkhs_inner(c: Conditioned, d: Conditioned) -> Float[Array, "*p"]:
    """The inner product of two fitted functions of the same kernel, `⟨f̂_c, f̂_d⟩ = alpha_cᵀ k(X_c, X_d) alpha_d`.

    **Arguments:**

    - `c`, `d`: models with the same kernel and hyperparameters, conditioned on data.

    **Returns:**

    A scalar, or one number for each output.
    """
    ours, theirs = jax.tree.flatten(c.model.kernel), jax.tree.flatten(d.model.kernel)
    same = ours[1] == theirs[1] and all(
        np.array_equal(a, b) for a, b in zip(ours[0], theirs[0], strict=True) if is_concrete(a) and is_concrete(b)
    )
    if not same:
        raise ValueError(
            "an inner product needs functions in the same space: both must have the same kernel and hyperparameters."
        )
    if c.alpha.shape[1:] != d.alpha.shape[1:]:
        raise ValueError(f"the functions have different numbers of outputs: {c.alpha.shape[1:]} and {d.alpha.shape[1:]}.")
    return _rkhs_inner(c, d)


@compiled
def _rkhs_inner(c: Conditioned, d: Conditioned) -> Float[Array, "*p"]:
    values = c.system.gram.cross_mv(take(d.data.x), c.alpha.reshape(c.data.n, -1))
    return jnp.sum(values.reshape(d.alpha.shape) * d.alpha, axis=0)


def _along(rows: Array, like: Array) -> Array:
    return rows[:, None] if like.ndim == rows.ndim else rows
