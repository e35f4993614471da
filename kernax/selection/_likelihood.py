"""The marginal likelihood of the data, in its three terms."""

import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.model import Conditioned
from kernax.posterior import data_norm_squared


class LikelihoodTerms(NamedTuple):
    """`log p(y) = fidelity + complexity + constant`, summed over outputs."""

    fidelity: Float[Array, ""]
    """`-½ (y-μ)ᵀ K̃⁻¹ (y-μ)`: 0 at best, where the data are what the mean expects."""
    complexity: Float[Array, ""]
    """`-½ log det K̃`: larger for a model that could explain fewer datasets."""
    constant: Float[Array, ""]
    """`-(n/2) log 2π`."""


def likelihood_terms(c: Conditioned) -> LikelihoodTerms:
    """The three terms of the log marginal likelihood, apart. O(n²) after conditioning.

    For splines it is the restricted likelihood: that of the data's `n - q` orthonormal contrasts that do not see the q
    polynomials left free.
    """
    num_free = 0 if c.free is None else c.free.num_functions
    outputs = c.data.num_outputs
    return LikelihoodTerms(
        fidelity=-0.5 * jnp.sum(data_norm_squared(c)),
        complexity=-0.5 * outputs * c.factor.logdet(),
        constant=-0.5 * outputs * math.log(2 * math.pi) * (c.data.count - num_free).astype(c.data.dtype),
    )


@functools.singledispatch
def log_marginal_likelihood(c: Any) -> Float[Array, ""]:
    """`log p(y)` under the model, summed over independent outputs; of a smooth-loss machine, Laplace's approximation."""
    raise TypeError(
        f"a {type(c).__name__} has no marginal likelihood: give `fit` another objective, such as "
        "kx.learners.kfold_loss, or condition a model that has one first, c = kx.condition(model, data)."
    )


@log_marginal_likelihood.register(Conditioned)
def _(c: Conditioned) -> Float[Array, ""]:
    terms = likelihood_terms(c)
    return terms.fidelity + terms.complexity + terms.constant


def negative_log_marginal_likelihood(c: Any) -> Float[Array, ""]:
    """The objective of maximum likelihood: to be minimised."""
    return -log_marginal_likelihood(c)
