"""The small matrices of a Markov process, from one row to the next.

A transition is block diagonal: for the processes of each size a stack of blocks. Products of small matrices are written out
as sums of elementwise products, which XLA fuses.
"""

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax.kernels import MarkovProcess
from kernax.kernels._markov import Coordinate, Part, product
from kernax.rows import Rows, num_rows

WRITTEN_OUT = 12
"""Sums over more numbers of a state are not written out: they are loops."""


class Steps(eqx.Module):
    """One step from the row before to a row. Those of many rows have an axis of rows in front: for `jax.vmap` or a scan.

    The state consists of the states of all processes of the first size, then of those of the second, and so on.
    """

    moves: tuple[Float[Array, "*n _ _ _"], ...]
    """M: what the state of the row before is multiplied by; p blocks of g × g for p processes of size g."""
    shocks: tuple[Float[Array, "*n _ _ _"], ...]
    """Q: the covariance of what is added to it."""
    varying: Float[Array, "*n j"] | None
    """h, where it depends on the row: the function is `h · state`."""
    fixed: tuple[float, ...] | None = eqx.field(static=True)
    """h, where it does not."""

    def forth(self, states: Float[Array, "j k"]) -> Float[Array, "j k"]:
        """`M S`."""
        return self._blockwise(lambda move, c: move[:, :, c], states)

    def back(self, states: Float[Array, "j k"]) -> Float[Array, "j k"]:
        """`Mᵀ S`."""
        return self._blockwise(lambda move, c: move[:, c, :], states)

    def _blockwise(self, column: Callable[[Array, int], Array], states: Float[Array, "j k"]) -> Float[Array, "j k"]:
        out, begin = [], 0
        for move in self.moves:
            count, size = move.shape[:2]
            own = states[begin : begin + count * size].reshape(count, size, -1)
            terms = (column(move, c)[:, :, None] * own[:, c, None] for c in range(size))
            out.append(functools.reduce(operator.add, terms).reshape(count * size, -1))
            begin += count * size
        return out[0] if len(out) == 1 else jnp.concatenate(out)

    def ahead(self, held: Float[Array, "j j"]) -> Float[Array, "j j"]:
        """`M P Mᵀ + Q`: the covariance of the state after the step."""
        return self.moved(held) + dense(self.shocks)

    def moved(self, held: Float[Array, "j j"]) -> Float[Array, "j j"]:
        """`M P Mᵀ`."""
        return self._from_the_right(lambda move, c: move[:, :, c], self.forth(held))

    def behind(self, information: Float[Array, "j j"]) -> Float[Array, "j j"]:
        """`Mᵀ N M`."""
        return self._from_the_right(lambda move, c: move[:, c, :], self.back(information))

    def _from_the_right(self, column: Callable[[Array, int], Array], states: Float[Array, "k j"]) -> Float[Array, "k j"]:
        """`S Mᵀ`, or `S M`; by hand, since XLA would compute a transposition in a loop of its own."""
        out, begin = [], 0
        for move in self.moves:
            count, size = move.shape[:2]
            own = states[:, begin : begin + count * size].reshape(-1, count, size)
            terms = (own[:, :, c, None] * column(move, c) for c in range(size))
            out.append(functools.reduce(operator.add, terms).reshape(-1, count * size))
            begin += count * size
        return out[0] if len(out) == 1 else jnp.concatenate(out, axis=1)

    def seen(self, states: Float[Array, "j k"]) -> Float[Array, " k"]:
        """`hᵀ S`."""
        if self.varying is not None:
            return times(self.varying[None], states)[0]
        assert self.fixed is not None
        return functools.reduce(operator.add, (h * states[i] for i, h in enumerate(self.fixed) if h))

    def given(self, values: Float[Array, " k"]) -> Float[Array, "j k"]:
        """`h v`: the transpose of `seen`."""
        h = jnp.asarray(np.array(self.fixed), values.dtype) if self.varying is None else self.varying
        return h[:, None] * values


def blocks_of(matrix: Float[Array, "j j"], like: tuple[Array, ...]) -> tuple[Float[Array, "p g g"], ...]:
    """The diagonal blocks of a matrix."""
    out, begin = [], 0
    for block in like:
        count, own = block.shape[-3:-1]
        end = begin + count * own
        square = matrix[begin:end, begin:end].reshape(count, own, count, own)
        same = np.eye(count, dtype=bool)[:, None, :, None]
        out.append(jnp.sum(jnp.where(same, square, 0.0), axis=2) if count > 1 else square[:, :, 0])
        begin = end
    return tuple(out)


