"""A Markov process over sorted rows: the passes of the Kalman filter and smoother, and the derivatives of the evidence.

A pass forward carries the covariance of the state from row to row. It gives `A = L D Lᵀ`: the variance of what is new in
each row (D), and the gain with which each row corrects the state (L). A pass backward gives the diagonal of `A⁻¹`. Every
right-hand side b is solved by one pass forward (`L⁻¹ b`) and one backward. All passes are scans over small products, and JAX
can differentiate them to any order.

The evidence has derivatives in closed form, since to differentiate a scan in reverse costs several times the scan. For each
row, let M be the transition from the row before, Q the covariance of the shock, R the noise and `u = A⁻¹ b`; let m, P be the
mean and the covariance of the state of the row before, given the rows up to that one; and let r, N be what this row and the
later ones add to the state: `mean + P r` and `P - P N P`. Then, summed over rows, with P∞ in the place of the first P,

    δ log det A = ⟨N, δQ⟩ + 2⟨N M P, δM⟩ + [A⁻¹]_ii δR,      δ(bᵀA⁻¹b) = 2u δb - r·δQ r - 2r·δM (m + P Mᵀ r) - u² δR.

What stands beside δ comes from passes that are differentiable themselves, so second derivatives are right, too.
"""

import functools
import operator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.kernels._markov import product

_ROUNDINGS = 16
"""If the row before leaves no more than so many roundings of a row's variance, the two rows are the same."""


class Chain(eqx.Module):
    """The process over the rows in the order of time. Masked rows come last, at the time of the last row that counts."""

    order: Int[Array, " n"]
    """Where each row stands in the data."""
    live: Bool[Array, " n"]
    """Whether each row counts."""
    times: Float[Array, " n"]
    move: Float[Array, "n j j"]
    """M: what the state of the row before is multiplied by."""
    shock: Float[Array, "n j j"]
    """Q: the covariance of what is added to it."""
    start: Float[Array, "j j"]
    """P∞: the covariance of the state without data."""
    observation: tuple[float, ...] = eqx.field(static=True)
    """h: the function is `h · state`."""

    def seen(self, states: Float[Array, "... j p"]) -> Float[Array, "... p"]:
        """`hᵀ S` for every matrix S."""
        return functools.reduce(operator.add, (h * states[..., i, :] for i, h in enumerate(self.observation) if h))

    def given(self, values: Float[Array, "... p"]) -> Float[Array, "... j p"]:
        """`h v` for every row v: the transpose of `seen`."""
        return jnp.asarray(self.observation, values.dtype)[:, None] * values[..., None, :]

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


def stepped(move: Float[Array, "... j j"], shock: Float[Array, "... j j"], held: Float[Array, "... j j"]) -> Array:
    """`M P Mᵀ + Q`: the covariance of the state after a step."""
    return product(product(move, held), jnp.swapaxes(move, -1, -2)) + shock


