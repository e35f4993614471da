"""Targets of which each output is observed in its own rows."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import is_concrete


class Gaps(eqx.Module):
    """The rows in which each output is observed. Outputs that are observed in the same rows form a group."""

    masks: Bool[Array, "g n"]
    """The observed rows of each group."""
    members: Int[Array, "g m"]
    """The outputs of each group. Smaller groups are filled up with output 0, and what is computed for it is not used."""
    places: Int[Array, " p"]
    """Where each output stands in `members`, counted row by row."""

    @property
    def group(self) -> Int[Array, " p"]:
        """The group of each output."""
        return self.places // self.members.shape[1]

    @property
    def observed(self) -> Bool[Array, "n p"]:
        """Which entries of y are observed."""
        return self.masks[self.group].T

    def grouped(self, columns: Float[Array, "n p"]) -> Float[Array, "g n m"]:
        """The columns of each group."""
        return jnp.moveaxis(columns[:, self.members], 1, 0)

    def joined(self, values: Float[Array, "g *a m"]) -> Float[Array, "*a p"]:
        """What was computed for the members of each group, output by output."""
        values = jnp.moveaxis(values, 0, -2)
        return values.reshape(*values.shape[:-2], -1)[..., self.places]


def rows_and_gaps(observed: Bool[Array, "n p"]) -> tuple[Bool[Array, " n"], Gaps | None]:
    """Which rows hold an observed entry, and the gaps; `None` if all outputs are known to share their rows.

    In a mask that is being traced, every output is a group.
    """
    outputs = observed.shape[1]
    if not is_concrete(observed):
        each = np.arange(outputs)
        return jnp.any(observed, axis=1), Gaps(observed.T, jnp.asarray(each[:, None]), jnp.asarray(each))
    table = np.asarray(observed)
    masks, group = np.unique(table.T, axis=0, return_inverse=True)
    if len(masks) == 1:
        return jnp.asarray(masks[0]), None
    groups = [np.flatnonzero(group.reshape(-1) == i) for i in range(len(masks))]
    members = np.zeros((len(masks), max(len(own) for own in groups)), int)
    places = np.zeros(outputs, int)
    for i, own in enumerate(groups):
        members[i, : len(own)] = own
        places[own] = i * members.shape[1] + np.arange(len(own))
    return jnp.asarray(table.any(axis=1)), Gaps(jnp.asarray(masks), jnp.asarray(members), jnp.asarray(places))


def refuse_gaps(data: Any, caller: str) -> None:
    """Raise `ValueError` if the outputs of a dataset are not observed in the same rows.

    **Arguments:**

    - `data`: a `Data`.
    - `caller`: the name of the function that needs outputs with the same rows, for the message.

    **Returns:**

    `None`.
    """
    if data.gaps is not None:
        raise ValueError(needs_same_rows(caller))


def needs_same_rows(what: str) -> str:
    """The error message for a quantity that is not available for outputs observed in different rows.

    **Arguments:**

    - `what`: the name of the quantity or function, which begins the message.

    **Returns:**

    The message.
    """
    return (
        f"{what} needs outputs that are observed in the same rows: take one output at a time, "
        "kx.Data(x, y[:, j], mask[:, j])."
    )
