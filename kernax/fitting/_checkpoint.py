"""A folder that keeps the results of many fits as they arrive, or the state of a long fit, so that an interrupted run can
resume.

`fit.json` identifies the fit: the version of kernax, the settings, and digests of the model, the objective, the optimiser
and the solver. Files are written under another name first and then renamed, so that each is complete or absent.
"""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from kernax._version import __version__
from kernax.fitting._blocks import Part
from kernax.fitting._packing import Vectors

_FORMAT = 3
_SHOWN = 3
"""How many differences an error shows at most."""
_WRITE_EVERY = 2.0
"""Seconds between two writes of a state, at the least."""
_THEN = "the fit begins again"


class Checkpoint:
    """The folder of one call on many datasets. Every file but `fit.json` holds the results of some of them, with a digest of
    each dataset.
    """

    def __init__(self, folder: str | os.PathLike, identity: dict[str, Any], about: dict[str, Any]):
        self._folder = _claimed(folder, identity, about)

    def parts(self, like: PyTree) -> list[Part]:
        """All results written so far, in the structure of `like`."""
        found = []
        for path in sorted(self._folder.glob("part-*.npz")):
            arrays = _read_arrays(path, "its datasets are fitted again")
            numbers, digests = arrays.pop("numbers"), arrays.pop("digests")
            leaves = [arrays[f"leaf_{i}"] for i in range(len(arrays))]
            found.append(Part(numbers, jax.tree.unflatten(jax.tree.structure(like), leaves), digests))
        return found

    def write(self, part: Part) -> None:
        """Keep these results."""
        leaves = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(part.results))}
        path = self._folder / f"part-{int(part.numbers.min()):08d}-{uuid.uuid4().hex[:8]}.npz"
        _write_arrays(path, leaves | {"numbers": part.numbers, "digests": part.digests})


class FitCheckpoint:
    """The folder of one fit of one dataset. `state.npz` holds the last state of every start in every round; that of a
    finished round is its end, from which nothing is computed again.

    Neighbours and inducing rows are not kept: they are chosen again from the parameters with which a round began, and come
    out the same.
    """

    def __init__(self, folder: str | os.PathLike, identity: dict[str, Any], about: dict[str, Any]):
        self._path = _claimed(folder, identity, about) / "state.npz"
        self._states: dict[str, Vectors] = {}
        for name, vector in _read_arrays(self._path, _THEN).items() if self._path.exists() else ():
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
        _write_arrays(self._path, {f"{name} {i}": vector for name, state in named for i, vector in enumerate(state)})
        self._written = time.monotonic()


def _claimed(folder: str | os.PathLike, identity: dict[str, Any], about: dict[str, Any]) -> Path:
    """A folder that belongs to the fit of this identity: created if it does not exist, `ValueError` if it is another's.

    `about` has texts and digests that are not compared, but tell what differs if `identity` does.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"checkpoint must be a folder, but {folder} is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"python": platform.python_version(), "jax": jax.__version__, "numpy": np.__version__}
    identity = {"format": _FORMAT, "kernax": __version__, **identity, "about": versions | about}
    path = folder / "fit.json"
    foreign = [entry.name for entry in folder.iterdir() if not entry.name.endswith(".tmp")]
    if path.exists():  # looked for last: another process may have just begun the same
        _check_same(_read_json(path), identity, folder)
    elif foreign:
        raise ValueError(f"{folder} is not empty and holds no checkpoint ({foreign[0]}, …): give an empty folder.")
    else:
        _write_file(path, lambda file: file.write(json.dumps(identity, indent=2).encode()))
    return folder


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): give another folder, or delete this one.") from error


def _check_same(there: dict[str, Any], here: dict[str, Any], folder: Path) -> None:
    differing = [name for name in sorted(here | there) if name != "about" and here.get(name) != there.get(name)]
    if not differing:
        return
    old, new = ({**side, **side.get("about", {}), "about": None} for side in (there, here))
    changed = [name for name in old | new if old.get(name) != new.get(name)]
    shown = [_change(name, old.get(name), new.get(name)) for name in changed[:_SHOWN]]
    details = f" ({', '.join(shown)}{', …' if len(changed) > _SHOWN else ''})" if shown else ""
    raise ValueError(
        f"the checkpoint in {folder} belongs to another fit. It differs in {', '.join(differing)}{details}. "
        "Give another folder, delete that one, or repeat the call that made it."
    )


def _change(name: str, old: Any, new: Any) -> str:
    if isinstance(old, list) or isinstance(new, list):  # digests, which tell a reader nothing
        return f"{name} is {'new' if old is None else 'gone' if new is None else 'not the same'}"
    return f"{name} there: {old}; here: {new}"


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    _write_file(path, lambda file: np.savez(file, **arrays))


def _read_arrays(path: Path, then: str) -> dict[str, np.ndarray]:
    """The arrays of a file, by their names. If it is damaged, `ValueError` says what happens `then` if it is deleted."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and {then}.") from error


def _write_file(path: Path, write: Callable[[Any], Any]) -> None:
    """Let a function write to a file. The file is complete or as it was before."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
