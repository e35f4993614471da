"""The classifiers that are compared."""

# Parameters are declared as the arrays they become; type checkers do not see that numbers are converted.
# pyright: reportArgumentType=false

from collections.abc import Callable
from typing import Any

import numpy as np

from kernax import learners
from kernax.model import condition
from kernax.tables._likelihoods import class_probabilities
from kernax.tables._regressors import Answer, Fold
from kernax.tables._start import fit_or_stop, started


def _fitted(fold: Fold) -> Any:
    """Gaussian process classification by Laplace's marginal likelihood; fitted once for all methods that use its kernel."""
    if "gpc" not in fold.kept:
        likelihood = learners.Logistic() if fold.classes == 2 else learners.Softmax(fold.classes)
        start, free = started(fold.built, learners.LatentGP(fold.built.kernel, likelihood), fold.data)
        fold.kept["gpc"] = fit_or_stop(start, fold.data, trainable=free)
    return fold.kept["gpc"]


def _majority(fold: Fold) -> Answer:
    """The share of each class in the training rows."""
    y = np.asarray(fold.data.y)[np.asarray(fold.data.mask)]
    counts = np.bincount((y > 0 if fold.classes == 2 else y).astype(int), minlength=fold.classes)
    return _of_shares(np.repeat(counts[None] / counts.sum(), fold.data.n, axis=0))


def _gpc(fold: Fold) -> Answer:
    return _of_shares(class_probabilities(condition(_fitted(fold), fold.data), fold.rows))


def _logistic(fold: Fold) -> Answer:
    # With λ = ½ the prior of f is the kernel's own, as in the Gaussian process.
    machine: Any = condition(learners.KernelMachine(_fitted(fold).kernel, penalty=0.5), fold.data)
    return _of_shares(class_probabilities(machine, fold.rows))


def _svc(fold: Fold) -> Answer:
    return Answer(np.asarray(condition(learners.SVC(_fitted(fold).kernel, penalty=0.5), fold.data)(fold.rows)) > 0)


def _adaboost(fold: Fold) -> Answer:
    """Votes; their logistic is what boosting estimates the probability by."""
    share = 1.0 / (1.0 + np.exp(-2.0 * np.asarray(learners.adaboost(fold.plain)(fold.x), np.float64)))
    return _of_shares(np.stack([1.0 - share, share], axis=1))


def _of_shares(shares: np.ndarray) -> Answer:
    return Answer(shares.argmax(axis=1), shares)


CLASSIFIERS: dict[str, Callable[[Fold], Answer]] = {
    "majority": _majority,
    "gpc": _gpc,
    "svc": _svc,
    "logistic": _logistic,
    "adaboost": _adaboost,
}
CLASSIFIERS_OF_SEVERAL = {name: CLASSIFIERS[name] for name in ("majority", "gpc")}
"""For more than two classes."""
