"""Rows that stay in a file: each computation reads only the rows that it needs.

A memory-mapped array is entered in a table of this process under a random number, its token. Compiled programs get the token
as an argument, so that one program serves many files, and read rows by a named target of XLA (`_ffi.py`), or on devices
other than the CPU by a callback.
"""

import dataclasses
import os
import secrets
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from kernax import _ffi

_TARGET = "kernax_rows_1"
"""The name of XLA's target. The number is raised when its inputs or outputs change."""

_ENTRIES = 2**20
"""Numbers of a file that are read at once where all rows are needed one after another: 8 MB in float64."""

_files: dict[int, np.ndarray] = {}
"""The arrays by their tokens. They stay open until the process ends: a token may be in any array of a program."""

_tokens: dict[int, int] = {}
"""The token of each array that was entered, by its `id`."""


class Stored(eqx.Module):
    """Rows in a file. Each computation reads only the rows that it needs. `kx.Data` makes it from a memory-mapped array.

    It has the shape and the floating type of the array that `kx.rows.take` reads from it. Its numbers have no derivative.
    The file must not change while it is used. Another process cannot read from it: make the `Data` again in that process.

    **Arguments:**

    - `token`: the number of the file in a table of this process.
    - `mask`: which rows count; `None` if all do. In place of the others, the first row that counts is read.
    - `stand_in`: the number of that row; -1 if no row counts.
    - `shape`: the shape of the array.
    - `dtype`: the floating type in which it is read.
    """

    token: Int[Array, ""]
    mask: Bool[Array, " n"] | None
    stand_in: Int[Array, ""] | None
    shape: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @classmethod
    def of(cls, array: np.ndarray, dtype: Any) -> "Stored":
        """The rows of a memory-mapped array.

        **Arguments:**

        - `array`: the array.
        - `dtype`: the floating type in which to read it.

        **Returns:**

        The rows.
        """
        if array.shape[0] > 2**30:
            raise ValueError(f"x has {array.shape[0]} rows, but kernax supports at most {2**30}: take fewer rows.")
        if id(array) not in _tokens:
            token = secrets.randbelow(2**31)
            _files[token], _tokens[id(array)] = array, token
        return cls(jnp.asarray(_tokens[id(array)], jnp.int32), None, None, array.shape, np.dtype(dtype))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def rows_at_once(self) -> int:
        """How many rows are read at a time if all of them are needed."""
        return max(1, min(self.shape[0], _ENTRIES // max(1, int(np.prod(self.shape[1:])))))

    @property
    def source(self) -> str:
        """The name of the file, for messages."""
        name = getattr(_files.get(int(self.token)), "filename", None)
        return "a file" if name is None else os.fspath(name)

    def astype(self, dtype: Any) -> "Stored":
        """The same rows, read in another floating type.

        **Arguments:**

        - `dtype`: the floating type.

        **Returns:**

        The rows.
        """
        return dataclasses.replace(self, dtype=np.dtype(dtype))

    def counting(self, mask: Bool[Array, " n"]) -> "Stored":
        """The same rows with a mask. In place of rows that do not count, the first row that counts is read.

        **Arguments:**

        - `mask`: which rows count.

        **Returns:**

        The rows.
        """
        mask = mask if self.mask is None else mask & self.mask
        first = jnp.where(jnp.any(mask), jnp.argmax(mask), -1)
        return dataclasses.replace(self, mask=mask, stand_in=first.astype(jnp.int32))

    def read(self, rows: Any = None) -> Array:
        """Read some rows, or all of them.

        **Arguments:**

        - `rows`: their numbers, a slice or a mask; all rows if not given.

        **Returns:**

        An array.
        """
        n = self.shape[0]
        if rows is None or isinstance(rows, slice):
            rows = np.arange(n)[slice(None) if rows is None else rows]
        rows = jnp.asarray(rows)
        if rows.dtype == jnp.bool_:
            rows = jnp.flatnonzero(rows)
        # What an array does with numbers that are negative or too large.
        rows = jnp.clip(jnp.where(rows < 0, rows + n, rows), 0, n - 1).astype(jnp.int32)
        if self.mask is None or self.stand_in is None:
            return self._read(rows)
        values = self._read(jnp.where(self.mask[rows], rows, jnp.maximum(self.stand_in, 0)))
        return jnp.where(self.stand_in >= 0, values, 0.0)

    def _read(self, rows: Int[Array, "..."]) -> Array:
        shape = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)

        def by_target(token: Array, rows: Array) -> Array:
            return jax.ffi.ffi_call(_TARGET, shape, vmap_method="expand_dims")(token, rows)

        def by_callback(token: Array, rows: Array) -> Array:
            def taken(token: Any, rows: Any) -> np.ndarray:
                return _file(np.asarray(token))[np.asarray(rows)].astype(shape.dtype)

            return jax.pure_callback(taken, shape, token, rows, vmap_method="expand_dims")

        if _ffi.version() is None:
            return by_callback(self.token, rows)
        return jax.lax.platform_dependent(self.token, rows, cpu=by_target, default=by_callback)

    def blocks(self) -> Iterator[np.ndarray]:
        """Iterate over all rows of the file, block by block, in the type of the file. Not inside `jit`.

        **Returns:**

        An iterator over NumPy arrays.
        """
        file = _file(np.asarray(self.token))
        for begin in range(0, len(file), self.rows_at_once):
            yield file[begin : begin + self.rows_at_once]


def is_stored(leaf: Any) -> bool:
    """Whether a leaf of some rows is in a file."""
    return isinstance(leaf, Stored)


def _file(token: np.ndarray) -> np.ndarray:
    """The array of a token. Under `vmap` the token comes with axes of length 1."""
    numbers = set(token.reshape(-1).tolist())
    if len(numbers) != 1 or not numbers <= _files.keys():
        raise ValueError(
            "these rows are in a file that this process has not opened, or in several files: create a kx.Data for each "
            "file, in this process."
        )
    # Without NumPy's class for memory maps, which makes indexing slower.
    return np.asarray(_files[numbers.pop()])


def _read_on_host(out: Any, token: Any, rows: Any) -> None:
    """What the target does, on XLA's buffers."""
    _ffi.view(out)[...] = _file(_ffi.view(token))[_ffi.view(rows)]


# At import, so that a program that another process has exported or cached finds its target.
_ffi.register(_TARGET, _read_on_host)
