"""How independent fits ("lanes") are laid on the hardware: the one place that decides it.

On CPU a lane is one loop of its own; as many host threads as there are cores take lanes in turn, with BLAS held to one
thread meanwhile (under `vmap` every lane would wait for the slowest, and small matrices do not fill two BLAS threads). On
accelerators all lanes run together under `vmap`; the loop makes one evaluation a turn, so lanes in different phases of
their line searches do not wait for each other.
"""

import contextlib
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from kernax._programs import compiled
from kernax._threads import cores, longest_axis, one_blas_thread, with_threads_for
from kernax.fitting._best import Rules
from kernax.fitting._fit_checkpoint import FitCheckpoint
from kernax.fitting._loop import LoopState, PackedState, advance, advance_packed, start, without_history
from kernax.fitting._packing import Packing
from kernax.fitting._problem import AbstractProblem
from kernax.fitting._progress import progress_bar
from kernax.model import AbstractModel

_start = compiled(start)


def _size_without_history(given: Any) -> int:
    """How large the arguments of `_advance` are, except for the history: it has an entry for every step, but no sums."""
    (vectors, _), *rest = given[0]
    return longest_axis((vectors, rest))


_advance = functools.partial(compiled, size_of=_size_without_history)(advance_packed)


@compiled
def _start_together(frees: list[AbstractModel], dtype: Any, rules: Rules, key: Key[Array, ""] | None) -> LoopState:
    return jax.vmap(lambda free: start(free, dtype, rules, key))(stacked(frees))


@compiled
def _advance_together(states: LoopState, problem: AbstractProblem, rules: Rules, until: Int[Array, ""]) -> LoopState:
    return jax.vmap(lambda state: advance(state, problem, rules, until))(states)


def stacked(lanes: list[Any]) -> Any:
    """Equal trees as one, with a leading lane axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes)


def run_traced(
    frees: list[AbstractModel], problem: AbstractProblem, rules: Rules, key: Key[Array, ""] | None
) -> list[LoopState]:
    """All lanes to their end, inside somebody's trace."""

    def run(free: AbstractModel) -> LoopState:
        return advance(start(free, problem.dtype, rules, key), problem, rules, jnp.asarray(rules.max_steps))

    if len(frees) == 1:
        return [run(frees[0])]
    states = jax.lax.map(run, stacked(frees)) if jax.default_backend() == "cpu" else jax.vmap(run)(stacked(frees))
    return _unstacked(states, len(frees))


def run_lanes(
    frees: list[AbstractModel],
    problem: AbstractProblem,
    rules: Rules,
    *,
    progress: bool,
    key: Key[Array, ""] | None = None,
    together: bool | None = None,
    before: LoopState | None = None,
    kept: FitCheckpoint | None = None,
    title: str = "fit",
    advance: Callable[..., LoopState] | None = None,
) -> list[LoopState]:
    """All lanes to their end, eagerly, in pieces short enough for Ctrl-C to be heard; it keeps what was reached.

    `key` is for objectives that are random. `before` is the end of a fit of a similar problem, from which the first lane
    goes on (but not of several together). `kept` knows how far lanes
    of an interrupted run have come, and is told how far these come. `title` stands before the progress bar and tells the
    rounds of a fit apart. `advance` makes steps in another way than by one program; lanes then go one after another.
    """
    together = jax.default_backend() != "cpu" if together is None else together
    stop = threading.Event()
    total = rules.max_steps * (1 if together else len(frees))
    with _ctrl_c_sets(stop), progress_bar(progress, total, title) as show, _written_at_the_end(kept):

        def driven(by: Any, state: LoopState, number: int = 0, *, packed: bool = False) -> LoopState:
            name = f"{title}, start {number + 1}"
            keep = None if kept is None else functools.partial(kept.keep, name)
            state = state if kept is None else kept.resumed(name, state)
            return (_drive_packed if packed else _drive)(by, state, problem, rules, stop, show, keep)

        if together:
            return _unstacked(driven(_advance_together, _start_together(frees, problem.dtype, rules, key)), len(frees))

        def lane(free: AbstractModel, number: int) -> LoopState:
            state = _start(free, problem.dtype, rules, key, before if number == 0 else None)
            return driven(_advance, state, number, packed=True)

        if advance is not None:
            starts = [_start(free, problem.dtype, rules, key) for free in frees]
            return [driven(advance, state, number) for number, state in enumerate(starts)]
        if len(frees) == 1:
            return [with_threads_for(problem.largest_matrix, lane, frees[0], 0)]
        with one_blas_thread(), ThreadPoolExecutor(min(len(frees), cores())) as pool:
            futures = [pool.submit(lane, free, number) for number, free in enumerate(frees)]
            try:
                # With a time limit, again and again: a wait without one may sleep through Ctrl-C.
                while wait(futures, timeout=0.2).not_done:
                    pass
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                stop.set()
                return [future.result() for future in futures]


