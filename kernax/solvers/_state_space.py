"""Markov kernels of one column: exact and O(n), by Kalman filtering and smoothing over the rows in the order of time."""

import dataclasses
import re
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax.grams import AbstractGram, masked
from kernax.kernels import AbstractKernel, MarkovProcess, Matern, White
from kernax.kernels._anchored import started_at
from kernax.kernels._markov import product
from kernax.rows import Rows, map_rows, take
from kernax.solvers import _chain as chains
from kernax.solvers import _chain_derivatives as derivatives
from kernax.solvers._bisection import path_functions
from kernax.solvers._chain import Chain, Filtered
from kernax.solvers._paths import path_draws
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._steps import Arranged, Steps, by_block, dense
from kernax.solvers._system import AbstractSystem, Ending, Evidence, Solution, is_usable

_LEFT_OUT = 0.01
"""The variance that the state space leaves out of all rows, in units of their noise, up to which it counts as small."""
_ROUNDINGS = 100
"""So many roundings of a kernel's diagonal are not taken for variance that is left out."""


class StateSpace(AbstractSolver):
    """Exact solver for Markov kernels of one column, in O(n) time and memory.

    `Periodic` is approximated by finitely many harmonics.

    It accepts these kernels, and their sums, products, multiples, powers and change points, if all parts that depend on
    time use the same column: the only one, or the one that `kx.Select` chooses. (Splines have no products.) Rows may be
    unsorted, and times may repeat. A row costs O(J³), where J is the number of state variables. The state of a sum or a
    change point has the sum of these numbers, that of a product their product.

    | kernel | state variables |
    |---|---|
    | `Matern12`, `Matern32`, `Matern52` with one lengthscale | 1, 2, 3 |
    | `kx.kernels.SHO` | 2 |
    | `CubicSpline`, `ThinPlate(order)` of one column | 2, order |
    | `Periodic` of one column, by its first `harmonics` | 1 + 2 · harmonics |
    | `Constant`, `Linear`, `Polynomial`, `Cosine`, `FeatureMap` of any columns | 1 for each feature |
    | `kx.kernels.Coregion` of p labels; `ICM`, `LCM` of a kernel with J numbers | p + rank; (p + rank) J |
    | `kx.kernels.Categorical` of p levels, `Graph` of p nodes | p + 1, or p + rank; p |

    No jitter is added. If the noise is less than 2e-10 of the prior variance (5e-5 in float32), the pass forward is computed
    with twice the digits, so noise 0 works with steps of 1e-5 lengthscales. Rows that add nothing but rounding errors are
    reported as `not_positive_definite`: equal times, steps that are too small, more rows than features. If the harmonics of
    `Periodic` leave out a variance that, summed over the rows in units of their noise, exceeds 0.01, there is no answer, and
    the result is `too_few_harmonics`.
    """

    def check_equal_rows(self, number, noise, num_free):
        if num_free > 1:
            raise ValueError(
                f"all {number} rows are equal, and a spline or trend leaves {num_free} functions free, which need as many "
                "different times: give rows at other times, or use another kernel or trend."
            )
        if noise is not None and not np.any(noise):
            raise ValueError(
                f"all {number} rows are equal, and the noise is 0, so that the kernel matrix is singular: give the model a "
                "noise, or rows at other times."
            )

    def prepare(self, gram, noise):
        return _prepared(*_chain_gram(gram, noise.dtype), noise)

    def largest_matrix(self, n):
        del n
        return 1


