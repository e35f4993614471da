"""Tests whether two samples come from the same distribution."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import matmul, whole_number
from kernax._programs import compiled
from kernax.grams import gram_of
from kernax.kernels import AbstractKernel
from kernax.kernels._kernel import check_is_kernel, check_rows
from kernax.parameters import as_dtype
from kernax.rows import Rows, as_rows, check_rows_finite, check_same_columns, num_rows, row_dtype, take


class PermutationTest(NamedTuple):
    """The result of a test by random permutations."""

    statistic: Float[Array, ""]
    """The statistic of the data."""
    p_value: Float[Array, ""]
    """`(1 + number of permutations with a statistic as large or larger) / (1 + number of permutations)`."""
    permuted: Float[Array, " q"]
    """The statistic of each permutation."""


def mmd(kernel: AbstractKernel, x: Any, z: Any) -> Float[Array, ""]:
    """The squared maximum mean discrepancy of two samples, without bias.

    `Σ_{i≠j} k(x_i, x_j)/(n(n-1)) + Σ_{i≠j} k(z_i, z_j)/(m(m-1)) - 2 Σ k(x_i, z_j)/(nm)`: 0 on average if both come from one
    distribution, so that it may be negative (Gretton et al., 2012). Differentiable. O((n + m)²).

    **Arguments:**

    - `kernel`: a kernel.
    - `x`, `z`: the samples, `(n, d)` and `(m, d)`, each of two rows or more.

    **Returns:**

    A scalar.
    """
    both, n = _joined(kernel, x, z)
    return _mmd(kernel, both, n)


def mmd_test(kernel: AbstractKernel, x: Any, z: Any, *, key: Key[Array, ""], permutations: int = 999) -> PermutationTest:
    """Test whether two samples come from one distribution, by the statistic `mmd`.

    Under that hypothesis it does not matter which row belongs to which sample.

    **Arguments:**

    - `kernel`: a kernel. Its hyperparameters must not come from these samples.
    - `x`, `z`: the samples, `(n, d)` and `(m, d)`, each of two rows or more.
    - `key`: a JAX random key for the permutations.
    - `permutations`: how many permutations are drawn.

    **Returns:**

    A `PermutationTest(statistic, p_value, permuted)`.
    """
    permutations = whole_number(permutations, "permutations")
    both, n = _joined(kernel, x, z)
    return _mmd_test(kernel, both, n, key, permutations)


def _joined(kernel: Any, x: Any, z: Any) -> tuple[Rows, int]:
    x, z = take(checked_rows(kernel, x, "x")), take(checked_rows(kernel, z, "z"))
    check_same_columns(z, x, "z", "x")
    return jax.tree.map(lambda one, other: jnp.concatenate([one, other]), x, z), num_rows(x)


def checked_rows(kernel: Any, x: Any, name: str) -> Rows:
    """Rows of a sample: finite, two or more, and known to the kernel. Raises `TypeError` if that is no kernel."""
    check_is_kernel(kernel, "the kernel of a statistic")
    rows = as_rows(x, name)
    if num_rows(rows, name) < 2:
        raise ValueError(f"{name} has {num_rows(rows, name)} row: a sample needs two rows or more.")
    check_rows_finite(rows, name)
    check_rows(kernel, rows)
    return rows


def gram_matrix(kernel: AbstractKernel, x: Rows) -> Float[Array, "n n"]:
    """K of all rows, in their floating type."""
    return gram_of(as_dtype(kernel, row_dtype(x)), x, jnp.ones(num_rows(x), bool)).dense()


def _statistic(gram: Float[Array, "q q"], first: Float[Array, "q s"]) -> Float[Array, " s"]:
    """The statistic for each choice of the rows of the first sample: 1 in their places, 0 elsewhere."""
    others = 1.0 - first
    # A row and itself are no pair.
    products = matmul(gram - jnp.diag(jnp.diagonal(gram)), first)
    rest = jnp.sum(gram, axis=1, keepdims=True) - jnp.diagonal(gram)[:, None] - products
    n, m = jnp.sum(first, axis=0), jnp.sum(others, axis=0)
    within = jnp.sum(first * products, axis=0) / (n * (n - 1)) + jnp.sum(others * rest, axis=0) / (m * (m - 1))
    return within - 2.0 * jnp.sum(others * products, axis=0) / (n * m)


def _chosen(total: int, n: int, dtype: Any) -> Float[Array, " q"]:
    return (jnp.arange(total) < n).astype(dtype)


@compiled
def _mmd(kernel: AbstractKernel, both: Rows, n: int) -> Float[Array, ""]:
    gram = gram_matrix(kernel, both)
    return _statistic(gram, _chosen(gram.shape[0], n, gram.dtype)[:, None])[0]


@compiled
def _mmd_test(kernel: AbstractKernel, both: Rows, n: int, key: Key[Array, ""], permutations: int) -> PermutationTest:
    gram = gram_matrix(kernel, both)
    first = _chosen(gram.shape[0], n, gram.dtype)
    mixed = jax.vmap(lambda one: jax.random.permutation(one, first))(jax.random.split(key, permutations))
    return tested(_statistic(gram, jnp.concatenate([first[None], mixed]).T))


def tested(statistics: Float[Array, " q"]) -> PermutationTest:
    """The test, from the statistic of the data and then those of permutations."""
    own, permuted = statistics[0], statistics[1:]
    # Permutations that lead to the same sum in another order are ties.
    slack = 100 * jnp.finfo(own.dtype).eps * jnp.max(jnp.abs(statistics))
    as_large = jnp.sum(permuted >= own - slack)
    return PermutationTest(own, (1 + as_large) / (1 + permuted.shape[0]), permuted)
