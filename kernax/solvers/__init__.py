"""How `K + noise·I` is solved: one factor, a few questions, and their derivatives in one file."""

from kernax.solvers._cholesky import Cholesky, draw_root, factorise_matrix, solve_definite
from kernax.solvers._eigh import Eigh, SpectralFactor
from kernax.solvers._factor import AbstractFactor, AbstractSolver, DenseFactor, is_usable, masked_gram
from kernax.solvers._lapack import lapack_targets
from kernax.solvers._least_squares import ColumnFactor, factorise_columns, solve_saddle_point
from kernax.solvers._raw import one_at_a_time_on_cpu
from kernax.solvers._result import FailedError, Result, result_name, throw_unless
from kernax.solvers._tail import ProjectedFactor

__all__ = [
    "AbstractFactor",
    "AbstractSolver",
    "Cholesky",
    "ColumnFactor",
    "DenseFactor",
    "Eigh",
    "FailedError",
    "ProjectedFactor",
    "Result",
    "SpectralFactor",
    "draw_root",
    "factorise_columns",
    "factorise_matrix",
    "is_usable",
    "lapack_targets",
    "masked_gram",
    "one_at_a_time_on_cpu",
    "result_name",
    "solve_definite",
    "solve_saddle_point",
    "throw_unless",
]
