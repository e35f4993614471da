"""Which solver suits a model and its data, in words and as an object; and an error before a matrix that does not fit."""

import dataclasses
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kernax._arrays import is_concrete, levels_to_the_caller
from kernax.data import Data
from kernax.grams import gram_of
from kernax.kernels import RBF, AbstractKernel, AbstractStationary, Periodic, RationalQuadratic
from kernax.rows import Grid, num_rows, take
from kernax.solvers._cg import CG
from kernax.solvers._cholesky import Cholesky
from kernax.solvers._eigh import Eigh
from kernax.solvers._kronecker import Kronecker
from kernax.solvers._low_rank import LowRank
from kernax.solvers._memory import available_memory, in_gib
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._state_space import StateSpace
from kernax.solvers._steps import Arranged
from kernax.solvers._vecchia import Vecchia

_FEW = 1_000
"""Rows up to which a dense solver takes a fraction of a second, so that no other is worth a thought."""
_FEW_OF_SERIES = 300
"""The same if the kernel has a state space, which is faster from so many rows on, unless the state is large."""
_ROWS_PER_STATE = 20
"""Rows for each number of the state from which on a state space is faster than a dense matrix."""
_MANY = 10_000
"""Rows from which on a fit by a dense solver takes an hour or so on two cores."""
_SLOW_ROWS = 5_000
"""Rows beyond which a fit by a dense solver takes minutes, which `warn_if_slow` says."""
_RANK = 1_000
"""Inducing rows of a suggested `LowRank`."""
_FEW_COLUMNS = 3
"""Columns up to which inducing rows are dense enough for a smooth kernel."""
_MOST_STATES = 64
"""Numbers of a state beyond which a row takes `StateSpace` too long."""
_LONGEST_AXIS = 4_000
"""Rows of an axis whose eigendecomposition takes half a minute. Longer ones are for a state space, if the kernel has one."""
_SMALL = 2**28
"""Bytes that are taken for available without a look: reading how many there are takes longer than using these."""


_SLOW = "The time of a fit grows with the cube of the rows: minutes at 5,000 on two cores, eight times as long at 10,000."


class SlowSolverWarning(UserWarning):
    """Given by `kx.fit` if a dense solver will take minutes. Turn it off with `warnings.filterwarnings`."""


class Facts(NamedTuple):
    """What the choice of a solver depends on."""

    rows: int
    columns: int | None = None
    """Columns of x; `None` if x is a structure or a grid."""
    itemsize: int = 8
    """Bytes of a number."""
    systems: int = 1
    """Systems to prepare: one for each group of outputs that are observed in the same rows."""
    is_machine: bool = False
    """Whether the model is a machine of `kx.learners`, which factorises dense matrices."""
    num_states: int | None = None
    """Numbers of the state, if the kernel is a Markov process of one column."""
    has_harmonics: bool = False
    """Whether a part of the kernel is `Periodic`, whose state space is an approximation."""
    is_grid: bool = False
    """Whether x is a grid and the kernel a product over its axes."""
    longest_axis: int = 0
    """Rows of the longest axis of the grid."""
    is_full: bool = True
    """Whether every row counts, for every output."""
    num_features: int | None = None
    has_distance: bool = True
    """Whether the kernel says which rows are near each other, by its lengthscales or its features."""
    is_smooth: bool = False
    has_one_noise: bool = True
    is_noise_free: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Suggestion:
    """A suggested solver and the reason for it. Print it, or pass `suggestion.solver` to `kx.condition` or `kx.fit`.

    **Arguments:**

    - `solver`: the solver, configured.
    - `reason`: why, in a few sentences.
    - `memory`: the approximate memory of a fit with several solvers, in bytes. The keys are the code that makes the solver.
    - `available`: the number of bytes that are available; `None` if that is not known.
    """

    solver: AbstractSolver
    reason: str
    memory: dict[str, int]
    available: int | None

    def __str__(self):
        known = "not known how much is available" if self.available is None else f"{in_gib(self.available)} available"
        width = max(map(len, self.memory))
        sizes = [f"  {name:<{width}}  {in_gib(size):>10}" for name, size in self.memory.items()]
        return "\n".join([f"solver={as_code(self.solver)}", self.reason, f"memory of a fit ({known}):", *sizes])

    __repr__ = __str__


