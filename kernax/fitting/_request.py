"""What the user asks of a fit: checked, as rules for the loop, and as a checkpoint records it."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from kernax._arrays import is_concrete
from kernax._fingerprints import described, digest_of, fingerprint, name_of
from kernax._stored import is_stored
from kernax.data import Data
from kernax.fitting._convergence import Rules
from kernax.fitting._lbfgs import lbfgs
from kernax.fitting._problem import Objective
from kernax.fitting._stochastic import IN_NATS, Stochastic, default_optimiser
from kernax.model import AbstractModel
from kernax.parameters import parameter_name, parameters, setting
from kernax.parameters import trainable as all_trainable
from kernax.rows import arrays_of
from kernax.solvers import AbstractSolver


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """What is asked of a fit, of one dataset or of each of many. The fields are the arguments of `fit_many`; see there.

    Raises `TypeError` if an option is of the wrong kind.
    """

    objective: Objective
    optimiser: optax.GradientTransformation | None
    solver: AbstractSolver
    trainable: Any
    restarts: int
    key: Key[Array, ""] | None
    max_steps: int
    gradient_tolerance: float | None
    value_tolerance: float | None
    patience: int | None
    initialise: bool = False

    def __post_init__(self):
        if not callable(self.objective):
            raise TypeError(f"objective must be a function of a Conditioned, such as kx.loo_mse, got {self.objective!r}.")
        kinds = optax.GradientTransformation | optax.GradientTransformationExtraArgs
        if self.optimiser is not None and not isinstance(self.optimiser, kinds):
            raise TypeError(f"optimiser must be an optax optimiser, such as optax.adam(1e-2), got {self.optimiser!r}.")
        if not isinstance(self.solver, AbstractSolver):
            raise TypeError(f"solver must be a configured instance, such as kx.Eigh(), got {self.solver!r}.")

    @property
    def key_of_starts(self) -> Key[Array, ""] | None:
        """The key, or if it is needed and was not given, a fixed one."""
        return jax.random.key(0) if self.key is None and self.restarts else self.key

    def free(self, model: AbstractModel) -> Any:
        """A tree of booleans: which parameters are fitted."""
        return all_trainable(model) if self.trainable is None else self.trainable

    def rules(self, model: AbstractModel, dtype: Any, *, keep_history: bool = True, refreshes: bool = False) -> Rules:
        """The rules of the loop, with the defaults of this floating type. Raises `ValueError` if an option is invalid.

        `refreshes` says whether the solver's choices are made again in the course of the fit.
        """
        if self.trainable is not None and jax.tree.structure(self.trainable) != jax.tree.structure(model):
            raise ValueError(
                "trainable must be a tree of booleans in the shape of the model: make it with kx.freeze(model, where)."
            )
        # Optimisers with momentum swing up and down for dozens of steps before they get on.
        patience = (20 if self.optimiser is None else 100) if self.patience is None else self.patience
        counts = (self.restarts, self.max_steps, patience)
        whole = all(isinstance(count, int | np.integer) for count in counts)
        if not whole or self.restarts < 0 or self.max_steps < 1 or patience < 1:
            raise ValueError(
                f"restarts must be ≥ 0, max_steps and patience ≥ 1, all whole; got {', '.join(map(str, counts))}."
            )
        _check_free(model, self.trainable)
        drawn = self.objective if isinstance(self.objective, Stochastic) else None
        in_nats = (self.objective if drawn is None else drawn.objective) in IN_NATS
        optimiser = self.optimiser
        if optimiser is None:
            optimiser = lbfgs() if drawn is None else default_optimiser(self.max_steps)
        gradient_default, value_default = _tolerances(dtype, in_nats)
        if refreshes and in_nats:
            # An approximate likelihood is not worth more digits: another choice of neighbours changes it by more.
            gradient_default, value_default = 0.1, 1e-3
        return Rules(
            optimiser=optimiser,
            max_steps=self.max_steps,
            gradient_tolerance=gradient_default if self.gradient_tolerance is None else self.gradient_tolerance,
            value_tolerance=value_default if self.value_tolerance is None else self.value_tolerance,
            patience=patience,
            in_nats=in_nats,
            keep_history=keep_history,
            keep="best" if drawn is None else drawn.keep,
            over=1 if drawn is None or drawn.keep != "average" else drawn.over,
            is_stochastic=drawn is not None,
        )

    def identified(
        self, rules: Rules, model: Any, dtype: Any, about: dict[str, Any], **more: Any
    ) -> tuple[dict[str, Any], Rules]:
        """What must be the same for the results of a fit to be used again, and the rules with a digest of it.

        `about` receives what helps to explain a difference; `more` is what else must be the same.
        """
        objective, optimiser, trainable, key = self.objective, self.optimiser, self.free(model), self.key_of_starts
        free = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(trainable)]
        about |= {"trainable": described(trainable), "objective": name_of(objective), "solver": described(self.solver)}
        about["optimiser"] = "lbfgs" if optimiser is None else name_of(optimiser.update)
        identity = more | {
            "model": fingerprint(model, "the model", about),
            "trainable": fingerprint(free, "trainable"),
            "restarts": self.restarts,
            "key": None if key is None else f"{jax.random.key_impl(key)} {np.asarray(jax.random.key_data(key)).tolist()}",
            "dtype": str(dtype),
            "objective": fingerprint(objective, "the objective", about),
            "optimiser": None if optimiser is None else fingerprint(optimiser, "the optimiser", about),
            "solver": fingerprint(self.solver, "the solver", about),
            "max_steps": rules.max_steps,
            "gradient_tolerance": rules.gradient_tolerance,
            "value_tolerance": rules.value_tolerance,
            "patience": rules.patience,
        }
        # Everything, beside arrays, that compiled programs depend on.
        functions = fingerprint(eqx.filter(model, eqx.is_array, inverse=True), "the model")
        content = " ".join([*(str(identity[name]) for name in ("objective", "optimiser", "solver")), functions])
        return identity, dataclasses.replace(rules, content=content)


def identity_of(data: Data, about: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint records of one dataset: its content. Rows in a file are read once."""
    about["data"] = repr(data)
    digest = digest_of((*arrays_of(data.x), *jax.tree.leaves((data.y, data.mask, data.gaps))))
    return {"data": [str(jax.tree.structure(data.x, is_leaf=is_stored)), digest.tobytes().hex()]}


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
                f"{name} is 0 and cannot be fitted, since it is optimised in its logarithm: start it above 0, "
                f"or hold it with trainable=kx.freeze(model, where=lambda m: m.{name})."
            )
