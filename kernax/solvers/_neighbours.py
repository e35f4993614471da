"""Nearest rows: which earlier rows a row is conditioned on, and which rows a new one is predicted from.

On CPU the search is SciPy's k-d tree, or plain distances where a tree does not pay. It runs as a named target of XLA
(`_ffi.py`), so it also works inside `jit`. On other devices, distances are computed tile by tile. Both are exact: which rows
are found does not depend on the way, unless two are equally far.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax import _ffi
from kernax.kernels._distances import squared_distances
from kernax.rows import Rows, map_rows
from kernax.solvers._raw import one_at_a_time_on_cpu

_TARGET = "kernax_nearest_1"
"""The name of XLA's target. The number is raised when its inputs or outputs change."""

_GROWTH = 1.25
"""By how much the number of rows in a tree grows from one group of queries to the next. With random order, a share of at
least `1/_GROWTH` of the rows near a query comes before it."""

_TREE_FROM = 2000
"""Points from which a tree is faster than all distances."""

_TREE_COLUMNS = 40
"""Columns up to which a tree is used. Beyond, it may look at most of its points, and all distances are faster."""

_ENTRIES = 2**22
"""Distances that are computed at once."""


def nearest(
    points: Float[Array, "n q"],
    live: Bool[Array, " n"],
    queries: Float[Array, "k q"],
    before: Int[Array, " k"],
    number: int,
) -> Int[Array, "k number"]:
    """The numbers of the points that are nearest to each query, the nearest first.

    **Arguments:**

    - `points`: rows to search.
    - `live`: which of them may be found.
    - `queries`: rows to search for.
    - `before`: for each query, only points with a smaller number than this may be found.
    - `number`: how many to find.

    **Returns:**

    An array of numbers; -1 where there are fewer points.
    """

    def by_tiles(points: Array, live: Array, queries: Array, before: Array) -> Array:
        return nearest_by(lambda rows: squared_distances(rows, points), live, queries, before, number)

    given = jax.lax.stop_gradient((points, live, queries, before.astype(jnp.int32)))
    if _ffi.version() is None:
        return by_tiles(*given)

    def by_tree(points: Array, live: Array, queries: Array, before: Array) -> Array:
        shape = jax.ShapeDtypeStruct((queries.shape[0], number), jnp.int32)
        return jax.ffi.ffi_call(_TARGET, shape, vmap_method="sequential")(points, live, queries, before)

    @one_at_a_time_on_cpu
    def search(*given: Array) -> Array:
        return jax.lax.platform_dependent(*given, cpu=by_tree, default=by_tiles)

    return search(*given)


def nearest_by(
    distance: Callable[[Rows], Float[Array, "t n"]],
    live: Bool[Array, " n"],
    queries: Rows,
    before: Int[Array, " k"],
    number: int,
) -> Int[Array, "k number"]:
    """The same for any function that gives the distances of some queries from all points, tile by tile."""
    n, places = live.shape[0], jnp.arange(live.shape[0])

    def of_block(block: tuple[Rows, Array]) -> Array:
        rows, before = block
        far = jnp.where(live & (places < before[:, None]), distance(rows), jnp.inf)
        found, order = jax.lax.top_k(-far, min(number, n))
        order = jnp.where(jnp.isfinite(found), order, -1)
        return jnp.pad(order, ((0, 0), (0, number - order.shape[1])), constant_values=-1)

    return map_rows(of_block, (queries, before), 4 * n).astype(jnp.int32)


