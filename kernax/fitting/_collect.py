"""Results of many fits, gathered as blocks end, in the order of the datasets."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from kernax._fingerprints import DIGEST_BYTES
from kernax.data._host import HostData
from kernax.data._places import UnreadableError
from kernax.fitting._blocks import Part
from kernax.fitting._checkpoint import Checkpoint
from kernax.fitting._fits import Fits, Settings, as_result
from kernax.fitting._fitted import Ended
from kernax.fitting._models import Models
from kernax.solvers import Result

_WRITE_EVERY = 5.0
"""Seconds between two files of a checkpoint."""


class Collector:
    """Takes in the parts of blocks, and writes the checkpoint. Each process has its share of the datasets."""

    def __init__(
        self,
        models: Models,
        starts: int,
        checkpoint: Checkpoint | None,
        show: Callable[[int, int], None],
        settings: Settings,
    ):
        self._models, self._starts, self._checkpoint, self._show = models, starts, checkpoint, show
        self._settings, self._is_named, self._is_interrupted = settings, False, False
        self._keys: list[Hashable] = []
        self._num_rows: list[int] = []
        self._digests: dict[int, np.ndarray] = {}
        self._unwritten: list[Part] = []
        self._written = time.monotonic()
        self._parts = [] if checkpoint is None else checkpoint.parts(self._standing_in(np.arange(1)).results)
        self._known = {
            int(n): d for part in self._parts for n, d in zip(part.numbers, np.asarray(part.digests), strict=True)
        }
        if self._known:
            show(len(self._known), sum(_failed(part) for part in self._parts))

    def enter(self, window: list[HostData]) -> list[HostData]:
        """Those of the window that this process is still to fit."""
        if self._models.number is not None and window[-1].number >= self._models.number:
            raise ValueError(f"there are {self._models.number} models, but more datasets: give one model, or one for each.")
        self._keys += [data.key for data in window]
        self._is_named |= window[0].is_named
        self._num_rows += [int(data.mask.sum()) for data in window]
        mine = [data for data in window if data.number % jax.process_count() == jax.process_index()]
        if self._checkpoint is None:
            return mine
        left = []
        for data in mine:
            if data.number not in self._known and data.place is not None:
                left.append(data)  # whoever reads it sends the digest
                continue
            try:
                self._digests[data.number] = own = data.read().digest()
            except UnreadableError as error:
                raise ValueError(
                    f"{data.name} cannot be compared with the one that the checkpoint was made with ({error}): repair the "
                    "file, or give another folder."
                ) from error
            if data.number not in self._known:
                left.append(data)
            elif not np.array_equal(self._known[data.number], own):
                raise ValueError(
                    f"{data.name} is not the one that the checkpoint was made with: give the same data, another folder, "
                    "or delete that one."
                )
        return left

    def take(self, part: Part) -> None:
        """The results of a block."""
        digests = part.digests
        if digests is None:
            digests = np.stack([self._digests.get(int(n), np.zeros(DIGEST_BYTES, np.uint8)) for n in part.numbers])
        kept = part._replace(digests=digests)
        self._parts.append(kept)
        self._show(len(part.numbers), _failed(part))
        if self._checkpoint is None:
            return
        # Another run is to go on with what has no answer yet.
        unanswered = (Result.interrupted, Result.lost, Result.unreadable)
        done = np.all([np.asarray(part.results.result != why) for why in unanswered], axis=0)
        if done.any():
            self._unwritten.append(jax.tree.map(lambda leaf: leaf[done], kept))
        if time.monotonic() - self._written > _WRITE_EVERY:
            self.flush()

    def miss(self, missing: Mapping[int, Any]) -> None:
        """Datasets without results, and why."""
        for number, why in missing.items():
            self.take(self._standing_in(np.array([number]), why))

    def flush(self) -> None:
        """Write all results so far."""
        if self._checkpoint is not None and self._unwritten:
            self._checkpoint.write(_joined(self._unwritten))
        self._unwritten, self._written = [], time.monotonic()

    def interrupted(self, keys: Sequence[Hashable]) -> None:
        """No more are coming. `keys` are all datasets' names, as far as they are known: those not read are not begun."""
        self._is_interrupted = True
        self._num_rows += [0] * (len(keys) - len(self._keys))
        self._keys += list(keys[len(self._keys) :])

    def fits(self, *, gather: bool) -> Fits:
        """All results so far, in order; of this process, or with `gather` of all. What was not begun is `interrupted`."""
        if not self._is_interrupted:
            self._models.check_number(len(self._keys))
        if any(number >= len(self._keys) for number in self._known) and not self._is_interrupted:
            raise ValueError(
                f"the checkpoint holds results of more than these {len(self._keys)} datasets: give the same data, another "
                "folder, or delete that one."
            )
        own, parts = np.arange(len(self._keys)), self._parts
        if not gather:
            own = own[jax.process_index() :: jax.process_count()]
        elif jax.process_count() > 1:
            parts = _gathered(_joined([*parts, self._standing_in(np.arange(0))]))
        # What a run settles goes before what stands for a fit not begun; of two entries for a dataset the first counts.
        everything = _joined([*parts, self._standing_in(own)])
        numbers, first = np.unique(everything.numbers, return_index=True)
        first = first[np.isin(numbers, own)]
        ended = jax.tree.map(lambda leaf: leaf[first], everything.results)
        rest = eqx.filter(self._models.model, eqx.is_array, inverse=True)
        whole = ended._replace(model=eqx.combine(ended.model, rest), at_bound=eqx.combine(ended.at_bound, rest))
        return Fits(
            **whole._asdict(),
            num_rows=np.array(self._num_rows, np.int32)[own],
            keys=tuple(self._keys[i] for i in own),
            is_named=self._is_named,
            settings=self._settings,
        )

    def _standing_in(self, numbers: np.ndarray, result: Any = Result.interrupted) -> Part:
        """What stands for fits without an answer."""
        model = eqx.filter(self._models.taken(numbers), eqx.is_array)
        shape, dtype = numbers.shape, self._models.dtype
        ended = Ended(
            model=model,
            value=np.full(shape, np.nan, dtype),
            result=as_result(np.full(shape, np.asarray(result._value))),
            num_steps=np.zeros(shape, np.int32),
            gradient_norm=np.full(shape, np.inf, dtype),
            at_bound=jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool) if eqx.is_inexact_array(leaf) else leaf, model),
            jitter=np.zeros(shape, dtype),
            start_values=np.full((*shape, self._starts), np.inf, dtype),
        )
        return Part(numbers, ended, np.zeros((*shape, DIGEST_BYTES), np.uint8))


def _failed(part: Part) -> int:
    return int(np.sum(np.asarray(part.results.result != Result.successful)))


def _joined(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)


def _gathered(part: PyTree) -> list[PyTree]:
    """The trees of NumPy arrays of all processes, of which this one gives its own.

    All arrays have one leading axis, whose length may differ between processes. All processes must call.
    """
    count = len(jax.tree.leaves(part)[0])
    counts = multihost_utils.process_allgather(np.asarray(count)).reshape(-1)
    longest = int(counts.max())

    def filled(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((longest - count, *leaf.shape[1:]), leaf.dtype)])

    everybodys = multihost_utils.process_allgather(jax.tree.map(filled, part))
    return [
        jax.tree.map(lambda leaf, process=process, own=own: np.asarray(leaf)[process, :own], everybodys)
        for process, own in enumerate(counts)
    ]
