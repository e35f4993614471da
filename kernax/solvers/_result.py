"""How a computation ended. The status is data, because traced code cannot raise."""

from typing import Any

import equinox as eqx
import numpy as np

from kernax._arrays import is_concrete


class _Message(str):
    """The text of a status. It keeps its two parts separately."""

    meaning: str
    advice: str

    def __new__(cls, meaning: str, advice: str = ""):
        message = super().__new__(cls, f"{meaning} {advice}".strip())
        message.meaning, message.advice = meaning, advice
        return message


class Result(eqx.Enumeration):
    """How a computation ended: one member per outcome, which can be traced, batched and compared with `==`.

    Each member has a name, a meaning (what happened) and an advice (what to do): see [`kernax.solvers.result_name`][],
    [`kernax.solvers.result_meaning`][] and [`kernax.solvers.result_advice`][]. `Result[result]` is the meaning followed
    by the advice.
    """

    successful = _Message("The computation succeeded.")
    empty = _Message(
        "The dataset has no observations: its mask is False in every row.",
        "Check the mask, or leave this dataset out.",
    )
    nonfinite = _Message(
        "The kernel matrix or the objective contains NaN or infinite values.",
        "Look for NaN in the data and in the hyperparameters, and for overflow in a kernel that you wrote.",
    )
    singular = _Message(
        "With noise 0 the kernel matrix is not numerically positive definite, so a small jitter was added to its diagonal.",
        "Give a positive noise, remove duplicate rows, or use a rougher kernel.",
    )
    not_positive_definite = _Message(
        "The kernel matrix is not positive definite, even with the largest jitter that is allowed.",
        "Check that the kernel is positive semi-definite, give a larger noise (rows that are repeated need one), or raise "
        "the solver's max_jitter if it has one (StateSpace adds no jitter).",
    )
    max_steps_reached = _Message(
        "The computation reached the maximum number of steps before it converged.",
        "Raise max_steps.",
    )
    stalled = _Message(
        "The value no longer improves, although the gradient is not small.",
        "Typical reasons: rounding errors (use float64), targets with a large offset or scale (standardise them), a "
        "parameter at its bound (widen the bound or freeze the parameter), or a learning rate that is too large. In the "
        "lasso: columns that are nearly linearly dependent (drop some). With support vectors: a kink of the held-out loss, "
        "which is an optimum, so nothing has to be done.",
    )
    diverged = _Message(
        "The objective kept getting worse, or became NaN or infinite. The best finite point is kept.",
        "Lower the learning rate, or start from other values (kx.initialise).",
    )
    at_edge = _Message(
        "The best ridge is the first or the last of those that were tried, so a better one may lie outside of them.",
        "Give a wider grid of ridges, or a finer one if it has few values.",
    )
    flat = _Message(
        "The criterion has the same value at all ridges, up to rounding errors, so it cannot choose one.",
        "Use another criterion, or set the ridge yourself.",
    )
    too_few_rows = _Message(
        "Too few rows remain to learn from when the held-out rows are removed. (A spline needs enough rows to determine "
        "its polynomial part.)",
        "Give more rows, or use folds that hold out fewer of them.",
    )
    no_root = _Message(
        "No ridge gives a mean squared residual equal to the noise variance. The noise variance is larger than the "
        "variance of the targets, or smaller than the residual at ridge 0.",
        "Check the noise variance, or choose the ridge by another criterion.",
    )
    no_corner = _Message(
        "The L-curve has no corner within the ridges that were tried: it is nowhere convex, or it hardly bends.",
        "Give a wider grid of ridges, or choose the ridge by another criterion.",
    )
    rank_deficient = _Message(
        "The columns of the design matrix (or of the polynomial tail of a spline) are linearly dependent on these rows, so "
        "the coefficients are not unique.",
        "Give more rows, drop columns, or use a ridge.",
    )
    interrupted = _Message(
        "The user stopped the computation. The best point so far is kept.",
        "To continue, fit again from the model that was kept.",
    )
    all_starts_failed = _Message(
        "The objective is NaN or infinite at every starting point.",
        "Check the data's scale and the starting values of the hyperparameters.",
    )
    no_better_than_chance = _Message(
        "Under the current weights every member is wrong on half of the rows or more, so boosting stopped.",
        "If there is no member at all, use richer members (learners.Trees) or check the labels.",
    )
    no_minimum = _Message(
        "The loss has no minimum: it keeps decreasing as the intercept grows, because the rows contain one class only "
        "(for counts: no count "
        "above 0).",
        "Give rows of both classes (for counts: at least one above 0), or set intercept=False.",
    )
    unknown_labels = _Message(
        "The targets contain values that the loss does not allow, or one class only, or a task of the kernel has no row. A "
        "classifier for two classes needs -1 and +1, Bernoulli() 0 and 1, Softmax(k) and Ordinal(k) the whole numbers from "
        "0 to k - 1. Counts are the whole numbers 0, 1, 2, ….",
        "Convert labels with np.where(…, 1.0, -1.0), or with np.unique(…, return_inverse=True); do not scale counts.",
    )
    preconditioner_failed = _Message(
        "The preconditioner of CG is not positive definite, so the diagonal of the matrix was used instead. The answers "
        "are right, but took more steps.",
        "Check that the kernel is positive semi-definite, or give CG another preconditioner.",
    )
    lost = _Message(
        "The worker processes that had this dataset died twice, so there is no answer.",
        "A process may have run out of memory: use fewer workers at a time, or fit this dataset by itself.",
    )
    unreadable = _Message(
        "The dataset could not be read from its file, neither by a worker process nor by the one that sent it.",
        "Check that the file is there, is complete, and was not changed during the run.",
    )
    too_few_harmonics = _Message(
        "StateSpace() uses the first harmonics of Periodic, and the variance that they leave out is not small compared "
        "with the noise, so the answers would be those of another kernel.",
        "Raise Periodic's harmonics (its omitted_variance() says what they leave out), bound its lengthscale from below, or "
        "use kx.Cholesky().",
    )
    several_modes = _Message(
        "The posterior has several modes, and the best of those that were found is kept.",
        "Laplace's approximation describes one mode only: give the kernel a smaller variance or a larger lengthscale, the "
        "likelihood a larger scale or more degrees of freedom, or drop the outliers.",
    )


