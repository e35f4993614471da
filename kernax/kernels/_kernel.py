"""What a kernel is: a similarity of two points, and the matrices made of it."""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from kernax._arrays import as_floats
from kernax.parameters import Parametrised, as_dtype

Rows = PyTree[Array]
"""Points: an `(n, d)` array, or any pytree of arrays with a leading row axis."""


class AbstractKernel(Parametrised):
    """A symmetric, positive semi-definite function of two points (splines: up to what they leave free, `is_conditional`).

    `pair` is the definition and all that a kernel of one's own needs. `gram` and `diag` follow from it; a kernel that
    knows a faster way to the same numbers replaces them.
    """

    if TYPE_CHECKING:
        # What a sum or a deep kernel is made of is known only when it is there: `model.kernel.kernels[0].variance`.
        def __getattr__(self, name: str) -> Any: ...

    # NumPy would otherwise take `array * kernel` apart, entry by entry.
    __array_ufunc__ = None

    @abc.abstractmethod
    def pair(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, ""]:
        """`k(a, b)` for two points."""

    def gram(self, x: Rows, z: Rows | None) -> Float[Array, "n m"]:
        """`k(x_i, z_j)` for all rows; `z = None` means `x` itself, and then the diagonal is exact."""
        other = x if z is None else z
        return jax.vmap(lambda a: jax.vmap(lambda b: self.pair(a, b))(other))(x)

    def diag(self, x: Rows) -> Float[Array, " n"]:
        """`k(x_i, x_i)` for all rows, in O(n)."""
        return jax.vmap(self.pair)(x, x)

    @property
    def is_conditional(self) -> bool:
        """Whether the kernel is definite only up to functions that it leaves free (splines and their polynomials)."""
        return False

    def free_part(self, x: Rows, known: Rows, mask: Bool[Array, " n"]) -> Float[Array, "m q"]:
        """For a conditional kernel: the values at x of the functions, besides the constant, that cost nothing.

        They are to be scaled to order 1 on the `known` rows that count. See `free_functions`.
        """
        raise TypeError(f"{self!r} leaves no function free.")

    def initialised(self, x: Rows, mask: Bool[Array, " n"], variance: Float[Array, ""]) -> "AbstractKernel":
        """This kernel with starting values that suit the data; by default as it is. See `kernax.initialise`."""
        del x, mask, variance
        return self

    def __call__(self, x: Any, z: Any = None) -> Float[Array, "n m"]:
        """The Gram matrix of `x`, or the cross-Gram matrix of `x` and `z`, in their floating type."""
        x = as_rows(x, "x")
        if z is None:
            return as_dtype(self, jnp.result_type(*jax.tree.leaves(x))).gram(x, None)
        z = as_rows(z, "z")
        check_same_columns(z, x, "z", "x")
        return as_dtype(self, jnp.result_type(*jax.tree.leaves((x, z)))).gram(x, z)

    def __add__(self, other: Any) -> "AbstractKernel":
        from kernax.kernels._algebra import added

        return added(self, other)

    def __mul__(self, other: Any) -> "AbstractKernel":
        from kernax.kernels._algebra import multiplied

        return multiplied(self, other)

    def __pow__(self, exponent: Any) -> "AbstractKernel":
        from kernax.kernels._algebra import Power

        return Power(self, exponent)

    __radd__ = __add__
    __rmul__ = __mul__


def free_functions(kernel: AbstractKernel, x: Rows, known: Rows, mask: Bool[Array, " n"]) -> Float[Array, "m q"]:
    """The values at x of all functions that a conditional kernel leaves free, the constant first."""
    others = kernel.free_part(x, known, mask)
    return jnp.concatenate([jnp.ones((num_rows(x), 1), others.dtype), others], axis=1)


def as_rows(x: Any, name: str, one: str = "") -> Rows:
    """`x` as points with a leading row axis; a bare vector is refused, since it might mean one point or many."""
    if not isinstance(x, dict | tuple) and not isinstance(x, eqx.Module):
        x = as_floats(x, name)
        if x.ndim < 2:
            remedy = f"write {name}[:, None]" if x.ndim == 1 else f"write {name}.reshape(1, 1)"
            remedy += f" ({name}[None, :] if {one})" if one and x.ndim == 1 else ""
            raise ValueError(f"{name} has shape {x.shape}; kernax wants (n, d): {remedy}.")
        return x
    return jax.tree.map(lambda leaf: as_floats(leaf, f"a leaf of {name}"), x)


def check_same_columns(rows: Any, known: Any, name: str, known_name: str) -> None:
    """Refuse rows that differ from known ones in structure or width: broadcasting would hide the mistake."""
    ours, theirs = jax.tree.structure(rows), jax.tree.structure(known)
    if ours != theirs:
        raise ValueError(f"{name} has the structure {ours}, but {known_name} has {theirs}.")
    for leaf, other in zip(jax.tree.leaves(rows), jax.tree.leaves(known), strict=True):
        if leaf.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"{name} has {_columns(leaf)}, but {known_name} has {_columns(other)}: give both the same columns."
            )


def _columns(leaf: Any) -> str:
    return f"{leaf.shape[1]} columns" if leaf.ndim == 2 else f"rows of shape {leaf.shape[1:]}"


def num_rows(x: Any, name: str = "x") -> int:
    """The common number of rows of all arrays in `x`."""
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(x)}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(f"{name} must hold arrays with one common number of rows, got {sizes or 'no arrays'}.")
    return sizes.pop()
