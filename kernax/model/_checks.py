"""What is checked before anything is traced: arguments of the wrong kind, unknown labels, and what to do instead."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from kernax._arrays import is_concrete
from kernax.data import Data
from kernax.kernels._kernel import check_rows
from kernax.means._means import check_mean
from kernax.model._model import AbstractModel, Conditioned, trend_of
from kernax.solvers import (
    AbstractSolver,
)


def check_model_and_data(model: Any, data: Any, caller: str) -> None:
    """Raise if the arguments are not a model and its data."""
    check_model(model, caller)
    if not isinstance(data, Data):
        raise TypeError(
            f"the second argument of {caller} must be a kx.Data, got {type(data).__name__}: write kx.Data(x, y)."
        )
    if data.mask.ndim != 1:
        raise ValueError(
            f"{caller} needs one dataset, got a batch of shape {data.mask.shape[:-1]}: map over it with jax.vmap."
        )
    check_known(model, data.x, data.mask)
    model.check(data, caller)


def check_model(model: Any, caller: str) -> None:
    """Raise `TypeError` if `model` is not a model. If it is an object that contains one, the message says where."""
    if isinstance(model, AbstractModel):
        return
    remedy = "write kx.Model(kernel, noise=…)"
    if isinstance(getattr(model, "model", None), AbstractModel):
        remedy = "choose one of them, fits[0].model" if hasattr(model, "__len__") else "take its model, fit.model"
    raise TypeError(f"the first argument of {caller} must be a kx.Model, got {type(model).__name__}: {remedy}.")


def model_of(given: Any) -> Any:
    """The model of a `kx.Fit`, or what was given if it is no fit. (`kx.fitting.Fits` have several models.)"""
    return given.model if hasattr(given, "start_values") and not hasattr(given, "__len__") else given


def check_solver(model: AbstractModel, data: Data, solver: AbstractSolver) -> None:
    """Raise if the solver cannot solve for this model and data, as far as that can be seen before tracing."""
    solver.check(data.x, data.mask)
    asks = type(solver).check_equal_rows is not AbstractSolver.check_equal_rows
    if not asks or not eqx.is_array(data.x) or data.x.shape[0] < 2 or not all(map(is_concrete, (data.x, data.mask))):
        return
    # (Rows that do not count are copies of one that does. In most data the last row differs from the first.)
    x = np.asarray(data.x)
    equal = x.shape[1] == 1 and x[0, 0] == x[-1, 0] and bool(np.all(x == x[0, 0]))
    number = int(np.sum(np.asarray(data.mask)))
    if equal and number > 1:
        trend, noise = trend_of(model), getattr(model, "noise", None)
        num_free = 0 if trend is None else jax.eval_shape(trend.scaled(data.x, data.mask), data.x).shape[1]
        known = not callable(noise) and is_concrete(noise)
        solver.check_equal_rows(number, np.asarray(noise) if known and noise is not None else None, num_free)


def check_known(model: AbstractModel, x: Any, counts: Any = None) -> None:
    """Raise `ValueError` if the kernel or the mean does not accept some rows, such as a label out of range.

    Traced rows are not checked. For training rows, `counts` is the mask: each label must occur in a row that counts.
    """
    check_rows(model.kernel, x, counts)
    check_mean(getattr(model, "mean", None), x)


_ANSWERS = (
    ("mean", "mean(x)", "the mean of a new observation"),
    ("interval", "interval(x)", "where it lies"),
    ("latent", "latent(x)", "the mean and variance of the function"),
    ("probability", "probability(x)", "probabilities"),
    ("classify", "classify(x)", "classes"),
    ("log_density", "log_density(x, y)", "the log density of new observations"),
)
"""Methods of conditioned models that are not a `Conditioned`, how to call them, and what for."""


LEARN_AGAIN = "write kx.learners.kfold_loss(machine), which learns again without each fold"
"""How a machine is validated: for `check_conditioned`."""


def of_function(c: Any) -> Any:
    """A `Conditioned` with the posterior of f: for a `LaplaceGP` that of the regression at its mode; else `c` itself."""
    return c.as_regression() if hasattr(c, "as_regression") else c


def check_conditioned(c: Any, quantity: str = "", instead: str = "") -> None:
    """Raise `TypeError` if `c` is not a `Conditioned`.

    **Arguments:**

    - `c`: what was given.
    - `quantity`: what was asked for, and
    - `instead`: what to do if that is not available because the likelihood is not normal.
    """
    if not isinstance(c, Conditioned) and not isinstance(c, type) and callable(c):
        name = type(c).__name__
        if hasattr(c, "latent") and quantity:
            raise TypeError(f"{quantity} is not available for a {name}, whose likelihood is not normal: {instead}.")
        own = [f"c.{ask} for {what}" for name, ask, what in _ANSWERS if hasattr(c, name)]
        others = f" It has answers of its own: {', '.join(own)}." if own else ""
        raise TypeError(f"a {name} predicts when it is called with new rows: write machine(x).{others}")
    if not isinstance(c, Conditioned):
        raise TypeError(
            f"expected a Conditioned, got {type(c).__name__}: condition first, c = kx.condition(fit.model, data)."
        )
