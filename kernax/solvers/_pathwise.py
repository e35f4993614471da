"""Functions drawn from a posterior without an m × m matrix, by Matheron's rule.

Let f be a function drawn from the prior and ε noise. Then, at any rows x,

    f(x) - k(x, X) A⁻¹ (f(X) + ε)

is a draw of the posterior less its mean. One solve serves all new rows.

The function f is a sum of random waves (random Fourier features), for each draw with frequencies of its own. Over all draws
its covariance is then exactly the kernel, however few waves there are: variances that are estimated from such draws are
unbiased. A draw alone is Gaussian only up to the number of waves.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import matmul
from kernax.kernels import (
    RBF,
    AbstractKernel,
    AbstractStationary,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    RandomFeatures,
    RationalQuadratic,
    SpectralMixture,
)
from kernax.rows import Rows, take

_WAVES = 512
"""Frequencies of each draw. Where the posterior variance is a share v of the prior one, they add about `1 / (512 v)` to the
relative variance of one squared draw, which is 2."""
_MOST = 8 * _WAVES
"""Features that a kernel may have in all: a product of waves and of a kernel with features has many. Then there are fewer
waves."""
_FEWEST = 32


def prior_draws(
    kernel: Any, x: Rows, key: Key[Array, ""], number: int, remedy: str = 'use kx.CG(variance="exact")'
) -> Callable[[Rows], Float[Array, "m s"]]:
    """Functions drawn from the prior: what is returned evaluates the same functions at any rows.

    **Arguments:**

    - `kernel`: a kernel made of stationary kernels and of kernels that have features.
    - `x`: some rows, which show the structure of a row.
    - `key`: a random key.
    - `number`: how many functions.
    - `remedy`: what to do if the kernel does not consist of waves or features.

    **Returns:**

    A function of rows. Raises `TypeError` if the kernel does not consist of waves or features.
    """
    first = take(x, slice(0, 1))
    waves = _WAVES
    shape = jax.eval_shape(lambda key: _features(_by_waves(kernel, key, waves), first, waves), key)
    while shape is not None and shape.shape[1] > _MOST and waves > _FEWEST:
        waves //= 2
        shape = jax.eval_shape(lambda key, waves=waves: _features(_by_waves(kernel, key, waves), first, waves), key)
    if shape is None or shape.shape[1] > _MOST:
        raise TypeError(
            "pathwise draws need a kernel made of RBF, Matern, Matern12, Matern32, Matern52, RationalQuadratic, "
            f"SpectralMixture and kernels with features, and {kernel!r} is not: {remedy}."
        )

    def at(rows: Rows) -> Float[Array, "m s"]:
        def one(key: Key[Array, ""]) -> Float[Array, " m"]:
            for_waves, for_weights = jax.random.split(key)
            features = _features(_by_waves(kernel, for_waves, waves), rows, waves)
            assert features is not None  # as was seen above
            return matmul(features, jax.random.normal(for_weights, features.shape[1:], features.dtype))

        # One function after another: together, their features would be a large array.
        return jax.lax.map(jax.checkpoint(one), jax.random.split(key, number)).T

    return at


class _Waves(AbstractKernel):
    """A stationary kernel with features instead: cosines and sines of random frequencies."""

    kernel: AbstractStationary | SpectralMixture
    key: Key[Array, ""]
    number: int = eqx.field(static=True)

    def pair(self, a, b):
        return self.kernel.pair(a, b)

    def waves(self, x, number, seed):
        first, second = jax.random.split(self.key)
        if isinstance(self.kernel, SpectralMixture):
            return self.kernel.waves_of(x, jax.random.normal(first, (number, x.shape[1]), x.dtype))
        if not isinstance(self.kernel, (RBF, RationalQuadratic, Matern, *_DEGREES)):
            return None
        frequencies = jax.random.normal(first, (x.shape[1], number), x.dtype)
        spread = _spread(self.kernel, second, number, x.dtype)
        frequencies = frequencies * spread / jnp.reshape(self.kernel.lengthscale, (-1, 1))
        return matmul(x, frequencies), jnp.full(number, 1.0 / number, x.dtype)

    def features(self, x):
        return _of_waves(self.waves(x, self.number, ()))


def _of_waves(waves: tuple[Float[Array, "n m"], Float[Array, " m"]] | None) -> Float[Array, "n r"] | None:
    """Cosines and sines of random waves, as features."""
    if waves is None:
        return None
    phases, variances = waves
    return jnp.tile(jnp.sqrt(variances), 2) * jnp.concatenate([jnp.cos(phases), jnp.sin(phases)], axis=1)


def _features(kernel: Any, x: Rows, number: int) -> Float[Array, "n r"] | None:
    """Waves if all of the kernel is made of them, so that products have no more of them than their factors."""
    own = _of_waves(kernel.waves(x, number, ()))
    return kernel.features(x) if own is None else own


def _by_waves(kernel: Any, key: Key[Array, ""], number: int) -> Any:
    """The kernel with every stationary kernel in it replaced by so many waves."""
    leaves, structure = jax.tree.flatten(
        kernel, is_leaf=lambda node: isinstance(node, AbstractStationary | SpectralMixture | RandomFeatures)
    )
    keys = jax.random.split(key, len(leaves))
    leaves = [
        _Waves(leaf, k, number) if isinstance(leaf, AbstractStationary | SpectralMixture) else leaf
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def _spread(kernel: AbstractStationary, key: Key[Array, ""], number: int, dtype: Any) -> Float[Array, " w"]:
    """By what normal frequencies are multiplied: every such kernel is a mixture of RBFs of many lengthscales."""
    if isinstance(kernel, RBF):
        return jnp.ones(number, dtype)
    if isinstance(kernel, RationalQuadratic):
        return jnp.sqrt(jax.random.gamma(key, kernel.alpha.astype(dtype), (number,), dtype) / kernel.alpha)
    if isinstance(kernel, Matern):
        return jnp.sqrt(kernel.nu / jax.random.gamma(key, kernel.nu.astype(dtype), (number,), dtype))
    degrees = next(own for family, own in _DEGREES.items() if isinstance(kernel, family))
    # Student's t: a normal over the root of a mean of squared normals.
    return 1.0 / jnp.sqrt(jnp.mean(jax.random.normal(key, (degrees, number), dtype) ** 2, axis=0))


_DEGREES = {Matern12: 1, Matern32: 3, Matern52: 5}
"""Degrees of freedom: frequencies of a Matérn kernel of order ν have a t distribution of 2ν of them."""
