"""Rounds of a fit: solvers that choose neighbours or inducing rows choose them again with the parameters reached so far.

Within a round the choice stays, so the objective is smooth. Each round begins where the one before ended, with what that
has learned of the curvature. Early rounds need not be exact: they stop sooner, and if the solver can estimate the
likelihood from a random part of the rows, they use a part.
"""

import dataclasses
import math

import numpy as np

from kernax._programs import compiled
from kernax._threads import with_threads_for
from kernax.data import Data
from kernax.fitting._checkpoint import FitCheckpoint
from kernax.fitting._convergence import Rules
from kernax.fitting._lanes import run_lanes
from kernax.fitting._loop import LoopState
from kernax.fitting._problem import Problem
from kernax.fitting._request import Request
from kernax.model import AbstractModel, settled
from kernax.model._condition import has_choices
from kernax.parameters import join
from kernax.selection import negative_log_marginal_likelihood

_PART = 8192
"""Rows of the part that early rounds use. Data of less than a quarter more is used whole."""

_EARLY_STEPS = 40
"""The most evaluations of an early round."""


def run_rounds(
    frees: list[AbstractModel],
    held: AbstractModel,
    data: Data,
    request: Request,
    rules: Rules,
    *,
    progress: bool,
    before: LoopState | None = None,
    kept: FitCheckpoint | None = None,
) -> list[list[LoopState]]:
    """The lanes of all rounds of an eager fit from these starts. The last round has these rules. `before` and `kept` are as
    in `run_lanes`.
    """
    objective, solver = request.objective, request.solver
    part = _PART if objective is negative_log_marginal_likelihood and data.n > 1.25 * _PART else None
    early = dataclasses.replace(
        rules,
        max_steps=min(rules.max_steps, _EARLY_STEPS),
        # What remains is less than what the next choice changes.
        value_tolerance=max(rules.value_tolerance, 0.1 if rules.in_nats else 1e-4),
        gradient_tolerance=math.inf,
    )
    # Only choices look at the model, and joining it is a program.
    model, rounds = joined(frees[0], held) if has_choices(solver) else held, []

    def run(rules: Rules, part: int | None) -> list[LoopState]:
        problem = Problem(held, data, objective, settled(solver, model, data, part))
        title = f"fit, round {len(rounds) + 1} of {solver.num_refreshes + 1}" if solver.num_refreshes else "fit"
        how = {"progress": progress, "key": request.key_of_starts, "before": before, "kept": kept, "title": title}
        return with_threads_for(problem.solver.largest_matrix(data.n), run_lanes, frees, problem, rules, **how)

    for _ in range(solver.num_refreshes):
        rounds.append(run(early, part))
        before = best_lane(rounds[-1])
        if not np.isfinite(before.best.value) or bool(before.running):  # hopeless, or interrupted
            return rounds
        frees, model = [before.best.free], joined(before.best.free, held)
    return [*rounds, run(rules, None)]


joined = compiled(join)  # one program instead of several for each parameter


def best_lane(lanes: list[LoopState]) -> LoopState:
    """The lane with the lowest finite value."""
    return lanes[int(np.argmin(values_of(lanes)))]


def values_of(lanes: list[LoopState]) -> np.ndarray:
    """The best value of each lane; infinity for one that has none."""
    values = np.array([float(state.best.value) for state in lanes])
    return np.where(np.isfinite(values), values, np.inf)
