"""Predictions from the nearest rows alone (local kriging), and which rows those are."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernax.grams import AbstractGram
from kernax.kernels import AbstractKernel
from kernax.rows import Rows, as_rows, is_on_disk, map_rows, num_rows, rows_at_once, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._cholesky import RawCholesky
from kernax.solvers._conditionals import Entries, factored
from kernax.solvers._neighbours import nearest, nearest_by, nearest_in_blocks

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
    before, number, new = jnp.full(num_rows(x), gram.n), min(number, gram.n), coordinates(gram.kernel, x, given)
    if new is None:
        known = take(gram.x)
        found = nearest_by(lambda some: dissimilarity(gram.kernel, some, known), gram.mask, x, before, number)
    elif is_on_disk(gram.x):
        found = nearest_in_file(gram, jnp.arange(gram.n, dtype=jnp.int32), new, before, number, given)
    else:
        found = nearest(points_of(gram, given), gram.mask, new, before, number)
    return Near(x, found)


def nearest_in_file(
    gram: AbstractGram,
    places: Int[Array, " n"],
    queries: Float[Array, "k q"],
    before: Int[Array, " k"],
    number: int,
    given: Coordinates,
) -> Int[Array, "k m"]:
    """What `nearest` finds among all rows, which are in a file, in the order given by their places."""
    return nearest_in_blocks(
        lambda rows: points_of(gram, given, rows), rows_at_once(gram.x), gram.mask, places, queries, before, number
    )


def rows_near_any(gram: AbstractGram, x: Rows, number: int, given: Coordinates = None) -> Int[Array, " k"]:
    """The numbers of the rows that are nearest to any of the new rows; -1 where there are fewer rows that count."""
    m, new = num_rows(x), coordinates(gram.kernel, x, given)

    def distance(some: Rows) -> Array:
        """The distance of some rows from the closest of the new ones."""
        points = coordinates(gram.kernel, some, given)
        if points is None or new is None:
            return jnp.min(dissimilarity(gram.kernel, some, x), axis=1)
        closest = nearest(new, jnp.ones(m, bool), points, jnp.full(num_rows(some), m), 1)[:, 0]
        return jnp.sum((points - new[closest]) ** 2, axis=1)

    far = map_rows(distance, gram.x, m if new is None else new.shape[1])
    found, places = jax.lax.top_k(-jnp.where(gram.mask, jax.lax.stop_gradient(far), jnp.inf), min(number, gram.n))
    return jnp.where(jnp.isfinite(found), places, -1)


def has_coordinates(gram: AbstractGram, given: Coordinates) -> bool:
    """Whether the kernel has coordinates, or some were given."""
    return coordinates(gram.kernel, take(gram.x, slice(0, 1)), given) is not None


def points_of(gram: AbstractGram, given: Coordinates, rows: Any = None) -> Float[Array, "n q"]:
    """The coordinates of some rows, or of all, where there are coordinates."""
    points = coordinates(gram.kernel, take(gram.x, rows), given)
    assert points is not None
    return points


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
    """The matrices `K + noise·I` of several sets of rows, their upper factors, and the rows of each set."""
    entries = Entries(gram.kernel, gram.x, noise, jnp.zeros((gram.n, 0), noise.dtype))
    matrices, uppers, _ = factored(entries.of(places)[0], places >= 0)
    return matrices, uppers, take(gram.x, jnp.maximum(places, 0))


def predicted(
    gram: AbstractGram, noise: Float[Array, "*n"], x: Near, columns: Float[Array, "n p"]
) -> tuple[Float[Array, "k p"], Float[Array, " k"]]:
    """Mean and variance of each new row, given the targets `columns` of its neighbours."""
    places = x.numbers
    matrices, uppers, sets = known_rows(gram, noise, places)
    rows = jax.tree.map(lambda leaf: leaf[:, None], x.rows)
    cross = jnp.where(places >= 0, jax.vmap(gram.kernel.gram)(sets, rows)[:, :, 0], 0.0)

    def weights(matrix: Array, upper: Array, cross: Array) -> Array:
        return derivatives.solve_matrix(matrix, RawCholesky(upper), cross)

    weight = jax.vmap(weights)(matrices, uppers, cross)
    mean = jnp.sum(weight[:, :, None] * jnp.where((places >= 0)[:, :, None], columns[places], 0.0), axis=1)
    return mean, gram.kernel.diag(x.rows) - jnp.sum(cross * weight, axis=1)
