"""A busy machine: how much longer a fit takes beside two other processes that compute, ours and scikit-learn's.

d = 2, float64, RBF with noise, one start, compiled before. Both sides take turns in this process, first on a quiet machine,
then beside two processes that run a loop in Python, on the same cores. On the quiet machine the least time counts, since
noise only adds to it; on the busy one the median, since waiting is what is measured. With two cores, a program with one
thread has two thirds of a core beside them: 1.5 times as long is what it cannot avoid.
"""

import contextlib
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import kernax as kx
from benchmarks import _ours, _peers, _quiet
from benchmarks._options import Options
from benchmarks._problem import Parameters, Problem
from benchmarks._table import Table, verdict

OTHERS = 2
GOAL = 1.3
TURN = 1.0
"""Seconds: a side is called again within its turn until this has passed."""

_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:  # it ends with the benchmark, even if that is killed
    for _ in range(10**6):
        pass
"""


def run(options: Options) -> Table:
    columns = ("n", "side", "quiet, s", "busy, s", "slowdown", "ours / sklearn's", "goal", "verdict")
    table = Table(*columns, widths=[5, 8, 9, 9, 9, 9, 6, 8])
    if importlib.util.find_spec("sklearn") is None:
        print("skipped, not installed: sklearn.")
        return table
    for n in options.sizes_or(100, 300, 1000):
        given = _problem(n)
        sides = {"kernax": partial(_our_fit, given), "sklearn": partial(_their_fit, given)}
        likelihoods = {name: fit() for name, fit in sides.items()}
        agree = likelihoods["kernax"] >= likelihoods["sklearn"] - 1e-3
        if not _quiet.wait(options.wait):
            print("(next lines: other work was on the machine; the quiet times are too long, and the slowdowns too small)")
        quiet = {name: min(seconds) for name, seconds in _in_turns(sides, options.turns).items()}
        with _load(OTHERS):
            busy = {name: statistics.median(seconds) for name, seconds in _in_turns(sides, options.turns).items()}
        slowdowns = {name: busy[name] / quiet[name] for name in sides}
        ratio = slowdowns["kernax"] / slowdowns["sklearn"]
        ends = {"kernax": (f"{ratio:.2f}", f"≤ {GOAL:g}", verdict(ratio, GOAL) if agree else "DISAGREE")}
        for name in sides:
            table.line(n, name, quiet[name], busy[name], slowdowns[name], *ends.get(name, ("", "", "")))
    return table


def _problem(n: int) -> Problem:
    """Waves with so much noise that no parameter ends at a bound. The parameters are where fits start."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(n, 2))
    y = np.sin(2.0 * x[:, 0]) + np.cos(x[:, 1]) + 0.3 * rng.normal(size=n)
    return Problem(x, y, Parameters(1.0, np.ones(2), 0.1))


def _our_fit(given: Problem) -> float:
    """The log marginal likelihood that a fit by kernax reaches."""
    start = _ours.model_of(given.parameters)
    return -float(kx.fit(start, kx.Data(given.x, given.y)).value)


def _their_fit(given: Problem) -> float:
    """The log marginal likelihood that a fit by scikit-learn reaches."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    kernel = _peers.sklearn_kernel(given.parameters)
    return float(GaussianProcessRegressor(kernel).fit(given.x, given.y).log_marginal_likelihood_value_)


def _in_turns(sides: dict[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """The seconds of every call."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, call in sides.items():
            end = time.perf_counter() + TURN
            while (begun := time.perf_counter()) < end:
                call()
                seconds[name].append(time.perf_counter() - begun)
    return seconds


@contextlib.contextmanager
def _load(number: int) -> Iterator[None]:
    """So many processes that compute, on the cores of this one, until the block ends."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _LOOP]))
            stack.callback(process.kill)
        time.sleep(0.5)  # in which they start
        yield
