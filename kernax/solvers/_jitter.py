"""Jitter: what is added to the diagonal of a matrix that is not numerically definite, and the status that follows."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax.solvers._result import Result


def jitter_ladder(dtype: Any, max_jitter: float | None) -> tuple[float, ...]:
    """Jitters to try in turn, relative to the mean diagonal: none, then factors of 10 from ten roundings to the cap."""
    eps = float(jnp.finfo(dtype).eps)
    cap = max_jitter if max_jitter is not None else (1e-6 if eps < 1e-10 else 1e-2)
    rungs, rung = [0.0], 10 * eps
    while rung <= cap:
        rungs.append(rung)
        rung *= 10
    return tuple(rungs)


def diagonal(matrix: Float[Array, "n n"]) -> Float[Array, " n"]:
    """The diagonal as a strided slice, which XLA compiles faster than the gather of `jnp.diagonal`."""
    n = matrix.shape[0]
    return matrix.reshape(-1)[:: n + 1]


def rounding_level(diagonal: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, " n"]:
    """What elimination leaves of each diagonal entry by rounding alone.

    A pivot no larger than that of its own row shows a matrix that is singular as far as its numbers can tell.
    """
    return rounding_share(jnp.sum(mask).astype(diagonal.dtype)) * diagonal


def rounding_share(count: Float[Array, ""]) -> Float[Array, ""]:
    """The share of a diagonal entry that elimination of that many rows leaves by rounding alone."""
    return 4 * jnp.finfo(count.dtype).eps * jnp.sqrt(count)


def mean_diagonal(diagonal: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean diagonal entry over the rows that count; 0 if there are none."""
    return jnp.sum(jnp.where(mask, diagonal, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def status(
    ok: Bool[Array, ""],
    matrix: Float[Array, "n n"],
    noise: Float[Array, "*n"],
    mask: Bool[Array, " n"],
    jitter: Float[Array, ""],
) -> Any:
    """The result of a factorisation that ended `ok` (or not) with this jitter."""
    # Only a failure is worth another pass over the matrix.
    finite = jax.lax.cond(
        ok, lambda: jnp.asarray(True), lambda: jnp.all(jnp.isfinite(matrix)) & jnp.all(jnp.isfinite(noise))
    )
    noise_free = jnp.any(jnp.where(mask, noise, 1.0) == 0)
    result = Result.where(finite, Result.not_positive_definite, Result.nonfinite)
    good = Result.where(noise_free & (jitter > 0), Result.singular, Result.successful)
    result = Result.where(ok, good, result)
    return Result.where(jnp.any(mask), result, Result.empty)
