"""Markov kernels of one column: exact and O(n), by Kalman filtering and smoothing over the rows in the order of time."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.grams import AbstractGram, masked
from kernax.kernels import AbstractKernel, MarkovProcess
from kernax.kernels._markov import product
from kernax.rows import Rows, map_rows, num_rows, take
from kernax.solvers import _chain as chains
from kernax.solvers._chain import Chain, Filtered
from kernax.solvers._result import Result
from kernax.solvers._system import AbstractSolver, AbstractSystem, Evidence, Solution, is_usable


class StateSpace(AbstractSolver):
    """Markov kernels of one column, exact in O(n) time and memory.

    It accepts `Matern12`, `Matern32`, `Matern52`, `Constant`, and sums, products and multiples of them, if all of them use
    the same column: the only one, or the one that `kx.Select` chooses. Rows may be unsorted, and times may repeat. A row
    costs O(J³) with J numbers of state: 1, 2 or 3 for a Matérn kernel; those of a sum are added, those of a product
    multiplied.

    No jitter is added: with noise 0, rows with equal times are reported as `not_positive_definite`.
    """

    def prepare(self, gram, noise):
        return _prepared(*_chain_gram(gram, noise.dtype), noise)


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
    """`A = L D Lᵀ` in the order of time. What its parts mean is said in `_chain.py`."""

    gram: ChainGram  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Float[Array, "*n"]
    filtered: Filtered
    jitter: Float[Array, ""]
    result: Any

    def _solve(self, columns):
        passes = chains.run_passes(self.gram.chain, self.filtered, self.gram.chain.sorted(columns))
        return Solution(self.gram.chain.unsorted(passes.solved), self.result, 0, (passes.states, passes.adjoints))

    def _logdet(self):
        return chains.logdet(self.gram.chain, _sorted_noise(self.gram, self.noise), self.filtered)

    def _evidence(self, columns):
        b = self.gram.chain.sorted(columns)
        passes = chains.run_passes(self.gram.chain, self.filtered, b)
        quadratic = chains.quadratic(self.gram.chain, _sorted_noise(self.gram, self.noise), b, self.filtered, passes)
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
        return _prepared(self.gram, self.result != Result.nonfinite, noise)

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
        ahead = jnp.where(is_first[:, None, None], chain.start, chains.stepped(move, shock, self.filtered.held[before]))
        seen = chain.seen(ahead)
        beyond, _ = self._step(process, jnp.where(is_last, 0.0, chain.times[after] - times))
        onward = product(beyond, seen[:, :, None])[:, :, 0]
        return Between(before, after, is_first, is_last, move, chain.seen(seen[:, :, None])[:, 0], onward)

    def _step(self, process: MarkovProcess, steps: Float[Array, " m"]) -> list[Float[Array, "m j j"]]:
        # Zeros where the preparation failed, as in `_chain_gram`.
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


def _chain_gram(gram: AbstractGram, dtype: Any) -> tuple[ChainGram, Bool[Array, ""]]:
    """The Gram with its rows sorted, and whether the process is finite; zeros are in its place if it is not."""
    process, x = _process(gram.kernel), take(gram.x)
    jax.eval_shape(gram.kernel.diag, x)  # raises if the rows lack the column, the key or the axis that the kernel selects
    times = _times(process, x, dtype)
    keys = jnp.where(gram.mask, jax.lax.stop_gradient(times), jnp.inf)
    # Most data come sorted, and on CPU sorting takes longer than all the passes.
    is_sorted, places = jnp.all(keys[1:] >= keys[:-1]), jnp.arange(gram.n)
    order = jax.lax.cond(is_sorted, lambda: places, lambda: jnp.argsort(keys).astype(places.dtype))
    live, times = gram.mask[order], times[order]
    last = times[jnp.maximum(jnp.sum(live) - 1, 0)]
    times = jnp.where(live, times, jnp.where(live[0], last, 0.0))
    parts = (*process.transition(jnp.diff(times, prepend=times[:1])), process.stationary)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts]))
    # So that no gradient behind a `where` meets NaN.
    move, shock, start = (jnp.where(finite, part, 0.0) for part in parts)
    chain = Chain(order, live, times, move, shock, start, tuple(process.observation.tolist()))
    return ChainGram(gram.kernel, gram.x, gram.mask, chain), finite


def _sorted_noise(gram: ChainGram, noise: Float[Array, "*n"]) -> Float[Array, " n"]:
    every = jnp.broadcast_to(noise, (gram.n,))
    return jnp.where(gram.chain.live, every if noise.ndim == 0 else gram.chain.sorted(every), 0.0)


def _prepared(gram: ChainGram, finite: Bool[Array, ""], noise: Float[Array, "*n"]) -> StateSpaceSystem:
    filtered, is_new = chains.run_filter(gram.chain, _sorted_noise(gram, noise))
    result = Result.where(jnp.all(is_new), Result.successful, Result.not_positive_definite)
    result = Result.where(finite, result, Result.nonfinite)
    result = Result.where(jnp.any(gram.mask), result, Result.empty)
    return StateSpaceSystem(gram=gram, noise=noise, filtered=filtered, jitter=jnp.zeros((), noise.dtype), result=result)
