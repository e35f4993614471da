"""LAPACK's potrf and potri as named FFI targets of XLA, for large matrices on CPU.

XLA has no potri, and an inverse by two triangular solves with the identity needs three times as many operations. XLA has
potrf, but calls it on column-major matrices and adds transpositions and selects of the whole matrix. Here both routines work
in place on row-major upper triangles. LAPACK reads column by column, so it sees lower triangles.

The routines are those that jaxlib itself uses (SciPy's), called by ctypes, which releases Python's lock while LAPACK runs.
`is_available` is False if XLA's interface (`_ffi.py`) or the integers of SciPy's LAPACK differ from what is expected here;
XLA's own routines are used then.
"""

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_void_p
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from kernax import _ffi

SMALLEST = 192
"""Smaller matrices are left to XLA's own routines: the call through Python would cost more than it saves."""

_HANDLERS = 1
"""Version of the handlers, part of the targets' names. Raise it when the inputs or outputs of a handler change: a program
that was exported or cached before then stops with a missing target, and never meets a handler that it does not fit."""

_LETTERS = {"float32": "s", "float64": "d"}
_KINDS = {"s": ctypes.c_float, "d": ctypes.c_double}
_ROUTINES = ("spotrf", "dpotrf", "spotri", "dpotri")


def is_available(matrix: Array) -> bool:
    """Whether potrf and potri can be called on a matrix of this type, and are faster than XLA at its size."""
    name = matrix.dtype.name
    if matrix.shape[0] < SMALLEST or name not in _LETTERS or _ffi.version() is None:
        return False
    return all(_routine(_LETTERS[name] + verb) is not None for verb in ("potrf", "potri"))


def potrf(matrix: Float[Array, "n n"], added: Float[Array, " n"]) -> Float[Array, "n n"]:
    """`R` with `RᵀR = matrix + diag(added)` in the upper triangle. The entries below the diagonal are undefined.

    The diagonal is NaN if the factorisation fails. The result is the identity if an entry of `added` is infinite.
    """
    return _call("potrf", matrix, added)


def potri(upper: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The upper triangle of `(RᵀR)⁻¹`. The entries below the diagonal are undefined. The diagonal is NaN on failure."""
    return _call("potri", upper)


def _call(verb: str, matrix: Float[Array, "n n"], *more: Array) -> Float[Array, "n n"]:
    name = _target(_LETTERS[matrix.dtype.name] + verb)
    shape = jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)
    # `_raw` never calls this with a batch on CPU. On other devices the branch with this call is traced, but never run.
    return jax.ffi.ffi_call(name, shape, input_output_aliases={0: 0}, vmap_method="sequential")(matrix, *more)


def _target(routine: str) -> str:
    return f"kernax_{routine}_{_HANDLERS}"


def _run(name: str, out: Any, given: Any, added: Any = None) -> None:
    """Run a routine of LAPACK on XLA's buffers: the output, the matrix, and for potrf what is added to the diagonal."""
    kind, n = _KINDS[name[0]], given.dims[0]
    num_bytes = n * n * ctypes.sizeof(kind)
    if out.data != given.data:  # normally both are the same buffer
        ctypes.memmove(out.data, given.data, num_bytes)
    diagonal = _view(out, kind, n * n)[:: n + 1]
    if added is not None:
        values = _view(added, kind, n)
        if np.isinf(values).any():
            ctypes.memset(out.data, 0, num_bytes)
            diagonal[:] = 1.0
            return
        if values.any():
            diagonal += values
    routine = _routine(name)
    if routine is None:
        raise RuntimeError(
            "SciPy's LAPACK cannot be called here (it may use 64-bit integers): compile the program again on this machine."
        )
    order, info = c_int(n), c_int(0)
    routine(b"L", order, out.data, order, info)
    if info.value != 0:
        diagonal[:] = np.nan


def _view(buffer: Any, kind: Any, count: int) -> np.ndarray:
    return np.frombuffer((kind * count).from_address(buffer.data), kind)


@functools.cache
def _routine(name: str) -> Callable[..., None] | None:
    """A LAPACK routine with arguments `(uplo, n, a, lda, info)`, or None if this SciPy does not offer it as expected.

    SciPy is imported here, at the first use: kernax is imported faster without.
    """
    try:
        from scipy.linalg import cython_lapack  # pyright: ignore[reportAttributeAccessIssue]

        capsule = cython_lapack.__pyx_capi__[name]
    except (ImportError, AttributeError, KeyError):
        return None
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    signature = api.PyCapsule_GetName(capsule)
    # `s` and `d` are SciPy's own names for float and double. With 64-bit integers this would be `int64_t *`.
    number = f"__pyx_t_5scipy_6linalg_13cython_lapack_{name[0]}"
    if signature != f"void (char *, int *, {number} *, int *, int *)".encode():
        return None
    integer = POINTER(c_int)
    prototype = ctypes.CFUNCTYPE(None, c_char_p, integer, c_void_p, integer, integer)
    return prototype(api.PyCapsule_GetPointer(capsule, signature))


# At import, so that a program that another process has exported or cached finds its targets.
for _name in _ROUTINES:
    _ffi.register(_target(_name), functools.partial(_run, _name))
