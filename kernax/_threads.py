"""How many threads BLAS uses."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from threadpoolctl import threadpool_limits

T = TypeVar("T")


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread. Several threads wait for each other over small matrices, on a busy machine very long."""
    # Only libraries that are loaded can be held, and jaxlib loads SciPy's with the first factorisation that it compiles.
    importlib.import_module("scipy.linalg.cython_lapack")
    with threadpool_limits(1, user_api="blas"):
        yield


def with_one_blas_thread_if(wanted: bool, function: Callable[..., T], *arguments: Any) -> T:
    """The function's answer, computed to its end with one thread if that is wanted."""
    if not wanted:
        return function(*arguments)
    with one_blas_thread():
        return jax.block_until_ready(function(*arguments))
