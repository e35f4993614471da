"""Rows of inputs: arrays, structures of arrays, grids and rows in files; checks of them, and functions that take some."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from kernax._arrays import (
    as_floats,
    check_finite,
    check_no_bad_rows,
    has_bad_number,
    is_concrete,
    plain,
    real_numbers,
)
from kernax._functionals import Functionals as Functionals
from kernax._functionals import at_rows as at_rows
from kernax._functionals import fitted_to as fitted_to
from kernax._functionals import functionals_in as functionals_in
from kernax._functionals import observe_values as observe_values
from kernax._functionals import observed as observed
from kernax._functionals import values_at as values_at
from kernax._functionals import with_room as with_room
from kernax._stored import Stored, is_stored

Rows = PyTree[Array]
"""Points: an `(n, d)` array, any pytree of arrays with a leading row axis, or a `Grid`. Arrays may be `Stored` in files."""

_ENTRIES = 2**23
"""Numbers that one block of `map_rows` may make: 64 MB in float64."""


class Grid(eqx.Module):
    """Rows that are all combinations of the rows of a few axes, the last axis fastest.

    A point of a grid is a tuple with one part for each axis, or a dict if the axes have names. A kernel that is a product
    over the axes, such as `kx.Select(kx.RBF(), axis=0) * kx.Select(kx.Matern32(), axis=1)`, makes the system a Kronecker
    product. With names, write `key=` instead of `axis=`.

    **Arguments:**

    - `axes`: the rows of each axis: an `(n_i, d_i)` array, a vector of labels (integers or booleans), or a structure of
      arrays. A tuple of them, or a dict.
    """

    axes: tuple[Rows, ...]
    names: tuple[str, ...] | None = eqx.field(static=True, default=None)
    """The keys of the axes if they were given as a dict; otherwise `None`."""

    def __init__(self, axes: Any):
        self.names = tuple(axes) if isinstance(axes, dict) else None
        axes = tuple(axes.values()) if isinstance(axes, dict) else axes
        if not isinstance(axes, tuple | list) or not axes or is_written_out(axes):
            raise ValueError("Grid takes a tuple of axes, each with its own rows: write kx.Grid((times, places)).")
        keys = range(len(axes)) if self.names is None else self.names
        self.axes = tuple(_as_axis(axis, f"axis {key!r} of the grid") for key, axis in zip(keys, axes, strict=True))

    @property
    def keys(self) -> tuple[int | str, ...]:
        """The names of the axes; 0, 1, 2, … if they have none."""
        return tuple(range(len(self.axes))) if self.names is None else self.names

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows of each axis."""
        return tuple(num_rows(axis) for axis in self.axes)

    def rows(self) -> Rows:
        """All points of the grid, one after another.

        **Returns:**

        A tuple or dict of rows, `prod(shape)` of each.
        """
        return self._written_out(lambda leaf, at: leaf[at])

    def with_labels(self) -> Any:
        """Like `rows`, but only labels are repeated for all points. Numbers stay as they are on their axis.

        **Returns:**

        A tuple or dict of rows.
        """
        return self._written_out(lambda leaf, at: np.asarray(leaf)[at] if is_label(leaf) and is_concrete(leaf) else leaf)

    def _written_out(self, taken: Callable[[Any, np.ndarray], Any]) -> Any:
        places = np.unravel_index(np.arange(math.prod(self.shape)), self.shape)
        parts = [jax.tree.map(lambda leaf, at=at: taken(leaf, at), axis) for axis, at in zip(self.axes, places, strict=True)]
        return tuple(parts) if self.names is None else dict(zip(self.names, parts, strict=True))


def _as_axis(axis: Any, name: str) -> Rows:
    if is_bare(axis):
        labels = _as_leaf(axis, name)
        if labels.ndim == 1 and is_label(labels):
            return labels
    return take(as_rows(axis, name))


