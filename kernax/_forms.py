"""Trying a module with one row, without numbers: whether it takes rows of such a form."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from kernax._stored import is_stored


def form_of(tree: Any) -> Any:
    """Shapes and types in the place of arrays, which may be in a file."""

    def form(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf

    return jax.tree.map(form, tree, is_leaf=is_stored)


def try_one_row(call: Callable[[Any, Any], Any], module: Any, x: Any) -> None:
    """Run `call(module, row)` without numbers, so that it raises what it would raise.

    **Arguments:**

    - `call`: a function of a module and a row.
    - `module`: the module.
    - `x`: rows.
    """
    row = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), form_of(x))
    leaves, structure = jax.tree.flatten((form_of(module), row))
    _try(call, structure, tuple(leaves))


@functools.lru_cache(maxsize=256)
def _try(call: Callable[[Any, Any], Any], structure: Any, leaves: tuple[Any, ...]) -> None:
    # Thousands of datasets have rows of one form.
    eqx.filter_eval_shape(call, *jax.tree.unflatten(structure, leaves))
