"""The marginal likelihood of the data, and its terms."""

import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._programs import compiled
from kernax.model import Conditioned
from kernax.model._checks import check_conditioned


class LikelihoodTerms(NamedTuple):
    """The terms of `log p(y) = fidelity + complexity + constant + correction`, summed over outputs."""

    fidelity: Float[Array, ""]
    """`-½ (y-μ)ᵀ K̃⁻¹ (y-μ)`: the fit to the data, 0 at best."""
    complexity: Float[Array, ""]
    """`-½ log det K̃`: larger for a model that could explain fewer datasets."""
    constant: Float[Array, ""]
    """`-(n/2) log 2π`."""
    correction: Float[Array, ""]
    """The term that makes the sum of an approximation (`kx.LowRank`) a lower bound; 0 for exact solvers."""
    standard_error: Float[Array, ""]
    """The standard error of `complexity`, and so of the sum, if random probes estimate it (`kx.CG`); 0 if it is computed.

    It is the spread of the probes alone. It does not cover the systematic error of solves that end at CG's `tolerance`, nor
    the error of the gradient. It is infinite if there is only one probe."""


@compiled
def likelihood_terms(c: Conditioned) -> LikelihoodTerms:
    """The terms of the log marginal likelihood, one by one. O(n²) after conditioning with a direct solver.

    With a trend, and for splines, it is the restricted likelihood: that of the `n - q` orthonormal contrasts of the data
    that are orthogonal to the q free functions.

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    A `LikelihoodTerms`.
    """
    check_conditioned(c)
    outputs, terms = c.data.num_outputs, c.system.evidence(c.residual)
    count = (c.data.num_observed - outputs * c.system.num_free).astype(c.data.dtype)
    return LikelihoodTerms(
        fidelity=-0.5 * jnp.sum(terms.quadratic),
        complexity=-0.5 * jnp.sum(jnp.broadcast_to(terms.logdet, (outputs,))),
        constant=-0.5 * math.log(2 * math.pi) * count,
        correction=terms.correction,
        # Added up as they are: all outputs see the same probes.
        standard_error=0.5 * jnp.sum(jnp.broadcast_to(jnp.asarray(terms.logdet_error, terms.quadratic.dtype), (outputs,))),
    )


@functools.singledispatch
def log_marginal_likelihood(c: Any) -> Float[Array, ""]:
    """Log marginal likelihood of the data.

    **Arguments:**

    - `c`: a model conditioned on data; or a machine with a smooth loss, for Laplace's approximation.

    **Returns:**

    `log p(y)` under the model, summed over independent outputs.
    """
    raise TypeError(
        f"a {type(c).__name__} has no marginal likelihood: give `fit` another objective, such as "
        "kx.learners.kfold_loss, or condition a model that has one first, c = kx.condition(model, data)."
    )


@log_marginal_likelihood.register(Conditioned)
@compiled
def _(c: Conditioned) -> Float[Array, ""]:
    terms = likelihood_terms(c)
    return terms.fidelity + terms.complexity + terms.constant + terms.correction


def negative_log_marginal_likelihood(c: Any) -> Float[Array, ""]:
    """Negative log marginal likelihood `-log p(y)`: the default objective of a fit.

    **Arguments:**

    - `c`: a model conditioned on data.

    **Returns:**

    One number, minus [`kernax.log_marginal_likelihood`][].
    """
    return -log_marginal_likelihood(c)