class ChainGram(AbstractGram):
    """The K of a Markov kernel: a product with it costs O(n)."""

    kernel: Any
    x: Rows
    mask: Bool[Array, " n"]
    chain: Chain
    omitted: Float[Array, ""]
    """The largest variance of a row that the state space leaves out."""

    def mv(self, v):
        values = self.chain.sorted(jnp.where(self.mask[:, None], v, 0.0))
        return jnp.where(self.mask[:, None], self.chain.unsorted(chains.product_with(self.chain, values)), 0.0)

    def dense(self):
        return masked(self.kernel.gram(take(self.x), None), self.mask)

    def prior_draws(self, x, key, number):
        rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), take(self.x), take(x))
        process = arranged(self.kernel, rows)
        drawn = path_draws(process, rows, self.chain.times.dtype, key, number)
        return drawn[: self.n], drawn[self.n :]

    def prior_paths(self, key, number):
        process = arranged(self.kernel, take(self.x))
        return path_functions(process, take(self.x), self.mask, self.chain.times.dtype, key, number)


class Between(NamedTuple):
    """New rows between the known ones, and k functions of the state: f itself, or its summands."""

    before: Int[Array, " m"]
    after: Int[Array, " m"]
    """The known rows on both sides, in the order of time."""
    is_first: Bool[Array, " m"]
    is_last: Bool[Array, " m"]
    """Whether there is no known row before, or none after."""
    step: Steps
    """From the row before to the new row."""
    weights: Float[Array, "m j k"]
    """The functions: what each number of the state is multiplied by."""
    variance: Float[Array, "m k"]
    """The variance of the functions given the rows before."""
    onward: Float[Array, "m j k"]
    """The covariance of the functions with the state of the row after, given the rows before."""


