"""Many models of one table: one for each value of a column."""

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kernax._spelling import listed, nearest
from kernax.data import Data, Group, Groups
from kernax.expressions import build_kernel
from kernax.fitting import Fits, fit_many, predict_many, score_many
from kernax.fitting._fits import NUM_FACTS
from kernax.io import register
from kernax.model import condition
from kernax.reports import Report
from kernax.reports._describe import scalars_of
from kernax.selection import loo_mse
from kernax.solvers import AbstractSolver
from kernax.tables._column import Column, rows_of
from kernax.tables._design import Reading, make_design
from kernax.tables._likelihoods import NORMAL
from kernax.tables._read import Table, TableError, refused
from kernax.tables._report import report_of_table_fits, table_names
from kernax.tables._solvers import solver_for
from kernax.tables._start import BLIND_TO_SCALE, mean_square_score, note_on_variances, objective_of, start_of, times
from kernax.tables._stream import START_ROWS, Again, Grouped, streamed
from kernax.tables._table_fit import DEFAULT_KERNEL, AbstractTableFit, Answers, check_noise, prediction_columns
from kernax.tables._values import MAX_LEVELS, group_names

_MOST_ROWS = 20_000
"""Of a group, without a solver for many rows."""
LEAST_ROWS = 2
"""Of a group: one row does not show how rows differ."""
_ROWS_AT_A_TIME = 2**20
"""Of groups that are scored together: those of a file need not fit into memory."""


