"""Learners side by side on one table: the same folds, the same units, one row for each."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from kernax._spelling import nearest
from kernax.data import Data
from kernax.solvers import AbstractSolver, FailedError
from kernax.tables._classifiers import CLASSIFIERS, CLASSIFIERS_OF_SEVERAL
from kernax.tables._column import Column, rows_of
from kernax.tables._design import Reading, as_names, make_design
from kernax.tables._likelihoods import NORMAL, built_with_level, folds_of, log_shares
from kernax.tables._read import TableError
from kernax.tables._regressors import REGRESSORS, Answer, Fold
from kernax.tables._solvers import solver_for
from kernax.tables._start import start_of
from kernax.tables._table_fit import check_noise
from kernax.tables._values import MAX_LEVELS


class Comparison(NamedTuple):
    """The scores of several methods on one table, from [`kernax.tables.compare_table`][]."""

    task: str
    """`regression` or `classification`."""
    rows: list[dict[str, Any]]
    """A dict of scores for each method, the best first; the `status` of a method that failed says why."""
    folds: int
    """The number of folds."""
    num_rows: int
    """The number of rows."""
    notes: tuple[str, ...]
    """Notes about the table."""


_MOST_ROWS = 5000
"""The number of rows up to which all methods end in reasonable time."""
_ROLES = {None: "any", "regression": "number", "classification": "classes"}
_SCORES = {
    "regression": ("rmse", "mae", "nlpd", "coverage"),
    "classification": ("error_rate", "log_loss"),
}


def compare_table(
    table: Any,
    target: str,
    *,
    columns: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    kernel: str = "matern52",
    folds: int = 5,
    methods: Sequence[str] | str | None = None,
    task: Literal["regression", "classification"] | None = None,
    noise: float | None = None,
    solver: AbstractSolver | str | None = None,
    missing: Literal["error", "drop"] = "error",
    date_unit: str | None = None,
    categories: Sequence[str] | str = (),
    max_levels: int = MAX_LEVELS,
    sample: int | None = None,
    seed: int = 0,
    dtype: Any = None,
    tell: Callable[[str, int, int], None] = lambda method, done, of: None,
    finished: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Comparison:
    """Cross-validate kernax's learners on a table.

    Every learner sees the same shuffled folds. Columns are standardised by the training rows of each fold. All kernel
    methods use the kernel of a maximum likelihood fit to the training rows. For methods without a kernel, categories become
    columns of 0 and 1.

    **Arguments:**

    - `table`: the rows, as in `fit_table`.
    - `target`: the name of the column to predict.
    - `kernel`: an expression, see [`parse_kernel`][kernax.tables.parse_kernel].
    - `folds`: the number of folds.
    - `methods`: the names of the methods to compare; by default all.
    - `task`: `regression` or `classification`. By default, as in `fit_table`: targets of text and booleans, and those that
      `categories` names, are classified, and numbers are regressed.
    - `noise`: the variance of the target's noise in its units squared, if it is known. It adds the discrepancy principle.
    - `solver`: the solver of the Gaussian processes and of kernel ridge regression, as in `fit_table`. Without one, at most
      5,000 rows are compared.
    - `seed`: random seed for folds, for methods that draw at random, and for sampling.
    - `columns`, `ignore`, `missing`, `date_unit`, `categories`, `max_levels`, `sample`, `dtype`: as in
      [`fit_table`][kernax.tables.fit_table].
    - `tell`: a function that is called as `tell(method, done, of)` when a method begins and after each of its folds, with
      the number of folds done and in all.
    - `finished`: a function that is called with the row of each method when it has its scores.

    **Returns:**

    A `Comparison`. The row of a learner that failed says why. Raises `TableError` for a table that cannot be used as asked.
    """
    check_noise(noise)
    if task not in _ROLES:
        raise TableError(f"task must be 'regression' or 'classification', got {task!r}.")
    reading = Reading(columns, ignore, missing, date_unit, categories, max_levels, sample, seed)
    design = make_design(table, target, reading, role=_ROLES[task], most_rows=_MOST_ROWS if solver is None else None)
    classes = design.target.levels
    task = "classification" if classes else "regression"
    several = len(classes) > 2
    known = REGRESSORS if not classes else CLASSIFIERS_OF_SEVERAL if several else CLASSIFIERS
    chosen = _chosen(as_names(methods), known, noise)
    y = design.target.restored(design.y)
    labels = folds_of(len(y), folds, seed, y if classes else None)
    likelihood = NORMAL if not classes else "softmax" if several else "bernoulli"
    dtype = jnp.result_type(float) if dtype is None else dtype
    parts = []
    for fold in range(folds):
        training = labels != fold
        x, scale = _standardised(design.x, training, design.columns)
        level, spread = (0.0, 1.0) if classes else (float(y[training].mean()), float(y[training].std()) or 1.0)
        targets = 2.0 * y - 1.0 if len(classes) == 2 else (y - level) / spread  # machines take -1 and 1
        scaled = targets.astype(dtype)
        x, rows = _with_indicators(x, design.columns).astype(dtype), rows_of(design.columns, x, dtype)
        data = Data(rows, scaled, training)
        plain = Data(x, scaled, training) if isinstance(rows, dict) else data
        own = [dataclasses.replace(c, scale=c.scale * float(s)) for c, s in zip(design.columns, scale, strict=True)]
        built = built_with_level(kernel, own, likelihood, spread)[1]
        known_noise = None if noise is None else noise / spread**2
        parts.append(Fold(data, rows, plain, x, scaled, built, level, spread, known_noise, seed, {}, len(classes)))
    notes = design.notes
    if solver is not None and task == "regression":
        solver, reason = solver_for(solver, start_of(parts[0].built, None, parts[0].data)[0], parts[0].data, "likelihood")
        notes = notes if reason is None else (*notes, reason)
        parts = [part._replace(solver=solver) for part in parts]
    rows = []
    for place, name in enumerate(chosen, 1):
        label = f"{name} ({place} of {len(chosen)})"
        tell(label, 0, folds)
        rows.append(_scored(name, known[name], parts, labels, y, lambda done, label=label: tell(label, done, folds), task))
        finished(rows[-1])
    first = _SCORES[task][0]
    rows.sort(key=lambda row: (row[first] is None, row[first] or 0.0))
    return Comparison(task, rows, folds, len(y), notes)


def _chosen(methods: list[str] | None, known: dict[str, Any], noise: float | None) -> list[str]:
    if methods is None:
        return [name for name in known if name != "krr_discrepancy" or noise is not None]
    if not methods:
        raise TableError(f"name at least one method, or leave out --methods for all: {', '.join(known)}.")
    for name in methods:
        if name not in known:
            raise TableError(f"there is no method {name!r}.{nearest(name, known)} They are {', '.join(known)}.")
    if "krr_discrepancy" in methods and noise is None:
        raise TableError("krr_discrepancy needs the noise variance (--noise, or noise= in Python).")
    return methods


def _standardised(x: np.ndarray, training: np.ndarray, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers standardised by the training rows, categories as they are, and what each column was divided by."""
    numeric = np.array([not column.is_category for column in columns])
    scale = x[training].std(axis=0)
    scale = np.where((scale > 0) & numeric, scale, 1.0)
    return (x - np.where(numeric, x[training].mean(axis=0), 0.0)) / scale, scale


