"""Kernel machines with a smooth loss: logistic regression, Huber, quantiles, counts, or your own loss."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import is_concrete, matmul
from kernax._programs import compiled
from kernax.data import Data
from kernax.grams import gram_of
from kernax.kernels import AbstractKernel
from kernax.learners._losses import AbstractLoss, Logistic, as_loss
from kernax.learners._machines import (
    AbstractExpansion,
    AbstractMachine,
    as_penalty,
    check_labels,
    check_machine,
    check_targets,
    described,
    max_jitter_of,
)
from kernax.learners._newton import Minimum, best_constant, best_of_two_starts, minimise
from kernax.learners._stationarity import Curvature, DataTerm, Factorised, Point, Task, attached, curvature, factorised
from kernax.learners._votes import sign
from kernax.parameters import Parameter, positive
from kernax.rows import take
from kernax.solvers import AbstractSolver, Result


class KernelMachine(AbstractMachine):
    """A kernel machine with a smooth, convex loss, `min Σ loss(y_i, f(x_i) + b) + λ‖f‖²`.

    `kx.condition(machine, data)` minimises by Newton's method: usually five to ten steps, O(n³/3) each.

    **Arguments:**

    - `kernel`: the kernel.
    - `loss`: a loss of `kernax.learners`, such as `Huber()`, or a function `loss(y, f)` of one row. By default `Logistic()`,
      which makes it kernel logistic regression for labels -1 and +1.
    - `C`: the cost of the losses, one positive number or one for each row; 1 if neither `C` nor `penalty` is given.
    - `penalty`: λ = 1/(2C), one number or one for each row. Give either `C` or `penalty`.
    - `intercept`: whether to add an intercept b, which is not penalised.
    - `max_steps`: the largest number of Newton steps.
    """

    kernel: AbstractKernel
    loss: AbstractLoss
    penalty: Float[Parameter, "*n"] = positive()
    intercept: bool = eqx.field(static=True, default=True)
    max_steps: int = eqx.field(static=True, default=100)

    def __init__(
        self,
        kernel: Any,
        loss: Any = None,
        *,
        C: Any = None,
        penalty: Any = None,
        intercept: bool = True,
        max_steps: int = 100,
    ):
        self.kernel = kernel
        self.loss = Logistic() if loss is None else as_loss(loss)
        self.penalty = as_penalty(C, penalty, "KernelMachine")
        self.intercept = intercept
        self.max_steps = max_steps

    def __check_init__(self):
        check_machine(self)
        if self.max_steps < 1:
            raise ValueError(f"KernelMachine.max_steps must be 1 or more, got {self.max_steps}.")

    def check(self, data, caller):
        if self.loss.num_functions > 1:
            raise TypeError(f"KernelMachine has one function, but {self.loss!r} needs several: use learners.LatentGP.")
        check_targets(self, data, caller)
        check_observed(self.loss, data, self.intercept, "KernelMachine")

    def conditioned(self, data, finite, solver):
        solved = solve(self, self.loss, data, finite, solver, self.max_steps, keep_curvature=False)
        return SmoothMachine(
            model=self,
            data=data,
            solver=solver,
            coefficients=solved.coefficients,
            intercept=solved.intercept,
            values=solved.values,
            objective=solved.objective,
            gradient_norm=solved.gradient_norm,
            num_steps=solved.num_steps,
            result=solved.result,
            jitter=solved.jitter,
        )

    def initialised(self, data):
        return eqx.tree_at(lambda m: m.kernel, self, initialised_kernel(self.kernel, self.loss, data))

    @property
    def wants_labels(self):
        return self.loss.labels

    def held_out_loss(self, y, values):
        return jax.vmap(self.loss.held_out)(y, values)


class SmoothMachine(AbstractExpansion):
    """A `KernelMachine` conditioned on data: `f(x) = Σ α_i k(x, x_i) + b`.

    `coefficients`, `intercept`, `values` and `objective` are differentiable of any order with respect to the kernel's and
    the loss's parameters, the penalty, x and y, by one more linear system instead of through the iterations.
    """

    model: KernelMachine
    """The machine."""
    data: Data
    """The dataset."""
    solver: AbstractSolver
    """The solver."""
    coefficients: Float[Array, " n"]
    """`α = -C·loss'`, 0 in masked rows."""
    intercept: Float[Array, ""]
    """b."""
    values: Float[Array, " n"]
    """f at the data, with the intercept."""
    objective: Float[Array, ""]
    """`Σ C_i loss_i + ½‖f‖²`: what was minimised, divided by 2λ."""
    gradient_norm: Float[Array, ""]
    """The largest component of `C·loss' + α`, relative to the largest of its terms."""
    num_steps: Int[Array, ""]
    """The number of Newton steps."""
    result: Any
    """How the computation ended."""
    jitter: Float[Array, ""]
    """The jitter that was added to the diagonal of `I + √W K √W`: 0 unless the kernel is not positive definite."""

    def __repr__(self):
        return described(self, "gradient_norm")

    def probability(self, x: Any) -> Float[Array, " m"]:
        """The probability of the label +1, without the uncertainty of f. For the logistic loss it is the sigmoid of f.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        An array of shape `(m,)`. Raises `TypeError` if the loss gives no probabilities.
        """
        return self.model.loss.probability(self(x))

    def classify(self, x: Any) -> Float[Array, " m"]:
        """The class of each row, by the sign of f.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        -1 or +1 for each row.
        """
        check_classifier(self.model.loss)
        return sign(self(x))


def check_classifier(loss: AbstractLoss) -> None:
    """Raise `TypeError` if the loss is not one for labels."""
    if not loss.labels:
        raise TypeError(f"{loss!r} is not a loss for labels ±1: call the machine itself, machine(x), for its values.")


@compiled
def _observed(loss: AbstractLoss, data: Data) -> tuple[Bool[Array, " n"], Bool[Array, ""]]:
    """Which targets the loss allows, and whether there is a best constant."""
    return jax.vmap(loss.allows)(data.y) | ~data.mask, loss.has_minimum(data.y, data.mask) | ~jnp.any(data.mask)


def check_observed(loss: AbstractLoss, data: Data, intercept: bool, name: str, *, is_likelihood: bool = False) -> None:
    """Raise if the loss does not allow some targets, or for a likelihood a single class. Traced targets are not checked."""
    if loss.labels:
        check_labels(data, f"{name} with {type(loss).__name__}")
    parts = [leaf for leaf in jax.tree.leaves((loss, data.y, data.mask)) if eqx.is_array(leaf)]
    if not all(is_concrete(leaf) for leaf in parts):
        return
    # Inside a trace even constants are traced once they are computed with.
    with jax.ensure_compile_time_eval():
        allowed, has_minimum = map(np.asarray, _observed(loss, data))
    if not allowed.all():
        row = int(np.argmin(allowed))
        raise ValueError(
            f"{type(loss).__name__} does not allow y = {float(data.y[row]):g} (row {row}){_wanted(loss)}, "
            "or drop the row, or mask it."
        )
    has_classes = loss.labels or loss.num_classes is not None
    if is_likelihood and has_classes and not has_minimum and np.sum(data.mask) > 1:  # a single row has a single class
        raise ValueError(f"y has one class only, so {type(loss).__name__} cannot be fitted: add rows of other classes.")
    if intercept and not has_minimum:
        what = "one class only" if loss.labels else "no count above 0"
        raise ValueError(f"y has {what}, so the intercept would grow without bound: add other rows, or set intercept=False.")


def _wanted(loss: AbstractLoss) -> str:
    """What targets should be and what to do, for the error message."""
    if loss.num_classes is not None:
        return (
            f", only the whole numbers from 0 to {loss.num_classes - 1}, one for each of {loss.num_classes} classes: write "
            "np.unique(labels, return_inverse=True)[1], and give the likelihood as many classes as there are"
        )
    if loss.whole:
        return ", only the whole numbers 0, 1, 2, …: give the counts without scaling them"
    return ": change the target"


def initialised_kernel(kernel: AbstractKernel, loss: AbstractLoss, data: Data) -> AbstractKernel:
    """The kernel with starting values for functions as large as the loss expects them."""
    spread = loss.spread(data.y, data.mask)
    return kernel.initialised(take(data.x), data.mask, jnp.where(jnp.isfinite(spread) & (spread > 0), spread, 1.0))


class Solved(NamedTuple):
    """The minimum over α and b, differentiable, and what is asked of it."""

    coefficients: Float[Array, " n"]
    intercept: Float[Array, ""]
    values: Float[Array, " n"]
    objective: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    num_steps: Int[Array, ""]
    result: Any
    jitter: Float[Array, ""]
    curvature: Curvature | None


def data_term(loss: AbstractLoss, data: Data, weights: Float[Array, "*n"]) -> tuple[DataTerm, Bool[Array, ""]]:
    """`Σ C_i loss(y_i, f_i)` over the rows that count, and whether the loss allows their targets; others are replaced."""
    allowed = jax.vmap(loss.allows)(data.y) | ~data.mask
    targets = jnp.where(allowed & data.mask, data.y, 1.0)
    return DataTerm(jnp.where(data.mask, weights, 0.0), targets, loss), jnp.all(allowed)


def ended(result: Any, loss: AbstractLoss, data: Data, allowed: Bool[Array, ""], finite: Bool[Array, ""]) -> Any:
    """How an iteration ended, unless something was wrong with its data."""
    strange = Result.unknown_labels if loss.labels or loss.whole else Result.nonfinite
    result = Result.where(allowed, result, strange)
    result = Result.where(finite, result, Result.nonfinite)
    return Result.where(jnp.any(data.mask), result, Result.empty)


def has_answer(result: Any) -> Bool[Array, ""]:
    """Whether an iteration that ended so left numbers."""
    finished = (result == Result.successful) | (result == Result.several_modes)
    return finished | (result == Result.stalled) | (result == Result.max_steps_reached)


def solve(
    model: AbstractMachine,
    loss: AbstractLoss,
    data: Data,
    finite: Bool[Array, ""],
    solver: AbstractSolver,
    max_steps: int,
    *,
    keep_curvature: bool,
) -> Solved:
    """Minimise, and attach the derivatives; NaN where there is no answer."""
    max_jitter = max_jitter_of(solver, type(model).__name__)
    counts = data.mask
    positive_penalty = (model.penalty > 0) & jnp.isfinite(model.penalty)
    # Traced values could not be refused. Harmless ones stand in, so that no derivative behind a `where` meets them.
    penalty = jnp.where(positive_penalty, model.penalty, 1.0).astype(data.dtype)
    term, allowed = data_term(loss, data, 0.5 / penalty)
    task = Task(gram_of(model.kernel, data.x, counts).dense(), term, model.intercept)

    found = _minimum(task, max_steps, max_jitter)
    result = found.result
    if model.intercept:
        result = Result.where(loss.has_minimum(data.y, counts), result, Result.no_minimum)
    result = ended(result, loss, data, allowed, finite & jnp.all(positive_penalty))
    has_numbers = has_answer(result)

    alpha, intercept = (jnp.where(has_numbers, part, 0.0) for part in found.point[:2])
    inner = None
    if keep_curvature:
        start = jax.lax.stop_gradient((task, alpha, intercept))
        inner = curvature(start[0], start[0].values(*start[1:]), max_jitter)
    known = None if inner is None else inner.system
    alpha, intercept = attached(task, alpha, intercept, max_jitter, known)
    values = task.values(alpha, intercept)
    if inner is not None:
        inner = curvature(task, values, max_jitter, known)
    losses, norm_squared = task.term.losses(values), jnp.sum(alpha * (values - intercept))

    def or_nan(part: Array) -> Array:
        return jnp.where(has_numbers, part, jnp.nan)

    return Solved(
        coefficients=or_nan(alpha),
        intercept=or_nan(intercept),
        values=or_nan(jnp.where(counts, values, 0.0)),
        objective=or_nan(jnp.sum(losses) + 0.5 * norm_squared),
        gradient_norm=found.gradient_norm,
        num_steps=found.num_steps,
        result=result,
        jitter=found.jitter,
        curvature=inner,
    )


def _minimum(task: Task, max_steps: int, max_jitter: float | None) -> Minimum:
    """From α = 0 and the constant that is best for the data; O(n³/3) a step."""
    task = jax.lax.stop_gradient(task)
    zeros = jnp.zeros_like(task.term.y)
    intercept = best_constant(task.term) if task.intercept else jnp.zeros((), zeros.dtype)
    # A Gram matrix that is not finite makes NaN of zeros.
    start = Point(zeros, intercept, matmul(task.gram, zeros))

    def from_start(term: DataTerm, start: Point) -> Minimum:
        moved = dataclasses.replace(task, term=term)

        def linearise(values: Array, least: Array) -> Factorised:
            return factorised(moved, values, max_jitter, least)

        return minimise(term, start, linearise, max_steps, intercept=task.intercept)

    return best_of_two_starts(task.term, start, from_start)
