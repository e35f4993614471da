"""Which row counts to pad many datasets to: every shape is compiled once, every row of padding is computed with."""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def work(
    rows: Any, *, steps: float = 15, overhead: float = 14e-6, per_square: float = 10e-9, per_cube: float = 0.09e-9
) -> Any:
    """Seconds that one fit of `rows` rows takes: `steps · (overhead + per_square · rows² + per_cube · rows³)`.

    The numbers are those of a scaled RBF and noise in float64, measured on one core with 24 to 180 rows.
    """
    return steps * (overhead + per_square * rows**2 + per_cube * rows**3)


def plan_rows(
    sizes: Iterable[int] | np.ndarray,
    *,
    known: Iterable[int] = (),
    cost_of_shape: float = 1.0,
    work: Callable[[Any], Any] = work,
) -> tuple[int, ...]:
    """The row counts to pad datasets of these sizes to, each to the smallest that holds it: few shapes, little padding.

    Minimises `Σ_i work(rows of i) + cost_of_shape · (shapes that are not known)`. The shapes chosen from are the known ones
    and the sizes: as they are if at most 4 differ (a regular design), else rounded up to multiples of 8, so that later
    datasets find a known shape more often, and beyond 64 of those, the largest on each rung of a geometric ladder.
    """
    ordered = np.sort(np.maximum(np.fromiter(sizes, int), 1))
    if ordered.size == 0:
        return ()
    known = np.unique(np.fromiter(known, int))
    shapes = np.union1d(_candidates(ordered), known)
    price = np.where(np.isin(shapes, known), 0.0, cost_of_shape)
    # The cheapest plan that ends in shape j holds every dataset up to it, after the best one that ends in some i < j.
    held = np.append(np.searchsorted(ordered, shapes, side="right"), 0)
    best, before = np.zeros(len(shapes) + 1), np.full(len(shapes), -1)
    for j, shape in enumerate(shapes):
        earlier = np.append(np.arange(j), -1)
        costs = best[earlier] + (held[j] - held[earlier]) * work(float(shape))
        before[j] = earlier[costs.argmin()]
        best[j] = costs.min() + price[j]
    j = int(np.where(held[:-1] == ordered.size, best[:-1], np.inf).argmin())
    plan = []
    while j >= 0:
        if held[j] > held[before[j]]:
            plan.append(int(shapes[j]))
        j = before[j]
    return tuple(reversed(plan))


def _candidates(ordered: np.ndarray) -> np.ndarray:
    shapes = np.unique(np.maximum(ordered, 1))
    if len(shapes) > 4:
        shapes = np.unique(-(-shapes // 8) * 8)
    if len(shapes) > 64:
        rung = np.ceil(64 * np.log(shapes / shapes[0]) / np.log(shapes[-1] / shapes[0]))
        shapes = shapes[np.append(np.diff(rung) > 0, True)]
    return shapes


def bucket_of(size: int, shapes: Sequence[int]) -> int:
    """The smallest of the ascending `shapes` that holds `size` rows."""
    at = bisect.bisect_left(shapes, size)
    if at == len(shapes):
        raise ValueError(f"{size} rows fit into none of the shapes {tuple(shapes)}.")
    return shapes[at]


LEAST_ROWS = 16
"""Datasets are padded to no fewer: a spline's polynomials or ten folds cannot even be traced with less, and a dataset that
is too short for them must get its own status."""


def by_shape(items: Sequence[T], sizes: Sequence[int], shapes: Sequence[int]) -> list[tuple[int, list[T]]]:
    """Items of these sizes under the smallest of the ascending `shapes` that holds them; one row at the least."""
    members: dict[int, list[T]] = {rows: [] for rows in shapes}
    for item, size in zip(items, sizes, strict=True):
        members[bucket_of(max(size, 1), shapes)].append(item)
    return [(rows, own) for rows, own in members.items() if own]
