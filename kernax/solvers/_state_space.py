"""Markov kernels of one column: exact and O(n), by Kalman filtering and smoothing.

The rows are sorted by time. A pass forward carries the covariance of the state from row to row. It gives `A = L D Lᵀ`: the
variance of what is new in each row (D), and the gain with which each row corrects the state (L). A pass backward gives the
diagonal of `A⁻¹`. Every right-hand side b is solved by one pass forward (`L⁻¹ b`) and one backward. All passes are scans
over small products, and JAX can differentiate them to any order.

The evidence has derivatives in closed form, since to differentiate a scan in reverse costs several times the scan. For each
row, let M be the transition from the row before, Q the covariance of the shock, R the noise and `u = A⁻¹ b`; let m, P be the
mean and the covariance of the state of the row before, given the rows up to that one; and let r, N be what this row and the
later ones add to the state: `mean + P r` and `P - P N P`. Then, summed over rows, with P∞ in the place of the first P,

    δ log det A = ⟨N, δQ⟩ + 2⟨N M P, δM⟩ + [A⁻¹]_ii δR,      δ(bᵀA⁻¹b) = 2u δb - r·δQ r - 2r·δM (m + P Mᵀ r) - u² δR.

What stands beside δ comes from passes that are differentiable themselves, so second derivatives are right, too.
"""

import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.grams import AbstractGram, masked
from kernax.kernels import AbstractKernel, MarkovProcess
from kernax.kernels._markov import product
from kernax.rows import Rows, map_rows, num_rows, take
from kernax.solvers._result import Result
from kernax.solvers._system import AbstractSolver, AbstractSystem, Evidence, Solution, is_usable

_ROUNDINGS = 16
"""If the row before leaves no more than so many roundings of a row's variance, the two rows are the same."""


class StateSpace(AbstractSolver):
    """Markov kernels of one column, exact in O(n) time and memory.

    It accepts `Matern12`, `Matern32`, `Matern52`, `Constant`, and sums, products and multiples of them, if all of them use
    the same column: the only one, or the one that `kx.Select` chooses. Rows may be unsorted, and times may repeat. A row
    costs O(J³) with J numbers of state: 1, 2 or 3 for a Matérn kernel; those of a sum are added, those of a product
    multiplied.

    No jitter is added: with noise 0, rows with equal times are reported as `not_positive_definite`.
    """

    def prepare(self, gram, noise):
        return _prepared(_chain_gram(gram, noise.dtype), noise)


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


