"""Many ragged datasets, taken in on the host, piece by piece, and padded to few shapes.

All of it is NumPy: a JAX array for each of 10,000 small datasets would take longer than their fits.
"""

import functools
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax._arrays import as_host_floats, is_concrete, plain
from kernax.data._data import Data
from kernax.data._gaps import refuse_gaps
from kernax.data._shapes import bucket_of, plan_rows, work
from kernax.rows import Grid, as_row_dtype, as_rows, is_bare, is_label, is_on_disk, is_written_out, leaves_of, take

__all__ = ["Group", "HostData", "bucket_of", "host_data", "plan_rows", "stack", "stacked", "windows", "work"]


class Group(NamedTuple):
    """One dataset with a name."""

    key: Hashable
    x: Any
    y: Any


class HostData(NamedTuple):
    """One dataset on the host: what `Data` holds, as NumPy arrays, with the name and the number it goes by."""

    x: Any
    y: np.ndarray
    mask: np.ndarray
    key: Hashable
    number: int
    is_named: bool = False
    """Whether the key is a name that was given, and not just the number."""

    @property
    def n(self) -> int:
        """Rows, masked ones included; may be 0."""
        return self.mask.shape[0]

    @property
    def name(self) -> str:
        """What messages call it."""
        return _name(self.number, self.key)


def _name(number: int, key: Hashable) -> str:
    return f"dataset {number}" if key == number else f"dataset {number} ({key!r})"


def host_data(item: Any, index: int = 0, like: HostData | None = None, key: Hashable = None) -> HostData:
    """A `Data`, `(x, y)`, `(x, y, mask)` or `Group` in the form of `like`, the dataset that all are to agree with.

    Faults of type and shape raise, as in `Data`. No rows, no row that counts, and NaN in rows that count do not: they are
    one dataset's own misfortune, for its own status to tell. Without `key`, the name is the group's, or else the number.
    """
    is_named = key is not None or isinstance(item, Group) or (isinstance(item, HostData) and item.is_named)
    if key is None:
        key = item.key if isinstance(item, Group) or (is_named and isinstance(item, HostData)) else index
    try:
        x, y, mask = _parts(item)
        data = HostData(*_host_arrays(x, y, mask, None if like is None else like.y.dtype), key, index, is_named)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{_name(index, key)}: {error}") from error
    return data if like is None else _conformed(data, like)


def _parts(item: Any) -> tuple[Any, Any, Any]:
    if isinstance(item, Group):
        return item.x, item.y, None
    if isinstance(item, Data):
        refuse_gaps(item, "a batch")
    if isinstance(item, Data | HostData):
        return item.x, item.y, item.mask
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise TypeError(f"it must be (x, y), (x, y, mask) or kx.Data, got {_what(item)}.")
    name = item[0] if isinstance(item[0], tuple) else (item[0],)
    if hasattr(item[1], "columns") and all(isinstance(part, str | int | float | np.generic) for part in name):
        raise TypeError("it is a name and a table: write kx.data.groups(table, by=..., x=..., y=...) instead of grouping.")
    return item[0], item[1], item[2] if len(item) == 3 else None


def _what(value: Any) -> str:
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


def _conformed(data: HostData, like: HostData) -> HostData:
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


def windows(datasets: Any, *, budget: float = 256 * 2**20, count: int | None = None) -> Iterator[list[HostData]]:
    """The datasets in order, in lists of at most `count`, and of at most `budget` bytes however they are padded.

    `datasets` may be any iterable, or a dict whose keys become names. It is read as far as the next list needs and one
    dataset on, so what does not fit into memory may be a generator. A dataset beyond the budget is a list of its own.
    """
    return _windows(_host_datasets(_named_items(datasets)), budget, count)


def _windows(datasets: Iterable[HostData], budget: float, count: int | None) -> Iterator[list[HostData]]:
    window: list[HostData] = []
    longest = row = 0
    for data in datasets:
        longest = max(longest, data.n)
        row = row or 1 + sum(a.itemsize * math.prod(a.shape[1:]) for a in (data.y, *jax.tree.leaves(data.x)))
        if window and (len(window) + 1) * longest * row > budget:
            yield window
            window, longest = [], data.n
        window.append(data)
        if len(window) == count:
            yield window
            window, longest = [], 0
    if window:
        yield window


