"""Thousands of rows of real data: fit and predict with `kx.Vecchia()`, compilation included.

UCI sets, split 0, standardised by the training part (errors are in those units), Matérn-3/2 with a lengthscale for each
column, maximum likelihood from lengthscales of √d and a noise of 0.1. The noise is at least 1e-6 and the variance at most
100: bike's targets are a function of its columns, so without bounds the fit goes to the limit of float64. Each set runs in a
process of its own. NLPD is the mean negative log density of the test targets. Beside the errors stand those published for
exact Gaussian processes.
"""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import kernax as kx
from benchmarks import _fresh, _quiet, _uci
from benchmarks._options import Options
from benchmarks._table import Table


class Goal(NamedTuple):
    rmse: float
    nlpd: float
    seconds: float
    published: float
    """The test error of an exact Gaussian process."""


GOALS = {
    "protein": Goal(0.495, 0.56, 90.0, 0.536),
    "pol": Goal(0.080, -1.2, 90.0, 0.151),
    "bike": Goal(0.015, -4.8, 90.0, 0.220),
}


def run(options: Options) -> Table:
    table = Table("set", "rows", "RMSE", "goal", "published", "NLPD", "goal", "seconds", "goal", "steps", "ended", "verdict")
    for name in _uci.available(options, tuple(GOALS)):
        if not _quiet.wait(options.wait):
            print("(next line: the machine was busy with other work)")
        goal = GOALS[name]
        rows, rmse, nlpd, seconds, steps, ended = _fresh.call("benchmarks.large_accuracy:fitted", str(options.data), name)
        met = rmse <= goal.rmse and nlpd <= goal.nlpd and seconds <= goal.seconds
        table.line(
            *(name, rows, f"{rmse:.4f}", f"≤ {goal.rmse:g}", goal.published, f"{nlpd:.3f}", f"≤ {goal.nlpd:g}"),
            *(f"{seconds:.1f}", f"≤ {goal.seconds:g}", steps, ended, "met" if met else "missed"),
        )
    return table


def fitted(folder: str, name: str) -> tuple[int, float, float, float, int, str]:
    """Rows, test error, NLPD, seconds, evaluations and status of one set."""
    split = _uci.load(Path(folder), name)
    begun = time.perf_counter()
    data = kx.Data(split.x, split.y)
    d = split.x.shape[1]
    model = kx.Model(1.0 * kx.Matern32(lengthscale=np.full(d, np.sqrt(d))), noise=0.1)
    model = kx.with_bijector(model, lambda m: m.noise, kx.bijectors.Positive(floor=1e-6))
    model = kx.with_bijector(model, lambda m: m.kernel.variance, kx.bijectors.Positive(ceiling=100.0))
    fit = kx.fit(model, data, solver=kx.Vecchia())
    prediction = kx.predict(kx.condition(fit.model, data, kx.Vecchia()), split.x_test, noisy=True)
    mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
    seconds = time.perf_counter() - begun
    error = mean - split.y_test
    rmse = float(np.sqrt(np.mean(error**2)))
    nlpd = float(np.mean(0.5 * (error**2 / variance + np.log(2 * np.pi * variance))))
    return len(split.y), rmse, nlpd, seconds, int(fit.num_steps), kx.solvers.result_name(fit.result)
