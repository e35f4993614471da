"""Raw factorisations and solves: the only place where LAPACK is called, safe under `vmap` on CPU.

On CPU, jaxlib runs a *batched* LAPACK call by blocking inside its own small thread pool; with as many of them in flight
as the pool has threads, the process hangs for good. So every function here maps a batch over unbatched calls on CPU and
stays batched elsewhere. None of them is to be differentiated: `_derivatives.py` knows the derivatives.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, Float


def _one_at_a_time_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    safe = custom_vmap(function)

    @safe.def_vmap
    def batched(axis_size: int, in_batched: Sequence[bool], *args: Array):
        del axis_size
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


@_one_at_a_time_on_cpu
def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Lower Cholesky factor, read off the lower triangle; NaN where the matrix is not positive definite."""
    return lax.linalg.cholesky(matrix, symmetrize_input=False)


@_one_at_a_time_on_cpu
def solve_lower(lower: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`L⁻¹ b`."""
    return lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)


@_one_at_a_time_on_cpu
def solve_lower_transposed(lower: Float[Array, "n n"], b: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`L⁻ᵀ b`."""
    return lax.linalg.triangular_solve(lower, b, left_side=True, lower=True, transpose_a=True)


@_one_at_a_time_on_cpu
def eigh(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Eigenvectors (columns) and ascending eigenvalues of a symmetric matrix."""
    return lax.linalg.eigh(matrix, symmetrize_input=False)


@_one_at_a_time_on_cpu
def inverse_from_lower(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`(L Lᵀ)⁻¹`, whole and symmetric.

    XLA offers no potri, and two triangular solves against the identity do three times its arithmetic (n = 4000: 1.5 s
    against 0.4 s). On CPU LAPACK's own routine is called on XLA's buffer.
    """
    if lower.dtype.name in _POTRI_NAMES and _potri(lower.dtype.name) is not None:
        return lax.platform_dependent(lower, cpu=_inverse_by_lapack, default=_inverse_by_solves)
    return _inverse_by_solves(lower)


def _inverse_by_solves(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    half = lax.linalg.triangular_solve(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), left_side=True, lower=True)
    return lax.linalg.triangular_solve(lower, half, left_side=True, lower=True, transpose_a=True)


def _inverse_by_lapack(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    shape = jax.ShapeDtypeStruct(lower.shape, lower.dtype)
    triangle = buffer_callback(_potri_in_place, shape, input_output_aliases={0: 0})(lower)
    # `tril + tril.T`: jaxlib 0.10 crashes on CPU for some fused `where(i >= j, K, K.T)`.
    return jnp.tril(triangle) + jnp.tril(triangle, -1).T


_POTRI_NAMES = {"float32": "spotri", "float64": "dpotri"}


@functools.cache
def _potri(dtype: str) -> Any:
    """LAPACK's potri as a C function that releases Python's lock, from the LAPACK that jaxlib itself uses (SciPy's)."""
    try:
        from scipy.linalg import cython_lapack

        capsule = cython_lapack.__pyx_capi__[_POTRI_NAMES[dtype]]
    except (ImportError, AttributeError, KeyError):
        return None
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if b"int *" not in api.PyCapsule_GetName(capsule):
        return None  # a LAPACK of 64-bit integers: the other way is taken
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    integer = ctypes.POINTER(ctypes.c_int)
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, integer, ctypes.c_void_p, integer, integer)(address)


def _potri_in_place(context: Any, out: Any, lower: Any) -> None:
    del context
    source, target = np.asarray(lower), np.asarray(out)
    if source.ctypes.data != target.ctypes.data:
        np.copyto(target, source)
    n, info = ctypes.c_int(target.shape[0]), ctypes.c_int(0)
    # A row-major lower triangle is what LAPACK, reading column by column, calls the upper one.
    _potri(target.dtype.name)(b"U", n, target.ctypes.data, n, info)
    if info.value != 0:
        target[...] = np.nan
