"""Many models conditioned on their datasets."""

from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from kernax.solvers import FailedError


class ConditionedMany:
    """Many models, each conditioned on its dataset. `many[i]` is a `Conditioned`.

    Its dataset is padded: `c.data.mask` marks the original rows, and the other entries of a result with one entry for each
    row (`kx.loo_residuals(c)`) are 0. Datasets of the same shape are kept in one batch. `many.batches` has the numbers of
    the datasets, and a `Conditioned` with a leading axis for `jax.vmap`. `many.missing` has the results of datasets that are
    in no batch, because they were `lost` with a worker process or are `unreadable`; `many[i]` raises `kx.FailedError` for
    those.
    """

    def __init__(self, batches: list[tuple[np.ndarray, Any]], missing: Mapping[int, Any]):
        self.batches = batches
        self.missing = missing
        self._places = {int(n): (batch, i) for batch, (numbers, _) in enumerate(batches) for i, n in enumerate(numbers)}

    def __len__(self):
        return len(self._places) + len(self.missing)

    def __getitem__(self, which: int) -> Any:
        number = int(which) + (len(self) if which < 0 else 0)
        if number in self.missing:
            raise FailedError(f"conditioning on dataset {number}", self.missing[number])
        if number not in self._places:
            raise IndexError(f"there are {len(self)} datasets, and none has the number {which}.")
        batch, place = self._places[number]
        arrays, rest = eqx.partition(self.batches[batch][1], eqx.is_array)
        return eqx.combine(jax.device_put(jax.tree.map(lambda leaf: leaf[place], arrays)), rest)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return f"ConditionedMany({len(self)} datasets in {len(self.batches)} shapes)"
