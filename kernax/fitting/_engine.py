"""Blocks through an executor: the only runner of work on many datasets.

By default blocks run in threads of this process, one for each core, with BLAS held to one thread. Any
`concurrent.futures.Executor` does as well: process pools, Dask, MPI.
"""

import contextlib
import importlib
import multiprocessing
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from typing import Any, NamedTuple

from kernax._arrays import levels_to_the_caller
from kernax._threads import cores, one_blas_thread
from kernax.data._host import HostData
from kernax.data._many import windows
from kernax.data._places import UnreadableError
from kernax.data._tables import unread
from kernax.fitting._blocks import Block, Failure, Part, Site, Spec, read, run_block, run_sealed, sealed, versions
from kernax.fitting._models import Models
from kernax.solvers import Result

_IN_FLIGHT = 2
"""Blocks for each worker of a process pool that are handed over before they are needed. If a worker dies, its pool is lost,
and all of these have to be repeated."""
_UNABLE = (ImportError, AttributeError, TypeError, pickle.PickleError, CancelledError)
"""Errors of an executor that say that its workers cannot do the work, rather than that one of them has died."""


class Died(NamedTuple):
    """A worker process gave no answer."""

    error: BaseException


def run_blocks(
    spec: Spec,
    blocks: Sequence[Block],
    take: Callable[[Part], None],
    *,
    executor: Executor | None,
    devices: Sequence[Any],
    workers: int,
) -> dict[int, Any]:
    """Work on all blocks.

    After Ctrl-C, threads hand in their fits as far as they have got, other executors' unfinished blocks are cancelled, and
    `KeyboardInterrupt` is raised.

    **Arguments:**

    - `spec`, `blocks`: what is done, and to what.
    - `take`: is called in this thread with the part of each block as soon as it is done.
    - `executor`: where; `None` for threads of this process.
    - `devices`: those that threads of this process use in turn.
    - `workers`: the number of threads, if there is no executor.

    **Returns:**

    For datasets without results, by their numbers, why: workers died over them twice (`Result.lost`), or they cannot be
    read from their file (`Result.unreadable`). If no worker can do the work at all, what went wrong is raised.
    """
    if executor is not None and is_elsewhere(executor):
        return _elsewhere(sealed(spec), blocks, take, executor)
    _in_threads(spec, blocks, take, executor, devices, workers)
    return {}


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


def _elsewhere(spec: bytes, blocks: Sequence[Block], take: Callable[[Part], None], executor: Executor) -> dict[int, Any]:
    """In other processes. A block whose worker dies is tried once more, alone, so that it is known whose worker dies.

    A block that a worker cannot read is read here instead, and sent to it.
    """
    workers = getattr(executor, "_max_workers", None)
    limit = len(blocks) if workers is None else _IN_FLIGHT * workers
    left, again = list(reversed(blocks)), []
    running: dict[Future, Block] = {}
    missing: dict[int, Any] = {}
    has_answered = False
    with contextlib.ExitStack() as stack:

        def submit(block: Block) -> None:
            nonlocal executor
            call = run_sealed, versions(), spec, sealed(block)
            try:
                future = executor.submit(*call)
            except BrokenExecutor:
                executor = _another(executor, stack)
                future = executor.submit(*call)
            running[future] = block

        def settle(block: Block, answer: Part | Failure | Died, *, is_last: bool) -> None:
            nonlocal has_answered
            has_answered |= not isinstance(answer, Died)
            if isinstance(answer, Part):
                take(answer)
            elif isinstance(answer, Died) and not is_last:
                again.append(block)
            elif isinstance(answer, Died):
                if not has_answered and isinstance(answer.error, _UNABLE):
                    raise RuntimeError(
                        f"no worker of {type(executor).__name__} gave an answer ({type(answer.error).__name__}: "
                        f"{answer.error}). Install the same kernax where its workers run, and check that it still runs."
                    ) from answer.error
                if not any(why is Result.lost for why in missing.values()):
                    warnings.warn(
                        f"workers gave no answer for {len(block.numbers)} or more datasets, which are lost "
                        f"({type(answer.error).__name__}: {answer.error}).",
                        stacklevel=levels_to_the_caller(),
                    )
                missing.update(dict.fromkeys(block.numbers.tolist(), Result.lost))
            elif isinstance(answer.error, UnreadableError):
                here, unreadable = read(block)
                left.extend([here] if len(here.numbers) else [])
                missing.update({number: Result.unreadable for number, _ in unreadable})
            else:
                raise answer.error

        try:
            while left or running or again:
                is_last = not left and not running
                while left and len(running) < limit:
                    submit(left.pop())
                if is_last:
                    submit(again.pop())
                # With a time limit, again and again: a wait without one may sleep through Ctrl-C.
                for future in wait(running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    settle(running.pop(future), _answer(future), is_last=is_last)
        except BaseException:
            for future in running:
                future.cancel()
            raise
    return missing


def _answer(future: Future) -> Part | Failure | Died:
    """What a worker has sent."""
    try:
        return pickle.loads(future.result())
    except (Exception, CancelledError) as error:
        # What the computation itself raises comes as a `Failure`: this is the worker, or the way to it.
        return Died(error)


def _another(executor: Executor, stack: contextlib.ExitStack) -> Executor:
    """A pool in place of one that ended because one of its workers died, with the same workers and the same set-up."""
    if type(executor).__module__.partition(".")[0] == "loky":
        return importlib.import_module("loky").get_reusable_executor(max_workers=getattr(executor, "_max_workers", None))
    kept = {name: getattr(executor, f"_{name}", None) for name in ("max_workers", "mp_context", "initializer", "initargs")}
    pool = ProcessPoolExecutor(
        kept["max_workers"] or cores(),
        mp_context=kept["mp_context"] or multiprocessing.get_context("spawn"),
        initializer=kept["initializer"],
        initargs=kept["initargs"] or (),
    )
    return stack.enter_context(pool)


def check_executor(executor: Any) -> None:
    """Raise `TypeError` for what is not an executor."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor must be a concurrent.futures.Executor, such as a ProcessPoolExecutor or Dask's client.get_executor(), "
            f"got {executor!r}."
        )
