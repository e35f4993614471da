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

from kernax.fitting._checkpoint import claimed, write_file
from kernax.fitting._packing import Vectors

_WRITE_EVERY = 2.0
"""Seconds between two writes, at the least."""


class FitCheckpoint:
    """One folder, for one fit of one dataset.

    **Arguments:**

    - `folder`: created if it does not exist. `ValueError` if it belongs to another fit.
    - `identity`, `about`: as in `Checkpoint`.
    """

    def __init__(self, folder: str | os.PathLike, identity: dict[str, Any], about: dict[str, Any]):
        self._path = claimed(folder, identity, about) / "state.npz"
        self._states = _read(self._path)
        self._lock, self._written = threading.Lock(), -np.inf

    def resumed(self, name: str, state: Vectors) -> Vectors:
        """The last state that was kept by this name, or `state`, which has the same shapes, if none was."""
        kept = self._states.get(name, state)
        forms = [[(vector.shape, vector.dtype) for vector in vectors] for vectors in (kept, state)]
        if forms[0] != forms[1]:
            raise ValueError(_damaged(self._path, f"{name} has another form"))
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
        arrays: dict[str, Any] = {
            f"{name}, vector {place}": vector for name, state in self._states.items() for place, vector in enumerate(state)
        }
        write_file(self._path, lambda file: np.savez(file, **arrays))
        self._written = time.monotonic()


def _read(path: Any) -> dict[str, Vectors]:
    states: dict[str, Vectors] = {}
    if not path.exists():
        return states
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                start = name.rpartition(",")[0]
                states[start] = (*states.get(start, ()), arrays[name])
    except Exception as error:
        raise ValueError(_damaged(path, error)) from error
    return states


def _damaged(path: Any, why: Any) -> str:
    return f"{path} is damaged ({why}): delete it, and the fit begins again."