def _with_indicators(x: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
    """A matrix in which each column of categories becomes columns of 0 and 1, one for each level but the first."""
    parts = [
        (x[:, i, None] == np.arange(1, len(column.levels))).astype(x.dtype) if column.is_category else x[:, i, None]
        for i, column in enumerate(columns)
    ]
    return np.concatenate(parts, axis=1)


def _scored(
    name: str, method: Callable[[Fold], Answer], folds: list[Fold], labels: np.ndarray, y: np.ndarray, step: Any, task: str
) -> dict[str, Any]:
    """A method's row: its scores over all held-out rows, the seconds that it took, and how it ended."""
    begun = time.perf_counter()
    classes = folds[0].classes
    mean, sd = np.full(len(y), np.nan), np.full((len(y), classes) if classes else len(y), np.nan)
    reason = ""
    for number, fold in enumerate(folds):
        held_out = labels == number
        try:
            answer = method(fold)
        except (FailedError, ValueError, TypeError, FloatingPointError, MemoryError) as error:
            if "KeyboardInterrupt" in str(error):  # while LAPACK runs inside a compiled program
                raise KeyboardInterrupt from None
            reason = (error.explanation if isinstance(error, FailedError) else str(error)).splitlines()[0]
            break
        mean[held_out] = (np.asarray(answer.mean, float) * fold.spread + fold.level)[held_out]
        if answer.sd is not None:
            sd[held_out] = (np.asarray(answer.sd, float) * fold.spread)[held_out]
        step(number + 1)
    seconds = time.perf_counter() - begun
    if not reason and not np.isfinite(mean).all():
        reason = f"{int(np.sum(~np.isfinite(mean)))} predictions are not finite"
    scores = dict.fromkeys(_SCORES[task])
    if not reason:
        scores |= (_classification if classes else _regression)(y, mean, sd)
    return {"method": name, **scores, "seconds": round(seconds, 3), "status": reason or "ok"}


def _regression(y: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    error = y - mean
    scores = {"rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}
    if np.isfinite(sd).all() and (sd > 0).all():
        scores["nlpd"] = float(np.mean(0.5 * (error / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi)))
        scores["coverage"] = float(np.mean(np.abs(error) <= 1.959963984540054 * sd))
    return scores


def _classification(y: np.ndarray, found: np.ndarray, shares: np.ndarray) -> dict[str, float]:
    """`found` is the class of each row, and `shares` the probability of each class, NaN if the method has none."""
    scores = {"error_rate": float(np.mean(found != y))}
    if np.isfinite(shares).all():
        scores["log_loss"] = float(-np.mean(log_shares(shares, y)))
    return scores
