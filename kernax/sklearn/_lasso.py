"""The lasso."""

from numbers import Real
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_scalar

from kernax.learners import lasso
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import check_flag, new_rows, training_rows
from kernax.sklearn._shapes import at_rows, padded_data, padded_width


class Lasso(RegressorMixin, Estimator):
    """The lasso, `min ‖y - Xw - b‖²/(2n) + alpha ‖w‖₁`, solved exactly by following its path.

    Parameters
    ----------
    alpha : float, default 1.0
        The penalty; the same number as scikit-learn's.
    fit_intercept : bool, default True
        Whether there is a level b, which is not penalised.

    Attributes
    ----------
    coef_ : array (d,)
        Exactly 0 for columns that are off.
    intercept_ : float
    fit_ : kernax.learners.LassoFit

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from kernax.sklearn import Lasso
    >>> X, y = (part[:30] for part in load_diabetes(return_X_y=True))
    >>> int((Lasso(alpha=0.1).fit(X, y).coef_ != 0).sum())
    4
    """

    def __init__(self, alpha: Any = 1.0, *, fit_intercept: bool = True):
        self.alpha = alpha
        self.fit_intercept = fit_intercept

    @fitting
    def fit(self, X: Any, y: Any) -> "Lasso":
        """Fit to rows X (n, d) and targets y (n,)."""
        X, y = training_rows(self, X, y, y_numeric=True)
        check_scalar(self.alpha, "alpha", Real, min_val=0.0)
        check_flag(self.fit_intercept, "fit_intercept")
        # kernax's penalty has neither the mean nor the half; columns of zeros have no coefficient.
        data, penalty = padded_data(X, y, padded_width(X.shape[1])), 2.0 * len(X) * self.alpha
        wide = lasso(data, penalty, intercept=bool(self.fit_intercept))
        self.coef_ = np.array(wide.coefficients)[: X.shape[1]]
        self.fit_ = eqx.tree_at(lambda fit: fit.coefficients, wide, jnp.asarray(self.coef_))
        self.intercept_ = float(self.fit_.intercept)
        return self

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """`Xw + b` at the rows of X."""
        X = new_rows(self, X)
        return at_rows(self.fit_, X)
