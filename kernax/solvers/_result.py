"""How a computation ended. Status is data: nothing raises inside traced code."""

from typing import Any

import equinox as eqx
import numpy as np

from kernax._arrays import is_concrete


class Result(eqx.Enumeration):
    """How a factorisation or a fit ended."""

    successful = "successful"
    empty = "empty: no row of the dataset counts (its mask is False everywhere)."
    nonfinite = (
        "nonfinite: the kernel matrix or the objective has NaN or infinite entries. "
        "Look for NaN in the inputs or hyperparameters, and for overflow in a kernel of your own."
    )
    singular = (
        "singular: with noise 0 the kernel matrix is not numerically definite, so the answer is that of a small jitter. "
        "Give a positive noise, remove duplicate rows, or use a rougher kernel."
    )
    not_positive_definite = (
        "not_positive_definite: the kernel matrix stays indefinite with the largest jitter allowed. "
        "Check that the kernel is positive semi-definite, give a larger noise, or raise the solver's max_jitter."
    )
    max_steps_reached = "max_steps_reached: the steps were used up before the fit converged. Raise max_steps."
    stalled = (
        "stalled: no more progress, although the gradient is not small. "
        "Often rounding (use float64), a parameter at its bound, or a learning rate that is too large; in the lasso, "
        "columns that nearly depend on each other; with support vectors, a kink of the held-out loss, which is an optimum."
    )
    diverged = (
        "diverged: the objective became worse and worse, or not finite; the best finite point is kept. "
        "Lower the learning rate or start elsewhere (kx.initialise)."
    )
    at_edge = (
        "at_edge: the best of the ridges that were tried is the first or the last of them, so that no two others enclose a "
        "minimum. Give a wider grid (or a finer one, if it is short)."
    )
    flat = (
        "flat: the criterion is the same at all ridges but for rounding, so it chooses none. "
        "Take another criterion, or any ridge."
    )
    too_few_rows = (
        "too_few_rows: without the rows left out, the others are too few to learn from (a spline needs enough to determine "
        "its polynomials). Take more rows, or folds that leave more of them."
    )
    no_root = (
        "no_root: no ridge gives a residual as large as the noise. The noise variance exceeds the variance of the targets, "
        "or lies below what the kernel can reach at ridge 0."
    )
    no_corner = (
        "no_corner: the L-curve has no corner inside the ridges that were tried: it is nowhere convex, or hardly turns. "
        "Give a wider grid, or choose the ridge by another criterion."
    )
    rank_deficient = (
        "rank_deficient: the columns of the design (or of the polynomial tail) depend linearly on each other on these rows, "
        "so the coefficients are not unique. Give more rows, drop columns, or use a ridge."
    )
    interrupted = "interrupted: stopped by the user; the best point so far is kept."
    all_starts_failed = (
        "all_starts_failed: no start gave a finite objective. Check the data's scale and the starting values."
    )
    no_better_than_chance = (
        "no_better_than_chance: under the weights that were reached no member errs on less than half, so boosting ended. "
        "If it had no member at all, give richer members (learners.Trees) or look at the labels."
    )
    no_minimum = (
        "no_minimum: the loss falls for ever as the intercept grows, since the rows that count have one class only, or no "
        "count above 0. Give rows of both classes (for counts, one above 0), or intercept=False."
    )
    unknown_labels = "unknown_labels: a classifier wants the labels -1 and +1. Map others with np.where(…, 1.0, -1.0)."


_OPTION = " (throw=False returns the status instead.)"


class FailedError(RuntimeError):
    """Raised by an eager call whose status is a failure; `throw=False` returns the status instead."""


def throw_unless(usable: tuple[str, ...], result: Any, doing: str) -> None:
    """Raise if one concrete result is not among `usable`. Traced and batched results never raise."""
    value = result._value
    if not is_concrete(value) or np.ndim(value) > 0:
        return
    name = result_name(result)
    if name not in ("successful", *usable):
        raise FailedError(f"{doing} failed. {Result[result]}{_OPTION}")


def without_option(error: FailedError) -> str:
    """What went wrong and what to do, for callers that have no `throw=`."""
    return str(error).replace(_OPTION, "")


def result_name(result: Any) -> str:
    """The short name of one concrete result."""
    return Result[result].split(":")[0]
