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

from kernax.solvers._steps import Steps, blocks_of, dense, product_blocks, times
from kernax.solvers._twofold import Twofold, ahead_of, seen_of

F = TypeVar("F", bound=Callable[..., Any])

ROUNDINGS = 16
"""If the row before leaves no more than so many roundings of a row's variance, the two rows are the same."""
_TINY = 0.625
"""Noise is tiny if it is less than this power of the machine's accuracy, times the prior variance: 2e-10 in float64."""
_MARGIN = 1e7
"""So many times larger than the variance of its rounding errors must the variance of what is new in a row be. With 1e6,
determinants that are off by 2e-4 pass (two Matern52 that are added, at steps of 1e-6 lengthscales)."""
_SIDE_BY_SIDE = 6
"""States of more numbers: the determinant's derivatives are computed row after row, not from matrices kept for all rows.
Processor time of value and gradient, 100,000 rows, sums of Matern32, with 2, 4, 6, 10 and 20 numbers of state: 25, 1.3, 1,
0.7 and 0.4 times that of all rows side by side, whose matrices take 1.8 GB with 20 numbers."""


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

    before: Float[Array, "n j j"]
    """P: the covariance of the state of the row before, given the rows up to that one; first the state's without data."""
    last: Float[Array, "j j"]
    """The covariance of the state of the last row, given all rows."""
    gain: Float[Array, "n j"]
    """How much of what is new in this row is added to the state; 0 in masked rows."""
    spread: Float[Array, " n"]
    """D: the variance of what is new in this row; 1 in masked rows."""
    precision: Float[Array, " n"]
    """`1/D`; 0 in masked rows."""
    later: Float[Array, "n j*j"]
    """Ñ: what the later rows alone add about the state; its rows beside each other."""

    def ahead(self, steps: Steps) -> Float[Array, "n j j"]:
        """P⁻: the covariance of the state given the rows before; `steps` are those to the rows."""
        return jax.vmap(Steps.ahead)(steps, self.before)

    def informed(self, steps: Steps) -> "Informed":
        """What this row and the later ones add; `steps` are those to the rows."""
        return jax.vmap(_informed)(steps, self.gain, self.precision, self.later)


class Informed(NamedTuple):
    """What each row and the later ones add about the state of this row."""

    information: Float[Array, "n j j"]
    """N: what they add."""
    inverse: Float[Array, " n"]
    """`diag(A⁻¹)`; 0 in masked rows."""
    pull: Float[Array, "n j"]
    """`h diag(A⁻¹) - Ñ gain`: how the determinant depends on h."""


class Sensitivity(NamedTuple):
    """How the log determinant depends on the parts of the chain. Of matrices, the diagonal blocks, as in its steps."""

    moves: tuple[Float[Array, "n _ _ _"], ...]
    """`N M P`."""
    shocks: tuple[Float[Array, "n _ _ _"], ...]
    """N: what this row and the later ones add about the state."""
    start: tuple[Float[Array, "_ _ _"], ...]
    """What all rows add about the first state."""
    inverse: Float[Array, " n"]
    """`diag(A⁻¹)`; 0 in masked rows."""
    varying: Float[Array, "n j"] | None
    """`P⁻(h diag(A⁻¹) - Ñ gain)`, if h depends on the row."""


class Passes(NamedTuple):
    """What is known about each row from right-hand sides b."""

    new: Float[Array, "n p"]
    """`L⁻¹ b`: what is new in this row."""
    before: Float[Array, "n j p"]
    """m: the mean of the state of the row before, given the rows up to that one; first 0."""
    last: Float[Array, "j p"]
    """The mean of the state of the last row, given all rows."""
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


@eqx.filter_custom_jvp
def run_filter(chain: Chain, noise: Float[Array, " n"]) -> tuple[Filtered, Bool[Array, ""]]:
    """Forward and backward without a right-hand side.

    Where the noise of a row is tiny compared with the variance of the prior, the pass forward is computed with twice the
    digits. (Its derivatives are not. Those of the evidence are made from its results; see `_chain_derivatives.py`.)

    **Arguments:**

    - `chain`: the process over sorted rows.
    - `noise`: the noise of each row, sorted like them.

    **Returns:**

    A `Filtered`, and whether each row that counts differs from the rows before. If one does not, A is numerically singular.
    """
    forward, is_new = _forward(chain, noise)

    def again(state: tuple[Array, Any]) -> tuple[Array, Any]:
        return jnp.zeros_like(state[0]), _precise_forward(chain, noise)

    # A loop of one turn or none: under vmap, `cond` would always compute both sides.
    is_tiny = _is_tiny(chain, noise)
    forward, is_new = jax.lax.while_loop(lambda state: state[0], again, (is_tiny, (forward, is_new)))[1]
    return _with_later(chain, forward), is_new