def _named_items(datasets: Any) -> Iterator[tuple[Hashable, Any]]:
    remedy = None
    if isinstance(datasets, str | os.PathLike) or hasattr(datasets, "columns") or hasattr(datasets, "schema"):
        remedy = "for a table or a file of one, write kx.data.groups(table, by=..., x=..., y=...)"
    elif isinstance(datasets, Data):
        remedy = "for one dataset, write [data]"
    elif hasattr(datasets, "__array__") or (
        isinstance(datasets, tuple | list) and any(hasattr(part, "__array__") for part in datasets)
    ):
        remedy = "for one dataset, write [(x, y)]; for arrays with a leading dataset axis, write zip(x, y)"
    elif not isinstance(datasets, Iterable):
        remedy = "write [(x, y), ...]"
    if remedy is not None:
        raise TypeError(
            "datasets must be a list, dict or generator of (x, y), (x, y, mask) or kx.Data, "
            f"got {_what(datasets)}: {remedy}."
        )
    many: Any = datasets
    return iter(many.items()) if isinstance(many, Mapping) else ((None, item) for item in many)


def _host_datasets(items: Iterable[tuple[Hashable, Any]]) -> Iterator[HostData]:
    """Every item as `host_data`; the first dataset with rows says what all must look like."""
    like: HostData | None = None
    waiting: list[HostData] = []
    for index, (key, item) in enumerate(items):
        data = host_data(item, index, like, key)
        if like is None:
            waiting.append(data)
            if data.n == 0:
                continue
            like = data
            yield from (_conformed(empty, like) for empty in waiting)
        else:
            yield data
    if like is None:
        yield from waiting


def stacked(datasets: Sequence[HostData], rows: int, lanes: int | None = None) -> Data:
    """One `Data` of NumPy arrays with a leading dataset axis, each dataset padded to `rows`, and empty ones up to `lanes`.

    Padding rows of x copy the dataset's first row that counts, as in `Data`; where there is none, they are 0.
    """
    longest = max(datasets, key=lambda data: data.n)
    if longest.n > rows:
        raise ValueError(f"{longest.name} has {longest.n} rows: it does not fit into {rows}.")
    lanes = len(datasets) if lanes is None else lanes
    if lanes < len(datasets):
        raise ValueError(f"{len(datasets)} datasets do not fit into {lanes} lanes.")

    like, structure = jax.tree.flatten(longest.x)
    # All are empty, and an x of shape `(0,)` says nothing of columns.
    like = [leaf[:, None] if longest.n == 0 and leaf.ndim == 1 else leaf for leaf in like]
    xs = [np.zeros((lanes, rows, *leaf.shape[1:]), leaf.dtype) for leaf in like]
    y = np.zeros((lanes, rows, *longest.y.shape[1:]), longest.y.dtype)
    mask = np.zeros((lanes, rows), bool)
    for i, data in enumerate(datasets):
        n = data.n
        if n == 0:
            continue
        for out, leaf in zip(xs, jax.tree.leaves(data.x), strict=True):
            out[i, :n] = leaf
            # Row 0 counts, or is itself a copy of the first that does.
            out[i, n:] = leaf[0]
        y[i, :n] = data.y
        mask[i, :n] = data.mask
    return jax.tree.unflatten(_data_structure(), [jax.tree.unflatten(structure, xs), y, mask])


@functools.cache
def _data_structure() -> Any:
    """`Data` with one leaf for each field, for batches: its own `__init__` takes one dataset."""
    return jax.tree.structure(eqx.filter_eval_shape(Data, np.zeros((1, 1), np.float32), np.zeros(1, np.float32)))


def stack(datasets: Any) -> Data:
    """All datasets in one `Data` with a leading axis, padded to the longest, for `jax.vmap`.

    Takes what `fit_many` takes. NaN and infinities are kept: `condition` reports them, dataset by dataset.
    """
    every = list(_host_datasets(_named_items(datasets)))
    if not every:
        raise ValueError("there is no dataset to stack.")
    return jax.tree.map(jnp.asarray, stacked(every, max(1, *(data.n for data in every))))
