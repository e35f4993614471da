"""Conversion of what users pass to arrays, with errors for what cannot be converted."""

import operator
import sys
import warnings
from types import FrameType
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def is_concrete(value: Any) -> bool:
    """Whether the numbers of `value` are known: false while it is being traced."""
    return not isinstance(value, jax.core.Tracer)


def plain(value: Any) -> Any:
    """A column or frame of another library (pandas, polars, Arrow) as a NumPy array; anything else as it is."""
    if isinstance(value, np.ndarray | np.generic | jax.Array) or not hasattr(value, "__array__"):
        return value
    return np.asarray(value)


def as_floats(value: Any, name: str) -> Float[Array, "..."]:
    """`value` as a JAX array of floats: integers become floats, what is no real number is refused."""
    return jnp.asarray(*real_numbers(value, name))


def as_host_floats(value: Any, name: str) -> Float[np.ndarray, "..."]:
    """What `as_floats` takes, refuses and gives, as a NumPy array of its own."""
    if not is_concrete(value):
        raise TypeError(
            f"{name} is being traced, but many datasets can be fitted only outside jit and vmap: use kx.fit inside them."
        )
    return np.array(*real_numbers(value, name))


def real_numbers(value: Any, name: str) -> tuple[Any, Any]:
    """`value` as an array of real numbers, and the floating type that it is to have."""
    if hasattr(value, "toarray"):
        raise TypeError(f"{name} is sparse, and kernax works on dense arrays: write {name}.toarray().")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError(
            f"{name} is a masked NumPy array: fill in the masked entries, and mark the rows that count with mask=."
        )
    value = plain(value)
    if not isinstance(value, jax.Array):
        # Python's own numbers mean no particular precision; an array of float64 does.
        is_double = getattr(value, "dtype", None) == np.float64
        value = np.asarray(value)
        if value.dtype.kind not in "biuf":
            raise TypeError(
                f"{name} has dtype {value.dtype}, and kernax takes real numbers only: "
                f"convert {name} to float first (split complex numbers into two columns), or use "
                "kx.tables.fit_table for a table with text or dates."
            )
        if is_double:
            _tell_if_cut(name)
    elif jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(f"{name} is complex, and kernax takes real numbers only: split it into two columns.")
    if value.dtype.name in ("float32", "float64"):
        return value, jax.dtypes.canonicalize_dtype(value.dtype)
    if jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"{name} has dtype {value.dtype}, in which kernel matrices cannot be factorised: use float32 or float64."
        )
    return value, jax.dtypes.canonicalize_dtype(jnp.result_type(float))


def whole_number(value: Any, name: str) -> int:
    """`value` as an int of at least 1. NumPy's integers are accepted, fractions and booleans are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
    return operator.index(value)


def check_finite(value: Array, name: str, counts: Array | None = None, remedy: str = "drop them") -> None:
    """Raise if a row of `value` that counts has a NaN or an infinity; silent on traced values."""
    if not is_concrete(value) or (counts is not None and not is_concrete(counts)) or value.size == 0:
        return
    check_no_bad_rows(has_bad_number(np.asarray(value)), name, counts, remedy)


def has_bad_number(rows: np.ndarray) -> np.ndarray:
    """Which rows have a NaN or an infinity."""
    return np.logical_not(np.isfinite(rows.reshape(rows.shape[0], -1)).all(axis=1))


def check_no_bad_rows(bad: np.ndarray, name: str, counts: Array | None, remedy: str) -> None:
    """Raise if a row that counts is bad."""
    if counts is not None:
        bad = bad & np.asarray(counts)
    if bad.any():
        first = ", ".join(str(i) for i in np.flatnonzero(bad)[:5])
        raise ValueError(
            f"{name} has NaN or infinite values in {bad.sum()} of {len(bad)} rows (first rows: {first}): {remedy}."
        )


def matmul(a: Array, b: Array) -> Array:
    """The product at full precision: accelerators otherwise round float32 factors to fewer bits."""
    return jnp.matmul(a, b, precision="highest")


_told: set[str] = set()


def _tell_if_cut(name: str) -> None:
    if "float64" in _told or jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return
    _told.add("float64")
    warnings.warn(
        f"{name} is float64, but JAX is set to float32 and rounds it (this warning appears once). For float64, write "
        'jax.config.update("jax_enable_x64", True) before anything else.',
        stacklevel=levels_to_the_caller(),
    )


def levels_to_the_caller() -> int:
    """The `stacklevel` with which a warning of the calling function points at the line that uses kernax."""
    frame, level = sys._getframe(1), 1
    ours = ("kernax", "equinox", "jaxtyping", "beartype")
    while _package(frame) != "kernax" and frame.f_back is not None:  # this function, wrapped by a type checker in tests
        frame = frame.f_back
    while frame.f_back is not None and _package(frame) in ours:
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").split(".")[0]
