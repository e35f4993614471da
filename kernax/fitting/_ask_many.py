"""Questions to many fitted models at once: conditioned on their datasets, and at new points."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from kernax._threads import one_blas_thread
from kernax.data import Data
from kernax.data._many import HostData, host_rows, stacked, windows
from kernax.data._shapes import LEAST_ROWS, by_shape, plan_rows
from kernax.fitting._fits import as_result
from kernax.fitting._models import Models, check_groups, check_names
from kernax.fitting._programs import compiled
from kernax.fitting._streams import layout_for
from kernax.model import AbstractModel, AnyConditioned, condition
from kernax.posterior import Prediction, predict
from kernax.rows import Rows, as_row_dtype, check_same_columns, num_rows
from kernax.solvers import AbstractSolver, Cholesky

_MATRICES_PER_LANE, _BUDGET = 6, 2**30


class ConditionedMany:
    """Models conditioned on their datasets: `many[i]` is a `Conditioned`, for every function that takes one.

    It has the rows that its dataset was padded to: `c.data.mask` marks those that are its own, and of what comes row by row
    (`kx.loo_residuals(c)`) the others are 0. Datasets of a shape are kept in one batch, `many.batches`: the datasets'
    numbers, and a `Conditioned` with a leading axis for `jax.vmap`.
    """

    def __init__(self, batches: list[tuple[np.ndarray, Any]]):
        self.batches = batches
        self._places = {int(n): (batch, i) for batch, (numbers, _) in enumerate(batches) for i, n in enumerate(numbers)}

    def __len__(self):
        return len(self._places)

    def __getitem__(self, which: int) -> Any:
        number = int(which) + (len(self) if which < 0 else 0)
        if number not in self._places:
            raise IndexError(f"there are {len(self)} datasets, and none has the number {which}.")
        batch, place = self._places[number]
        arrays, rest = eqx.partition(self.batches[batch][1], eqx.is_array)
        return eqx.combine(jax.device_put(jax.tree.map(lambda leaf: leaf[place], arrays)), rest)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return f"ConditionedMany({len(self)} datasets in {len(self.batches)} shapes)"


def condition_many(models: Any, datasets: Any, solver: AbstractSolver | None = None) -> ConditionedMany:
    """Condition each model on its dataset: `condition`, many times. `models` may be `Fits`, a sequence, or one for all.

    All factors are kept, `n²` numbers for each dataset. Nothing raises for one of them: see `Conditioned.result`.
    """
    own_models, every = _matched(models, datasets)
    batches = []
    sizes = [max(data.n, LEAST_ROWS) for data in every]
    for rows, members in by_shape(every, sizes, plan_rows(sizes)):
        numbers = np.array([data.number for data in members])
        conditioned = _over_lanes(
            _condition_lane, own_models, numbers, (stacked(members, rows),), (solver or Cholesky(),), rows
        )
        batches.append((numbers, conditioned))
    return ConditionedMany(batches)


def predict_many(
    models: Any, datasets: Any, x: Any, *, noisy: bool = False, solver: AbstractSolver | None = None
) -> list[Prediction]:
    """Mean and variance of each model, conditioned on its dataset, at its own new points.

    `models` may be `Fits`, a sequence, or one for all; `x` holds one array of rows for each dataset (of any number of rows),
    in their order or in a dict by their names, or is one array for all. Without a usable model, or without data, the
    answers are NaN.
    """
    own_models, every = _matched(models, datasets)
    points = _points(x, every)
    if noisy:
        check_groups(own_models, [f"x of {data.name}" for data in every], points)
    answers: dict[int, Prediction] = {}
    sizes = [max(data.n, LEAST_ROWS) for data in every]
    for rows, members in by_shape(every, sizes, plan_rows(sizes)):
        new_sizes = [num_rows(points[data.number]) for data in members]
        for new_rows, some in by_shape(members, new_sizes, plan_rows(new_sizes)):
            numbers = np.array([data.number for data in some])
            counts = np.array([num_rows(points[number]) for number in numbers])
            x_new = _stacked_rows([points[number] for number in numbers], new_rows)
            given = (stacked(some, rows), x_new, new_rows - counts)
            how = _over_lanes(_predict_lane, own_models, numbers, given, (solver or Cholesky(), noisy), max(rows, new_rows))
            for i, (number, count) in enumerate(zip(numbers, counts, strict=True)):
                result = as_result(np.asarray(how.result._value[i]))
                answers[number] = Prediction(how.mean[i, :count], how.variance[i, :count], how.num_clamped[i], result)
    return [answers[data.number] for data in every]


def _condition_lane(model: AbstractModel, data: Data, solver: AbstractSolver) -> AnyConditioned:
    return condition(model, data, solver, throw=False)


def _predict_lane(
    model: AbstractModel, data: Data, x: Rows, padding: Int[Array, ""], solver: AbstractSolver, noisy: bool
) -> Prediction:
    c = condition(model, data, solver, throw=False)
    answer = predict(c, x, noisy=noisy)
    # Padding repeats the first row, so what is too many in the count is known from that one.
    first = predict(c, jax.tree.map(lambda leaf: leaf[:1], x), noisy=noisy).num_clamped
    return answer._replace(num_clamped=answer.num_clamped - padding * first)


def _matched(models: Any, datasets: Any) -> tuple[Models, list[HostData]]:
    """The models, in the data's floating type, and the datasets that belong to them."""
    every = [data for window in windows(datasets) for data in window]
    if not every:
        raise ValueError("there is no dataset.")
    known = Models.of(models)
    known.check_number(len(every))
    check_names(models, every)
    check_groups(known, [data.name for data in every], [data.x for data in every])
    return known.as_dtype(every[0].y.dtype), every


