"""The derivatives of what a grid's System answers, over `A = K_1 ⊗ K_2 ⊗ … + shift·I` with `K_a = V_a Λ_a V_aᵀ`.

They take the eigenvectors for constants. Equal eigenvalues do no harm, since all answers are functions of A itself:

    δ log det A = Σ_a ⟨W_a, δK_a⟩ + tr(A⁻¹) δshift,   W_a = V_a diag(w(λ_i)) V_aᵀ,   w(λ) = Σ_k μ_k / (λ μ_k + shift),

where k runs over all combinations of the other axes and μ_k is the product of their eigenvalues. Seen from the eigenvectors,
`δW_a` is `δK_a` times the divided differences of w, entry by entry. They are

    (w(λ_i) - w(λ_j)) / (λ_i - λ_j) = -Σ_k μ_k / (λ_i μ_k + shift) · μ_k / (λ_j μ_k + shift),

which has no small denominator. What the other axes add to `δW_a` is diagonal there. Each rule is written with functions that
have rules themselves, as in `_derivatives.py`.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.grams import along_axes, by_columns, summed_by_columns
from kernax.rows import map_rows
from kernax.solvers import _derivatives as derivatives

Parameters = tuple[tuple[Float[Array, "_ _"], ...], Float[Array, ""]]
"""What A is made of: the factors and the shift. Derivatives are taken in these."""


class Axes(eqx.Module):
    """The eigenvectors and eigenvalues of each axis, and the shift: constants for derivatives."""

    vectors: tuple[Float[Array, "_ _"], ...]
    values: tuple[Float[Array, " _"], ...]
    shift: Float[Array, ""]

    @property
    def spectrum(self) -> Float[Array, "*shape"]:
        """The eigenvalues of A, in the shape of the grid."""
        return outer(self.values) + self.shift

    def others(self, axis: int) -> tuple[Float[Array, " m"], Float[Array, "m k"]]:
        """For each combination of the other axes: the product of its eigenvalues, and A's inverse eigenvalues."""
        products = _without(self.values, axis).reshape(-1)
        return products, jnp.moveaxis(1.0 / self.spectrum, axis, -1).reshape(products.shape[0], -1)

    def transformed(self, v: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """`(V_1 ⊗ V_2 ⊗ …)ᵀ v`."""
        return along_axes([vectors.T for vectors in self.vectors], v)

    def solve(self, b: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """`A⁻¹ b`."""
        return along_axes(self.vectors, self.transformed(b) / self.spectrum.reshape(-1, 1))

    def explained(self, parts: list[Float[Array, "_ m"]]) -> Float[Array, " m"]:
        """`cᵀ A⁻¹ c` for every column c of `by_columns(parts)`."""
        squares = [matmul(vectors.T, part) ** 2 for vectors, part in zip(self.vectors, parts, strict=True)]
        return summed_by_columns(squares, 1.0 / self.spectrum.reshape(-1, 1))[:, 0]


def outer(values: tuple[Float[Array, " _"], ...]) -> Float[Array, "*shape"]:
    """All products of one entry of each vector."""
    out = values[0]
    for vector in values[1:]:
        out = out[..., None] * vector
    return out


@eqx.filter_custom_jvp
def logdet(parameters: Parameters, axes: Axes) -> Float[Array, ""]:
    """`log det A`."""
    return jnp.sum(jnp.log(axes.spectrum))


@logdet.def_jvp
def _logdet_jvp(primals, tangents):
    (parameters, axes), (change, _) = primals, tangents
    pairs = zip(jax.tree.leaves(_slopes(parameters, axes)), jax.tree.leaves(change, is_leaf=_is_none), strict=True)
    slopes = [jnp.vdot(weight, moved, precision="highest") for weight, moved in pairs if moved is not None]
    return logdet(parameters, axes), sum(slopes, jnp.zeros_like(axes.shift))


@eqx.filter_custom_jvp
def _slopes(parameters: Parameters, axes: Axes) -> Parameters:
    """The derivative of `log det A` in each factor and in the shift: `W_a` and `tr(A⁻¹)`."""
    weights = []
    for axis, vectors in enumerate(axes.vectors):
        products, inverse = axes.others(axis)
        weights.append(matmul(vectors * matmul(products, inverse), vectors.T))
    return tuple(weights), jnp.sum(1.0 / axes.spectrum)


@_slopes.def_jvp
def _slopes_jvp(primals, tangents):
    (parameters, axes), (change, _) = primals, tangents

    def defined(change: Any) -> Parameters:
        return eqx.filter_jvp(lambda p: _slopes_by_solves(p, axes), (parameters,), (change,))[1]

    return _slopes(parameters, axes), linear_map(lambda change: _moved_slopes(axes, change), defined, change)


def _moved_slopes(axes: Axes, change: Any) -> Parameters:
    """The change of `_slopes`, by divided differences."""
    factors, shift = change
    inverse = 1.0 / axes.spectrum
    products = [_without(axes.values, axis) for axis in range(len(axes.values))]
    # How each eigenvalue of A moves; what leaves the diagonal is seen along its own axis only.
    moved = jnp.zeros_like(inverse) if shift is None else jnp.broadcast_to(shift, inverse.shape)
    turned = [None if d is None else matmul(matmul(v.T, d), v) for v, d in zip(axes.vectors, factors, strict=True)]
    for axis, part in enumerate(turned):
        if part is not None:
            moved = moved + products[axis] * _along(jnp.diagonal(part), axis, inverse.ndim)
    weights = []
    for axis, (vectors, part) in enumerate(zip(axes.vectors, turned, strict=True)):
        rest = tuple(other for other in range(inverse.ndim) if other != axis)
        # The product of the other eigenvalues moves, too.
        entries = -products[axis] * inverse**2 * moved
        for other, theirs in enumerate(turned):
            if other != axis and theirs is not None:
                share = _without(axes.values, axis, other) * _along(jnp.diagonal(theirs), other, inverse.ndim)
                entries = entries + share * inverse
        inner = jnp.diag(jnp.sum(entries, axis=rest))
        if part is not None:
            scaled = jnp.moveaxis(products[axis] * inverse, axis, 0).reshape(vectors.shape[0], -1)
            inner = inner - _off_diagonal(matmul(scaled, scaled.T) * part)
        weights.append(matmul(matmul(vectors, inner), vectors.T))
    return tuple(weights), -jnp.sum(inverse**2 * moved)


def _off_diagonal(matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    return jnp.where(jnp.eye(matrix.shape[0], dtype=bool), 0.0, matrix)


def _without(values: tuple[Float[Array, " _"], ...], *left_out: int) -> Float[Array, "*shape"]:
    """The product of the eigenvalues of all axes but some, in a shape that multiplies the grid's."""
    return outer(tuple(jnp.ones(1, v.dtype) if axis in left_out else v for axis, v in enumerate(values)))


def _along(vector: Float[Array, " k"], axis: int, ndim: int) -> Float[Array, "*shape"]:
    return vector.reshape([-1 if other == axis else 1 for other in range(ndim)])


@eqx.filter_custom_jvp
def inverse_diagonal(parameters: Parameters, axes: Axes) -> Float[Array, " n"]:
    """`diag(A⁻¹)`."""
    return _squares_of_vectors(axes, 1.0 / axes.spectrum)


@inverse_diagonal.def_jvp
def _inverse_diagonal_jvp(primals, tangents):
    (parameters, axes), (change, _) = primals, tangents

    def defined(change: Any) -> Array:
        return _moved_diagonal_by_solves(parameters, axes, change)

    slope = linear_map(lambda change: _moved_diagonal(axes, change), defined, change)
    return inverse_diagonal(parameters, axes), slope


def _moved_diagonal(axes: Axes, change: Any) -> Float[Array, " n"]:
    """`-diag(A⁻¹ δA A⁻¹)`, axis by axis: O(n Σ n_i²)."""
    factors, shift = change
    inverse = 1.0 / axes.spectrum
    moved = jnp.zeros(inverse.size, inverse.dtype)
    if shift is not None:
        moved = _squares_of_vectors(axes, inverse**2) * shift
    for axis, (vectors, d_factor) in enumerate(zip(axes.vectors, factors, strict=True)):
        if d_factor is None:
            continue
        turned, size = matmul(matmul(vectors.T, d_factor), vectors), vectors.shape[0]

        def of_block(block: Any, turned: Array = turned, vectors: Array = vectors) -> Array:
            products, inverse = block
            half = matmul(vectors * (products[:, None] * inverse)[:, None, :], turned) * inverse[:, None, :]
            return jnp.sum(half * vectors, axis=-1)

        rows = map_rows(of_block, axes.others(axis), 2 * size * size)
        rows = jnp.moveaxis(rows.reshape(*_left(inverse.shape, axis), size), -1, axis)
        moved = moved + _squares_of_vectors(axes, rows, but=axis)
    return -moved


def _squares_of_vectors(axes: Axes, weights: Float[Array, "*shape"], but: int | None = None) -> Float[Array, " n"]:
    """`Σ_i weights_i v_i²` over the eigenvectors v_i of A; along one axis, if it is named, nothing is summed."""
    squares = [jnp.eye(v.shape[0], dtype=v.dtype) if axis == but else v**2 for axis, v in enumerate(axes.vectors)]
    return along_axes(squares, weights.reshape(-1, 1))[:, 0]


def _left(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


@eqx.filter_custom_jvp
def explained(operator: derivatives.Shifted, axes: Axes, parts: list[Float[Array, "_ m"]]) -> Float[Array, " m"]:
    """`cᵀ A⁻¹ c` for every column c of `by_columns(parts)`: O(n) a column; only the derivative needs a solve."""
    return axes.explained(parts)


@explained.def_jvp
def _explained_jvp(primals, tangents):
    (operator, axes, parts), (change, _, d_parts) = primals, tangents

    def defined(operator: derivatives.Shifted, parts: list[Array]) -> Array:
        cross = by_columns(parts)
        solved, _ = derivatives.solve(operator, lambda b: (axes.solve(b), None), cross)
        return derivatives.quadratic(operator, cross, solved)

    return explained(operator, axes, parts), eqx.filter_jvp(defined, (operator, parts), (change, d_parts))[1]


# What the fast formulas above compute, by solves alone: O(n² Σ n_i), and differentiable any number of times.


def _slopes_by_solves(parameters: Parameters, axes: Axes) -> Parameters:
    def of_rows(unit: Float[Array, "n m"]) -> Parameters:
        solved = _solved(parameters, axes, unit)
        return jax.grad(lambda p: jnp.vdot(solved, _times(p, unit), precision="highest"))(parameters)

    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), _over_rows(of_rows, axes))


def _moved_diagonal_by_solves(parameters: Parameters, axes: Axes, change: Any) -> Float[Array, " n"]:
    def of_rows(unit: Float[Array, "n m"]) -> Array:
        solved = _solved(parameters, axes, unit)
        moved = eqx.filter_jvp(lambda p: _times(p, solved), (parameters,), (change,))[1]
        return -jnp.sum(solved * moved, axis=0)

    return _over_rows(of_rows, axes).reshape(-1)


def _over_rows(function: Callable[[Array], Any], axes: Axes) -> Any:
    """A function of some columns of the identity, for as many columns at a time as the last axis has rows."""
    shape = axes.spectrum.shape
    n = math.prod(shape)

    def of_block(rows: Array) -> Any:
        return function(jax.nn.one_hot(rows, n, axis=0, dtype=axes.shift.dtype))

    return jax.lax.map(jax.checkpoint(of_block), jnp.arange(n).reshape(-1, shape[-1]))


def _times(parameters: Parameters, v: Float[Array, "n p"]) -> Float[Array, "n p"]:
    factors, shift = parameters
    return along_axes(factors, v) + shift * v


def _solved(parameters: Parameters, axes: Axes, b: Float[Array, "n p"]) -> Float[Array, "n p"]:
    return jax.lax.custom_linear_solve(lambda v: _times(parameters, v), b, lambda _, v: axes.solve(v), symmetric=True)


def linear_map(fast: Callable[[Any], Any], defined: Callable[[Any], Any], argument: Any) -> Any:
    """`defined(argument)`, computed by `fast`: two ways to one linear map.

    `fast` may hold constants; derivatives in what the map depends on are those of `defined`, which is not computed before.
    In the rule of a derivative, a custom rule for such a map would be lost when the map is transposed. As the solution y
    of `x = argument`, `y - defined(x) = 0` it keeps its derivatives in every order of nesting.
    """
    # JAX transposes such a system only if its whole right-hand side is linear in what is differentiated, the zeros too.
    zero = jnp.where(False, jax.tree.leaves(argument)[0].reshape(-1)[0], 0.0)
    nothing = jax.tree.map(lambda leaf: jnp.broadcast_to(zero, leaf.shape), jax.eval_shape(fast, argument))

    def system(unknowns: Any) -> Any:
        x, y = unknowns
        return x, jax.tree.map(jnp.subtract, y, defined(x))

    def solve(_: Any, right: Any) -> Any:
        x, y = right
        return x, jax.tree.map(jnp.add, y, fast(x))

    def transpose_solve(_: Any, right: Any) -> Any:
        x, y = right
        (back,) = jax.linear_transpose(fast, argument)(y)
        return jax.tree.map(jnp.add, x, back), y

    return jax.lax.custom_linear_solve(system, (argument, nothing), solve, transpose_solve)[1]


def _is_none(value: Any) -> bool:
    return value is None