class StateSpaceSystem(AbstractSystem):
    """The system `A = L D Lᵀ` with rows in the order of time. Its parts are explained in `_chain.py`.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number or one for each row.
    - `filtered`: the result of the Kalman filter.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    """

    gram: ChainGram  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: Float[Array, "*n"]
    filtered: Filtered
    jitter: Float[Array, ""]
    result: Any

    def _solve(self, columns):
        passes = chains.run_passes(self.gram.chain, self.filtered, self.gram.chain.sorted(columns))
        return Solution(
            self.gram.chain.unsorted(passes.solved), self.result, 0, (passes.before, passes.last, passes.adjoints)
        )

    def _logdet(self):
        return derivatives.logdet(self.gram.chain, _sorted_noise(self.gram, self.noise), self.filtered)

    def _evidence(self, columns):
        b = self.gram.chain.sorted(columns)
        passes = chains.run_passes(self.gram.chain, self.filtered, b)
        quadratic = derivatives.quadratic(self.gram.chain, _sorted_noise(self.gram, self.noise), b, self.filtered, passes)
        return Evidence(quadratic, self._logdet(), jnp.zeros((), b.dtype), self.result)

    def _mean(self, x, solution):
        def of_block(block: Rows) -> Float[Array, "m p"]:
            return _means(self._between(block), solution)[:, 0]

        return map_rows(of_block, x, self._numbers_per_row + 4 * solution.kept[0][0].size)

    def _variance(self, x):
        return Solution(self._variances(self._between(x))[:, 0], self.result)

    def summand_moments(self, x, solution, owners):
        del owners
        numbers = [len(_process(part).parts) for part in self.gram.kernel.summands()]
        owners = np.repeat(np.arange(len(numbers)), numbers)[arranged(self.gram.kernel, take(x)).places]
        shares = owners[:, None] == np.arange(len(numbers))

        def of_block(block: Rows) -> tuple[Float[Array, "m k p"], Float[Array, "m k"]]:
            at = self._between(block, shares)
            return _means(at, solution), self._variances(at)

        moments = map_rows(of_block, x, self._numbers_per_row + 4 * solution.kept[0][0].size * len(numbers))
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), moments)

    def _variances(self, at: Between) -> Float[Array, "m k"]:
        steps, filtered = jax.tree.map(lambda leaf: leaf[at.after], (self.gram.chain.steps, self.filtered))
        weighted = product(filtered.informed(steps).information, at.onward)
        return at.variance - jnp.where(at.is_last[:, None], 0.0, jnp.sum(at.onward * weighted, axis=1))

    @property
    def _numbers_per_row(self):
        return 16 * self.filtered.gain.shape[1] ** 2

    def inverse_diagonal(self):
        entries = self.gram.chain.unsorted(self.filtered.informed(self.gram.chain.steps).inverse)
        return self._or_nan(jnp.where(self.gram.mask, entries, 1.0))

    def shifted(self, noise):
        return _prepared(self.gram, self.result != Result.nonfinite, noise)

    def restricted(self, mask):
        counts = self.gram.mask & mask
        chain = dataclasses.replace(self.gram.chain, live=counts[self.gram.chain.order])
        gram = dataclasses.replace(self.gram, mask=counts, chain=chain)
        return _prepared(gram, self.result != Result.nonfinite, self.noise)

    def ending(self, columns):
        chain, filtered = self.gram.chain, self.filtered
        passes = chains.run_passes(chain, filtered, chain.sorted(columns))
        last = jnp.maximum(jnp.sum(chain.live) - 1, 0)
        change = filtered.gain[last] * jnp.sqrt(filtered.spread[last])
        return Ending(chain.order[last], passes.last, filtered.last, change, passes.new, filtered.precision)

    def appended(self, gram, noise):
        return _prepared(*_chain_gram(gram, noise.dtype), noise)

    def draw(self, key, number):
        shocks = jax.random.normal(key, (self.gram.n, number), self.filtered.gain.dtype)
        return self._columns(self.gram.chain.unsorted(chains.drawn(self.gram.chain, self.filtered, shocks)))

    def _between(self, x: Rows, shares: np.ndarray | None = None) -> Between:
        """New rows, for f or, with `shares`, for functions that see some of the numbers of the state."""
        chain, last = self.gram.chain, self.gram.n - 1
        x, start = take(x), dense(chain.start)
        process = arranged(_replaced_unless(is_usable(self.result), self.gram.kernel), x)
        times, observation = process.times(x, chain.times.dtype), process.observation(x)
        before = jnp.searchsorted(chain.times, times, side="right") - 1
        is_first, is_last = before < 0, before == last
        before, after = jnp.maximum(before, 0), jnp.minimum(before + 1, last)
        step = process.steps(jnp.where(is_first, 0.0, times - chain.times[before]), observation)
        onward = process.steps(jnp.where(is_last, 0.0, chain.times[after] - times), observation)
        weights = jnp.broadcast_to(jnp.asarray(observation, times.dtype), (*times.shape, chain.size))[:, :, None]
        weights = weights if shares is None else jnp.where(shares, weights, 0.0)

        held = _until(before, self.filtered.before, self.filtered.last)

        def known(step: Steps, onward: Steps, weights: Array, held: Array, is_first: Array) -> tuple[Array, Array]:
            seen = product(jnp.where(is_first, start, step.ahead(held)), weights)
            return jnp.sum(weights * seen, axis=0), onward.forth(seen)

        variance, covariance = jax.vmap(known)(step, onward, weights, held, is_first)
        earlier = process.steps_back(jnp.where(is_first, chain.times[0] - times, 0.0), observation)
        if earlier is not None:

            def unknown(step: Steps, weights: Array) -> tuple[Array, Array]:
                return jnp.sum(weights * product(dense(step.shocks), weights), axis=0), step.forth(weights)

            own, shared = jax.vmap(unknown)(earlier, weights)
            variance = jnp.where(is_first[:, None], own, variance)
            covariance = jnp.where(is_first[:, None, None], shared, covariance)
        return Between(before, after, is_first, is_last, step, weights, variance, covariance)


def _means(at: Between, solution: Solution) -> Float[Array, "m k p"]:
    """The means of the functions at new rows."""
    states, last, adjoints = solution.kept
    states = _until(at.before, states, last)
    from_before = product(jnp.swapaxes(at.weights, 1, 2), jax.vmap(Steps.forth)(at.step, states))
    from_after = product(jnp.swapaxes(at.onward, 1, 2), adjoints[at.after])
    is_first, is_last = (end[:, None, None] for end in (at.is_first, at.is_last))
    return jnp.where(is_first, 0.0, from_before) + jnp.where(is_last, 0.0, from_after)


