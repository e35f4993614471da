"""Kernels of the scaled Euclidean distance: `s = Σ_k (a_k - b_k)² / ℓ_k²`."""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.kernels._distances import median_distance, squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import matern
from kernax.kernels._random_features import matern_root, rational_quadratic_root, stationary_waves
from kernax.parameters import Parameter, positive


class AbstractStationary(AbstractKernel):
    """A kernel that is a function of the scaled squared distance. One lengthscale, or one per column (ARD)."""

    lengthscale: eqx.AbstractVar[Float[Parameter, "*d"]]
    is_rough: ClassVar[bool] = False
    """Whether the slope in `s` is unbounded at 0."""

    @abc.abstractmethod
    def of_squared_distance(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """`k` where the scaled squared distance is `s ≥ 0`."""

    def pair(self, a, b):
        check_width(self, "lengthscale", self.lengthscale, a.shape[-1])
        return self.of_squared_distance(jnp.sum(((a - b) / self.lengthscale) ** 2))

    def gram(self, x, z):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return self.of_squared_distance(squared_distances(x, z, self.lengthscale, rough=self.is_rough))

    def diag(self, x):
        return self.of_squared_distance(jnp.zeros(x.shape[0], x.dtype))

    def coordinates(self, x):
        return x / self.lengthscale

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.lengthscale, self, initial_lengthscale(self.lengthscale, x, mask))


class RBF(AbstractStationary):
    """Squared exponential, `exp(-s/2)` with `s = Σ (a_k - b_k)²/ℓ_k²`: infinitely smooth sample paths.

    One lengthscale ℓ, or one for each column.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def of_squared_distance(self, s):
        return jnp.exp(-0.5 * s)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, jnp.ones(1, x.dtype), number, seed)


class Matern12(AbstractStationary):
    """Matérn-1/2 or exponential, `exp(-√s)` with `s = Σ (a_k - b_k)²/ℓ_k²`: continuous, rough paths.

    In one dimension the process of Ornstein and Uhlenbeck.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")
    is_rough: ClassVar[bool] = True

    def of_squared_distance(self, s):
        return _matern12(s)

    def state_space(self):
        return matern(0, self.lengthscale)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, matern_root(1, number, seed, x.dtype), number, seed)


class Matern32(AbstractStationary):
    """Matérn-3/2, `(1 + √(3s)) exp(-√(3s))` with `s = Σ (a_k - b_k)²/ℓ_k²`: once differentiable paths."""

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def of_squared_distance(self, s):
        return _matern32(3.0 * s)

    def state_space(self):
        return matern(1, self.lengthscale)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, matern_root(3, number, seed, x.dtype), number, seed)


class Matern52(AbstractStationary):
    """Matérn-5/2, `(1 + √(5s) + 5s/3) exp(-√(5s))` with `s = Σ (a_k - b_k)²/ℓ_k²`: twice differentiable paths."""

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def of_squared_distance(self, s):
        return _matern52(5.0 * s)

    def state_space(self):
        return matern(2, self.lengthscale)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, matern_root(5, number, seed, x.dtype), number, seed)


class RationalQuadratic(AbstractStationary):
    """`(1 + s/2α)^-α` with `s = Σ (a_k - b_k)²/ℓ_k²`: a mixture of RBFs of many lengthscales; α → ∞ gives the RBF."""

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")
    alpha: Float[Parameter, ""] = positive(default=1.0, scalar=True)

    def of_squared_distance(self, s):
        return jnp.exp(-self.alpha * jnp.log1p(0.5 * s / self.alpha))

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(
            x, self.lengthscale, rational_quadratic_root(self.alpha, number, seed, x.dtype), number, seed
        )


# The Matérn family as functions of t = r². Autodiff through √t would divide by 0 where two points coincide, and a mere
# guard of the root would make the derivative 0 there, which is wrong for 3/2 and 5/2 (their slope in t is finite, and it
# is the curvature of the kernel in x). Each member's slope is a multiple of the next rougher one, so the chain is exact.


@jax.custom_jvp
def _matern12(t: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.exp(-jnp.sqrt(t))


@_matern12.defjvp
def _matern12_jvp(primals, tangents):
    (t,), (dt,) = primals, tangents
    # The kink: at t = 0 every one-sided slope is -∞; 0 is the mean of the two sides in x, and exact in a lengthscale.
    apart = t > 0
    root = jnp.sqrt(jnp.where(apart, t, 1.0))
    return _matern12(t), jnp.where(apart, -0.5 * jnp.exp(-root) / root, 0.0) * dt


@jax.custom_jvp
def _matern32(t: Float[Array, "..."]) -> Float[Array, "..."]:
    r = jnp.sqrt(t)
    return (1.0 + r) * jnp.exp(-r)


@_matern32.defjvp
def _matern32_jvp(primals, tangents):
    (t,), (dt,) = primals, tangents
    return _matern32(t), -0.5 * _matern12(t) * dt


@jax.custom_jvp
def _matern52(t: Float[Array, "..."]) -> Float[Array, "..."]:
    r = jnp.sqrt(t)
    return (1.0 + r + t / 3.0) * jnp.exp(-r)


@_matern52.defjvp
def _matern52_jvp(primals, tangents):
    (t,), (dt,) = primals, tangents
    return _matern52(t), -_matern32(t) / 6.0 * dt


def check_width(kernel: AbstractKernel, name: str, value: Array, width: int) -> None:
    """Refuse a vector parameter whose length is not the number of columns: broadcasting would hide the mistake."""
    if value.ndim > 1 or (value.ndim == 1 and value.shape[0] != width):
        raise ValueError(
            f"{type(kernel).__name__}.{name} has shape {value.shape}, but the inputs have {width} columns: "
            f"give one number, or one per column."
        )


def initial_lengthscale(like: Array, x: Array, mask: Array) -> Array:
    """A share `d/(d+2)` of median distances, in the shape of the lengthscale that they are to replace.

    Two rows are typically as far apart as the data is wide; with few columns most functions turn several times on the way
    (and started at the whole distance, a fit may end with all of them taken for noise), with many they do not.
    """
    d = x.shape[1]
    return (d / (d + 2) * median_distance(x, mask, per_column=like.ndim == 1)).astype(like.dtype)
