"""Fits of the datasets of one block: every start of every dataset is a lane, and all lanes have one compiled program.

On CPU the lanes run one after another inside the program. On accelerators a fixed number of them runs together under `vmap`,
one evaluation a turn; after each round of turns, lanes that wait take the places of those that have ended. (Moving those
that are left into fewer places would save a little at the end, and cost a compilation for every number of places.)
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from kernax._programs import compiled
from kernax.data import Data
from kernax.data._shapes import work
from kernax.fitting._blocks import Block, Site, Work, compiled_once
from kernax.fitting._convergence import Rules
from kernax.fitting._fitted import Ended, best_of
from kernax.fitting._loop import advance, packing_of, start
from kernax.fitting._models import Models
from kernax.fitting._packing import Packing, Vectors
from kernax.fitting._problem import Objective, Problem
from kernax.fitting._request import Request
from kernax.fitting._starts import initialise, starting_points
from kernax.model import AbstractModel
from kernax.parameters import as_dtype, split
from kernax.solvers import AbstractSolver

_ROUND_SECONDS = 0.3
"""How long a round of turns is to take: Ctrl-C is heard after each."""
_TURNS_TOGETHER = 16
"""The longest round under `vmap`, where a lane that has ended still costs its share until the round is over."""


class Shared(NamedTuple):
    """What all lanes of a call have in common: an argument of every program."""

    model: AbstractModel
    """Where each dataset has its own, `None`."""
    trainable: AbstractModel
    objective: Objective
    solver: AbstractSolver
    rules: Rules
    packing: Packing

    def held(self, own: Any) -> Any:
        """What is not fitted of a dataset's model."""
        return eqx.partition(eqx.combine(own, self.model), self.trainable)[1]


@dataclasses.dataclass(frozen=True, eq=False)
class FitWork(Work):
    """A fit of each dataset; its results are an `Ended`."""

    common: AbstractModel
    """What the models have in common; where each has its own, `None`."""
    example: AbstractModel
    """One of the models, for its structure."""
    request: Request
    trainable: AbstractModel
    rules: Rules
    dtype: Any

    @classmethod
    def of(cls, models: Models, request: Request, rules: Rules, dtype: Any) -> "FitWork":
        """Of each of these models."""
        return cls(models.parted()[1], models.example, request, request.free(models.model), rules, dtype)

    def __call__(self, block: Block, site: Site):
        datasets = np.repeat(np.arange(len(block.data.mask)), self._starts)
        self._compile(block, datasets, site)
        rows = self._first_states(block, site)
        running = self._shared.packing.unpack(rows).running  # a view
        running[len(block.numbers) * self._starts :] = False  # lanes that only fill up the block
        self._advance(rows, running, block, datasets, site)
        return jax.tree.map(np.asarray, self._ended(rows, block, site))

    def named(self) -> dict[str, Any]:
        request = self.request
        given = {"objective": request.objective, "solver": request.solver, "optimiser": request.optimiser}
        return {"model": (self.example, self.trainable), **given}

    def __getstate__(self):
        # What can be computed again, and cannot be pickled, is not sent.
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @property
    def _starts(self) -> int:
        return self.request.restarts + 1

    @functools.cached_property
    def _shared(self) -> Shared:
        state = eqx.filter_eval_shape(lambda m: start(split(m, self.trainable)[0], self.dtype, self.rules), self.example)
        how = (self.trainable, self.request.objective, self.request.solver, self.rules)
        return Shared(self.common, *how, packing_of(state))

    def _compile(self, block: Block, datasets: np.ndarray, site: Site) -> None:
        """Have all programs of the block compiled, by running them on lanes that are at rest."""
        lanes = datasets[: block.width] if site.at_once else datasets
        count, rows, zeros = len(datasets), block.data.mask.shape[1], self._shared.packing.zeros

        def advanced() -> Any:
            return advance_lanes(zeros(len(lanes)), *_on_device(block, lanes), self._shared, _turns(1), site.at_once)

        programs = {
            (advance_lanes, len(lanes), rows, site.device): advanced,
            (first_states, count, rows * self.request.initialise, site.device): lambda: self._first_states(block, site),
            (ended, count, 0, site.device): lambda: self._ended(zeros(count), block, site),
        }
        compiled_once(site, programs)

    @functools.cached_property
    def _common_states(self) -> Vectors:
        """The first states of a dataset, if they are the same for all."""
        return self._states(None, None, False)

    def _first_states(self, block: Block, site: Site) -> Vectors:
        """Packed first states of every start of every dataset, as NumPy rows."""
        count = len(block.data.mask)
        if self.request.initialise or jax.tree.leaves(block.own):
            rows = self._states(block.own, block.data if self.request.initialise else None, site.at_once)
        else:
            rows = tuple(np.broadcast_to(row, (count, *row.shape)) for row in self._common_states)
        return tuple(np.array(row).reshape(count * self._starts, -1) for row in rows)

    def _states(self, own: Any, data: Data | None, at_once: bool) -> Vectors:
        request = self.request
        rows = first_states(own, data, self._shared, request.restarts, request.key_of_starts, self.dtype, at_once)
        return tuple(np.asarray(row) for row in rows)

    def _advance(self, rows: Vectors, running: np.ndarray, block: Block, datasets: np.ndarray, site: Site) -> None:
        """All lanes to their end, in place."""
        at_once, rounds, lanes, ready = site.at_once, 0, np.arange(len(datasets)), None
        expected = len(lanes) * work(block.data.mask.shape[1], steps=1)
        turns = max(1, min(int(_ROUND_SECONDS / expected), _TURNS_TOGETHER if at_once else self.rules.max_steps))
        while running.any() and not (rounds and site.is_stopped):
            if at_once:
                places = np.resize(np.flatnonzero(running)[: block.width], block.width)
                ready = ready if np.array_equal(places, lanes) else None
                lanes = places
            ready = _on_device(block, datasets[lanes]) if ready is None else ready
            begun = time.monotonic()
            after = advance_lanes(tuple(row[lanes] for row in rows), *ready, self._shared, _turns(turns), at_once)
            for row, new in zip(rows, after, strict=True):
                row[lanes] = np.asarray(new)
            rounds += 1
            took = max(time.monotonic() - begun, 1e-4)
            turns = max(1, min(4 * turns, int(turns * _ROUND_SECONDS / took), self.rules.max_steps))
            turns = min(turns, _TURNS_TOGETHER) if at_once else turns

    def _ended(self, rows: Vectors, block: Block, site: Site) -> Ended:
        by_dataset = tuple(row.reshape(len(block.data.mask), self._starts, *row.shape[1:]) for row in rows)
        return ended(by_dataset, block.own, self._shared, site.at_once)


