"""Blocks through an executor: the only runner of work on many datasets.

By default blocks run in threads of this process, one for each core, with BLAS held to one thread. Any
`concurrent.futures.Executor` does as well: process pools, Dask, MPI.
"""

import contextlib
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
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

import numpy as np

from kernax._threads import one_blas_thread
from kernax.data._host import HostData
from kernax.data._many import windows
from kernax.data._places import UnreadableError
from kernax.data._tables import unread
from kernax.fitting._blocks import Block, Failure, Missing, Part, Site, Spec, read, run_block, run_sealed, sealed
from kernax.fitting._models import Models
from kernax.fitting._plan import cores
from kernax.solvers import Result

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
) -> list[Missing]:
    """Work on all blocks. After Ctrl-C what is on its way is taken as far as it has got, and `KeyboardInterrupt` goes on.

    **Arguments:**

    - `spec`, `blocks`: what is done, and to what.
    - `take`: is called in this thread with the part of each block as soon as it is done.
    - `executor`: where; `None` for threads of this process.
    - `devices`: those that threads of this process use in turn.
    - `workers`: the number of threads, if there is no executor.

    **Returns:**

    Datasets without results: workers died over them twice, or they cannot be read from their file.
    """
    if executor is not None and is_elsewhere(executor):
        return _elsewhere(sealed(spec), blocks, take, executor)
    _in_threads(spec, blocks, take, executor, devices, workers)
    return []


def is_elsewhere(executor: Executor | None) -> bool:
    """Whether blocks are worked on in other processes."""
    return executor is not None and not isinstance(executor, ThreadPoolExecutor)


def windows_for(executor: Executor | None, models: Models, datasets: Any, **options: Any) -> Iterator[list[HostData]]:
    """`windows` of the datasets. Those of a Parquet file are left there if other processes are to work on them."""
    needs_rows = callable(getattr(models.example, "noise", None))  # see `check_groups`
    return windows(unread(datasets) if is_elsewhere(executor) and not needs_rows else datasets, **options)


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


def _elsewhere(spec: bytes, blocks: Sequence[Block], take: Callable[[Part], None], executor: Executor) -> list[Missing]:
    """In other processes. A block whose worker dies is tried once more, alone, so that it is known whose worker dies.

    A block that a worker cannot read is read here instead, and sent to it.
    """
    workers = getattr(executor, "_max_workers", None)
    limit = len(blocks) if workers is None else _IN_FLIGHT * workers
    left, again, missing = list(reversed(blocks)), [], []
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

        def settle(block: Block, answer: Part | Failure | None, *, is_last: bool) -> None:
            if isinstance(answer, Part):
                take(answer)
            elif answer is None and is_last:
                missing.append(Missing(block.numbers, Result.lost))
            elif answer is None:
                again.append(block)
            elif isinstance(answer.error, UnreadableError):
                here, unreadable = read(block)
                left.extend([here] if len(here.numbers) else [])
                missing.append(Missing(np.array([number for number, _ in unreadable], int), Result.unreadable))
            else:
                raise answer.error

        try:
            while left or running or again:
                is_last = not left and not running
                while left and len(running) < limit:
                    submit(left.pop())
                if is_last:
                    submit(again.pop())
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    settle(running.pop(future), _answer(future), is_last=is_last)
        except BaseException:
            for future in running:
                future.cancel()
            raise
    return missing


def _answer(future: Future) -> Part | Failure | None:
    """What a worker has sent; `None` if it has died."""
    try:
        return pickle.loads(future.result())
    except Exception:
        # What the computation itself raises comes as a `Failure`: this is the worker, or the way to it.
        return None
