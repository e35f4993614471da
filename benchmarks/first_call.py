"""First calls: what a user waits for in a new process, compilation included, beside scikit-learn's equivalent.

Every call has a fresh process of its own without a compilation cache, d = 2, float64; imports and what a call builds on (the
data, a conditioned model) are not timed. The least of a few processes counts. "all in turn" is one process that makes every
call once. scikit-learn compiles nothing: its time is that of the computation alone. Where it has no such function, there is
a dash.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import _fresh, _quiet
from benchmarks._options import Options
from benchmarks._table import Table, verdict

MOST_TURNS = 3
GOALS = {
    "fit": (0.62, 0.62),
    "condition": (0.25, 0.25),
    "log_marginal_likelihood": (0.25, 0.25),
    "report": (0.3, 0.3),
    "select_ridge": (0.75, 1.05),
    "compare_selectors": (4.0, 4.0),
    "SVR": (2.0, 2.0),
    "SVC": (1.2, 2.7),
    "GPClassifier": (1.15, 1.15),
    "all in turn": (14.0, 23.0),
}
"""Seconds at n = 150 and n = 400, on two cores of the machine for which the goals were set."""


def run(options: Options) -> Table:
    has_peer = importlib.util.find_spec("sklearn") is not None
    table = Table("n", "call", "ours, s", "cpu, s", "sklearn's, s", "goal", "verdict", widths=[5, 24, 9, 9, 12, 9, 8])
    for n in options.sizes_or(150, 400):
        for name in ["import", *OURS, "all in turn"]:
            mine = []
            for _ in range(min(options.turns, MOST_TURNS)):
                _quiet.wait(options.wait)
                mine.append(_fresh.call("benchmarks.first_call:ours", name, n))
            wall, cpu = min(mine)
            theirs = _fresh.call("benchmarks.first_call:theirs", name, n) if has_peer and name in THEIRS else "–"
            goal = dict(zip((150, 400), GOALS[name], strict=True)).get(n) if name in GOALS else None
            table.line(n, name, wall, cpu, theirs, "–" if goal is None else f"≤ {goal:g}", verdict(wall, goal))
    return table


def ours(name: str, n: int) -> tuple[float, float]:
    """Wall clock and processor time, in a process of its own."""
    if name == "import":
        return _timed(lambda: importlib.import_module("kernax"))
    given = _given(n)
    if name != "all in turn":
        return _timed(OURS[name](given))
    calls = [prepare(given) for prepare in OURS.values()]
    return _timed(lambda: [call() for call in calls])


def theirs(name: str, n: int) -> float:
    """In a process of its own."""
    call = THEIRS[name](_given(n))
    return min(_timed(call)[0] for _ in range(3))


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    import jax

    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - wall, time.process_time() - cpu


class _Given:
    """The data of every call."""

    def __init__(self, n: int):
        rng = np.random.default_rng(0)
        self.x = rng.uniform(-2.0, 2.0, size=(n, 2))
        self.y = np.sin(2.0 * self.x[:, 0]) + np.cos(self.x[:, 1]) + 0.3 * rng.normal(size=n)
        self.labels = np.where(self.y > 0, 1.0, -1.0)
        self.new = rng.uniform(-2.0, 2.0, size=(100, 2))
        self.sets = [(rng.uniform(-2.0, 2.0, size=(40, 2)), rng.normal(size=40)) for _ in range(100)]


_given = _Given


# --- kernax: what is built first, and the call that is timed ---


def _model() -> Any:
    import kernax as kx

    return kx.Model(1.0 * kx.RBF(lengthscale=[1.0, 1.0]), noise=0.1)


def _data(given: _Given) -> Any:
    import kernax as kx

    return kx.Data(given.x, given.y)


def _conditioned(given: _Given) -> Any:
    import kernax as kx

    return kx.condition(_model(), _data(given))


def _kx(call: Callable[[Any, _Given], Any]) -> Callable[[_Given], Callable[[], Any]]:
    """A call that builds on nothing but data."""

    def prepare(given: _Given) -> Callable[[], Any]:
        import scipy.linalg  # noqa: F401  (imports are not timed)

        import kernax as kx

        return lambda: call(kx, given)

    return prepare


def _after(call: Callable[[Any, _Given, Any], Any]) -> Callable[[_Given], Callable[[], Any]]:
    """A call that builds on a conditioned model."""

    def prepare(given: _Given) -> Callable[[], Any]:
        import kernax as kx

        c = _conditioned(given)
        return lambda: call(kx, given, c)

    return prepare


def _estimator(fit: Callable[[Any, _Given], Any]) -> Callable[[_Given], Callable[[], Any]]:
    def prepare(given: _Given) -> Callable[[], Any]:
        import kernax.sklearn

        return lambda: fit(kernax.sklearn, given) and None

    return prepare


OURS: dict[str, Callable[[_Given], Callable[[], Any]]] = {
    "fit": _kx(lambda kx, given: kx.fit(_model(), _data(given)).value),
    "condition": _kx(lambda kx, given: kx.condition(_model(), _data(given)).alpha),
    "mean and variance": _after(lambda kx, given, c: (kx.mean(c, given.new), kx.variance(c, given.new))),
    "log_marginal_likelihood": _after(lambda kx, given, c: kx.log_marginal_likelihood(c)),
    "report": _after(lambda kx, given, c: kx.report(c) and None),
    "select_ridge": _kx(lambda kx, given: kx.select_ridge(_model(), _data(given)).ridge),
    "compare_selectors": _kx(lambda kx, given: kx.compare_selectors(_model(), _data(given), verbose=False) and None),
    "SVR": _estimator(lambda sk, given: sk.SupportVectorRegressor().fit(given.x, given.y)),
    "SVC": _estimator(lambda sk, given: sk.SupportVectorClassifier().fit(given.x, given.labels)),
    "GPClassifier": _estimator(lambda sk, given: sk.GaussianProcessClassifier().fit(given.x, given.labels)),
    "lasso_path": _kx(lambda kx, given: kx.learners.lasso_path(_data(given)) and None),
    "adaboost": _kx(lambda kx, given: kx.learners.adaboost(kx.Data(given.x, given.labels)) and None),
    "fit_many of 100": _kx(lambda kx, given: kx.fit_many(_model(), given.sets).value),
}


# --- scikit-learn ---


def _gp(given: _Given, optimizer: Any) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    kernel = kernels.ConstantKernel() * kernels.RBF([1.0, 1.0]) + kernels.WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, optimizer=optimizer, alpha=0.0).fit(given.x, given.y)


def _ridge_search(given: _Given) -> Any:
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV

    return lambda: GridSearchCV(KernelRidge(kernel="rbf"), {"alpha": np.geomspace(1e-3, 1e2, 50)}, cv=10).fit(
        given.x, given.y
    )


def _sk(module: str, name: str, target: str) -> Callable[[_Given], Callable[[], Any]]:
    def prepare(given: _Given) -> Callable[[], Any]:
        kind = getattr(importlib.import_module(f"sklearn.{module}"), name)
        return lambda: kind().fit(given.x, getattr(given, target)) and None

    return prepare


def _many(given: _Given) -> Callable[[], Any]:
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    kernel = kernels.ConstantKernel() * kernels.RBF([1.0, 1.0]) + kernels.WhiteKernel(0.1)
    return lambda: [GaussianProcessRegressor(kernel, alpha=0.0).fit(x, y) for x, y in given.sets] and None


def _lasso(given: _Given) -> Callable[[], Any]:
    from sklearn.linear_model import lars_path

    return lambda: lars_path(given.x, given.y, method="lasso")


def _after_gp(call: Callable[[Any, _Given], Any]) -> Callable[[_Given], Callable[[], Any]]:
    def prepare(given: _Given) -> Callable[[], Any]:
        gp = _gp(given, None)
        return lambda: call(gp, given)

    return prepare


THEIRS: dict[str, Callable[[_Given], Callable[[], Any]]] = {
    "fit": lambda given: lambda: _gp(given, "fmin_l_bfgs_b") and None,
    "condition": lambda given: lambda: _gp(given, None) and None,
    "mean and variance": _after_gp(lambda gp, given: gp.predict(given.new, return_std=True)),
    "log_marginal_likelihood": _after_gp(lambda gp, given: gp.log_marginal_likelihood(gp.kernel_.theta)),
    "select_ridge": _ridge_search,
    "SVR": _sk("svm", "SVR", "y"),
    "SVC": _sk("svm", "SVC", "labels"),
    "GPClassifier": _sk("gaussian_process", "GaussianProcessClassifier", "labels"),
    "lasso_path": _lasso,
    "adaboost": _sk("ensemble", "AdaBoostClassifier", "labels"),
    "fit_many of 100": _many,
}
