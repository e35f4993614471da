"""Labels −1 and +1: what is refused eagerly, and what a status tells under tracing."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from kernax._arrays import is_concrete
from kernax.data import Data


def check_signs(data: Data, caller: str) -> None:
    """Refuse labels other than −1 and +1 in rows that count; silent on traced values."""
    if data.y.ndim != 1:
        raise ValueError(f"{caller} wants one label a row, y of shape (n,), got {data.y.shape}.")
    if not (is_concrete(data.y) and is_concrete(data.mask)):
        return
    found = np.unique(np.asarray(data.y)[np.asarray(data.mask)])
    if not np.isin(found, (-1.0, 1.0)).all():
        shown = ", ".join(f"{label:g}" for label in found[:6]) + (", …" if len(found) > 6 else "")
        raise ValueError(
            f"{caller} wants the labels -1 and +1 in y, got {shown}: for two classes write np.where(labels == "
            f"{found[-1]:g}, 1.0, -1.0), for more use learners.one_against_rest."
        )


def are_signs(data: Data) -> Bool[Array, ""]:
    """Whether every label that counts is −1 or +1."""
    return jnp.all(~data.mask | (jnp.abs(data.y) == 1))
