"""AdaBoost with 200 stumps or small trees, 2000 rows and 20 columns, compiled, against scikit-learn's `AdaBoostClassifier`.

scikit-learn grows every tree anew with CART's criterion (Gini), in Cython, and sorts the columns each time. `Trees(1)` and
`Trees(2)` make the same members: errors of every round and the training error after it agree to rounding. `Stumps()` takes
the least weighted error instead, which is what AdaBoost's theorem speaks of, so its line has no such peer: every round
of it is checked to be no worse than all stumps of a column would have been, by NumPy.

kernax sorts once; a round is one gather of n·d weights (a quarter of its time) and running sums along the columns. For
these `jnp.cumsum` and `associative_scan` took 220 µs each on two cores; blocks of 16 times a triangle of ones, and the sums
of the blocks again in the same way, 90 µs (blocks of 8: 100 µs, of 32: 350 µs).
"""

import numpy as np

import kernax as kx
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

GOAL = 0.5
TOLERANCE = 1e-9
COLUMNS, ROUNDS = 20, 200
MEMBERS = {"Stumps()": kx.learners.Stumps(), "Trees(1)": kx.learners.Trees(1), "Trees(2)": kx.learners.Trees(2)}


def run(options: Options) -> RatioTable:
    table = RatioTable("members", "n")
    for n in options.sizes_or(2000):
        x, y = _data(n)
        for name, members in MEMBERS.items():
            depth = getattr(members, "depth", 1)
            timed = compare({"ours": _ours(x, y, members), "theirs": _theirs(x, y, depth)}, options)
            ours, theirs = timed["ours"], timed["theirs"]
            exact = isinstance(members, kx.learners.Stumps)
            agree = _is_least_error(x, y, ours.answer) if exact else _is_the_same(x, y, ours.answer, theirs.answer)
            table.compare(name, n, peer="sklearn", ours=ours.seconds, theirs=theirs.seconds, goal=GOAL, agree=agree)
    return table


def _data(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a noisy half-space in five of the columns, whose numbers are exact in scikit-learn's float32."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, COLUMNS)).astype(np.float32).astype(np.float64)
    return x, np.where(x[:, :5].sum(axis=1) + rng.normal(size=n) > 0, 1.0, -1.0)


def _ours(x: np.ndarray, y: np.ndarray, members: kx.learners.AbstractMembers) -> Side:
    data = kx.Data(x, y)
    return Side(lambda _: kx.learners.adaboost(data, members=members, rounds=ROUNDS))


def _theirs(x: np.ndarray, y: np.ndarray, depth: int) -> Side:
    from sklearn.ensemble import AdaBoostClassifier
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_depth=depth)
    return Side(lambda _: AdaBoostClassifier(tree, n_estimators=ROUNDS, random_state=0).fit(x, y))


def _is_the_same(x: np.ndarray, y: np.ndarray, ours, theirs) -> bool:
    """The members' errors, and the training error after every round."""
    wrong = [np.mean(predicted != y) for predicted in theirs.staged_predict(x)]
    return bool(
        np.allclose(ours.errors, theirs.estimator_errors_, rtol=0, atol=TOLERANCE)
        and np.allclose(ours.training_errors, wrong, rtol=0, atol=TOLERANCE)
    )


def _is_least_error(x: np.ndarray, y: np.ndarray, ours) -> bool:
    """In every tenth round: the told error is the least of all stumps', from cumulative sums in NumPy."""
    order = np.argsort(x, axis=0)
    between = np.diff(np.sort(x, axis=0), axis=0, append=np.inf) > 0
    staged = np.concatenate([np.zeros((1, len(y))), ours.staged(x)])
    for t in range(0, ROUNDS, 10):
        weights = np.exp(-y * staged[t])
        pulls = weights * y / weights.sum()
        edges = np.where(between, pulls.sum() - 2.0 * np.cumsum(pulls[order], axis=0), 0.0)
        least = 0.5 - 0.5 * max(np.max(np.abs(edges)), abs(pulls.sum()))
        if abs(least - float(ours.errors[t])) > TOLERANCE:
            return False
    return True
