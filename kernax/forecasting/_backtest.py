"""Backtests: forecasts from several origins inside each series, and their scores."""

import dataclasses
from collections.abc import Hashable
from concurrent.futures import Executor
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from kernax._arrays import whole_number
from kernax.forecasting._forecast import MAX_STEPS, checked_model, forecast_arrays
from kernax.forecasting._scores import coverage, gaussian_crps, half_width, naive_error
from kernax.forecasting._seasonal import Seasonal
from kernax.forecasting._series import series_of

LEVELS = (0.5, 0.8, 0.95)
_SHOWN = 10
"""Series that are printed."""


@dataclasses.dataclass(frozen=True, repr=False)
class Backtest:
    """Forecasts from several origins of each series, with the observed values. `print` shows the scores.

    To score the forecasts of another method at the same origins, replace these forecasts by them:
    `dataclasses.replace(backtest, mean=…, sd=…)`.
    """

    keys: tuple[Hashable, ...]
    """The name of the series of each forecast."""
    origins: Int[np.ndarray, " b"]
    """How many steps of the series each forecast is based on."""
    observed: Float[np.ndarray, "b horizon"]
    """The values observed afterwards; NaN where a value is missing."""
    mean: Float[np.ndarray, "b horizon"]
    """The means of the forecasts."""
    sd: Float[np.ndarray, "b horizon"]
    """The standard deviations of the forecasts."""
    unit: Float[np.ndarray, " b"]
    """The error of the seasonal naive forecast in the rows before the origin: MASE and CRPS are in this unit."""
    results: tuple[str, ...]
    """How each fit ended."""
    too_short: tuple[Hashable, ...] = ()
    """The series that have too few values before the first origin, and were left out."""

    @property
    def errors(self) -> Float[np.ndarray, "b horizon"]:
        """Absolute errors, in units of the naive error."""
        return np.abs(self.observed - self.mean) / self.unit[:, None]

    @property
    def crps(self) -> Float[np.ndarray, "b horizon"]:
        """The CRPS of each forecast, in units of the naive error."""
        return gaussian_crps(self.observed, self.mean, self.sd) / self.unit[:, None]

    def table(self) -> dict[str, np.ndarray]:
        """Scores of each series: the averages over its origins and steps.

        **Returns:**

        Columns for `pandas.DataFrame`: `series`, `origins`, `mase`, `crps`, and `coverage_50`, `coverage_80`, `coverage_95`,
        the shares of values inside these intervals.
        """
        numbers: dict[Hashable, list[int]] = {}
        for place, key in enumerate(self.keys):
            numbers.setdefault(key, []).append(place)
        names = np.empty(len(numbers), object)
        names[:] = list(numbers)
        own = {"origins": np.array([len(some) for some in numbers.values()])}
        scores = {name: np.array([_mean(values[some]) for some in numbers.values()]) for name, values in self._each()}
        return {"series": names, **own, **scores}

    def overall(self) -> dict[str, float]:
        """Scores of all series: the averages over the series.

        **Returns:**

        A dict with `mase`, `crps`, `coverage_50`, `coverage_80` and `coverage_95`.
        """
        return {name: _mean(values) for name, values in self.table().items() if name not in ("series", "origins")}

    def spread(self, level: float = 0.8) -> float:
        """The factor by which standard deviations are too small: with it, intervals of this level have the right coverage.

        **Arguments:**

        - `level`: the probability of the intervals.

        **Returns:**

        A number to multiply the `spread` of the model by: `dataclasses.replace(model, spread=model.spread * …)`.
        """
        scores = np.abs(self.observed - self.mean) / self.sd
        return float(np.quantile(scores[np.isfinite(scores)], level) / half_width(level))

    def _each(self) -> list[tuple[str, np.ndarray]]:
        covered = [(f"coverage_{level * 100:.0f}", coverage(self.observed, self.mean, self.sd, level)) for level in LEVELS]
        return [("mase", self.errors), ("crps", self.crps), *covered]

    def __repr__(self):
        columns, whole = self.table(), self.overall()
        number = len(columns["series"])
        lines = [[str(name) for name in columns]]
        lines += [
            [str(columns[name][i]) if name in ("series", "origins") else f"{columns[name][i]:.3f}" for name in columns]
            for i in range(min(number, _SHOWN))
        ]
        lines.append(["all", str(len(self.keys)), *(f"{value:.3f}" for value in whole.values())])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines
        ]
        if number > _SHOWN:
            text.insert(-1, f"… {number - _SHOWN} more series: see .table()")
        failed = int(np.sum(~np.isfinite(self.mean).all(axis=1)))
        head = f"Backtest of {number} series, horizon {self.observed.shape[1]}, {len(self.keys)} forecasts"
        head += f", {failed} failed" if failed else ""
        head += f", {len(self.too_short)} series too short" if self.too_short else ""
        return "\n".join([head, *text])


def backtest_many(
    series: Any,
    horizon: int,
    *,
    model: Seasonal | None = None,
    origins: int = 3,
    stride: int | None = None,
    max_steps: int = MAX_STEPS,
    executor: Executor | None = None,
    progress: bool = False,
) -> Backtest:
    """Forecast each series from several origins inside it, and score the forecasts with the values that followed.

    The model is fitted again for every series and origin, all by one call of `fit_many`. After the last origin the series
    has `horizon` more steps.

    **Arguments:**

    - `series`: as in [`kernax.forecasting.forecast_many`][].
    - `horizon`: how many steps to forecast.
    - `model`: a [`kernax.forecasting.Seasonal`][]; without a season if `None`.
    - `origins`: how many origins each series has.
    - `stride`: steps between two origins; `horizon` if `None`.
    - `max_steps`, `executor`, `progress`: as in `fit_many`.

    **Returns:**

    A [`kernax.forecasting.Backtest`][]. Series with fewer values before the first origin than two periods and two steps are
    left out and listed in its `too_short`. Raises `ValueError` if all series are too short.
    """
    model, every = checked_model(model), series_of(series)
    horizon, origins = whole_number(horizon, "horizon"), whole_number(origins, "origins")
    stride = horizon if stride is None else whole_number(stride, "stride")
    period = round(min(model.periods, default=1.0))
    needed = 2 + 2 * round(max(model.periods, default=1.0))
    keys, cuts, known, observed, too_short = [], [], [], [], []
    for name, values in every.items():
        first = len(values) - horizon - (origins - 1) * stride
        if first < 1 or np.isfinite(values[:first]).sum() < needed:
            too_short.append(name)
            continue
        for cut in range(first, len(values) - horizon + 1, stride):
            keys.append(name)
            cuts.append(cut)
            known.append(values[:cut])
            observed.append(np.asarray(values[cut : cut + horizon], float))
    if not keys:
        raise ValueError(
            f"no series is long enough: {origins} origins, a horizon of {horizon} and {needed} values before the first "
            f"origin need {needed + horizon + (origins - 1) * stride} steps. Give fewer origins or a smaller horizon."
        )
    means, sds, ended = forecast_arrays(model, known, horizon, max_steps, executor, progress)
    return Backtest(
        keys=tuple(keys),
        origins=np.array(cuts),
        observed=np.stack(observed),
        mean=means,
        sd=sds,
        unit=np.array([naive_error(values, period) for values in known]),
        results=tuple(ended),
        too_short=tuple(too_short),
    )


def _mean(values: np.ndarray) -> float:
    """The mean of what is known; NaN if nothing is."""
    known = values[np.isfinite(values)]
    return float(np.mean(known)) if known.size else float("nan")
