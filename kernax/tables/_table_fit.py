"""One model of a table: fitted, asked for predictions in the table's units, kept in a file."""

import abc
import os
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from kernax.data import Data
from kernax.fitting import Fit, fit
from kernax.io import register
from kernax.learners import LatentGP
from kernax.model import condition
from kernax.parameters import at_bound
from kernax.posterior import predict
from kernax.reports import Report
from kernax.solvers import AbstractSolver, Result
from kernax.tables._column import Column, rows_of
from kernax.tables._design import Reading, make_design, new_inputs
from kernax.tables._likelihoods import (
    NORMAL,
    built_with_level,
    chosen_likelihood,
    latent_predictions,
    loss_of,
    role_of,
)
from kernax.tables._read import Table, TableError, as_table
from kernax.tables._report import report_of_table_fit
from kernax.tables._solvers import solver_for
from kernax.tables._start import objective_of, start_of, started, suited_to_series, with_calibrated_variance
from kernax.tables._values import MAX_LEVELS

DEFAULT_KERNEL = "matern52"
Answers: TypeAlias = tuple[dict[str, np.ndarray], tuple[str, ...]]
"""Columns of predictions, and notes about them."""


class AbstractTableFit(eqx.Module):
    """A model of a table, or one of each of its groups."""

    columns: eqx.AbstractVar[tuple[Column, ...]]
    target: eqx.AbstractVar[Column]
    likelihood: eqx.AbstractVar[str]
    by: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def _answers(self, table: Table, x: np.ndarray, level: float, noisy: bool, name: str) -> Answers:
        """Predictions for a table that lacks no values, `x` being its inputs, and notes; `name` is that of the model."""

    @property
    def prediction_names(self) -> list[str]:
        """The columns that `predict` returns."""
        if self.target.is_category:
            return ["class", *(f"p_{level}" for level in self.target.levels)]
        return ["mean", "sd", "lower", "upper"] if self.likelihood == NORMAL else ["mean", "lower", "upper"]

    def predict(
        self, table: Any, level: float = 0.95, *, noisy: bool = True, missing: Literal["error", "drop"] = "error"
    ) -> dict[str, np.ndarray]:
        """Predict the rows of another table, in the target's units.

        **Arguments:**

        - `table`: the rows: a path, a frame, a relation, an Arrow table or a dict of columns. Columns are found by name.
        - `level`: the probability of the intervals.
        - `noisy`: whether intervals are for new observations; with `False` for the function.
        - `missing`: `error`, or `drop` to leave out rows that lack a value.

        **Returns:**

        Columns `mean`, `sd`, `lower` and `upper`. For a target of classes the columns are `class`, the most probable one,
        and the probability of each: `p_yes`, `p_no`. Other likelihoods than the normal have no `sd`. With many models, each
        row is predicted by the model of its group; NaN if the fit of the group failed.
        """
        return self.predict_rows(table, level, noisy=noisy, missing=missing)[0]

    def predict_rows(
        self,
        table: Any,
        level: float = 0.95,
        *,
        noisy: bool = True,
        missing: Literal["error", "drop"] = "error",
        model_name: str = "the model",
    ) -> tuple[dict[str, np.ndarray], np.ndarray, tuple[str, ...]]:
        """`predict`, with the rows that were kept.

        **Arguments:**

        - `table`, `level`, `noisy`, `missing`: as in `predict`.
        - `model_name`: what messages call the model.

        **Returns:**

        The columns, the numbers of the rows that were kept, and notes about them.
        """
        check_level(level)
        read, others = as_table(table), [] if self.by is None else [self.by]
        x, kept, notes = new_inputs(read, self.columns, missing=missing, model=model_name, others=others)
        answers, more = self._answers(read.taken(kept), x, level, noisy, model_name)
        return answers, kept, (*notes, *more)


