"""One million rows in three columns: a fit with `kx.Vecchia()`, then 100,000 predictions, in time and memory.

The targets are a sum of waves with noise of variance 0.01, so the noise that the fit finds and the share of new targets
inside 95 % intervals can be checked. A process of its own, compilation included. `--sizes` are other numbers of rows.
"""

import resource
import time

import numpy as np

import kernax as kx
from benchmarks import _fresh, _quiet
from benchmarks._options import Options
from benchmarks._table import Table

NEW = 100_000
NOISE = 0.01
SECONDS, GIGABYTES = 300.0, 4.0


def run(options: Options) -> Table:
    headings = ("rows", "fit, s", "predict, s", "all, s", "goal", "GB", "goal", "steps", "ended", "noise", "inside 95 %")
    table = Table(*headings, "verdict")
    for n in options.sizes_or(1_000_000):
        if not _quiet.wait(options.wait):
            print("(next line: the machine was busy with other work)")
        fit, predict, steps, ended, noise, inside, memory = _fresh.call("benchmarks.million:fitted", n)
        met = fit + predict <= SECONDS and memory <= GIGABYTES
        sound = abs(noise / NOISE - 1) < 0.1 and abs(inside - 0.95) < 0.01
        table.line(
            *(n, f"{fit:.0f}", f"{predict:.0f}", f"{fit + predict:.0f}", f"≤ {SECONDS:g}", f"{memory:.2f}"),
            *(f"≤ {GIGABYTES:g}", steps, ended, f"{noise:.5f}", f"{inside:.4f}"),
            ("met" if met else "missed") if sound else "DISAGREE",
        )
    return table


def fitted(n: int) -> tuple[float, float, int, str, float, float, float]:
    """Seconds of the fit and of the predictions, evaluations, status, noise, coverage, and the most memory in GB."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 10.0, size=(n + NEW, 3))
    y = np.sin(x[:, 0]) + np.cos(2 * x[:, 1]) * np.sin(x[:, 2]) + np.sqrt(NOISE) * rng.normal(size=n + NEW)
    begun = time.perf_counter()
    data = kx.Data(x[:n], y[:n])
    model = kx.initialise(kx.Model(1.0 * kx.Matern32(lengthscale=np.ones(3)), noise=0.1), data)
    fit = kx.fit(model, data, solver=kx.Vecchia())
    fitted = time.perf_counter()
    prediction = kx.predict(kx.condition(fit.model, data, kx.Vecchia()), x[n:], noisy=True)
    mean, variance = np.asarray(prediction.mean), np.asarray(prediction.variance)
    done = time.perf_counter()
    inside = float(np.mean(np.abs(mean - y[n:]) < 1.96 * np.sqrt(variance)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    ended = kx.solvers.result_name(fit.result)
    return fitted - begun, done - fitted, int(fit.num_steps), ended, float(fit.model.noise), inside, memory
