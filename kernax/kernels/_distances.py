"""Squared Euclidean distances of all pairs of rows: fast forwards, and fast backwards.

Forwards, few columns are summed as squared differences, which keeps full relative accuracy for close points (a later
square root would otherwise turn a rounding error of 1e-16 into 1e-8); with many columns the matrix product
`|a|² + |b|² - 2ab` is several times faster and is used on centred rows. Backwards, differentiating the differences would
build an n × m × d array (about ten times the cost of the rest), so the derivative is always written with matrix products.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul

_DIFFERENCES_UP_TO = 8
"""Columns up to which accuracy is worth the time. With 1, 8 and 16 columns an RBF Gram matrix by differences takes 1.1, 1.15
and 1.4 times as long as by a matrix product (n = 5000, two cores)."""

_ROUGH_DIFFERENCES_UP_TO = 32
"""The same for rough kernels, which need the accuracy more; beyond, compiling one loop over all columns takes too long."""


def centred(x: Float[Array, "n d"], z: Float[Array, "m d"] | None) -> tuple[Array, Array | None]:
    """Both sets of rows less the mean row of `x`: distances stay, and a large common offset costs no digits."""
    centre = jax.lax.stop_gradient(jnp.mean(x, axis=0))
    return x - centre, None if z is None else z - centre


def squared_distances(x: Float[Array, "n d"], z: Float[Array, "m d"] | None, *, rough: bool = False) -> Float[Array, "n m"]:
    """`‖x_i - z_j‖²` for centred rows, never negative; for `z = None` the diagonal is exactly 0, as are its derivatives.

    `rough` is for a kernel whose slope grows without bound as points come together: that slope would blow up the rounding
    of a matrix product, so the derivative is taken of the differences themselves (n = 2000, d = 8: a pull-back 3.4 times as
    long).
    """
    other = x if z is None else z
    if rough and x.shape[1] <= _ROUGH_DIFFERENCES_UP_TO:
        distances = _by_differences(x, other)
    else:
        distances = _squared_distances(x, other)
    return jnp.where(jnp.eye(x.shape[0], dtype=bool), 0.0, distances) if z is None else distances


def _by_differences(a: Float[Array, "n d"], b: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """Column by column: one fused loop with the rows of b along the vector lanes."""
    # Concatenated behind a barrier, XLA first lays the columns of both sides out one after another. Fused into the loop, a
    # transposition would make it read with strides; and a loop in which both sides are the same array is not vectorised: a
    # Gram matrix of one column then takes three times as long.
    columns = jax.lax.optimization_barrier(jnp.concatenate([a.T, b.T], axis=1))
    total = jnp.zeros((a.shape[0], b.shape[0]), a.dtype)
    for column in columns:
        total = total + (column[: a.shape[0], None] - column[None, a.shape[0] :]) ** 2
    return total


@jax.custom_jvp
def _squared_distances(a: Float[Array, "n d"], b: Float[Array, "m d"]) -> Float[Array, "n m"]:
    if a.shape[1] <= _DIFFERENCES_UP_TO:
        return _by_differences(a, b)
    norms = jnp.sum(a * a, axis=1)[:, None] + jnp.sum(b * b, axis=1)[None, :]
    return jnp.maximum(norms - 2.0 * matmul(a, b.T), 0.0)


@_squared_distances.defjvp
def _squared_distances_jvp(primals, tangents):
    # Not `max`'s derivative: where rounding went below 0, the true function is still a smooth square.
    (a, b), (da, db) = primals, tangents
    own = jnp.sum(a * da, axis=1)[:, None] + jnp.sum(b * db, axis=1)[None, :]
    return _squared_distances(a, b), 2.0 * (own - matmul(da, b.T) - matmul(a, db.T))


def median_distance(x: Float[Array, "n d"], mask: Bool[Array, " n"], *, per_column: bool) -> Float[Array, "*d"]:
    """The median distance of two rows that count (of at most 500 of them), per column or over all columns.

    Where it is 0 (a feature with few values), the standard deviation stands in; where that is 0 too, 1.
    """
    # Rows that count come first; if there are more than are looked at, evenly spread ones of them are.
    most, live = min(x.shape[0], 500), jnp.sum(mask)
    order, place = jnp.argsort(~mask, stable=True), jnp.arange(most)
    rows = x[order[jnp.where(live > most, place * live // most, place)]]
    counts = place < live
    both = counts[:, None] & counts[None, :] & ~jnp.eye(rows.shape[0], dtype=bool)

    def median(columns: Float[Array, "k c"]) -> Float[Array, ""]:
        distances = jnp.sqrt(squared_distances(*centred(columns, None)))
        middle = jnp.nanmedian(jnp.where(both, distances, jnp.nan))
        spread = jnp.std(columns, axis=0, where=counts[:, None])
        spread = jnp.sqrt(jnp.sum(spread**2))
        return _first_positive(middle, spread)

    if per_column:
        # √d: then a typical pair of points is about 1 apart once every column is divided by its own scale.
        return jnp.sqrt(x.shape[1]) * jax.vmap(median, in_axes=1)(rows[:, :, None])
    return median(rows)


def _first_positive(*values: Float[Array, ""]) -> Float[Array, ""]:
    answer = jnp.ones_like(values[0])
    for value in reversed(values):
        answer = jnp.where(jnp.isfinite(value) & (value > 0), value, answer)
    return answer