class ChainGram(AbstractGram):
    """The K of a Markov kernel: a product with it costs O(n)."""

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    chain: Chain

    def mv(self, v):
        chain = self.chain
        values = chain.sorted(jnp.where(self.mask[:, None], v, 0.0))
        known = chain.seen(chain.start)

        def forward(state: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            move, value = row
            state = product(move, state) + known[:, None] * value
            return state, chain.seen(state)

        def backward(later: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            move, value = row
            return product(move.T, later + chain.given(value)), jnp.sum(known[:, None] * later, axis=0)

        nothing, rows = jnp.zeros((known.shape[0], v.shape[1]), values.dtype), (chain.move, values)
        before, after = jax.lax.scan(forward, nothing, rows)[1], jax.lax.scan(backward, nothing, rows, reverse=True)[1]
        return jnp.where(self.mask[:, None], chain.unsorted(before + after), 0.0)

    def dense(self):
        return masked(self.kernel.gram(take(self.x), None), self.mask)


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


class Between(NamedTuple):
    """New rows between the known ones."""

    before: Int[Array, " m"]
    after: Int[Array, " m"]
    """The known rows on both sides."""
    is_first: Bool[Array, " m"]
    is_last: Bool[Array, " m"]
    """Whether there is no known row before, or none after."""
    move: Float[Array, "m j j"]
    """From the state of the row before to that of the new row."""
    variance: Float[Array, " m"]
    """The variance of the function given the rows before."""
    onward: Float[Array, "m j"]
    """The covariance of the function with the state of the row after, given the rows before."""


class StateSpaceSystem(AbstractSystem):
    """`A = L D Lᵀ` in the order of time. See the module's docstring."""

    gram: ChainGram  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Float[Array, "*n"]
    filtered: Filtered
    jitter: Float[Array, ""]
    result: Any

    def _solve(self, columns):
        passes = _passes(self.gram.chain, self.filtered, self.gram.chain.sorted(columns))
        return Solution(self.gram.chain.unsorted(passes.solved), self.result, 0, (passes.states, passes.adjoints))

    def _logdet(self):
        return _logdet(self.gram.chain, _sorted_noise(self.gram, self.noise), self.filtered)

    def _evidence(self, columns):
        b = self.gram.chain.sorted(columns)
        passes = _passes(self.gram.chain, self.filtered, b)
        quadratic = _quadratic(self.gram.chain, _sorted_noise(self.gram, self.noise), b, self.filtered, passes)
        return Evidence(quadratic, self._logdet(), jnp.zeros((), b.dtype), self.result)

    def _mean(self, x, solution):
        states, adjoints = solution.kept

        def of_block(block: Rows) -> Float[Array, "m p"]:
            at = self._between(block)
            from_before = self.gram.chain.seen(product(at.move, states[at.before]))
            from_after = jnp.sum(at.onward[:, :, None] * adjoints[at.after], axis=1)
            return jnp.where(at.is_first[:, None], 0.0, from_before) + jnp.where(at.is_last[:, None], 0.0, from_after)

        return map_rows(of_block, x, self._numbers_per_row + 4 * states[0].size)

    def _variance(self, x):
        at = self._between(x)
        weighted = product(self.filtered.information[at.after], at.onward[:, :, None])[:, :, 0]
        from_after = jnp.where(at.is_last, 0.0, jnp.sum(at.onward * weighted, axis=1))
        return Solution(at.variance - from_after, self.result)

    @property
    def _numbers_per_row(self):
        return 16 * self.filtered.gain.shape[1] ** 2

    def inverse_diagonal(self):
        entries = self.gram.chain.unsorted(self.filtered.inverse)
        return self._or_nan(jnp.where(self.gram.mask, entries, 1.0))

    def shifted(self, noise):
        return _prepared(self.gram, noise)

    def draw(self, key, number):
        chain, gain = self.gram.chain, self.filtered.gain
        new = jnp.sqrt(self.filtered.spread)[:, None] * jax.random.normal(key, (self.gram.n, number), gain.dtype)

        def step(state: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            move, gain, new = row
            ahead = product(move, state)
            return ahead + gain[:, None] * new, chain.seen(ahead) + new

        start = jnp.zeros((gain.shape[1], number), gain.dtype)
        return self._columns(chain.unsorted(jax.lax.scan(step, start, (chain.move, gain, new))[1]))

    def _between(self, x: Rows) -> Between:
        chain, process, last = self.gram.chain, _process(self.gram.kernel), self.gram.n - 1
        times = _times(process, x, chain.times.dtype)
        before = jnp.searchsorted(chain.times, times, side="right") - 1
        is_first, is_last = before < 0, before == last
        before, after = jnp.maximum(before, 0), jnp.minimum(before + 1, last)
        move, shock = self._step(process, jnp.where(is_first, 0.0, times - chain.times[before]))
        ahead = jnp.where(is_first[:, None, None], chain.start, _ahead(move, shock, self.filtered.held[before]))
        seen = chain.seen(ahead)
        beyond, _ = self._step(process, jnp.where(is_last, 0.0, chain.times[after] - times))
        onward = product(beyond, seen[:, :, None])[:, :, 0]
        return Between(before, after, is_first, is_last, move, chain.seen(seen[:, :, None])[:, 0], onward)

    def _step(self, process: MarkovProcess, steps: Float[Array, " m"]) -> list[Float[Array, "m j j"]]:
        # Zeros where the preparation failed, as in `_prepared`.
        return [jnp.where(is_usable(self.result), part, 0.0) for part in process.transition(steps)]


def _process(kernel: AbstractKernel) -> MarkovProcess:
    """The state space of a kernel, or an error that names the part that has none."""
    process = kernel.state_space()
    if process is None:
        raise TypeError(
            f"StateSpace() needs a kernel with a state space, which {_part_without(kernel)!r} does not have: use "
            "kx.Cholesky() or kx.CG(). Matérn kernels with one lengthscale have one, and so have sums, products and "
            "multiples of them if all use the same column."
        )
    return process


def _part_without(kernel: AbstractKernel) -> AbstractKernel:
    """The innermost part of a kernel that has no state space."""
    values = [getattr(kernel, field.name) for field in dataclasses.fields(kernel)]
    leaves = jax.tree.leaves(values, is_leaf=lambda value: isinstance(value, AbstractKernel))
    missing = [leaf for leaf in leaves if isinstance(leaf, AbstractKernel) and leaf.state_space() is None]
    return _part_without(missing[0]) if missing else kernel


def _times(process: MarkovProcess, x: Rows, dtype: Any) -> Float[Array, " n"]:
    x = take(x)
    return jnp.zeros(num_rows(x), dtype) if process.coordinate is None else process.coordinate(x).astype(dtype)


def _chain_gram(gram: AbstractGram, dtype: Any) -> ChainGram:
    process = _process(gram.kernel)
    times = _times(process, gram.x, dtype)
    keys = jnp.where(gram.mask, jax.lax.stop_gradient(times), jnp.inf)
    # Most data come sorted, and on CPU sorting takes longer than all the passes.
    is_sorted, places = jnp.all(keys[1:] >= keys[:-1]), jnp.arange(gram.n)
    order = jax.lax.cond(is_sorted, lambda: places, lambda: jnp.argsort(keys).astype(places.dtype))
    live, times = gram.mask[order], times[order]
    last = times[jnp.maximum(jnp.sum(live) - 1, 0)]
    times = jnp.where(live, times, jnp.where(live[0], last, 0.0))
    move, shock = process.transition(jnp.diff(times, prepend=times[:1]))
    chain = Chain(order, live, times, move, shock, process.stationary, tuple(process.observation.tolist()))
    return ChainGram(gram.kernel, gram.x, gram.mask, chain)


def _sorted_noise(gram: ChainGram, noise: Float[Array, "*n"]) -> Float[Array, " n"]:
    every = jnp.broadcast_to(noise, (gram.n,))
    return jnp.where(gram.chain.live, every if noise.ndim == 0 else gram.chain.sorted(every), 0.0)


def _prepared(gram: ChainGram, noise: Float[Array, "*n"]) -> StateSpaceSystem:
    chain = gram.chain
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in (chain.move, chain.shock, chain.start)]))
    # Zeros in the place of what is not finite: no gradient behind a `where` meets NaN.
    clean = [jnp.where(finite, part, 0.0) for part in (chain.move, chain.shock, chain.start)]
    chain = eqx.tree_at(lambda c: (c.move, c.shock, c.start), chain, clean)
    gram = eqx.tree_at(lambda g: g.chain, gram, chain)
    filtered, is_new = _filtered(chain, _sorted_noise(gram, noise))
    result = Result.where(jnp.all(is_new), Result.successful, Result.not_positive_definite)
    result = Result.where(finite, result, Result.nonfinite)
    result = Result.where(jnp.any(gram.mask), result, Result.empty)
    return StateSpaceSystem(gram=gram, noise=noise, filtered=filtered, jitter=jnp.zeros((), noise.dtype), result=result)


