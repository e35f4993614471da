"""Squared Euclidean distances of all pairs of rows, `s_ij = Σ_k w_k (a_ik - b_jk)²`, and their derivatives.

The weights are `w = 1/ℓ²`. Points may be many lengthscales apart, while the pairs that matter are close together. A formula
is accurate then only if it subtracts coordinates first and rounds afterwards:

- *Values.* Few columns are summed as squared differences. The difference of two close numbers is exact, whatever offset
  they share. (Divided by ℓ first, each number would be rounded in proportion to the offset.) With many columns the matrix
  product `|a|² + |b|² - 2ab` is several times faster. Its rounding error is in proportion to `|a|²`, so it is used if all
  rows are within a few lengthscales of their centre, and differences otherwise.
- *Derivatives.* Let C be a cotangent of s. The derivative in the weights is `Σ_ij C_ij (a_ik - b_jk)²` and the derivative
  in the rows is `2 w_k Σ_j C_ij (a_ik - b_jk)`. Both are sums over differences, in which no large terms cancel. Written
  with matrix products, they would be small differences of sums in proportion to `|a|²`. A derivative in ℓ that goes
  through scaled rows `a/ℓ` would lose the same digits: it adds up derivatives of both signs, each times its offset. For
  this reason the weights are an argument of their own.

Autodiff of the differences would build arrays of size n × m × d and take about ten times as long as everything else. The
sums are formed in a loop over blocks of rows of C instead. It holds d × m numbers at a time, and takes as long as the
matrix products would.

Values and derivatives of every order come from one form, which is linear in each of its four arguments:

    Φ(c, w, (a, b), (p, q)) = Σ_ijk c_ij w_k (a_ik - b_jk) (p_ik - q_jk).

The squared distances are its slope in c where `p, q = a, b`. The slope in one argument is linear in the other three. So its
derivative is the same slope with a tangent in place of an argument, and its transpose is another slope of Φ. The primitive
below computes these slopes. Its rules use nothing but the primitive itself, so derivatives of every order are right, forward
and reverse, in every nesting.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Float, Num

from kernax._arrays import matmul

_DIFFERENCES_UP_TO = 8
"""Columns up to which accuracy is worth the time. With 1, 8 and 16 columns an RBF Gram matrix by differences takes 1.1, 1.15
and 1.4 times as long as by a matrix product (n = 5000, two cores)."""

_ROUGH_DIFFERENCES_UP_TO = 32
"""The same for rough kernels, which need the accuracy more; beyond, compiling one loop over all columns takes too long."""

_FEW_PAIRS = 2**14
"""Pairs of rows up to which differences are taken for up to as many columns: a product of so few rows is no faster, and many
small matrices at once (`kx.Vecchia()`) would compute both, since `vmap` makes a selection of a branch."""

_WIDE = 64.0
"""Squared distance from the centre, in lengthscales, up to which a matrix product may be used. Its error in `s` is then at
most a few hundred units of rounding."""

_BLOCK = 16
"""Rows of C that one step of the loop adds up. XLA's code for 2 to 12 rows takes twice as long as that for 16."""

_SMALL = 4096
"""Terms up to which a sum is written plainly: XLA compiles it sooner, and its slower code does not matter."""


def centred(x: Float[Array, "n d"], z: Float[Array, "m d"] | None) -> tuple[Array, Array | None]:
    """Both sets of rows less the mean row of `x`: distances stay, and a large common offset costs no digits."""
    centre = jax.lax.stop_gradient(jnp.mean(x, axis=0))
    return x - centre, None if z is None else z - centre


def _about_the_mean(a: Float[Array, "n d"], b: Float[Array, "m d"]) -> tuple[Array, Array]:
    centre = jnp.mean(a, axis=0)
    return a - centre, b - centre


