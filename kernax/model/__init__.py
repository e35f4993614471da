"""A model, and the model with data: kernel, noise and mean, conditioned on a dataset."""

from kernax.model._condition import condition, settled
from kernax.model._model import AbstractModel, AnyConditioned, Conditioned, Model
from kernax.model._recondition import extend, recondition

__all__ = [
    "AbstractModel",
    "AnyConditioned",
    "Conditioned",
    "Model",
    "condition",
    "extend",
    "recondition",
    "settled",
]
