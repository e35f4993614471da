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
from kernax.rows import Functionals

_WRITTEN_OUT = 8
"""Columns up to which the covariances of slopes are computed in closed form, with a sum over columns for each entry."""


class AbstractStationary(AbstractKernel):
    """Base class of kernels that are functions of the scaled squared distance `s = Σ (a_k - b_k)²/ℓ_k²`.

    A kernel of your own declares the field `lengthscale` (one number, or one for each column) and defines
    `of_squared_distance`.
    """

    lengthscale: eqx.AbstractVar[Float[Parameter, "*d"]]
    """ℓ, one number or one for each column."""
    is_rough: ClassVar[bool] = False
    """Whether the slope in `s` is unbounded at 0."""

    @abc.abstractmethod
    def of_squared_distance(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """The kernel as a function of the scaled squared distance.

        **Arguments:**

        - `s`: scaled squared distances, 0 or more, of any shape.

        **Returns:**

        The values of the kernel, in the shape of `s`.
        """

    def pair(self, a, b):
        check_width(self, "lengthscale", self.lengthscale, a.shape[-1])
        return self.of_squared_distance(jnp.sum(((a - b) / self.lengthscale) ** 2))

    def gram(self, x, z):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return self.of_squared_distance(squared_distances(x, z, self.lengthscale, rough=self.is_rough))

    def diag(self, x):
        return self.of_squared_distance(jnp.zeros(x.shape[0], x.dtype))

    def gram_of_functionals(self, x, z):
        points, d = {rows.x.shape[1] for rows in (x, z)}, x.x.shape[2]
        if self.is_rough or points != {1} or d > _WRITTEN_OUT or not (x.has_slopes or z.has_slopes):
            return super().gram_of_functionals(x, z)
        check_width(self, "lengthscale", self.lengthscale, d)
        return _gram_of_functionals(self, x, z)

    def coordinates(self, x):
        return x / self.lengthscale

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.lengthscale, self, initial_lengthscale(self.lengthscale, x, mask))


@eqx.filter_custom_jvp
def _gram_of_functionals(kernel: AbstractStationary, x: Functionals, z: Functionals) -> Float[Array, "n m"]:
    """The covariances of rows that observe a value and a slope at one point each, in closed form: a single loop.

    With `k = f(s)`, `u = (a - b)/ℓ` and slopes v and w divided by ℓ, the derivative along v is `2f' v·u`, that along w is
    `-2f' w·u`, and the mixed one is `-4f'' (v·u)(w·u) - 2f' v·w`.
    """
    rate = jnp.broadcast_to(1.0 / kernel.lengthscale, x.x.shape[2])
    (a, w_a, v_a), (b, w_b, v_b) = ((rows.x[:, 0], rows.weight[:, 0], _slopes(rows)[:, 0]) for rows in (x, z))
    s = along_a = along_b = both = jnp.zeros((), jnp.result_type(a, b, rate))
    for k in range(a.shape[1]):
        u, of_a, of_b = (a[:, None, k] - b[:, k]) * rate[k], v_a[:, None, k] * rate[k], v_b[:, k] * rate[k]
        s, along_a, along_b, both = s + u * u, along_a + of_a * u, along_b + of_b * u, both + of_a * of_b

    def slope(s: Array) -> Array:
        return jax.jvp(kernel.of_squared_distance, (s,), (jnp.ones_like(s),))[1]

    first, second = jax.jvp(slope, (s,), (jnp.ones_like(s),))
    w_a = w_a[:, None]
    value = w_a * w_b * kernel.of_squared_distance(s)
    return value + 2.0 * first * (w_b * along_a - w_a * along_b - both) - 4.0 * second * along_a * along_b


@_gram_of_functionals.def_jvp
def _gram_of_functionals_jvp(primals, tangents):
    # Through distances, whose derivatives are sums over the matrix and keep no matrices for each column.
    def by_derivatives(kernel: AbstractStationary, x: Functionals, z: Functionals) -> Array:
        return AbstractKernel.gram_of_functionals(kernel, x, z)

    return _gram_of_functionals(*primals), eqx.filter_jvp(by_derivatives, primals, tangents)[1]


def _slopes(rows: Functionals) -> Float[Array, "n 1 d"]:
    return jnp.zeros_like(rows.x) if rows.slope is None else rows.slope


class RBF(AbstractStationary):
    """Squared exponential (Gaussian) kernel, `exp(-s/2)` with `s = Σ (a_k - b_k)²/ℓ_k²`: infinitely smooth functions.

    The usual first choice for smooth functions. For rougher ones use [`kernax.Matern52`][] or [`kernax.Matern32`][].

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column (ARD).
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def of_squared_distance(self, s):
        return jnp.exp(-0.5 * s)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, jnp.ones(1, x.dtype), number, seed)


class Matern12(AbstractStationary):
    """Matérn-1/2 or exponential kernel, `exp(-√s)` with `s = Σ (a_k - b_k)²/ℓ_k²`: continuous, rough functions.

    In one dimension this is the Ornstein-Uhlenbeck process. Use it for functions that have no derivative.

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column (ARD).
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
    """Matérn-3/2 kernel, `(1 + √(3s)) exp(-√(3s))` with `s = Σ (a_k - b_k)²/ℓ_k²`: functions that are differentiable once.

    Use it for functions with bends that are too sharp for [`kernax.Matern52`][].

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column (ARD).
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def of_squared_distance(self, s):
        return _matern32(3.0 * s)

    def state_space(self):
        return matern(1, self.lengthscale)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, matern_root(3, number, seed, x.dtype), number, seed)


class Matern52(AbstractStationary):
    """Matérn-5/2 kernel, `(1 + √(5s) + 5s/3) exp(-√(5s))` with `s = Σ (a_k - b_k)²/ℓ_k²`: twice differentiable functions.

    A good default for measured data: smooth, but less so than [`kernax.RBF`][].

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column (ARD).
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0, unit="x")

    def of_squared_distance(self, s):
        return _matern52(5.0 * s)

    def state_space(self):
        return matern(2, self.lengthscale)

    def waves(self, x, number, seed):
        check_width(self, "lengthscale", self.lengthscale, x.shape[1])
        return stationary_waves(x, self.lengthscale, matern_root(5, number, seed, x.dtype), number, seed)


class RationalQuadratic(AbstractStationary):
    """Rational quadratic kernel, `(1 + s/2α)^-α` with `s = Σ (a_k - b_k)²/ℓ_k²`: a mixture of RBFs of many lengthscales.

    Use it for functions that vary on several length scales. For α → ∞ it is the `RBF`.

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column (ARD).
    - `alpha`: α. The smaller it is, the more the lengthscales of the mixture differ.
    """

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
    """Raise if a vector parameter has another length than the number of columns. Broadcasting would hide the mistake."""
    if value.ndim > 1 or (value.ndim == 1 and value.shape[0] != width):
        raise ValueError(
            f"{type(kernel).__name__}.{name} has shape {value.shape}, but the inputs have {width} columns: "
            f"give one number, or one per column."
        )


def initial_lengthscale(like: Array, x: Array, mask: Array) -> Array:
    """A share `d/(d+2)` of median distances, in the shape of the lengthscale that they replace.

    Two rows are typically as far apart as the data is wide; with few columns most functions turn several times on the way
    (and started at the whole distance, a fit may end with all of them taken for noise), with many they do not.
    """
    d = x.shape[1]
    return (d / (d + 2) * median_distance(x, mask, per_column=like.ndim == 1)).astype(like.dtype)
