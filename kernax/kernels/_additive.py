"""Sums over columns, pairs of columns, triples of columns, …"""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import as_floats, whole_number
from kernax.kernels._algebra import refuse_spline
from kernax.kernels._inputs import Select
from kernax.kernels._kernel import AbstractKernel
from kernax.parameters import Parameter, positive

_MOST_PRODUCTS = 2048
"""Products of columns of one order that random waves are drawn for."""


class Additive(AbstractKernel):
    """Interactions up to an order: `Σ_q v_q e_q(z_1, …, z_d)`, with a kernel `z_k = k_k(a_k, b_k)` for each column.

    Use it for many columns if most effects are those of single columns or of small sets of columns.

    `e_q` is the sum over all products of q different columns' kernels (Duvenaud, Nickisch and Rasmussen, 2011): the
    functions are sums of functions of one column, of two columns, and so on. Positive definite. It costs `d · order`
    products, by the recursion `e_q ← e_q + z_k e_(q-1)` over columns, in which nothing cancels.

    `kx.components(c, x)` has one component for each order. For components of single columns see
    [`kernax.kernels.OrthogonalAdditive`][].

    **Arguments:**

    - `kernels`: a kernel of one column for each column; or one kernel, which is copied for each of `columns` columns.
    - `order`: the highest order.
    - `columns`: the number of columns, if one kernel is given.
    - `variance`: v, one number for each order; 1/order each by default.
    """

    kernels: tuple[AbstractKernel, ...]
    orders: tuple[int, ...] = eqx.field(static=True)
    variance: Float[Parameter, " orders"] = positive(unit="y²")

    def __init__(self, kernels: Any, order: int = 2, *, columns: int | None = None, variance: Any = None):
        own = check_columns(kernels, columns, "Additive")
        order = whole_number(order, "Additive.order")
        if order > len(own):
            raise ValueError(
                f"Additive.order is {order}, but there are {len(own)} columns: give an order of at most {len(own)}."
            )
        for kernel in own:
            refuse_spline(kernel, "a product")
        self.kernels = tuple(Select(kernel, columns=k) for k, kernel in enumerate(own))
        self.orders = tuple(range(1, order + 1))
        self.variance = jnp.full(order, 1.0 / order) if variance is None else as_floats(variance, "Additive.variance")
        if self.variance.shape != (order,):
            raise ValueError(f"Additive.variance needs {order} numbers, one for each order, got {self.variance.shape}.")

    def pair(self, a, b):
        self._check(a.shape[-1])
        return self._sum([k.pair(a, b) for k in self.kernels])

    def gram(self, x, z):
        self._check(x.shape[1])
        return self._sum([k.gram(x, z) for k in self.kernels])

    def diag(self, x):
        self._check(x.shape[1])
        return self._sum([k.diag(x) for k in self.kernels])

    def waves(self, x, number, seed):
        # Every wave belongs to one product of columns, whose angles add up. Each product gets as many as the others, or one
        # more, so that the mean is right for every number of them.
        self._check(x.shape[1])
        angles, variances = [], []
        for variance, order in zip(self.variance, self.orders, strict=True):
            chosen = list(itertools.combinations(range(len(self.kernels)), order))
            if len(chosen) > _MOST_PRODUCTS:
                return None
            each = max(number, len(chosen))
            found = [k.waves(x, each, (*seed, i)) for i, k in enumerate(self.kernels)]
            parts = [part for part in found if part is not None and part[1].shape == (each,)]
            if len(parts) < len(found):
                return None
            owner = np.arange(each) % len(chosen)
            member = np.array([[k in columns for columns in chosen] for k in range(len(self.kernels))])[:, owner]
            angles.append(sum(np.where(own, 1.0, 0.0) * part[0] for own, part in zip(member, parts, strict=True)))
            share = variance / np.bincount(owner)[owner]
            for is_member, part in zip(member, parts, strict=True):
                share = share * jnp.where(is_member, each * part[1], 1.0)
            variances.append(share)
        return jnp.concatenate(angles, axis=1).astype(x.dtype), jnp.concatenate(variances).astype(x.dtype)

    def coordinates(self, x):
        known = [part for part in (k.coordinates(x) for k in self.kernels) if part is not None]
        return jnp.concatenate(known, axis=1) if known else None

    def summands(self):
        parts = [(self.orders[i : i + 1], self.variance[i : i + 1]) for i in range(len(self.orders))]
        return tuple(_with_orders(self, orders, variance) for orders, variance in parts)

    def initialised(self, x, mask, variance):
        # At first every order explains the same share of the variance: of order q there are so many products.
        one = jnp.ones_like(variance)
        counts = elementary_sums([one for _ in self.kernels], one, max(self.orders))
        shares = jnp.stack([variance / (len(self.orders) * counts[order]) for order in self.orders])
        kernels = tuple(k.initialised(x, mask, jnp.ones_like(variance)) for k in self.kernels)
        return eqx.tree_at(lambda k: (k.kernels, k.variance), self, (kernels, shares))

    def __repr__(self):
        named = ", ".join(f"order {order}" for order in self.orders)
        return f"Additive({', '.join(repr(k.kernel) for k in self.kernels)}; {named})"  # pyright: ignore

    def _sum(self, values: list[Array]) -> Array:
        sums = elementary_sums(values, jnp.ones_like(values[0]), max(self.orders))
        return sum(
            (v * sums[order] for v, order in zip(self.variance[1:], self.orders[1:], strict=True)),
            self.variance[0] * sums[self.orders[0]],
        )

    def _check(self, width: int) -> None:
        if width != len(self.kernels):
            raise ValueError(f"Additive has kernels for {len(self.kernels)} columns, but the inputs have {width}.")


def _with_orders(kernel: Additive, orders: tuple[int, ...], variance: Float[Array, " orders"]) -> Additive:
    """The same kernel with some of the orders only."""
    part = object.__new__(Additive)
    values = {"kernels": kernel.kernels, "settings": kernel.settings, "orders": orders, "variance": variance}
    for name, value in values.items():
        object.__setattr__(part, name, value)
    return part


def check_columns(kernels: Any, columns: int | None, name: str) -> tuple[AbstractKernel, ...]:
    """A kernel for each column, from a sequence of them or from one kernel and the number of columns."""
    several = isinstance(kernels, Sequence)
    if several == (columns is not None):
        raise ValueError(f"{name} needs a kernel for each column, or one kernel and the number of columns.")
    return tuple(kernels) if several else (kernels,) * whole_number(columns, f"{name}.columns")


def elementary_sums(values: list[Array], one: Array, highest: int) -> list[Array]:
    """`e_0, e_1, …`: the sums over all products of so many different values, by a recursion over the values.

    **Arguments:**

    - `values`: arrays of one shape.
    - `one`: ones of that shape, which is `e_0`.
    - `highest`: the highest order.

    **Returns:**

    An array for each order.
    """
    sums = [one] + [jnp.zeros_like(one)] * highest
    for value in values:
        # From the highest order down, so that a value enters each product once.
        for order in range(highest, 0, -1):
            sums[order] = sums[order] + value * sums[order - 1]
    return sums
