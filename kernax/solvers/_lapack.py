"""LAPACK's potrf and potri as named FFI targets of XLA, for large matrices on CPU.

XLA has no potri, and an inverse by two triangular solves with the identity needs three times as many operations. XLA has
potrf, but calls it on column-major matrices and adds transpositions and selects of the whole matrix. Here both routines work
in place on row-major upper triangles. LAPACK reads column by column, so it sees lower triangles.

XLA finds a target by its name when it loads a program. Programs that use these targets can therefore be stored in JAX's
persistent compilation cache and exported by `jax.export`, which is impossible with a callback into Python.

The routines are those that jaxlib itself uses (SciPy's). The handlers are made with ctypes, which needs no compiler and
releases Python's lock while LAPACK runs. They follow XLA's C interface (`xla/ffi/api/c_api.h`). `is_available` is False if
its major version or the integers of SciPy's LAPACK differ from what is expected here; XLA's own routines are used then.
"""

import ctypes
import functools
import pathlib
import re
import sys
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

SMALLEST = 192
"""Smaller matrices are left to XLA's own routines: the call through Python would cost more than it saves."""

_HANDLERS = 1
"""Version of the handlers, part of the targets' names. Raise it when the inputs or outputs of a handler change: a program
that was exported or cached before then stops with a missing target, and never meets a handler that it does not fit."""

_FFI_MAJOR = 0
"""Major version of XLA's C interface that the structures below follow."""

_LETTERS = {"float32": "s", "float64": "d"}
_KINDS = {"s": ctypes.c_float, "d": ctypes.c_double}
_ROUTINES = ("spotrf", "dpotrf", "spotri", "dpotri")


def lapack_targets() -> tuple[str, ...]:
    """Names of the custom calls that kernax compiles into programs on CPU, for `jax.export`.

    `jax.export` refuses custom calls that it does not know, unless they are named. The process that runs the exported
    program must import kernax, which registers them.

    !!! example

        ```python
        from jax import export

        checks = [export.DisabledSafetyCheck.custom_call(name) for name in kx.solvers.lapack_targets()]
        exported = export.export(jax.jit(function), disabled_checks=checks)(*arguments)
        ```

    **Returns:**

    A tuple of strings. They change only with a new version of kernax that cannot run programs exported before.
    """
    return tuple(map(_target, _ROUTINES))


def is_available(matrix: Array) -> bool:
    """Whether potrf and potri can be called on a matrix of this type, and are faster than XLA at its size."""
    name = matrix.dtype.name
    if matrix.shape[0] < SMALLEST or name not in _LETTERS or _ffi_version() is None:
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


def _structure(name: str, **fields: Any) -> Any:
    """A C structure with these fields, in this order."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


# XLA's C interface, as far as the handlers use it.
_Version = _structure("Version", size=c_size_t, extension=c_void_p, major=c_int, minor=c_int)
_Metadata = _structure("Metadata", size=c_size_t, version=_Version)
_Extension = _structure("Extension", size=c_size_t, kind=c_int, next=c_void_p, metadata=POINTER(_Metadata))
_Buffer = _structure(
    "Buffer", size=c_size_t, extension=c_void_p, dtype=c_int, data=c_void_p, rank=c_int64, dims=POINTER(c_int64)
)
_Buffers = _structure(
    "Buffers", size=c_size_t, extension=c_void_p, count=c_int64, kinds=c_void_p, items=POINTER(POINTER(_Buffer))
)
_Error = _structure("Error", size=c_size_t, extension=c_void_p, message=c_char_p, code=c_int)
_CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(_Error))
_Api = _structure("Api", size=c_size_t, extension=c_void_p, version=_Version, internal=c_void_p, create_error=_CreateError)
_Frame = _structure(
    "Frame",
    size=c_size_t,
    extension=POINTER(_Extension),
    api=POINTER(_Api),
    context=c_void_p,
    stage=c_int,
    inputs=_Buffers,
    outputs=_Buffers,
)
_METADATA = 1  # the kind of extension with which XLA asks a handler for its version; the only kind that has `metadata`
_INTERNAL = 13  # the code of an internal error


def _handler(routine: str, ffi_version: tuple[int, int]) -> Any:
    """A C function that XLA can call: it runs one routine of LAPACK."""

    def handle(frame: Any) -> int | None:
        frame = frame.contents
        # ctypes only prints an exception that is not caught, and XLA would then use a wrong result.
        try:
            if frame.extension and frame.extension.contents.kind == _METADATA:
                version = frame.extension.contents.metadata.contents.version
                version.major, version.minor = ffi_version
            else:
                inputs = [frame.inputs.items[index].contents for index in range(frame.inputs.count)]
                _run(routine, frame.outputs.items[0].contents, *inputs)
        except BaseException as error:
            message = f"{_target(routine)}: {type(error).__name__}: {error}".encode()
            return frame.api.contents.create_error(_Error(ctypes.sizeof(_Error), None, message, _INTERNAL))
        return None

    return ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))(handle)


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
            "SciPy's LAPACK cannot be called here (does it use 64-bit integers?): compile the program again on this machine."
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


@functools.cache
def _ffi_version() -> tuple[int, int] | None:
    """Major and minor version of XLA's C interface, from the header that comes with jaxlib.

    None if the header is missing or the major version is not the expected one. XLA itself would refuse the targets then, but
    only when it starts the CPU, and that would fail.
    """
    try:
        header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    except (OSError, RuntimeError):
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    if len(found) != 2 or int(found["MAJOR"]) != _FFI_MAJOR:
        return None
    return int(found["MAJOR"]), int(found["MINOR"])


def _register(ffi_version: tuple[int, int]) -> None:
    """Give XLA the handlers. JAX stores them until the CPU is used, so this starts no device."""
    # XLA keeps a handler's address until the process ends, and accepts only one address for a name. The handlers are kept
    # where a second import of this module (a reload) finds them.
    kept = sys.__dict__.setdefault("_kernax_lapack_handlers", {})
    for routine in _ROUTINES:
        name = _target(routine)
        if name not in kept:
            kept[name] = _handler(routine, ffi_version)
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(kept[name]), platform="cpu")


# At import, so that a program that another process has exported or cached finds its targets.
if (_version := _ffi_version()) is not None:
    _register(_version)