def product_blocks(
    a: Float[Array, "j j"], b: Float[Array, "j j"], like: tuple[Array, ...]
) -> tuple[Float[Array, "p g g"], ...]:
    """The diagonal blocks of the product of two matrices."""
    out, begin = [], 0
    for block in like:
        count, own = block.shape[-3:-1]
        end = begin + count * own
        left, right = a[begin:end].reshape(count, own, -1), b[:, begin:end].reshape(-1, count, own)
        if a.shape[0] > WRITTEN_OUT:
            out.append(jnp.sum(left[:, :, None] * jnp.moveaxis(right, 0, -1)[:, None], axis=-1))
        else:
            terms = (left[:, :, j, None] * right[j, :, None] for j in range(a.shape[0]))
            out.append(functools.reduce(operator.add, terms))
        begin = end
    return tuple(out)


def times(a: Float[Array, "i j"], b: Float[Array, "j k"]) -> Float[Array, "i k"]:
    """The product of small matrices, written out: XLA fuses it with what surrounds it, and keeps scans over it fast."""
    if a.shape[1] > WRITTEN_OUT:
        return jnp.sum(a[:, :, None] * b, axis=1)
    return functools.reduce(operator.add, (a[:, j, None] * b[j] for j in range(a.shape[1])))


def dense(blocks: tuple[Float[Array, "_ _ _"], ...]) -> Float[Array, "j j"]:
    """Block diagonal matrices, written out."""
    size, begin, rows = sum(block.shape[0] * block.shape[1] for block in blocks), 0, []
    for block in blocks:
        count, own = block.shape[:2]
        # Each block beside zeros for the other processes of its size.
        same = np.eye(count, dtype=bool)[:, None, :, None]
        wide = jnp.where(same, block[:, :, None], 0.0).reshape(count * own, count * own)
        after = size - begin - count * own
        rows.append(jnp.pad(wide, [(0, 0), (begin, after)]) if begin + after else wide)
        begin += count * own
    return rows[0] if len(rows) == 1 else jnp.concatenate(rows)


def by_block(array: Float[Array, "n j *k"], blocks: tuple[Array, ...]) -> list[Float[Array, "n p g *k"]]:
    """The entries of states, cut into those of each block, for the blocks of each size."""
    out, begin = [], 0
    for block in blocks:
        count, own = block.shape[-3:-1]
        out.append(array[:, begin : begin + count * own].reshape(array.shape[0], count, own, *array.shape[2:]))
        begin += count * own
    return out


class Arranged(NamedTuple):
    """A process with its parts in the order of the states of `Steps`: those of one size together."""

    coordinate: Coordinate | None
    groups: tuple[tuple[tuple[Part, int, int], ...], ...]
    """The parts of each size; with each the number of its processes, and its place among all parts."""

    @classmethod
    def of(cls, process: MarkovProcess, x: Any) -> "Arranged":
        """The process of a kernel; rows are needed because the number of features may depend on their columns."""

        def count(part: Part) -> int:
            weights = part.observation
            return jax.eval_shape(weights, x).shape[1] if callable(weights) else weights.shape[0]

        sizes = sorted({part.size for part in process.parts}, reverse=True)
        known = [(part, count(part), place) for place, part in enumerate(process.parts)]
        return cls(process.coordinate, tuple(tuple(own for own in known if own[0].size == size) for size in sizes))

    @property
    def places(self) -> np.ndarray:
        """For each number of the state, the place of the part that it belongs to."""
        parts = [own for group in self.groups for own in group]
        return np.repeat([place for _, _, place in parts], [count * part.size for part, count, _ in parts])

    @property
    def is_stationary(self) -> bool:
        """Whether the process looks the same at all times."""
        return all(part.earlier is None for group in self.groups for part, *_ in group)

    @property
    def size(self) -> int:
        """The numbers of a state."""
        return len(self.places)

    def times(self, x: Rows, dtype: Any) -> Float[Array, " n"]:
        """The time of every row."""
        return jnp.zeros(num_rows(x), dtype) if self.coordinate is None else self.coordinate(x).astype(dtype)

    def observation(self, x: Rows) -> Float[Array, "n j"] | tuple[float, ...]:
        """h at every row; plain numbers if it is the same everywhere."""
        parts = [part for group in self.groups for part, *_ in group]
        fixed = [part.observation for part in parts if not callable(part.observation)]
        if len(fixed) == len(parts):
            return tuple(float(h) for weights in fixed for h in np.ravel(weights))
        return jnp.concatenate([part.observed(x).reshape(num_rows(x), -1) for part in parts], axis=1)

    def steps(self, lengths: Float[Array, " n"], observation: Array | tuple[float, ...]) -> Steps:
        """The steps of these lengths; `observation` is h at the rows that they lead to."""
        return self._steps(lengths, observation, lambda part: part.transition)

    def steps_back(self, lengths: Float[Array, " n"], observation: Array | tuple[float, ...]) -> Steps | None:
        """From the first row back in time; `None` if the process is stationary. See `Part.earlier` for what takes the
        places of M and Q.
        """
        if self.is_stationary:
            return None
        return self._steps(lengths, observation, lambda part: part.earlier or functools.partial(_earlier, part))

    def _steps(self, lengths: Array, observation: Array | tuple[float, ...], kind: Callable[[Part], Any]) -> Steps:
        moves, shocks = [], []
        for group in self.groups:
            known = [(kind(part), count) for part, count, _ in group]
            runs = [_of_run([one for one, _ in run], key[-1], lengths) for key, run in _runs(known)]
            for stacks, place in ((moves, 0), (shocks, 1)):
                stacks.append(jnp.concatenate([run[place] for run in runs], axis=1).astype(lengths.dtype))
        fixed = observation if isinstance(observation, tuple) else None
        varying = None if isinstance(observation, tuple) else observation.astype(lengths.dtype)
        return Steps(tuple(moves), tuple(shocks), varying, fixed)

    def start(self, dtype: Any) -> tuple[Float[Array, "_ _ _"], ...]:
        """The covariance of the first state, in blocks."""
        stacks = []
        for group in self.groups:
            runs = [
                _starts_of_run([one for one, _ in run], key[-1]) for key, run in _runs([(p.start, c) for p, c, _ in group])
            ]
            stacks.append(jnp.concatenate(runs).astype(dtype))
        return tuple(stacks)


