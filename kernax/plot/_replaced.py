"""Models with some parameters changed, or held."""

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax


def replaced(model: Any, changes: Mapping[int, Any]) -> Any:
    """The model with other arrays for some parameters, each named by its place in `kx.parameters.parameters(model)`."""
    leaves, structure = jax.tree.flatten(model)
    places = [i for i, leaf in enumerate(leaves) if eqx.is_inexact_array(leaf)]
    for place, array in changes.items():
        leaves[places[place]] = array
    return jax.tree.unflatten(structure, leaves)


def all_but(model: Any, held: Iterable[int]) -> Any:
    """The tree of booleans in which the parameters at these places are held and all others are free."""
    return jax.tree.map(eqx.is_inexact_array, replaced(model, dict.fromkeys(held, False)))
