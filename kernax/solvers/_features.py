"""The features of all rows, tile by tile, and the derivatives of the likelihood that they give, in closed form.

The features are `U = C L⁻ᵀ`: C holds numbers of the kernel (n × r), L is triangular (r × r). With the noise D, `W = D⁻¹` and
`M = I + Uᵀ W U`, the likelihood of a column b consists of

    quadratic = (b - U s)ᵀ W (b - U s) + sᵀs with `s = M⁻¹ Uᵀ W b`,   log det M,   lack = Σ_i w_i (k_ii - u_i·u_i).

Autodiff would pass n × r cotangents through every step of this: some ten products of n × r × r, and as many copies of U.
But C enters only by the r × (r + 1) numbers `T = Cᵀ W [U, b - U s]`, in which U, s and W may be taken as constants:

    X = L⁻¹ (δT - δL [UᵀWU, s]),   δ(UᵀWU) = X_U + X_Uᵀ + UᵀδW U,   δ quadratic = -2 s·X_s + …,   δ log det M = tr(M⁻¹ δM).

So in reverse mode the cotangent of a tile of C is `W [U, b - U s] T̄ᵀ`, one product, which goes into the kernel at once:
nothing of size n × r is kept but U. The rule is written with functions that have rules themselves, U among them, so that
derivatives of every order are right.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import matmul
from kernax.grams import AbstractFeatures
from kernax.rows import Rows, map_rows
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._cholesky import RawCholesky
from kernax.solvers._jitter import rounding_share

_ENTRIES = 2**20
"""Numbers of a tile: 8 MB in float64. Half of it and twice of it are as fast; what fits into no cache is slower."""
_WHOLE = 4
"""Tiles up to which all rows are computed in one piece."""


class InducingFeatures(AbstractFeatures):
    """`φ(x) = L⁻¹ k(Z, x)` with `L Lᵀ = k(Z, Z)`: what the inducing rows Z know about x."""

    kernel: Any
    inducing: Rows
    counts: Bool[Array, " r"]
    """Which inducing rows are in use, and not repetitions of an earlier one. The others get the feature 0."""
    root: Float[Array, "r r"]
    """L, with the identity in rows that do not count."""

    def cross(self, x):
        return jnp.where(self.counts, self.kernel.gram(self.inducing, x).T, 0.0)

    def lower(self):
        return self.root

    def __call__(self, x):
        return derivatives.half_solve(self.root, self.cross(x).T).T

    def variances(self, x):
        return self.kernel.diag(x)

    def missing(self, x, known, rank):
        whole = self.kernel.diag(x)
        left = whole - known
        # Rounding is not variance: divided by a small noise, it would count.
        return jnp.where(left > rounding_share(jnp.asarray(rank, known.dtype)) * whole, left, 0.0)

    def missing_between(self, x, z, left, right):
        return self.kernel.gram(x, z) - matmul(left, right.T)


@eqx.filter_custom_jvp
def features_of(
    features: AbstractFeatures, x: Rows, mask: Bool[Array, " n"]
) -> tuple[Float[Array, "n r"], Float[Array, " n"]]:
    """`φ(x)` and `φ(x_i)·φ(x_i)` at every row, 0 at those that do not count, in O(n r) memory.

    A row of which a number is not finite gets the features 0, so that no gradient behind a `where` meets it, and its
    `φ(x_i)·φ(x_i)` is not finite.
    """
    n, rank = mask.shape[0], jax.eval_shape(features, x)

    def fill(filled: tuple[Array, Array], tile: _Tile) -> tuple[Array, Array]:
        parts = _features_of_block(features, tile.of(x), tile.of(mask))
        return jax.tree.map(lambda u, part: jax.lax.dynamic_update_slice_in_dim(u, part, tile.begin, 0), filled, parts)

    start = jnp.zeros(rank.shape, rank.dtype), jnp.zeros(n, rank.dtype)
    return _over_tiles(fill, start, n, rank.shape[1])


@features_of.def_jvp
def _features_of_jvp(primals, tangents):
    (features, x, mask), (*change, _) = primals, tangents
    value = features_of(features, x, mask)

    # Not by the loop that fills U: reverse mode would take all of U through every step of it.
    def in_blocks(features: AbstractFeatures, x: Rows) -> tuple[Array, Array]:
        return map_rows(lambda block: _features_of_block(features, *block), (x, mask), 2 * value[0].shape[1])

    return value, eqx.filter_jvp(in_blocks, (features, x), tuple(change))[1]


def _features_of_block(features: AbstractFeatures, x: Rows, mask: Bool[Array, " b"]) -> tuple[Array, Array]:
    values = jnp.where(mask[:, None], features(x), 0.0)
    known = jnp.sum(values**2, axis=1)
    return jnp.where(jnp.isfinite(known)[:, None], values, 0.0), known


class Asked(eqx.Module):
    """What the likelihood of low rank depends on."""

    features: AbstractFeatures
    x: Rows
    mask: Bool[Array, " n"]
    level: Float[Array, "*n"]
    """What lies on the diagonal of D: one number, or one for each row; positive in rows that do not count."""
    columns: Float[Array, "n p"]


class Known(eqx.Module):
    """What follows from it. In the module's docstring these are U, M, the factor of M, s, `b - U s` and `k_ii - u_i·u_i`."""

    u: Float[Array, "n r"]
    small: Float[Array, "r r"]
    raw: RawCholesky
    seen: Float[Array, "r p"]
    missed: Float[Array, "n p"]
    missing: Float[Array, " n"]


