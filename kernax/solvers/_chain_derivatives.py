"""The evidence of a Markov process over sorted rows, with derivatives in closed form.

To differentiate a scan in reverse costs several times the scan. For each row, let M be the transition from the row before, Q
the covariance of the shock, R the noise, h the observation and `u = A⁻¹ b`; let m, P be the mean and the covariance of the
state of the row before, given the rows up to that one; let r, N be what this row and the later ones add to the state of
this row: `mean + P⁻ r` and `P⁻ - P⁻ N P⁻`, where P⁻ is its covariance given the rows before, and m⁻ its mean; and let g be
the gain and Ñ what the later rows alone add. Then, summed over rows, with P∞ in the place of the first P,

    δ log det A = ⟨N, δQ⟩ + 2⟨N M P, δM⟩ + [A⁻¹]_ii δR + 2 P⁻(h [A⁻¹]_ii - Ñ g)·δh,
    δ(bᵀA⁻¹b)   = 2u δb - r·δQ r - 2r·δM (m + P Mᵀ r) - u² δR - 2u (m⁻ + P⁻ r)·δh.

What stands beside δ comes from passes that are differentiable themselves, so second derivatives are right, too. Through
`filtered` and `passes` the derivatives would be the same, for the price of differentiating the scans; so what comes before
them, the chain, the noise and b, is all that the rules move.
"""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.kernels._markov import product
from kernax.solvers._chain import Chain, Filtered, Passes, run_back
from kernax.solvers._steps import Steps, by_block


@eqx.filter_custom_jvp
def logdet(chain: Chain, noise: Float[Array, " n"], filtered: Filtered) -> Float[Array, ""]:
    """`log det A`, from what `run_filter` made of the chain and the noise."""
    return jnp.sum(jnp.log(filtered.spread))


@logdet.def_jvp
def _logdet_jvp(primals, tangents):
    (chain, noise, filtered), (d_chain, d_noise, _) = primals, tangents
    found = run_back(chain, filtered)
    weights = _Weights(
        moves=tuple(2.0 * w for w in found.moves),
        shocks=found.shocks,
        start=found.start,
        noise=found.inverse,
        varying=None if found.varying is None else 2.0 * found.varying,
    )
    weights = jax.tree.map(lambda leaf: leaf[..., None], weights)
    return logdet(chain, noise, filtered), _slope((chain, noise), (d_chain, d_noise), weights)[0]


@eqx.filter_custom_jvp
def quadratic(
    chain: Chain, noise: Float[Array, " n"], b: Float[Array, "n p"], filtered: Filtered, passes: Passes
) -> Float[Array, " p"]:
    """`bᵀ A⁻¹ b` for every column of b, from what `run_filter` and `run_passes` made of the first three arguments."""
    return jnp.sum(passes.new**2 * filtered.precision[:, None], axis=0)


@quadratic.def_jvp
def _quadratic_jvp(primals, tangents):
    (chain, noise, b, filtered, passes), (d_chain, d_noise, d_b, *_) = primals, tangents
    steps, (_, before, _, solved, adjoints) = chain.steps, passes
    told = jax.vmap(Steps.back)(steps, adjoints)
    smoothed = before + product(filtered.before, told)
    varying = None
    if steps.varying is not None:
        ahead = jax.vmap(Steps.forth)(steps, before) + product(filtered.ahead(steps), adjoints)
        varying = -2.0 * solved[:, None] * ahead
    weights = _Weights(
        moves=tuple(-2.0 * w for w in _outer_blocks(adjoints, smoothed, steps.moves)),
        shocks=tuple(-w for w in _outer_blocks(adjoints, adjoints, steps.shocks)),
        start=tuple(-w[0] for w in _outer_blocks(told[:1], told[:1], chain.start)),
        noise=-(solved**2),
        varying=varying,
    )
    slope = _slope((chain, noise), (d_chain, d_noise), weights)
    if d_b is not None:
        slope = slope + 2.0 * jnp.sum(solved * d_b, axis=0)
    return quadratic(chain, noise, b, filtered, passes), slope


class _Weights(eqx.Module):
    """What a change of each part is multiplied by; the last axis runs over the columns of b."""

    moves: tuple[Float[Array, "..."], ...]
    shocks: tuple[Float[Array, "..."], ...]
    start: tuple[Float[Array, "..."], ...]
    noise: Float[Array, "..."]
    varying: Float[Array, "..."] | None


def _slope(place: tuple[Chain, Array], change: Any, weights: _Weights) -> Float[Array, " p"]:
    """The sum of weights times the change of what they belong to."""

    def along(chain: Chain, noise: Array) -> Float[Array, " p"]:
        steps = chain.steps
        parts = _Weights(steps.moves, steps.shocks, chain.start, noise, steps.varying)
        products = jax.tree.map(lambda w, part: jnp.sum(w * part[..., None], axis=tuple(range(part.ndim))), weights, parts)
        return functools.reduce(operator.add, jax.tree.leaves(products))

    return eqx.filter_jvp(along, place, change)[1]


def _outer_blocks(
    a: Float[Array, "n j p"], b: Float[Array, "n j p"], like: tuple[Array, ...]
) -> list[Float[Array, "n q g g p"]]:
    """The diagonal blocks of `a bᵀ`, for every column."""
    pairs = zip(by_block(a, like), by_block(b, like), strict=True)
    return [left[:, :, :, None] * right[:, :, None] for left, right in pairs]
