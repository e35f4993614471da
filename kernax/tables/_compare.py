"""Learners side by side on one table: the same folds, the same units, one row for each."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from kernax.data import Data
from kernax.solvers import AbstractSolver, FailedError
from kernax.tables._classifiers import CLASSIFIERS, CLASSIFIERS_OF_SEVERAL, class_text, classes_of
from kernax.tables._columns import MAX_LEVELS, Column, rows_of, without_missing
from kernax.tables._design import as_names, feature_names, make_design, with_categories
from kernax.tables._errors import TableError, listed, nearest
from kernax.tables._expressions import build_kernel
from kernax.tables._likelihoods import folds_of
from kernax.tables._read import Table, as_table
from kernax.tables._regressors import REGRESSORS, Answer, Fold
from kernax.tables._solvers import solver_for
from kernax.tables._start import start_of
from kernax.tables._table_fit import check_noise


class Comparison(NamedTuple):
    """One row of scores for each method, the best first; the `status` of a method that failed says why."""

    task: str
    rows: list[dict[str, Any]]
    folds: int
    num_rows: int
    notes: tuple[str, ...]


_MOST_ROWS = 5000
"""Rows for which all methods end in reasonable time."""
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

    - `table`: the rows: a path to a CSV or Parquet file, a frame, or a dict of columns.
    - `target`: the name of the column to predict.
    - `columns`: the names of the columns to learn from; by default all others.
    - `ignore`: the names of columns to leave out.
    - `kernel`: an expression, see [`parse_kernel`][kernax.tables.parse_kernel].
    - `folds`: the number of folds.
    - `methods`: the names of the methods to compare; by default all.
    - `task`: `regression` or `classification`. By default, targets of two values or of text are classified.
    - `noise`: the variance of the target's noise in its units squared, if it is known. It adds the discrepancy principle.
    - `solver`: the solver of the Gaussian processes and of kernel ridge regression, as in `fit_table`. Without one, at most
      5,000 rows are compared.
    - `missing`: `error`, or `drop` to leave out rows that lack a value.
    - `date_unit`: `years`, `days`, `hours` or `seconds`; by default what suits the span of the dates.
    - `categories`: the names of columns to read as categories although they hold numbers, such as postal codes.
    - `max_levels`: the largest number of categories in a column, and of classes.
    - `sample`: the number of rows to draw at random; by default all are used.
    - `seed`: random seed for folds, for methods that draw at random, and for drawing rows.
    - `dtype`: the floating type to compute in; by default JAX's.
    - `tell`: a function that is called as `tell(method, done, of)` when a method begins and after each of its folds, with
      the number of folds done and in all.
    - `finished`: a function that is called with the row of each method when it has its scores.

    **Returns:**

    A `Comparison`. The row of a learner that failed says why. Raises `TableError` for a table that cannot be used as asked.
    """
    check_noise(noise)
    read = with_categories(as_table(table), categories)
    names = feature_names(read, target, as_names(columns), as_names(ignore) or [])
    read, _ = without_missing(read, [*names, target], missing)
    classes = None if task == "regression" else classes_of(read, target, asked=task is not None)
    if task == "classification" and not classes:
        raise TableError(f"{read.source}: {target!r} does not hold classes: two or more texts, booleans or whole numbers.")
    if classes and len(classes) > max_levels:
        raise TableError(
            f"{read.source}: {target!r} has {len(classes)} classes, more than the limit of {max_levels}: join some of them, "
            f"or raise the limit (--max-levels {len(classes)}, or max_levels={len(classes)} in Python)."
        )
    task = "classification" if classes else "regression"
    if classes:
        read = _with_labels(read, target, classes)
    most_rows = _MOST_ROWS if solver is None else None
    options: dict[str, Any] = {"missing": missing, "date_unit": date_unit, "max_levels": max_levels}
    design = make_design(read, target, names, sample=sample, seed=seed, most_rows=most_rows, **options)
    several = classes is not None and len(classes) > 2
    known = REGRESSORS if not classes else CLASSIFIERS_OF_SEVERAL if several else CLASSIFIERS
    chosen = _chosen(as_names(methods), known, noise)
    y = design.target.restored(design.y)
    y = np.round(y) if classes else y
    labels = folds_of(len(y), folds, seed, y if classes else None)
    dtype = jnp.result_type(float) if dtype is None else dtype
    parts = []
    for fold in range(folds):
        training = labels != fold
        x, scale = _standardised(design.x, training, design.columns)
        level, spread = (0.0, 1.0) if classes else (float(y[training].mean()), float(y[training].std()) or 1.0)
        scaled = ((y - level) / spread).astype(dtype)
        x, rows = _with_indicators(x, design.columns).astype(dtype), rows_of(design.columns, x, dtype)
        data = Data(rows, scaled, training)
        plain = Data(x, scaled, training) if isinstance(rows, dict) else data
        own = [_rescaled(c, s) for c, s in zip(design.columns, scale, strict=True)]
        built = build_kernel(kernel, own, target_scale=spread)
        known_noise = None if noise is None else noise / spread**2
        number = len(classes or ())
        parts.append(Fold(data, rows, plain, x, scaled, built, level, spread, known_noise, seed, {}, number))
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
    if classes:
        told = listed(classes, 8) if several else f"{classes[0]} (−1) and {classes[1]} (+1)"
        notes = (*notes, f"classes: {told}")
    return Comparison(task, rows, folds, len(y), notes)


