"""A function of every dataset and its model, block by block."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from kernax._programs import compiled
from kernax.data import Data
from kernax.data._host import HostData
from kernax.fitting._blocks import Block, Part, Site, Spec, Work, compiled_once
from kernax.fitting._engine import run_blocks
from kernax.fitting._models import Models
from kernax.fitting._plan import Room, blocks_of, is_at_once, shapes_for
from kernax.model import AbstractModel
from kernax.solvers import AbstractSolver, Cholesky

_MATRICES, _BUDGET = 6, 2**30


def asked(
    function: Callable[..., PyTree],
    models: Models,
    datasets: list[HostData],
    settings: tuple[Any, ...],
    executor: Executor | None,
    given: Any = None,
    rows: int = 0,
    show: Callable[[int], None] = lambda done: None,
) -> tuple[list[Part], dict[int, Any]]:
    """`function(model, data, *given, *settings)` of every dataset, and the results of those without an answer, by number.

    `show` is called with how many datasets have just ended.
    """
    devices = jax.local_devices()
    solver = next((setting for setting in settings if isinstance(setting, AbstractSolver)), Cholesky())
    room = Room(executor, devices, is_at_once(None, devices), _BUDGET, solver, _MATRICES, rows)
    blocks = blocks_of(datasets, models, shapes_for(datasets, room), room, given=given)
    parts: list[Part] = []
    spec = Spec.of(AskWork(models.parted()[1], function, settings), None)

    def take(part: Part) -> None:
        parts.append(part)
        show(len(part.numbers))

    missing = run_blocks(spec, blocks, take, room)
    show(len(missing))
    return parts, missing


@dataclasses.dataclass(frozen=True, eq=False)
class AskWork(Work):
    """A function of each dataset and its model."""

    common: AbstractModel
    function: Callable[..., PyTree]
    """`function(model, data, *given, *settings)`."""
    settings: tuple[Any, ...]

    def __call__(self, block: Block, site: Site):
        given = (block.own, block.data, block.given)
        call = partial(_map_lanes, self.function, *given, self.common, self.settings, site.at_once)
        shape = tuple(leaf.shape for leaf in jax.tree.leaves((block.data, block.given)))
        answers = compiled_once(site, {shape: call})
        return answers[shape] if answers else call()

    def named(self) -> dict[str, Any]:
        solvers = [setting for setting in self.settings if isinstance(setting, AbstractSolver)]
        quantities = [setting for setting in self.settings if not isinstance(setting, AbstractSolver)]
        return {"model": self.common, "solver": solvers, "quantity": quantities}


@partial(compiled, for_lanes=True)
def _map_lanes(
    function: Any, own: Any, data: Data, given: tuple, common: AbstractModel, settings: tuple, at_once: bool
) -> PyTree:
    def lane(lane: tuple[Any, Data, tuple[Any, ...]]) -> PyTree:
        own, data, given = lane
        return function(eqx.combine(own, common), data, *given, *settings)

    return jax.vmap(lane)((own, data, given)) if at_once else jax.lax.map(lane, (own, data, given))
