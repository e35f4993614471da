"""What one fit gives back, and how it is read off the loop."""

from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax._arrays import is_concrete
from kernax.data import Data
from kernax.fitting._convergence import Rules
from kernax.fitting._loop import LoopState, outcome
from kernax.parameters import at_bound, join
from kernax.solvers import AbstractSolver, Result, result_name

M = TypeVar("M")


class Fit(eqx.Module, Generic[M]):
    """A fitted model, with the status and the history of the fit."""

    model: M
    """The model at the best point."""
    value: Float[Array, ""]
    """The value of the objective minus the log-prior at `model`, the lowest finite one that was found."""
    result: Any
    """How the fit ended, a member of `kx.Result`."""
    num_steps: Int[Array, ""]
    """The number of evaluations of the objective and its gradient, from the best start."""
    gradient_norm: Float[Array, ""]
    """The largest component of the gradient in the unconstrained space, with means in units of the largest target."""
    at_bound: Any
    """A tree of booleans: which parameters ended at an end of their range."""
    jitter: Float[Array, ""]
    """The jitter that was added to the diagonal at the best point."""
    history: Float[Array, " steps"]
    """The value at every step, from the best start. Padded with NaN if the fit was traced."""
    start_values: Float[Array, " starts"]
    """The final value of each start; ∞ for a start that failed."""
    data: Data | None = None
    """The dataset; `None` for one of many fits, and for a fit inside `jit` or `vmap`."""
    solver: AbstractSolver | None = None
    """The solver; `None` in the same cases."""
    num_refreshes: int = eqx.field(static=True, default=0)
    """How often neighbours or inducing rows were chosen again; 0 for solvers that choose none."""
    start_models: tuple[M, ...] = eqx.field(default=(), repr=False, metadata={"saved": False})
    """The final model of each start, if there were restarts; empty in the same cases. Not saved in files."""
    state: Any = eqx.field(default=None, repr=False, metadata={"saved": False})
    """The state of the optimiser, from which `kx.fit(fit, data)` continues; `None` in the same cases. Not saved in files."""

    @property
    def needs_targets(self) -> bool:
        """Whether it predicts only after being conditioned on the targets that it holds."""
        return self.data is not None

    def __repr__(self):
        if not is_concrete(self.value) or self.value.ndim:
            return f"Fit({self.model!r})"
        return (
            f"Fit({result_name(self.result)}, value={float(self.value):.6g}, num_steps={int(self.num_steps)}, "
            f"gradient_norm={float(self.gradient_norm):.2g}, jitter={float(self.jitter):.2g}, model={self.model!r})"
        )


class Ended(NamedTuple):
    """How a fit has ended, or many have, with a leading axis: what `Fit` and `Fits` have in common, and are made of."""

    model: Any
    value: Any
    result: Any
    num_steps: Any
    gradient_norm: Any
    at_bound: Any
    jitter: Any
    start_values: Any


def best_of(lanes: list[LoopState], held: Any, rules: Rules) -> tuple[Ended, Float[Array, " steps"]]:
    """How the lane with the lowest finite value has ended, and its history."""
    values = jnp.stack([jnp.where(jnp.isfinite(s.best.value), s.best.value, jnp.inf) for s in lanes])
    if len(lanes) == 1:
        state = lanes[0]
        result = outcome(state, rules)
    else:
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves)[jnp.argmin(values)], *lanes)
        result = outcome(state, rules)
        hopeless = Result.where(result == Result.empty, Result.empty, Result.all_starts_failed)
        result = Result.where(jnp.any(jnp.isfinite(values)), result, hopeless)
    model, best = join(state.best.free, held), state.best
    value = jnp.where(jnp.isfinite(best.value), best.value, jnp.nan)
    ended = Ended(model, value, result, state.step, best.gradient_norm, at_bound(model), best.jitter, values)
    return ended, state.history
