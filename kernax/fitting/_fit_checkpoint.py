"""A folder that keeps the state of one long fit, so that an interrupted run can resume.

`fit.json` identifies the fit (see `_checkpoint.py`). `state.npz` holds the last state of every start in every round; that of
a finished round is its end, from which nothing is computed again. Neighbours and inducing rows are not kept: they are chosen
again from the parameters with which a round began, and come out the same.
"""

import io
import os
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernax.fitting._checkpoint import claimed, write_file
from kernax.fitting._loop import LoopState

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

    def resumed(self, name: str, state: LoopState) -> LoopState:
        """The last state that was kept by this name, or `state`, which has the same shapes, if none was."""
        kept = self._states.get(name)
        return state if kept is None else self._restored(name, kept, state)

    def keep(self, name: str, state: LoopState) -> None:
        """Keep a state. It is written after some seconds, or by `flush`."""
        with self._lock:
            self._states[name] = _as_bytes(state)
            if time.monotonic() - self._written > _WRITE_EVERY:
                self._write()

    def flush(self) -> None:
        """Write what was kept."""
        with self._lock:
            self._write()

    def _restored(self, name: str, kept: np.ndarray, like: LoopState) -> LoopState:
        leaves, structure = jax.tree.flatten(like)
        shapes = [np.asarray(_as_numbers(leaf)) for leaf in leaves]
        if len(kept) != sum(shape.nbytes for shape in shapes):
            raise ValueError(_damaged(self._path, f"{name} has {len(kept)} bytes"))
        restored, begin = [], 0
        for leaf, shape in zip(leaves, shapes, strict=True):
            numbers = kept[begin : begin + shape.nbytes].tobytes()
            array = jnp.asarray(np.frombuffer(numbers, shape.dtype).reshape(shape.shape))
            restored.append(jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else array)
            begin += shape.nbytes
        return jax.tree.unflatten(structure, restored)

    def _write(self) -> None:
        content = io.BytesIO()
        arrays: dict[str, Any] = self._states
        np.savez(content, **arrays)
        write_file(self._path, content.getvalue())
        self._written = time.monotonic()


def _read(path: Any) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:
        raise ValueError(_damaged(path, error)) from error


def _damaged(path: Any, why: Any) -> str:
    return f"{path} is damaged ({why}): delete it, and the fit begins anew."


def _as_bytes(state: LoopState) -> np.ndarray:
    numbers = [np.asarray(_as_numbers(leaf)).tobytes() for leaf in jax.tree.leaves(state)]
    return np.frombuffer(b"".join(numbers), np.uint8)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numbers(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
