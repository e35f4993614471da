"""Answers for many test rows in bounded memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kernax._arrays import check_finite
from kernax.data import Data
from kernax.kernels import Rows, as_rows, check_same_columns, num_rows
from kernax.model import check_conditioned

_ENTRIES = 2**23
"""Entries of the largest cross-Gram block: 64 MB in float64."""


def new_rows(c: Any, x: Any, name: str = "x") -> Rows:
    """Test inputs checked against the inputs the model was conditioned on, in their floating type."""
    check_conditioned(c)
    return rows_like(c.data, x, name)


def rows_like(data: Data, x: Any, name: str = "x") -> Rows:
    """New rows with the columns and the floating type of the data's."""
    x = as_rows(x, name, one="one new point is a row of its own")
    check_same_columns(x, data.x, name, "the data the model was conditioned on")
    for leaf in jax.tree.leaves(x):
        check_finite(leaf, name)
    return jax.tree.map(lambda leaf: leaf.astype(data.dtype), x)


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
