"""AdaBoost: weak learners are added one by one, each trained on the rows that the earlier ones got wrong."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import check_finite, is_concrete, whole_number
from kernax._programs import compiled
from kernax.data import Data
from kernax.learners._boosting_rounds import Limits, boost
from kernax.learners._design import as_row_weights, check_data
from kernax.learners._machines import check_labels
from kernax.learners._members import AbstractMembers
from kernax.learners._stumps import Stumps
from kernax.learners._votes import sign
from kernax.rows import Rows, as_row_dtype, as_rows, take
from kernax.solvers import Result, result_name, throw_unless

_POWER = 0.75


class AdaBoost(eqx.Module):
    """A classifier fitted by AdaBoost, `F(x) = Σₜ αₜ fₜ(x)`. Call it with new rows.

    Entry t of every array belongs to round t. Rounds that did not take place have vote 0, and NaN everywhere else.
    """

    members: AbstractMembers
    """The class of the members."""
    fitted: Any
    """The members themselves, stacked."""
    votes: Float[Array, " t"]
    """`αₜ = ½ log((1 - εₜ)/εₜ)`."""
    errors: Float[Array, " t"]
    """`εₜ`, the member's error under the weights of its round."""
    normalisers: Float[Array, " t"]
    """`Zₜ = 2√(εₜ(1 - εₜ))`."""
    training_errors: Float[Array, " t"]
    """The share, under the initial weights D₁, of rows with `yF(x) ≤ 0`."""
    bounds: Float[Array, " t"]
    """`∏ Zₛ = Σᵢ D₁(i) e^{-yᵢF(xᵢ)}`, an upper bound of `training_errors`."""
    validation_errors: Float[Array, " t"] | None
    """The share of the validation rows with `yF(x) ≤ 0`; `None` without such data."""
    weights: Float[Array, " n"]
    """The weights with which another round would start. They sum to 1."""
    margins: Float[Array, " n"]
    """`yᵢF(xᵢ)/Σₜαₜ` at the rows of the data, from −1 to 1. Positive if the row is classified correctly."""
    num_rounds: Int[Array, ""]
    """The number of rounds that took place and are kept."""
    result: Any
    """How boosting ended."""
    shapes: Any = eqx.field(static=True)
    """The shape of one row, to check new rows."""

    def __repr__(self):
        if not is_concrete(self.num_rounds) or self.num_rounds.ndim:
            return f"AdaBoost({self.members!r}, {self.votes.shape[-1]} rounds at most)"
        rounds = int(self.num_rounds)
        error = f", training error {float(self.training_errors[rounds - 1]):.4g}" if rounds else ""
        return f"AdaBoost({result_name(self.result)}, {rounds} rounds of {self.members!r}{error})"

    def __call__(self, x: Any) -> Float[Array, " m"]:
        """The weighted sum of votes, `F(x) = Σₜ αₜ fₜ(x)`.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)`.
        """
        return _scores(self.members, self.fitted, self.votes, self._rows(x))

    def classify(self, x: Any) -> Float[Array, " m"]:
        """The class of each row, `sign F(x)`.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        -1 or +1 for each row; +1 for a tie.
        """
        return sign(self(x))

    def majority(self, x: Any) -> Float[Array, " m"]:
        """The majority of the members if each has one vote.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        -1 or +1 for each row; +1 for a tie.
        """
        one_each = jnp.where(jnp.arange(self.votes.shape[0]) < self.num_rounds, 1.0, 0.0 * self.votes)
        return sign(_scores(self.members, self.fitted, one_each, self._rows(x)))

    def staged(self, x: Any) -> Float[Array, "t m"]:
        """The values `F(x)` after every round.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(rounds, m)`.
        """
        return _staged(self.members, self.fitted, self.votes, self._rows(x))

    def _rows(self, x: Any) -> Rows:
        x = take(as_rows(x, "x", one="one new point is a row of its own"))
        if _shapes(x) != self.shapes:
            raise ValueError(f"a row of x has the shape {_shapes(x)[1]}, but the committee was trained on {self.shapes[1]}.")
        for leaf in jax.tree.leaves(x):
            check_finite(leaf, "x")
        return as_row_dtype(x, self.votes.dtype)