def squared_distances(
    x: Num[Array, "n d"],
    z: Num[Array, "m d"] | None,
    lengthscale: Float[Array, "*k"] | None = None,
    *,
    rough: bool = False,
) -> Float[Array, "n m"]:
    """`Σ_k (x_ik - z_jk)² / ℓ_k²` for all pairs of rows.

    **Arguments:**

    - `x`: rows. They need not be centred.
    - `z`: other rows, or `None` for `x` itself. The diagonal is then exactly 0, and so are its derivatives.
    - `lengthscale`: one number, or one for each column. `None` means 1, for distances that have no natural unit: with many
      columns a matrix product is used however far apart the rows are.
    - `rough`: whether the slope of the kernel is unbounded at 0. It would magnify the rounding of a matrix product, so up to
      32 columns are summed as differences.

    **Returns:**

    An array of shape `(n, m)` without negative entries.
    """
    dtype = jnp.result_type(x, x if z is None else z, 1.0 if lengthscale is None else lengthscale)
    a, b, w = x.astype(dtype), (x if z is None else z).astype(dtype), jnp.ones(1, dtype)
    if lengthscale is not None:
        # Divided by a power of two near ℓ, no row is rounded, and the weights that remain cannot overflow.
        lengthscale = jnp.atleast_1d(lengthscale).astype(dtype)
        unit = _power_of_two(jax.lax.stop_gradient(lengthscale))
        a, b, w = a / unit, b / unit, (lengthscale / unit) ** -2
    few = x.shape[0] * b.shape[0] <= _FEW_PAIRS
    exact = x.shape[1] <= (_ROUGH_DIFFERENCES_UP_TO if rough or few else _DIFFERENCES_UP_TO)
    wide = jnp.asarray(False) if exact or lengthscale is None else _is_wide(*jax.lax.stop_gradient((a, b, w)))
    distances = _slope("c", {"w": w, "a": a, "b": b}, wide, own=z is None, exact=exact, width=w.shape[0])
    return distances if exact else _at_least_0(distances)


