"""Tests whether two columns of a table depend on each other."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import whole_number
from kernax._programs import compiled
from kernax.kernels import AbstractKernel
from kernax.rows import Rows, num_rows, take
from kernax.statistics._two_samples import PermutationTest, checked_rows, gram_matrix, tested


def hsic(kernel: AbstractKernel, x: Any, other_kernel: AbstractKernel, y: Any) -> Float[Array, ""]:
    """The Hilbert-Schmidt independence criterion, `tr(K H L H)/n²` with `H = I - 11ᵀ/n`.

    K is the matrix of `kernel` over x, L that of `other_kernel` over y. It is not negative, and small if x and y are
    independent (Gretton et al., 2005). Differentiable. O(n²).

    **Arguments:**

    - `kernel`, `other_kernel`: the kernels of x and of y.
    - `x`, `y`: inputs with a common number of rows, `(n, d)` and `(n, q)`.

    **Returns:**

    A scalar.
    """
    return _hsic(kernel, other_kernel, *_pairs(kernel, x, other_kernel, y))


def hsic_test(
    kernel: AbstractKernel,
    x: Any,
    other_kernel: AbstractKernel,
    y: Any,
    *,
    key: Key[Array, ""],
    permutations: int = 999,
) -> PermutationTest:
    """Test whether x and y are independent, by the statistic `hsic`: then rows of y can be permuted. O(n²) a permutation.

    **Arguments:**

    - `kernel`, `other_kernel`: the kernels of x and of y. Their hyperparameters must not come from these rows.
    - `x`, `y`: inputs with a common number of rows, `(n, d)` and `(n, q)`.
    - `key`: a JAX random key for the permutations.
    - `permutations`: how many permutations are drawn.

    **Returns:**

    A `PermutationTest(statistic, p_value, permuted)`.
    """
    permutations = whole_number(permutations, "permutations")
    return _hsic_test(kernel, other_kernel, *_pairs(kernel, x, other_kernel, y), key, permutations)


def _pairs(kernel: Any, x: Any, other_kernel: Any, y: Any) -> tuple[Rows, Rows]:
    x, y = take(checked_rows(kernel, x, "x")), take(checked_rows(other_kernel, y, "y"))
    if num_rows(x) != num_rows(y):
        raise ValueError(f"x has {num_rows(x)} rows and y has {num_rows(y)}: give as many rows in x as in y.")
    return x, y


def centred(gram: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`H K H`."""
    means = jnp.mean(gram, axis=0)
    return gram - means[:, None] - means[None, :] + jnp.mean(means)


@compiled
def _hsic(kernel: AbstractKernel, other_kernel: AbstractKernel, x: Rows, y: Rows) -> Float[Array, ""]:
    return jnp.mean(centred(gram_matrix(kernel, x)) * gram_matrix(other_kernel, y))


@compiled
def _hsic_test(
    kernel: AbstractKernel,
    other_kernel: AbstractKernel,
    x: Rows,
    y: Rows,
    key: Key[Array, ""],
    permutations: int,
) -> PermutationTest:
    ours, theirs = centred(gram_matrix(kernel, x)), gram_matrix(other_kernel, y)

    def of(order: Array) -> Array:
        return jnp.mean(ours * theirs[order][:, order])

    first = jnp.arange(ours.shape[0])
    orders = jax.vmap(lambda one: jax.random.permutation(one, first))(jax.random.split(key, permutations))
    return tested(jax.lax.map(of, jnp.concatenate([first[None], orders])))
