"""Blocks through an executor: the only runner of work on many datasets.

By default blocks run in threads of this process, one for each core, with BLAS held to one thread. Any
`concurrent.futures.Executor` does as well: process pools, Dask, MPI.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ThreadPoolExecutor, wait
from typing import Any

from kernax._threads import one_blas_thread
from kernax.data._host import HostData
from kernax.data._many import windows
from kernax.data._tables import unread
from kernax.fitting._blocks import Block, Part, Site, Spec, run_block
from kernax.fitting._elsewhere import Elsewhere
from kernax.fitting._models import Models
from kernax.fitting._plan import Room


def run_blocks(spec: Spec, blocks: Sequence[Block], take: Callable[[Part], None], room: Room) -> dict[int, Any]:
    """Work on all blocks: through the executor, or in threads of this process, which use the devices in turn.

    `take` is called in this thread with the part of each block as soon as it is done. After Ctrl-C, threads hand in their
    fits as far as they have got, finished blocks of other executors are taken, their unfinished ones are cancelled, and
    `KeyboardInterrupt` is raised. If no worker can do the work at all, what went wrong is raised.

    Returns for datasets without results, by their numbers, why: workers died over them twice (`Result.lost`), or they cannot
    be read from their file (`Result.unreadable`).
    """
    if room.executor is not None and is_elsewhere(room.executor):
        return Elsewhere(spec, blocks, take, room.executor).run()
    stop, compiled = threading.Event(), {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        pool = room.executor or stack.enter_context(ThreadPoolExecutor(room.threads(blocks)))
        waiting = set()
        try:
            for number, block in enumerate(blocks):
                site = Site(room.devices[number % len(room.devices)], spec.together, stop, compiled)
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
    return {}


def is_elsewhere(executor: Executor | None) -> bool:
    """Whether blocks are worked on in other processes."""
    return executor is not None and not isinstance(executor, ThreadPoolExecutor)


def windows_for(executor: Executor | None, models: Models, datasets: Any, **options: Any) -> Iterator[list[HostData]]:
    """`windows` of the datasets. Those of a Parquet file are left there if other processes are to work on them."""
    needs_rows = callable(getattr(models.example, "noise", None))  # see `check_rows`
    return windows(unread(datasets) if is_elsewhere(executor) and not needs_rows else datasets, **options)


def check_executor(executor: Any, devices: Any = None) -> None:
    """Raise `TypeError` for what is not an executor, and `ValueError` if it has no use for the `devices` of this process."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor must be a concurrent.futures.Executor, such as a ProcessPoolExecutor or Dask's client.get_executor(), "
            f"got {executor!r}."
        )
    if devices is not None and is_elsewhere(executor):
        raise ValueError(
            "devices= are those of this process, but the executor computes in other processes, on their own devices: give "
            "either devices= or executor=."
        )
