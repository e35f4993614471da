"""LAPACK's potrf and potri called on XLA's own buffers, for large matrices on CPU.

XLA offers no potri, and the inverse by two triangular solves against the identity does three times its arithmetic. It does
offer potrf, but wants it column by column and surrounds it with transpositions and selects of the whole matrix. Here both
work in place on row-major upper triangles, which LAPACK, reading column by column, sees as lower ones; a symmetric matrix is
its own transpose. Factor and inverse at n = 1000, two cores: 23 ms, by XLA's own routines 41 ms.

The routines are those of the LAPACK that jaxlib itself uses (SciPy's), called through ctypes, which releases Python's lock.
Below `SMALLEST` rows a call back into Python costs more than it saves (factor and inverse at n = 128: 0.43 ms against XLA's
0.33 ms; at n = 192: 0.83 ms against 1.10 ms).
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, Float

SMALLEST = 192

_PREFIX = {"float32": "s", "float64": "d"}


def is_available(matrix: Array) -> bool:
    """Whether a matrix of this size and type is worth, and open to, a direct call."""
    name = matrix.dtype.name
    return matrix.shape[0] >= SMALLEST and name in _PREFIX and _routine(f"{_PREFIX[name]}potrf") is not None


def potrf(matrix: Float[Array, "n n"], jitter: Float[Array, " n"]) -> Float[Array, "n n"]:
    """`R` with `RᵀR = matrix + jitter·I` in the upper triangle; below it may stand anything. NaN diagonal on failure; the
    identity for an infinite jitter."""
    return _in_place(_run_potrf, matrix, jitter)


def potri(upper: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`(RᵀR)⁻¹` in the upper triangle; below it may stand anything. NaN diagonal on failure."""
    return _in_place(_run_potri, upper)


def _in_place(run: Callable[..., None], matrix: Float[Array, "n n"], *more: Array) -> Float[Array, "n n"]:
    shape = jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)
    # `_raw` never lets a batch come this far on CPU; elsewhere the branch that holds this call is traced, but not run.
    return buffer_callback(run, shape, vmap_method="sequential", input_output_aliases={0: 0})(matrix, *more)


def _run_potrf(context: Any, out: Any, given: Any, jitter: Any) -> None:
    del context
    target, added = _copied(out, given), np.asarray(jitter)
    if np.isinf(added).any():
        target[...] = 0.0
        np.fill_diagonal(target, 1.0)
        return
    if added.any():
        np.einsum("ii->i", target)[...] += added
    _call("potrf", target)


def _run_potri(context: Any, out: Any, given: Any) -> None:
    del context
    _call("potri", _copied(out, given))


def _copied(out: Any, given: Any) -> np.ndarray:
    """XLA's output buffer holding the input; often it is the same one already."""
    source, target = np.asarray(given), np.asarray(out)
    if source.ctypes.data != target.ctypes.data:
        np.copyto(target, source)
    return target


def _call(name: str, target: np.ndarray) -> None:
    n, info = ctypes.c_int(target.shape[0]), ctypes.c_int(0)
    routine = _routine(_PREFIX[target.dtype.name] + name)
    assert routine is not None
    routine(b"L", n, target.ctypes.data, n, info)
    if info.value != 0:
        np.fill_diagonal(target, np.nan)


@functools.cache
def _routine(name: str) -> Callable[..., None] | None:
    """A LAPACK routine of the form `(uplo, n, a, lda, info)`, or None if this SciPy does not offer it as expected."""
    try:
        from scipy.linalg import cython_lapack  # pyright: ignore[reportAttributeAccessIssue]

        capsule = cython_lapack.__pyx_capi__[name]
    except (ImportError, AttributeError, KeyError):
        return None
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = api.PyCapsule_GetName(capsule)
    if signature.count(b"int *") != 3:
        return None  # a LAPACK of 64-bit integers
    integer = ctypes.POINTER(ctypes.c_int)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_char_p, integer, ctypes.c_void_p, integer, integer)
    return prototype(api.PyCapsule_GetPointer(capsule, signature))