class TableFit(AbstractTableFit):
    """A fitted model and how the columns of its table are read, from [`kernax.tables.fit_table`][].

    `kx.save` and `kx.load` save and load it.
    """

    fit: Fit
    """The fit to standardised numbers."""
    columns: tuple[Column, ...]
    """How each input is read, in the order of the model's columns."""
    target: Column
    """How the target is read."""
    kernel: str = eqx.field(static=True)
    """The expression, as it was written."""
    selected_by: str = eqx.field(static=True)
    """What was minimised."""
    source: str = eqx.field(static=True)
    """The table's file."""
    notes: tuple[str, ...] = eqx.field(static=True)
    """Notes about the table: units of dates, rows that were dropped or drawn at random."""
    lines: Int[np.ndarray, " n"] | None = None
    """The line of each row in its file, if that is text."""
    likelihood: str = eqx.field(static=True, default=NORMAL)
    """Of the target, given the function; `normal` for numbers."""
    by: ClassVar[str | None] = None  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def data(self) -> Data:
        """The training rows, standardised."""
        assert self.fit.data is not None
        return self.fit.data

    def conditioned(self) -> Any:
        """Condition the model on the training rows.

        **Returns:**

        A `Conditioned`, in standardised units.
        """
        return condition(self.fit.model, self.data, self.fit.solver)

    def _answers(self, table: Table, x: np.ndarray, level: float, noisy: bool, name: str) -> Answers:
        c, rows = self.conditioned(), rows_of(self.columns, x, self.data.dtype)
        if self.likelihood != NORMAL:
            return latent_predictions(c, self.target, rows, level, noisy=noisy), ()
        mean, variance = predict(c, rows, noisy=noisy)[:2]
        return prediction_columns(self.target, mean, variance, level), ()

    def report(self, conditioned: Any = None) -> Report:
        """Describe the fit with the names and in the units of the table.

        **Arguments:**

        - `conditioned`: the result of `conditioned()`, if you have it: with many rows it takes a while.

        **Returns:**

        A `Report`, as from [`kernax.report`][]. Its page also has the columns, the kernel, the source and the notes.
        """
        if conditioned is None:
            conditioned = condition(self.fit.model, self.data, self.fit.solver, throw=False)
        return report_of_table_fit(self, conditioned)

    def __repr__(self):
        names = ", ".join(column.name for column in self.columns)
        return f"TableFit({self.target.name} from {names}: {self.kernel}, by {self.selected_by}, {self.data.n} rows)"


register(TableFit, name="kernax.tables.TableFit")