def _runs(known: list[tuple[Any, int]]) -> list[tuple[Any, list[tuple[Any, int]]]]:
    """Transitions and their numbers of processes, in runs of the same function of parameters of the same shapes."""

    def key(one: tuple[Any, int]) -> Any:
        leaves, structure = jax.tree.flatten(one[0])
        return structure, tuple((leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves), one[1]

    return [(of_run, list(run)) for of_run, run in itertools.groupby(known, key)]


def _of_run(transitions: list[Any], count: int, lengths: Float[Array, " n"]) -> list[Float[Array, "n _ g g"]]:
    """The blocks of transitions that differ in their parameters only: computed side by side, which compiles faster."""
    if len(transitions) == 1:
        return [_repeated(blocks, count) for blocks in transitions[0](lengths)]
    stacked = _stacked(transitions)
    # (Those of kernels with features have no parameters, so the number of them has to be said.)
    found = jax.vmap(lambda transition: transition(lengths), out_axes=1, axis_size=len(transitions))(stacked)
    whole = [_repeated(blocks, count) for blocks in found]
    return [blocks.reshape(blocks.shape[0], -1, *blocks.shape[-2:]) for blocks in whole]


def _starts_of_run(starts: list[Any], count: int) -> Float[Array, "_ g g"]:
    """The same for the covariances of first states."""
    if len(starts) == 1:
        return _repeated(starts[0](), count)
    found = _repeated(jax.vmap(lambda start: start(), axis_size=len(starts))(_stacked(starts)), count)
    return found.reshape(-1, *found.shape[-2:])


def _stacked(functions: list[Any]) -> Any:
    """Functions of parameters as one, whose parameters have an axis in front."""
    return jax.tree.map(lambda *leaves: _numbers(leaves) if leaves[0].ndim == 0 else jnp.stack(leaves), *functions)


@jax.custom_jvp
def _numbers(each: tuple[Float[Array, ""], ...]) -> Float[Array, " p"]:
    """Numbers as a vector, by choices: XLA compiles each number of a long concatenation by itself."""
    places, vector = np.arange(len(each)), jnp.broadcast_to(each[0], len(each))
    for place, number in enumerate(each[1:], 1):
        vector = jnp.where(places == place, number, vector)
    return vector


@_numbers.defjvp
def _numbers_jvp(primals, tangents):
    return _numbers(*primals), jnp.stack(*tangents)


def _earlier(part: Part, lengths: Float[Array, " n"]) -> tuple[Float[Array, "n p g g"], Float[Array, "n p g g"]]:
    """`Part.earlier` of a stationary process."""
    start = part.start()
    move = product(part.transition(lengths)[0], start)
    return move, jnp.broadcast_to(start, move.shape)


def _repeated(blocks: Float[Array, "*n _ g g"], count: int) -> Float[Array, "*n p g g"]:
    """So many blocks from as many, or from one for all."""
    return jnp.broadcast_to(blocks, (*blocks.shape[:-3], count, *blocks.shape[-2:]))
