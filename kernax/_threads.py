"""How many threads BLAS uses: the one place that decides it.

BLAS (SciPy's OpenBLAS, which XLA calls for factorisations and triangular solves) cuts its work into as many threads as there
are cores. They wait for each other many times in every call, by spinning. If other processes use the cores, each wait may
last as long as the system lets those run, and a call takes a hundred times as long. Small matrices gain little or nothing
from a second thread, so they get one. So do matrices of medium size while the machine is busy.
"""

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.core
import numpy as np
from threadpoolctl import OpenBLASController, ThreadpoolController

T = TypeVar("T")

SMALL = 768
"""Rows of the largest matrix up to which BLAS is held to one thread. Measured with two cores, none busy: potrf and potri
together take as long with two threads as with one at 500 and 700 rows, and 0.6 of the time at 1000."""
MEDIUM = 3072
"""Rows of the largest matrix for which it matters whether the machine is busy. In larger ones threads compute for longer
between two waits."""

_lock = threading.Lock()
_limits: list[Any] = []
"""The limit that is set, once for each block of code that holds it at the moment."""


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread.

    The number belongs to the whole process. If blocks overlap, in whichever threads, it is restored when the last one ends.
    """
    blas = _blas()
    with _lock:
        _limits.append(_limits[0] if _limits else blas.limit(limits=1))
        _let_others_set_it()
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()
                _let_others_set_it()


def with_threads_for(size: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """The function's answer, computed to its end with one BLAS thread if its largest matrix has at most `SMALL` rows, or at
    most `MEDIUM` rows while the machine is busy.

    While a program is traced it is a plain call: nothing is computed then.
    """
    if jax.default_backend() != "cpu" or isinstance(jax.device_put(np.False_), jax.core.Tracer):
        return function(*args, **kwargs)
    if size > SMALL and (size > MEDIUM or not is_busy()):
        return function(*args, **kwargs)
    with one_blas_thread():
        return jax.block_until_ready(function(*args, **kwargs))


def is_busy() -> bool:
    """Whether threads of other processes want to run on all cores. `False` where the system does not tell."""
    return all(_others_take_all_cores() for _ in range(3))  # not once only: the two numbers are not of the same moment


def _others_take_all_cores() -> bool:
    number = os.cpu_count() or 1
    try:
        with open("/proc/loadavg") as file:  # such as "0.20 0.18 0.12 3/280 4211": three threads run or wait for a core
            running = int(file.read().split()[3].partition("/")[0])
        return running > number and running - _running_here() >= number
    except (OSError, IndexError, ValueError):
        return False


def _running_here() -> int:
    """How many threads of this process run or wait for a core; those of BLAS spin for a while after each call."""
    number = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/stat") as file:  # it may have ended
            number += file.read().rpartition(")")[2].split()[0] == "R"
    return number


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def longest_axis(tree: Any) -> int:
    """The length of the longest axis of all arrays: matrices that are made of them are hardly larger."""
    return max((max(getattr(leaf, "shape", ()), default=0) for leaf in jax.tree.leaves(tree)), default=0)


def _let_others_set_it() -> None:
    """Since version 3.8 threadpoolctl ignores other threads than the first that set the number, until this is called."""
    getattr(OpenBLASController, "clear_controlling_thread", lambda: None)()


@functools.cache
def _blas() -> ThreadpoolController:
    # Only libraries that are loaded can be held, and jaxlib loads SciPy's with the first factorisation that it compiles.
    importlib.import_module("scipy.linalg.cython_lapack")
    return ThreadpoolController().select(user_api="blas")
