"""A Markov process over sorted rows: the passes of the Kalman filter and smoother.

A pass forward carries the covariance of the state from row to row. It gives `A = L D Lᵀ`: the variance of what is new in
each row (D), and the gain with which each row corrects the state (L). A pass backward gives the diagonal of `A⁻¹`. Every
right-hand side b is solved by one pass forward (`L⁻¹ b`) and one backward. All passes are scans over small products, and JAX
can differentiate them to any order. On CPU, XLA compiles a scan as one piece of code if it touches less than a kilobyte in a
turn, which makes it several times as fast: that is why turns are as short as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.solvers._steps import Steps, dense, times

F = TypeVar("F", bound=Callable[..., Any])

_ROUNDINGS = 16
"""If the row before leaves no more than so many roundings of a row's variance, the two rows are the same."""


class Chain(eqx.Module):
    """The process over the rows in the order of time. Masked rows come last, at the time of the last row that counts."""

    order: Int[Array, " n"]
    """Where each row stands in the data."""
    live: Bool[Array, " n"]
    """Whether each row counts."""
    times: Float[Array, " n"]
    steps: Steps
    start: tuple[Float[Array, "_ _ _"], ...]
    """P∞: the covariance of the state without data, in blocks."""

    @property
    def size(self) -> int:
        """The numbers of a state."""
        return sum(block.shape[0] * block.shape[1] for block in self.start)

    def sorted(self, values: Float[Array, "n *p"]) -> Float[Array, "n *p"]:
        """Values of the data's rows in the order of time."""
        return values[self.order]

    def unsorted(self, values: Float[Array, "n *p"]) -> Float[Array, "n *p"]:
        """Values in the order of time in that of the data's rows."""
        return jnp.zeros_like(values).at[self.order].set(values, unique_indices=True)


class Filtered(eqx.Module):
    """What is known about each row without a right-hand side."""

    ahead: Float[Array, "n j j"]
    """The covariance of the state given the rows before."""
    gain: Float[Array, "n j"]
    """How much of what is new in this row is added to the state; 0 in masked rows."""
    spread: Float[Array, " n"]
    """D: the variance of what is new in this row; 1 in masked rows."""
    precision: Float[Array, " n"]
    """`1/D`; 0 in masked rows."""
    information: Float[Array, "n j j"]
    """N: what this row and the later ones add about the state."""
    inverse: Float[Array, " n"]
    """`diag(A⁻¹)`; 0 in masked rows."""
    pull: Float[Array, "n j"] | None
    """`h diag(A⁻¹) - Ñ gain`, where Ñ is what the later rows alone add: how the determinant depends on h. `None` if h is the
    same in all rows."""

    @property
    def held(self) -> Float[Array, "n j j"]:
        """The covariance of the state given the rows up to this one."""
        return self.ahead - (self.spread[:, None] * self.gain)[:, :, None] * self.gain[:, None, :]


class Passes(NamedTuple):
    """What is known about each row from right-hand sides b."""

    new: Float[Array, "n p"]
    """`L⁻¹ b`: what is new in this row."""
    states: Float[Array, "n j p"]
    """The mean of the state given the rows up to this one."""
    solved: Float[Array, "n p"]
    """`A⁻¹ b`."""
    adjoints: Float[Array, "n j p"]
    """r: what this row and the later ones add to the mean of the state."""


def _differentiated_apart(function: F) -> F:
    """The same function, whose derivative is computed beside it and not together with it.

    The derivative of a loop keeps numbers of every turn. The evidence has derivatives of its own (`_chain_derivatives.py`)
    and needs none of them: computed apart, they are left out of the program.
    """
    wrapped = eqx.filter_custom_jvp(function)

    @wrapped.def_jvp
    def _jvp(primals, tangents):
        return wrapped(*primals), eqx.filter_jvp(function, primals, tangents)[1]

    return cast(F, wrapped)