def fit_table(
    table: Any,
    target: str,
    *,
    columns: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    kernel: str = DEFAULT_KERNEL,
    select: str = "likelihood",
    noise: float | None = None,
    likelihood: str | None = None,
    solver: AbstractSolver | str | None = None,
    restarts: int = 0,
    missing: Literal["error", "drop"] = "error",
    date_unit: str | None = None,
    categories: Sequence[str] | str = (),
    max_levels: int = MAX_LEVELS,
    sample: int | None = None,
    seed: int = 0,
    dtype: Any = None,
    max_steps: int = 500,
    progress: bool = False,
    checkpoint: str | os.PathLike | None = None,
) -> TableFit:
    """Fit a Gaussian process to a table.

    If the target is a column of text or of booleans, or one that `categories` names, its classes are predicted, by Laplace's
    approximation. If it is a column of other numbers, including 0 and 1, a regression is fitted, unless `likelihood` says
    otherwise.

    Dates become numbers in a unit that suits their span, and all numbers are standardised. Columns of text and of booleans
    are categories. If `kernel` does not name such a column, each term that does not choose its columns is multiplied by a
    [`Categorical`][kernax.kernels.Categorical] kernel of that column.

    **Arguments:**

    - `table`: the rows to learn from: a path to a CSV, TSV, Parquet, Arrow or Feather file, a pandas or polars frame (also a
      lazy one), an Arrow table, a DuckDB relation, or a dict of columns.
    - `target`: the name of the column to predict: numbers, or classes (text, booleans).
    - `columns`: the names of the columns to learn from; by default all others.
    - `ignore`: the names of columns to leave out.
    - `kernel`: an expression, see [`parse_kernel`][kernax.tables.parse_kernel].
    - `select`: what is minimised over all parameters that are not held fixed: `likelihood`, `loo`, `gcv`, `kfold` or
      `loo_density`.
    - `noise`: the variance of the target's noise in its units squared, if it is known.
    - `likelihood`: `normal`, `student-t` (numbers with outliers), `poisson` or `negative-binomial` (counts), `bernoulli`
      (two classes) or `softmax` (several). By default `normal` for numbers, and what suits the classes. For counts and
      classes a constant is added to the kernel.
    - `solver`: a solver (`kx.Cholesky()` if not given), its text (see [`parse_solver`][kernax.tables.parse_solver]), or
      `auto`: the one that `kx.suggest_solver` suggests, with the reason in the notes.
    - `restarts`: the number of additional random starts.
    - `missing`: `error`, or `drop` to leave out rows that lack a value.
    - `date_unit`: `years`, `days`, `hours` or `seconds`; by default what suits the span of the dates.
    - `categories`: the names of columns to read as categories although they hold numbers, such as postal codes.
    - `max_levels`: the largest number of categories in a column, and of classes.
    - `sample`: use only this many random rows.
    - `seed`: random seed for restarts and sampling.
    - `dtype`: the floating type to compute in; by default JAX's.
    - `max_steps`: the maximum number of optimiser steps.
    - `progress`: show a progress bar.
    - `checkpoint`: a folder in which the state of the fit is saved, so that the same call resumes an interrupted one; see
      [`kernax.fit`][].

    **Returns:**

    A `TableFit`. Raises `TableError` for a table that cannot be used as asked, and `FailedError` if there is no usable fit.
    """
    objective = objective_of(select)
    # How many rows are too many is up to the solver, which raises if its matrices do not fit into memory.
    reading = Reading(columns, ignore, missing, date_unit, categories, max_levels, sample, seed)
    design = make_design(table, target, reading, role=role_of(likelihood))
    source, lines = design.table.source, design.table.lines  # before the fit: the file may change meanwhile
    likelihood = chosen_likelihood(likelihood, design.target, source)
    kernel, built = built_with_level(kernel, design.columns, likelihood, design.target.scale)
    dtype = jnp.result_type(float) if dtype is None else dtype
    data = Data(rows_of(design.columns, design.x, dtype), design.y.astype(dtype))
    check_noise(noise)
    if likelihood == NORMAL:
        model, free = start_of(built, None if noise is None else noise / design.target.scale**2, data)
    else:
        _check_latent(likelihood, select, noise)
        model, free = started(built, LatentGP(built.kernel, loss_of(likelihood, design.target)), data)
    solver, reason = solver_for(solver, model, data, select)
    if any(jax.tree.leaves(free)):
        model = suited_to_series(model, built, data, solver)
        fitted = fit(
            model,
            data,
            objective=objective,
            solver=solver,
            trainable=free,
            restarts=restarts,
            key=jax.random.key(seed) if restarts else None,
            max_steps=max_steps,
            progress=progress,
            checkpoint=checkpoint,
        )
    else:
        fitted = _unfitted(model, data, objective, solver)
    note = None
    if likelihood == NORMAL:
        is_held = noise is not None or any(built.held)
        calibrated, note = with_calibrated_variance(fitted.model, data, select, is_held, solver)
        fitted = eqx.tree_at(lambda f: f.model, fitted, calibrated)
    return TableFit(
        fit=fitted,
        columns=design.columns,
        target=design.target,
        kernel=kernel,
        selected_by=select,
        source=source,
        notes=(*design.notes, *(some for some in (reason, note) if some is not None)),
        lines=lines,
        likelihood=likelihood,
    )


def _check_latent(likelihood: str, select: str, noise: float | None) -> None:
    """Raise `TableError` for options that are for the normal likelihood."""
    if select != "likelihood":
        raise TableError(f"select={select!r} is for the normal likelihood; with {likelihood} write likelihood.")
    if noise is not None:
        raise TableError(f"noise is for the normal likelihood; {likelihood} has no noise variance: leave it out.")


def _unfitted(model: Any, data: Data, objective: Any, solver: AbstractSolver | None) -> Fit:
    """A `Fit` of a model without free parameters."""
    c = condition(model, data, solver)
    value = objective(c)
    return Fit(
        model=c.model,
        value=value,
        result=Result.successful,
        num_steps=jnp.zeros((), int),
        gradient_norm=jnp.zeros_like(value),
        at_bound=at_bound(c.model),
        jitter=c.jitter,
        history=value[None],
        start_values=value[None],
        data=data,
        solver=c.solver,
    )


def prediction_columns(target: Column, mean: Any, variance: Any, level: float) -> dict[str, np.ndarray]:
    """Mean, standard deviation and the ends of the interval in the target's units."""
    mean = target.restored(np.asarray(mean, np.float64))
    sd = target.scale * np.sqrt(np.asarray(variance, np.float64))
    reach = NormalDist().inv_cdf((1 + level) / 2) * sd
    return {"mean": mean, "sd": sd, "lower": mean - reach, "upper": mean + reach}


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be a probability between 0 and 1, got {level}.")


def check_noise(noise: float | None) -> None:
    if noise is not None and not (noise > 0 and np.isfinite(noise)):
        raise ValueError(f"noise must be the variance of the target's noise, a positive number, got {noise}.")
