"""How many datasets are cut into blocks: which shapes they are padded to, how many go into a block, and in which order."""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import numpy as np

from kernax._threads import cores
from kernax.data._many import HostData, stacked
from kernax.data._shapes import LEAST_ROWS, by_shape, plan_rows, work
from kernax.fitting._blocks import Block
from kernax.fitting._models import Models
from kernax.solvers import AbstractSolver

_SMALLEST, _LARGEST = 16, 256
"""Lanes of a block on CPU: a few, so that cores end together, or more, because each block takes 2 ms besides its lanes."""
_BLOCKS_OF_WORKER = 6
"""Blocks for each worker on CPU, at the least, before blocks are made larger."""
_COST_OF_SHAPE, _COST_OF_SHAPE_BESIDE_OTHERS = 1.0, 0.5
"""Seconds by which a call takes longer if it compiles for one more shape; and if other workers compile at the same time."""
_LONG = 1000
"""Datasets of so many rows take long enough to be shared out one by one."""
_NUMBERS_PER_ROW = 16
"""What a row takes beside the matrices, about."""
_WIDEST = 1024
"""Lanes that are computed at once under `vmap`, at the most."""
_BLOCK_OF_WIDTHS = 4
"""Lanes of a block under `vmap`, in units of those: when one has ended, another takes its place."""


class Room(NamedTuple):
    """What there is to compute on, and what a lane takes of it."""

    executor: Executor | None
    """`None` for threads of this process."""
    devices: Sequence[Any]
    at_once: bool
    """Whether the lanes of a block run together under `vmap`."""
    budget: float
    """Bytes that temporary matrices may take at the same time, on each device."""
    solver: AbstractSolver
    """It knows how large the matrices are."""
    matrices: int
    """How many of a lane are alive at the same time."""
    new_rows: int = 0
    """Rows of a prediction: they have matrices, too."""

    @property
    def planners(self) -> int:
        """Workers that shapes are planned for: those of this process, whatever the executor, so that all give the same
        bits."""
        return len(self.devices) if self.at_once else max(cores(), len(self.devices))

    @property
    def workers(self) -> int:
        """Blocks that are worked on at a time, as far as an executor tells."""
        return self.planners if self.executor is None else getattr(self.executor, "_max_workers", None) or cores()

    def bytes_per_lane(self, rows: int, itemsize: int) -> float:
        return self.matrices * itemsize * (float(self.solver.largest_matrix(rows)) ** 2 + _NUMBERS_PER_ROW * rows)

    def threads(self, blocks: Sequence[Block]) -> int:
        """Workers that the budget allows, if each computes one lane at a time."""
        if self.at_once:
            return self.workers
        shapes = [(block.data.mask.shape[1], block.data.y.dtype.itemsize) for block in blocks]
        largest = max(self.bytes_per_lane(*shape) for shape in [*shapes, (self.new_rows, 8)])
        return max(1, min(self.workers, int(self.budget / max(largest, 1.0))))

    def lanes(self, bytes_per_lane: float, count: int) -> tuple[int, int]:
        """Lanes of a block, if there are so many in all, and how many of them are computed at a time."""
        if self.at_once:
            # In powers of two, to compile for few. Fillers cost as much as others: no more places than are needed.
            affordable = max(1, int(self.budget / bytes_per_lane))
            needed = 1 << (max(1, -(-count // self.workers)) - 1).bit_length()
            width = min(1 << (affordable.bit_length() - 1), _WIDEST, needed)
            return width if needed <= 2 * width else min(needed, _BLOCK_OF_WIDTHS * width), width
        lanes = _SMALLEST
        while lanes < _LARGEST and 4 * lanes * _BLOCKS_OF_WORKER * self.workers <= count:
            lanes *= 4  # of few sizes, to compile for few
        return lanes, lanes


def is_at_once(together: bool | None, devices: Sequence[Any]) -> bool:
    """Whether datasets are computed at once under `vmap`: as the user asks, else on accelerators."""
    return devices[0].platform != "cpu" if together is None else together


def shapes_for(datasets: Sequence[HostData], room: Room, known: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Row counts to pad these datasets to; `known` ones are compiled already and cost nothing."""
    sizes = [max(data.n, LEAST_ROWS) for data in datasets]

    def planned(cost_of_shape: float) -> tuple[int, ...]:
        # The workers share the work of the rows, but not that of compiling a shape.
        plan = plan_rows(sizes, known=known, cost_of_shape=cost_of_shape, work=lambda rows: work(rows) / room.planners)
        return tuple(sorted({*known, *plan}))

    # Workers compile one shape each at the same time, and the first that is done begins with the fits. (Processes compile
    # all of them. But the answers of threads and processes are to be equal to the bit, so they have the same shapes.)
    side_by_side = planned(_COST_OF_SHAPE_BESIDE_OTHERS)
    return side_by_side if len(side_by_side) <= room.planners else planned(_COST_OF_SHAPE)


def blocks_of(
    datasets: Sequence[HostData],
    models: Models,
    shapes: tuple[int, ...],
    room: Room,
    *,
    starts: int = 1,
    given: Any = None,
) -> list[Block]:
    """The datasets in blocks, with `starts` lanes of each, padded to these numbers of rows.

    The first block of each shape comes first: while one worker compiles a shape, others compile another. Blocks with many
    rows come before those with few, so that workers end together. `given` is a function from some datasets to what else is
    stacked for them, in a tuple.
    """
    own, _ = models.parted()
    first, others = [], []
    for rows, members in reversed(by_shape(datasets, [max(data.n, LEAST_ROWS) for data in datasets], shapes)):
        bytes_per_lane = room.bytes_per_lane(rows, members[0].y.dtype.itemsize)
        # One size for all shapes on CPU, where fillers cost nothing: some programs do not depend on the rows.
        lanes, width = room.lanes(bytes_per_lane, len(members if room.at_once else datasets) * starts)
        # One dataset or several must not depend on the workers: XLA unrolls a loop of one turn, which may round differently.
        size = max(1, lanes // starts) if room.at_once else 1 if rows >= _LONG else max(2, lanes // starts)
        for begin in range(0, len(members), size):
            some = members[begin : begin + size]
            filled = some + [some[-1]] * (size - len(some))
            every = np.array([data.number for data in filled])
            block = Block(
                numbers=every[: len(some)],
                data=stacked(filled, rows),
                own=jax.tree.map(lambda leaf, every=every: leaf[every], own),
                given=() if given is None else given(filled),
                width=min(width, size * starts),
            )
            (others if begin else first).append(block)
    return first + others
