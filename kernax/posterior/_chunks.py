"""Answers for many test rows in bounded memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kernax._arrays import check_finite
from kernax.kernels import Rows, as_rows, num_rows
from kernax.model import Conditioned

_ENTRIES = 2**23
"""Entries of the largest cross-Gram block: 64 MB in float64."""


def test_rows(c: Conditioned, x: Any) -> Rows:
    """Test inputs checked against the inputs the model was conditioned on, in their floating type."""
    x = as_rows(x, "x")
    seen, new = jax.tree.structure(c.data.x), jax.tree.structure(x)
    if seen != new:
        raise ValueError(f"x has the structure {new}, but the model was conditioned on {seen}.")
    for leaf, known in zip(jax.tree.leaves(x), jax.tree.leaves(c.data.x), strict=True):
        if leaf.shape[1:] != known.shape[1:]:
            raise ValueError(
                f"x has rows of shape {leaf.shape[1:]}, but the model was conditioned on rows of shape {known.shape[1:]}."
            )
        check_finite(leaf, "x")
    return jax.tree.map(lambda leaf: leaf.astype(c.data.dtype), x)


def map_rows(function: Callable[[Rows], Any], x: Rows, width: int) -> Any:
    """`function` of blocks of rows, joined; a block makes at most `_ENTRIES` numbers if each row makes `width`."""
    rows = num_rows(x)
    block = max(1, min(rows, _ENTRIES // max(width, 1)))
    blocks = -(-rows // block)
    if blocks <= 1:
        return function(x)
    # Equal blocks, so that little is computed on the padding of the last one.
    block = -(-rows // blocks)

    def folded(leaf):
        padding = jnp.broadcast_to(leaf[:1], (blocks * block - rows, *leaf.shape[1:]))
        return jnp.concatenate([leaf, padding]).reshape(blocks, block, *leaf.shape[1:])

    answers = jax.lax.map(function, jax.tree.map(folded, x))
    return jax.tree.map(lambda leaf: leaf.reshape(blocks * block, *leaf.shape[2:])[:rows], answers)
