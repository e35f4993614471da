"""Several classes by as many machines for two."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kernax._arrays import is_concrete
from kernax.data import Data
from kernax.model import AbstractModel, condition


class OneAgainstRest(eqx.Module):
    """One machine for each class, trained to separate it (+1) from all others (−1)."""

    machines: tuple[Any, ...]
    """The machines, one for each class."""
    classes: tuple[Any, ...] = eqx.field(static=True)
    """The labels, ascending."""

    def __repr__(self):
        return f"OneAgainstRest(classes={self.classes}, machines={[type(machine).__name__ for machine in self.machines]})"

    def scores(self, x: Any) -> Float[Array, "m k"]:
        """The value of every machine at every row, in the order of `classes`."""
        return jnp.stack([machine(x) for machine in self.machines], axis=-1)

    def classify(self, x: Any) -> Any:
        """The class with the largest score at every row, of ties the first: a NumPy array of labels (under tracing a JAX
        array, for which labels have to be numbers)."""
        return named(self.classes, jnp.argmax(self.scores(x), axis=-1))


def one_against_rest(train: Callable[[Data], Any] | AbstractModel, x: Any, labels: Any, mask: Any = None) -> OneAgainstRest:
    """A classifier of several classes from two-class machines: one for each class, against all others.

    All classes have the same shapes, so the program that is compiled for the first class serves the others. Scores of
    different machines are compared as they are.

    **Arguments:**

    - `train`: a function from a `kx.Data` with labels ±1 to something that maps rows to scores, such as `learners.adaboost`,
      or a classifier to be conditioned, such as `learners.SVC(kernel)`.
    - `x`: the rows.
    - `labels`: the classes (n,), integers or text.
    - `mask`: rows to use; rows whose mask is `False` have no class.

    **Returns:**

    A [`kernax.learners.OneAgainstRest`][], with `classify(x)` and the machines.
    """
    if isinstance(train, AbstractModel):
        train = partial(condition, train)
    if not callable(train):
        raise TypeError(
            f"train must be a function of a kx.Data, or a classifier such as learners.SVC(kernel), got {train!r}."
        )
    labels, _, classes = labels_of(labels, mask, "one_against_rest")
    machines = tuple(train(Data(x, np.where(labels == label, 1, -1), mask)) for label in classes)
    return OneAgainstRest(machines, tuple(classes.tolist()))


def labels_of(labels: Any, mask: Any, caller: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The labels and which of them count, checked, and the classes among these, ascending."""
    if isinstance(labels, jax.Array) and not is_concrete(labels):
        raise TypeError("labels are being traced, and the number of classes has to be known: call it outside of jit.")
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "biuU":
        raise ValueError(
            f"labels must be a vector of integers or text, got {labels.dtype} of shape {labels.shape}: write "
            "np.asarray(labels).ravel(), and labels.astype(int) for whole numbers stored as floats."
        )
    counts = np.ones(labels.shape, bool) if mask is None else np.asarray(mask)
    if counts.shape != labels.shape or counts.dtype != bool:
        raise ValueError(f"mask must be {len(labels)} booleans, got {counts.dtype} of shape {counts.shape}.")
    classes = np.unique(labels[counts])
    if len(classes) < 2:
        found = ", ".join(repr(label) for label in classes.tolist()) or "none"
        raise ValueError(f"{caller} got {found}: at least two classes are needed.")
    return labels, counts, classes


def named(classes: tuple[Any, ...], best: Int[Array, " m"]) -> Any:
    """The labels at these places."""
    if is_concrete(best):
        return np.asarray(classes)[np.asarray(best)]
    if isinstance(classes[0], str):
        raise TypeError("text cannot be returned under jit: use jnp.argmax of the scores, or call it outside.")
    return jnp.asarray(classes)[best]
