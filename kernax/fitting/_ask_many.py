"""Questions to many fitted models at once: conditioned on their datasets, and at new points."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kernax._bars import many_bar
from kernax.data import Data
from kernax.data._host import HostData, host_rows
from kernax.data._many import stacked_rows
from kernax.data._shapes import by_shape, plan_rows
from kernax.fitting._ask_block import asked
from kernax.fitting._engine import check_executor, windows_for
from kernax.fitting._fits import as_result
from kernax.fitting._models import Models, check_datasets, check_rows, solver_for_many
from kernax.model import AbstractModel, AnyConditioned, condition
from kernax.posterior import Prediction, predict
from kernax.rows import Rows, as_row_dtype, check_same_columns, num_rows
from kernax.solvers import AbstractSolver, FailedError, is_usable


class ConditionedMany:
    """Many models, each conditioned on its dataset. `many[i]` is a `Conditioned`.

    Its dataset is padded: `c.data.mask` marks the original rows, and the other entries of a result with one entry for each
    row (`kx.loo_residuals(c)`) are 0. Datasets of the same shape are kept in one batch. `many.batches` has the numbers of
    the datasets, and a `Conditioned` with a leading axis for `jax.vmap`. `many.missing` has the results of datasets that are
    in no batch, because they were `lost` with a worker process or are `unreadable`; `many[i]` raises `kx.FailedError` for
    those.
    """

    def __init__(self, batches: list[tuple[np.ndarray, Any]], missing: Mapping[int, Any]):
        self.batches = batches
        self.missing = missing
        self._places = {int(n): (batch, i) for batch, (numbers, _) in enumerate(batches) for i, n in enumerate(numbers)}

    def __len__(self):
        return len(self._places) + len(self.missing)

    def __getitem__(self, which: int) -> Any:
        number = int(which) + (len(self) if which < 0 else 0)
        if number in self.missing:
            raise FailedError(f"conditioning on dataset {number}", self.missing[number])
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
    models: Any,
    datasets: Any,
    solver: AbstractSolver | None = None,
    *,
    executor: Executor | None = None,
    progress: bool = False,
) -> ConditionedMany:
    """Condition each model on its dataset: `condition`, many times.

    All factors are kept, `n²` numbers for each dataset. No error is raised for a single dataset: see `Conditioned.result`.

    **Arguments:**

    - `models`: `Fits`, a sequence with one for each dataset, or one for all.
    - `datasets`: as in `fit_many`.
    - `solver`: `Cholesky()` by default.
    - `executor`: as in `fit_many`.
    - `progress`: show a progress bar.

    **Returns:**

    A `ConditionedMany`.
    """
    solver, own_models, every = _checked(solver, models, datasets, executor)
    by_rows: dict[int, list[tuple[np.ndarray, Any]]] = {}
    with many_bar(progress, len(every), "condition_many") as show:
        parts, missing = asked(_condition_lane, own_models, every, (solver,), executor, show=show)
    for numbers, part, _ in parts:
        by_rows.setdefault(part.data.mask.shape[1], []).append((numbers, part))
    batches = []
    for parts in by_rows.values():
        numbers = np.concatenate([numbers for numbers, _ in parts])
        order = np.argsort(numbers)
        whole = jax.tree.map(lambda *leaves, order=order: np.concatenate(leaves)[order], *(part for _, part in parts))
        batches.append((numbers[order], whole))
    return ConditionedMany(batches, missing)


def predict_many(
    models: Any,
    datasets: Any,
    x: Any,
    *,
    noisy: bool = False,
    solver: AbstractSolver | None = None,
    executor: Executor | None = None,
    progress: bool = False,
) -> list[Prediction]:
    """Mean and variance of each model, conditioned on its dataset, at its own new points.

    **Arguments:**

    - `models`: `Fits`, a sequence with one for each dataset, or one for all.
    - `datasets`: as in `fit_many`.
    - `x`: one array of rows for each dataset (of any number of rows), in their order or in a dict by their names; or one
      array for all.
    - `noisy`: add the noise variance, for the spread of a new observation instead of the function.
    - `solver`: `Cholesky()` by default.
    - `executor`: as in `fit_many`.
    - `progress`: show a progress bar.

    **Returns:**

    A list of `Prediction`. Without a usable model or without data the answers are NaN, and `result` says why.
    """
    solver, own_models, every = _checked(solver, models, datasets, executor)
    points = _points(x, every)
    check_rows(own_models, [f"x of {data.name}" for data in every], points, noisy=noisy)
    answers: dict[int, Prediction] = {}
    counts = [num_rows(own) for own in points]
    with many_bar(progress, len(every), "predict_many") as show:
        for new_rows, members in by_shape(every, counts, plan_rows(counts)):

            def given(some: list[HostData], new_rows: int = new_rows) -> tuple[Any, ...]:
                own = [points[data.number] for data in some]
                return stacked_rows(own, new_rows), np.array([new_rows - num_rows(rows) for rows in own])

            settings = (solver, noisy)
            parts, missing = asked(_predict_lane, own_models, members, settings, executor, given, new_rows, show)
            for number, why in missing.items():
                y, count = every[number].y, counts[number]
                mean, variance = np.full((count, *y.shape[1:]), np.nan, y.dtype), np.full(count, np.nan, y.dtype)
                answers[number] = Prediction._make([mean, variance, np.zeros((), np.int32), why])
            for numbers, how, _ in parts:
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
    progress: bool = False,
) -> Float[np.ndarray, " b"]:
    """A number for each dataset: a quantity of its model, conditioned on it.

    **Arguments:**

    - `models`: `Fits`, a sequence with one for each dataset, or one for all.
    - `datasets`: as in `fit_many`.
    - `quantity`: a function of a `Conditioned`, such as `kx.loo_mse` or `functools.partial(kx.kfold_mse, folds=5)`. It sees
      padded datasets, so it must count rows by `c.data.mask`.
    - `solver`: `Cholesky()` by default.
    - `executor`: as in `fit_many`.
    - `progress`: show a progress bar.

    **Returns:**

    A NumPy array in the order of the datasets; NaN without a usable model or without data.
    """
    solver, own_models, every = _checked(solver, models, datasets, executor)
    scores = np.full(len(every), np.nan, own_models.dtype)
    settings = (quantity, solver)
    with many_bar(progress, len(every), "score_many") as show:
        parts, _ = asked(_score_lane, own_models, every, settings, executor, show=show)
    for numbers, values, _ in parts:
        scores[numbers] = values
    return scores


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


def _checked(
    solver: Any, models: Any, datasets: Any, executor: Executor | None
) -> tuple[AbstractSolver, Models, list[HostData]]:
    """The solver, the models in the data's floating type, and the datasets that belong to them."""
    solver, known = solver_for_many(solver), Models.of(models)
    check_executor(executor)
    every = [data for window in windows_for(executor, known, datasets) for data in window]
    if not every:
        raise ValueError("there is no dataset.")
    known.check_number(len(every))
    check_datasets(models, known, every)
    return solver, known.as_dtype(every[0].y.dtype), every


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
