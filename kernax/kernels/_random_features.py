"""Random Fourier features: a stationary kernel as the mean of many waves of random frequency.

Bochner's theorem: `k(a - b) = E[cos(ω·(a - b))]` for a distribution of the frequency ω, the kernel's spectral measure. With
frequencies `ω_1 … ω_m` drawn from it, the cosines and sines of `ω_j·x` are features whose products are `k` in the mean, and
`k(x, x)` exactly.

The kernels here are mixtures of Gaussians, `k = E[exp(-τ s/2)]` with the scaled squared distance s, so that `ω = √τ g/ℓ`
with standard normal g. The mixing variable τ is 1 for the RBF. For a Matérn kernel `1/τ` is Gamma distributed (ω has
Student's t distribution with 2ν degrees of freedom), and for the rational quadratic one τ is. The vectors g and the uniform
numbers that τ is made of are drawn once, by NumPy from a fixed seed, so a fit sees one smooth function of its parameters.

The vectors g are drawn in groups of orthogonal ones: each alone is normal, and together they err less (Yu, Suresh,
Choromanski, Holtmann-Rice and Kumar, 2016).
"""

from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import matmul, whole_number
from kernax._programs import compiled
from kernax.kernels._kernel import AbstractKernel, check_is_kernel


class RandomFeatures(AbstractKernel):
    """A stationary kernel, approximated by random Fourier features: `φ(a)·φ(b)`, which is `k(a, b)` in the mean over seeds.

    Use it for many rows, with `kx.LowRank()`. The error of an entry is about `variance/√(2·number)`. With `kx.LowRank()`
    every result is exact for the approximation, in O(n·number²). `RandomFeatures` may be added to and multiplied by kernels
    with features, such as `kx.Linear()`.

    Takes `RBF`, `Matern`, `Matern12`, `Matern32`, `Matern52`, `RationalQuadratic`, `SpectralMixture`, their multiples, sums
    and products, and `Additive`, `Select` and `Warp` of them. Their parameters are fitted as usual. Second derivatives in
    `Matern.nu` and `RationalQuadratic.alpha` are not available.

    **Arguments:**

    - `kernel`: the kernel.
    - `number`: the number of waves for each summand. Each has two features, a cosine and a sine.
    - `seed`: the seed of the frequencies.
    """

    kernel: AbstractKernel
    number: int = eqx.field(static=True, converter=lambda number: whole_number(number, "RandomFeatures.number"))
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_is_kernel(self.kernel, "RandomFeatures.kernel")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"RandomFeatures.seed must be a whole number, not negative, got {self.seed!r}.")

    def pair(self, a, b):
        u, v = (self.features(jax.tree.map(lambda leaf: leaf[None], point))[0] for point in (a, b))
        return jnp.sum(u * v)

    def gram(self, x, z):
        u = self.features(x)
        if z is not None:
            return matmul(u, self.features(z).T)
        return jnp.where(jnp.eye(u.shape[0], dtype=bool), self.diag(x)[:, None], matmul(u, u.T))

    def diag(self, x):
        angles, variances = self._waves(x)
        return jnp.broadcast_to(jnp.sum(variances), angles.shape[:1])

    def features(self, x):
        angles, variances = self._waves(x)
        return jnp.tile(jnp.sqrt(variances), 2) * jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)

    def coordinates(self, x):
        return self.kernel.coordinates(x)

    def check(self, x, counts=None):
        self.kernel.check(x, counts)

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.kernel, self, self.kernel.initialised(x, mask, variance))

    def _waves(self, x: Any) -> tuple[Float[Array, "n m"], Float[Array, " m"]]:
        waves = self.kernel.waves(x, self.number, (self.seed,))
        if waves is None:
            raise TypeError(
                "RandomFeatures needs a kernel that is a mean of random waves (RBF, Matern, Matern12, Matern32, Matern52, "
                "RationalQuadratic, SpectralMixture, their multiples, sums and products), and "
                f"{self.kernel!r} is not: use the kernel itself with kx.LowRank(), which chooses inducing rows."
            )
        return waves