class ManyTableFits(AbstractTableFit):
    """A fitted model for each group of a table, from [`kernax.tables.fit_table_many`][].

    It holds the rows of all groups, from which predictions are made, and how columns are read. With `stream=True` it holds
    no rows: they are read again from the file `source` when they are needed.
    """

    fits: Fits
    """The fits to standardised numbers, by the names of the groups."""
    x: Float[np.ndarray, "n d"]
    """Standardised inputs of all groups, one group after another; of categories, their places among the levels. Without rows
    if they are read from the file."""
    y: Float[np.ndarray, " n"]
    """Standardised targets, in the same order."""
    sizes: Int[np.ndarray, " b"]
    """The rows of each group."""
    columns: tuple[Column, ...]
    target: Column
    by: str = eqx.field(static=True)
    """The column that names the groups."""
    kernel: str = eqx.field(static=True)
    """The expression, as it was written."""
    selected_by: str = eqx.field(static=True)
    """What was minimised."""
    source: str = eqx.field(static=True)
    """The table's file."""
    notes: tuple[str, ...] = eqx.field(static=True)
    """Notes about the table."""
    solver: AbstractSolver | None = None
    """How the models were conditioned; `None` for `kx.Cholesky()`."""
    likelihood: ClassVar[str] = NORMAL  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def needs_targets(self) -> bool:
        """Whether a file needs the targets: predictions are made from them."""
        return True

    def __len__(self) -> int:
        return len(self.fits)

    @property
    def num_rows(self) -> int:
        """The rows of all groups."""
        return int(self.sizes.sum())

    def datasets(self, which: Sequence[int] | np.ndarray | None = None) -> list[tuple[Any, np.ndarray]]:
        """The rows of each group.

        **Arguments:**

        - `which`: the numbers of some groups; by default all.

        **Returns:**

        A list of `(x, y)`, standardised. Raises `TableError` if they must be read from a file that has changed or is gone.
        """
        numbers = range(len(self)) if which is None else [int(number) for number in which]
        wanted, found = set(numbers), {}
        for number, rows in enumerate(itertools.islice(self._rows(), max(wanted, default=-1) + 1)):
            if number in wanted:
                found[number] = rows
        return [found[number] for number in numbers]

    def _rows(self) -> Iterator[tuple[Any, np.ndarray]]:
        """The rows of one group after another."""
        if len(self.y) == self.num_rows:
            yield from _parts(self.columns, self.x, self.y, self.sizes)
        else:
            every, names = (*self.columns, self.target), [str(key) for key in self.fits.keys]
            for group in Again(self.source, self.by, every, names, self.sizes.tolist(), self.y.dtype).groups():
                yield group.x, group.y

    def table(self) -> dict[str, np.ndarray]:
        """`Fits.table` with the names of the columns and with parameters in the units of the table.

        **Returns:**

        Columns by name, with an entry for each group. `value`, `gradient_norm` and `jitter` are those of the standardised
        numbers.
        """
        columns, names = list(self.fits.table().items()), table_names(self, None)
        converted = dict(columns[:NUM_FACTS])
        for (name, values), factor in zip(columns[NUM_FACTS:], scalars_of(self.fits, names), strict=True):
            is_level = name == "mean.value"
            converted[factor.name] = self.target.restored(values) if is_level else values * float(factor.value)
        return converted

    def loo_rmse(self) -> np.ndarray:
        """The root mean square of each group's leave-one-out errors, in the target's units.

        **Returns:**

        An array with an entry for each group; NaN where the fit failed, and for solvers without leave-one-out predictions.
        """
        if self.solver is not None:
            first = condition(self.fits[0].model, Data(*self.datasets([0])[0]), self.solver, throw=False)
            if first.system.inverse_diagonal() is None:
                return np.full(len(self), np.nan)
        errors = _scores(self.fits, self._rows(), self.sizes, loo_mse, self.solver)
        return self.target.scale * np.sqrt(np.where(self.is_known, errors, np.nan))

    @property
    def is_known(self) -> np.ndarray:
        """Which groups have a model to predict from."""
        return np.isfinite(np.asarray(self.fits.value)) & (self.sizes >= LEAST_ROWS)

    def report(self) -> Report:
        """Describe the fits in the units of the table.

        **Returns:**

        A `Report`, as from [`kernax.report`][]. Its page also has the groups, the columns, the source and the notes.
        """
        return report_of_table_fits(self)

    def _answers(self, table: Table, x: np.ndarray, level: float, noisy: bool, name: str) -> Answers:
        places = {str(key): number for number, key in enumerate(self.fits.keys)}
        names, known = group_names(table, self.by), list(places)
        unknown = [i for i, group in enumerate(names) if group not in places]
        if unknown:
            group = names[unknown[0]]
            then = f", a group that {name} does not know.{nearest(group, known)} It knows {listed(known, 8)}."
            raise refused(table, self.by, f"has {group!r}", unknown, then)
        numbers = np.array([places[group] for group in names], int)
        wanted = np.unique(numbers)
        rows = [np.flatnonzero(numbers == number) for number in wanted]
        points = [rows_of(self.columns, x[some], self.y.dtype) for some in rows]
        answers = predict_many(self.fits[wanted], self.datasets(wanted), points, noisy=noisy, solver=self.solver)
        (mean, variance), is_known = np.full((2, len(x)), np.nan), self.is_known
        for number, some, answer in zip(wanted, rows, answers, strict=True):
            if is_known[number]:
                mean[some], variance[some] = np.asarray(answer.mean), np.asarray(answer.variance)
        lost = int(np.sum(~np.isfinite(mean)))
        note = f"{lost} rows belong to groups whose fit failed, or that had fewer than {LEAST_ROWS} rows: left blank"
        return prediction_columns(self.target, mean, variance, level), (note,) if lost else ()

    def __repr__(self):
        names = ", ".join(column.name for column in self.columns)
        return f"ManyTableFits({len(self)} groups by {self.by}: {self.target.name} from {names}, {self.kernel})"


register(ManyTableFits, name="kernax.tables.ManyTableFits")