def suggest_solver(model: Any, data: Data, *, ridges: bool = False, folds: bool = False) -> Suggestion:
    """Suggest a solver for a model and its data, with the reason. Nothing is computed or changed.

    The answer depends on the number of rows and columns, on the structure of the kernel (a state space, a grid, finitely
    many features, lengthscales), on the noise, and on the memory that is available.

    **Arguments:**

    - `model`: a `kx.Model`, or a machine of `kx.learners`.
    - `data`: the dataset.
    - `ridges`: whether the solver must support other ridges (`kx.select_ridge`, `kx.l_curve`).
    - `folds`: whether it must support k-fold cross-validation (`kx.kfold_mse`).

    **Returns:**

    A `Suggestion`. Its `solver` is for `kx.condition(model, data, solver)` and `kx.fit(model, data, solver=solver)`.
    """
    if not isinstance(getattr(model, "kernel", None), AbstractKernel) or not isinstance(data, Data):
        raise TypeError(
            f"suggest_solver needs a kx.Model and a kx.Data, got {type(model).__name__} and {type(data).__name__}."
        )
    return suggestion(facts_of(model, data), available_memory(data.y), ridges=ridges, folds=folds)


class _Choice(NamedTuple):
    solver: AbstractSolver
    reason: str
    per_row: int | None = None
    """About how many numbers a fit holds for each row; `None` if that is not known."""


def suggestion(facts: Facts, available: int | None, *, ridges: bool = False, folds: bool = False) -> Suggestion:
    """The suggestion for these facts and so many bytes of memory (`None` if not known). See `suggest_solver`."""
    direct = Eigh() if ridges else Cholesky()
    chosen = _few(facts, direct) or _structured(facts, ridges, folds) or _dense(facts, available, direct)
    chosen = chosen or _large(facts, direct, ridges or folds)
    size = _count(facts.rows, "row") + ("" if facts.columns is None else f" in {_count(facts.columns, 'column')}")
    memory = {as_code(solver): _dense_bytes(facts, solver) for solver in (Cholesky(), Eigh())}
    if chosen.per_row is not None:
        memory[as_code(chosen.solver)] = facts.systems * facts.rows * chosen.per_row * facts.itemsize
    return Suggestion(chosen.solver, f"{size}. {chosen.reason}", memory, available)


def _few(facts: Facts, direct: AbstractSolver) -> _Choice | None:
    if facts.is_machine:
        return _Choice(Cholesky(), "This machine of kx.learners factorises dense matrices, and accepts no other solver.")
    few = _FEW
    if facts.num_states is not None and not facts.is_noise_free:
        few = min(few, max(_FEW_OF_SERIES, _ROWS_PER_STATE * facts.num_states))
    if facts.rows > few or _dense_bytes(facts, direct) > _SMALL:
        return None
    return _Choice(
        direct,
        "With so few rows, a direct solver is exact and takes a fraction of a second.",
    )


def _structured(facts: Facts, ridges: bool, folds: bool) -> _Choice | None:
    """A solver that is exact because of the kernel's structure."""
    is_long = facts.longest_axis > _LONGEST_AXIS and facts.num_states is not None and not facts.is_noise_free
    if facts.is_grid and facts.is_full and facts.has_one_noise and not folds and not is_long:
        return _Choice(
            Kronecker(),
            "The rows are a full grid, the kernel is a product over its axes, and all rows have the same noise: exact, by "
            "one eigendecomposition for each axis.",
        )
    if facts.is_grid and facts.has_one_noise and not facts.is_noise_free and not ridges and not folds and not is_long:
        return _Choice(
            CG(Kronecker()),
            "The rows are a grid with missing cells, the kernel is a product over its axes, and all rows have the same "
            "noise: CG with the whole grid as its preconditioner is exact to a tolerance, and estimates the log "
            "determinant with a standard error.",
            200,
        )
    if facts.num_states is not None and not facts.is_noise_free:
        exact = "exact but for the harmonics that Periodic leaves out" if facts.has_harmonics else "exact"
        return _Choice(
            StateSpace(),
            f"The kernel has a state space over one column, such as time: {exact}, in time and memory proportional to the "
            "number of rows.",
            12 * facts.num_states**2,
        )
    if facts.num_features is not None and 2 * facts.num_features <= facts.rows and not facts.is_noise_free:
        return _Choice(
            LowRank(),
            f"The kernel has {_count(facts.num_features, 'feature')}, fewer than there are rows: LowRank uses them and is "
            "exact.",
            7 * facts.num_features,
        )
    return None