@contextlib.contextmanager
def _written_at_the_end(kept: FitCheckpoint | None) -> Iterator[None]:
    try:
        yield
    finally:
        if kept is not None:
            kept.flush()


@contextlib.contextmanager
def _ctrl_c_sets(stop: threading.Event) -> Iterator[None]:
    """Let Ctrl-C be heard between two pieces. Raised wherever the main thread happens to be, it might hit a factorisation's
    host callback, and JAX would make an internal error of it. A second Ctrl-C raises as always.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def hear(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _unstacked(states: LoopState, lanes: int) -> list[LoopState]:
    return [jax.tree.map(lambda leaf, index=index: leaf[index], states) for index in range(lanes)]


def _drive_packed(
    advance: Any,
    state: LoopState,
    problem: AbstractProblem,
    rules: Rules,
    stop: threading.Event,
    show: Any,
    keep: Callable[[LoopState], None] | None,
) -> LoopState:
    """As `_drive`, but NumPy packs and unpacks the state: XLA would compile an operation for each of its arrays."""
    brief = without_history(state)
    packing = Packing.of(brief)

    def view(packed: PackedState) -> LoopState:
        return packing.unpack(tuple(np.asarray(vector) for vector in packed[0]))

    def unpacked(packed: PackedState) -> LoopState:
        return dataclasses.replace(jax.device_put(view(packed)), history=packed[1])

    def go_on(packed: PackedState, *how: Any) -> PackedState:
        return advance(packed, packing, *how)

    packed = packing.pack_on_host(brief), state.history
    keep_packed = None if keep is None else lambda packed: keep(unpacked(packed))
    return unpacked(_drive(go_on, packed, problem, rules, stop, show, keep_packed, view))


def _drive(
    advance: Any,
    state: Any,
    problem: AbstractProblem,
    rules: Rules,
    stop: threading.Event,
    show: Any,
    keep: Callable[[Any], None] | None,
    view: Callable[[Any], LoopState] = lambda state: state,
) -> Any:
    """Advance in pieces of about half a second, one evaluation at the least. A piece that is cut off is lost; the state
    before it is not. `keep` is called with the state after each piece. `view` makes a `LoopState` of what `advance` takes.
    """
    seen = view(state)
    piece, done, is_first = 1, int(np.max(np.asarray(seen.step))), True
    if done:  # by an earlier run
        show(done, float(np.min(np.asarray(seen.best.value))))
    try:
        while np.any(np.asarray(seen.running)) and (is_first or not stop.is_set()):
            begun, is_first = time.monotonic(), False
            state = advance(state, problem, rules, jax.device_put(np.int32(done + piece)))
            seen = view(state)
            reached = int(np.max(np.asarray(seen.step)))
            show(reached - done, float(np.min(np.asarray(seen.best.value))))
            done += piece
            if keep is not None:
                keep(state)
            took = time.monotonic() - begun
            piece = max(1, min(2 * piece, int(piece * 0.5 / max(took, 1e-4))))
    except KeyboardInterrupt:
        stop.set()
    return state
