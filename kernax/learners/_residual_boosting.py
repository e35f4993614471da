"""L2 boosting: kernel ridge regression of what is left, round after round (Tukey's twicing; Bühlmann & Yu 2003)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import as_floats, is_concrete, matmul
from kernax.data import Data
from kernax.kernels import Rows, check_same_columns
from kernax.means import mean_values
from kernax.model import Conditioned, Model, check_model_and_data, condition
from kernax.posterior import mean
from kernax.posterior._chunks import map_rows, new_rows
from kernax.posterior._predict import cross_gram, free_values
from kernax.selection._ridge_path import spectral_factor
from kernax.solvers import Eigh, ProjectedFactor, Result, is_usable, throw_unless


class Boosted(eqx.Module):
    """The model after rounds of boosting: call it with new rows. Row t of everything is after t rounds, row 0 before any.

    `num_rounds` is the number of rounds that was chosen, and that `boosted(x)` answers with.
    """

    conditioned: Conditioned
    """The model conditioned on the data: a single round at learning rate 1."""
    alpha: Float[Array, "t n *p"]
    """`f_t(x) = μ(x) + k_xX alpha_t`."""
    free: Float[Array, "t q *p"] | None
    """What a spline's polynomials are fitted to, `Wᵀ ν Σ_{s<t} r_s` (see `FreePart`)."""
    learning_rate: Float[Array, ""]
    num_rounds: Int[Array, ""]
    training_error: Float[Array, " t"]
    """`(1/n)‖y - f_t(X)‖²`, also over outputs."""
    validation_error: Float[Array, " t"] | None
    effective_degrees_of_freedom: Float[Array, " t"]
    """`tr(I - (I - νH)ᵗ)`, with `H = K(K + noise·I)⁻¹`."""
    gcv: Float[Array, " t"]
    """`training_error / (1 - degrees of freedom/n)²`."""
    result: Any

    def __call__(self, x: Any) -> Float[Array, "m *p"]:
        """The function after `num_rounds` rounds, O(n) a row."""
        return jnp.where(self.ok, mean(self._after(self.num_rounds), x), jnp.nan)

    def staged(self, x: Any) -> Float[Array, "t m *p"]:
        """The function after 0, 1, 2, … rounds, from one cross-Gram matrix."""
        values = _staged(self.conditioned, *self._safe, new_rows(self.conditioned, x))
        return jnp.where(self.ok, values, jnp.nan)

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether there are numbers behind `result`."""
        return is_usable(self.conditioned.result)

    def _after(self, rounds: Int[Array, ""]) -> Conditioned:
        """Conditioned with the coefficients of a round, for predictions of the mean only."""
        alpha, free = self._safe
        c = eqx.tree_at(lambda c: c.alpha, self.conditioned, alpha[rounds])
        return c if free is None else eqx.tree_at(lambda c: c.free.coefficients, c, free[rounds])

    @property
    def _safe(self) -> tuple[Any, Any]:
        """The coefficients without NaN, which no derivative behind a user's `where(ok, …)` is to meet."""
        return jax.tree.map(lambda leaf: jnp.where(self.ok, leaf, 0.0), (self.alpha, self.free))

    def __repr__(self):
        chosen = f"{int(self.num_rounds)} of " if is_concrete(self.num_rounds) and not self.num_rounds.ndim else ""
        return f"Boosted({chosen}{self.training_error.shape[-1] - 1} rounds, {self.conditioned!r})"


