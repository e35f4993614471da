"""Classes of any labels, told apart by machines for two."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from kernax.data import Data
from kernax.learners import one_against_rest
from kernax.sklearn._inputs import row_weights, training_rows
from kernax.sklearn._shapes import padded, padded_mask


class Labelled(NamedTuple):
    """The rows that have weight."""

    X: np.ndarray
    codes: np.ndarray
    """The numbers of their classes."""
    weights: np.ndarray
    places: np.ndarray
    """Where they stood among all rows."""
    classes: np.ndarray


def labelled_rows(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> Labelled:
    """Rows with labels of any kind, checked; refused if there is one class only."""
    X, y = training_rows(estimator, X, y)
    check_classification_targets(y)
    weights = row_weights(sample_weight, X)
    places = np.flatnonzero(weights)
    classes, codes = np.unique(y[places], return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"{type(estimator).__name__} needs rows of two classes or more, got one class, {classes[:1].tolist()[0]!r} "
            "(rows of sample_weight 0 do not count)."
        )
    return Labelled(X[places], codes, weights[places], places, classes)


def machines(train: Callable[[Data], Any], X: np.ndarray, codes: np.ndarray) -> tuple[Any, ...]:
    """The machine that tells class 1 from class 0, or of several classes each from all others."""
    x, labels, counts = padded(X), padded(codes), padded_mask(len(X))
    if codes.max() == 1:
        return (train(Data(x, np.where(labels == 1, 1, -1), counts)),)
    return one_against_rest(train, x, labels, counts).machines


def joined(answers: list[np.ndarray]) -> np.ndarray:
    """One answer as it is, several as columns."""
    return answers[0] if len(answers) == 1 else np.stack(answers, axis=1)


def chosen(classes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The class with the largest score; of two, the second where the one score is not negative."""
    return classes[(scores >= 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
