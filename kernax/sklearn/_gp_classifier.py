"""Gaussian process classification."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_scalar

from kernax.data import Data
from kernax.fitting import Fit, fit, initialise
from kernax.kernels import RBF
from kernax.learners import GPClassifier
from kernax.model import condition
from kernax.selection import log_marginal_likelihood
from kernax.sklearn._classes import labelled_rows, machines, scores
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import as_kernel, as_key, check_flag, new_rows
from kernax.sklearn._shapes import ask, data_with_columns, with_columns
from kernax.sklearn._warnings import warn_unless_converged


class GaussianProcessClassifier(ClassifierMixin, Estimator):
    """Gaussian process classification by Laplace's approximation; several classes one against the rest.

    Parameters
    ----------
    kernel : kernax kernel, default None
        Where the fit starts, and its priors and bounds. None is `1.0 * kernax.RBF()` with values that suit the data.
    optimise : bool, default True
        Whether the kernel is fitted, by the approximate marginal likelihood; every machine has a kernel of its own.
    restarts : int, default 0
        Further fits from random starts, of which the best counts.
    max_steps : int, default 500
        Steps of L-BFGS.
    random_state : int, RandomState or None
        For the restarts.

    Attributes
    ----------
    classes_ : array (k,)
    machines_ : tuple of kernax.learners.LaplaceGP
        One for two classes, else one a class; with rows of padding behind their masks.
    kernels_ : tuple of kernax kernels
        Those of the machines.
    fits_ : tuple of kernax.fitting.Fit
        How their fits went; None without them.
    log_marginal_likelihood_value_ : float
        The mean of the machines'.

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
        start = GPClassifier(1.0 * RBF() if self.kernel is None else as_kernel(self, X))
        key, fits = as_key(self.random_state), []

        def train(data: Data) -> Any:
            model = initialise(start, data_with_columns(data, X.shape[1])) if self.kernel is None else start
            if self.optimise:
                found: Fit = fit(model, data, restarts=self.restarts, key=key, max_steps=self.max_steps)
                fits.append(with_columns(found, X.shape[1]))
                model = found.model
            return condition(model, data)

        self.machines_ = machines(train, X, codes, start.kernel)
        self.kernels_ = tuple(machine.model.kernel for machine in self.machines_)
        self.fits_ = tuple(fits) if fits else None
        warn_unless_converged(self, fits)
        likelihoods = [float(log_marginal_likelihood(machine)) for machine in self.machines_]
        self.log_marginal_likelihood_value_ = float(np.mean(likelihoods))
        return self

    @computing
    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, (m, k), averaged over the posterior; of several classes in proportion."""
        X = new_rows(self, X)
        own = scores(lambda machine, x: machine.probability(x), self.machines_, X)
        if own.ndim == 1:
            return np.stack([1.0 - own, own], axis=1)
        return own / own.sum(axis=1, keepdims=True)

    @computing
    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    @computing
    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function, (m,) of two classes, (m, k) of several."""
        X = new_rows(self, X)
        answers = [ask(lambda machine, x: tuple(machine.latent(x)), machine, X) for machine in self.machines_]
        if len(answers) == 1:
            return answers[0]
        mean, variance = zip(*answers, strict=True)
        return np.stack(mean, axis=1), np.stack(variance, axis=1)