@run_filter.def_jvp
def _run_filter_jvp(primals, tangents):
    # The derivative of a loop keeps numbers of every turn: see `_differentiated_apart`.
    def plain(chain: Chain, noise: Array) -> tuple[Filtered, Bool[Array, ""]]:
        forward, is_new = _forward(chain, noise)
        return _with_later(chain, forward), is_new

    return run_filter(*primals), eqx.filter_jvp(plain, primals, tangents)[1]


class _Forward(NamedTuple):
    """What the pass forward finds: `before`, `last`, `gain` and `spread` of `Filtered`."""

    before: Float[Array, "n j j"]
    last: Float[Array, "j j"]
    gain: Float[Array, "n j"]
    spread: Float[Array, " n"]


def _forward(chain: Chain, noise: Float[Array, " n"]) -> tuple[_Forward, Bool[Array, ""]]:
    """The pass forward, and whether each row differs from the row before."""

    def forward(before: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        step, noise, counts = row
        ahead = step.ahead(before)
        seen = step.seen(ahead)
        return ahead - seen[:, None] * _gain(seen, _found(step, seen, noise), counts), (before, seen)

    counts = chain.live.astype(noise.dtype)
    last, (before, seen) = jax.lax.scan(forward, dense(chain.start), (chain.steps, noise, counts))
    found = jax.vmap(_found)(chain.steps, seen, noise)
    gain = jax.vmap(_gain)(seen, found, counts)
    spread = jnp.where(chain.live, _positive(found), 1.0)
    return _Forward(before, last, gain, spread), _are_new(chain, gain, spread, found)


def _precise_forward(chain: Chain, noise: Float[Array, " n"]) -> tuple[_Forward, Bool[Array, ""]]:
    """The same with twice the digits, and whether each row's variance is larger than its rounding errors.

    E bounds the errors of P. Each step moves and updates it like P, and adds `_MARGIN` j times the squared roundings of the
    standard deviations of the state. That covers the rounding of twice the digits, and also that of M, which has the usual
    digits: if M is off by F, P is off by `F P Mᵀ + M P Fᵀ`, which is at most `M P Mᵀ/c + c F P Fᵀ` for every c.
    """

    def forward(carry: tuple[Twofold, Array], row: tuple[Steps, Array, Array]) -> tuple[Any, Any]:
        (before, errors), (step, noise, counts) = carry, row
        ahead = ahead_of(step, before)
        seen = seen_of(step, ahead)
        found = seen_of(step, seen[:, None])[0] + noise
        gain = seen.divided(found, found.high > 0, counts)
        errors = step.moved(errors) + jnp.diag(_MARGIN * chain.size * eps**2 * jnp.diagonal(ahead.high))
        unknown = step.seen(errors)
        largest = step.seen(unknown[:, None])[0]
        errors = errors - gain.high[:, None] * unknown - (unknown - gain.high * largest)[:, None] * gain.high
        after = ahead + seen[:, None] * -gain[None]
        return (after, errors), (before.high, gain.high, found.high, found.high > largest)

    start, counts, eps = dense(chain.start), chain.live.astype(noise.dtype), jnp.finfo(noise.dtype).eps
    nothing = (Twofold.of(start), jnp.zeros_like(start))
    (last, _), (before, gain, found, is_new) = jax.lax.scan(forward, nothing, (chain.steps, noise, counts))
    spread = jnp.where(chain.live, _positive(found), 1.0)
    return _Forward(before, last.high, gain, spread), jnp.all(is_new | ~chain.live)


def _is_tiny(chain: Chain, noise: Float[Array, " n"]) -> Bool[Array, ""]:
    """Whether the noise of some row is so small, compared with the variance of the prior, that rounding may matter."""
    start = dense(chain.start)
    prior = jnp.max(jax.vmap(lambda step: step.seen(step.seen(start)[:, None])[0])(chain.steps))
    return jnp.min(jnp.where(chain.live, noise, jnp.inf)) < float(jnp.finfo(noise.dtype).eps) ** _TINY * prior


def _with_later(chain: Chain, forward: _Forward) -> Filtered:
    """The pass backward, from the results of that forward."""

    def backward(later: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, Array]:
        # As a vector: of two equal arrays of zeros for the results of two loops, XLA would make one and copy it.
        return row[0].behind(_informed(*row, later).information), later.ravel()

    before, last, gain, spread = forward
    precision = jnp.where(chain.live, 1.0 / spread, 0.0)
    later = jax.lax.scan(backward, jnp.zeros_like(last), (chain.steps, gain, precision), reverse=True)[1]
    return Filtered(before, last, gain, spread, precision, later)


@_differentiated_apart
def run_back(chain: Chain, filtered: Filtered) -> Sensitivity:
    """Backward for the derivatives of the determinant."""

    def of_row(row: tuple[Steps, Array, Array, Array], later: Array) -> tuple[Array, Any]:
        step, gain, precision, before = row
        information, inverse, pull = _informed(step, gain, precision, later)
        varying = None if step.varying is None else times(step.ahead(before), pull[:, None])[:, 0]
        moves = product_blocks(information, step.forth(before), step.moves)
        return information, (moves, blocks_of(information, step.shocks), inverse, varying)

    def backward(later: Array, row: tuple[Steps, Array, Array, Array]) -> tuple[Array, Any]:
        information, found = of_row(row, later)
        return row[0].behind(information), found

    rows = (chain.steps, filtered.gain, filtered.precision, filtered.before)
    if chain.size <= _SIDE_BY_SIDE:
        information, (moves, shocks, inverse, varying) = jax.vmap(of_row)(rows, filtered.later)
        first = jax.tree.map(lambda leaf: leaf[0], chain.steps).behind(information[0])
    else:
        nothing = jnp.zeros_like(filtered.last)
        first, (moves, shocks, inverse, varying) = jax.lax.scan(backward, nothing, rows, reverse=True)
    return Sensitivity(moves, shocks, blocks_of(first, chain.start), inverse, varying)


def _found(step: Steps, seen: Float[Array, " j"], noise: Float[Array, ""]) -> Float[Array, ""]:
    """The variance of what is new in a row that sees `P⁻h`."""
    return step.seen(seen[:, None])[0] + noise


def _gain(seen: Float[Array, " j"], found: Float[Array, ""], counts: Float[Array, ""]) -> Float[Array, " j"]:
    """`P⁻h/D`: other forms lose digits where the noise is small."""
    return seen * (counts / _positive(found))


def _positive(spread: Array) -> Array:
    """With 1 in the place of a spread that is 0, the rows that follow stay finite."""
    return jnp.where(spread > 0, spread, 1.0)


def _informed(step: Steps, gain: Array, precision: Array, later: Array) -> Informed:
    """One row of `Filtered.informed`."""
    later = later.reshape(gain.shape[0], -1)
    weighted = times(later, gain[:, None])[:, 0]
    inverse = precision + times(gain[None], weighted[:, None])[0, 0]
    # (I - h gᵀ) Ñ (I - g hᵀ) + h hᵀ/D
    h = step.given(jnp.ones(1, gain.dtype))[:, 0]
    half = weighted - 0.5 * inverse * h
    return Informed(later - h[:, None] * half - half[:, None] * h, inverse, weighted - 2.0 * half)


def _are_new(
    chain: Chain, gain: Float[Array, "n j"], spread: Float[Array, " n"], found: Float[Array, " n"]
) -> Bool[Array, ""]:
    """Whether the row before leaves more than roundings of each row's variance, `found`, in all rows that count."""

    def carried(step: Steps, gain: Array) -> Array:
        return step.seen(step.forth(gain[:, None]))[0]

    taken = jax.vmap(carried)(jax.tree.map(lambda leaf: leaf[1:], chain.steps), gain[:-1]) ** 2 * spread[:-1]
    least = ROUNDINGS * jnp.finfo(gain.dtype).eps * jnp.concatenate([jnp.zeros_like(taken[:1]), taken])
    return jnp.all((found > least) | ~chain.live)


@_differentiated_apart
def run_passes(chain: Chain, filtered: Filtered, b: Float[Array, "n p"]) -> Passes:
    """Forward and backward, for every column of sorted right-hand sides that are 0 in masked rows."""

    def forward(before: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        step, gain, b = row
        ahead = step.forth(before)
        new = b - step.seen(ahead)
        return ahead + gain[:, None] * new, (new, before)

    def backward(later: Array, row: tuple[Steps, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        step, gain, scaled = row
        solved = scaled - times(gain[None], later)[0]
        now = later + step.given(solved)
        return step.back(now), (solved, now)

    nothing = jnp.zeros((chain.size, b.shape[1]), b.dtype)
    last, (new, before) = jax.lax.scan(forward, nothing, (chain.steps, filtered.gain, b))
    rows = (chain.steps, filtered.gain, new * filtered.precision[:, None])
    solved, adjoints = jax.lax.scan(backward, nothing, rows, reverse=True)[1]
    return Passes(new, before, last, solved, adjoints)


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