def as_rows(x: Any, name: str, one: str = "") -> Rows:
    """Convert what a user gives to rows, or raise an error that says what to write.

    A bare array becomes floating point. Inside a structure (dict, tuple, list of arrays, dataclass, Equinox module)
    integers and booleans keep their type: they are labels, not numbers to compute with. A memory-mapped array of two or more
    axes stays in its file (`Stored`); labels are read.

    **Arguments:**

    - `x`: an `(n, d)` array, a structure of arrays, or a `Grid`.
    - `name`: its name in error messages.
    - `one`: when a vector would be a single point, for the error about vectors.

    **Returns:**

    The same rows as JAX arrays, or `Stored`.
    """
    if isinstance(x, Grid | Stored):
        return x
    if is_bare(x):
        if dataclasses.is_dataclass(x):
            raise TypeError(
                f"{name} is a {type(x).__name__}, which is not registered with JAX as a structure of arrays: register "
                "the class with jax.tree_util.register_dataclass."
            )
        x = _stored(x, name) if isinstance(x, np.memmap) and x.ndim > 1 else as_floats(x, name)
        if x.ndim < 2:
            remedy = f"write {name}[:, None]" if x.ndim == 1 else f"write {name}.reshape(1, 1)"
            remedy += f" ({name}[None, :] if {one})" if one and x.ndim == 1 else ""
            raise ValueError(f"{name} has shape {x.shape}; kernax needs (n, d): {remedy}.")
        return x
    return jax.tree.map(lambda leaf: _as_leaf(leaf, f"a leaf of {name}"), x, is_leaf=_is_one_array)


def _stored(x: np.memmap, name: str) -> Stored:
    return Stored.of(x, real_numbers(x, name)[1])


def is_bare(x: Any) -> bool:
    """Whether x is one array, or can be converted to one, rather than a structure of arrays.

    **Arguments:**

    - `x`: what a user gave as rows.

    **Returns:**

    A boolean.
    """
    return is_written_out(x) or jax.tree_util.all_leaves([x])


def leaves_of(x: Any) -> list[Any]:
    """The parts of x that become one array each.

    **Arguments:**

    - `x`: what a user gave as rows.

    **Returns:**

    A list; for a grid, of the parts of its axes.
    """
    return [x] if is_bare(x) else jax.tree.leaves(x, is_leaf=_is_one_array)


def _is_one_array(x: Any) -> bool:
    return is_stored(x) or is_written_out(x)


def arrays_of(x: Any) -> list[Any]:
    """The arrays of some rows.

    **Arguments:**

    - `x`: rows.

    **Returns:**

    A list of arrays, which may be `Stored`; for a grid, those of its axes.
    """
    return jax.tree.leaves(x, is_leaf=is_stored)


def is_on_disk(x: Any) -> bool:
    """Whether some numbers of the rows are in a file, so that few rows should be read at a time.

    **Arguments:**

    - `x`: rows.

    **Returns:**

    A boolean.
    """
    return any(is_stored(leaf) for leaf in arrays_of(x))


def is_written_out(x: Any) -> bool:
    """Whether `x` is a list of numbers or of vectors: one array written out, and no structure."""
    if not isinstance(x, list):
        return False
    leaves = jax.tree.leaves(x)
    depth_is_lists = all(not isinstance(node, dict | tuple | eqx.Module) for node in x)
    return depth_is_lists and all(np.ndim(leaf) < 2 for leaf in leaves)


def _as_leaf(leaf: Any, name: str) -> Any:
    leaf = plain(leaf)
    if is_stored(leaf):
        return leaf
    if isinstance(leaf, np.memmap) and leaf.ndim > 1 and leaf.dtype.kind not in "biu":
        return _stored(leaf, name)
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        if leaf.dtype.kind in "UST" or (leaf.dtype.kind == "O" and any(isinstance(one, str) for one in leaf.ravel()[:100])):
            raise TypeError(
                f"{name} has dtype {leaf.dtype}, which is text, and labels are integers: write kernel.codes(names) of a "
                "kx.kernels.Categorical, or np.unique(names, return_inverse=True)[1]."
            )
    return jnp.asarray(leaf) if leaf.dtype.kind in "biu" else as_floats(leaf, name)


def is_label(leaf: Any) -> bool:
    """Whether an array of the rows contains labels (integers or booleans) instead of numbers to compute with.

    **Arguments:**

    - `leaf`: an array.

    **Returns:**

    A boolean.
    """
    return not jnp.issubdtype(leaf.dtype, jnp.inexact)


