"""The Matérn kernel of any order ν, which may be fitted.

A Matérn kernel is a mixture of RBFs over a Gamma distribution of their inverse squared lengthscales. With `u = log` of the
Gamma variable it is

    k(s) = ∫ exp(νu - e^u)/Γ(ν) · exp(-½ν e^(-u) s) du,

with s the scaled squared distance. The integrand decays fast on both sides, so the trapezoidal rule with a fixed number of
nodes is accurate to rounding. Both the weights and the nodes are smooth functions of ν, and therefore so is the kernel.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import is_concrete, matmul
from kernax._programs import compiled
from kernax.kernels._distances import squared_distances
from kernax.kernels._random_features import any_matern_root, stationary_waves
from kernax.kernels._stationary import AbstractStationary, check_width
from kernax.parameters import Parameter, positive

_SMALLEST, _LARGEST = 0.1, 100.0
_NODES = 176
_BLOCK, _GROUP = 1024, 16
"""Distances and nodes of one step: their exponentials stay in the cache. Added up over all distances at once, XLA would
compute them again for the value and for each derivative."""
_LOWEST, _DECAY = -42.0, 38.0
"""Where nodes begin. Beyond -42 an RBF is shorter than 1e-9 lengthscales. For larger ν they begin where the weights of the
curvature, `e^((ν-2)u)`, are negligible: the density is narrower there, and needs nodes that are closer together."""


_DECAYED = 60.0
"""`e^-60` of a term is negligible, whatever its weight."""


class Matern(AbstractStationary):
    """Matérn kernel of any order, `2^(1-ν)/Γ(ν) · r^ν K_ν(r)` with `r = √(2νs)` and `s = Σ (a_k - b_k)²/ℓ_k²`.

    Paths are differentiable `⌈ν⌉ - 1` times. Positive definite in any number of columns. Both ℓ and ν are fitted; hold ν
    fixed with `kx.freeze` if the data contains little information on it. Orders 1/2, 3/2 and 5/2 are `Matern12`, `Matern32`
    and `Matern52`, which are a hundred times faster and have a state space. It is computed as a mixture of 176 RBFs,
    accurate to 1e-13 for ν between 0.25 and 100.

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column.
    - `nu`: ν, between 0.1 and 100. Beyond 100 the kernel hardly differs from an `RBF`.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")
    nu: Float[Parameter, ""] = positive(default=1.5, floor=_SMALLEST, ceiling=_LARGEST, scalar=True)
    is_rough: ClassVar[bool] = True

    def __check_init__(self):
        # A fit may end at a bound, up to rounding.
        if is_concrete(self.nu) and self.nu.ndim == 0 and not 0.99 * _SMALLEST <= float(self.nu) <= 1.01 * _LARGEST:
            raise ValueError(
                f"Matern.nu must be between {_SMALLEST:g} and {_LARGEST:g}, got {float(self.nu):g}: for smoother "
                f"functions use kx.RBF, the limit of the kernel."
            )

    def of_squared_distance(self, s):
        return _matern(False, s, self.nu)

    def gram(self, x, z):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return _matern(z is None, squared_distances(x, z, self.lengthscale, rough=True), self.nu)

    def diag(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, any_matern_root(self.nu, number, seed, x.dtype), number, seed)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern(symmetric: bool, s: Float[Array, "*s"], nu: Float[Array, ""]) -> Float[Array, "*s"]:
    """The kernel at squared distances. Of a symmetric matrix only one half is computed."""
    weights, rates = _mixture(nu)
    return jnp.where(s > 0, _sums(symmetric, s, weights[None], rates)[0], 1.0)


