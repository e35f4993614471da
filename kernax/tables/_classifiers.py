"""The classifiers that are compared."""

# Parameters are declared as the arrays they become; type checkers do not see that numbers are converted.
# pyright: reportArgumentType=false

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from kernax import learners
from kernax.model import condition
from kernax.tables._columns import missing_rows
from kernax.tables._dates import looks_like_date
from kernax.tables._likelihoods import latent_start
from kernax.tables._read import Table
from kernax.tables._regressors import Answer, Fold
from kernax.tables._start import fit_or_stop


def classes_of(table: Table, target: str, *, asked: bool) -> list[str] | None:
    """The values of a column of classes, in order: of two values, or of text; if `asked` for, also of whole numbers.

    `None` for any other column.
    """
    lacking = missing_rows(table, [target]).get(target, np.array([], int))
    values = np.delete(table.column(target), lacking).tolist()
    found = sorted({class_text(value) for value in values}, key=_order)
    numbers = [_order(text) for text in found]
    is_text = any(kind for kind, _ in numbers) and not any(looks_like_date(text) for text in found)
    is_whole = all(not kind and value == int(value) for kind, value in numbers)
    return found if len(found) == 2 or (len(found) > 2 and (is_text or (asked and is_whole))) else None


def class_text(value: Any) -> str:
    """A class as text: 1 and 1.0 are one."""
    try:
        number = float(value)
    except ValueError:
        return str(value)
    return str(int(number)) if number.is_integer() else str(number)


def _order(text: str) -> tuple[int, Any]:
    try:
        return (0, float(text))
    except ValueError:
        return (1, text)


def _fitted(fold: Fold) -> Any:
    """Gaussian process classification by Laplace's marginal likelihood; fitted once for all who want its kernel."""
    if "gpc" not in fold.kept:
        start, free = latent_start(fold.built, learners.Logistic(), fold.data)
        fold.kept["gpc"] = fit_or_stop(start, fold.data, trainable=free)
    return fold.kept["gpc"]


def _majority(fold: Fold) -> Answer:
    share = float(np.mean(np.asarray(fold.data.y)[np.asarray(fold.data.mask)] > 0))
    return Answer(np.full(fold.data.n, 1.0 if share > 0.5 else -1.0), np.full(fold.data.n, share))


def _gpc(fold: Fold) -> Answer:
    c: Any = condition(_fitted(fold), fold.data)
    return Answer(c(fold.rows), c.probability(fold.rows))


def _logistic(fold: Fold) -> Answer:
    # With λ = ½ the prior of f is the kernel's own, as in the Gaussian process.
    machine: Any = condition(learners.KernelMachine(_fitted(fold).kernel, penalty=0.5), fold.data)
    return Answer(machine(fold.rows), machine.probability(fold.rows))


def _svc(fold: Fold) -> Answer:
    return Answer(condition(learners.SVC(_fitted(fold).kernel, penalty=0.5), fold.data)(fold.rows))


def _adaboost(fold: Fold) -> Answer:
    """Votes; their logistic is what boosting estimates the probability by."""
    votes = learners.adaboost(fold.plain)(fold.x)
    return Answer(votes, 1.0 / (1.0 + jnp.exp(-2.0 * votes)))


def _shares(fold: Fold) -> Answer:
    """The share of each class in the training rows."""
    counts = np.bincount(np.asarray(fold.data.y)[np.asarray(fold.data.mask)].astype(int), minlength=fold.classes)
    return Answer(np.repeat(counts[None] / counts.sum(), fold.data.n, axis=0))


def _softmax_gpc(fold: Fold) -> Answer:
    start, free = latent_start(fold.built, learners.Softmax(fold.classes), fold.data)
    c: Any = condition(fit_or_stop(start, fold.data, trainable=free), fold.data)
    return Answer(c.probability(fold.rows))


CLASSIFIERS_OF_SEVERAL: dict[str, Callable[[Fold], Answer]] = {"majority": _shares, "gpc": _softmax_gpc}
"""For more than two classes. Their answers are the probability of each class."""
CLASSIFIERS: dict[str, Callable[[Fold], Answer]] = {
    "majority": _majority,
    "gpc": _gpc,
    "svc": _svc,
    "logistic": _logistic,
    "adaboost": _adaboost,
}