def as_row_dtype(x: Any, dtype: Any, like: Any = None) -> Any:
    """The rows with their numbers in another floating type; labels stay as they are.

    **Arguments:**

    - `x`: rows, as arrays of JAX or NumPy, or `Stored`.
    - `dtype`: the floating type.
    - `like`: rows of the same structure. Integers of `x` that are numbers there become floating point, too.

    **Returns:**

    Rows.
    """
    known = x if like is None else jax.eval_shape(like.rows) if isinstance(like, Grid) else like
    if functionals_in(x):  # an average of many points goes with values and slopes at one
        known = jax.tree.map(lambda own, other: own if _is_functionals(own) else other, x, known, is_leaf=_is_functionals)
    return jax.tree.map(lambda leaf, other: leaf if is_label(other) else leaf.astype(dtype), x, known, is_leaf=is_stored)


def row_dtype(*rows: Rows) -> Any:
    """The floating type of all numbers in some rows.

    **Arguments:**

    - `rows`: one or several sets of rows.

    **Returns:**

    A dtype; the default of JAX if there are only labels.
    """
    leaves = [leaf for leaf in arrays_of(rows) if not is_label(leaf)]
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)


def num_rows(x: Any, name: str = "x") -> int:
    """The number of rows.

    **Arguments:**

    - `x`: rows, all of whose arrays have the same number of rows.
    - `name`: its name in error messages.

    **Returns:**

    A whole number. Raises `ValueError` if the arrays have different numbers of rows.
    """
    if isinstance(x, Grid):
        return math.prod(x.shape)
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in arrays_of(x)}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(f"{name} must hold arrays with one common number of rows, got {sizes or 'no arrays'}.")
    return sizes.pop()


def take(x: Rows, rows: Any = None) -> Rows:
    """Some rows, or all of them, as arrays in memory.

    **Arguments:**

    - `x`: rows. The points of a grid are written out, and rows in a file are read.
    - `rows`: the numbers of the rows; all of them if not given.

    **Returns:**

    The rows.
    """
    every = x.rows() if isinstance(x, Grid) else x

    def taken(leaf: Any) -> Any:
        if is_stored(leaf):
            return leaf.read(rows)
        return leaf if rows is None else leaf[rows]

    return jax.tree.map(taken, every, is_leaf=is_stored)


def some_rows(x: Rows, most: int) -> Any:
    """Numbers of evenly spaced rows, to look at a part of data that is in a file.

    **Arguments:**

    - `x`: rows.
    - `most`: the largest number of rows.

    **Returns:**

    The numbers; `None`, which means all rows, if nothing is in a file.
    """
    if not is_on_disk(x):
        return None
    n = num_rows(x)
    return (np.arange(min(n, most)) * n // min(n, most)).astype(np.int32)


def check_rows_finite(x: Rows, name: str, counts: Array | None = None, remedy: str = "drop them") -> None:
    """Raise `ValueError` if a row that counts has a NaN or an infinite value. Traced rows are not checked.

    **Arguments:**

    - `x`: rows. Rows in a file are read in blocks.
    - `name`: its name in the message.
    - `counts`: which rows count; all of them if not given.
    - `remedy`: what to do, for the message.

    **Returns:**

    `None`.
    """
    for leaf in arrays_of(x):
        if not is_stored(leaf):
            check_finite(leaf, name, counts, remedy)
        elif is_concrete(leaf.token) and (counts is None or is_concrete(counts)):
            bad = np.concatenate([has_bad_number(block) for block in leaf.blocks()])
            known = None if leaf.mask is None else np.asarray(leaf.mask)
            check_no_bad_rows(bad if known is None else bad & known, name, counts, remedy)


def check_same_columns(rows: Any, known: Any, name: str, known_name: str) -> None:
    """Raise `ValueError` if rows differ from known ones in structure, width or kind. Broadcasting would hide such mistakes.

    **Arguments:**

    - `rows`: new rows.
    - `known`: the rows to compare with.
    - `name`, `known_name`: their names in the message.

    **Returns:**

    `None`.
    """
    if functionals_in((rows, known)):
        rows, known = _points(rows, known, name, known_name)
    if isinstance(known, Grid):
        known = jax.eval_shape(known.rows)
    if isinstance(rows, Grid):
        rows = jax.eval_shape(rows.rows)
    ours, theirs = (jax.tree.structure(each, is_leaf=is_stored) for each in (rows, known))
    if ours != theirs:
        raise ValueError(f"{name} has the structure {ours}, but {known_name} has {theirs}.")
    for leaf, other in zip(arrays_of(rows), arrays_of(known), strict=True):
        if leaf.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"{name} has {_columns(leaf)}, but {known_name} has {_columns(other)}: give both the same columns."
            )
        if is_label(other) and not is_label(leaf):
            raise ValueError(f"{name} has numbers where {known_name} has labels: write {name} as integers there.")


