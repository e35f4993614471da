"""L2 boosting: repeated kernel ridge regression of the residuals (Tukey's twicing; Bühlmann & Yu 2003)."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import as_floats, is_concrete, matmul
from kernax._programs import compiled
from kernax.data import Data, refuse_gaps
from kernax.means import mean_values
from kernax.model import Conditioned, Model, condition
from kernax.model._checks import check_model_and_data
from kernax.noises import is_common
from kernax.posterior import mean
from kernax.posterior._new_rows import new_rows
from kernax.rows import Rows, as_row_dtype, check_same_columns, take
from kernax.solvers import Eigh, Result, Solution, is_usable, offered, throw_unless


class Boosted(eqx.Module):
    """A model fitted by boosting residuals. Call it with new rows.

    Entry t of every array is the state after t rounds; entry 0 is the state before the first.

    `num_rounds` is the chosen number of rounds, which `boosted(x)` uses.
    """

    conditioned: Conditioned
    """The model conditioned on the data: a single round at learning rate 1."""
    solutions: Solution
    """The solution from which each round predicts, `f_t(x) = μ(x) + k_xX alpha_t`."""
    learning_rate: Float[Array, ""]
    """ν, the learning rate."""
    num_rounds: Int[Array, ""]
    training_error: Float[Array, " t"]
    """`(1/n)‖y - f_t(X)‖²`, also over outputs."""
    validation_error: Float[Array, " t"] | None
    """The same on the validation data; `None` without such data."""
    effective_degrees_of_freedom: Float[Array, " t"]
    """`tr(I - (I - νH)ᵗ)`, with `H = K(K + noise·I)⁻¹`."""
    gcv: Float[Array, " t"]
    """`training_error / (1 - degrees of freedom/n)²`."""
    result: Any
    """How the computation ended."""

    def __call__(self, x: Any) -> Float[Array, "m *p"]:
        """The function after `num_rounds` rounds, O(n) a row.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)` or `(m, p)`.
        """
        solution = jax.tree.map(lambda leaf: leaf[self.num_rounds], self.solutions)
        values = mean(dataclasses.replace(self.conditioned, solution=solution), x)
        return jnp.where(self.ok, values, jnp.nan)

    def staged(self, x: Any) -> Float[Array, "t m *p"]:
        """The function after 0, 1, 2, … rounds.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(rounds + 1, m)` or `(rounds + 1, m, p)`.
        """
        values = _staged(self.conditioned, self.solutions, new_rows(self.conditioned, x))
        return jnp.where(self.ok, values, jnp.nan)

    @property
    def alpha(self) -> Float[Array, "t n *p"]:
        """The coefficients of each round; NaN if conditioning failed."""
        return jnp.where(self.ok, self.solutions.value, jnp.nan)

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether the answers are usable."""
        return is_usable(self.conditioned.result)

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
    """Boosting of kernel ridge regression on its own residuals: `f_t = f_{t-1} + ν·KRR(y - f_{t-1})`, starting at the mean.

    All rounds use one eigendecomposition: O(n³) once, and O(n²) a round. The residuals are `r_t = (I - νH)ᵗ (y - μ)`. A
    single round should fit weakly, that is, the model should have a large noise.

    Works inside `jit`, `vmap` and `grad`. Derivatives treat the number of rounds as fixed; those of
    `effective_degrees_of_freedom` and `gcv` are right to first order only.

    **Arguments:**

    - `model`: the model of each round. Its noise is the ridge.
    - `data`: the rows.
    - `rounds`: the largest number of rounds.
    - `learning_rate`: ν, in (0, 1]. With ν = 1, two rounds are known as twicing.
    - `validation`: other data. The number of rounds with the smallest mean squared error on it is kept.
    - `by`: `"gcv"` keeps the number of rounds with the smallest generalised cross-validation on the training rows.
    - `patience`: stop after this many rounds without a new minimum. By default all rounds are computed, and the earliest of
      the best ones is kept.
    - `throw`: raise an error if there are no usable numbers; with `False` return the status.

    **Returns:**

    A [`kernax.learners.Boosted`][]: a function of new rows. If the last round is the best, its status is
    `max_steps_reached`: more rounds may be better still.
    """
    check_model_and_data(model, data, "boosted")
    refuse_gaps(data, "boosted")
    if not isinstance(model, Model):
        raise TypeError(f"boosted needs a kx.Model, because it fits residuals by least squares, got {model!r}.")
    if not is_common(model.noise):
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
        raise ValueError(
            'patience needs a criterion that chooses the number of rounds: give validation=kx.Data(x, y), or by="gcv".'
        )
    boost = _boosted(model, data, rate, validation, int(rounds), by, patience)
    if throw:
        throw_unless(("max_steps_reached",), boost.result, "boosting")
    return boost


