"""Support vector classification of digits (1797 × 64, ten classes) by the scikit-learn estimators of both.

Both train 45 machines, one for each pair of digits, with the same RBF kernel and C = 1. Decision values must agree to 1e-5
and predictions must be the same. scikit-learn's tolerance is lowered for that comparison only; it is timed with its default.
"""

import time

import numpy as np

from benchmarks import _fresh
from benchmarks._options import Options
from benchmarks._problem import same
from benchmarks._table import RatioTable, Table, verdict
from benchmarks._timing import Side, compare

GOAL = 2.0
FIRST_CALL = 10.0
FOLDS = 5


def run(options: Options) -> RatioTable:
    first = Table("first call", "seconds", "goal", "verdict", widths=(28, 11, 11, 11))
    for name, seconds in _fresh.call("benchmarks.svc_digits:first_calls").items():
        first.line(name, seconds, f"≤ {FIRST_CALL:g}", verdict(seconds, FIRST_CALL))

    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    from kernax.sklearn import SupportVectorClassifier

    x, y = _digits()
    exact, ours = SVC(break_ties=True, tol=1e-8).fit(x, y), SupportVectorClassifier().fit(x, y)
    agree = same(ours.decision_function(x), exact.decision_function(x), 1e-5)
    agree &= bool((ours.predict(x) == exact.predict(x)).all())
    questions = {
        "fit": lambda estimator: estimator.fit(x, y),
        "fit and predict": lambda estimator: estimator.fit(x, y).predict(x),
        f"cross_val_score, {FOLDS} folds": lambda estimator: cross_val_score(estimator, x, y, cv=FOLDS),
    }
    table = RatioTable("compiled")
    for name, ask in questions.items():
        sides = {
            "ours": Side(lambda _, ask=ask: ask(SupportVectorClassifier())),
            "sklearn": Side(lambda _, ask=ask: ask(SVC(break_ties=True))),
        }
        timed = compare(sides, options)
        table.compare(
            name, peer="sklearn", ours=timed["ours"].seconds, theirs=timed["sklearn"].seconds, goal=GOAL, agree=agree
        )
    return table


def first_calls() -> dict[str, float]:
    """Seconds that fit and predict, and then cross-validation, take where nothing is compiled."""
    from sklearn.model_selection import cross_val_score

    from kernax.sklearn import SupportVectorClassifier

    x, y = _digits()
    begun = time.perf_counter()
    SupportVectorClassifier().fit(x, y)
    fitted = time.perf_counter()
    cross_val_score(SupportVectorClassifier(), x, y, cv=FOLDS)
    return {"fit": fitted - begun, "then cross_val_score": time.perf_counter() - fitted}


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)