@jax.custom_jvp
def _at_least_0(distances: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Rounding may go below 0. The derivative stays that of a smooth square, which that of `maximum` would not be."""
    return jnp.where(distances < 0, 0.0, distances)


@_at_least_0.defjvp
def _at_least_0_jvp(primals, tangents):
    return _at_least_0(*primals), tangents[0]


def _power_of_two(value: Float[Array, " k"]) -> Float[Array, " k"]:
    """The nearest power of two, or 1 where there is none (0, infinity, NaN)."""
    nearest = jax.lax.reduce_precision(value, exponent_bits=int(jnp.finfo(value.dtype).nexp), mantissa_bits=0)
    return jnp.where(jnp.isfinite(nearest) & (nearest > 0), nearest, 1.0)


def _is_wide(a: Float[Array, "n d"], b: Float[Array, "m d"], w: Float[Array, " k"]) -> Bool[Array, ""]:
    """Whether any row is too far from the centre for a matrix product."""
    a, b = _about_the_mean(a, b)
    return jnp.max(jnp.sum(w * jnp.concatenate([a, b]) ** 2, axis=1), initial=0.0) > _WIDE


# The slopes of Φ. Each is named by its argument: "c" of shape (n, m), "w" of shape (1,) or (d,), "p" of shape (n, d) and "q"
# of shape (m, d). A slope in c or w without p and q among the arguments is taken at `p, q = a, b`. Distances of rows from
# themselves (`own`) are no part of Φ: they are 0, even if the kernel has an infinite slope there.

_slope_p = Primitive("slope_of_squared_distances")
_PAIRS = {"a": ("a", "b"), "b": ("a", "b"), "p": ("p", "q"), "q": ("p", "q")}


def _slope(of: str, given: dict[str, Any], wide: Any, **options: Any) -> Any:
    """The slope of Φ in the argument `of`, given the other arguments.

    `wide` is whether the rows are too far apart for a matrix product. Options are `own`, whether a and b are the same rows,
    `exact`, whether no matrix product may be used, and `width`, the number of weights.
    """
    return _slope_p.bind(wide, *given.values(), of=of, names=tuple(given), **options)


def _slope_of_one(wide, *values, of, names, own, exact, width):
    """The computation, without batch axes."""
    given = dict(zip(names, values, strict=True))
    a, b, others = given["a"], given["b"], [given[name] for name in "pq" if name in given]
    if of == "c":
        pairs = _all_pairs(given["w"], a, b, *others, wide=wide, exact=exact)
        # The squared difference of a row from itself is exactly 0 anyway, and the check would take time.
        if not own or (exact and not others):
            return pairs
        # In the type of the distances: with integers in it, XLA does not vectorise the loop that this becomes part of.
        place = jnp.arange(len(pairs), dtype=pairs.dtype)
        return jnp.where(place[:, None] == place, 0.0, pairs)
    if of == "w":
        sums = _summed(given["c"], [a, *others[:1]], [b, *others[1:]], own=own, square=not others)
        return jnp.sum(sums, keepdims=True)[0] if width == 1 else jnp.sum(sums, axis=1)
    # The differences are b - a for "p" and a - b for "q": both have the sign of the other side.
    sums = _summed(given["c"], [b], [a], own=own, axis=1) if of == "p" else _summed(given["c"], [a], [b], own=own)
    return -given["w"] * sums.T


def _slope_of_batch(wide, *values, **options):
    """The computation. All operands have the same leading batch axes."""
    one = partial(_slope_of_one, **options)
    for _ in range(wide.ndim):
        one = jax.vmap(one)
    return one(wide, *values)


def _slope_shape(wide, *values, of, names, own, exact, width):
    given = dict(zip(names, values, strict=True))
    a, b = given["a"], given["b"]
    shapes = {"c": (*a.shape[:-1], b.shape[-2]), "w": (*wide.shape, width), "p": a.shape, "q": b.shape}
    return a.update(shape=shapes[of], weak_type=False)


def _slope_jvp(primals, tangents, *, of, names, **options):
    wide, given = primals[0], dict(zip(names, primals[1:], strict=True))
    moved = dict(zip(names, tangents[1:], strict=True))
    terms = []
    for pair in dict.fromkeys(_PAIRS.get(name, (name,)) for name in names if type(moved[name]) is not ad.Zero):
        shift = {name: ad.instantiate_zeros(moved[name]) for name in pair}
        if of in "cw" and "a" in pair and "p" not in names:
            terms.append(2.0 * _slope(of, given | {"p": shift["a"], "q": shift["b"]}, wide, **options))
        else:
            terms.append(_slope(of, given | shift, wide, **options))
    return _slope(of, given, wide, **options), sum(terms[1:], terms[0])


def _slope_transpose(cotangent, wide, *values, of, names, **options):
    if type(cotangent) is ad.Zero:
        return [None] * (1 + len(names))
    unknown = {name: value.aval for name, value in zip(names, values, strict=True) if ad.is_undefined_primal(value)}
    given = {name: value for name, value in zip(names, values, strict=True) if name not in unknown} | {of: cotangent}
    if of in "pq":
        # A slope in one of a pair: the other one of the pair has no part in it.
        (other, like) = ("q", "b") if of == "p" else ("p", "a")
        given[other] = jnp.zeros_like(given[like]) if like in given else ad.zeros_like_aval(unknown[like])

    def slope(name: str) -> Array:
        if name in "cw":
            return _slope(name, {key: given[key] for key in "cwabpq" if key != name and key in given}, wide, **options)
        a, b = ("a", "b") if name in "pq" else ("p", "q")
        arguments = {"c": given["c"], "w": given["w"], "a": given[a], "b": given[b]}
        return _slope({"a": "p", "b": "q"}.get(name, name), arguments, wide, **options)

    return [None, *(slope(name) if name in unknown else None for name in names)]


def _slope_batched(operands, axes, **parameters):
    size = next(operand.shape[axis] for operand, axis in zip(operands, axes, strict=True) if axis is not None)
    front = [batching.bdim_at_front(operand, axis, size) for operand, axis in zip(operands, axes, strict=True)]
    return _slope_p.bind(*front, **parameters), 0


_slope_p.def_impl(jax.jit(_slope_of_batch, static_argnames=("of", "names", "own", "exact", "width")))
_slope_p.def_abstract_eval(_slope_shape)
mlir.register_lowering(_slope_p, mlir.lower_fun(_slope_of_batch, multiple_results=False))
ad.primitive_jvps[_slope_p] = _slope_jvp
ad.primitive_transposes[_slope_p] = _slope_transpose
batching.primitive_batchers[_slope_p] = _slope_batched


def _all_pairs(w: Array, a: Array, b: Array, *others: Array, wide: Array, exact: bool) -> Float[Array, "n m"]:
    """`Σ_k w_k (a_ik - b_jk) (p_ik - q_jk)`; without p and q, they are a and b."""
    if exact:
        return _by_differences(w, a, b, *others)
    u, v = _about_the_mean(a, b)
    p, q = _about_the_mean(*others) if others else (u, v)

    def by_products() -> tuple[Array, Array, Array]:
        rest = -matmul(w * u, q.T) - matmul(w * p, v.T) if others else matmul(-2.0 * w * u, v.T)
        return rest, jnp.sum(w * u * p, axis=1), jnp.sum(w * v * q, axis=1)

    def by_differences() -> tuple[Array, Array, Array]:
        return _by_blocks_of_columns(w, a, b, *others), jnp.zeros_like(a[:, 0]), jnp.zeros_like(b[:, 0])

    # The norms are added after the branches, so that n × m numbers are written once, as for a matrix product alone. They
    # come out of the branches, since a choice between them and 0 would be made again for each of the n × m numbers.
    rest, norms_a, norms_b = jax.lax.cond(wide, by_differences, by_products)
    return norms_a[:, None] + norms_b[None, :] + rest


def _by_differences(w: Array, a: Array, b: Array, *others: Array) -> Float[Array, "n m"]:
    """Column by column: one fused loop with the rows of b along the vector lanes."""
    # Concatenated behind a barrier, XLA first lays the columns of both sides out one after another. Fused into the loop, a
    # transposition would make it read with strides; and a loop in which both sides are the same array is not vectorised: a
    # Gram matrix of one column then takes three times as long.
    n, m = a.shape[0], b.shape[0]
    columns = jax.lax.optimization_barrier(jnp.concatenate([side.T for side in (a, b, *others)], axis=1))
    total = jnp.zeros((n, m), a.dtype)
    for k, column in enumerate(columns):
        first = column[:n, None] - column[None, n : n + m]
        second = column[n + m : 2 * n + m, None] - column[None, 2 * n + m :] if others else first
        total = total + (first * second if w.shape[0] == 1 else w[k] * first * second)
    return w[0] * total if w.shape[0] == 1 else total


def _by_blocks_of_columns(w: Array, *sides: Array) -> Float[Array, "n m"]:
    """The same with a loop over blocks of columns, for more of them than one fused loop can have."""
    d, block = sides[0].shape[1], _DIFFERENCES_UP_TO
    w = jnp.broadcast_to(w, (d,))

    def blocks(value: Array) -> Array:
        padded = jnp.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, -d % block)])
        return jnp.moveaxis(padded.reshape(*value.shape[:-1], -(-d // block), block), -2, 0)

    def add(total: Array, part: tuple[Array, ...]) -> tuple[Array, None]:
        return total + _by_differences(*part), None

    start = jnp.zeros((sides[0].shape[0], sides[1].shape[0]), sides[0].dtype)
    return jax.lax.scan(add, start, tuple(blocks(value) for value in (w, *sides)))[0]


def _summed(
    c: Array, rows: list[Array], others: list[Array], *, own: bool, square: bool = False, axis: int = 0
) -> Float[Array, "d m"]:
    """`Σ_i c_ij (rows_ik - others_jk)`, or with a square or the product of two differences instead of the difference.

    With `own`, entries on the diagonal of c do not count. With `axis=1`, the rows are those of the second axis, `c_ji`.
    """

    def block_of_weights(begin: Any, size: int, done: Any) -> Array:
        """The given rows of c, as they count: not those that are done."""
        weights = jax.lax.dynamic_slice_in_dim(c, begin, size, axis)
        row = begin + jnp.arange(size)[:, None]
        skip = row < done if not own else (row < done) | (row == jnp.arange(m))
        return jnp.where(skip, 0.0, weights.T if axis else weights)

    def terms(weights: Array, differences: list[Array]) -> Array:
        return weights * (differences[0] * differences[-1] if square or len(rows) > 1 else differences[0])

    n, m, d = c.shape[axis], c.shape[1 - axis], rows[0].shape[1]
    if n * m * d <= _SMALL:
        differences = [side[:, :, None] - other.T for side, other in zip(rows, others, strict=True)]
        return jnp.sum(terms(block_of_weights(0, n, 0)[:, None, :], differences), axis=0)
    size = min(_BLOCK, n)
    columns = jax.lax.optimization_barrier([other.T for other in others])

    def add(step: Array, total: Array) -> Array:
        # The last block begins early enough to be whole.
        begin = jnp.minimum(step * size, n - size)
        sides = [jax.lax.dynamic_slice_in_dim(side, begin, size) for side in rows]
        # Behind a barrier, XLA copies these few rows first. Inside the sum it would look them up once for every column.
        weights, sides = jax.lax.optimization_barrier((block_of_weights(begin, size, step * size), sides))
        # Each block is added up on its own first: a long sum of short sums rounds less.
        part = jnp.zeros_like(total)
        for r in range(size):
            differences = [side[r][:, None] - column for side, column in zip(sides, columns, strict=True)]
            part = part + terms(weights[r], differences)
        return total + part

    return jax.lax.fori_loop(0, -(-n // size), add, jnp.zeros((d, m), c.dtype))


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
        distances = jnp.sqrt(squared_distances(columns, None))
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
