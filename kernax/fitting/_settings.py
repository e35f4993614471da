"""What the user asks of a fit, checked, as rules for the loop."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from kernax._arrays import is_concrete
from kernax.fitting._best import Rules
from kernax.fitting._lbfgs import lbfgs
from kernax.fitting._stochastic import IN_NATS, Stochastic, default_optimiser
from kernax.model import AbstractModel
from kernax.parameters import parameter_name, parameters, setting


def checked_rules(
    model: AbstractModel,
    dtype: Any,
    *,
    objective: Any,
    optimiser: Any,
    max_steps: int,
    gradient_tolerance: float | None,
    value_tolerance: float | None,
    patience: int | None,
    trainable: Any,
    restarts: int,
    keep_history: bool = True,
    refreshes: bool = False,
) -> Rules:
    """The rules, with the defaults of this floating type. Raises `TypeError` or `ValueError` if an option is invalid.

    `refreshes` says whether the solver's choices are made anew in the course of the fit.
    """
    if not callable(objective):
        raise TypeError(f"objective must be a function of a Conditioned, such as kx.loo_mse, got {objective!r}.")
    if optimiser is not None and not isinstance(
        optimiser, optax.GradientTransformation | optax.GradientTransformationExtraArgs
    ):
        raise TypeError(f"optimiser must be an optax optimiser, such as optax.adam(1e-2), got {optimiser!r}.")
    if trainable is not None and jax.tree.structure(trainable) != jax.tree.structure(model):
        raise ValueError(
            "trainable must be a tree of booleans in the shape of the model: make it with kx.freeze(model, where)."
        )
    if patience is None:
        # Optimisers with momentum swing up and down for dozens of steps before they get on.
        patience = 20 if optimiser is None else 100
    counts = (restarts, max_steps, patience)
    if not all(isinstance(count, int | np.integer) for count in counts) or restarts < 0 or max_steps < 1 or patience < 1:
        raise ValueError(f"restarts must be ≥ 0, max_steps and patience ≥ 1, all whole; got {', '.join(map(str, counts))}.")
    _check_free(model, trainable)
    drawn = objective if isinstance(objective, Stochastic) else None
    in_nats = (objective if drawn is None else drawn.objective) in IN_NATS
    if optimiser is None:
        optimiser = lbfgs() if drawn is None else default_optimiser(max_steps)
    gradient_default, value_default = _tolerances(dtype, in_nats)
    if refreshes and in_nats:
        # An approximate likelihood is not worth more digits: another choice of neighbours changes it by more.
        gradient_default, value_default = 0.1, 1e-3
    return Rules(
        optimiser=optimiser,
        max_steps=max_steps,
        gradient_tolerance=gradient_default if gradient_tolerance is None else gradient_tolerance,
        value_tolerance=value_default if value_tolerance is None else value_tolerance,
        patience=patience,
        in_nats=in_nats,
        keep_history=keep_history,
        keep="best" if drawn is None else drawn.keep,
        over=1 if drawn is None or drawn.keep != "average" else drawn.over,
        is_stochastic=drawn is not None,
    )


def _tolerances(dtype: Any, in_nats: bool) -> tuple[float, float]:
    """The default tolerances of the gradient and the value: in nats, or relative to the objective's best value."""
    if jnp.finfo(dtype).eps > 1e-10:
        return (0.1, 1e-4) if in_nats else (1e-3, 1e-5)
    return (1e-3, 1e-6) if in_nats else (1e-5, 1e-8)


def _check_free(model: AbstractModel, trainable: AbstractModel | None) -> None:
    tree = model if trainable is None else eqx.filter(model, trainable)
    free = parameters(tree)
    if not free:
        raise ValueError("there is nothing to fit: every parameter is held.")
    for path, value in free:
        bijector = setting(model, path).bijector
        if is_concrete(value) and getattr(bijector, "zero_allowed", False) and (np.asarray(value) == 0).any():
            name = parameter_name(path)
            raise ValueError(
                f"{name} is 0, where its logarithm, in which it is fitted, has no value: start it above 0, "
                f"or hold it with trainable=kx.freeze(model, where=lambda m: m.{name})."
            )
