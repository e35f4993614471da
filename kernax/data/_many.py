"""Many ragged datasets, taken in piece by piece, and padded to few shapes."""

import functools
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax.data._data import Data
from kernax.data._host import HostData, conformed, host_data, what
from kernax.data._places import Place


def windows(datasets: Any, *, budget: float = 256 * 2**20) -> Iterator[list[HostData]]:
    """The datasets in order, in lists of at most `budget` bytes however they are padded.

    `datasets` may be any iterable, or a dict whose keys become names. It is read as far as the next list needs and one
    dataset on, so what does not fit into memory may be a generator. A dataset beyond the budget is a list of its own.
    """
    return _windows(_host_datasets(_named_items(datasets)), budget)


def _windows(datasets: Iterable[HostData], budget: float) -> Iterator[list[HostData]]:
    window: list[HostData] = []
    longest = row = 0
    for data in datasets:
        longest = max(longest, data.n)
        row = row or 1 + sum(a.itemsize * math.prod(a.shape[1:]) for a in (data.y, *jax.tree.leaves(data.x)))
        if window and (len(window) + 1) * longest * row > budget:
            yield window
            window, longest = [], data.n
        window.append(data)
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
            f"datasets must be a list, dict or generator of (x, y), (x, y, mask) or kx.Data, got {what(datasets)}: {remedy}."
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
            yield from (conformed(empty, like) for empty in waiting)
        else:
            yield data
    if like is None:
        yield from waiting


class Unread(NamedTuple):
    """What `stacked` is to make of datasets that are still in their file."""

    places: Sequence[Place]
    rows: int
    dtype: Any

    # The planning of blocks looks at shapes and types.

    @property
    def mask(self) -> np.ndarray:
        return np.broadcast_to(True, (len(self.places), self.rows))

    @property
    def y(self) -> np.ndarray:
        return np.broadcast_to(np.asarray(np.nan, self.dtype), (len(self.places), self.rows))


def stacked(datasets: Sequence[HostData], rows: int) -> Any:
    """One `Data` of NumPy arrays with a leading dataset axis, each dataset padded to `rows`.

    Padding rows of x copy the dataset's first row that counts, as in `Data`; where there is none, they are 0. Datasets that
    are still to be read stay where they are, as `Unread`.
    """
    places = [data.place for data in datasets if data.place is not None]
    if places:
        return Unread(places, rows, datasets[0].y.dtype)
    longest = max(datasets, key=lambda data: data.n)
    if longest.n > rows:
        raise ValueError(f"{longest.name} has {longest.n} rows: it does not fit into {rows}.")
    lanes = len(datasets)
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


def stacked_rows(points: Sequence[Any], rows: int) -> Any:
    """Rows padded with copies of the first (with 0 where there is none), and stacked."""

    def filled(*leaves: np.ndarray) -> np.ndarray:
        out = np.zeros((len(leaves), rows, *leaves[0].shape[1:]), leaves[0].dtype)
        for row, leaf in zip(out, leaves, strict=True):
            row[: len(leaf)] = leaf
            if len(leaf):
                row[len(leaf) :] = leaf[0]
        return out

    return jax.tree.map(filled, *points)


@functools.cache
def _data_structure() -> Any:
    """`Data` with one leaf for each field, for batches: its own `__init__` takes one dataset."""
    return jax.tree.structure(eqx.filter_eval_shape(Data, np.zeros((1, 1), np.float32), np.zeros(1, np.float32)))


def stack(datasets: Any) -> Data:
    """All datasets in one `Data` with a leading axis, padded to the longest, for `jax.vmap`.

    NaN and infinities are kept; `condition` reports them for each dataset.

    **Arguments:**

    - `datasets`: what [`kernax.fit_many`][] takes: a list or dict of `(x, y)` or `kx.Data`, or groups of a table.

    **Returns:**

    A `kx.Data` whose arrays have a leading dataset axis.
    """
    every = list(_host_datasets(_named_items(datasets)))
    if not every:
        raise ValueError("there is no dataset to stack.")
    return jax.tree.map(jnp.asarray, stacked(every, max(1, *(data.n for data in every))))