def nearest_in_blocks(
    points_of: Callable[[Int[Array, " s"]], Float[Array, "s q"]],
    size: int,
    live: Bool[Array, " n"],
    places: Int[Array, " n"],
    queries: Float[Array, "k q"],
    before: Int[Array, " k"],
    number: int,
) -> Int[Array, "k number"]:
    """The same for points that do not fit into memory: one block after another is searched, and the best are kept.

    **Arguments:**

    - `points_of`: gives the points of some row numbers.
    - `size`: how many points make a block.
    - `live`: which points may be found.
    - `places`: the place of each row in the order by which `before` counts.
    - `queries`, `before`, `number`: as in `nearest`.

    **Returns:**

    The places of the points that were found; -1 where there are fewer points.
    """
    n = live.shape[0]

    def in_block(best: tuple[Array, Array], begin: Array) -> tuple[tuple[Array, Array], None]:
        rows = begin + jnp.arange(size, dtype=places.dtype)
        place = jnp.where(rows < n, places[rows], n)
        order = jnp.argsort(place)
        place, rows = place[order], jnp.minimum(rows[order], n - 1)
        points = points_of(rows)
        found = nearest(points, live[rows] & (place < n), queries, jnp.searchsorted(place, before), number)

        def distance(some: tuple[Array, Array]) -> Array:
            query, found = some
            return jnp.sum((points[found] - query[:, None]) ** 2, axis=-1)

        far = map_rows(distance, (queries, found), number * queries.shape[1])
        far = jnp.concatenate([best[0], jnp.where(found >= 0, far, jnp.inf)], axis=1)
        found = jnp.concatenate([best[1], jnp.where(found >= 0, place[found], -1)], axis=1)
        far, first = jax.lax.top_k(-far, number)
        return (-far, jnp.take_along_axis(found, first, axis=1)), None

    shape = (queries.shape[0], number)
    nothing = jnp.full(shape, jnp.inf, queries.dtype), jnp.full(shape, -1, places.dtype)
    return jax.lax.scan(in_block, nothing, jnp.arange(0, n, size, dtype=places.dtype))[0][1]


def _nearest_on_host(out: Any, points: Any, live: Any, queries: Any, before: Any) -> None:
    """What `nearest` computes, on XLA's buffers."""
    answer, points, live, queries, before = map(_ffi.view, (out, points, live, queries, before))
    places = np.flatnonzero(live)
    # Queries are answered in groups, each by a tree of the points that come before any of its queries.
    limits = np.searchsorted(places, before)
    order, number = np.argsort(limits, kind="stable"), answer.shape[1]
    # Less a common offset, which would cost digits of the distances.
    points = points[places].astype(np.float64, copy=False)
    centre = points.mean(axis=0) if len(points) else 0.0
    points, queries = points - centre, queries - centre
    answer[:] = -1
    begin = 0
    while begin < len(order):
        low = limits[order[begin]]
        end = int(np.searchsorted(limits[order], max(_GROWTH * low, low + _TREE_FROM), side="right"))
        group = order[begin:end]
        begin, high = end, int(limits[group[-1]])
        if high:
            found = _nearest_in_group(points[:high], queries[group], limits[group], number)
            answer[group] = np.where(found < 0, -1, places[found])


def _nearest_in_group(points: np.ndarray, queries: np.ndarray, limits: np.ndarray, number: int) -> np.ndarray:
    """Of each query, the nearest points among the first `limit` ones; -1 where there are fewer."""
    n, width = points.shape
    if n <= _TREE_FROM or width > _TREE_COLUMNS:
        return _nearest_by_distances(points, queries, limits, number)
    from scipy.spatial import KDTree

    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else -1
    # The points that come too late are left out afterwards, so a few more are asked for.
    more = number if limits[0] == n else min(n, int(_GROWTH * number) + 12)
    # Unbalanced: a tree that is balanced takes very long to build where thousands of points are the same.
    _, found = KDTree(points, balanced_tree=False).query(queries, more, workers=workers)
    found = np.reshape(found, (len(queries), more))
    early = found < limits[:, None]
    # Those that count first, in their order.
    first = np.argsort(~early, axis=1, kind="stable")[:, :number]
    answer = np.where(np.take_along_axis(early, first, 1), np.take_along_axis(found, first, 1), -1)
    if answer.shape[1] < number:
        answer = np.pad(answer, ((0, 0), (0, number - answer.shape[1])), constant_values=-1)
    short = np.flatnonzero((answer >= 0).sum(axis=1) < np.minimum(number, limits))
    if len(short):
        answer[short] = _nearest_by_distances(points, queries[short], limits[short], number)
    return answer