def stationary_waves(
    x: Float[Array, "n d"], lengthscale: Float[Array, "*d"], root: Float[Array, "#m"], number: int, seed: tuple[int, ...]
) -> tuple[Float[Array, "n m"], Float[Array, " m"]]:
    """The waves of a mixture of Gaussians, as `AbstractKernel.waves` returns them; `root` is √τ for every wave."""
    normal = jnp.asarray(orthogonal_normal(number, x.shape[1], seed), x.dtype)
    angles = matmul(x / lengthscale, normal.T) * root
    return angles, jnp.full(number, 1.0 / number, x.dtype)


def matern_root(degrees: int, number: int, seed: tuple[int, ...], dtype: Any) -> Float[Array, " m"]:
    """√τ of a Matérn kernel: the frequencies have Student's t distribution with `degrees = 2ν` degrees of freedom."""
    from scipy.special import gammaincinv  # takes longer to import than kernax's kernels

    half = degrees / 2
    return jnp.asarray(np.sqrt(half / gammaincinv(half, _uniform(number, seed))), dtype)


def any_matern_root(nu: Float[Array, ""], number: int, seed: tuple[int, ...], dtype: Any) -> Float[Array, " m"]:
    """√τ of a Matérn kernel of order ν, as a smooth function of it: 1/τ is Gamma distributed with shape ν and mean 1."""
    return 1.0 / _root_of_gamma(nu, number, seed, dtype)


def rational_quadratic_root(alpha: Float[Array, ""], number: int, seed: tuple[int, ...], dtype: Any) -> Float[Array, " m"]:
    """√τ of a rational quadratic kernel: τ is Gamma distributed with shape α and mean 1."""
    return _root_of_gamma(alpha, number, seed, dtype)


def _root_of_gamma(shape: Float[Array, ""], number: int, seed: tuple[int, ...], dtype: Any) -> Float[Array, " m"]:
    """Roots of numbers that are Gamma distributed with this shape and mean 1."""
    uniform = jnp.asarray(_uniform(number, seed), dtype)
    mixing = _gamma_quantile(uniform, jnp.broadcast_to(shape.astype(dtype), uniform.shape)) / shape
    return jnp.sqrt(jnp.maximum(mixing, jnp.finfo(dtype).tiny))


@jax.custom_jvp
@compiled  # called eagerly, the loop would be compiled each time
def _gamma_quantile(share: Float[Array, " m"], shape: Float[Array, " m"]) -> Float[Array, " m"]:
    """The x at which the Gamma distribution of this shape and scale 1 has the given share below it."""
    steps = 60 if share.dtype == jnp.float64 else 35
    floor = jnp.log(jnp.finfo(share.dtype).tiny)

    def halved(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        below = jax.lax.igamma(shape, jnp.exp(middle)) < share
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = (jnp.full_like(share, floor), jnp.log(shape + 12.0 * jnp.sqrt(shape) + 60.0))
    low, high = jax.lax.fori_loop(0, steps, halved, start)
    return jnp.exp(0.5 * (low + high))


@_gamma_quantile.defjvp
def _gamma_quantile_jvp(primals, tangents):
    (share, shape), (_, d_shape) = primals, tangents
    value = _gamma_quantile(share, shape)
    return value, jax.lax.random_gamma_grad(shape, value) * d_shape  # pyright: ignore[reportCallIssue]


@lru_cache(maxsize=32)
def orthogonal_normal(number: int, width: int, seed: tuple[int, ...]) -> np.ndarray:
    """`number` standard normal vectors, orthogonal to each other in groups of `width`."""
    rng = np.random.default_rng([*seed, 0])
    groups = []
    for _ in range(-(-number // width)):
        q, r = np.linalg.qr(rng.normal(size=(width, width)))
        # With these signs the directions are uniform. The lengths are those of independent normal vectors.
        lengths = np.sqrt(rng.chisquare(width, size=(width, 1)))
        groups.append(lengths * (q * np.sign(np.diag(r))).T)
    return np.concatenate(groups)[:number]


@lru_cache(maxsize=32)
def _uniform(number: int, seed: tuple[int, ...]) -> np.ndarray:
    """Numbers between 0 and 1, one in each of `number` equal parts, in random order: each alone is uniform."""
    rng = np.random.default_rng([*seed, 1])
    return (rng.permutation(number) + 1.0 - rng.uniform(size=number)) / number