def boosted(
    model: Any,
    data: Any,
    *,
    rounds: int = 100,
    learning_rate: Any = 0.1,
    validation: Any = None,
    by: str | None = None,
    patience: int | None = None,
    throw: bool = True,
) -> Boosted:
    """Boosting of kernel ridge regression on residuals: `f_t = f_{t-1} + ν·KRR(y - f_{t-1})`, from the mean function on.

    All rounds come from one eigendecomposition, O(n³) once and O(n²) a round: the residuals are `r_t = (I - νH)ᵗ (y - μ)`.
    The learner should be weak: a large noise (ridge), a learning rate ν in (0, 1]. ν = 1 and two rounds is twicing.

    How many rounds to keep: all; with `validation` (a `Data`), as many as have the least mean squared error on it; with
    `by="gcv"`, the least generalised cross-validation on the training rows, no data held back. Rounds are cheap, so the
    least of all is taken, the earliest of equals; `patience` looks no further than that many rounds without a new least.
    If the last round is the best, the status is `max_steps_reached`: more `rounds` may be better still (it never raises).

    Works inside `jit`, `vmap` and `grad`. The number of rounds counts as fixed in derivatives; those of
    `effective_degrees_of_freedom` and `gcv` are right to first order only.
    """
    check_model_and_data(model, data, "boosted")
    if not isinstance(model, Model):
        raise TypeError(f"boosted wants a kx.Model, which fits residuals by least squares, got {model!r}.")
    if model.noise.ndim:
        raise ValueError("boosted needs one noise for all rows; this model has one per row.")
    _check_whole(rounds, "rounds")
    if patience is not None:
        _check_whole(patience, "patience")
    rate = as_floats(learning_rate, "learning_rate")
    if rate.ndim or (is_concrete(rate) and not 0 < rate <= 1):
        raise ValueError(f"learning_rate must be one number above 0 and at most 1, got {learning_rate}.")
    if by not in (None, "gcv", "validation") or (by == "validation") > (validation is not None):
        raise ValueError(f'by must be "gcv", or "validation" along with validation=kx.Data(x, y), or None, got {by!r}.')
    if validation is not None:
        _check_validation(validation, data)
        by = by or "validation"
    if patience is not None and by is None:
        raise ValueError('patience belongs to a choice of rounds: give validation=kx.Data(x, y), or by="gcv".')
    boost = _boosted(model, data, rate, validation, int(rounds), by, patience)
    if throw:
        throw_unless(("max_steps_reached",), boost.result, "boosting")
    return boost