def _until(rows: Int[Array, " m"], before: Float[Array, "n j k"], last: Float[Array, "j k"]) -> Float[Array, "m j k"]:
    """What is known at the end of these rows, from what was known before each row and after the last."""
    final = before.shape[0] - 1
    return jnp.where((rows == final)[:, None, None], last, before[jnp.minimum(rows + 1, final)])


def arranged(kernel: AbstractKernel, x: Rows) -> Arranged:
    """The state space of a kernel, with its parts in the order of the state; raises if it has none."""
    return Arranged.of(_process(kernel), x)


def _process(kernel: AbstractKernel) -> MarkovProcess:
    """The state space of a kernel, or an error that names the part that has none."""
    process = kernel.state_space()
    if process is None:
        part = _part_without(kernel)
        raise TypeError(
            f"StateSpace() needs a kernel with a state space, which {_name(part)} does not have{_reason(part)}: use "
            "kx.Cholesky() or kx.CG(). Of one column, Matern12, Matern32, Matern52, kx.kernels.SHO, Periodic, CubicSpline "
            "and ThinPlate have one; of any columns, Constant, Linear, Polynomial, Cosine and FeatureMap; of labels, "
            "kx.kernels.Categorical, Graph, Coregion, ICM and LCM; and so have sums, products, multiples, powers and change "
            "points of them if all parts that depend on time use the same column."
        )
    return process


def _name(kernel: AbstractKernel) -> str:
    """A kernel without its parameters, which are not known under tracing: `RBF`, `Matern32 ** 2`."""
    text = re.sub(r"\([^()]*=\w+\[[^()]*\]\)", "", repr(kernel))
    return re.sub(r"(?<!\w)\((\w+)\)", r"\1", text)


_INSTEAD = {
    White: "instead of White, use the model's noise, kx.Model(kernel, noise=…)",
    Matern: "of this family, kx.Matern12, kx.Matern32 and kx.Matern52 have one",
}


def _reason(kernel: AbstractKernel) -> str:
    """Why a kernel that may have a state space has none, or which one to use in its place."""
    if type(kernel) in _INSTEAD:
        return f" ({_INSTEAD[type(kernel)]})"
    if type(kernel).state_space is AbstractKernel.state_space:
        return ""
    sizes = {name: getattr(kernel, name).size for name in ("lengthscale", "period") if hasattr(kernel, name)}
    many = [f"{size} numbers for its {name}" for name, size in sizes.items() if size > 1]
    return f" (it has {many[0]}: give one, and choose one column with kx.Select)" if many else ""


def _part_without(kernel: AbstractKernel) -> AbstractKernel:
    """The innermost part of a kernel that has no state space."""
    values = [getattr(kernel, field.name) for field in dataclasses.fields(kernel)]
    leaves = jax.tree.leaves(values, is_leaf=lambda value: isinstance(value, AbstractKernel))
    missing = [leaf for leaf in leaves if isinstance(leaf, AbstractKernel) and leaf.state_space() is None]
    return _part_without(missing[0]) if missing else kernel