def _points(x: Any, datasets: list[HostData]) -> list[Any]:
    """New rows for every dataset, on the host, with the columns of its own."""
    if isinstance(x, str) or not isinstance(x, Iterable):
        raise TypeError(f"x must hold one array of rows for each dataset, or be one (m, d) for all, got {type(x).__name__}.")
    if isinstance(x, Mapping):
        if missing := [data.name for data in datasets if data.key not in x]:
            raise ValueError(
                f"x has no rows for {missing[0]}: give {{name: rows}} for every dataset, or one (m, d) for all."
            )
        x = [x[data.key] for data in datasets]
    given = [x] * len(datasets) if getattr(x, "ndim", 0) == 2 else list(x)
    if len(given) != len(datasets):
        raise ValueError(
            f"x has {len(given)} arrays for {len(datasets)} datasets: give one for each, or one (m, d) for all."
        )
    rows = []
    for own, data in zip(given, datasets, strict=True):
        name, dtype = f"x of {data.name}", data.y.dtype
        own = host_rows(own, name)
        check_same_columns(own, data.x, name, "its data")
        rows.append(as_row_dtype(own, dtype, like=data.x))
    return rows


def _stacked_rows(points: list[Any], rows: int) -> Any:
    """Rows padded with copies of the first (with 0 where there is none), and stacked."""

    def filled(*leaves: np.ndarray) -> np.ndarray:
        out = np.zeros((len(leaves), rows, *leaves[0].shape[1:]), leaves[0].dtype)
        for row, leaf in zip(out, leaves, strict=True):
            row[: len(leaf)] = leaf
            if len(leaf):
                row[len(leaf) :] = leaf[0]
        return out

    return jax.tree.map(filled, *points)


def _over_lanes(
    function: Any, models: Models, numbers: np.ndarray, given: tuple[PyTree, ...], settings: tuple[Any, ...], rows: int
) -> PyTree:
    """`function(model, *given, *settings)` of every dataset, as NumPy arrays with a leading dataset axis."""
    bytes_per_lane = _MATRICES_PER_LANE * models.dtype.itemsize * rows**2
    layout = layout_for(jax.local_devices()[:1], None, bytes_per_lane, _BUDGET, len(numbers))
    own, common = eqx.partition(models.model, lambda leaf: eqx.is_array(leaf) and models.number is not None)
    own = jax.tree.map(lambda leaf: leaf[numbers], own)
    lanes_each = layout.lanes
    while not layout.together and 4 * lanes_each * (2 * layout.workers - 1) <= len(numbers):
        lanes_each *= 4  # fewer calls, of few sizes, and still enough chunks to go round
    chunks = [np.arange(first, first + lanes_each) for first in range(0, len(numbers), lanes_each)]

    def chunk(lanes: np.ndarray) -> PyTree:
        # The last chunk repeats its last dataset, so that one program serves all.
        taken = jax.tree.map(lambda leaf: leaf[np.minimum(lanes, len(numbers) - 1)], (own, given))
        return jax.tree.map(np.asarray, _map_lanes(function, *taken, common, settings, layout.together))

    with one_blas_thread(), ThreadPoolExecutor(layout.workers) as pool:
        # The first alone: it compiles, and the others find its program.
        answers = [chunk(chunks[0]), *pool.map(chunk, chunks[1:])]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(numbers)], *answers)


@partial(compiled, for_lanes=True)
def _map_lanes(
    function: Any,
    own: AbstractModel | None,
    given: tuple[PyTree, ...],
    common: AbstractModel,
    settings: tuple[Any, ...],
    together: bool,
) -> PyTree:
    def lane(lane: tuple[AbstractModel | None, tuple[PyTree, ...]]) -> PyTree:
        own, given = lane
        return function(eqx.combine(own, common), *given, *settings)

    return jax.vmap(lane)((own, given)) if together else jax.lax.map(lane, (own, given))