def _parts(columns: Sequence[Column], x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """The dataset of each group; `x` and `y` hold one after another."""
    ends = np.cumsum(sizes)[:-1]
    return [(rows_of(columns, x, y.dtype), y) for x, y in zip(np.split(x, ends), np.split(y, ends), strict=True)]


def _scores(fits: Fits, datasets: Iterable[Any], sizes: np.ndarray, quantity: Any, solver: Any) -> np.ndarray:
    """`score_many`, with the rows of some groups in memory at a time."""
    datasets, at = iter(datasets), np.cumsum(sizes) // _ROWS_AT_A_TIME
    parts = np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(at)) + 1)
    return np.concatenate(
        [score_many(fits[part], list(itertools.islice(datasets, len(part))), quantity, solver=solver) for part in parts]
    )


def _calibrated(fits: Fits, datasets: Iterable[Any], sizes: np.ndarray, solver: AbstractSolver | None) -> Fits:
    """Each group's kernel and noise times the factor that makes its leave-one-out errors as large as expected."""
    factors = _scores(fits, datasets, sizes, mean_square_score, solver)
    factors = np.where(np.isfinite(factors) & (factors > 0), factors, 1.0)
    kernel = times(fits.model.kernel, factors)
    if kernel is None:
        return fits
    noise = jnp.asarray(fits.model.noise * factors.astype(fits.model.noise.dtype))
    return eqx.tree_at(lambda f: (f.model.kernel, f.model.noise), fits, (kernel, noise))


def _in_memory(table: Any, target: str, by: str, reading: Reading, dtype: Any) -> Grouped:
    """The groups of a table that is read whole."""
    design = make_design(table, target, reading, role="plain number", others=[by])
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(group_names(design.table, by)):
        groups.setdefault(name, []).append(row)
    order, sizes = np.concatenate(list(groups.values())), np.array([len(rows) for rows in groups.values()])
    x, y = design.x[order].astype(dtype), design.y[order].astype(dtype)
    datasets = _parts(design.columns, x, y, sizes)
    some = np.random.default_rng(reading.seed).permutation(len(y))[:START_ROWS]
    named = [Group(name, *rows) for name, rows in zip(groups, datasets, strict=True)]
    return Grouped(
        datasets=Groups(functools.partial(iter, named), list(groups), f"by {by!r}"),
        sizes=sizes,
        columns=design.columns,
        target=design.target,
        source=design.table.source,
        notes=design.notes,
        x=x,
        y=y,
        largest=datasets[sizes.argmax()],
        start=(rows_of(design.columns, x[some], dtype), y[some]),
    )