@eqx.filter_custom_jvp
def terms(asked: Asked, known: Known) -> tuple[Float[Array, " p"], Float[Array, ""], Float[Array, ""]]:
    """`bᵀ A⁻¹ b` for every column, `log det M`, and the prior variance that the features miss, in units of the noise."""
    # `bᵀA⁻¹b` as a sum of squares, the minimum of which over s it is: nothing cancels, however small the noise.
    weight = _for_rows(1.0 / asked.level, 2)
    quadratic = jnp.sum(weight * known.missed**2, axis=0) + jnp.sum(known.seen**2, axis=0)
    return quadratic, known.raw.logdet(), jnp.sum(_for_rows(1.0 / asked.level, 1) * known.missing)


@terms.def_jvp
def _terms_jvp(primals, tangents):
    (asked, known), (change, _) = primals, tangents
    weight, rank = 1.0 / asked.level, known.u.shape[1]

    def moved(function: Callable[[Asked], Array]) -> Array:
        value, slope = eqx.filter_jvp(function, (asked,), (change,))
        return jnp.zeros_like(value) if slope is None else slope

    slopes = moved(lambda a: _crossed(a.features, a.x, known, weight))
    seen_twice = known.small - jnp.eye(rank, dtype=known.small.dtype)
    lower = asked.features.lower()
    if lower is not None:
        d_lower = moved(lambda a: jnp.asarray(a.features.lower()))
        slopes = slopes - matmul(d_lower, jnp.concatenate([seen_twice, known.seen], axis=1))
        slopes = derivatives.half_solve(lower, slopes)
    d_small = slopes[:, :rank] + slopes[:, :rank].T + moved(lambda a: _by_noise(a, weight, known.u, seen_twice))
    d_quadratic = -2.0 * jnp.sum(slopes[:, rank:] * known.seen, axis=0) + moved(
        lambda a: _by_targets(a, weight, known.missed)
    )
    d_logdet = jnp.vdot(derivatives.inverse(derivatives.of_matrix(known.small), known.raw), d_small, precision="highest")
    d_lack = moved(_weighed_variances)
    if asked.features.variances(asked.x) is not None:
        d_lack = d_lack - jnp.trace(d_small)
    return terms(asked, known), (d_quadratic, d_logdet, d_lack)


