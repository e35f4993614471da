"""Compiling the programs of eager fits: faster than XLA would by itself, and with the state in few arrays."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def compiled(function: Callable[..., Any], *, for_lanes: bool = False) -> Callable[..., Any]:
    """`eqx.filter_jit` for programs of fits, which are called eagerly only.

    `for_lanes` is for those that run in a thread for each core: their matrix products are to have one thread each, as BLAS
    does (handing small products to a pool costs more than they do: with 8 columns a third of the time).
    """

    @functools.cache
    def program() -> Callable[..., Any]:
        # Not at import, which must start no device.
        settings: dict[str, Any] = {"compiler_options": _compiler_options(for_lanes)}
        return eqx.filter_jit(function, **settings)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return program()(*args)

    return call


@functools.cache
def _compiler_options(for_lanes: bool) -> dict[str, Any] | None:
    """On CPU, options that make XLA compile a fit's loop 2.5 times as fast (0.95 s for 2.4 s), to code that runs as fast.

    The loop is a hundred small programs, each of which XLA's newer emitter and the higher levels of LLVM take 15 ms to
    compile. An XLA that does not know the options goes without.
    """
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
    if for_lanes:
        options["xla_cpu_multi_thread_eigen"] = False
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except (RuntimeError, ValueError):
        return None
    return options


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

    @classmethod
    def of(cls, tree: PyTree) -> "Packing":
        """That of trees like this one (arrays, or what `jax.eval_shape` gives)."""
        leaves, structure = jax.tree.flatten(tree)
        numbers = [jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf for leaf in leaves]
        shapes, types = tuple(tuple(leaf.shape) for leaf in numbers), tuple(leaf.dtype for leaf in numbers)
        return cls(structure, shapes, types, tuple(_implementation(leaf) for leaf in leaves))

    @property
    def _groups(self) -> list[tuple[Any, list[int]]]:
        kinds = dict.fromkeys(self.types)
        return [(kind, [i for i, own in enumerate(self.types) if own == kind]) for kind in kinds]

    def zeros(self, count: int) -> Vectors:
        """That many packed trees of zeros, on the host."""
        sizes = [sum(int(np.prod(self.shapes[i], dtype=int)) for i in members) for _, members in self._groups]
        return tuple(np.zeros((count, size), kind) for size, (kind, _) in zip(sizes, self._groups, strict=True))

    def pack(self, tree: PyTree) -> Vectors:
        """The tree as vectors."""
        leaves = [_as_numbers(leaf) for leaf in jax.tree.leaves(tree)]
        return tuple(jnp.concatenate([leaves[i].reshape(-1) for i in members]) for _, members in self._groups)

    def unpack(self, vectors: Vectors) -> PyTree:
        """The tree again; vectors may have leading axes (NumPy's as well as JAX's)."""
        leaves: list[Any] = [None] * len(self.shapes)
        for vector, (_, members) in zip(vectors, self._groups, strict=True):
            offset = 0
            for i in members:
                size = int(np.prod(self.shapes[i], dtype=int))
                piece = vector[..., offset : offset + size]
                piece = piece.reshape(vector.shape[:-1] + self.shapes[i])
                leaves[i] = piece if self.keys[i] is None else jax.random.wrap_key_data(piece, impl=self.keys[i])
                offset += size
        return jax.tree.unflatten(self.structure, leaves)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_numbers(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _implementation(leaf: Any) -> str | None:
    return str(jax.random.key_impl(jnp.zeros((), leaf.dtype))) if _is_key(leaf) else None