@_matern.defjvp
def _matern_jvp(symmetric, primals, tangents):
    (s, nu), (ds, dnu) = primals, tangents
    (weights, rates), (d_weights, d_rates) = jax.jvp(_mixture, (nu,), (jnp.ones_like(nu),))
    terms = jnp.stack([weights, -weights * rates, d_weights, -weights * d_rates])
    value, slope, by_weights, by_rates = _sums(symmetric, s, terms, rates)
    # At s = 0 the slope is finite if ν > 1. Otherwise there is a kink, for which 0 is the mean of the two sides.
    smooth, apart = nu > 1.0, s > 0
    at_0 = jnp.where(smooth, -0.5 * nu / jnp.where(smooth, nu - 1.0, 1.0), 0.0)
    by_s, by_nu = jnp.where(apart, slope, at_0), jnp.where(apart, by_weights + s * by_rates, 0.0)
    return jnp.where(apart, value, 1.0), by_s * ds + by_nu * dnu


def _mixture(nu: Float[Array, ""]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Weights and rates of the mixture: `Σ_j weight_j exp(-rate_j s)`."""
    # The integral does not depend on the nodes, so they have no derivative.
    fixed = jax.lax.stop_gradient(nu)
    low = jnp.maximum(_LOWEST, -_DECAY / jnp.maximum(fixed - 1.5, 0.5))
    high = jnp.log(fixed + 12.0 * jnp.sqrt(fixed) + 40.0)
    step = (high - low) / (_NODES - 1)
    u = low + step * jnp.arange(_NODES, dtype=nu.dtype)
    return step * jnp.exp(nu * u - jnp.exp(u) - jax.lax.lgamma(nu)), 0.5 * nu * jnp.exp(-u)


@compiled  # called eagerly, the loops would be compiled each time
def _sums(
    symmetric: bool, s: Float[Array, "*s"], weights: Float[Array, "r k"], rates: Float[Array, " k"]
) -> Float[Array, "r *s"]:
    """`Σ_j weights_ij exp(-rates_j s)` for every row of weights."""
    if symmetric and s.shape[0] > 1:
        half = _sums(False, _folded(s), weights, rates)
        return jax.vmap(lambda part: _unfolded(part, s.shape[0]))(half)
    size = max(1, min(s.size, _BLOCK))
    groups = (jnp.moveaxis(weights.reshape(len(weights), -1, _GROUP), 1, 0), rates.reshape(-1, _GROUP))

    def of_block(block: Float[Array, " b"]) -> Float[Array, "r b"]:
        closest = jnp.min(jnp.where(block > 0, block, jnp.inf), initial=jnp.inf)

        def add(total: Array, group: tuple[Array, Array]) -> Array:
            return total + matmul(group[0], jnp.exp(-group[1][:, None] * block))

        def step(total: Array, group: tuple[Array, Array]) -> tuple[Array, None]:
            # RBFs that have decayed even at the smallest distance are skipped: usually more than half of them.
            decayed = jnp.min(group[1]) * closest > _DECAYED
            return jax.lax.cond(decayed, lambda total, _: total, add, total, group), None

        return jax.lax.scan(step, jnp.zeros((len(weights), size), s.dtype), groups)[0]

    # Second derivatives differentiate these loops, and would otherwise keep the exponentials of all nodes.
    blocks = jax.lax.map(jax.checkpoint(of_block), jnp.pad(s.ravel(), (0, -s.size % size)).reshape(-1, size))
    return jnp.moveaxis(blocks, 1, 0).reshape(len(weights), -1)[:, : s.size].reshape(-1, *s.shape)


def _folded(matrix: Float[Array, "n n"]) -> Float[Array, "n h"]:
    """One half of a symmetric matrix without its diagonal: in each row the entries that follow the diagonal, cyclically."""
    n = matrix.shape[0]
    row, ahead = jnp.arange(n)[:, None], jnp.arange(1, n // 2 + 1)
    return matrix[row, (row + ahead) % n]


def _unfolded(half: Float[Array, "n h"], n: int) -> Float[Array, "n n"]:
    """The symmetric matrix. Its diagonal is arbitrary."""
    row, column = jnp.arange(n)[:, None], jnp.arange(n)
    ahead = (column - row) % n
    follows = ahead <= n // 2
    return half[jnp.where(follows, row, column), jnp.where(follows, ahead, n - ahead) - 1]