def _dense(facts: Facts, available: int | None, direct: AbstractSolver) -> _Choice | None:
    """A dense solver, if its matrices fit and there are not too many rows."""
    needed = _dense_bytes(facts, direct)
    if facts.rows >= _MANY or (available is not None and needed > available):
        return None
    return _Choice(direct, f"The dense kernel matrix fits into memory, and the answers are exact. {_SLOW}")


def _large(facts: Facts, direct: AbstractSolver, is_demanding: bool) -> _Choice:
    """A solver for rows whose dense matrix does not fit, or takes too long."""
    needed = in_gib(_dense_bytes(facts, direct))
    dense = f"A fit by {as_code(direct)} takes {needed} of memory, and its time grows with the cube of the rows."
    low_rank = LowRank(_RANK)
    if is_demanding:
        return _Choice(
            low_rank,
            f"{dense} LowRank approximates the kernel by {_RANK:,} of the rows, and supports any ridge and any folds. It is "
            "accurate for smooth kernels in few columns; for others, use fewer rows.",
            7 * _RANK,
        )
    if facts.is_grid:
        return _Choice(
            CG(),
            f"{dense} The rows are a grid with different noises, or without noise: CG uses fast products with the grid.",
        )
    if not facts.has_distance:
        return _Choice(
            CG(),
            f"{dense} The kernel has no lengthscales that say which rows are near each other, as Vecchia needs. CG needs "
            "products with the kernel matrix only, and little memory; its time still grows with the square of the rows.",
            2_000,
        )
    smooth = facts.is_smooth and facts.columns is not None and facts.columns <= _FEW_COLUMNS and not facts.is_noise_free
    other = f" For a kernel as smooth as this one, {as_code(low_rank)} is another good approximation." if smooth else ""
    return _Choice(
        Vecchia(),
        f"{dense} Vecchia predicts each row from its nearest neighbours: an approximation that is usually close, in time "
        f"proportional to the number of rows.{other}",
        200,
    )


