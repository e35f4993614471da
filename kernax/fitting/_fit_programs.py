"""The compiled programs of a block of fits: the first states of lanes, turns of the loop, and how the lanes have ended."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from kernax._programs import compiled
from kernax.data import Data
from kernax.fitting._best import Rules
from kernax.fitting._fitted import Ended, best_of
from kernax.fitting._loop import advance, start
from kernax.fitting._packing import Packing, Vectors
from kernax.fitting._problem import Objective, Problem
from kernax.fitting._starts import initialise, starting_points
from kernax.model import AbstractModel
from kernax.parameters import as_dtype, split
from kernax.solvers import AbstractSolver


@compiled
def first_states(
    own: Any,
    data: Data | None,
    common: AbstractModel,
    trainable: AbstractModel,
    restarts: int,
    key: Any,
    dtype: Any,
    rules: Rules,
    packing: Packing,
) -> Vectors:
    """The packed first states of every start: of a batch of datasets, or of one if nothing is their own."""

    def dataset(own: Any, data: Data | None) -> Vectors:
        model: Any = as_dtype(eqx.combine(own, common), dtype)
        # What is held keeps the given values: only the free parameters are read off.
        model = model if data is None else initialise(model, data)
        free, _ = split(model, trainable)
        frees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starting_points(model, free, restarts, key))
        return jax.vmap(lambda free: packing.pack(start(free, dtype, rules, key)))(frees)

    return dataset(own, data) if data is None and own is None else jax.vmap(dataset)(own, data)


@functools.partial(compiled, for_lanes=True)
def advance_lanes(
    rows: Vectors,
    data: Data,
    own: Any,
    common: AbstractModel,
    turns: Int[Array, ""],
    packing: Packing,
    trainable: AbstractModel,
    objective: Objective,
    solver: AbstractSolver,
    rules: Rules,
    at_once: bool,
) -> Vectors:
    def lane(lane: tuple[Vectors, Data, Any]) -> Vectors:
        rows, data, own = lane
        held: Any = eqx.partition(eqx.combine(own, common), trainable)[1]
        return advance(rows, packing, Problem(held, data, objective, solver), rules, packing.unpack(rows).step + turns)

    return jax.vmap(lane)((rows, data, own)) if at_once else jax.lax.map(lane, (rows, data, own))


@compiled
def ended(rows: Vectors, own: Any, common: AbstractModel, packing: Packing, trainable: AbstractModel, rules: Rules) -> Ended:
    """How the best start of each dataset has ended."""

    def dataset(rows: Vectors, own: Any) -> Ended:
        held: Any = eqx.partition(eqx.combine(own, common), trainable)[1]
        lanes = [packing.unpack(tuple(row[start] for row in rows)) for start in range(len(rows[0]))]
        return eqx.filter(best_of(lanes, held, rules)[0], eqx.is_array)

    return jax.vmap(dataset)(rows, own)
