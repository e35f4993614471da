"""Kernel ridge regression."""

from numbers import Real
from typing import Any

import equinox as eqx
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_scalar

from kernax.data import Data
from kernax.model import Model, condition
from kernax.posterior import mean
from kernax.selection import RidgeChoice, select_ridge
from kernax.selection._select import SELECTORS
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import as_kernel, check_solver, new_rows, row_weights, training_rows
from kernax.sklearn._shapes import ask, fitted_width, padded, padded_data, with_columns
from kernax.sklearn._warnings import warn_if_jittered
from kernax.solvers import FailedError


class KernelRidge(RegressorMixin, Estimator):
    """Kernel ridge regression, `min Σ w_i (f(x_i) - y_i)² + alpha ‖f‖²`.

    Parameters
    ----------
    kernel : kernax kernel, default None
        None is an RBF kernel as wide as scikit-learn's `gamma="scale"` makes it.
    alpha : float, default 1.0
        The ridge; the same number as scikit-learn's.
    select : str, default None
        Choose the ridge by this criterion of `kernax.select_ridge` instead: "loo", "gcv", "kfold", "likelihood", "l_curve"
        or "discrepancy". `alpha` is then only the noise variance that the discrepancy principle looks for. Rows
        of `sample_weight` 0 are left out; all others must have the same.
    solver : kernax solver, default None
        How the system is solved, such as `kernax.Vecchia()`. None is `kernax.Cholesky()`, or `kernax.Eigh()` with
        `select`, which needs a solver that can move to another ridge. `kernax.suggest_solver` says which one suits many
        rows.

    Attributes
    ----------
    alpha_ : float
        The ridge that was used.
    dual_coef_ : array (n,) or (n, p)
        `f(x) = Σ dual_coef_[i] k(x, x_i)`; None if the solver predicts in another way, as `kernax.LowRank` and
        `kernax.Vecchia` do.
    kernel_ : kernax kernel
    conditioned_ : kernax.model.Conditioned
        What kernax's functions take; its data has masked rows of padding.
    choice_ : kernax.selection.RidgeChoice
        The choice and the curve behind it; None without `select`.

    Examples
    --------
    >>> import numpy as np, kernax as kx
    >>> from kernax.sklearn import KernelRidge
    >>> X = np.linspace(0, 3, 20)[:, None]
    >>> KernelRidge(kx.Matern52(), select="loo").fit(X, np.sin(X[:, 0])).predict([[1.5]]).round(2)
    array([1.])
    """

    _width: int | None = None

    def __init__(self, kernel: Any = None, *, alpha: Any = 1.0, select: Any = None, solver: Any = None):
        self.kernel = kernel
        self.alpha = alpha
        self.select = select
        self.solver = solver

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelRidge":
        """Fit to rows X (n, d) and targets y (n,) or (n, p), optionally with a weight for each row."""
        X, y = training_rows(self, X, y, multi_output=True, y_numeric=True)
        check_scalar(self.alpha, "alpha", Real, min_val=0.0)
        check_solver(self)
        weights = row_weights(sample_weight, X)
        places = np.flatnonzero(weights)
        self.kernel_ = as_kernel(self, X, weights)
        self._width = fitted_width(X.shape[1], self.kernel_, self.solver)
        data = padded_data(X[places], y[places], self._width)
        self.choice_ = None
        if self.select is not None:
            if self.select not in SELECTORS:
                raise ValueError(f"select must be None or one of {', '.join(SELECTORS)}, got {self.select!r}.")
            weight = _common(weights[places])
            choice = _chosen(Model(self.kernel_, self.alpha / weight), data, self.select, self.solver)
            self.conditioned_ = with_columns(choice.conditioned, X.shape[1])
            self.choice_ = eqx.tree_at(lambda c: c.conditioned, choice, self.conditioned_)
            self.alpha_ = float(choice.ridge) * weight
        else:
            noise = self.alpha if sample_weight is None else padded(self.alpha / weights[places])
            self.conditioned_ = with_columns(condition(Model(self.kernel_, noise), data, self.solver), X.shape[1])
            self.alpha_ = float(self.alpha)
        warn_if_jittered(self, self.conditioned_.jitter, self.conditioned_.model.noise)
        self.dual_coef_ = None
        if self.conditioned_.system.expansion(self.conditioned_.solution) is not None:
            self.dual_coef_ = np.zeros_like(y, self.conditioned_.data.dtype)
            self.dual_coef_[places] = np.asarray(self.conditioned_.alpha)[: len(places)]
        return self

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """`f` at the rows of X."""
        X = new_rows(self, X)
        return ask(mean, self.conditioned_, X, self._width)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _common(weights: np.ndarray) -> float:
    """The one weight of all rows, by which the ridge is divided; several are refused."""
    if (weights != weights[0]).any():
        raise ValueError(
            "select chooses one ridge for all rows, and sample_weight makes them differ: give rows the same weight (or 0), "
            "or alpha without select."
        )
    return float(weights[0])


def _chosen(model: Model, data: Data, by: Any, solver: Any) -> RidgeChoice:
    """`select_ridge`, with the advice for estimators added to its errors."""
    remedy = "Give more rows, another select, or the ridge itself: KernelRidge(alpha=…, select=None)."
    try:
        return select_ridge(model, data, by=by, solver=solver)
    except FailedError as error:
        error.advice = f"{error.advice} {remedy}"
        raise
    except ValueError as error:
        raise ValueError(f"{error} {remedy}") from None
