"""A folder that keeps the state of one long fit, so that an interrupted run can resume.

`fit.json` identifies the fit (see `_checkpoint.py`). `state.npz` holds the last state of every start in every round; that of
a finished round is its end, from which nothing is computed again. Neighbours and inducing rows are not kept: they are chosen
again from the parameters with which a round began, and come out the same.
"""

import os
import threading
import time
from typing import Any

import numpy as np

from kernax.fitting._checkpoint import claimed, read_arrays, write_arrays
from kernax.fitting._packing import Vectors

_WRITE_EVERY = 2.0
"""Seconds between two writes, at the least."""
_THEN = "the fit begins again"


class FitCheckpoint:
    """One folder, for one fit of one dataset.

    **Arguments:**

    - `folder`: created if it does not exist. `ValueError` if it belongs to another fit.
    - `identity`, `about`: as in `Checkpoint`.
    """

    def __init__(self, folder: str | os.PathLike, identity: dict[str, Any], about: dict[str, Any]):
        self._path = claimed(folder, identity, about) / "state.npz"
        self._states: dict[str, Vectors] = {}
        for name, vector in read_arrays(self._path, _THEN).items() if self._path.exists() else ():
            start = name.rpartition(",")[0]
            self._states[start] = (*self._states.get(start, ()), vector)
        self._lock, self._written = threading.Lock(), -np.inf

    def resumed(self, name: str, state: Vectors) -> Vectors:
        """The last state that was kept by this name, or `state`, which has the same shapes, if none was."""
        kept = self._states.get(name, state)
        forms = [[(vector.shape, vector.dtype) for vector in vectors] for vectors in (kept, state)]
        if forms[0] != forms[1]:
            raise ValueError(f"{self._path} is damaged ({name} has another form): delete it, and {_THEN}.")
        return kept

    def keep(self, name: str, state: Vectors) -> None:
        """Keep a packed state. It is written after some seconds, or by `flush`."""
        with self._lock:
            self._states[name] = tuple(np.asarray(vector) for vector in state)
            if time.monotonic() - self._written > _WRITE_EVERY:
                self._write()

    def flush(self) -> None:
        """Write what was kept."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        named = ((f"{name}, vector", state) for name, state in self._states.items())
        write_arrays(self._path, {f"{name} {i}": vector for name, state in named for i, vector in enumerate(state)})
        self._written = time.monotonic()
