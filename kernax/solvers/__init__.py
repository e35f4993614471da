"""Solvers of `K + noise·I`, the Systems that they prepare, and the statuses of computations."""

from kernax._ffi import custom_calls
from kernax.solvers._bordered import Bordered, with_trend
from kernax.solvers._cg import CG, CGSystem
from kernax.solvers._cholesky import (
    Cholesky,
    CholeskySystem,
    KnownInverse,
    draw_root,
    factorise_matrix,
    logdet_definite,
    solve_definite,
)
from kernax.solvers._eigh import Eigh, EighSystem
from kernax.solvers._kronecker import Kronecker, KroneckerSystem, WhitenedSystem
from kernax.solvers._largest_eigenvalue import largest_eigenvalue, power_iteration
from kernax.solvers._least_squares import ColumnFactor, factorise_columns, solve_saddle_point
from kernax.solvers._low_rank import LowRank, LowRankSystem
from kernax.solvers._memory import available_memory
from kernax.solvers._missing_cells import MissingCellsSystem
from kernax.solvers._per_output import PerOutput, per_output
from kernax.solvers._raw import one_at_a_time_on_cpu
from kernax.solvers._result import (
    FailedError,
    Result,
    result_advice,
    result_meaning,
    result_name,
    result_text,
    throw_unless,
)
from kernax.solvers._solver import AbstractSolver, offered
from kernax.solvers._state_space import StateSpace, StateSpaceSystem
from kernax.solvers._suggest import SlowSolverWarning, Suggestion, as_code, check_memory, suggest_solver, warn_if_slow
from kernax.solvers._system import AbstractSystem, Evidence, Solution, is_usable, worse, worst
from kernax.solvers._vecchia import Vecchia, VecchiaSystem

__all__ = [
    "CG",
    "AbstractSolver",
    "AbstractSystem",
    "Bordered",
    "CGSystem",
    "Cholesky",
    "CholeskySystem",
    "ColumnFactor",
    "Eigh",
    "EighSystem",
    "Evidence",
    "FailedError",
    "KnownInverse",
    "Kronecker",
    "KroneckerSystem",
    "LowRank",
    "LowRankSystem",
    "MissingCellsSystem",
    "PerOutput",
    "Result",
    "SlowSolverWarning",
    "Solution",
    "StateSpace",
    "StateSpaceSystem",
    "Suggestion",
    "Vecchia",
    "VecchiaSystem",
    "WhitenedSystem",
    "as_code",
    "available_memory",
    "check_memory",
    "custom_calls",
    "draw_root",
    "factorise_columns",
    "factorise_matrix",
    "is_usable",
    "largest_eigenvalue",
    "logdet_definite",
    "offered",
    "one_at_a_time_on_cpu",
    "per_output",
    "power_iteration",
    "result_advice",
    "result_meaning",
    "result_name",
    "result_text",
    "solve_definite",
    "solve_saddle_point",
    "suggest_solver",
    "throw_unless",
    "warn_if_slow",
    "with_trend",
    "worse",
    "worst",
]
