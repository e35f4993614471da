"""The variance of a posterior mean over its inputs, and the parts of it that belong to each column, in closed form.

The mean is `f(x) = Σ_i alpha_i k(X_i, x)`. If the kernel is a sum of products of kernels of one column, and the columns are
independent, each expectation over x is a product over columns of integrals in one dimension. Variances are written as sums
of products that contain a covariance in one column at least, so that no square of a mean is subtracted.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.kernels import RBF, AbstractKernel, Constant, OrthogonalAdditive, Product, Scale, Select, Sum
from kernax.kernels._additive import elementary_sums
from kernax.kernels._input_distributions import Inputs, covariance_over, mean_over
from kernax.means import Constant as ConstantMean
from kernax.means import Zero
from kernax.model import Conditioned
from kernax.rows import map_rows, take

_MOST_TERMS = 4
"""Terms of a kernel up to which all pairs of them are integrated."""
_MOST_ROUNDING = 1e-3
"""How much of the variance rounding may be."""


class Shares(NamedTuple):
    """The variance of a function over its inputs, the part of it that each column explains alone, and the part that
    vanishes if the column is known beside all others."""

    variance: Float[Array, "*p"]
    first: Float[Array, "d *p"]
    total: Float[Array, "d *p"]


class Term(NamedTuple):
    """A product of kernels of one column, times a variance. A column without a kernel has the factor 1."""

    variance: Any
    factors: dict[int, AbstractKernel]


def own_inputs(kernel: AbstractKernel) -> tuple[Inputs, ...] | None:
    """The distribution of the inputs that a kernel has been made for; `None` if it has none."""
    if isinstance(kernel, Scale):
        return own_inputs(kernel.kernel)
    if not isinstance(kernel, OrthogonalAdditive) or kernel.subset is not None:
        return None
    parts: Any = kernel.kernels
    return tuple(part.kernel.inputs for part in parts)


def closed_shares(c: Conditioned, inputs: tuple[Inputs, ...]) -> Shares | None:
    """The shares of the posterior mean, O(n²d); `None` if they have no closed form, and NaN if rounding has spoilt it."""
    weights = c.system.expansion(c.solution)
    if weights is None or weights[1] is not None or not isinstance(c.model.mean, Zero | ConstantMean):
        return None
    if c.data.gaps is not None:
        return None
    kernel, scale = c.system.gram.kernel, 1.0
    if own_inputs(kernel) == inputs:
        while isinstance(kernel, Scale):
            kernel, scale = kernel.kernel, scale * kernel.variance
        matrices, count = _of_effects(kernel, inputs), 4
    else:
        terms = terms_of(kernel, tuple(range(len(inputs))))
        if terms is None or len(terms) > _MOST_TERMS:
            return None
        matrices, count = _of_terms(terms, inputs), 4 * len(terms) ** 2
    x, alpha = take(c.data.x), jnp.where(c.data.mask[:, None], weights[0].reshape(c.data.n, -1), 0.0)

    def of_block(block: Any) -> tuple[Shares, Array]:
        """`α_i Σ_j G_ij α_j` for some rows i, for each matrix G; and what is rounded in the first sum."""
        rows, weight = block
        found = matrices(rows, x)
        sizes = jnp.abs(weight) * matmul(jnp.abs(found.variance), jnp.abs(alpha))
        parts = (weight * matmul(matrix, alpha) for matrix in found)
        return Shares(*(jnp.moveaxis(part, -2, 0) for part in parts)), sizes

    of_rows, sizes = map_rows(of_block, (x, alpha), c.data.n * len(inputs) * count)
    outputs = c.residual.shape[1:]
    shares = Shares(*(scale**2 * jnp.sum(part, axis=0) for part in of_rows))
    # With next to no noise, alpha is large with both signs, and the sums cancel.
    is_right = scale**2 * jnp.sum(sizes, axis=0) * jnp.finfo(sizes.dtype).eps <= _MOST_ROUNDING * shares.variance
    is_right = is_right | jnp.all(alpha == 0, axis=0)
    return Shares(*(jnp.where(is_right, part, jnp.nan).reshape(*part.shape[:-1], *outputs) for part in shares))


def terms_of(kernel: AbstractKernel, columns: tuple[int, ...]) -> list[Term] | None:
    """A kernel as a sum of products of kernels of one column; `None` if it is not known as one.

    **Arguments:**

    - `kernel`: a kernel of these columns.
    - `columns`: which columns of the data the kernel sees.

    **Returns:**

    The terms.
    """
    if isinstance(kernel, Constant):
        return [Term(kernel.variance, {})]
    if isinstance(kernel, Scale):
        inner = terms_of(kernel.kernel, columns)
        return None if inner is None else [Term(kernel.variance * v, factors) for v, factors in inner]
    if isinstance(kernel, Sum):
        parts = [terms_of(part, columns) for part in kernel.kernels]
        return None if any(part is None for part in parts) else [term for part in parts for term in part or ()]
    if isinstance(kernel, Product):
        joined = [Term(1.0, {})]
        for part in kernel.kernels:
            inner = terms_of(part, columns)
            if inner is None or len(joined) * len(inner) > _MOST_TERMS:
                return None
            joined = [_product(left, right) for left in joined for right in inner]
        return joined
    if isinstance(kernel, Select):
        seen = kernel.columns
        return None if seen is None else terms_of(kernel.kernel, tuple(columns[k] for k in seen))
    if len(columns) == 1:
        return [Term(1.0, {columns[0]: kernel})]
    if isinstance(kernel, RBF):
        each = jnp.broadcast_to(kernel.lengthscale, (len(columns),))
        factors = [Term(1.0, {column: RBF(each[k])}) for k, column in enumerate(columns)]
        whole = factors[0]
        for factor in factors[1:]:  # a column may be seen twice
            whole = _product(whole, factor)
        return [whole]
    return None


def _product(left: Term, right: Term) -> Term:
    factors = dict(left.factors)
    for column, kernel in right.factors.items():
        factors[column] = factors[column] * kernel if column in factors else kernel
    return Term(left.variance * right.variance, factors)


def _of_effects(kernel: Any, inputs: tuple[Inputs, ...]) -> Any:
    """The matrices G of an `OrthogonalAdditive` kernel, whose effects are orthogonal: their variances add up."""
    squares, order = kernel.variance**2, kernel.order

    def matrices(x: Array, z: Array) -> Shares:
        one = jnp.ones((x.shape[0], z.shape[0]), x.dtype)
        own = [part.kernel.covariance_over(x[:, k : k + 1], z[:, k : k + 1]) for k, part in enumerate(kernel.kernels)]

        def whole(own: list[Array]) -> Array:
            sums = elementary_sums(own, one, order)
            return jnp.sum(jnp.stack([squares[q] * sums[q] for q in range(1, order + 1)]), axis=0)

        # In each column's matrix the sum is linear: what contains the matrix is the matrix times the slope in it.
        variance, slopes = jax.vjp(whole, own)
        total = [part * slope for part, slope in zip(own, slopes(one)[0], strict=True)]
        return Shares(variance, jnp.stack([squares[1] * part for part in own]), jnp.stack(total))

    return matrices


def _slopes_of_product(factors: list[Array], one: Array) -> list[Array]:
    return jax.vjp(lambda parts: functools.reduce(operator.mul, parts, one), factors)[1](one)[0]


def _of_terms(terms: list[Term], inputs: tuple[Inputs, ...]) -> Any:
    """The matrices G of a sum of products, summed over all pairs of its terms."""

    def matrices(x: Array, z: Array) -> Shares:
        one = jnp.ones((x.shape[0], z.shape[0]), x.dtype)
        parts = [_of_pair(left, right, inputs, x, z, one) for left in terms for right in terms]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)

    return matrices


def _of_pair(left: Term, right: Term, inputs: tuple[Inputs, ...], x: Any, z: Any, one: Array) -> Shares:
    """With the covariance C_k and the product of means M_k of each column: the variance is the sum over k of
    `Π_(j<k) M_j · C_k · Π_(j>k) (C_j + M_j)`, a column alone has `C_k Π M_j`, and with all others `C_k Π (C_j + M_j)`.
    """
    d, covariances, means = len(inputs), [], []
    for k in range(d):
        u, v = left.factors.get(k), right.factors.get(k)
        a, b = x[:, k : k + 1], z[:, k : k + 1]
        left_mean = jnp.ones_like(x[:, 0]) if u is None else mean_over(u, inputs[k], a)
        right_mean = jnp.ones_like(z[:, 0]) if v is None else mean_over(v, inputs[k], b)
        means.append(left_mean[:, None] * right_mean)
        covariances.append(0.0 * one if u is None or v is None else covariance_over(u, v, inputs[k], a, b))
    both = [covariance + mean for covariance, mean in zip(covariances, means, strict=True)]
    scale = left.variance * right.variance
    # The slope of a product in a factor is the product of the others.
    first, total = (
        jnp.stack([scale * part * slope for part, slope in zip(covariances, _slopes_of_product(factors, one), strict=True)])
        for factors in (means, both)
    )
    variance, mean = 0.0 * one, one
    for k in range(d):
        variance, mean = variance * both[k] + mean * covariances[k], mean * means[k]
    return Shares(scale * variance, first, total)
