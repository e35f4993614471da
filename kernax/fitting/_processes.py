"""Results of several processes (`jax.distributed`), brought together."""

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree


def gathered(part: PyTree) -> list[PyTree]:
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