@eqx.filter_jit
def _boosted(
    model: Model, data: Data, rate: Array, validation: Data | None, rounds: int, by: str | None, patience: int | None
) -> Boosted:
    c = condition(model, data, Eigh(), throw=False)
    rate = rate.astype(c.data.dtype)
    shift = c.model.noise + c.jitter
    shrinkage, multiplicity = _shrinkage(c, rate, shift)
    start = c.data.zero_where_masked(c.data.y - mean_values(c.model.mean, c.data.x, c.data.y))
    # Zeros in place of NaN until the end, as in `_safe`.
    sound = is_usable(c.result)

    def one_round(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        residual, fitted_to, alpha, left = state
        step = jnp.where(sound, c.factor.solve(residual), 0.0)
        # (I - H) r = noise·K̃⁻¹ r, without the loss of digits of a difference.
        after = (1.0 - rate) * residual + rate * shift * step, fitted_to + rate * residual, alpha + rate * step
        return (*after, left * shrinkage), state

    zero = jnp.zeros_like(start)
    _, (residuals, fitted_to, alpha, left) = jax.lax.scan(
        one_round, (start, zero, zero, jnp.ones_like(shrinkage)), None, length=rounds + 1
    )
    count = c.data.count.astype(c.data.dtype)
    remaining = matmul(left, multiplicity)
    training_error = jnp.sum(residuals**2, axis=tuple(range(1, residuals.ndim))) / (count * c.data.num_outputs)
    share = remaining / count
    gcv = jnp.where(share > 0, training_error / jnp.where(share > 0, share, 1.0) ** 2, jnp.nan)
    free = None if c.free is None else jnp.einsum("nq,tn...->tq...", c.free.weights, fitted_to, precision="highest")

    error = None if validation is None else _validation_error(c, alpha, free, validation)
    scores = {"gcv": gcv, "validation": error, None: None}[by]
    chosen = jnp.asarray(rounds) if scores is None else _least(jax.lax.stop_gradient(scores), patience)
    result = Result.successful
    if scores is not None:
        result = Result.where(chosen < rounds, result, Result.max_steps_reached)
        result = Result.where(jnp.any(jnp.isfinite(scores)), result, Result.nonfinite)
    if validation is not None:
        result = Result.where(jnp.any(validation.mask), result, Result.empty)
    # A traced rate could not be refused.
    result = Result.where((rate > 0) & (rate <= 1), result, Result.nonfinite)
    result = Result.where(c.result == Result.successful, result, c.result)

    def or_nan(values: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.where(sound, leaf, jnp.nan), values)

    return Boosted(
        conditioned=c,
        alpha=or_nan(alpha),
        free=or_nan(free),
        learning_rate=rate,
        num_rounds=chosen,
        training_error=or_nan(training_error),
        validation_error=or_nan(error),
        effective_degrees_of_freedom=or_nan(count - remaining),
        gcv=or_nan(gcv),
        result=result,
    )


def _shrinkage(c: Conditioned, rate: Float[Array, ""], shift: Float[Array, ""]) -> tuple[Array, Array]:
    """The eigenvalues of `I - νH`, and how often each counts in a trace."""
    factor = spectral_factor(c)
    spectrum = factor.spectrum
    counts = spectrum.counts & is_usable(c.result)
    values = jnp.where(counts, _eigenvalues(factor.gram, spectrum.vectors, spectrum.values), 1.0)
    multiplicity = counts.astype(values.dtype)
    shift = jnp.where(is_usable(c.result), shift, 1.0)
    shrinkage = 1.0 - rate * values / (values + shift)
    if isinstance(c.factor, ProjectedFactor):
        # Its matrix has the level in place of the free directions, in which H is the identity.
        level, number = c.factor.projection.level, c.factor.projection.basis.shape[1]
        shrinkage = jnp.concatenate([shrinkage, jnp.stack([1.0 - rate * level / (level + shift), 1.0 - rate])])
        multiplicity = jnp.concatenate([multiplicity, jnp.asarray([-number, number], values.dtype)])
    return shrinkage, multiplicity


@jax.custom_jvp
def _eigenvalues(gram: Float[Array, "n n"], vectors: Float[Array, "n n"], values: Float[Array, " n"]) -> Float[Array, " n"]:
    return values


@_eigenvalues.defjvp
def _eigenvalues_jvp(primals, tangents):
    # `vᵀ δK v`. Of equal eigenvalues only the sum is right, and a trace asks for no more.
    (gram, vectors, values), (d_gram, _, _) = primals, tangents
    return _eigenvalues(gram, vectors, values), jnp.sum(vectors * matmul(d_gram, vectors), axis=0)


@eqx.filter_jit
def _staged(c: Conditioned, alpha: Array, free: Array | None, x: Rows) -> Float[Array, "t m *p"]:
    def of_block(block: Rows) -> Array:
        values = jnp.einsum("nm,tn...->tm...", cross_gram(c, block), alpha, precision="highest")
        if free is not None:
            values = values + jnp.einsum("mq,tq...->tm...", free_values(c, block), free, precision="highest")
        return jnp.moveaxis(values + mean_values(c.model.mean, block, values[0]), 0, 1)

    return jnp.moveaxis(map_rows(of_block, x, c.data.n + alpha[:, 0].size), 1, 0)


def _validation_error(c: Conditioned, alpha: Array, free: Array | None, validation: Data) -> Float[Array, " t"]:
    x, y = jax.tree.map(lambda leaf: leaf.astype(c.data.dtype), (validation.x, validation.y))
    values = _staged(c, alpha, free, x)
    errors = jax.vmap(lambda stage: validation.zero_where_masked(y - stage))(values)
    return jnp.sum(errors**2, axis=tuple(range(1, errors.ndim))) / (validation.count * validation.num_outputs)


def _least(scores: Float[Array, " t"], patience: int | None) -> Int[Array, ""]:
    """The first of the least scores; with patience, of those before that many in a row brought no new least."""
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    if patience is None:
        return jnp.argmin(scores)
    places = jnp.arange(scores.shape[0])
    before = jnp.concatenate([jnp.full(1, jnp.inf, scores.dtype), jax.lax.cummin(scores)[:-1]])
    latest = jax.lax.cummax(jnp.where(scores < before, places, 0))
    given_up = jax.lax.cummax((places - latest >= patience).astype(int)) > 0
    return jnp.argmin(jnp.where(given_up, jnp.inf, scores))


def _check_whole(value: Any, name: str) -> None:
    if not hasattr(value, "__index__") or isinstance(value, bool) or not is_concrete(value) or np.ndim(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of 1 or more, got {value!r}.")


def _check_validation(validation: Any, data: Data) -> None:
    if not isinstance(validation, Data):
        raise TypeError(f"validation must be a kx.Data, got {type(validation).__name__}: write kx.Data(x, y).")
    check_same_columns(validation.x, data.x, "validation.x", "the data")
    if validation.mask.ndim != 1 or validation.y.shape[1:] != data.y.shape[1:]:
        raise ValueError(
            f"validation.y has shape {validation.y.shape} and data.y {data.y.shape}: they must have the same outputs."
        )
