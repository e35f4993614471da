"""The default priors of `kx.forecasting.Seasonal`, measured on made series.

Series of every kind of `_made_series` (seeds that no other benchmark uses), with periods of 4, 7 and 12 steps and 5 to 12
periods. `Seasonal.fit_priors` twice for each period, the second time from the answer of the first; the periods are pooled. The
printed numbers are those in `kernax/forecasting/_seasonal.py`, rounded; the last column is their distance from those.
"""

import numpy as np

import kernax as kx
from benchmarks._made_series import KINDS, made
from benchmarks._options import Options
from benchmarks._table import Table

PERIODS, SERIES, FIRST_SEED = (4, 7, 12), 16, 10_000
START = {
    "slope": -8.0,
    "walk": -4.0,
    "trend_variance": 0.0,
    "trend_lengthscale": 3.5,
    "season_variance": 0.0,
    "season_lengthscale": 0.0,
    "season_memory": 3.0,
    "short_variance": -1.0,
    "short_lengthscale": 1.5,
    "noise": -2.0,
}
"""Means of the logarithms from which the first round starts."""


def measured(series: int) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the logarithm of each parameter."""
    found = []
    for period in PERIODS:
        own = []
        for kind in KINDS:
            for seed in range(FIRST_SEED, FIRST_SEED + series):
                own.append(made(kind, seed, int(np.random.default_rng(seed).integers(5, 13)) * period, period))
        model = kx.forecasting.Seasonal(period, {name: kx.priors.LogNormal(mean, 2.0) for name, mean in START.items()})
        found.append(model.fit_priors(own).fit_priors(own).priors)
    pooled = {}
    for name in START:
        means, sds = (np.array([getattr(priors[name], part) for priors in found]) for part in ("mean", "sd"))
        pooled[name] = float(np.mean(means)), float(np.sqrt(np.mean(sds**2) + np.var(means)))
    return pooled


def run(given: Options) -> Table:
    """Print the priors."""
    table = Table("parameter", "mean of log", "sd of log", "shipped", widths=[20, 11, 11, 11])
    shipped = kx.forecasting.Seasonal().priors
    for name, (mean, sd) in measured(SERIES).items():
        apart = max(abs(mean - shipped[name].mean), abs(sd - shipped[name].sd))
        table.line(name, f"{mean:.2f}", f"{sd:.2f}", "same" if apart < 0.06 else f"{apart:.2f} apart")
    return table
