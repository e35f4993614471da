"""One dataset of many, taken in on the host and checked.

All of it is NumPy: a JAX array for each of 10,000 small datasets would take longer than their fits.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from kernax._arrays import as_host_floats, is_concrete, plain
from kernax._fingerprints import digest_of
from kernax.data._columns import is_several, listed
from kernax.data._data import Data
from kernax.data._gaps import refuse_gaps
from kernax.data._places import Place
from kernax.rows import Grid, as_row_dtype, as_rows, is_bare, is_label, is_on_disk, is_written_out, leaves_of, take


class Group(NamedTuple):
    """One dataset and its name."""

    key: Hashable
    """The name."""
    x: Any
    """The inputs."""
    y: Any
    """The targets."""


class HostData(NamedTuple):
    """One dataset on the host: what `Data` holds, as NumPy arrays, with the name and the number it goes by."""

    x: Any
    y: np.ndarray
    mask: np.ndarray
    key: Hashable
    number: int
    is_named: bool = False
    """Whether the key is a name that was given, and not just the number."""
    place: Place | None = None
    """Where in a file it is still to be read. Then x and y have their shapes, but hold only NaN, and need no memory."""

    @property
    def n(self) -> int:
        """Rows, masked ones included; may be 0."""
        return self.mask.shape[0]

    @property
    def name(self) -> str:
        """What messages call it."""
        return _name(self.number, self.key)

    def digest(self) -> np.ndarray:
        """What distinguishes it from another dataset."""
        return digest_of((*jax.tree.leaves(self.x), self.y, self.mask))

    def read(self) -> "HostData":
        """With its numbers, if it is still to be read. Raises `UnreadableError` if that fails."""
        if self.place is None:
            return self
        x, y, mask = _host_arrays(*self.place.read(), None, None)
        return self._replace(x=x, y=y, mask=mask, place=None)


def _name(number: int, key: Hashable) -> str:
    return f"dataset {number}" if key == number else f"dataset {number} ({key!r})"


def host_data(item: Any, index: int = 0, like: HostData | None = None, key: Hashable = None) -> HostData:
    """A `Data`, `(x, y)`, `(x, y, mask)` or `Group` in the form of `like`, the dataset that all are to agree with.

    Wrong types and shapes raise, as in `Data`. Datasets without rows that count, or with NaN in them, do not raise: their
    own status reports it later. Without `key`, the name is the group's, or else the number.
    """
    if isinstance(item, HostData) and item.place is not None:
        return item._replace(number=index)
    is_named = key is not None or isinstance(item, Group) or (isinstance(item, HostData) and item.is_named)
    if key is None:
        key = item.key if isinstance(item, Group) or (is_named and isinstance(item, HostData)) else index
    try:
        x, y, mask = _parts(item)
        data = HostData(*_host_arrays(x, y, mask, None if like is None else like.y.dtype), key, index, is_named)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{_name(index, key)}: {error}") from error
    return data if like is None else conformed(data, like)


def _parts(item: Any) -> tuple[Any, Any, Any]:
    if isinstance(item, Group):
        return item.x, item.y, None
    if isinstance(item, Data):
        refuse_gaps(item, "a batch")
    if isinstance(item, Data | HostData):
        return item.x, item.y, item.mask
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise TypeError(f"it must be (x, y), (x, y, mask) or kx.Data, got {what(item)}.")
    name = item[0] if isinstance(item[0], tuple) else (item[0],)
    if hasattr(item[1], "columns") and all(isinstance(part, str | int | float | np.generic) for part in name):
        raise TypeError(
            "it is a pair of a name and a table: write kx.data.groups(table, by=..., x=..., y=...) instead of grouping."
        )
    return item[0], item[1], item[2] if len(item) == 3 else None


def what(value: Any) -> str:
    """The type of a value, for messages."""
    size = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{size}"


def _host_arrays(x: Any, y: Any, mask: Any, dtype: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """x, y and mask checked and in one floating type, which is `dtype` if they have none of their own."""
    given, x = (y, *leaves_of(x)), host_rows(x, "x")
    y = as_host_floats(y, "y")
    leaves = jax.tree.leaves(x)
    if isinstance(x, np.ndarray) and x.ndim < 2 and x.shape != (0,):
        as_rows(x, "x")  # raises, in the words of `Data`
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(f"x must hold arrays with one common number of rows, got {sizes or 'no arrays'}.")
    n = sizes.pop()
    if any(0 in leaf.shape[1:] for leaf in leaves):
        raise ValueError("x has no columns: kernax needs at least one.")
    if y.ndim not in (1, 2):
        raise ValueError(f"y has shape {y.shape}; kernax wants (n,) or (n, p).")
    if y.shape[0] != n:
        raise ValueError(f"x has {n} rows and y has {y.shape[0]}: they must be the same.")
    if y.ndim == 2 and y.shape[1] == 0:
        raise ValueError(f"y has shape {y.shape}: kernax needs at least one output.")

    arrays = (y, *leaves)
    # As in `Data`: integers and Python's own numbers mean no particular precision.
    precise = [a.dtype for g, a in zip(given, arrays, strict=True) if _kind(g) == "f"]
    if precise:
        dtype = np.result_type(*precise)
    if dtype is not None and any(a.dtype != dtype for a in arrays if not is_label(a)):
        x, y = as_row_dtype(x, dtype), y.astype(dtype)
    if mask is None:
        return x, y, np.ones(n, bool)
    mask = np.array(mask)
    if mask.shape != (n,) or mask.dtype != bool:
        raise ValueError(f"mask must be {n} booleans (True: the row counts), got {mask.dtype} of shape {mask.shape}.")
    if not mask.all():
        x = jax.tree.map(lambda leaf: _overwritten(leaf, mask), x)
        y[~mask] = 0
    return x, y, mask


def host_rows(x: Any, name: str) -> Any:
    """What `as_rows` takes and gives, as NumPy arrays of its own: labels inside a structure keep their type."""
    x = take(x) if isinstance(x, Grid) or is_on_disk(x) else x
    if is_bare(x):
        return as_host_floats(x, name)
    return jax.tree.map(lambda leaf: _host_leaf(leaf, f"a leaf of {name}"), x, is_leaf=is_written_out)


def _host_leaf(leaf: Any, name: str) -> np.ndarray:
    leaf = plain(leaf)
    is_integer = is_concrete(leaf) and np.asarray(leaf).dtype.kind in "biu"
    return np.array(leaf) if is_integer else as_host_floats(leaf, name)


def _kind(value: Any) -> str:
    return getattr(getattr(value, "dtype", None), "kind", "")


def _overwritten(leaf: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`leaf` with copies of the first row that counts where none does: finite, and no new extreme, as in `Data`."""
    leaf[~mask] = leaf[mask.argmax()] if mask.any() else 0
    return leaf


