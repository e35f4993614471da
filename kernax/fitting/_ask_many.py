"""Questions to many fitted models at once: conditioned on their datasets, and at new points."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from kernax._programs import compiled
from kernax.data import Data
from kernax.data._many import HostData, host_rows, windows
from kernax.data._shapes import by_shape, plan_rows
from kernax.fitting._blocks import Block, Site, Spec, Work, compiled_once
from kernax.fitting._engine import run_blocks
from kernax.fitting._fits import as_result
from kernax.fitting._models import Models, check_groups, check_names
from kernax.fitting._plan import blocks_of, bytes_of, room_for, shapes_for
from kernax.model import AbstractModel, AnyConditioned, condition
from kernax.posterior import Prediction, predict
from kernax.rows import Rows, as_row_dtype, check_same_columns, num_rows
from kernax.solvers import AbstractSolver, Cholesky, is_usable

_MATRICES, _BUDGET = 6, 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class AskWork(Work):
    """A function of each dataset and its model."""

    common: AbstractModel
    function: Callable[..., PyTree]
    """`function(model, data, *given, *settings)`."""
    settings: tuple[Any, ...]

    def __call__(self, block: Block, site: Site):
        given = (block.own, block.data, block.given)
        call = partial(_map_lanes, self.function, *given, self.common, self.settings, site.at_once)
        return compiled_once(site, _shape(block), call)


def _shape(block: Block) -> Any:
    return tuple(leaf.shape for leaf in jax.tree.leaves((block.data, block.given)))


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


def condition_many(
    models: Any, datasets: Any, solver: AbstractSolver | None = None, *, executor: Executor | None = None
) -> ConditionedMany:
    """Condition each model on its dataset: `condition`, many times.

    All factors are kept, `n²` numbers for each dataset. Nothing raises for one of them: see `Conditioned.result`.

    **Arguments:**

    - `models`: `Fits`, a sequence with one for each dataset, or one for all.
    - `datasets`: as in `fit_many`.
    - `solver`: `Cholesky()` by default.
    - `executor`: as in `fit_many`.

    **Returns:**

    A `ConditionedMany`.
    """
    own_models, every = _matched(models, datasets)
    by_rows: dict[int, list[tuple[np.ndarray, Any]]] = {}
    for numbers, part in _asked(_condition_lane, own_models, every, (solver or Cholesky(),), executor):
        by_rows.setdefault(part.data.mask.shape[1], []).append((numbers, part))
    batches = []
    for parts in by_rows.values():
        numbers = np.concatenate([numbers for numbers, _ in parts])
        order = np.argsort(numbers)
        whole = jax.tree.map(lambda *leaves, order=order: np.concatenate(leaves)[order], *(part for _, part in parts))
        batches.append((numbers[order], whole))
    return ConditionedMany(batches)


def predict_many(
    models: Any,
    datasets: Any,
    x: Any,
    *,
    noisy: bool = False,
    solver: AbstractSolver | None = None,
    executor: Executor | None = None,
) -> list[Prediction]:
    """Mean and variance of each model, conditioned on its dataset, at its own new points.

    **Arguments:**

    - `models`: `Fits`, a sequence with one for each dataset, or one for all.
    - `datasets`: as in `fit_many`.
    - `x`: one array of rows for each dataset (of any number of rows), in their order or in a dict by their names; or one
      array for all.
    - `noisy`: predict targets, not the function.
    - `solver`: `Cholesky()` by default.
    - `executor`: as in `fit_many`.

    **Returns:**

    A list of `Prediction`. Without a usable model, or without data, the answers are NaN.
    """
    own_models, every = _matched(models, datasets)
    points = _points(x, every)
    if noisy:
        check_groups(own_models, [f"x of {data.name}" for data in every], points)
    answers: dict[int, Prediction] = {}
    counts = [num_rows(own) for own in points]
    for new_rows, members in by_shape(every, counts, plan_rows(counts)):

        def given(some: list[HostData], new_rows: int = new_rows) -> tuple[Any, ...]:
            own = [points[data.number] for data in some]
            return _stacked_rows(own, new_rows), np.array([new_rows - num_rows(rows) for rows in own])

        settings = (solver or Cholesky(), noisy)
        for numbers, how in _asked(_predict_lane, own_models, members, settings, executor, given, new_rows):
            for i, number in enumerate(numbers):
                result, count = as_result(np.asarray(how.result._value[i])), counts[number]
                answers[number] = Prediction(how.mean[i, :count], how.variance[i, :count], how.num_clamped[i], result)
    return [answers[data.number] for data in every]


def score_many(
    models: Any,
    datasets: Any,
    quantity: Callable[[Any], Float[Array, ""]],
    *,
    solver: AbstractSolver | None = None,
    executor: Executor | None = None,
) -> Float[np.ndarray, " b"]:
    """A number for each dataset: a quantity of its model, conditioned on it.

    **Arguments:**

    - `models`: `Fits`, a sequence with one for each dataset, or one for all.
    - `datasets`: as in `fit_many`.
    - `quantity`: a function of a `Conditioned`, such as `kx.loo_mse` or `functools.partial(kx.kfold_mse, k=5)`. It sees
      padded datasets: it is to count rows by `c.data.mask`.
    - `solver`: `Cholesky()` by default.
    - `executor`: as in `fit_many`.

    **Returns:**

    A NumPy array in the order of the datasets; NaN without a usable model or without data.
    """
    own_models, every = _matched(models, datasets)
    scores = np.full(len(every), np.nan, own_models.dtype)
    for numbers, values in _asked(_score_lane, own_models, every, (quantity, solver or Cholesky()), executor):
        scores[numbers] = values
    return scores


def _asked(
    function: Callable[..., PyTree],
    models: Models,
    datasets: list[HostData],
    settings: tuple[Any, ...],
    executor: Executor | None,
    given: Any = None,
    rows: int = 0,
) -> list[tuple[np.ndarray, PyTree]]:
    """`function(model, data, *given, *settings)` of every dataset: numbers of datasets, and arrays with a leading axis."""
    devices = jax.local_devices()[:1]
    room = room_for(executor, devices, None, _BUDGET)
    blocks = blocks_of(datasets, models, shapes_for(datasets, room), room, matrices=_MATRICES, given=given)
    workers = room.workers_for(max(bytes_of(blocks, _MATRICES), _MATRICES * 8 * rows**2))
    parts: list[tuple[np.ndarray, PyTree]] = []
    spec = Spec.of(AskWork(models.parted()[1], function, settings), None)
    lost = run_blocks(spec, blocks, parts.append, executor=executor, devices=devices, workers=workers)
    if lost:
        numbers = sorted(int(number) for block in lost for number in block.numbers)
        raise RuntimeError(
            f"worker processes died twice over {len(numbers)} datasets, the first of them number {numbers[0]}."
        )
    return parts


def _condition_lane(model: AbstractModel, data: Data, solver: AbstractSolver) -> AnyConditioned:
    return condition(model, data, solver, throw=False)


def _score_lane(model: AbstractModel, data: Data, quantity: Any, solver: AbstractSolver) -> Float[Array, ""]:
    c = condition(model, data, solver, throw=False)
    return jnp.where(is_usable(c.result), quantity(c), jnp.nan)


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


@partial(compiled, for_lanes=True)
def _map_lanes(
    function: Any, own: Any, data: Data, given: tuple, common: AbstractModel, settings: tuple, at_once: bool
) -> PyTree:
    def lane(lane: tuple[Any, Data, tuple[Any, ...]]) -> PyTree:
        own, data, given = lane
        return function(eqx.combine(own, common), data, *given, *settings)

    return jax.vmap(lane)((own, data, given)) if at_once else jax.lax.map(lane, (own, data, given))
