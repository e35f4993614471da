"""Any sum of products of given kernels as one kernel, whose structure is a matter of numbers.

All structures then share one compiled program: which kernel a factor is, and where a product begins, are arrays.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.kernels import AbstractKernel
from kernax.parameters import Parameter, positive
from kernax.rows import num_rows


class Expression(AbstractKernel):
    """`Σ variance · k_i · k_j · …`: factors one after the other, each of them one of the given kernels.

    Every array of the given kernels has a leading axis with an entry for each factor, but only those of the kernel that the
    factor is are used.

    **Arguments:**

    - `kernels`: the kernels to choose from, stacked.
    - `which`: which of them each factor is; their number for a factor that is not there.
    - `begins`: whether a factor begins a new product.
    - `variance`: what the product that begins at a factor is multiplied by.
    """

    kernels: tuple[AbstractKernel, ...]
    which: Int[Array, " factors"]
    begins: Bool[Array, " factors"]
    variance: Float[Parameter, " factors"] = positive(unit="y²")

    def pair(self, a, b):
        return self._evaluated((), lambda kernel: kernel.pair(a, b), self.variance.dtype)

    def gram(self, x, z):
        shape = (num_rows(x), num_rows(x if z is None else z))
        return self._evaluated(shape, lambda kernel: kernel.gram(x, z), self.variance.dtype)

    def diag(self, x):
        return self._evaluated((num_rows(x),), lambda kernel: kernel.diag(x), self.variance.dtype)

    def _evaluated(self, shape: tuple[int, ...], of: Callable[[AbstractKernel], Array], dtype: Any) -> Array:
        """The sum of products of what `of` says of each factor."""
        arrays, rest = eqx.partition(self.kernels, eqx.is_array)

        def one_of(number: int) -> Callable[[Any], Array]:
            return lambda arrays: of(eqx.combine(arrays, rest)[number]).astype(dtype)

        choices = [*map(one_of, range(len(self.kernels))), lambda _: jnp.zeros(shape, dtype)]

        # Nothing but the products so far is kept for the derivative: the choices would each keep matrices of their own.
        @jax.checkpoint
        def step(carry: tuple[Array, Array], factor: Any) -> tuple[tuple[Array, Array], None]:
            arrays, which, begins, variance = factor
            total, product = carry
            total = total + jnp.where(begins, product, 0.0)
            product = jnp.where(begins, variance, product) * jax.lax.switch(which, choices, arrays)
            return (total, product), None

        start = (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        (total, product), _ = jax.lax.scan(step, start, (arrays, self.which, self.begins, self.variance))
        return total + product
