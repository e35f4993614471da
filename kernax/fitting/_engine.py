"""Blocks through an executor: the only runner of work on many datasets.

By default blocks run in threads of this process, one for each core, with BLAS held to one thread. Any
`concurrent.futures.Executor` does as well: process pools, Dask, MPI.
"""

import contextlib
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from typing import Any

from kernax._threads import one_blas_thread
from kernax.fitting._blocks import Block, Failure, Part, Site, Spec, run_block, run_sealed, sealed
from kernax.fitting._plan import cores

_IN_FLIGHT = 2
"""Blocks for each worker of a process pool that are handed over before they are needed. If a worker dies, its pool is lost,
and all of these have to be repeated."""


def run_blocks(
    spec: Spec,
    blocks: Sequence[Block],
    take: Callable[[Part], None],
    *,
    executor: Executor | None,
    devices: Sequence[Any],
    workers: int,
) -> list[Block]:
    """Work on all blocks. After Ctrl-C what is on its way is taken as far as it has got, and `KeyboardInterrupt` goes on.

    **Arguments:**

    - `spec`, `blocks`: what is done, and to what.
    - `take`: is called in this thread with the part of each block as soon as it is done.
    - `executor`: where; `None` for threads of this process.
    - `devices`: those that threads of this process use in turn.
    - `workers`: the number of threads, if there is no executor.

    **Returns:**

    Blocks that were lost: workers died over them twice.
    """
    if executor is None or isinstance(executor, ThreadPoolExecutor):
        _in_threads(spec, blocks, take, executor, devices, workers)
        return []
    return _elsewhere(sealed(spec), blocks, take, executor)


def _in_threads(
    spec: Spec,
    blocks: Sequence[Block],
    take: Callable[[Part], None],
    executor: Executor | None,
    devices: Sequence[Any],
    workers: int,
) -> None:
    stop, compiled = threading.Event(), {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        pool = executor or stack.enter_context(ThreadPoolExecutor(workers))
        waiting = set()
        try:
            for number, block in enumerate(blocks):
                site = Site(devices[number % len(devices)], spec.together, stop, compiled)
                waiting.add(pool.submit(run_block, spec, block, site))
            while waiting:
                # With a time limit, again and again: a wait without one may sleep through Ctrl-C.
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    take(future.result())
        except BaseException:
            stop.set()  # the others have nothing to go on for
            for future in [future for future in waiting if not future.cancel()]:
                with contextlib.suppress(Exception):
                    take(future.result())
            raise


def _elsewhere(spec: bytes, blocks: Sequence[Block], take: Callable[[Part], None], executor: Executor) -> list[Block]:
    """In other processes. A block whose worker dies is tried once more, alone, so that it is known whose worker dies."""
    workers = getattr(executor, "_max_workers", None)
    limit = len(blocks) if workers is None else _IN_FLIGHT * workers
    left, again, lost = list(reversed(blocks)), [], []
    running: dict[Future, Block] = {}
    with contextlib.ExitStack() as stack:

        def submit(block: Block) -> None:
            nonlocal executor
            sent = pickle.dumps(block)
            try:
                future = executor.submit(run_sealed, spec, sent)
            except BrokenExecutor:
                # A process pool ends with the first of its workers that dies. Another takes its place.
                pool = ProcessPoolExecutor(workers or cores(), mp_context=multiprocessing.get_context("spawn"))
                executor = stack.enter_context(pool)
                future = executor.submit(run_sealed, spec, sent)
            running[future] = block

        try:
            while left or running:
                while left and len(running) < limit:
                    submit(left.pop())
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    _take_or_add(running.pop(future), future, take, again)
            for block in again:
                submit(block)
                (future,) = running
                _take_or_add(running.pop(future), future, take, lost)
        except BaseException:
            for future in running:
                future.cancel()
            raise
    return lost


def _take_or_add(block: Block, future: Future, take: Callable[[Part], None], failed: list[Block]) -> None:
    """Take the part of a block; add the block to those that failed if its worker has died."""
    try:
        answer = pickle.loads(future.result())
    except Exception:
        # What the computation itself raises comes as a `Failure`: this is the worker, or the way to it.
        failed.append(block)
        return
    if isinstance(answer, Failure):
        raise answer.error
    take(answer)
