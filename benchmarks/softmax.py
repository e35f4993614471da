"""Gaussian process classification of three classes, a whole fit, against scikit-learn's one against the rest.

kernax fits one kernel for all classes by Laplace's approximation of the softmax; scikit-learn fits three binary processes,
each with a kernel of its own. Both start from the same values and end at their own optimum, so the answers are compared by
the mean log loss on held-out rows, which must be no worse than scikit-learn's (by 0.01 at the most).
"""

import jax
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

GOAL = 0.5
CLASSES, COLUMNS, HELD_OUT = 3, 4, 1000


def run(options: Options) -> RatioTable:
    table = RatioTable("held-out log loss", "n")
    for n in options.sizes_or(500):
        x, y, new, labels = _data(n)
        timed = compare({"ours": _ours(x, y, new), "sklearn": _theirs(x, y, new)}, options)
        ours, theirs = (_log_loss(timed[name].answer, labels) for name in ("ours", "sklearn"))
        table.compare(
            f"{ours:.3f}, sklearn {theirs:.3f}",
            n,
            peer="sklearn",
            ours=timed["ours"].seconds,
            theirs=timed["sklearn"].seconds,
            goal=GOAL if n >= 500 else None,
            agree=ours <= theirs + 0.01,
        )
    return table


def _data(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Normal points, and classes that three wavy functions and some chance decide."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n + HELD_OUT, COLUMNS))
    waves = 2.0 * np.sin(x @ rng.normal(size=(COLUMNS, CLASSES)))
    y = np.argmax(waves + rng.gumbel(size=waves.shape), axis=1)
    return x[:n], y[:n], x[n:], y[n:]


def _ours(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> Side:
    data = kx.Data(x, y)
    model = kx.learners.LatentGP(1.0 * kx.RBF(lengthscale=1.0), kx.learners.Softmax(CLASSES))

    def call(_: None) -> jax.Array:
        return kx.condition(kx.fit(model, data).model, data).probability(new)

    return Side(call)


def _theirs(x: np.ndarray, y: np.ndarray, new: np.ndarray) -> Side:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    def call(_: None) -> np.ndarray:
        return GaussianProcessClassifier(ConstantKernel(1.0) * RBF(1.0)).fit(x, y).predict_proba(new)

    return Side(call)


def _log_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.mean(np.log(np.asarray(probabilities)[np.arange(len(labels)), labels])))
