"""Forecasts: fit each series, and predict the steps after its end."""

import dataclasses
from collections.abc import Hashable
from concurrent.futures import Executor
from typing import Any

import numpy as np
from jaxtyping import Float

from kernax._arrays import whole_number
from kernax.fitting import predict_many
from kernax.forecasting._scores import half_width
from kernax.forecasting._seasonal import Seasonal, fit_series
from kernax.forecasting._series import check_observed, one_series, rows_of, series_of, standardised, steps_of
from kernax.solvers import result_name

MAX_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Normal forecasts of the steps after the end of a series, in the units of the series."""

    mean: Float[np.ndarray, " horizon"]
    sd: Float[np.ndarray, " horizon"]
    """Standard deviations of new observations, noise included. NaN if the model could not be fitted."""
    result: str
    """How the fit ended."""

    def interval(self, level: float = 0.95) -> tuple[Float[np.ndarray, " horizon"], Float[np.ndarray, " horizon"]]:
        """The ends of the central interval of each step.

        **Arguments:**

        - `level`: its probability.

        **Returns:**

        Two arrays: lower and upper ends.
        """
        half = half_width(level) * self.sd
        return self.mean - half, self.mean + half


def forecast(series: Any, horizon: int, *, model: Seasonal | None = None, max_steps: int = MAX_STEPS) -> Forecast:
    """Forecast one series.

    **Arguments:**

    - `series`: one value for each step, NaN where it is missing.
    - `horizon`: how many steps to forecast.
    - `model`: a [`kernax.forecasting.Seasonal`][]; without a season if `None`.
    - `max_steps`: as in `fit`.

    **Returns:**

    A [`kernax.forecasting.Forecast`][].
    """
    return forecast_many([one_series(series, "the series")], horizon, model=model, max_steps=max_steps)[0]


def forecast_many(
    series: Any,
    horizon: int,
    *,
    model: Seasonal | None = None,
    max_steps: int = MAX_STEPS,
    executor: Executor | None = None,
    progress: bool = False,
) -> dict[Hashable, Forecast]:
    """Forecast many series. Each has its own fit, and one call of `fit_many` makes all fits.

    **Arguments:**

    - `series`: a list or dict of arrays, each with one value for each step, NaN where it is missing. Lengths may differ.
    - `horizon`: how many steps to forecast.
    - `model`: a [`kernax.forecasting.Seasonal`][] for all series; without a season if `None`.
    - `max_steps`, `executor`, `progress`: as in `fit_many`.

    **Returns:**

    A dict of [`kernax.forecasting.Forecast`][] by the names of the series, or by their numbers.
    """
    every = series_of(series)
    for name, values in every.items():
        check_observed(values, name)
    means, sds, ended = forecast_arrays(checked_model(model), list(every.values()), horizon, max_steps, executor, progress)
    parts = zip(every, means, sds, ended, strict=True)
    return {name: Forecast(mean, sd, result) for name, mean, sd, result in parts}


def forecast_arrays(
    model: Seasonal, every: list[np.ndarray], horizon: int, max_steps: int, executor: Executor | None, progress: bool
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Means and standard deviations `(series, horizon)`, and how each fit ended."""
    horizon = whole_number(horizon, "horizon")
    kind = np.result_type(*every)  # one program serves all
    scaled = [standardised(values.astype(kind)) for values in every]
    datasets = [rows_of(values) for values, _, _ in scaled]
    points = [steps_of(len(values) + np.arange(horizon), len(values), kind) for values in every]
    fits = fit_series(model, datasets, max_steps, progress, executor)
    answers = predict_many(fits, datasets, points, noisy=True, solver=fits.settings.solver, executor=executor)
    centre, scale = (np.array(column)[:, None] for column in zip(*((c, s) for _, c, s in scaled), strict=True))
    means = centre + scale * np.stack([np.asarray(answer.mean, float) for answer in answers])
    sds = model.spread * scale * np.sqrt(np.stack([np.asarray(answer.variance, float) for answer in answers]))
    lost = ~np.isfinite(np.asarray(fits.value))
    means[lost], sds[lost] = np.nan, np.nan
    ended = [
        result_name(answer.result) if np.isnan(sd).any() and not gone else str(name)
        for answer, sd, name, gone in zip(answers, sds, fits.result_names, lost, strict=True)
    ]
    return means, sds, ended


def checked_model(model: Seasonal | None) -> Seasonal:
    model = Seasonal() if model is None else model
    if not isinstance(model, Seasonal):
        raise TypeError(f"model must be a kx.forecasting.Seasonal, such as Seasonal(periods=12), got {model!r}.")
    return model
