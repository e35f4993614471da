"""Raw factorisations and solves: the only place where LAPACK is called, safe under `vmap` on CPU.

On CPU, jaxlib runs a *batched* LAPACK call by blocking inside its own small thread pool; with as many of them in flight as
the pool has threads, the process hangs forever. So every function here maps a batch over unbatched calls on CPU and stays
batched elsewhere. None of them is differentiated: the derivatives are in `_derivatives.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from kernax.solvers import _lapack


def one_at_a_time_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """A version of a function that `vmap` runs one element after another on CPU, and all at once on other devices.

    **Arguments:**

    - `function`: a function of arrays.

    **Returns:**

    A function with the same arguments and values.
    """
    safe = custom_vmap(function)

    @safe.def_vmap
    def batched(axis_size: int, in_batched: Sequence[bool], *args: Any):
        del axis_size
        args = tuple(jnp.asarray(arg) for arg in args)  # a constant comes as one of NumPy
        moving = [arg for arg, is_batched in zip(args, in_batched, strict=True) if is_batched]

        def call(function: Callable[..., Any], slices: Sequence[Array]) -> Any:
            pieces = iter(slices)
            full = [next(pieces) if is_batched else arg for arg, is_batched in zip(args, in_batched, strict=True)]
            return function(*full)

        def mapped(*moving: Array) -> Any:
            # `safe`, not `function`: a further vmap around this map must be caught again.
            return lax.map(lambda slices: call(safe, slices), moving)

        def together(*moving: Array) -> Any:
            return jax.vmap(lambda *slices: call(function, slices))(*moving)

        out = lax.platform_dependent(*moving, cpu=mapped, default=together)
        return out, jax.tree.map(lambda _: True, out)

    return safe


@one_at_a_time_on_cpu
def cholesky(matrix: Float[Array, "n n"], added: Float[Array, " n"]) -> Float[Array, "n n"]:
    """`R` with `RᵀR = matrix + diag(added)` in the upper triangle. The entries below the diagonal are undefined.

    The diagonal is NaN if that matrix is not positive definite. If an entry of `added` is infinite, the result is the
    identity: callers pass that when they have given up.
    """

    def by_xla(matrix: Float[Array, "n n"], added: Float[Array, " n"]) -> Float[Array, "n n"]:
        given_up = jnp.any(jnp.isinf(added))
        identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        shifted = jnp.where(given_up, identity, matrix + jnp.where(given_up, 0.0, added) * identity)
        return lax.linalg.cholesky(shifted.T, symmetrize_input=False).T

    if _lapack.is_available(matrix):
        return lax.platform_dependent(matrix, added, cpu=_lapack.potrf, default=by_xla)
    return by_xla(matrix, added)


@one_at_a_time_on_cpu
def solve_upper_transposed(upper: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`R⁻ᵀ b`."""
    return lax.linalg.triangular_solve(upper.T, b, left_side=True, lower=True)


@one_at_a_time_on_cpu
def solve_upper(upper: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`R⁻¹ b`."""
    return lax.linalg.triangular_solve(upper.T, b, left_side=True, lower=True, transpose_a=True)


@one_at_a_time_on_cpu
def solve_definite(matrix: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`A⁻¹ b` in one go: for many small systems, whose loop over a batch is then compiled once and not three times."""
    upper = cholesky(matrix, jnp.zeros(matrix.shape[0], matrix.dtype))
    return solve_upper(upper, solve_upper_transposed(upper, b))


@one_at_a_time_on_cpu
def solve_conditional(
    upper: Float[Array, "q q"], columns: Float[Array, "q p"], last: Float[Array, "q b"]
) -> tuple[Float[Array, "q p"], Float[Array, "q r"]]:
    """`w = R⁻ᵀ columns`, and `R⁻¹ [last, w']`, where w' is w with 0 in the last b rows.

    `last` has the last b columns of the identity. It is what the conditional distribution of the last b rows, given the
    others, is made of. In one go, like `solve_definite`.
    """
    q, b = last.shape
    half = solve_upper_transposed(upper, columns)
    earlier = jnp.where(jnp.arange(q)[:, None] < q - b, half, 0.0)
    return half, solve_upper(upper, jnp.concatenate([last, earlier], axis=1))


@one_at_a_time_on_cpu
def eigh(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Eigenvectors (columns) and ascending eigenvalues of a symmetric matrix."""
    return lax.linalg.eigh(matrix, symmetrize_input=False)


@one_at_a_time_on_cpu
def inverse_triangle(upper: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The upper triangle of `(RᵀR)⁻¹`. The entries below the diagonal are undefined."""

    def by_solves(upper: Float[Array, "n n"]) -> Float[Array, "n n"]:
        # From the right, where BLAS takes half as long as from the left. (A product of the first solution with itself is a
        # little faster than the second solve, and less precise: fits of data with a large offset stall.)
        identity = jnp.eye(upper.shape[0], dtype=upper.dtype)
        half = lax.linalg.triangular_solve(upper.T, identity, left_side=False, lower=True, transpose_a=True)
        return lax.linalg.triangular_solve(upper.T, half, left_side=False, lower=True).T

    if _lapack.is_available(upper):
        return lax.platform_dependent(upper, cpu=_lapack.potri, default=by_solves)
    return by_solves(upper)


@one_at_a_time_on_cpu
def qr(matrix: Float[Array, "n q"]) -> tuple[Float[Array, "n q"], Float[Array, "q q"], Int[Array, " q"]]:
    """`Q`, `R` and the order with `matrix[:, order] = Q R`, for n ≥ q; pivoted, so that the diagonal of R descends.

    XLA offers it on CPU and GPU.
    """
    q, r, order = lax.linalg.qr(matrix, pivoting=True, full_matrices=False)
    return q, r, order


@one_at_a_time_on_cpu
def lu(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Int[Array, " n"]]:
    """`L` (below its unit diagonal) and `U` in one matrix, and the order of rows with `matrix[order] = L U`."""
    packed, _, order = lax.linalg.lu(matrix)
    return packed, order


@one_at_a_time_on_cpu
def solve_lu(packed: Float[Array, "n n"], order: Int[Array, " n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`matrix⁻¹ b` from what `lu` gives."""
    half = lax.linalg.triangular_solve(packed, b[order], left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(packed, half, left_side=True, lower=False)
