"""Predictions from the nearest rows alone (local kriging), and which rows those are."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax.grams import AbstractGram
from kernax.kernels import AbstractKernel
from kernax.rows import Rows, as_rows, map_rows, num_rows, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._cholesky import RawCholesky
from kernax.solvers._conditionals import Entries, factored
from kernax.solvers._neighbours import nearest, nearest_by

Coordinates = Callable[[Any], Any] | None
"""A function from rows to an `(n, q)` array; `None` for the kernel's own coordinates."""


class Near(eqx.Module):
    """New rows, and the numbers of the rows nearest to each; -1 stands for no row."""

    rows: Rows
    numbers: Int[Array, "k m"]


def with_nearest(gram: AbstractGram, x: Rows, number: int, given: Coordinates = None) -> Near:
    """New rows with the rows nearest to each.

    **Arguments:**

    - `gram`: K over the rows that are searched.
    - `x`: new rows.
    - `number`: how many to find.
    - `given`: coordinates in which rows are close, instead of the kernel's own.

    **Returns:**

    The new rows and what was found. For a kernel without coordinates, those with the largest correlation.
    """
    known, before, number = take(gram.x), jnp.full(num_rows(x), gram.n), min(number, gram.n)
    points, new = coordinates(gram.kernel, known, given), coordinates(gram.kernel, x, given)
    if points is None or new is None:
        found = nearest_by(lambda some: dissimilarity(gram.kernel, some, known), gram.mask, x, before, number)
    else:
        found = nearest(points, gram.mask, new, before, number)
    return Near(x, found)


def rows_near_any(gram: AbstractGram, x: Rows, number: int, given: Coordinates = None) -> Int[Array, " k"]:
    """The numbers of the rows that are nearest to any of the new rows; -1 where there are fewer rows that count."""
    known, m = take(gram.x), num_rows(x)
    points, new = coordinates(gram.kernel, known, given), coordinates(gram.kernel, x, given)
    if points is None or new is None:
        far = map_rows(lambda some: jnp.min(dissimilarity(gram.kernel, some, x), axis=1), known, m)
    else:
        closest = nearest(new, jnp.ones(m, bool), points, jnp.full(gram.n, m), 1)[:, 0]
        far = jnp.sum((points - new[closest]) ** 2, axis=1)
    found, places = jax.lax.top_k(-jnp.where(gram.mask, jax.lax.stop_gradient(far), jnp.inf), min(number, gram.n))
    return jnp.where(jnp.isfinite(found), places, -1)


def coordinates(kernel: AbstractKernel, x: Rows, given: Coordinates) -> Float[Array, "n q"] | None:
    """The coordinates of rows, without a derivative; `None` if the kernel has none."""
    found = kernel.coordinates(x) if given is None else as_rows(given(x), "coordinates")
    return None if found is None else jax.lax.stop_gradient(found)


def dissimilarity(kernel: AbstractKernel, x: Rows, z: Rows) -> Float[Array, "n m"]:
    """One less the squared correlation of each pair of rows."""
    size = kernel.diag(x)[:, None] * kernel.diag(z)[None, :]
    return 1.0 - kernel.gram(x, z) ** 2 / jnp.where(size > 0, size, 1.0)


def known_rows(
    gram: AbstractGram, noise: Float[Array, "*n"], places: Int[Array, "k m"]
) -> tuple[Float[Array, "k m m"], Float[Array, "k m m"], Rows]:
    """The matrices `K + noise·I` of several sets of rows, their upper factors, and the rows of all sets in turn."""
    entries = Entries(gram.kernel, take(gram.x), noise, jnp.zeros((gram.n, 0), noise.dtype))
    matrices, uppers, _ = factored(entries.of(places)[0], places >= 0)
    return matrices, uppers, take(gram.x, jnp.maximum(places, 0).reshape(-1))


def predicted(
    gram: AbstractGram, noise: Float[Array, "*n"], x: Near, columns: Float[Array, "n p"]
) -> tuple[Float[Array, "k p"], Float[Array, " k"]]:
    """Mean and variance of each new row, given the targets `columns` of its neighbours."""
    places = x.numbers
    matrices, uppers, known = known_rows(gram, noise, places)
    sets = jax.tree.map(lambda leaf: leaf.reshape(*places.shape, *leaf.shape[1:]), known)
    rows = jax.tree.map(lambda leaf: leaf[:, None], x.rows)
    cross = jnp.where(places >= 0, jax.vmap(gram.kernel.gram)(sets, rows)[:, :, 0], 0.0)

    def weights(matrix: Array, upper: Array, cross: Array) -> Array:
        return derivatives.solve_matrix(matrix, RawCholesky(upper), cross)

    weight = jax.vmap(weights)(matrices, uppers, cross)
    mean = jnp.sum(weight[:, :, None] * jnp.where((places >= 0)[:, :, None], columns[places], 0.0), axis=1)
    return mean, gram.kernel.diag(x.rows) - jnp.sum(cross * weight, axis=1)
