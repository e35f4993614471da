"""Forecasts against AutoETS and AutoARIMA of statsforecast: errors, CRPS, coverage of intervals, and series per second.

Made series of five kinds (`_made_series`: other seeds than those of the priors), monthly with 60 to 120 rows, quarterly with
32 to 64 and without a season with 30 to 80; and those that statsmodels ships, monthly and quarterly. One origin for the made
ones, three for the others; the horizon is a period (6 without a season). Every method forecasts the same origins.
The last lines are ours alone, for more of the made series: coverage of few series is uncertain by several points.

MASE and CRPS are in units of the seasonal naive error, averaged over series. `50`, `80` and `95` are the shares of values
inside the intervals. All methods are scored as normal forecasts; statsforecast's standard deviation follows from its 95 %
interval. Needs the extra `bench`.
"""

import dataclasses
import time
import warnings
from typing import Any

import numpy as np

import kernax as kx
from benchmarks._made_series import KINDS, made
from benchmarks._options import Options
from benchmarks._table import Table

SEEDS, MORE_SEEDS = 12, 50
_WIDTHS = 18, 10, 9, 6, 6, 6, 6, 6, 8
HALF_WIDTH = 1.959963984540054


def made_sets(seeds: int = SEEDS) -> dict[str, tuple[dict[str, np.ndarray], int, int, int]]:
    """Series, period, horizon and origins of each set."""
    sets = {}
    for name, period, shortest, longest in (("monthly", 12, 60, 120), ("quarterly", 4, 32, 64), ("no season", 1, 30, 80)):
        own = {}
        for kind in KINDS:
            for seed in range(seeds):
                rows = int(np.random.default_rng([seed, period]).integers(shortest, longest + 1))
                own[f"{kind}-{seed}"] = made(kind, seed, rows, period)
        sets[f"made, {name}"] = own, period, period if period > 1 else 6, 1
    return sets


def shipped_sets() -> dict[str, tuple[dict[str, np.ndarray], int, int, int]]:
    """Series that come with statsmodels, without missing values at their beginning."""
    from statsmodels.datasets import co2, elnino, macrodata, nile, sunspots

    weekly = co2.load_pandas().data["co2"]
    monthly = weekly.resample("MS").mean().interpolate().to_numpy()
    sea = elnino.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()
    economy = macrodata.load_pandas().data.drop(columns=["year", "quarter"])
    yearly = {"nile": nile.load_pandas().data["volume"], "sunspots": sunspots.load_pandas().data["SUNACTIVITY"]}
    return {
        "shipped, monthly": ({"co2": monthly[-180:], "elnino": sea[-180:]}, 12, 12, 3),
        "shipped, quarterly": ({name: economy[name].to_numpy(float) for name in economy}, 4, 4, 3),
        "shipped, yearly": ({name: values.to_numpy(float) for name, values in yearly.items()}, 1, 6, 3),
    }


def peers_of(backtest: kx.forecasting.Backtest, known: list[np.ndarray], period: int) -> dict[str, tuple[Any, float]]:
    """What AutoETS and AutoARIMA forecast from the same origins, and their seconds."""
    import pandas as pd
    from statsforecast import StatsForecast
    from statsforecast.models import AutoARIMA, AutoETS

    horizon = backtest.observed.shape[1]
    names = [f"{i:05d}" for i in range(len(known))]
    frame = pd.concat(
        [
            pd.DataFrame({"unique_id": name, "ds": np.arange(1, len(values) + 1), "y": values})
            for name, values in zip(names, known, strict=True)
        ]
    )
    answers = {}
    for kind in (AutoETS, AutoARIMA):
        label = kind.__name__
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = StatsForecast(models=[kind(season_length=period)], freq=1, n_jobs=1).forecast(
                df=frame, h=horizon, level=[95]
            )
        seconds = time.perf_counter() - begun
        found = found.sort_values(["unique_id", "ds"])
        mean = found[label].to_numpy(float).reshape(-1, horizon)
        sd = (found[f"{label}-hi-95"] - found[f"{label}-lo-95"]).to_numpy(float).reshape(-1, horizon) / (2 * HALF_WIDTH)
        answers[label] = dataclasses.replace(backtest, mean=mean, sd=sd), seconds
    return answers


def run(given: Options) -> Table:
    """Print a line for each set and method."""
    table = Table("series", "method", "forecasts", "MASE", "CRPS", "50", "80", "95", "series/s", widths=_WIDTHS)
    for name, (series, period, horizon, origins) in (made_sets() | shipped_sets()).items():
        model = kx.forecasting.Seasonal(periods=period if period > 1 else ())
        kx.forecasting.backtest_many(series, horizon, model=model, origins=origins)
        begun = time.perf_counter()
        ours = kx.forecasting.backtest_many(series, horizon, model=model, origins=origins)
        seconds = time.perf_counter() - begun
        known = [series[key][:cut] for key, cut in zip(ours.keys, ours.origins, strict=True)]
        every = {"kernax": (ours, seconds)} | peers_of(ours, known, period)
        for method, (backtest, spent) in every.items():
            scores = [f"{value:.3f}" for value in backtest.overall().values()]
            table.line(name, method, str(len(ours.keys)), *scores, f"{len(ours.keys) / spent:.1f}")
    for name, (series, period, horizon, origins) in made_sets(MORE_SEEDS).items():
        model = kx.forecasting.Seasonal(periods=period if period > 1 else ())
        ours = kx.forecasting.backtest_many(series, horizon, model=model, origins=origins)
        scores = [f"{value:.3f}" for value in ours.overall().values()]
        table.line(name, "kernax", str(len(ours.keys)), *scores, "–")
    return table
