"""Fits that have an answer, but not the one that was asked for."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import ConvergenceWarning

from kernax.solvers import result_name, result_text

_UNCONVERGED = ("max_steps_reached", "stalled", "diverged")
# Past this file, the estimator's method and what wraps it.
_TO_THE_CALLER = 4


def warn_unless_converged(estimator: Any, fits: Sequence[Any]) -> None:
    """Say which of the fits did not reach an optimum, once for each way of not reaching it."""
    texts = [result_text(fit.result) for fit in fits if result_name(fit.result) in _UNCONVERGED]
    for text in dict.fromkeys(texts):
        which = "the fit" if len(fits) == 1 else f"{texts.count(text)} of {len(fits)} fits"
        message = f"{type(estimator).__name__}: {which} ended early. {text}"
        warnings.warn(message, ConvergenceWarning, stacklevel=_TO_THE_CALLER)


def warn_if_jittered(estimator: Any, jitter: Any, ridge: Any) -> None:
    """Say if more had to be added to the kernel matrix than the user wanted."""
    least = float(np.min(ridge))
    if float(jitter) > least:
        warnings.warn(
            f"{type(estimator).__name__}: the kernel matrix is so ill-conditioned that {float(jitter):.2g} was added to its "
            f"diagonal, more than the ridge {least:.2g}, so the answer is that of a larger ridge. Raise alpha, use float64, "
            "or use a rougher kernel.",
            LinAlgWarning,
            stacklevel=_TO_THE_CALLER,
        )
