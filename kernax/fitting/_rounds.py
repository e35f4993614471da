"""Rounds of a fit: solvers that choose neighbours or inducing rows choose them anew with the parameters reached so far.

Within a round the choice stays, so the objective is smooth. Each round begins where the one before ended, with what that
has learned of the curvature. Early rounds need not be exact: they stop sooner, and if the solver can estimate the
likelihood from a random part of the rows, they use a part.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from kernax.data import Data
from kernax.fitting._lanes import run_lanes
from kernax.fitting._loop import LoopState, Objective, Problem, Rules
from kernax.model import AbstractModel, settled
from kernax.parameters import join
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver

_PART = 8192
"""Rows of the part that early rounds use. Data of less than twice as many rows is used whole."""

_EARLY_STEPS = 40
"""The most evaluations of an early round."""


def run_rounds(
    frees: list[AbstractModel],
    held: AbstractModel,
    data: Data,
    objective: Objective,
    solver: AbstractSolver,
    rules: Rules,
    *,
    progress: bool,
) -> tuple[list[LoopState], Problem, list[LoopState]]:
    """All rounds of an eager fit.

    **Arguments:**

    - `frees`: the starts, unconstrained.
    - `held`, `data`, `objective`, `solver`: what makes up the problem.
    - `rules`: those of the last round.
    - `progress`: whether to show a bar.

    **Returns:**

    The lanes of the last round, its problem, and the best lane of every round before.
    """
    part = _PART if objective is negative_log_marginal_likelihood and data.n > 2 * _PART else None
    early = dataclasses.replace(
        rules,
        max_steps=min(rules.max_steps, _EARLY_STEPS),
        # What remains is less than what the next choice changes.
        value_tolerance=max(rules.value_tolerance, 0.1 if rules.in_nats else 1e-4),
        gradient_tolerance=math.inf,
    )
    model, before, done = join(frees[0], held), None, []
    for _ in range(solver.num_refreshes):
        problem = Problem(held, data, objective, settled(solver, model, data, part))
        lanes = run_lanes(frees, problem, early, progress=progress, before=before)
        before = _best(lanes)
        if not np.isfinite(before.best.value) or bool(before.running):  # hopeless, or interrupted
            return lanes, problem, done
        done.append(before)
        frees, model = [before.best.free], join(before.best.free, held)
    problem = Problem(held, data, objective, settled(solver, model, data))
    return run_lanes(frees, problem, rules, progress=progress, before=before), problem, done


def _best(lanes: list[LoopState]) -> LoopState:
    values = [float(state.best.value) for state in lanes]
    return lanes[int(np.argmin([value if math.isfinite(value) else math.inf for value in values]))]


def joined_history(answer: Any, earlier: list[LoopState]) -> Any:
    """The history of all rounds, one after another."""
    parts = [np.asarray(state.history)[: int(state.step)] for state in earlier]
    return np.concatenate([*parts, np.asarray(answer.history)])
