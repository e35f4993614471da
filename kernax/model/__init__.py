"""A model, and the model with data: kernel, noise and mean, conditioned on a dataset."""

from kernax.model._checks import (
    LEARN_AGAIN,
    check_conditioned,
    check_known,
    check_model,
    check_model_and_data,
    check_solver,
    model_of,
    of_function,
)
from kernax.model._condition import condition, has_choices, settled
from kernax.model._model import AbstractModel, AnyConditioned, Conditioned, Model, check_kernel, trend_of
from kernax.model._recondition import extend, recondition

__all__ = [
    "LEARN_AGAIN",
    "AbstractModel",
    "AnyConditioned",
    "Conditioned",
    "Model",
    "check_conditioned",
    "check_kernel",
    "check_known",
    "check_model",
    "check_model_and_data",
    "check_solver",
    "condition",
    "extend",
    "has_choices",
    "model_of",
    "of_function",
    "recondition",
    "settled",
    "trend_of",
]
