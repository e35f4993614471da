"""Thousands of lanes through a fixed number of places: how `fit_many` keeps the hardware busy.

Lanes of one shape wait in a stream. A worker has a fixed number of places; it advances the lanes in them by some turns,
takes out those that have ended and lets the next ones in, so one compiled program per shape serves any number of lanes, and
a slow lane holds up nobody. On CPU the lanes in places run one after another, and there is a worker for every core, with
BLAS held to one thread; on accelerators they run together under `vmap`. Several devices share a worker's places.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from kernax._threads import one_blas_thread
from kernax.data import Data
from kernax.fitting._loop import Objective, Problem, Rules, advance, outcome
from kernax.fitting._programs import Packing, Vectors, compiled
from kernax.model import AbstractModel
from kernax.parameters import at_bound, join
from kernax.solvers import AbstractSolver

_ROUND_SECONDS = 0.3
"""How long a round of turns is to take: Ctrl-C is heard, and ended lanes make room, after each."""
_TURNS_TOGETHER = 16
"""The longest round under `vmap`, where a lane that has ended still costs its share until the round is over."""


class Layout(NamedTuple):
    """Where lanes run."""

    together: bool
    """Whether the lanes of a device run under `vmap`; otherwise one after another."""
    devices: tuple[Any, ...]
    workers: int
    lanes: int
    """Places per device and worker."""

    @property
    def places(self) -> int:
        return self.lanes * len(self.devices)


def layout_for(
    devices: Sequence[Any], together: bool | None, bytes_per_lane: float, budget: float, num_lanes: int
) -> Layout:
    """The layout that suits these devices; `budget` bounds the bytes of matrices in the making on each device."""
    together = devices[0].platform != "cpu" if together is None else together
    affordable = max(1, int(budget / bytes_per_lane))
    if together:
        # Vacant places cost as much as others there: no more than there are lanes, in powers of two, to compile for few.
        needed = 2 ** math.ceil(math.log2(max(1, -(-num_lanes // len(devices)))))
        return Layout(True, tuple(devices), 1, min(affordable, 1024, needed))
    # Several devices on one host's CPU share its cores by themselves; a second worker keeps them fed meanwhile.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = cores if len(devices) == 1 else 2
    return Layout(False, tuple(devices), min(workers, affordable), 16)


class Task:
    """What all lanes have in common.

    `held` is what is not fitted; its arrays have a leading dataset axis if every dataset has a model of its own.
    """

    def __init__(
        self,
        held: AbstractModel,
        per_dataset: bool,
        packing: Packing,
        objective: Objective,
        solver: AbstractSolver,
        rules: Rules,
    ):
        own, common = eqx.partition(held, lambda leaf: eqx.is_array(leaf) and per_dataset)
        self._own, self.common = own, common
        self.packing, self.objective, self.solver, self.rules = packing, objective, solver, rules
        first = (jax.tree.map(lambda row: row[0], packing.zeros(1)), self.own(np.asarray(0)))
        self.summary = Packing.of(eqx.filter_eval_shape(_summary, *first, common, packing, rules))
        """How an `Ended` is packed."""

    def own(self, datasets: np.ndarray) -> AbstractModel:
        """What these datasets have of their own among what is held."""
        return jax.tree.map(lambda leaf: leaf[datasets], self._own)


Begin = Callable[[np.ndarray], Vectors]
"""Lanes of a stream to their packed states before the first turn."""


class Stream:
    """The lanes of one shape: `starts` lanes for each dataset of a padded batch, one after another."""

    def __init__(self, data: Data, datasets: np.ndarray, starts: int, layout: Layout, begin: Begin):
        self.data, self.datasets, self.starts, self.layout, self.begin = data, datasets, starts, layout, begin
        self.num_lanes, self.next = len(datasets) * starts, 0
        self.warm = self.claimed = False
        """Whether its program is compiled, and whether a worker has set about it."""

    @property
    def waiting(self) -> int:
        return self.num_lanes - self.next

    def take(self, most: int) -> np.ndarray:
        lanes = np.arange(self.next, min(self.next + most, self.num_lanes))
        self.next += len(lanes)
        return lanes


class Ended(NamedTuple):
    """How a lane has ended, or several: outside compiled programs, NumPy arrays with a leading lane axis."""

    model: Any
    at_bound: Any
    value: Any
    result: Any
    num_steps: Any
    gradient_norm: Any
    jitter: Any


class _Desk:
    """Hands out lanes to workers: never so many at a time that the others have none, and never a shape to two to compile."""

    def __init__(self, streams: Sequence[Stream], workers: int, stop: threading.Event):
        self._streams, self._workers, self._stop = streams, workers, stop
        self._change = threading.Condition()

    def stream(self) -> Stream | None:
        """One with lanes waiting: compiled, or to be compiled by the caller; None when all are done."""
        with self._change:
            while True:
                open_ones = [stream for stream in self._streams if stream.waiting]
                if not open_ones or self._stop.is_set():
                    return None
                # Compiling first: other workers can run what is compiled meanwhile.
                for ready in (lambda s: not s.claimed, lambda s: s.warm):
                    best = max(filter(ready, open_ones), key=lambda s: s.waiting, default=None)
                    if best is not None:
                        best.claimed = True
                        return best
                self._change.wait(timeout=1.0)

    def lanes(self, stream: Stream, most: int) -> np.ndarray:
        with self._change:
            share = -(-stream.waiting // (2 * self._workers))
            return stream.take(0 if self._stop.is_set() else min(most, max(share, 1)))

    def is_warm(self, stream: Stream) -> None:
        with self._change:
            stream.warm = True
            self._change.notify_all()


def run(
    streams: Sequence[Stream],
    task: Task,
    ended: Callable[[Stream, np.ndarray, Ended, np.ndarray], None],
    stop: threading.Event,
) -> None:
    """All lanes of all streams to their end. `ended(stream, lanes, how, devices)` is called from the workers' threads.

    After Ctrl-C the lanes on their way come back as `interrupted`, those not begun not at all, and it is raised again.
    """
    # Each worker holds the matrices of a lane: the largest lanes say how many can be afforded.
    workers = min(stream.layout.workers for stream in streams)
    desk = _Desk(streams, workers, stop)

    def work() -> None:
        try:
            while (stream := desk.stream()) is not None:
                _serve(stream, desk, task, ended, stop)
        except BaseException:
            stop.set()  # the other workers have nothing to go on for
            raise

    with one_blas_thread(), ThreadPoolExecutor(workers + 1) as pool:
        pool.submit(_compile_summaries, task, {stream.layout.places for stream in streams})
        futures = [pool.submit(work) for _ in range(workers)]
        try:
            # With a time limit, again and again: a wait without one may sleep through Ctrl-C.
            while wait(futures, timeout=0.2).not_done:
                pass
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            stop.set()
            for future in futures:
                future.result()
            raise


def _compile_summaries(task: Task, numbers_of_places: set[int]) -> None:
    """Beside the workers, which need it when their first lanes end."""
    for places in numbers_of_places:
        own = task.own(np.zeros(places, int))
        _summaries(task.packing.zeros(places), own, task.common, task.packing, task.summary, task.rules)


def _serve(stream: Stream, desk: _Desk, task: Task, ended: Any, stop: threading.Event) -> None:
    """One worker at one stream, until no lane of it is waiting."""
    places = _Places(stream, task)
    turns = 8
    while True:
        places.fill(desk.lanes(stream, len(places.vacant)))
        if not places.num_occupied:
            desk.is_warm(stream)
            return
        begun = time.monotonic()
        places.advance(turns)
        if stream.warm:
            took = time.monotonic() - begun
            turns = max(1, min(4 * turns, int(turns * _ROUND_SECONDS / max(took, 1e-4)), task.rules.max_steps))
            turns = min(turns, _TURNS_TOGETHER) if stream.layout.together else turns
        lanes, how, devices = places.clear(everybody=stop.is_set())
        if not stream.warm:
            desk.is_warm(stream)
        if len(lanes):
            ended(stream, lanes, how, devices)


class _Places:
    """A fixed number of lanes on their way, as NumPy rows; vacant places hold lanes that have ended."""

    def __init__(self, stream: Stream, task: Task):
        self._stream, self._task = stream, task
        self._layout = layout = stream.layout
        self._lanes = np.full(layout.places, -1)
        self._rows: Vectors = ()
        self._ready: Any = None
        self._mesh = Mesh(np.array(layout.devices), ("lanes",)) if len(layout.devices) > 1 else None
        # Device by device in turn, so that a few lanes do not all fall to the first.
        self._order = np.arange(layout.places).reshape(len(layout.devices), -1).T.reshape(-1)

    @property
    def vacant(self) -> np.ndarray:
        return self._order[self._lanes[self._order] < 0]

    @property
    def num_occupied(self) -> int:
        return int(np.sum(self._lanes >= 0))

    def fill(self, lanes: np.ndarray) -> None:
        if not len(lanes):
            return
        rows = self._stream.begin(lanes)
        if not self._rows:
            self._rows = tuple(np.repeat(row[:1], self._layout.places, axis=0) for row in rows)
            running = self._task.packing.unpack(self._rows).running
            running[...] = False  # a view: the places are vacant
        places = self.vacant[: len(lanes)]
        for kept, new in zip(self._rows, rows, strict=True):
            kept[places] = new
        self._lanes[places] = lanes
        self._ready = None

    def advance(self, turns: int) -> None:
        task = self._task
        if self._ready is None:
            numbers = np.maximum(self._lanes, 0) // self._stream.starts
            data = jax.tree.map(lambda leaf: leaf[numbers], self._stream.data)
            own = task.own(self._stream.datasets[numbers])
            self._ready = self._put((data, own))
        data, own = self._ready
        how = (task.packing, task.objective, task.solver, task.rules, self._layout.together, self._mesh)
        rows = _advance_lanes(self._put(self._rows), data, own, task.common, jnp.asarray(np.int32(turns)), *how)
        self._rows = tuple(np.array(row) for row in rows)

    def clear(self, everybody: bool) -> tuple[np.ndarray, Any, np.ndarray]:
        """Lanes that have ended (or all), how they ended, and the device that each ran on; their places become vacant."""
        task = self._task
        over = self._lanes >= 0
        if not everybody:
            over &= ~task.packing.unpack(self._rows).running
        places = np.flatnonzero(over)
        lanes = self._lanes[places]
        if not len(places):
            return lanes, None, places
        own = task.own(self._stream.datasets[np.maximum(self._lanes, 0) // self._stream.starts])
        packed = _summaries(self._rows, own, task.common, task.packing, task.summary, task.rules)
        how = task.summary.unpack(tuple(np.asarray(vector)[places] for vector in packed))
        task.packing.unpack(self._rows).running[places] = False
        self._lanes[places] = -1
        return lanes, how, places // self._layout.lanes

    def _put(self, tree: PyTree) -> PyTree:
        if self._mesh is None:
            return jax.device_put(tree, self._layout.devices[0])
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec("lanes")))


@partial(compiled, for_lanes=True)
def _advance_lanes(
    rows: Vectors,
    data: Data,
    own: AbstractModel,
    common: AbstractModel,
    turns: Int[Array, ""],
    packing: Packing,
    objective: Objective,
    solver: AbstractSolver,
    rules: Rules,
    together: bool,
    mesh: Mesh | None,
) -> Vectors:
    arrays, static = eqx.partition(common, eqx.is_array)

    def every_lane(rows: Vectors, data: Data, own: AbstractModel, arrays: AbstractModel, turns: Array):
        common = eqx.combine(arrays, static)

        def lane(lane: tuple[Vectors, Data, AbstractModel]) -> Vectors:
            rows, data, own = lane
            held: Any = eqx.combine(own, common)
            problem = Problem(held, data, objective, solver)
            state = packing.unpack(rows)
            return packing.pack(advance(state, problem, rules, state.step + turns))

        return jax.vmap(lane)((rows, data, own)) if together else jax.lax.map(lane, (rows, data, own))

    if mesh is not None:
        split, whole = PartitionSpec("lanes"), PartitionSpec()
        # No device talks to another: each runs its own lanes for as long as they take.
        every_lane = jax.shard_map(
            every_lane, mesh=mesh, in_specs=(split, split, split, whole, whole), out_specs=split, check_vma=False
        )
    return every_lane(rows, data, own, arrays, turns)


def _summary(packed: Vectors, own: AbstractModel, common: AbstractModel, packing: Packing, rules: Rules) -> Ended:
    """How a lane ended."""
    state = packing.unpack(packed)
    arrays = eqx.filter(join(state.best.free, eqx.combine(own, common)), eqx.is_array)
    best = state.best
    value, result = jnp.where(jnp.isfinite(best.value), best.value, jnp.nan), outcome(state, rules)._value
    return Ended(arrays, at_bound(arrays), value, result, state.step, best.gradient_norm, best.jitter)


@compiled
def _summaries(
    rows: Vectors, own: AbstractModel, common: AbstractModel, packing: Packing, summary: Packing, rules: Rules
) -> Vectors:
    return jax.vmap(lambda packed, own: summary.pack(_summary(packed, own, common, packing, rules)))(rows, own)