def adaboost(
    data: Any,
    *,
    members: Any = None,
    rounds: int | None = None,
    weights: Any = None,
    validation: Any = None,
    patience: int | None = None,
    bound: float | None = None,
    throw: bool = True,
) -> AdaBoost:
    """AdaBoost on labels −1 and +1.

    All rows start with the weight `D₁ = 1/n`, or one proportional to `weights`. Round t chooses the member with the smallest
    weighted error `εₜ = Σᵢ Dₜ(i) 1[fₜ(xᵢ) ≠ yᵢ]`, gives it the vote `αₜ = ½ log((1 - εₜ)/εₜ)`, and moves weight to the rows
    that it got wrong: `Dₜ₊₁(i) = Dₜ(i) exp(-αₜ yᵢ fₜ(xᵢ)) / Zₜ` with `Zₜ = 2√(εₜ(1 - εₜ))`. scikit-learn's votes are twice
    these.

    Boosting ends

    - after `rounds`;
    - after a member without error. Its vote is larger by 1 than those of all earlier members together, so the committee
      makes no error either, and `Zₜ = exp(-αₜ)`;
    - before a member that is no better than chance (`εₜ ≥ ½` up to rounding), with the status `no_better_than_chance`. If
      this is the first member, a call outside of `jit` raises an error, since there is no committee. In a later round it
      means that the exponential loss cannot be reduced further;
    - when a condition given by `bound` or `patience` holds.

    One compiled program runs all rounds. It works under `jit` and `vmap`, where a status replaces errors. It has no
    derivative.

    **Arguments:**

    - `data`: rows with labels −1 and +1.
    - `members`: the class of members: `Stumps()` (the default), `Trees`, `LinearThresholds`, `Dictionary`, or a subclass of
      `AbstractMembers`.
    - `rounds`: the largest number of rounds, by default `n^(3/4)` for n rows that count: 30 for 100 rows, 300 for 2000. Any
      power below 1 makes boosting consistent, while n² rounds overfit.
    - `weights`: the initial weights of the rows.
    - `validation`: other data, to measure the error on. The committee of the round with the smallest error is kept.
    - `patience`: end after this many rounds without a smaller error on `validation`.
    - `bound`: end when `∏Zₜ`, a bound on the training error, is at most this.
    - `throw`: raise an error if there is no committee; with `False` return the status.

    **Returns:**

    An [`kernax.learners.AdaBoost`][]: a function of new rows, with the errors, votes and bounds of each round.
    """
    _check_labelled(data, "adaboost")
    if validation is not None:
        _check_labelled(validation, "adaboost (validation)")
        if _shapes(validation.x) != _shapes(data.x):
            raise ValueError(f"rows of validation have the shape {_shapes(validation.x)[1]}, of data {_shapes(data.x)[1]}.")
    members = Stumps() if members is None else members
    if not isinstance(members, AbstractMembers):
        raise TypeError(f"members must be an instance such as learners.Stumps(), got {members!r}.")
    if patience is not None and validation is None:
        raise ValueError("patience counts rounds without a smaller error on validation data: give validation= as well.")
    if bound is not None and not bound > 0:
        raise ValueError(f"bound must be positive, got {bound}.")
    max_rounds = _default_rounds(data.n) if rounds is None else whole_number(rounds, "rounds")
    # What was not asked for is never reached; as one and the same program.
    limits = Limits(
        rounds=_rounds_by_count(data) if rounds is None else jnp.asarray(max_rounds),
        patience=jnp.asarray(max_rounds + 1 if patience is None else whole_number(patience, "patience")),
        bound=jnp.asarray(-1.0 if bound is None else float(bound)),
    )
    committee = _adaboost(data, validation, _as_weights(weights, data), members, max_rounds, limits)
    if throw and is_concrete(committee.num_rounds) and committee.num_rounds.ndim == 0:
        usable = ("no_better_than_chance",) if int(committee.num_rounds) > 0 else ()
        throw_unless(usable, committee.result, "AdaBoost")
    return committee


def rounds_for(edge: float, error: float) -> int:
    """Number of rounds after which the training error is at most `error`, if no member errs more than `½ - edge`.

    `T ≥ ln(1/δ) / 2γ²`, from `∏Zₜ ≤ (1 - 4γ²)^(T/2) ≤ exp(-2γ²T)`.

    **Arguments:**

    - `edge`: γ, by how much each member is better than chance.
    - `error`: δ, the training error to reach.

    **Returns:**

    The number of rounds.
    """
    if not 0 < edge <= 0.5 or not 0 < error <= 1:
        raise ValueError(f"edge must be in (0, ½] and error in (0, 1], got {edge} and {error}.")
    return max(1, math.ceil(math.log(1.0 / error) / (2.0 * edge**2)))


def _default_rounds(n: int) -> int:
    return max(1, round(n**_POWER))


