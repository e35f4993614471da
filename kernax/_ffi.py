"""Python functions as named FFI targets of XLA on CPU.

XLA finds a target by its name when it loads a program. Programs that use these targets can therefore be stored in JAX's
persistent compilation cache and exported by `jax.export`, which is impossible with a callback into Python.

The handlers are made with ctypes, which needs no compiler. They follow XLA's C interface (`xla/ffi/api/c_api.h`). `version`
is `None` if its major version differs from what is expected here; then there are no targets, and other ways must serve.
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

MAJOR = 0
"""Major version of XLA's C interface that the structures below follow."""

_TYPES = {1: np.bool_, 4: np.int32, 5: np.int64, 11: np.float32, 12: np.float64}
"""XLA's numbers for the types that buffers may have here."""


@functools.cache
def version() -> tuple[int, int] | None:
    """Major and minor version of XLA's C interface, from the header that comes with jaxlib.

    `None` if the header is missing or the major version is not the expected one. XLA itself would refuse the targets then,
    but only when it starts the CPU, and that would fail.
    """
    try:
        header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    except (OSError, RuntimeError):
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    if len(found) != 2 or int(found["MAJOR"]) != MAJOR:
        return None
    return int(found["MAJOR"]), int(found["MINOR"])


def register(name: str, run: Callable[..., None]) -> None:
    """Give XLA a function under a name. JAX stores it until the CPU is used, so this starts no device.

    **Arguments:**

    - `name`: the name of the target.
    - `run`: is called with the output and the inputs as XLA's buffers (see `view`), and writes into the output. What it
      raises becomes an error of the running program.
    """
    kept = _handlers()
    if version() is not None and name not in kept:
        kept[name] = _handler(name, run)
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(kept[name]), platform="cpu")


def custom_calls() -> tuple[str, ...]:
    """Names of the custom calls that kernax compiles into programs on CPU, for `jax.export`.

    `jax.export` refuses custom calls that it does not know, unless they are named. The process that runs the exported
    program must import kernax, which registers them.

    !!! example

        ```python
        from jax import export

        checks = [export.DisabledSafetyCheck.custom_call(name) for name in kx.solvers.custom_calls()]
        exported = export.export(jax.jit(function), disabled_checks=checks)(*arguments)
        ```

    **Returns:**

    A tuple of strings. They change only with a new version of kernax that cannot run programs exported before.
    """
    return tuple(sorted(_handlers()))


def _handlers() -> dict[str, Any]:
    # XLA keeps a handler's address until the process ends, and accepts only one address for a name. The handlers are kept
    # where a second import of this module (a reload) finds them.
    return sys.__dict__.setdefault("_kernax_handlers", {})


def view(buffer: Any) -> np.ndarray:
    """One of XLA's buffers as a NumPy array of the same memory."""
    shape = tuple(buffer.dims[axis] for axis in range(buffer.rank))
    kind = np.dtype(_TYPES[buffer.dtype])
    num_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if num_bytes == 0:
        return np.zeros(shape, kind)
    return np.frombuffer(memoryview((ctypes.c_char * num_bytes).from_address(buffer.data)), kind).reshape(shape)


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


def _handler(name: str, run: Callable[..., None]) -> Any:
    """A C function that XLA can call: it runs a function of Python."""

    def handle(frame: Any) -> int | None:
        frame = frame.contents
        # ctypes only prints an exception that is not caught, and XLA would then use a wrong result.
        try:
            if frame.extension and frame.extension.contents.kind == _METADATA:
                known = frame.extension.contents.metadata.contents.version
                known.major, known.minor = version() or (MAJOR, 0)
            else:
                inputs = [frame.inputs.items[index].contents for index in range(frame.inputs.count)]
                run(frame.outputs.items[0].contents, *inputs)
        except BaseException as error:
            message = f"{name}: {type(error).__name__}: {error}".encode()
            return frame.api.contents.create_error(_Error(ctypes.sizeof(_Error), None, message, _INTERNAL))
        return None

    return ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))(handle)
