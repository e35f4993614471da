"""Laplace's log marginal likelihood of Gaussian process classification, and its gradient, against scikit-learn's.

RBF with a variance and one lengthscale, or one for each of eight columns: what a step of a fit costs. Both sides find the
mode anew from f = 0. A Newton step needs a factorisation of `B = I + √W K √W`; plain Newton took five of them here, and one
more at the mode. Near the mode W hardly changes: going on with the old factor for as long as each move makes the gradient
four times smaller leaves two factorisations and the one at the mode. The gradient adds one inverse (for `log det B`), one
solve (the mode moves with the hyperparameters) and the pull-back through the Gram matrix. On one core of a machine that was
busy with other work, n = 1000: factorisation 11–20 ms, inverse 30–45 ms, value and gradient 117–133 ms (without the old
factor 195–234 ms), scikit-learn 364–582 ms.

Then whole fits by the estimators of both: five folds of 569 tumours in 30 columns, compilation included (a process of its
own). The accuracies must agree to 0.01.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks import _fresh
from benchmarks._options import Options
from benchmarks._problem import same
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

GOAL = 0.5
WHOLE_GOAL = 1.0
COLUMNS = 8


def run(options: Options) -> RatioTable:
    table = RatioTable("lengthscales", "n")
    for n in options.sizes_or(200, 1000):
        x, y = _data(n)
        for name, lengthscale in (("one", np.asarray(2.0)), ("one a column", np.linspace(1.0, 3.0, COLUMNS))):
            timed = compare({"ours": _ours(x, y, lengthscale), "sklearn": _theirs(x, y, lengthscale)}, options)
            ours, theirs = timed["ours"], timed["sklearn"]
            agree = same(ours.answer, theirs.answer)
            goal = GOAL if n >= 1000 else None
            table.compare(name, n, peer="sklearn", ours=ours.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
    whole = RatioTable("cross_val_score, 5 folds")
    (ours, score), (theirs, peers_score) = (
        _fresh.call("benchmarks.classification:folds", side) for side in ("ours", "sklearn")
    )
    agree = abs(score - peers_score) <= 0.01
    whole.compare("569 × 30", peer="sklearn", ours=ours, theirs=theirs, goal=WHOLE_GOAL, agree=agree)
    table.agreed &= whole.agreed
    return table


def folds(side: str) -> tuple[float, float]:
    """Seconds and accuracy of a cross-validation, where nothing is compiled."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import kernax.sklearn

    classifiers = {
        "ours": kernax.sklearn.GaussianProcessClassifier(),
        "sklearn": GaussianProcessClassifier(ConstantKernel() * RBF()),
    }
    x, y = load_breast_cancer(return_X_y=True)
    begun = time.perf_counter()
    score = cross_val_score(make_pipeline(StandardScaler(), classifiers[side]), x, y, cv=5).mean()
    return time.perf_counter() - begun, float(score)


def _data(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal points, and labels that a wavy function and some chance decide."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, COLUMNS))
    return x, np.where(np.sin(x @ np.linspace(0.2, 1.0, COLUMNS)) + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)


def _ours(x: np.ndarray, y: np.ndarray, lengthscale: np.ndarray) -> Side:
    data, model = kx.Data(x, y), kx.learners.GPClassifier(1.5 * kx.RBF(lengthscale=lengthscale))
    compiled = jax.jit(jax.value_and_grad(lambda model, data: kx.log_marginal_likelihood(kx.condition(model, data))))
    model = jax.tree.map(jnp.asarray, model)

    def call(_: None) -> tuple[jax.Array, np.ndarray]:
        value, slopes = jax.block_until_ready(compiled(model, data))
        kernel = slopes.kernel
        return value, np.append(kernel.variance, kernel.kernel.lengthscale)

    return Side(call)


def _theirs(x: np.ndarray, y: np.ndarray, lengthscale: np.ndarray) -> Side:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    model = GaussianProcessClassifier(ConstantKernel(1.5) * RBF(lengthscale), optimizer=None).fit(x, y)
    theta = model.kernel_.theta
    ask = partial(model.log_marginal_likelihood, theta, eval_gradient=True, clone_kernel=False)

    def call(_: None) -> tuple[float, np.ndarray]:
        value, gradient = ask()
        return float(value), gradient / np.exp(theta)

    return Side(call)
