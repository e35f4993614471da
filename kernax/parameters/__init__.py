"""Hyperparameters: functions to declare, constrain and freeze them, and to give them priors.

- Fields of a class: `positive`, `non_negative`, `real`, `interval`. The constraints themselves are in `kernax.bijectors`,
  the priors in `kernax.priors`.
- Functions of a whole model: `freeze`, `with_prior`, `with_bijector`, `constrain`, `unconstrain`, `ravel`, `log_prior`.
"""

from typing import TYPE_CHECKING

from kernax._moved import moved
from kernax.parameters._fields import Function, Parameter, Parametrised, as_function, interval, non_negative, positive, real
from kernax.parameters._tree import (
    as_dtype,
    at_bound,
    constrain,
    freeze,
    join,
    log_jacobian,
    log_prior,
    owner_and_field,
    parameter_name,
    parameters,
    ravel,
    setting,
    split,
    trainable,
    unconstrain,
    unit,
    with_bijector,
    with_prior,
)

__all__ = [
    "Function",
    "Parameter",
    "Parametrised",
    "as_dtype",
    "as_function",
    "at_bound",
    "constrain",
    "freeze",
    "interval",
    "join",
    "log_jacobian",
    "log_prior",
    "non_negative",
    "owner_and_field",
    "parameter_name",
    "parameters",
    "positive",
    "ravel",
    "real",
    "setting",
    "split",
    "trainable",
    "unconstrain",
    "unit",
    "with_bijector",
    "with_prior",
]

if not TYPE_CHECKING:  # type checkers would otherwise accept every misspelt name
    __getattr__ = moved(
        __name__,
        "kx.parameters",
        {
            "bijectors": "AbstractBijector Interval Positive Real Softplus",
            "priors": "Gamma HalfNormal LogNormal Normal Prior",
        },
    )
