"""Where many fits are computed: in this process, in processes of this machine, on a Dask cluster."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

from kernax.tables import TableError


@contextlib.contextmanager
def executor_of(text: str | None) -> Iterator[Executor | None]:
    """The executor of a text such as `processes:4` or `dask://scheduler:8786`, shut down afterwards.

    **Arguments:**

    - `text`: `None` for threads of this process.

    **Returns:**

    A context with the executor. Raises `TableError`, which says what to write instead, for any other text.
    """
    if text is None:
        yield None
        return
    name, _, number = text.partition(":")
    if text.startswith("dask://"):
        with _dask(text.removeprefix("dask://")) as executor:
            yield executor
    elif name == "processes" and (number == "" or (number.isdigit() and int(number) > 0)):
        # Not forked: JAX has threads.
        with ProcessPoolExecutor(int(number) if number else None, mp_context=get_context("spawn")) as pool:
            yield pool
    else:
        raise TableError(f"there is no executor {text!r}: write processes:4 (four of them), or dask://scheduler:8786.")


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError('--executor dask://… needs more packages: pip install ".[dask]" in a clone.') from error
    try:
        client = Client(f"tcp://{address}", timeout=10)
    except (OSError, TimeoutError, ValueError) as error:
        raise TableError(f"dask://{address}: the scheduler does not answer ({error or type(error).__name__}).") from None
    with client:
        yield client.get_executor()
