"""Many small support vector regressions, 500 sets of 60 points, C = 10, against a loop over LIBSVM at tol 1e-6.

Two layouts of ours: `condition_many`, which takes a list of arrays and runs a thread per core, and plain
`jax.jit(jax.vmap(...))`, which on CPU runs one lane after another. The faster is held against the goal, a ratio of 1. The
functions must agree with LIBSVM's at the data to 1e-4 in every set. `--sizes` gives another number of sets.

A set takes 60 pair steps of 4 µs and about four linear systems.
"""

import jax
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

ROWS, COLUMNS, C, EPSILON = 60, 2, 10.0, 0.1
LENGTHSCALE = 1.0
GOAL = 1.0


def run(options: Options) -> RatioTable:
    table = RatioTable("sets", "n", "layout")
    for sets in options.sizes_or(500):
        datasets = [_rows(seed) for seed in range(sets)]
        timed = compare({"many": _many(datasets), "vmap": _vmapped(datasets), "libsvm": _libsvm(datasets)}, options)
        fastest = min(("many", "vmap"), key=lambda name: timed[name].seconds)
        for name in ("many", "vmap"):
            agree = bool(np.max(np.abs(np.asarray(timed[name].answer) - timed["libsvm"].answer)) <= 1e-4)
            goal = GOAL if name == fastest else None
            ours, theirs = timed[name].seconds, timed["libsvm"].seconds
            table.compare(sets, ROWS, name, peer="LIBSVM", ours=ours, theirs=theirs, goal=goal, agree=agree)
    return table


def _rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, COLUMNS))
    return x, np.sin(2.0 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=ROWS)


def _model() -> kx.learners.SVR:
    return kx.learners.SVR(kx.RBF(lengthscale=LENGTHSCALE), C=C, epsilon=EPSILON)


def _many(datasets: list[tuple[np.ndarray, np.ndarray]]) -> Side:
    model = _model()

    def call(_: None) -> np.ndarray:
        ((_, machines),) = kx.fitting.condition_many(model, datasets).batches
        return machines.values[:, :ROWS]

    return Side(call)


def _vmapped(datasets: list[tuple[np.ndarray, np.ndarray]]) -> Side:
    model, batch = _model(), kx.data.stack(datasets)
    solve = jax.jit(jax.vmap(lambda data: kx.condition(model, data).values))
    return Side(lambda _: solve(batch))


def _libsvm(datasets: list[tuple[np.ndarray, np.ndarray]]) -> Side:
    from sklearn.svm import SVR

    def values(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return SVR(C=C, epsilon=EPSILON, gamma=0.5 / LENGTHSCALE**2, tol=1e-6).fit(x, y).predict(x)

    return Side(lambda _: np.stack([values(x, y) for x, y in datasets]))
