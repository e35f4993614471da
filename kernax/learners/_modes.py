"""The mode of a posterior whose likelihood is not normal, with any solver, and the normal approximation around it.

With the pulls `g = -loss'` and the curvatures `W = loss''` at f, a Newton step is regression: it conditions on the targets
`f + g/W` with noise `1/W` in each row,

    α = (K + W⁻¹)⁻¹ (f + g/W),   f = Kα,

which every System can do (Rasmussen & Williams, 3.4). At the mode α = g. Where W is 0 the row is only pulled: α = g there
whatever K is. A noise so large that its row says nothing about f does that, to the last digit.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.grams import AbstractGram
from kernax.learners._newton import Minimum, best_of_two_starts, minimise
from kernax.learners._stationarity import AbstractLinearised, DataTerm, Direction, Point, missing_force
from kernax.solvers import AbstractSolver, AbstractSystem, Solution

Scalar = Float[Array, ""]
Row = Float[Array, " n"]


class Prior(eqx.Module):
    """K, prepared, so that each step changes its noise alone."""

    first: AbstractSystem
    solver: AbstractSolver
    floor: Scalar
    """What W is taken for at least: a row of this noise says less about f than rounding does."""

    def weights(self, term: DataTerm, values: Row) -> Row:
        """W at these values."""
        found = term.curvatures(values)
        return jnp.where(found > self.floor, found, self.floor)

    def with_weights(self, weights: Row) -> AbstractSystem:
        """The System of `K + W⁻¹`."""
        return self.solver.prepare_again(self.first, 1.0 / weights)


class Approximation(NamedTuple):
    """The normal approximation at some values: that of the mode, if these are its values."""

    system: AbstractSystem
    """`K + W⁻¹`."""
    solution: Solution
    weights: Row


class Conditioning(AbstractLinearised):
    """A Newton step by the System of `K + W⁻¹`."""

    system: AbstractSystem
    weights: Row

    @property
    def jitter(self):
        return self.system.jitter

    @property
    def result(self):
        return self.system.result

    def direction(self, at, pulls):
        solution = self.system.solve(at.values + pulls / self.weights)
        change, fitted = solution.value - at.alpha, self.system.fitted(solution) - at.fitted
        return Direction(change, jnp.zeros_like(at.intercept), fitted)


def prior_of(gram: AbstractGram, solver: AbstractSolver, term: DataTerm) -> Prior:
    """K with whatever the solver chooses and computes once."""
    eps = jnp.finfo(term.y.dtype).eps
    largest = jax.lax.stop_gradient(jnp.max(gram.diagonal()))
    floor = eps**2 / jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return Prior(solver.prepare(gram, jnp.ones_like(term.y)), solver, floor)


def mode(prior: Prior, term: DataTerm, max_steps: int) -> Minimum:
    """The mode, from f = 0. Nothing of it is differentiable."""
    prior, term = jax.lax.stop_gradient((prior, term))
    zeros, zero = jnp.zeros_like(term.y), jnp.zeros((), term.y.dtype)

    def linearise_of(term: DataTerm) -> Callable[[Row, Row], Conditioning]:
        def linearise(values: Row, least: Row) -> Conditioning:
            weights = jnp.maximum(prior.weights(term, values), least)
            return Conditioning(prior.with_weights(weights), weights)

        return linearise

    def from_start(term: DataTerm, start: Point) -> Minimum:
        return minimise(term, start, linearise_of(term), max_steps, reuse=False)

    return best_of_two_starts(term, Point(zeros, zero, zeros), from_start)


def approximation(prior: Prior, term: DataTerm, values: Row) -> Approximation:
    """The System of `K + W⁻¹` with the curvatures at these values, and its solution for the targets of a Newton step."""
    weights = prior.weights(term, values)
    system = prior.with_weights(weights)
    return Approximation(system, system.solve(values + term.pulls(values) / weights), weights)


@eqx.filter_custom_jvp
def _at_mode(prior: Prior, term: DataTerm, constants: tuple[Row, Row]) -> tuple[Row, Row]:
    return constants


@_at_mode.def_jvp
def _at_mode_jvp(primals, tangents):
    # Not the constants: differentiated once more, these must still depend on the rest.
    alpha, values = _at_mode(*primals)

    def step(prior: Prior, term: DataTerm) -> tuple[Row, Row]:
        found = approximation(prior, term, values)
        return found.solution.value, found.system.fitted(found.solution)

    change = eqx.filter_jvp(step, primals[:2], tangents[:2])[1]
    prior, term, _ = primals
    if term.loss.surrogate is not None:
        # Where the loss bends down, W was taken for 0, and the step depends on the values that it starts from.
        weights, missing = prior.weights(term, values), jnp.maximum(-term.second_slopes(values), 0.0)
        system = prior.with_weights(weights)

        def follows(force: Row) -> Solution:
            return system.solve(force / weights)

        force = missing_force(lambda force: system.fitted(follows(force)), missing, change[1])
        solution = follows(force)
        change = (change[0] + solution.value, change[1] + system.fitted(solution))
    return (alpha, values), change


def attached(prior: Prior, term: DataTerm, alpha: Row, values: Row) -> tuple[Row, Row]:
    """α and f at the mode, with the derivatives, of any order, that they have as functions of `prior` and `term`.

    The mode is where a Newton step leads to itself, and there the step does not depend on where it starts from. So the
    derivative of the mode is that of the step, from a fixed f. It costs nothing unless differentiated.
    """
    return _at_mode(prior, term, jax.lax.stop_gradient((alpha, values)))
