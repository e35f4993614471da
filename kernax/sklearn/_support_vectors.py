"""Support vector machines."""

from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_scalar

from kernax.learners import SVC, SVR, one_against_one, support_vectors
from kernax.sklearn._classes import chosen, labelled_rows
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import as_kernel, new_rows, row_weights, training_rows
from kernax.sklearn._shapes import ask, padded, padded_data, padded_mask, padded_width, with_columns, with_width


class SupportVectorRegressor(RegressorMixin, Estimator):
    """Support vector regression, `min C Σ w_i max(|y_i - f(x_i) - b| - ε, 0) + ½‖f‖²`, exact to rounding.

    Parameters
    ----------
    kernel : kernax kernel, default None
        None is an RBF kernel as wide as scikit-learn's `gamma="scale"` makes it.
    C : float, default 1.0
        The weight of errors against smoothness.
    epsilon : float, default 0.1
        Half the width of the tube in which errors cost nothing.

    Attributes
    ----------
    support_ : array (s,)
        The rows that are support vectors.
    dual_coef_ : array (s,)
        Their coefficients: `f(x) + b = Σ dual_coef_[j] k(x, x_support_[j]) + intercept_`.
    intercept_ : float
    kernel_ : kernax kernel
    machine_ : kernax.learners.SupportVectors
        Its data has masked rows of padding.

    Examples
    --------
    >>> import numpy as np, kernax as kx
    >>> from kernax.sklearn import SupportVectorRegressor
    >>> X = np.linspace(0, 3, 20)[:, None]
    >>> svr = SupportVectorRegressor(kx.RBF(), C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> len(svr.support_) < 20
    True
    """

    def __init__(self, kernel: Any = None, *, C: Any = 1.0, epsilon: Any = 0.1):
        self.kernel = kernel
        self.C = C
        self.epsilon = epsilon

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SupportVectorRegressor":
        """Fit to rows X (n, d) and targets y (n,), optionally with a weight for each row."""
        X, y = training_rows(self, X, y, y_numeric=True)
        check_scalar(self.C, "C", Real, min_val=0.0, include_boundaries="neither")
        check_scalar(self.epsilon, "epsilon", Real, min_val=0.0)
        weights = row_weights(sample_weight, X)
        self.kernel_ = as_kernel(self, X, weights)
        places = np.flatnonzero(weights)
        model = SVR(self.kernel_, C=self.C, epsilon=self.epsilon)
        data = padded_data(X[places], y[places], padded_width(X.shape[1], self.kernel_))
        machine = support_vectors(model, data, weights=padded(weights[places], 0.0))
        self.machine_ = with_columns(machine, X.shape[1])
        coefficients = np.asarray(self.machine_.coefficients)[: len(places)]
        self.support_ = places[coefficients != 0]
        self.dual_coef_ = coefficients[coefficients != 0]
        self.intercept_ = float(self.machine_.intercept)
        return self

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """`f + b` at the rows of X."""
        X = new_rows(self, X)
        return ask(lambda machine, x: machine(x), self.machine_, X)


class SupportVectorClassifier(ClassifierMixin, Estimator):
    """Support vector classification, `min C Σ w_i max(1 - y_i (f(x_i) + b), 0) + ½‖f‖²`, exact to rounding.

    Several classes are separated by one machine for every pair, as in scikit-learn's `SVC`. Scores break ties between votes
    (there: `break_ties=True`).

    Parameters
    ----------
    kernel : kernax kernel, default None
        None is an RBF kernel as wide as scikit-learn's `gamma="scale"` makes it.
    C : float, default 1.0
        The weight of errors against smoothness.

    Attributes
    ----------
    classes_ : array (k,)
    support_ : array (s,)
        The rows that are support vectors of one machine or more.
    dual_coef_ : array (p, s)
        Their coefficients in the machine of every pair: (0, 1), (0, 2), …, (1, 2), …; of two classes there is one.
    intercept_ : array (p,)
    kernel_ : kernax kernel
    machine_ : kernax.learners.OneAgainstOne
        Its data has masked rows of padding.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernax.sklearn import SupportVectorClassifier
    >>> X, y = (part[::5] for part in load_iris(return_X_y=True))
    >>> SupportVectorClassifier(C=10.0).fit(X, y).score(X, y) > 0.95
    True
    """

    def __init__(self, kernel: Any = None, *, C: Any = 1.0):
        self.kernel = kernel
        self.C = C

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SupportVectorClassifier":
        """Fit to rows X (n, d) and labels y (n,), optionally with a weight for each row."""
        X, codes, weights, places, self.classes_ = labelled_rows(self, X, y, sample_weight)
        check_scalar(self.C, "C", Real, min_val=0.0, include_boundaries="neither")
        self.kernel_ = as_kernel(self, X, weights)
        rows = with_width(padded(X), padded_width(X.shape[1], self.kernel_))
        machine = one_against_one(
            SVC(self.kernel_, C=self.C), rows, padded(codes), weights=padded(weights, 0.0), mask=padded_mask(len(X))
        )
        self.machine_ = with_columns(machine, X.shape[1])
        coefficients = np.asarray(machine.coefficients)[: len(X)]
        support = (coefficients != 0).any(axis=1)
        self.support_ = places[support]
        self.dual_coef_ = coefficients[support].T.copy()
        self.intercept_ = np.array(machine.intercepts)
        return self

    @computing
    def decision_function(self, X: Any) -> np.ndarray:
        """The score for the second of two classes, (m,); of several the votes for each class, (m, k),
        plus less than ½ from the sizes of the scores."""
        X = new_rows(self, X)
        if len(self.classes_) == 2:
            return ask(lambda machine, x: machine.scores(x), self.machine_, X)[:, 0]
        return ask(lambda machine, x: machine.votes(x), self.machine_, X)

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest score."""
        scores = self.decision_function(X)
        return chosen(self.classes_, scores)
