"""Committees by vote."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import as_floats, is_concrete, matmul


def sign(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """−1 or +1, and +1 for 0, the tie; NaN stays NaN."""
    return jnp.where(jnp.isnan(values), values, jnp.where(values >= 0, 1.0, -1.0).astype(values.dtype))


def majority_vote(values: Any, weights: Any = None) -> Float[Array, "*m"]:
    """The decision of a committee: `sign Σₜ wₜ fₜ(x)`. A tie gives +1.

    **Arguments:**

    - `values`: the members' votes, −1 or +1, of shape (T, m) or (T,).
    - `weights`: non-negative weights of the members; `None` gives each member one vote.

    **Returns:**

    −1 or +1 for every point.
    """
    values = as_floats(values, "values")
    if values.ndim not in (1, 2) or values.shape[0] == 0:
        raise ValueError(f"values has shape {values.shape}; votes need (T, m) or (T,), one row for each member.")
    if is_concrete(values) and not np.all(np.abs(values) == 1):
        raise ValueError("members vote −1 or +1, and values has other numbers: take np.where(values >= 0, 1, -1).")
    if weights is None:
        return sign(jnp.sum(values, axis=0))
    weights = as_floats(weights, "weights")
    if weights.shape != values.shape[:1]:
        raise ValueError(f"weights must be one number for each of {values.shape[0]} members, got shape {weights.shape}.")
    if is_concrete(weights) and not (np.isfinite(weights).all() and (np.asarray(weights) >= 0).all()):
        raise ValueError("weights of votes must be finite and 0 or more.")
    return sign(matmul(weights.astype(values.dtype), values))