def _chain_gram(gram: AbstractGram, dtype: Any) -> tuple[ChainGram, Bool[Array, ""]]:
    """The Gram with its rows sorted, and whether the process is finite."""
    x = take(gram.x)
    jax.eval_shape(gram.kernel.diag, x)  # raises if the rows lack the column, the key or the axis that the kernel selects
    process = arranged(gram.kernel, x)
    times = process.times(x, dtype)
    keys = jnp.where(gram.mask, jax.lax.stop_gradient(times), jnp.inf)
    # Most data come sorted, and on CPU sorting takes longer than all the passes.
    is_sorted, places = jnp.all(keys[1:] >= keys[:-1]), jnp.arange(gram.n)
    order = jax.lax.cond(is_sorted, lambda: places, lambda: jnp.argsort(keys).astype(places.dtype))
    live, times = gram.mask[order], times[order]
    last = times[jnp.maximum(jnp.sum(gram.mask) - 1, 0)]
    times = jnp.where(live, times, jnp.where(live[0], last, 0.0))
    observation = process.observation(x)
    if not isinstance(observation, tuple):
        observation = jnp.where(live[:, None], observation[order], 0.0)
    # All steps are finite if the shortest and the longest are.
    ends = process.steps(jnp.stack([jnp.zeros_like(last), last - times[0]]), ())
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in jax.tree.leaves((ends, process.start(dtype)))]))
    # They are in order, so that the first and the last are not finite if any is not.
    finite = finite & jnp.all(jnp.isfinite(times[jnp.array([0, -1])])) & jnp.all(jnp.isfinite(jnp.asarray(observation)))
    # A process that is not is replaced by one that is, so that no gradient behind a `where` meets NaN.
    process = arranged(_replaced_unless(finite, gram.kernel), x)
    times = jnp.where(finite, times, 0.0)
    if not isinstance(observation, tuple):
        observation = jnp.where(finite, observation, 0.0)
    steps = process.steps(jnp.diff(times, prepend=times[:1]), observation)
    chain = Chain(order, live, times, steps, process.start(dtype))
    omitted = jax.lax.stop_gradient(_omitted(_replaced_unless(finite, gram.kernel), x, gram.mask, dtype))
    return ChainGram(started_at(gram.kernel, times[0]), gram.x, gram.mask, chain, omitted), finite


def _omitted(kernel: AbstractKernel, x: Rows, mask: Bool[Array, " n"], dtype: Any) -> Float[Array, ""]:
    """The largest difference of a row's variance and that of its state, summed over the summands; 0 if it is rounding."""
    total = jnp.zeros((), dtype)
    for part in kernel.summands():
        process = arranged(part, x)
        observation, start = process.observation(x), process.start(dtype)
        # With constant weights the state has the kernel's variance, and a spline's depends on where it starts.
        if isinstance(observation, tuple) or not process.is_stationary:
            continue
        blocks = zip(by_block(observation.astype(dtype), start), start, strict=True)
        known = sum(jnp.einsum("npg,pgh,nph->n", own, block, own, precision="highest") for own, block in blocks)
        whole = part.diag(x).astype(dtype)
        missing = jnp.where(mask & (whole - known > _ROUNDINGS * jnp.finfo(dtype).eps * whole), whole - known, 0.0)
        total = total + jnp.max(missing, initial=0.0)
    return total


def _replaced_unless(good: Bool[Array, ""], kernel: AbstractKernel) -> AbstractKernel:
    """The kernel, or one with 1 for all parameters."""
    return jax.tree.map(lambda leaf: jnp.where(good, leaf, 1.0) if eqx.is_inexact_array(leaf) else leaf, kernel)


def _sorted_noise(gram: ChainGram, noise: Float[Array, "*n"]) -> Float[Array, " n"]:
    every = jnp.broadcast_to(noise, (gram.n,)) if noise.ndim == 0 else gram.chain.sorted(noise)
    return jnp.where(gram.chain.live, every, 0.0)


def _prepared(gram: ChainGram, finite: Bool[Array, ""], noise: Float[Array, "*n"]) -> StateSpaceSystem:
    every = _sorted_noise(gram, noise)
    filtered, is_new = chains.run_filter(gram.chain, every)
    precision = jnp.sum(jnp.where(gram.chain.live, 1.0 / jax.lax.stop_gradient(every), 0.0))
    enough = (gram.omitted == 0) | (gram.omitted * precision <= _LEFT_OUT)
    result = Result.where(enough, Result.successful, Result.too_few_harmonics)
    result = Result.where(is_new, result, Result.not_positive_definite)
    result = Result.where(finite, result, Result.nonfinite)
    result = Result.where(jnp.sum(gram.mask) > 0, result, Result.empty)
    return StateSpaceSystem(gram=gram, noise=noise, filtered=filtered, jitter=jnp.zeros((), noise.dtype), result=result)
