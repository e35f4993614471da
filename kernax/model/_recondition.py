"""From one conditioned model to another: another noise, or more rows."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete
from kernax._programs import compiled, compiled_without_copies
from kernax.data import Data
from kernax.grams import gram_of
from kernax.model._checks import check_conditioned, check_known
from kernax.model._model import Conditioned, conditioned_on, finite_noise, flagged
from kernax.noises import check_noise, is_per_row, noise_values
from kernax.rows import (
    Grid,
    check_same_columns,
    fitted_to,
    functionals_in,
    is_on_disk,
    with_room,
)
from kernax.solvers import (
    Result,
    offered,
)


def recondition(c: Any, noise: Any) -> Conditioned:
    """The same model and data with another noise (ridge), from the existing factorisation.

    **Arguments:**

    - `c`: a model conditioned with a solver that can move to another noise: `kx.condition(model, data, kx.Eigh())`, or
      `LowRank`, `StateSpace`, `Kronecker`. O(n²) for `Eigh`.
    - `noise`: one number, 0 or more. Under `jax.vmap` many noises share the factorisation.

    **Returns:**

    A `Conditioned` with that noise. Its status is in `result`: a numerical failure raises no error.
    """
    check_conditioned(c)
    if is_concrete(noise) and not np.all(np.asarray(noise) >= 0):
        raise ValueError(f"noise must not be negative, got {noise}.")
    noise = jnp.asarray(noise, c.data.dtype)
    if noise.ndim:
        raise ValueError(f"recondition takes one number for all rows, got noise of shape {noise.shape}.")
    return _recondition(c, noise)


def extend(c: Any, x: Any, y: Any, *, noise: Any = None) -> Conditioned:
    """Condition on more rows: O(n²) for each with `Cholesky`, O(n) for all of them with `StateSpace`.

    For a stream of rows at the end of a series, see `kx.posterior.stream`: O(1) for each row.

    **Arguments:**

    - `c`: a model conditioned with `kx.Cholesky()` or `kx.StateSpace()`.
    - `x`: new inputs, `(m, d)`.
    - `y`: new targets, `(m,)` or `(m, p)`.
    - `noise`: the noise of the new rows, if the model's noise is given per row.

    **Returns:**

    A `Conditioned` on all rows, old and new, with the same numbers as conditioning again. The jitter does not change: if
    the new rows need more, the result is `not_positive_definite`.
    """
    check_conditioned(c, "extend", "condition on all rows again")
    new = Data(x, y)
    if functionals_in(c.data.x):
        new = eqx.tree_at(lambda d: d.x, new, fitted_to(new.x, c.data.x))
    check_same_columns(new.x, c.data.x, "x", "the data the model was conditioned on")
    check_known(c.model, new.x)
    new = eqx.tree_at(lambda d: d.x, new, with_room(new.x, c.data.x)) if functionals_in(new.x) else new
    if isinstance(c.data.x, Grid) or is_on_disk((c.data.x, new.x)):
        raise TypeError("extend cannot add rows to a grid, or to rows in a file: condition on all rows again.")
    if new.y.shape[1:] != c.data.y.shape[1:]:
        raise ValueError(f"y has shape {new.y.shape}, but the model was conditioned on targets of shape {c.data.y.shape}.")
    if is_per_row(c.model.noise) != (noise is not None):
        raise ValueError("give noise= for the new rows if the model's noise is given per row, and leave it out otherwise.")
    extra = None if noise is None else jnp.broadcast_to(jnp.asarray(noise, c.data.dtype), (new.n,))
    return _extend(c, new, extra)


def _num_new(arguments: Any) -> int:
    """The columns of the triangular solves of `_extend`: with few, a second thread of BLAS mostly waits for memory."""
    (_, new, _), _ = arguments
    return new.n


@functools.partial(compiled_without_copies, size_of=_num_new)
def _extend(c: Conditioned, new: Data, extra: Float[Array, " m"] | None) -> Conditioned:
    new, finite = new.finite_or_zero()

    def joined(old: Array, more: Array) -> Array:
        return jnp.concatenate([old, more.astype(old.dtype)])

    x, y, mask = jax.tree.map(joined, (c.data.x, c.data.y, c.data.mask), (new.x, new.y, new.mask))
    data = eqx.tree_at(lambda d: (d.x, d.y, d.mask), c.data, (x, y, mask))
    model = c.model
    if extra is not None:
        model = eqx.tree_at(lambda m: m.noise, model, joined(model.noise, extra))
    check_noise(model.noise, x)
    noise, sound = finite_noise(noise_values(model.noise, x, data.dtype), finite)
    # The kernel of the System, which is not the model's own for a spline, so that old rows keep their entries.
    system = c.system.appended(gram_of(c.system.gram.kernel, x, mask), noise)
    system = offered(system, c.solver, "extend", "new rows from the same factorisation")
    return conditioned_on(model, data, flagged(system, sound), c.solver, c.solution)


@compiled
def _recondition(c: Conditioned, noise: Float[Array, ""]) -> Conditioned:
    model = eqx.tree_at(lambda m: m.noise, c.model, noise)
    safe, sound = finite_noise(noise, c.system.result != Result.nonfinite)
    system = c.system.shifted(safe)
    system = offered(system, c.solver, "another ridge", "another noise from the same factorisation")
    return conditioned_on(model, c.data, flagged(system, sound), c.solver)