def _nearest_by_distances(points: np.ndarray, queries: np.ndarray, limits: np.ndarray, number: int) -> np.ndarray:
    """The same by all distances, some queries at a time."""
    n, some = len(points), min(number, len(points))
    answer = np.full((len(queries), number), -1)
    norms = np.sum(points**2, axis=1)
    step = max(1, _ENTRIES // n)
    for begin in range(0, len(queries), step):
        end = begin + step
        # Less the query's own norm, which does not change the order.
        far = norms - 2.0 * (queries[begin:end] @ points.T)
        far[np.arange(n) >= limits[begin:end, None]] = np.inf
        found = np.argpartition(far, some - 1, axis=1)[:, :some] if some < n else np.tile(np.arange(n), (len(far), 1))
        far = np.take_along_axis(far, found, 1)
        order = np.argsort(far, axis=1, kind="stable")
        found, far = np.take_along_axis(found, order, 1), np.take_along_axis(far, order, 1)
        answer[begin:end, :some] = np.where(np.isfinite(far), found, -1)
    return answer


# At import, so that a program that another process has exported or cached finds its target.
_ffi.register(_TARGET, _nearest_on_host)


def closest_of(
    points: Float[Array, "n q"], members: Float[Array, "k b q"], found: Int[Array, "k c"], number: int
) -> Int[Array, "k number"]:
    """Of the points that were found for the members of each block, those that are closest to any member, each once.

    **Arguments:**

    - `points`, `members`: the points that were searched, and the members of each block.
    - `found`: for each block, the numbers that were found for its first member, then for its second one, and so on; -1 for
      none.
    - `number`: how many to keep.

    **Returns:**

    The numbers, the closest first; -1 where there are fewer.
    """

    def of_block(members: Array, found: Array) -> Array:
        own = jnp.repeat(members, found.shape[0] // members.shape[0], axis=0)
        far = jnp.where(found >= 0, jnp.sum((points[found] - own) ** 2, axis=1), jnp.inf)
        # Sorted by number, then by distance: all but the first of each number are repetitions.
        order = jnp.lexsort((far, found))
        found, far = found[order], far[order]
        far = far.at[1:].set(jnp.where(found[1:] == found[:-1], jnp.inf, far[1:]))
        kept, places = jax.lax.top_k(-far, min(number, far.shape[0]))
        answer = jnp.where(jnp.isfinite(kept), found[places], -1)
        return jnp.pad(answer, (0, number - answer.shape[0]), constant_values=-1)

    return jax.lax.map(lambda given: of_block(*given), (members, found), batch_size=256)


def compact_order(coordinates: Float[Array, "n q"], live: Bool[Array, " n"], size: int) -> Int[Array, " n"]:
    """An order of the rows in which every run of `size` rows is close together, by recursive median splits.

    Rows are halved along the column in which they vary most, then each half again, and so on. Rows that do not count come
    last.

    **Arguments:**

    - `coordinates`: where the rows are.
    - `live`: which rows count.
    - `size`: the number of rows of a run.

    **Returns:**

    The numbers of all rows.
    """
    n = live.shape[0]
    levels = max(0, -(-n // size) - 1).bit_length()
    # As many rows as halves of whole runs need. What fills up does not count, and stays behind all rows.
    places = jnp.concatenate([jnp.argsort(~live, stable=True), jnp.full(size * 2**levels - n, n)])
    counts = jnp.concatenate([live, jnp.zeros(1, bool)])
    padded = jnp.concatenate([coordinates, jnp.zeros((1, coordinates.shape[1]), coordinates.dtype)])
    for level in range(levels):
        groups = places.reshape(2**level, -1)
        rows, some = padded[groups], counts[groups]
        widest = jnp.argmax(jnp.var(rows, axis=1, where=some[:, :, None]), axis=1)
        keys = jnp.where(some, jnp.take_along_axis(rows, widest[:, None, None], axis=2)[:, :, 0], jnp.inf)
        places = jnp.take_along_axis(groups, jnp.argsort(keys, axis=1, stable=True), axis=1).reshape(-1)
    return places[:n]


def coarse_to_fine(count: int) -> Int[np.ndarray, " k"]:
    """An order of neighbouring things in which each next one is far from those before: 0, ½, ¼, ¾, ⅛, … of the way."""
    bits = max(count - 1, 1).bit_length()
    numbers = np.arange(2**bits)
    reversed_bits = np.zeros_like(numbers)
    for bit in range(bits):
        reversed_bits |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reversed_bits[reversed_bits < count]