def _on_device(block: Block, datasets: np.ndarray) -> tuple[Data, Any]:
    """Some datasets of the block, and what their models have of their own."""
    return jax.device_put(jax.tree.map(lambda leaf: leaf[datasets], (block.data, block.own)))


def _turns(number: int) -> Array:
    return jnp.asarray(np.int32(number))


@compiled
def first_states(own: Any, data: Data | None, shared: Shared, restarts: int, key: Any, dtype: Any, at_once: bool) -> Vectors:
    """The packed first states of every start: of a batch of datasets, or of one if nothing is their own."""

    def dataset(lane: tuple[Any, Data | None]) -> Vectors:
        own, data = lane
        model: Any = as_dtype(eqx.combine(own, shared.model), dtype)
        # What is held keeps the given values: only the free parameters are read off.
        model = model if data is None else initialise(model, data)
        free, _ = split(model, shared.trainable)
        frees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starting_points(model, free, restarts, key))
        return jax.vmap(lambda free: shared.packing.pack(start(free, dtype, shared.rules, key)))(frees)

    if data is None and own is None:
        return dataset((own, data))
    return _for_each(dataset, (own, data), at_once)


@functools.partial(compiled, for_lanes=True)
def advance_lanes(rows: Vectors, data: Data, own: Any, shared: Shared, turns: Int[Array, ""], at_once: bool) -> Vectors:
    def lane(lane: tuple[Vectors, Data, Any]) -> Vectors:
        rows, data, own = lane
        problem = Problem(shared.held(own), data, shared.objective, shared.solver)
        return advance(rows, shared.packing, problem, shared.rules, shared.packing.unpack(rows).step + turns)

    return _for_each(lane, (rows, data, own), at_once)


@compiled
def ended(rows: Vectors, own: Any, shared: Shared, at_once: bool) -> Ended:
    """How the best start of each dataset has ended."""

    def dataset(lane: tuple[Vectors, Any]) -> Ended:
        rows, own = lane
        lanes = [shared.packing.unpack(tuple(row[start] for row in rows)) for start in range(len(rows[0]))]
        return eqx.filter(best_of(lanes, shared.held(own), shared.rules)[0], eqx.is_array)

    return _for_each(dataset, (rows, own), at_once)


def _for_each(function: Callable[[Any], Any], lanes: Any, at_once: bool) -> Any:
    """The function of every lane. One after another they do not depend on each other by a single bit: under `vmap` the last
    few of an array are computed in another way than the others."""
    return jax.vmap(function)(lanes) if at_once else jax.lax.map(function, lanes)
