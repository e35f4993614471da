"""Weak learners from a list of functions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax._arrays import matmul
from kernax.learners._members import AbstractMembers
from kernax.learners._splits import rounding
from kernax.parameters import as_function
from kernax.rows import Rows


class Entry(eqx.Module):
    """The function at `index` of the dictionary, times `sign`."""

    index: Int[Array, ""]
    sign: Float[Array, ""]


class Dictionary(AbstractMembers):
    """Weak learners `±sign g(x)`, for every function g in a list.

    The functions are evaluated once at the data; after that a round costs O(n) for each function. Of equally good functions
    the first in the list is chosen. The same function objects are not compiled again.

    **Arguments:**

    - `functions`: the functions g. Each maps one point, of any structure, to one number. The sign of 0 is +1.
    """

    functions: tuple[Any, ...]

    def __init__(self, functions: Any):
        self.functions = tuple(as_function(function) for function in functions)
        if not self.functions:
            raise ValueError("Dictionary needs at least one function.")

    def prepare(self, x: Rows) -> Float[Array, "k n"]:
        return jnp.stack([_signs(function, x) for function in self.functions])

    def best(self, prepared: Float[Array, "k n"], y: Float[Array, " n"], weights: Float[Array, " n"]) -> Entry:
        edges = matmul(prepared, weights * y)
        sizes = jnp.abs(edges)
        index = jnp.argmax(sizes >= jnp.max(sizes) - rounding(weights)).astype(jnp.int32)
        return Entry(index, jnp.where(edges[index] >= 0, 1.0, -1.0).astype(y.dtype))

    def values(self, member: Entry, x: Rows) -> Float[Array, " m"]:
        branches = [lambda rows, function=function: _signs(function, rows) for function in self.functions]
        return member.sign * jax.lax.switch(member.index, branches, x)


def _signs(function: Any, x: Rows) -> Float[Array, " m"]:
    values = jax.vmap(function)(x)
    if not isinstance(values, jax.Array) or values.ndim != 1:
        raise ValueError("each function of a Dictionary must return one number for one point.")
    dtype = jax.tree.leaves(x)[0].dtype
    return jnp.where(values >= 0, 1.0, -1.0).astype(dtype)