def _dense_bytes(facts: Facts, solver: AbstractSolver) -> int:
    needed = solver.bytes_needed(facts.rows, facts.itemsize, gradient=True)
    assert needed is not None
    return facts.systems * needed


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def as_code(solver: AbstractSolver) -> str:
    """The Python code that makes a solver, such as `kx.LowRank(rank=1000)`.

    **Arguments:**

    - `solver`: a solver.

    **Returns:**

    The code. Settings that have their default are left out, and arrays are written as `…`.
    """
    shown = []
    for field in dataclasses.fields(solver):
        value = getattr(solver, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if any(map(_is_array, jax.tree.leaves(value))):
            shown.append(f"{field.name}=…")  # choices made for one dataset
        elif value != default:
            shown.append(f"{field.name}={as_code(value) if isinstance(value, AbstractSolver) else repr(value)}")
    return f"kx.{type(solver).__name__}({', '.join(shown)})"


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def facts_of(model: Any, data: Data) -> Facts:
    """What is known of a model and its data. Only shapes are computed, so that the data may be traced."""
    kernel, rows = model.kernel, jax.eval_shape(take, data.x)
    # A likelihood that is not normal makes a noise for each row, in every step.
    noise: Any = np.ones(1) if getattr(model, "takes_any_solver", False) else getattr(model, "noise", None)
    return Facts(
        rows=data.n,
        columns=rows.shape[1] if hasattr(rows, "shape") else None,
        itemsize=np.dtype(data.dtype).itemsize,
        systems=1 if data.gaps is None else data.gaps.masks.shape[0],
        is_machine=noise is None,
        num_states=_num_states(kernel, rows),
        has_harmonics=bool(_parts_of(kernel, Periodic)),
        is_grid=isinstance(data.x, Grid) and _is_product(kernel, data),
        longest_axis=max(data.x.shape) if isinstance(data.x, Grid) else 0,
        is_full=data.gaps is None and is_concrete(data.mask) and bool(np.all(np.asarray(data.mask))),
        num_features=_num_features(kernel, rows),
        has_distance=jax.eval_shape(kernel.coordinates, rows) is not None,
        is_smooth=_is_smooth(kernel),
        has_one_noise=not callable(noise) and np.ndim(noise) == 0,
        is_noise_free=not callable(noise) and is_concrete(noise) and not np.all(np.asarray(noise, float) > 0),
    )


def _is_smooth(kernel: AbstractKernel) -> bool:
    stationary = _parts_of(kernel, AbstractStationary)
    return bool(stationary) and all(isinstance(part, RBF | RationalQuadratic) for part in stationary)


def _parts_of(kernel: AbstractKernel, kind: type) -> list[Any]:
    """The parts of a kernel that are of this class."""
    parts = jax.tree.leaves(kernel, is_leaf=lambda part: isinstance(part, kind))
    return [part for part in parts if isinstance(part, kind)]


def _num_states(kernel: AbstractKernel, rows: Any) -> int | None:
    found = []

    def look(x: Any) -> None:
        process = kernel.definite(x, jnp.ones(num_rows(x), bool)).state_space()
        # Features alone are not worth a pass over time: `LowRank` takes n·J² instead of n·J³.
        if process is not None and process.coordinate is not None:
            _ = kernel.diag(x), process.coordinate(x)
            found.append(Arranged.of(process, x).size)

    try:
        jax.eval_shape(look, rows)
    except (TypeError, ValueError, LookupError):  # rows of several columns, or without the one that the kernel selects
        return None
    return found[0] if found and found[0] <= _MOST_STATES else None


def _num_features(kernel: AbstractKernel, rows: Any) -> int | None:
    features = jax.eval_shape(kernel.features, rows)
    return None if features is None else features.shape[1]


def _is_product(kernel: AbstractKernel, data: Data) -> bool:
    return jax.eval_shape(lambda: gram_of(kernel, data.x, data.mask).factors()) is not None


def warn_if_slow(model: Any, data: Data, solver: AbstractSolver, *, progress: bool) -> None:
    """Give a `SlowSolverWarning` if a fit by a dense solver has more than 5,000 rows, with the solver that is suggested.

    Not if the solver is the suggested one and a progress bar is shown.

    **Arguments:**

    - `model`, `data`, `solver`: what is about to be fitted.
    - `progress`: whether a progress bar is shown.

    **Returns:**

    `None`.
    """
    is_dense = solver.bytes_needed(data.n, 8) is not None and not solver.matrix_of_each_axis
    if data.n <= _SLOW_ROWS or not is_dense:
        return
    suggested = suggestion(facts_of(model, data), available_memory(data.y)).solver
    if suggested == solver and progress:
        return
    code = as_code(solver)
    said = [f"{code} with {data.n:,} rows takes O(n³) per evaluation"]
    if suggested != solver:
        said[0] += f"; kx.suggest_solver(model, data) suggests {as_code(suggested)}"
    if not progress:
        said.append("progress=True shows progress")
    warnings.warn(f"{'. '.join(said)}.", SlowSolverWarning, stacklevel=levels_to_the_caller())


def check_memory(
    model: Any, data: Data, solver: AbstractSolver, caller: str, *, gradient: bool = False, ridges: bool = False
) -> None:
    """Raise `MemoryError` if the solver's matrices do not fit into the memory that is available.

    **Arguments:**

    - `model`, `data`, `solver`: what is about to be conditioned.
    - `caller`: the function that the user called.
    - `gradient`: whether the likelihood is computed with its gradient, as in a fit.
    - `ridges`: whether the solver must move to other ridges.

    **Returns:**

    `None`.
    """
    largest = max(data.x.shape) if isinstance(data.x, Grid) and solver.matrix_of_each_axis else data.n
    needed = solver.bytes_needed(largest, np.dtype(data.dtype).itemsize, gradient=gradient)
    systems = 1 if data.gaps is None else data.gaps.masks.shape[0]
    if needed is None or systems * needed <= _SMALL:
        return
    available = available_memory(data.y)
    if available is None or systems * needed <= available:
        return
    facts = facts_of(model, data)
    if facts.is_machine:
        remedy = "use fewer rows, because machines of kx.learners factorise dense matrices"
    else:
        remedy = f"write solver={as_code(suggestion(facts, available, ridges=ridges).solver)}"
        remedy += " (kx.suggest_solver(model, data) says why), or use fewer rows"
    raise MemoryError(
        f"{caller} with {as_code(solver)} on {facts.rows:,} rows takes {in_gib(systems * needed)} of memory, and "
        f"{in_gib(available)} are available: {remedy}."
    )