def _rounds_by_count(data: Data) -> Int[Array, ""]:
    """The same of the rows that count: padding makes longer arrays, and no more rounds."""
    if is_concrete(data.mask):
        return jnp.asarray(_default_rounds(int(np.sum(data.mask))))
    return jnp.maximum(jnp.round(data.count.astype(data.dtype) ** _POWER), 1).astype(int)


@compiled
def _adaboost(
    data: Data,
    validation: Data | None,
    weights: Float[Array, " n"],
    members: AbstractMembers,
    max_rounds: int,
    limits: Limits,
) -> AdaBoost:
    shapes = _shapes(data.x)
    data, good = data.finite_or_zero()
    good_labels = _are_signs(data)
    if validation is not None:
        validation, finite = validation.finite_or_zero()
        good, good_labels = good & finite, good_labels & _are_signs(validation)
    good = good & jnp.all(jnp.isfinite(weights) & (weights >= 0))
    start = jnp.where(good & good_labels, weights, 0.0)
    total = jnp.sum(start)
    start = start / jnp.where(total > 0, total, 1.0)
    state = boost(data, validation, start, members, max_rounds, limits)
    some_rows = (total > 0) if validation is None else (total > 0) & jnp.any(validation.mask)
    result = Result.where(state.no_edge, Result.no_better_than_chance, Result.successful)
    result = Result.where(some_rows, result, Result.empty)
    result = Result.where(good_labels, result, Result.unknown_labels)
    result = Result.where(good, result, Result.nonfinite)

    rounds = state.rounds
    usable = some_rows & good & good_labels
    votes = jnp.where(jnp.arange(max_rounds) < state.kept, rounds.votes, 0.0)
    total_vote = jnp.sum(votes)
    margins = data.zero_where_masked(data.y * state.kept_scores) / jnp.where(total_vote > 0, total_vote, 1.0)
    return AdaBoost(
        members=members,
        fitted=rounds.fitted,
        votes=jnp.where(usable, votes, jnp.nan),
        errors=rounds.errors,
        normalisers=rounds.normalisers,
        training_errors=rounds.training_errors,
        bounds=rounds.bounds,
        validation_errors=None if validation is None else rounds.validation_errors,
        weights=state.weights,
        margins=jnp.where(usable, margins, jnp.nan),
        num_rounds=jnp.where(usable, state.kept, 0),
        result=result,
        shapes=shapes,
    )


@compiled
def _scores(members: AbstractMembers, fitted: Any, votes: Float[Array, " t"], x: Rows) -> Float[Array, " m"]:
    def add(scores: Array, of: tuple[Any, Array]) -> tuple[Array, None]:
        return scores + of[1] * members.values(of[0], x), None

    return jax.lax.scan(add, _zeros(votes, x), (fitted, votes))[0]


@compiled
def _staged(members: AbstractMembers, fitted: Any, votes: Float[Array, " t"], x: Rows) -> Float[Array, "t m"]:
    def add(scores: Array, of: tuple[Any, Array]) -> tuple[Array, Array]:
        scores = scores + of[1] * members.values(of[0], x)
        return scores, scores

    return jax.lax.scan(add, _zeros(votes, x), (fitted, votes))[1]


def _zeros(votes: Array, x: Rows) -> Float[Array, " m"]:
    return jnp.zeros(jax.tree.leaves(x)[0].shape[0], votes.dtype)


def _shapes(x: Rows) -> tuple[Any, tuple[tuple[int, ...], ...]]:
    """The structure of one row and the shapes of its parts."""
    shapes = jax.eval_shape(lambda: take(x))
    return jax.tree.structure(shapes), tuple(leaf.shape[1:] for leaf in jax.tree.leaves(shapes))


def _check_labelled(data: Any, caller: str) -> None:
    check_data(data, caller)
    if data.y.ndim != 1:
        raise ValueError(f"{caller} needs one label for each row, y of shape (n,), got {data.y.shape}.")
    check_labels(data, caller)


def _are_signs(data: Data) -> Bool[Array, ""]:
    return jnp.all(~data.mask | (jnp.abs(data.y) == 1))


def _as_weights(weights: Any, data: Data) -> Float[Array, " n"]:
    if weights is None:
        return data.mask.astype(data.dtype)
    weights = as_row_weights(weights, data)
    if is_concrete(weights) and bool(jnp.any(data.mask)) and not np.asarray(weights).any():
        raise ValueError("weights are 0 in every row that counts: give at least one row a positive weight.")
    return weights
