"""Gaussian process classification."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_scalar

from kernax.fitting import Fit, fit, initialise
from kernax.kernels import RBF
from kernax.learners import Bernoulli, LatentGP, Softmax
from kernax.model import condition
from kernax.selection import log_marginal_likelihood
from kernax.sklearn._classes import labelled_rows
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import as_kernel, as_key, check_flag, new_rows
from kernax.sklearn._shapes import ask, data_with_columns, padded_data, padded_width, with_columns
from kernax.sklearn._warnings import warn_unless_converged


class GaussianProcessClassifier(ClassifierMixin, Estimator):
    """Gaussian process classification by Laplace's approximation. Several classes are fitted together, by a softmax.

    Parameters
    ----------
    kernel : kernax kernel, default None
        Where the fit starts, and its priors and bounds. None is `1.0 * kernax.RBF()` with values that suit the data.
    optimise : bool, default True
        Whether the kernel is fitted, by the approximate marginal likelihood.
    restarts : int, default 0
        Further fits from random starts, of which the best counts.
    max_steps : int, default 500
        Steps of L-BFGS.
    random_state : int, RandomState or None
        For the restarts.

    Attributes
    ----------
    classes_ : array (k,)
    machine_ : kernax.learners.LaplaceGP or kernax.learners.SoftmaxGP
        The conditioned process, of two classes or of several; its data has masked rows of padding.
    kernel_ : kernax kernel
        Its kernel, which all classes share.
    fit_ : kernax.fitting.Fit
        How the fit went; None without it.
    log_marginal_likelihood_value_ : float
        Laplace's approximation of it.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernax.sklearn import GaussianProcessClassifier
    >>> X, y = (part[::5] for part in load_iris(return_X_y=True))
    >>> GaussianProcessClassifier().fit(X, y).predict_proba(X[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        optimise: bool = True,
        restarts: int = 0,
        max_steps: int = 500,
        random_state: Any = None,
    ):
        self.kernel = kernel
        self.optimise = optimise
        self.restarts = restarts
        self.max_steps = max_steps
        self.random_state = random_state

    @fitting
    def fit(self, X: Any, y: Any) -> "GaussianProcessClassifier":
        """Fit to rows X (n, d) and labels y (n,)."""
        X, codes, _, _, self.classes_ = labelled_rows(self, X, y)
        check_flag(self.optimise, "optimise")
        check_scalar(self.restarts, "restarts", Integral, min_val=0)
        check_scalar(self.max_steps, "max_steps", Integral, min_val=1)
        classes = len(self.classes_)
        likelihood = Bernoulli() if classes == 2 else Softmax(classes)
        model = LatentGP(1.0 * RBF() if self.kernel is None else as_kernel(self, X), likelihood)
        data = padded_data(X, codes.astype(X.dtype), padded_width(X.shape[1], model.kernel))
        if self.kernel is None:
            model = initialise(model, data_with_columns(data, X.shape[1]))
        self.fit_ = None
        if self.optimise:
            found: Fit = fit(model, data, restarts=self.restarts, key=as_key(self.random_state), max_steps=self.max_steps)
            self.fit_, model = with_columns(found, X.shape[1]), found.model
            warn_unless_converged(self, [found])
        self.machine_ = with_columns(condition(model, data), X.shape[1])
        self.kernel_ = model.kernel
        self.log_marginal_likelihood_value_ = float(log_marginal_likelihood(self.machine_))
        return self

    @computing
    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, (m, k), averaged over the posterior."""
        X = new_rows(self, X)
        own = ask(lambda machine, x: machine.probability(x), self.machine_, X)
        return np.stack([1.0 - own, own], axis=1) if own.ndim == 1 else own

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    @computing
    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function, (m,) of two classes, (m, k) of several."""
        X = new_rows(self, X)
        mean, spread = ask(lambda machine, x: tuple(machine.latent(x)), self.machine_, X)
        return mean, spread if mean.ndim == 1 else np.diagonal(spread, axis1=1, axis2=2).copy()
