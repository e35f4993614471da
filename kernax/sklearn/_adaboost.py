"""AdaBoost."""

from collections.abc import Iterator
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from scipy.special import log_expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_scalar

from kernax.learners import adaboost
from kernax.sklearn._classes import chosen, joined, labelled_rows, machines
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import new_rows
from kernax.sklearn._shapes import at_rows, padded


class AdaBoostClassifier(ClassifierMixin, Estimator):
    """AdaBoost classification. Several classes are handled one against the rest (scikit-learn uses SAMME).

    Parameters
    ----------
    n_estimators : int, default 50
        Rounds at most. A round without a member better than chance, or with a perfect one, is the last.
    members : kernax.learners.AbstractMembers, default None
        What a committee is made of, such as `learners.Trees(2)`; None is `learners.Stumps()`, the exact best.

    Attributes
    ----------
    classes_ : array (k,)
    machines_ : tuple of kernax.learners.AdaBoost
        The committee for two classes, else one a class.
    estimator_weights_, estimator_errors_ : array (T,), of several classes (k, T)
        Votes and errors of the members; 0 and NaN in rounds that were not made.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernax.sklearn import AdaBoostClassifier
    >>> X, y = (part[::5] for part in load_iris(return_X_y=True))
    >>> AdaBoostClassifier(n_estimators=10).fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(self, n_estimators: int = 50, *, members: Any = None):
        self.n_estimators = n_estimators
        self.members = members

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "AdaBoostClassifier":
        """Fit to rows X (n, d) and labels y (n,), optionally with a weight for each row."""
        X, codes, weights, _, self.classes_ = labelled_rows(self, X, y, sample_weight)
        check_scalar(self.n_estimators, "n_estimators", Integral, min_val=1)
        train = partial(adaboost, members=self.members, rounds=int(self.n_estimators), weights=padded(weights, 0.0))
        self.machines_ = machines(train, X, codes)
        self.estimator_weights_ = self._of_machines("votes")
        self.estimator_errors_ = self._of_machines("errors")
        return self

    def _of_machines(self, name: str) -> np.ndarray:
        values = [np.array(getattr(machine, name)) for machine in self.machines_]
        return values[0] if len(values) == 1 else np.stack(values)

    @computing
    def decision_function(self, X: Any) -> np.ndarray:
        """`Σ vote · member` at the rows of X: (m,), positive for the second of two classes; (m, k) of several."""
        X = new_rows(self, X)
        return joined([at_rows(machine, X) for machine in self.machines_])

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest score."""
        scores = self.decision_function(X)
        return chosen(self.classes_, scores)

    @computing
    def predict_proba(self, X: Any) -> np.ndarray:
        """Boosting's logistic estimate of the probability of every class, (m, k): `1/(1 + e^(-2F))` of the score F.

        Of several classes in proportion. More rounds push it towards 0 and 1: calibrate it before you rely on it.
        """
        logs = log_expit(2.0 * self.decision_function(X))
        if logs.ndim == 1:
            own = np.exp(logs)
            return np.stack([1.0 - own, own], axis=1)
        return softmax(logs, axis=1)

    def staged_decision_function(self, X: Any) -> Iterator[np.ndarray]:
        """`decision_function` after every round that was made."""
        staged = self._staged(X)
        for t in range(max(int(machine.num_rounds) for machine in self.machines_)):
            yield joined([values[:, t] for values in staged])

    @computing
    def _staged(self, X: Any) -> list[np.ndarray]:
        """The scores of every machine, (m, T). Apart, since a generator would leave its precision on between two rounds."""
        X = new_rows(self, X)
        return [at_rows(lambda x, machine=machine: np.asarray(machine.staged(x)).T, X) for machine in self.machines_]

    def staged_predict(self, X: Any) -> Iterator[np.ndarray]:
        """`predict` after every round that was made."""
        for values in self.staged_decision_function(X):
            yield chosen(self.classes_, values)
