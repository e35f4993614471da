"""How independent fits ("lanes") are laid on the hardware: the one place that decides it.

On CPU a lane is one loop of its own; as many host threads as there are cores take lanes in turn, with BLAS held to one
thread meanwhile (under `vmap` every lane would wait for the slowest, and small matrices do not fill two BLAS threads). On
accelerators all lanes run together under `vmap`; the loop makes one evaluation a turn, so lanes in different phases of
their line searches do not wait for each other.
"""

import contextlib
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

from kernax._bars import progress_bar
from kernax._programs import compiled
from kernax._threads import cores, longest_axis, one_blas_thread
from kernax.fitting._checkpoint import FitCheckpoint
from kernax.fitting._convergence import Rules
from kernax.fitting._loop import LoopState, advance, packing_of, start
from kernax.fitting._packing import Packing, Vectors
from kernax.fitting._problem import Problem
from kernax.model import AbstractModel

_start = compiled(start)


def _size_without_history(given: Any) -> int:
    """How large the arguments of `_advance` are, except for the history: it has an entry for every step, but no sums."""
    (*vectors, _), *rest = given[0]
    return longest_axis((vectors, rest))


@functools.partial(compiled, size_of=_size_without_history)
def _advance(
    state: Vectors, packing: Packing, problem: Problem, rules: Rules, until: Int[Array, ""], together: bool = False
) -> Vectors:
    """`advance`, of one lane, or `together` of several, whose states have a leading axis."""
    if together:
        return jax.vmap(lambda lane: advance(lane, packing, problem, rules, until))(state)
    return advance(state, packing, problem, rules, until)


def stacked(lanes: list[Any]) -> Any:
    """Equal trees as one, with a leading lane axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes)


def run_traced(frees: list[AbstractModel], problem: Problem, rules: Rules, key: Key[Array, ""] | None) -> list[LoopState]:
    """All lanes to their end, inside somebody's trace."""

    def run(free: AbstractModel) -> LoopState:
        state = start(free, problem.dtype, rules, key)
        packing = packing_of(state)
        return packing.unpack(advance(packing.pack(state), packing, problem, rules, jnp.asarray(rules.max_steps)))

    if len(frees) == 1:
        return [run(frees[0])]
    states = jax.lax.map(run, stacked(frees)) if jax.default_backend() == "cpu" else jax.vmap(run)(stacked(frees))
    return [jax.tree.map(lambda leaf, lane=lane: leaf[lane], states) for lane in range(len(frees))]


def run_lanes(
    frees: list[AbstractModel],
    problem: Any,
    rules: Rules,
    *,
    progress: bool,
    key: Key[Array, ""] | None = None,
    together: bool | None = None,
    before: LoopState | None = None,
    kept: FitCheckpoint | None = None,
    title: str = "fit",
    advance: Callable[..., Vectors] | None = None,
) -> list[LoopState]:
    """All lanes to their end, eagerly, in pieces short enough for Ctrl-C to be heard; it keeps what was reached.

    `key` is for objectives that are random. `before` is the end of a fit of a similar problem, from which the first lane
    goes on. `kept` knows how far lanes of an interrupted run have come, and is told how far these come. `title` stands
    before the progress bar and tells the rounds of a fit apart. `advance` makes steps of a `problem` that is no `Problem`;
    lanes then go one after another.
    """
    together = jax.default_backend() != "cpu" if together is None else together
    stop = threading.Event()
    total = rules.max_steps * (1 if together else len(frees))
    with _ctrl_c_sets(stop), progress_bar(progress, total, title) as show, contextlib.ExitStack() as at_the_end:
        if kept is not None:
            at_the_end.callback(kept.flush)
        states = [_start(free, problem.dtype, rules, key, None if i else before) for i, free in enumerate(frees)]
        # NumPy packs and unpacks the states: XLA would compile an operation for each of their arrays.
        packing = packing_of(states[0])
        lanes = [packing.pack(state, np) for state in states]

        def driven(state: Vectors, number: int, *how: Any) -> Vectors:
            name = f"{title}, start {number + 1}"
            state = state if kept is None else kept.resumed(name, state)
            keep = None if kept is None else functools.partial(kept.keep, name)

            def go_on(state: Vectors, until: Any) -> Vectors:
                return (advance or _advance)(state, packing, problem, rules, until, *how)

            return _drive(go_on, state, packing, stop, show, keep)

        if together:
            ended = driven(tuple(np.stack(vectors) for vectors in zip(*lanes, strict=True)), 0, True)
            lanes = [tuple(vector[lane] for vector in ended) for lane in range(len(frees))]
        elif advance is not None or len(lanes) == 1:
            lanes = [driven(lane, number) for number, lane in enumerate(lanes)]
        else:
            with one_blas_thread(), ThreadPoolExecutor(min(len(lanes), cores())) as pool:
                futures = [pool.submit(driven, lane, number) for number, lane in enumerate(lanes)]
                try:
                    # With a time limit, again and again: a wait without one may sleep through Ctrl-C.
                    while wait(futures, timeout=0.2).not_done:
                        pass
                except KeyboardInterrupt:
                    stop.set()
                lanes = [future.result() for future in futures]
    return [jax.device_put(on_host(packing, lane)) for lane in lanes]


def on_host(packing: Packing, state: Vectors) -> LoopState:
    """A state as NumPy arrays."""
    return packing.unpack(tuple(np.asarray(vector) for vector in state))


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


def _drive(
    advance: Callable[[Vectors, Any], Vectors],
    state: Vectors,
    packing: Packing,
    stop: threading.Event,
    show: Callable[..., None],
    keep: Callable[[Vectors], None] | None,
) -> Vectors:
    """Advance in pieces of about half a second, one evaluation at the least. A piece that is cut off is lost; the state
    before it is not. `keep` is called with the state after each piece.
    """
    seen = on_host(packing, state)
    piece, done, is_first = 1, int(np.max(seen.step)), True
    if done:  # by an earlier run
        show(done, float(np.min(seen.best.value)), earlier=True)
    try:
        while np.any(seen.running) and (is_first or not stop.is_set()):
            begun, is_first = time.monotonic(), False
            state = advance(state, jax.device_put(np.int32(done + piece)))
            seen = on_host(packing, state)
            show(int(np.max(seen.step)) - done, float(np.min(seen.best.value)))
            done += piece
            if keep is not None:
                keep(state)
            took = time.monotonic() - begun
            piece = max(1, min(2 * piece, int(piece * 0.5 / max(took, 1e-4))))
    except KeyboardInterrupt:
        stop.set()
    return state