def _crossed(features: AbstractFeatures, x: Rows, known: Known, weight: Float[Array, "*n"]) -> Float[Array, "r q"]:
    """`T = Cᵀ W [U, b - U s]`."""
    weight = _for_rows(weight, 2)
    (n, rank), width = known.u.shape, known.u.shape[1] + known.missed.shape[1]

    # Computed again in the backward pass, and never kept.
    @jax.checkpoint
    def product(tile: _Tile) -> Array:
        weights = jnp.concatenate([tile.of(known.u), tile.of(known.missed)], axis=1)
        weights = jnp.where(tile.fresh[:, None], (weight if weight.shape[0] == 1 else tile.of(weight)) * weights, 0.0)
        return matmul(features.cross(tile.of(x)).T, weights)

    def add(total: Array, tile: _Tile) -> Array:
        return total + product(tile)

    return _over_tiles(add, jnp.zeros((rank, width), known.u.dtype), n, rank)


def _by_noise(asked: Asked, fixed: Array, u: Float[Array, "n r"], seen_twice: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """`Uᵀ W U` as a function of the noise; `fixed` is W, as a constant."""
    if asked.level.ndim == 0:
        return seen_twice / (asked.level * fixed)
    return weighted_moments(u, 1.0 / asked.level)


def _by_targets(asked: Asked, fixed: Array, missed: Float[Array, "n p"]) -> Float[Array, " p"]:
    """A function of targets and noise with the slopes of `bᵀ A⁻¹ b`; `fixed` is W, as a constant."""
    slopes = 2.0 * _for_rows(fixed, 2) * missed
    return jnp.sum(_for_rows(1.0 / asked.level, 2) * missed**2 + slopes * asked.columns, axis=0)


def _weighed_variances(asked: Asked) -> Float[Array, ""]:
    """`Σ_i w_i k_ii`; 0 if the features miss nothing."""
    variances = asked.features.variances(asked.x)
    if variances is None:
        return jnp.zeros((), asked.columns.dtype)
    return jnp.sum(jnp.where(asked.mask, variances, 0.0) * _for_rows(1.0 / asked.level, 1))


def weighted_moments(u: Float[Array, "n r"], weight: Float[Array, " n"]) -> Float[Array, "r r"]:
    """`Uᵀ diag(weight) U` for positive weights, without another array of the size of U."""
    roots = jnp.sqrt(weight)

    def add(total: Array, tile: _Tile) -> Array:
        scaled = jnp.where(tile.fresh[:, None], tile.of(roots)[:, None] * tile.of(u), 0.0)
        return total + matmul(scaled.T, scaled)

    n, rank = u.shape
    return _over_tiles(add, jnp.zeros((rank, rank), u.dtype), n, rank)


def _for_rows(value: Float[Array, "*n"], ndim: int) -> Array:
    """One number, or one for each row, in a shape that multiplies arrays with rows first."""
    return value.reshape(value.size, *(1,) * (ndim - 1))


class _Tile(eqx.Module):
    """Some consecutive rows."""

    begin: Any
    size: int = eqx.field(static=True)
    fresh: Bool[Array, " b"]
    """Which of them were in no tile before: the last tile begins early enough to be whole."""

    def of(self, rows: Any) -> Any:
        """These of all rows."""
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, self.begin, self.size), rows)


def _over_tiles(step: Callable[[Any, _Tile], Any], start: Any, n: int, rank: int) -> Any:
    """The last of `total = step(total, tile)` over tiles of the rows; in one piece if there are few."""
    size = max(_ENTRIES // rank, 1)
    if n <= _WHOLE * size:
        return step(start, _Tile(0, n, jnp.ones(n, bool)))
    count = -(-n // size)
    size = -(-n // count)

    def next_step(total: Any, number: Array) -> tuple[Any, None]:
        begin = jnp.minimum(number * size, n - size)
        return step(total, _Tile(begin, size, begin + jnp.arange(size) >= number * size)), None

    return jax.lax.scan(next_step, start, jnp.arange(count))[0]