def _ahead(move: Float[Array, "... j j"], shock: Float[Array, "... j j"], held: Float[Array, "... j j"]) -> Array:
    """The covariance of the state after a step."""
    return product(product(move, held), jnp.swapaxes(move, -1, -2)) + shock


def _filtered(chain: Chain, noise: Float[Array, " n"]) -> tuple[Filtered, Bool[Array, " n"]]:
    """Forward and backward without a right-hand side; also whether each row differs from the row before."""
    tiny = _ROUNDINGS * jnp.finfo(noise.dtype).eps

    def forward(carry: tuple[Array, Array, Array], row: tuple[Array, Array, Array, Array]) -> tuple[Any, Any]:
        held, gain, spread = carry
        move, shock, noise, live = row
        # How much of this row's variance the row before took away.
        taken = jnp.sum(chain.seen(move) * gain) ** 2 * spread
        ahead = _ahead(move, shock, held)
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


def _passes(chain: Chain, filtered: Filtered, b: Float[Array, "n p"]) -> Passes:
    """Forward and backward, for every column of sorted right-hand sides."""

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
def _logdet(chain: Chain, noise: Float[Array, " n"], filtered: Filtered) -> Float[Array, ""]:
    return jnp.sum(jnp.log(filtered.spread))


@_logdet.def_jvp
def _logdet_jvp(primals, tangents):
    (chain, noise, filtered), (d_chain, d_noise, _) = primals, tangents
    of_shock, move = filtered.information, chain.move
    of_move = 2.0 * product(of_shock, product(move, _before(chain.start, filtered.held)))
    of_start = product(move[0].T, product(of_shock[0], move[0]))
    weights = (of_move, of_shock, of_start, filtered.inverse)
    slope = _slope((chain, noise), (d_chain, d_noise), *(weight[..., None] for weight in weights))
    return _logdet(chain, noise, filtered), slope[0]


@eqx.filter_custom_jvp
def _quadratic(
    chain: Chain, noise: Float[Array, " n"], b: Float[Array, "n p"], filtered: Filtered, passes: Passes
) -> Float[Array, " p"]:
    return jnp.sum(passes.new**2 * filtered.precision[:, None], axis=0)


@_quadratic.def_jvp
def _quadratic_jvp(primals, tangents):
    (chain, noise, b, filtered, passes), (d_chain, d_noise, d_b, *_) = primals, tangents
    _, states, solved, adjoints = passes
    told = product(jnp.swapaxes(chain.move, 1, 2), adjoints)
    smoothed = _before(jnp.zeros_like(states[0]), states) + product(_before(chain.start, filtered.held), told)
    weights = (-2.0 * _outer(adjoints, smoothed), -_outer(adjoints, adjoints), -_outer(told[0], told[0]), -(solved**2))
    slope = _slope((chain, noise), (d_chain, d_noise), *weights)
    if d_b is not None:
        slope = slope + 2.0 * jnp.sum(solved * d_b, axis=0)
    return _quadratic(chain, noise, b, filtered, passes), slope


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
