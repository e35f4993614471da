"""Fifty ridges by 10-fold cross-validation, leave-one-out and GCV, from nothing, against scikit-learn's grid search.

RBF, d = 8, float64, a fresh process for each of our turns: compilation is included, imports are not. scikit-learn's
`GridSearchCV(KernelRidge)` does the folds alone (500 fits); we add leave-one-out and GCV at every ridge. The scores of all
ridges and folds must agree to 1e-8, and ours of leave-one-out and GCV with NumPy's by the hat matrix.

Cold, XLA's compilation is most of our time up to n = 1000.
"""

import importlib.util
import time

import numpy as np

from benchmarks import _fresh, _quiet
from benchmarks._options import Options
from benchmarks._problem import problem
from benchmarks._table import RatioTable

GOALS = {1000: 0.05}
"""Cold, by n."""
TOLERANCE = 1e-8
FOLDS = 10
LENGTHSCALE = 2.0
RIDGES = np.geomspace(1e-3, 1e2, 50)
MOST_TURNS = 3


def run(options: Options) -> RatioTable:
    table = RatioTable("n", "what")
    if importlib.util.find_spec("sklearn") is None:
        print("skipped, not installed: sklearn.")
        return table
    for n in options.sizes_or(500, 1000, 2000):
        mine = []
        for _ in range(min(options.turns, MOST_TURNS)):
            _quiet.wait(options.wait)
            mine.append(_fresh.call("benchmarks.ridge_path:ours", n))
        _quiet.wait(options.wait)
        # 500 fits take long enough to be timed once.
        theirs = _fresh.call("benchmarks.ridge_path:theirs", n)
        agree = bool(np.max(np.abs(np.array(mine[0]["scores"]) - np.array(theirs["scores"]))) <= TOLERANCE)
        agree &= _agrees_with_hat_matrix(n, mine[0])
        for what, goal in (("cold", GOALS.get(n)), ("warm", None)):
            seconds = min(one[what] for one in mine)
            table.compare(n, what, peer="sklearn", ours=seconds, theirs=theirs["seconds"], goal=goal, agree=agree)
    return table


def ours(n: int) -> dict:
    """In a process of its own."""
    import scipy.linalg  # noqa: F401  (imports are not timed; scikit-learn's side has imported it, too)

    import kernax as kx

    given = problem(n)

    def path(y: np.ndarray) -> kx.selection.RidgePath:
        model = kx.Model(kx.RBF(lengthscale=LENGTHSCALE), noise=1.0)
        # Without a look at the status, the path is compiled while the eigendecomposition runs.
        c = kx.condition(model, kx.Data(given.x, y), kx.Eigh(), throw=False)
        answer = kx.ridge_path(c, RIDGES, folds=FOLDS)
        answer.fold_mse.block_until_ready()
        return answer

    begun = time.perf_counter()
    answer = path(given.y)
    cold = time.perf_counter() - begun
    begun = time.perf_counter()
    path(given.y[::-1].copy())
    warm = time.perf_counter() - begun
    scores = {"scores": answer.fold_mse, "loo": answer.loo_mse, "gcv": answer.gcv}
    return {"cold": cold, "warm": warm} | {name: np.asarray(values).tolist() for name, values in scores.items()}


def theirs(n: int) -> dict:
    """In a process of its own."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV, KFold

    given = problem(n)
    search = GridSearchCV(
        KernelRidge(kernel="rbf", gamma=0.5 / LENGTHSCALE**2),
        {"alpha": RIDGES},
        cv=KFold(FOLDS),
        scoring="neg_mean_squared_error",
        refit=False,
    )
    begun = time.perf_counter()
    search.fit(given.x, given.y)
    seconds = time.perf_counter() - begun
    scores = [-search.cv_results_[f"split{fold}_test_score"] for fold in range(FOLDS)]
    return {"seconds": seconds, "scores": np.stack(scores, axis=1).tolist()}


def _agrees_with_hat_matrix(n: int, path: dict) -> bool:
    """Leave-one-out and GCV from `H = K(K + λI)⁻¹`, at the first, the middle and the last ridge."""
    given = problem(n)
    squares = np.sum(given.x**2, axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * given.x @ given.x.T
    gram = np.exp(-0.5 * distances / LENGTHSCALE**2)
    for i in (0, len(RIDGES) // 2, len(RIDGES) - 1):
        hat = gram @ np.linalg.inv(gram + RIDGES[i] * np.eye(n))
        residuals, leverage = given.y - hat @ given.y, np.diagonal(hat)
        loo = np.mean((residuals / (1 - leverage)) ** 2)
        gcv = np.mean(residuals**2) / (1 - np.mean(leverage)) ** 2
        if not np.allclose([path["loo"][i], path["gcv"][i]], [loo, gcv], rtol=TOLERANCE):
            return False
    return True
