"""Trees of arrays in few arrays, so that programs of fits have few arguments and copies."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

Vectors = tuple[Any, ...]
"""A packed tree: arrays of JAX or NumPy, one for each type of number."""


class Packing(NamedTuple):
    """How a tree of arrays is laid into one vector for each type of number, and back.

    XLA copies each array that a map over lanes reads or writes by a program of its own, which has to be compiled: a state of
    thirty arrays would cost as much as the fit itself. Vectors are also easily moved from lane to lane.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype, ...]
    keys: tuple[str | None, ...]
    """For a leaf of random keys (some optimisers have one), what kind of key it is."""
    members: tuple[tuple[int, ...], ...]
    """For each vector, the leaves that it holds."""

    @classmethod
    def of(cls, tree: PyTree, *, alone: Any = None) -> "Packing":
        """That of trees like this one (arrays, or what `jax.eval_shape` gives). The leaf `alone` gets the last vector."""
        leaves, structure = jax.tree.flatten(tree)
        numbers = [jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf for leaf in leaves]
        shapes, types = tuple(tuple(leaf.shape) for leaf in numbers), tuple(leaf.dtype for leaf in numbers)
        members: dict[Any, list[int]] = {}
        for i, leaf in enumerate(leaves):
            members.setdefault("alone" if leaf is alone else types[i], []).append(i)
        last = [members.pop("alone")] if alone is not None else []
        keys = tuple(str(jax.random.key_impl(jnp.zeros((), leaf.dtype))) if _is_key(leaf) else None for leaf in leaves)
        return cls(structure, shapes, types, keys, tuple(map(tuple, [*members.values(), *last])))

    def zeros(self, count: int) -> Vectors:
        """That many packed trees of zeros, on the host."""
        sizes = [sum(math.prod(self.shapes[i]) for i in own) for own in self.members]
        return tuple(np.zeros((count, size), self.types[own[0]]) for size, own in zip(sizes, self.members, strict=True))

    def pack(self, tree: PyTree, xp: Any = jnp) -> Vectors:
        """The tree as vectors of JAX, or with `xp=np` of NumPy, without a program of JAX."""
        leaves = [xp.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)]
        return tuple(xp.concatenate([leaves[i].reshape(-1) for i in own]) for own in self.members)

    def unpack(self, vectors: Vectors) -> PyTree:
        """The tree again; vectors may have leading axes (NumPy's as well as JAX's)."""
        leaves: list[Any] = [None] * len(self.shapes)
        for vector, own in zip(vectors, self.members, strict=True):
            offset = 0
            for i in own:
                size = math.prod(self.shapes[i])
                piece = vector[..., offset : offset + size]
                piece = piece.reshape(vector.shape[:-1] + self.shapes[i])
                leaves[i] = piece if self.keys[i] is None else jax.random.wrap_key_data(piece, impl=self.keys[i])
                offset += size
        return jax.tree.unflatten(self.structure, leaves)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