# Equinox numbers the members in the order in which they are declared.
_NAMES: tuple[str, ...] = tuple(Result._name_to_item)
_MESSAGES: dict[str, Any] = dict(zip(_NAMES, Result._index_to_message, strict=True))


def result_name(result: Any) -> str:
    """The name of one result, for example `"singular"`.

    **Arguments:**

    - `result`: a member of [`kernax.Result`][], for example `c.result`. Not a batch: `Fits.result_names` has the names of
        many fits.

    **Returns:**

    The name as text; `"traced"` inside `jit`, `vmap` and `grad`, where the result is not known yet.
    """
    if not is_concrete(result._value):
        return "traced"
    if np.ndim(result._value) > 0:
        raise ValueError(f"result_name takes one result, and this is a batch of shape {np.shape(result._value)}: index it.")
    return _NAMES[int(result._value)]


def result_meaning(result: Any) -> str:
    """What happened, in one or two sentences.

    **Arguments:**

    - `result`: one member of [`kernax.Result`][], not traced and not a batch.

    **Returns:**

    The sentences as text.
    """
    return _MESSAGES[result_name(result)].meaning


def result_advice(result: Any) -> str:
    """What to do about a result.

    **Arguments:**

    - `result`: one member of [`kernax.Result`][], not traced and not a batch.

    **Returns:**

    The advice as text; empty for `successful`.
    """
    return _MESSAGES[result_name(result)].advice


def result_text(result: Any) -> str:
    """The name, what happened and what to do, as one line for messages.

    **Arguments:**

    - `result`: one member of [`kernax.Result`][], not traced and not a batch.

    **Returns:**

    For example `"max_steps_reached: The computation reached … Raise max_steps."`.
    """
    name = result_name(result)
    return f"{name}: {_MESSAGES[name]}"


class FailedError(RuntimeError):
    """Raised if a call outside `jit` fails numerically. Inside `jit`, and for batches, the status is returned instead.

    **Arguments:**

    - `doing`: what was attempted, for example `"conditioning"`.
    - `result`: how it ended, a member of [`kernax.Result`][].
    - `hint`: a remark on the function that failed, shown in brackets at the end of the message.

    **Attributes:**

    - `result`: the member of [`kernax.Result`][].
    - `name`: the name of the result, for example `"singular"`.
    - `advice`: what to do.
    - `explanation`: the message without the hint.
    """

    def __init__(self, doing: str, result: Any, hint: str = ""):
        super().__init__(doing, result, hint)
        self.doing = doing
        self.name = result_name(result)
        self.result = getattr(Result, self.name)
        self.advice = result_advice(result)
        self.hint = hint

    @property
    def explanation(self) -> str:
        return f"{self.doing} failed. {self.name}: {result_meaning(self.result)} {self.advice}".strip()

    def __str__(self):
        return f"{self.explanation} ({self.hint})" if self.hint else self.explanation


def throw_unless(usable: tuple[str, ...], result: Any, doing: str) -> None:
    """Raise [`kernax.FailedError`][] if a result is a failure. For functions that have a `throw=` option.

    **Arguments:**

    - `usable`: the names of results that are not failures, in addition to `successful`.
    - `result`: a member of [`kernax.Result`][]. Traced results and batches never raise.
    - `doing`: what was attempted, for the message.

    **Returns:**

    `None`.
    """
    if not is_concrete(result._value) or np.ndim(result._value) > 0:
        return
    if result_name(result) not in ("successful", *usable):
        raise FailedError(doing, result, hint="throw=False returns the status instead.")
