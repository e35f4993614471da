"""The rounds of AdaBoost, as one loop."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax.data import Data
from kernax.learners._members import AbstractMembers
from kernax.rows import take


class Limits(NamedTuple):
    """When to stop; arrays, so that other limits do not compile again."""

    rounds: Int[Array, ""]
    patience: Int[Array, ""]
    bound: Float[Array, ""]


class Rounds(NamedTuple):
    """The results of every round; NaN in rounds that did not take place."""

    fitted: Any
    votes: Float[Array, " t"]
    errors: Float[Array, " t"]
    normalisers: Float[Array, " t"]
    training_errors: Float[Array, " t"]
    bounds: Float[Array, " t"]
    validation_errors: Float[Array, " t"]


class State(NamedTuple):
    """The state of the loop. `kept` rounds have the least validation error so far; without validation it is all of them."""

    made: Int[Array, ""]
    rounds: Any
    weights: Float[Array, " n"]
    scores: Float[Array, " n"]
    validation_scores: Float[Array, " m"] | None
    total_vote: Float[Array, ""]
    bound: Float[Array, ""]
    kept: Int[Array, ""]
    kept_error: Float[Array, ""]
    kept_scores: Float[Array, " n"]
    finished: Bool[Array, ""]
    no_edge: Bool[Array, ""]


def boost(
    data: Data,
    validation: Data | None,
    weights: Float[Array, " n"],
    members: AbstractMembers,
    max_rounds: int,
    limits: Limits,
) -> State:
    """Rounds until a limit, a perfect member, or none that is better than chance; `weights` is D₁ and sums to 1 (or 0)."""
    prepared = members.prepare(take(data.x))
    state = _start(data, validation, weights, members, max_rounds, prepared)

    def turn(state: State) -> State:
        member = members.best(prepared, data.y, state.weights)
        new, told = _with_member(state, member, members, data, validation, weights, limits)
        # The gain of a round is 1 - Z ≈ 2γ²; an edge γ whose gain is lost in rounding is none.
        edge = 0.5 - told.errors
        better = (edge > 0) & (2.0 * edge**2 > jnp.finfo(data.dtype).eps)
        # Only the entry of this round is chosen: a choice between the whole arrays would copy them.
        place = state.made
        rounds = jax.tree.map(lambda all_, one: all_.at[place].set(jnp.where(better, one, all_[place])), state.rounds, told)
        old = state._replace(finished=jnp.asarray(True), no_edge=jnp.asarray(True), rounds=None)
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)._replace(rounds=rounds)

    def going_on(state: State) -> Bool[Array, ""]:
        return ~state.finished & (state.made < limits.rounds)

    return jax.lax.while_loop(going_on, turn, state)


def _start(
    data: Data, validation: Data | None, weights: Array, members: AbstractMembers, max_rounds: int, prepared: Any
) -> State:
    dtype = data.dtype
    shapes = eqx.filter_eval_shape(members.best, prepared, data.y, weights)
    fitted = jax.tree.map(lambda leaf: jnp.zeros((max_rounds, *leaf.shape), leaf.dtype), shapes)
    blank, zero = jnp.full(max_rounds, jnp.nan, dtype), jnp.zeros((), dtype)
    empty = jnp.sum(weights) <= 0
    return State(
        made=jnp.zeros((), jnp.int32),
        rounds=Rounds(fitted, jnp.zeros(max_rounds, dtype), blank, blank, blank, blank, blank),
        weights=weights,
        scores=jnp.zeros_like(weights),
        validation_scores=None if validation is None else jnp.zeros_like(validation.y),
        total_vote=zero,
        bound=zero + 1.0,
        kept=jnp.zeros((), jnp.int32),
        kept_error=zero + jnp.inf,
        kept_scores=jnp.zeros_like(weights),
        finished=empty,
        no_edge=jnp.asarray(False),
    )


def _with_member(
    state: State,
    member: Any,
    members: AbstractMembers,
    data: Data,
    validation: Data | None,
    weights: Float[Array, " n"],
    limits: Limits,
) -> tuple[State, Rounds]:
    """One round with this member: the state after it, without the earlier rounds, and the results of the round."""
    values = members.values(member, take(data.x))
    error = jnp.sum(jnp.where(values != data.y, state.weights, 0.0))
    perfect = error <= 0
    safe = jnp.where(perfect, 0.5, error)
    # A perfect member's own vote would be infinite; one more than all others together have decides alone.
    vote = jnp.where(perfect, 1.0 + state.total_vote, 0.5 * jnp.log((1.0 - safe) / safe))
    normaliser = jnp.where(perfect, jnp.exp(-vote), 2.0 * jnp.sqrt(safe * (1.0 - safe)))
    bound = state.bound * normaliser
    changed = state.weights * jnp.exp(-vote * data.y * values)
    scores = state.scores + vote * values
    training_error = jnp.sum(jnp.where(data.y * scores <= 0, weights, 0.0))

    validation_scores, validation_error, better = None, jnp.asarray(jnp.nan, data.dtype), jnp.asarray(True)
    if validation is not None:
        assert state.validation_scores is not None
        validation_scores = state.validation_scores + vote * members.values(member, take(validation.x))
        wrong = validation.mask & (validation.y * validation_scores <= 0)
        validation_error = (jnp.sum(wrong) / jnp.maximum(validation.count, 1)).astype(data.dtype)
        better = validation_error < state.kept_error

    made = state.made + 1
    kept = jnp.where(better, made, state.kept)
    finished = perfect | (made - kept >= limits.patience) | (bound <= limits.bound)
    told = Rounds(member, vote, error, normaliser, training_error, bound, validation_error)
    new = State(
        made=made,
        rounds=None,
        # The sum is Z but for rounding, which would add up.
        weights=changed / jnp.sum(changed),
        scores=scores,
        validation_scores=validation_scores,
        total_vote=state.total_vote + vote,
        bound=bound,
        kept=kept,
        kept_error=jnp.where(better, validation_error, state.kept_error),
        kept_scores=jnp.where(better, scores, state.kept_scores),
        finished=finished,
        no_edge=state.no_edge,
    )
    return new, told