def _points(rows: Any, known: Any, name: str, known_name: str) -> tuple[Any, Any]:
    """Both with a point of each row in the place of `Functionals`: an average of many goes with values and slopes at one."""
    (ours, structure), (theirs, other) = (jax.tree.flatten(each, is_leaf=_is_functionals) for each in (rows, known))
    if structure != other:
        raise ValueError(f"{name} has other parts than {known_name}: {_parts(rows)} instead of {_parts(known)}.")
    pairs = list(zip(ours, theirs, strict=True))
    if any(_is_functionals(leaf) and not _is_functionals(part) for leaf, part in pairs):
        raise ValueError(
            f"{name} has rows of kx.observe where {known_name} has plain points: condition on kx.observe.values(x, y), with "
            "the kernel kx.kernels.OfFunctionals(kernel)."
        )
    if any(_is_functionals(part) and not _is_functionals(leaf) for leaf, part in pairs):
        raise ValueError(
            f"{name} has no points of shape (n, d) where {known_name} has rows of kx.observe: give such points, or rows of "
            "kx.observe."
        )
    pairs = [(leaf.x[:, 0], part.x[:, 0]) if _is_functionals(leaf) else (leaf, part) for leaf, part in pairs]
    first, second = zip(*pairs, strict=True)
    return jax.tree.unflatten(structure, first), jax.tree.unflatten(structure, second)


def _parts(rows: Any) -> str:
    """What rows consist of, for messages."""
    if isinstance(rows, dict):
        return f"a dict with the keys {sorted(rows)}"
    if hasattr(rows, "shape"):
        return f"an array of shape {rows.shape}"
    return "rows of kx.observe" if _is_functionals(rows) else f"a {type(rows).__name__}"


def _is_functionals(x: Any) -> bool:
    return isinstance(x, Functionals)


def _columns(leaf: Any) -> str:
    return f"{leaf.shape[1]} columns" if leaf.ndim == 2 else f"rows of shape {leaf.shape[1:]}"


def map_rows(function: Callable[[Rows], Any], x: Rows, width: int) -> Any:
    """A function of rows, computed in blocks so that memory stays bounded, in reverse mode too.

    Rows in a file are read block by block.

    **Arguments:**

    - `function`: takes some rows and returns arrays with one entry for each.
    - `x`: all rows.
    - `width`: how many numbers the function makes for each row.

    **Returns:**

    The answers for all rows, joined.
    """
    rows = num_rows(x)
    if is_on_disk(x):
        width = max(width, _ENTRIES // rows_at_once(x))
        return map_rows(lambda numbers: function(take(x, numbers)), jnp.arange(rows), width)
    block = max(1, min(rows, _ENTRIES // max(width, 1)))
    x = take(x)
    blocks = -(-rows // block)
    if blocks <= 1:
        return function(x)
    # Equal blocks, so that little is computed on the padding of the last one.
    block = -(-rows // blocks)
    # Reverse mode would otherwise keep what every block computes on the way.
    answers = jax.lax.map(jax.checkpoint(function), in_blocks(x, block))
    return jax.tree.map(lambda leaf: leaf.reshape(blocks * block, *leaf.shape[2:])[:rows], answers)


def in_blocks(x: Rows, size: int) -> Rows:
    """Cut rows into blocks.

    **Arguments:**

    - `x`: rows in memory.
    - `size`: the number of rows in each block.

    **Returns:**

    Rows with a leading axis over blocks. Copies of the first row fill up the last block.
    """

    def cut(leaf: Array) -> Array:
        padding = jnp.broadcast_to(leaf[:1], (-leaf.shape[0] % size, *leaf.shape[1:]))
        return jnp.concatenate([leaf, padding]).reshape(-1, size, *leaf.shape[1:])

    return jax.tree.map(cut, x)


def rows_at_once(x: Rows) -> int:
    """How many rows to read at a time if all are needed, one block after another.

    **Arguments:**

    - `x`: rows.

    **Returns:**

    A whole number; the number of all rows unless they are in a file.
    """
    return min([leaf.rows_at_once for leaf in arrays_of(x) if is_stored(leaf)], default=num_rows(x))