def run_filter(chain: Chain, noise: Float[Array, " n"]) -> tuple[Filtered, Bool[Array, " n"]]:
    """Forward and backward without a right-hand side.

    **Arguments:**

    - `chain`: the process over sorted rows.
    - `noise`: the noise of each row, sorted like them.

    **Returns:**

    A `Filtered`, and whether each row differs from the row before (true for masked rows). If one does not, A is singular.
    """
    tiny = _ROUNDINGS * jnp.finfo(noise.dtype).eps

    def forward(carry: tuple[Array, Array, Array], row: tuple[Array, Array, Array, Array]) -> tuple[Any, Any]:
        held, gain, spread = carry
        move, shock, noise, live = row
        # How much of this row's variance the row before took away.
        taken = jnp.sum(chain.seen(move) * gain) ** 2 * spread
        ahead = stepped(move, shock, held)
        seen = chain.seen(ahead)
        spread = chain.seen(seen[:, None])[0] + noise
        is_new = (spread > tiny * taken) | ~live
        # With 1 in the place of a spread that is 0, the rows that follow stay finite.
        spread = jnp.where(is_new & live, spread, 1.0)
        # As `P⁻h/D`: other forms lose digits where the noise is small.
        gain = jnp.where(live, seen / spread, 0.0)
        return (ahead - seen[:, None] * gain, gain, spread), (ahead, gain, spread, is_new)

    def backward(later: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        move, gain, precision = row
        weighted = product(later, gain[:, None])[:, 0]
        inverse = precision + jnp.sum(gain * weighted)
        # (I - h gᵀ) N (I - g hᵀ) + h hᵀ/D
        mixed = chain.given(weighted)
        now = later - mixed - mixed.T + chain.given(chain.given(inverse[None])[:, 0])
        return product(move.T, product(now, move)), (now, inverse)

    start = (chain.start, jnp.zeros_like(chain.start[0]), jnp.zeros((), noise.dtype))
    ahead, gain, spread, is_new = jax.lax.scan(forward, start, (chain.move, chain.shock, noise, chain.live))[1]
    precision = jnp.where(chain.live, 1.0 / spread, 0.0)
    rows = (chain.move, gain, precision)
    information, inverse = jax.lax.scan(backward, jnp.zeros_like(chain.start), rows, reverse=True)[1]
    return Filtered(ahead, gain, spread, precision, information, inverse), is_new


def run_passes(chain: Chain, filtered: Filtered, b: Float[Array, "n p"]) -> Passes:
    """Forward and backward, for every column of sorted right-hand sides that are 0 in masked rows."""

    def forward(state: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        move, gain, b = row
        ahead = product(move, state)
        new = b - chain.seen(ahead)
        state = ahead + gain[:, None] * new
        return state, (new, state)

    def backward(later: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        move, gain, scaled = row
        solved = scaled - jnp.sum(gain[:, None] * later, axis=0)
        now = later + chain.given(solved)
        return product(move.T, now), (solved, now)

    nothing = jnp.zeros((filtered.gain.shape[1], b.shape[1]), b.dtype)
    new, states = jax.lax.scan(forward, nothing, (chain.move, filtered.gain, b))[1]
    rows = (chain.move, filtered.gain, new * filtered.precision[:, None])
    solved, adjoints = jax.lax.scan(backward, nothing, rows, reverse=True)[1]
    return Passes(new, states, solved, adjoints)


# The rules of the evidence. Through `filtered` and `passes` the derivatives would be the same, for the price of
# differentiating the scans; so what comes before them, the chain, the noise and b, is all that the rules move.


@eqx.filter_custom_jvp
def logdet(chain: Chain, noise: Float[Array, " n"], filtered: Filtered) -> Float[Array, ""]:
    """`log det A`, from what `run_filter` made of the chain and the noise."""
    return jnp.sum(jnp.log(filtered.spread))


@logdet.def_jvp
def _logdet_jvp(primals, tangents):
    (chain, noise, filtered), (d_chain, d_noise, _) = primals, tangents
    of_shock, move = filtered.information, chain.move
    of_move = 2.0 * product(of_shock, product(move, _before(chain.start, filtered.held)))
    of_start = product(move[0].T, product(of_shock[0], move[0]))
    weights = (of_move, of_shock, of_start, filtered.inverse)
    slope = _slope((chain, noise), (d_chain, d_noise), *(weight[..., None] for weight in weights))
    return logdet(chain, noise, filtered), slope[0]


@eqx.filter_custom_jvp
def quadratic(
    chain: Chain, noise: Float[Array, " n"], b: Float[Array, "n p"], filtered: Filtered, passes: Passes
) -> Float[Array, " p"]:
    """`bᵀ A⁻¹ b` for every column of b, from what `run_filter` and `run_passes` made of the first three arguments."""
    return jnp.sum(passes.new**2 * filtered.precision[:, None], axis=0)


@quadratic.def_jvp
def _quadratic_jvp(primals, tangents):
    (chain, noise, b, filtered, passes), (d_chain, d_noise, d_b, *_) = primals, tangents
    _, states, solved, adjoints = passes
    told = product(jnp.swapaxes(chain.move, 1, 2), adjoints)
    smoothed = _before(jnp.zeros_like(states[0]), states) + product(_before(chain.start, filtered.held), told)
    weights = (-2.0 * _outer(adjoints, smoothed), -_outer(adjoints, adjoints), -_outer(told[0], told[0]), -(solved**2))
    slope = _slope((chain, noise), (d_chain, d_noise), *weights)
    if d_b is not None:
        slope = slope + 2.0 * jnp.sum(solved * d_b, axis=0)
    return quadratic(chain, noise, b, filtered, passes), slope


def _slope(
    place: tuple[Chain, Array],
    change: Any,
    of_move: Float[Array, "n j j p"],
    of_shock: Float[Array, "n j j p"],
    of_start: Float[Array, "j j p"],
    of_noise: Float[Array, "n p"],
) -> Float[Array, " p"]:
    """The sum of weights times the change of what they belong to."""

    def along(chain: Chain, noise: Array) -> Float[Array, " p"]:
        pairs = ((of_move, chain.move), (of_shock, chain.shock), (of_start, chain.start), (of_noise, noise))
        terms = [jnp.sum(weights * part[..., None], axis=tuple(range(part.ndim))) for weights, part in pairs]
        return functools.reduce(operator.add, terms)

    return eqx.filter_jvp(along, place, change)[1]


def _outer(a: Float[Array, "*n j p"], b: Float[Array, "*n j p"]) -> Float[Array, "*n j j p"]:
    return a[..., :, None, :] * b[..., None, :, :]


def _before(start: Float[Array, "j p"], states: Float[Array, "n j p"]) -> Float[Array, "n j p"]:
    """What each row comes from: the start, then the row before."""
    return jnp.concatenate([start[None], states[:-1]])