@_differentiated_apart
def run_filter(chain: Chain, noise: Float[Array, " n"]) -> tuple[Filtered, Bool[Array, " n"]]:
    """Forward and backward without a right-hand side.

    **Arguments:**

    - `chain`: the process over sorted rows.
    - `noise`: the noise of each row, sorted like them.

    **Returns:**

    A `Filtered`, and whether each row differs from the row before (true for masked rows). If one does not, A is singular.
    """

    def forward(held: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        step, noise, counts = row
        ahead = step.ahead(held)
        seen = step.seen(ahead)
        spread = step.seen(seen[:, None])[0] + noise
        # With 1 in the place of a spread that is 0, the rows that follow stay finite.
        spread = jnp.where(spread > 0, spread, 1.0)
        # As `P⁻h/D`: other forms lose digits where the noise is small.
        gain = seen * (counts / spread)
        return ahead - seen[:, None] * gain, (ahead, gain, spread)

    def backward(later: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, Any]:
        step, gain, precision = row
        weighted = times(later, gain[:, None])[:, 0]
        inverse = precision + times(gain[None], weighted[:, None])[0, 0]
        # (I - h gᵀ) N (I - g hᵀ) + h hᵀ/D
        h = step.given(jnp.ones(1, gain.dtype))[:, 0]
        half = weighted - 0.5 * inverse * h
        now = later - h[:, None] * half - half[:, None] * h
        return step.behind(now), (now, inverse, None if step.varying is None else weighted - 2.0 * half)

    start = dense(chain.start)
    ahead, gain, spread = jax.lax.scan(forward, start, (chain.steps, noise, chain.live.astype(noise.dtype)))[1]
    spread = jnp.where(chain.live, spread, 1.0)
    precision = jnp.where(chain.live, 1.0 / spread, 0.0)
    rows = (chain.steps, gain, precision)
    information, inverse, pull = jax.lax.scan(backward, jnp.zeros_like(start), rows, reverse=True)[1]
    return Filtered(ahead, gain, spread, precision, information, inverse, pull), _are_new(chain, noise, ahead, gain, spread)


def _are_new(
    chain: Chain,
    noise: Float[Array, " n"],
    ahead: Float[Array, "n j j"],
    gain: Float[Array, "n j"],
    spread: Float[Array, " n"],
) -> Bool[Array, " n"]:
    """Whether the row before leaves more than roundings of each row's variance; true for masked rows."""

    def of_row(step: Steps, ahead: Array, gain: Array) -> tuple[Array, Array]:
        return step.seen(step.seen(ahead)[:, None])[0], step.seen(step.forth(gain[:, None]))[0]

    own, carried = jax.vmap(of_row)(chain.steps, ahead, jnp.concatenate([jnp.zeros_like(gain[:1]), gain[:-1]]))
    taken = carried**2 * jnp.concatenate([jnp.zeros_like(spread[:1]), spread[:-1]])
    return (own + noise > _ROUNDINGS * jnp.finfo(noise.dtype).eps * taken) | ~chain.live


@_differentiated_apart
def run_passes(chain: Chain, filtered: Filtered, b: Float[Array, "n p"]) -> Passes:
    """Forward and backward, for every column of sorted right-hand sides that are 0 in masked rows."""

    def forward(state: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        step, gain, b = row
        ahead = step.forth(state)
        new = b - step.seen(ahead)
        state = ahead + gain[:, None] * new
        return state, (new, state)

    def backward(later: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        step, gain, scaled = row
        solved = scaled - times(gain[None], later)[0]
        now = later + step.given(solved)
        return step.back(now), (solved, now)

    nothing = jnp.zeros((chain.size, b.shape[1]), b.dtype)
    new, states = jax.lax.scan(forward, nothing, (chain.steps, filtered.gain, b))[1]
    rows = (chain.steps, filtered.gain, new * filtered.precision[:, None])
    solved, adjoints = jax.lax.scan(backward, nothing, rows, reverse=True)[1]
    return Passes(new, states, solved, adjoints)


@_differentiated_apart
def product_with(chain: Chain, values: Float[Array, "n p"]) -> Float[Array, "n p"]:
    """`K v` for every column of sorted values that are 0 in masked rows."""

    def forward(carry: tuple[Array, Array], row: tuple[Steps, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        held, state = carry
        step, value = row
        held = step.ahead(held)
        known = step.seen(held)
        state = step.forth(state) + known[:, None] * value
        return (held, state), (known, step.seen(state))

    def backward(later: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, Array]:
        step, known, value = row
        return step.back(later + step.given(value)), times(known[None], later)[0]

    nothing = jnp.zeros((chain.size, values.shape[1]), values.dtype)
    known, before = jax.lax.scan(forward, (dense(chain.start), nothing), (chain.steps, values))[1]
    return before + jax.lax.scan(backward, nothing, (chain.steps, known, values), reverse=True)[1]


@_differentiated_apart
def drawn(chain: Chain, filtered: Filtered, shocks: Float[Array, "n s"]) -> Float[Array, "n s"]:
    """Columns of `N(0, A)` from columns of independent normal numbers."""

    def step(state: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, Array]:
        step, gain, new = row
        ahead = step.forth(state)
        return ahead + gain[:, None] * new, step.seen(ahead) + new

    new = jnp.sqrt(filtered.spread)[:, None] * shocks
    nothing = jnp.zeros((chain.size, shocks.shape[1]), shocks.dtype)
    return jax.lax.scan(step, nothing, (chain.steps, filtered.gain, new))[1]