def at_place(place: Place, key: Hashable, number: int) -> HostData:
    """A dataset of a file that is still to be read."""
    _, x, y = place.source.wanted
    dtype = jax.dtypes.canonicalize_dtype(place.source.dtype)
    n, outputs = place.stop - place.begin, (len(y),) if is_several(y) else ()
    blank = np.broadcast_to(np.asarray(np.nan, dtype), (n, len(listed(x))))
    targets = np.broadcast_to(np.asarray(np.nan, dtype), (n, *outputs))
    return HostData(blank, targets, np.broadcast_to(True, n), key, number, is_named=True, place=place)


def conformed(data: HostData, like: HostData) -> HostData:
    """`data` if it has the structure, columns, outputs and floating type of `like`."""
    if data.n == 0 and not jax.tree.leaves(data.x)[0].shape[1:]:
        # `(0,)`, and likewise an empty list, says nothing of columns.
        return data._replace(x=jax.tree.map(lambda leaf: leaf[:0], like.x), y=like.y[:0])
    ours, theirs = jax.tree.structure(data.x), jax.tree.structure(like.x)
    if ours != theirs:
        raise ValueError(f"{data.name}: x has the structure {ours}, but that of {like.name} has {theirs}.")
    for leaf, other in zip(jax.tree.leaves(data.x), jax.tree.leaves(like.x), strict=True):
        if leaf.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"{data.name} has {_columns(leaf)}, {like.name} has {_columns(other)}: "
                "every dataset must have the same columns."
            )
        if is_label(leaf) != is_label(other):
            kinds = ("labels", "numbers") if is_label(leaf) else ("numbers", "labels")
            raise ValueError(
                f"{data.name} has {kinds[0]} where {like.name} has {kinds[1]}: write integers for labels, and floating "
                "point for numbers, in every dataset."
            )
    if data.n == 0:
        return data._replace(x=jax.tree.map(lambda leaf: leaf[:0], like.x), y=like.y[:0])
    if data.y.shape[1:] != like.y.shape[1:]:
        raise ValueError(
            f"{data.name} has a y of shape {data.y.shape}, {like.name} has one of shape {like.y.shape}: "
            "every dataset must have the same outputs."
        )
    if data.y.dtype != like.y.dtype:
        raise ValueError(
            f"{data.name} is {data.y.dtype}, {like.name} is {like.y.dtype}: "
            "every dataset must have the same floating type: convert with .astype."
        )
    return data


def _columns(leaf: np.ndarray) -> str:
    return f"{leaf.shape[1]} columns" if leaf.ndim == 2 else f"rows of shape {leaf.shape[1:]}"
