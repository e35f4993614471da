"""The default priors of `kx.forecasting.Seasonal`, measured on made series.

Series of every kind of `_made_series` (seeds that no other benchmark uses), without a season and with periods of 4, 7 and
12 steps. `Seasonal.fit_priors` for each period; the periods are pooled. Then `spread`: `Backtest.spread` of the shipped
priors on the same series. The last column compares the numbers with those in `kernax/forecasting/_seasonal.py`.
"""

import numpy as np

import kernax as kx
from benchmarks._made_series import KINDS, made
from benchmarks._options import Options
from benchmarks._table import Table

PERIODS, SERIES, FIRST_SEED = (1, 4, 7, 12), 16, 10_000
START = {
    "slope": -8.0,
    "walk": -2.0,
    "trend_variance": -1.0,
    "trend_lengthscale": 3.5,
    "season_variance": 0.0,
    "season_lengthscale": 0.0,
    "season_memory": 3.0,
    "short_variance": -1.0,
    "short_lengthscale": 0.7,
    "noise": -2.0,
}
"""Means of the logarithms from which the first round starts."""


def _series(period: int, number: int) -> list[np.ndarray]:
    """Five to twelve periods; without a season, 44 to 100 rows."""
    counts = [int(np.random.default_rng(seed).integers(5, 13)) for seed in range(FIRST_SEED, FIRST_SEED + number)]
    rows = [count * period if period > 1 else 8 * count + 4 for count in counts]
    return [made(kind, FIRST_SEED + i, count, period) for kind in KINDS for i, count in enumerate(rows)]


def _seasons(period: int) -> tuple[int, ...]:
    return (period,) if period > 1 else ()


def spread(number: int) -> float:
    """By how much standard deviations are too small without a `spread`: the geometric mean over the periods."""
    logs = []
    for period in PERIODS:
        model, horizon = kx.forecasting.Seasonal(_seasons(period), spread=1.0), period if period > 1 else 6
        backtest = kx.forecasting.backtest_many(_series(period, number), horizon, model=model, origins=1)
        logs.append(np.log(backtest.spread()))
    return float(np.exp(np.mean(logs)))


def measured(series: int) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the logarithm of each parameter."""
    found = []
    for period in PERIODS:
        start = {name: kx.priors.LogNormal(mean, 2.0) for name, mean in START.items()}
        found.append(kx.forecasting.Seasonal(_seasons(period), start).fit_priors(_series(period, series)).priors)
    pooled = {}
    for name in START:
        own = [priors[name] for period, priors in zip(PERIODS, found, strict=True) if period > 1 or "season" not in name]
        means, sds = (np.array([getattr(prior, part) for prior in own]) for part in ("mean", "sd"))
        pooled[name] = float(np.mean(means)), float(np.sqrt(np.mean(sds**2) + np.var(means)))
    return pooled


def run(given: Options) -> Table:
    """Print the priors."""
    table = Table("parameter", "mean of log", "sd of log", "shipped", widths=[20, 11, 11, 11])
    shipped = kx.forecasting.Seasonal().priors
    for name, (mean, sd) in measured(SERIES).items():
        apart = max(abs(mean - shipped[name].mean), abs(sd - shipped[name].sd))
        table.line(name, f"{mean:.2f}", f"{sd:.2f}", "same" if apart < 0.06 else f"{apart:.2f} apart")
    found = spread(SERIES)
    apart = abs(found - kx.forecasting.Seasonal().spread)
    table.line("spread", f"{found:.2f}", "", "same" if apart < 0.006 else f"{apart:.2f} apart")
    return table