@compiled
def _boosted(
    model: Model, data: Data, rate: Array, validation: Data | None, rounds: int, by: str | None, patience: int | None
) -> Boosted:
    c = condition(model, data, Eigh(), throw=False)
    rate = rate.astype(c.data.dtype)
    shift = c.system.noise + c.jitter
    shrinkage, multiplicity = _shrinkage(c, rate, shift)
    sound = is_usable(c.result)

    def one_round(state: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        residual, total, left = state
        # Zeros in place of NaN until the end: no derivative behind a user's `where(ok, …)` is to meet it.
        step = jax.tree.map(lambda leaf: jnp.where(sound, leaf, 0.0), _numbers(c.system.solve(residual)))
        # (I - H) r = noise·K̃⁻¹ r, without the loss of digits of a difference.
        after = (1.0 - rate) * residual + rate * shift * step.value
        # Solutions are linear in what they solve for: their sum is the solution for the sum.
        total_after = jax.tree.map(lambda old, new: old + rate * new, total, step)
        return (after, total_after, left * shrinkage), state

    nothing = jax.tree.map(jnp.zeros_like, _numbers(c.solution))
    _, (residuals, solutions, left) = jax.lax.scan(
        one_round, (c.residual, nothing, jnp.ones_like(shrinkage)), None, length=rounds + 1
    )
    count = c.data.count.astype(c.data.dtype)
    remaining = matmul(left, multiplicity)
    training_error = jnp.sum(residuals**2, axis=tuple(range(1, residuals.ndim))) / (count * c.data.num_outputs)
    share = remaining / count
    gcv = jnp.where(share > 0, training_error / jnp.where(share > 0, share, 1.0) ** 2, jnp.nan)
    every = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rounds + 1, *jnp.shape(leaf))), c.solution.result)
    solutions = solutions._replace(result=every, steps=jnp.zeros(rounds + 1, int))
    error = None if validation is None else _validation_error(c, solutions, validation)
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
        solutions=solutions,
        learning_rate=rate,
        num_rounds=chosen,
        training_error=or_nan(training_error),
        validation_error=or_nan(error),
        effective_degrees_of_freedom=or_nan(count - remaining),
        gcv=or_nan(gcv),
        result=result,
    )


def _numbers(solution: Solution) -> Solution:
    """The parts of a solution that are linear in what it solves for."""
    kept = eqx.filter(solution.kept, eqx.is_inexact_array)
    return Solution(solution.value, None, steps=None, kept=kept, residual=None, jitter=None)


def _shrinkage(c: Conditioned, rate: Float[Array, ""], shift: Float[Array, ""]) -> tuple[Array, Array]:
    """The eigenvalues of `I - νH`, and how often each counts in a trace."""
    values = offered(c.system.eigenvalues(), c.solver, "boosting", "the eigenvalues of the kernel matrix")
    counts = ~jnp.isnan(values) & is_usable(c.result)
    values, shift = jnp.where(counts, values, 1.0), jnp.where(is_usable(c.result), shift, 1.0)
    shrinkage, multiplicity = 1.0 - rate * values / (values + shift), counts.astype(values.dtype)
    if c.system.num_free:
        # K has the eigenvalue 0 in the free directions, in which H is the identity.
        free = jnp.asarray([1.0, -1.0], values.dtype) * c.system.num_free
        shrinkage = jnp.concatenate([shrinkage, jnp.stack([1.0 - rate, jnp.ones_like(rate)])])
        multiplicity = jnp.concatenate([multiplicity, free])
    return shrinkage, multiplicity


@compiled
def _staged(c: Conditioned, solutions: Solution, x: Rows) -> Float[Array, "t m *p"]:
    rounds, outputs = solutions.value.shape[0], c.data.num_outputs

    def beside(leaf: Array) -> Array:
        """The rounds as columns of one solution, after which all of them share one cross-Gram matrix."""
        return jnp.moveaxis(leaf, 0, -2).reshape(*leaf.shape[1:-1], rounds * outputs)

    value = solutions.value.reshape(rounds, c.data.n, outputs)
    joint = jax.tree.map(beside, _numbers(solutions._replace(value=value)))
    values = c.system.mean(x, joint).reshape(-1, rounds, *c.residual.shape[1:])
    return jnp.moveaxis(values, 1, 0) + mean_values(c.model.mean, x, values[:, 0])


def _validation_error(c: Conditioned, solutions: Solution, validation: Data) -> Float[Array, " t"]:
    x, y = as_row_dtype(take(validation.x), c.data.dtype), validation.y.astype(c.data.dtype)
    values = _staged(c, solutions, x)
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
    refuse_gaps(validation, "validation")
    check_same_columns(validation.x, data.x, "validation.x", "the data")
    if validation.mask.ndim != 1 or validation.y.shape[1:] != data.y.shape[1:]:
        raise ValueError(
            f"validation.y has shape {validation.y.shape} and data.y {data.y.shape}: they must have the same outputs."
        )