def fit_table_many(
    table: Any,
    target: str,
    by: str,
    *,
    columns: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    kernel: str = DEFAULT_KERNEL,
    select: str = "likelihood",
    noise: float | None = None,
    solver: AbstractSolver | str | None = None,
    restarts: int = 0,
    missing: Literal["error", "drop"] = "error",
    date_unit: str | None = None,
    categories: Sequence[str] | str = (),
    max_levels: int = MAX_LEVELS,
    sample: int | None = None,
    stream: bool = False,
    seed: int = 0,
    dtype: Any = None,
    max_steps: int = 500,
    progress: bool = False,
    checkpoint: str | os.PathLike | None = None,
    executor: Executor | None = None,
) -> ManyTableFits:
    """Fit a model to each group of a table: one for each value of the column `by`.

    Columns are standardised once, for the whole table. Each fit starts from values that suit its own rows; numbers that are
    written in the kernel are the same for all groups. A group that cannot be fitted gets its own status.

    **Arguments:**

    - `table`: the rows of all groups, as in [`fit_table`][kernax.tables.fit_table]. All of it is read into memory, unless
      `stream` is true.
    - `target`: the name of the column to predict.
    - `by`: the name of the column whose values are the groups.
    - `kernel`: an expression, see [`parse_kernel`][kernax.tables.parse_kernel].
    - `select`: what is minimised: `likelihood`, `loo`, `gcv`, `kfold` or `loo_density`.
    - `noise`: the variance of the target's noise in its units squared, if it is known.
    - `solver`: a solver for all groups, as in [`fit_table`][kernax.tables.fit_table]; `auto` suggests one for the
      largest group.
    - `restarts`: the number of additional random starts for each group.
    - `columns`: the names of the columns to learn from; by default all others.
    - `ignore`: the names of columns to leave out.
    - `missing`: `error`, or `drop` to leave out rows that lack a value.
    - `date_unit`: `years`, `days`, `hours` or `seconds`; by default what suits the span of the dates.
    - `categories`: the names of columns to read as categories although they hold numbers, such as postal codes.
    - `max_levels`: the largest number of categories in a column.
    - `sample`: use only this many random rows.
    - `stream`: read a file in pieces, for files that do not fit into memory. The rows of a group must be consecutive, and
      all columns but `by` must be numbers. The result holds no rows: predictions read them from the file again. If numbers
      are written in the kernel, or `noise` is given, the other starting values suit the first 300 rows of the file;
      otherwise, 300 random rows.
    - `seed`: random seed for restarts and sampling.
    - `dtype`: the floating type to compute in; by default JAX's.
    - `max_steps`: the maximum number of optimiser steps of each fit.
    - `progress`: show a progress bar.
    - `checkpoint`: a folder in which results are saved as they arrive, so that the same call resumes an interrupted run; see
      [`kernax.fit_many`][].
    - `executor`: a `concurrent.futures.Executor` that computes the fits; threads if `None`. See `kx.fit_many`.

    **Returns:**

    A `ManyTableFits`. Raises `TableError` for a table that cannot be used as asked.
    """
    objective = objective_of(select)
    check_noise(noise)
    if by == target:
        raise TableError(f"{by!r} is the target, so it cannot name the groups.")
    reading = Reading(columns, ignore, missing, date_unit, categories, max_levels, sample, seed)
    dtype = jnp.result_type(float) if dtype is None else dtype
    grouped = (streamed if stream else _in_memory)(table, target, by, reading, dtype)
    sizes, source, scale = grouped.sizes, grouped.source, grouped.target.scale
    built = build_kernel(kernel, grouped.columns, target_scale=scale)
    if sizes.max() > _MOST_ROWS and solver is None:
        raise TableError(
            f"{source}: the largest group has {sizes.max()} rows, more than {_MOST_ROWS}: split it, or choose a solver "
            "(--solver, or solver= in Python)."
        )
    # Starting values suit each dataset, unless some are written: then the others suit the table as a whole.
    started = not any(built.given) and noise is None
    known = None if noise is None else noise / scale**2
    model, free = start_of(built, known, None if started else Data(*grouped.start), mean=0.0)
    if not any(jax.tree.leaves(free)):
        raise TableError("there is nothing to fit: every parameter is held fixed.")
    solver, reason = solver_for(solver, model, Data(*grouped.largest), select)
    fits = fit_many(
        model,
        grouped.datasets,
        objective=objective,
        solver=solver,
        trainable=free,
        initialise=started,
        restarts=restarts,
        key=jax.random.key(seed),
        max_steps=max_steps,
        progress=progress,
        checkpoint=checkpoint,
        executor=executor,
    )
    is_held = noise is not None or any(built.held)
    notes = grouped.notes if reason is None else (*grouped.notes, reason)
    if select in BLIND_TO_SCALE:
        fits = fits if is_held else _calibrated(fits, grouped.datasets, sizes, solver)
        notes = (*notes, note_on_variances(select, is_held))
    few = int(np.sum(sizes < LEAST_ROWS))
    if few:
        notes = (*notes, f"{few} of {len(sizes)} groups have fewer than {LEAST_ROWS} rows: nothing is predicted for them")
    return ManyTableFits(
        fits=fits,
        x=grouped.x,
        y=grouped.y,
        sizes=sizes,
        columns=grouped.columns,
        target=grouped.target,
        by=by,
        kernel=kernel,
        selected_by=select,
        source=source,
        notes=notes,
        solver=solver,
    )
