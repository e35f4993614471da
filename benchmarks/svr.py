"""Support vector regression, RBF kernel and 8 columns, compiled, against LIBSVM (scikit-learn's `SVR`) at tol 1e-6.

Both have the Gram matrix to make and an intercept; LIBSVM has a cache that holds all of it. Checked first: our KKT residual,
recomputed in NumPy, is at most 1e-6, our objective is no worse than LIBSVM's (`rtol` 1e-9), and both functions agree at the
data to 1e-3 (LIBSVM's are off by up to 1e-4). `--sizes` gives other numbers of rows.

LIBSVM moves two coefficients at a time, a million times at C = 100 and n = 2000. kernax makes n such steps to guess which
coefficients are free, and then solves linear systems of these, about ten, whatever C: the answer is then right to 1e-13, and
not to 1e-6.
"""

import jax
import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

COLUMNS, EPSILON = 8, 0.1
LENGTHSCALE = 2.0
PENALTIES = (1.0, 10.0, 100.0)
KKT = 1e-6
GOAL, GOAL_LARGEST = 5.0, 0.5


def run(options: Options) -> RatioTable:
    table = RatioTable("C", "n")
    sizes = options.sizes_or(500, 1000, 2000)
    for n in sizes:
        x, y = rows(n)
        for c in PENALTIES:
            timed = compare({"ours": _ours(x, y, c), "libsvm": _libsvm(x, y, c)}, options)
            ours, theirs = timed["ours"], timed["libsvm"]
            goal = GOAL_LARGEST if (n, c) == (2000, 100.0) else GOAL
            agree = _agree(x, y, c, ours.answer, theirs.answer)
            table.compare(c, n, peer="LIBSVM", ours=ours.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
    return table


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal points and a smooth function of four of their columns, with a little noise, of variance 1."""
    rng = np.random.default_rng(n + seed)
    x = rng.normal(size=(n, COLUMNS))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.3 * np.cos(2 * x[:, 3]) + 0.1 * rng.normal(size=n)
    return x, (y - y.mean()) / y.std()


def _ours(x: np.ndarray, y: np.ndarray, c: float) -> Side:
    data = kx.Data(x, y)
    model = kx.learners.SVR(kx.RBF(lengthscale=LENGTHSCALE), C=c, epsilon=EPSILON)
    solve = jax.jit(lambda model, data: kx.condition(model, data))
    return Side(lambda _: solve(model, data))


def _libsvm(x: np.ndarray, y: np.ndarray, c: float) -> Side:
    from sklearn.svm import SVR

    machine = SVR(C=c, epsilon=EPSILON, gamma=0.5 / LENGTHSCALE**2, tol=1e-6, cache_size=1000)
    return Side(lambda _: machine.fit(x, y))


def _agree(x: np.ndarray, y: np.ndarray, c: float, ours, theirs) -> bool:
    squared = np.sum(x**2, axis=1)
    gram = np.exp(-0.5 * np.maximum(squared[:, None] + squared - 2.0 * x @ x.T, 0.0) / LENGTHSCALE**2)

    def judged(alpha: np.ndarray, b: float) -> tuple[np.ndarray, float, float]:
        """Values at the data, objective, and the largest violation of the conditions of optimality."""
        values = gram @ alpha + b
        residual = y - values
        objective = 0.5 * alpha @ gram @ alpha + c * np.sum(np.maximum(np.abs(residual) - EPSILON, 0.0))
        pushed = np.where(alpha > 0, residual - EPSILON, np.where(alpha < 0, -residual - EPSILON, 0.0))
        wrong = np.where(alpha == 0, np.maximum(np.abs(residual) - EPSILON, 0.0), np.abs(pushed))
        wrong = np.where((np.abs(alpha) >= c) & (pushed > 0), 0.0, wrong)
        return values, objective, float(wrong.max())

    alpha = np.zeros(len(y))
    alpha[theirs.support_] = theirs.dual_coef_[0]
    our_values, our_objective, kkt = judged(np.asarray(ours.coefficients), float(ours.intercept))
    their_values, their_objective, _ = judged(alpha, float(theirs.intercept_[0]))
    close = np.max(np.abs(our_values - their_values)) <= 1e-3
    return bool(kkt <= KKT and our_objective <= their_objective * (1 + 1e-9) and close)