def _with_labels(table: Table, target: str, classes: list[str]) -> Table:
    """The table with -1 and +1 for two classes, and 0, 1, 2, … for several."""
    codes = np.array([classes.index(class_text(value)) for value in table.column(target).tolist()], dtype=np.float64)
    return table._replace(columns={**table.columns, target: codes if len(classes) > 2 else 2.0 * codes - 1.0})


def _chosen(methods: list[str] | None, known: dict[str, Any], noise: float | None) -> list[str]:
    if methods is None:
        return [name for name in known if name != "krr_discrepancy" or noise is not None]
    if not methods:
        raise TableError(f"name at least one method, or none of --methods for all: {', '.join(known)}.")
    for name in methods:
        if name not in known:
            raise TableError(f"there is no method {name!r}.{nearest(name, known)} They are {', '.join(known)}.")
    if "krr_discrepancy" in methods and noise is None:
        raise TableError("krr_discrepancy wants to know the noise: give its variance (--noise).")
    return methods


def _standardised(x: np.ndarray, training: np.ndarray, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers standardised by the training rows, categories as they are, and what each column was divided by."""
    numeric = np.array([not column.is_category for column in columns])
    scale = x[training].std(axis=0)
    scale = np.where((scale > 0) & numeric, scale, 1.0)
    return (x - np.where(numeric, x[training].mean(axis=0), 0.0)) / scale, scale


def _rescaled(column: Column, scale: float) -> Column:
    return dataclasses.replace(column, scale=column.scale * float(scale))


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
    several = folds[0].classes > 2
    mean, sd = np.full((len(y), folds[0].classes) if several else len(y), np.nan), np.full(len(y), np.nan)
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
        judge = _regression if task == "regression" else _several_classes if several else _classification
        scores |= judge(y, mean, sd)
    return {"method": name, **scores, "seconds": round(seconds, 3), "status": reason or "ok"}


def _regression(y: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    error = y - mean
    scores = {"rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.mean(np.abs(error)))}
    if np.isfinite(sd).all() and (sd > 0).all():
        scores["nlpd"] = float(np.mean(0.5 * (error / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi)))
        scores["coverage"] = float(np.mean(np.abs(error) <= 1.959963984540054 * sd))
    return scores


def _several_classes(y: np.ndarray, shares: np.ndarray, _: np.ndarray) -> dict[str, float]:
    own = np.clip(shares[np.arange(len(y)), y.astype(int)], 1e-15, 1.0)
    return {"error_rate": float(np.mean(shares.argmax(axis=1) != y)), "log_loss": float(-np.mean(np.log(own)))}


def _classification(y: np.ndarray, score: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """`score` is positive for the class +1; `probability` that of it, NaN if the method has none."""
    scores = {"error_rate": float(np.mean(np.where(score > 0, 1.0, -1.0) != y))}
    if np.isfinite(probability).all():
        own = np.clip(np.where(y > 0, probability, 1 - probability), 1e-15, 1.0)
        scores["log_loss"] = float(-np.mean(np.log(own)))
    return scores
