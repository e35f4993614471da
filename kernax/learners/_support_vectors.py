"""Support vector machines: ε-insensitive regression and hinge-loss classification."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import is_concrete, matmul
from kernax._programs import compiled, is_traced
from kernax.data import Data
from kernax.grams import gram_of
from kernax.kernels import AbstractKernel
from kernax.learners._design import as_row_weights
from kernax.learners._dual import Dual, attached, kkt_residual, places, slopes
from kernax.learners._machines import (
    AbstractExpansion,
    AbstractMachine,
    as_penalty,
    check_labels,
    check_machine,
    check_targets,
    max_jitter_of,
)
from kernax.learners._pivoting import solve_dual
from kernax.learners._validation import squared_error
from kernax.learners._votes import sign
from kernax.model._checks import check_model_and_data
from kernax.parameters import Parameter, as_dtype, non_negative, positive
from kernax.rows import take
from kernax.solvers import AbstractSolver, Cholesky, Result, result_name, throw_unless

MAX_STEPS = 100


class SVR(AbstractMachine):
    """Support vector regression, `min Σ max(|y_i - f(x_i) - b| - ε, 0) + λ‖f‖²`.

    The solution `f = Σ α_i k(·, x_i)` is sparse: α is 0 for rows inside the tube of half-width ε. For rows outside of it α
    is ±C, so the influence of outliers is bounded. Train it with [`kernax.condition`][].

    **Arguments:**

    - `kernel`: the kernel.
    - `C`: the cost of the losses, one positive number or one for each row; 1 if neither `C` nor `penalty` is given.
    - `penalty`: λ = 1/(2C), one number or one for each row. Give either `C` or `penalty`.
    - `intercept`: whether to add an intercept b, which is not penalised.
    - `epsilon`: ε, half the width of the tube, in the unit of y.
    """

    kernel: AbstractKernel
    penalty: Float[Parameter, "*n"] = positive()
    epsilon: Float[Parameter, ""] = non_negative(scalar=True, unit="y")
    intercept: bool = eqx.field(static=True, default=True)

    def __init__(
        self, kernel: AbstractKernel, *, C: Any = None, penalty: Any = None, epsilon: Any = 0.1, intercept: bool = True
    ):
        self.kernel = kernel
        self.penalty = as_penalty(C, penalty, "SVR")
        self.epsilon = epsilon
        self.intercept = intercept

    def __check_init__(self):
        check_machine(self)

    def check(self, data, caller):
        check_targets(self, data, caller)

    def conditioned(self, data, finite, solver):
        return _solved(self, data, finite, solver)[0]

    def conditioned_near(self, other, data, finite, solver):
        return _solved(self, data, finite, solver, start=other.coefficients)[0]

    def conditioned_now(self, data, solver):
        return _trained(self, data, solver, None, MAX_STEPS)

    def initialised(self, data):
        spread = jnp.std(data.y, where=data.mask)
        spread = jnp.where(jnp.isfinite(spread) & (spread > 0), spread, 1.0)
        x = take(data.x)
        kernel = self.kernel.initialised(x, data.mask, spread**2)
        # One coefficient at its bound then reaches ten standard deviations, whatever the units of kernel and targets.
        level = jnp.mean(kernel.diag(x), where=data.mask)
        penalty = jnp.broadcast_to(0.05 * level / spread, self.penalty.shape)
        epsilon = jnp.where(self.epsilon > 0, 0.1 * spread, 0.0)
        return eqx.tree_at(lambda m: (m.kernel, m.penalty, m.epsilon), self, (kernel, penalty, epsilon))

    @property
    def wants_labels(self):
        return False

    def held_out_loss(self, y, values):
        # Not the loss of its own: an ε that is fitted would make that 0 by growing.
        return squared_error(y, values)

    def dual(self, gram: Float[Array, "n n"], data: Data, bound: Float[Array, " n"]) -> Dual:
        """The dual problem, whose coefficients have a size of at most `bound`.

        **Arguments:**

        - `gram`: the kernel matrix.
        - `data`: the dataset.
        - `bound`: the largest size of a coefficient.

        **Returns:**

        A `Dual`.
        """
        return Dual(gram, data.y, self.epsilon, -bound, bound)

    def log_normaliser(self) -> Float[Array, "*n"]:
        """`log ∫ exp(-loss/2λ) dy = log(2ε + 4λ)`: with it the loss is a likelihood, whose posterior `SVR` maximises.

        **Returns:**

        One number.
        """
        return jnp.log(2.0 * self.epsilon + 4.0 * self.penalty)

    def loss(self, y: Float[Array, " n"], values: Float[Array, " n"]) -> Float[Array, " n"]:
        """The ε-insensitive loss, `max(|y - f| - ε, 0)`.

        **Arguments:**

        - `y`: targets.
        - `values`: values of the function.

        **Returns:**

        The loss of each row.
        """
        return jnp.maximum(jnp.abs(y - values) - self.epsilon, 0.0)


class SVC(AbstractMachine):
    """Support vector classification of labels -1 and +1, `min Σ max(1 - y_i (f(x_i) + b), 0) + λ‖f‖²`.

    α is 0 for rows beyond the margin (`y f > 1`), and `C y` for rows within it or on the wrong side. Train it with
    [`kernax.condition`][]. For several classes see [`kernax.learners.one_against_one`][].

    **Arguments:**

    - `kernel`: the kernel.
    - `C`: the cost of the losses, one positive number or one for each row; 1 if neither `C` nor `penalty` is given.
    - `penalty`: λ = 1/(2C), one number or one for each row. Give either `C` or `penalty`.
    - `intercept`: whether to add an intercept b, which is not penalised.
    """

    kernel: AbstractKernel
    penalty: Float[Parameter, "*n"] = positive()
    intercept: bool = eqx.field(static=True, default=True)

    def __init__(self, kernel: AbstractKernel, *, C: Any = None, penalty: Any = None, intercept: bool = True):
        self.kernel = kernel
        self.penalty = as_penalty(C, penalty, "SVC")
        self.intercept = intercept

    def __check_init__(self):
        check_machine(self)

    def check(self, data, caller):
        check_targets(self, data, caller)
        check_labels(data, "SVC")

    def conditioned(self, data, finite, solver):
        return _solved(self, data, finite, solver)[0]

    def conditioned_near(self, other, data, finite, solver):
        return _solved(self, data, finite, solver, start=other.coefficients)[0]

    def conditioned_now(self, data, solver):
        return _trained(self, data, solver, None, MAX_STEPS)

    def initialised(self, data):
        x = take(data.x)
        kernel = self.kernel.initialised(x, data.mask, jnp.ones((), data.dtype))
        level = jnp.mean(kernel.diag(x), where=data.mask)
        penalty = jnp.broadcast_to(0.05 * level, self.penalty.shape)
        return eqx.tree_at(lambda m: (m.kernel, m.penalty), self, (kernel, penalty))

    @property
    def wants_labels(self):
        return True

    def held_out_loss(self, y, values):
        return self.loss(y, values)

    def dual(self, gram: Float[Array, "n n"], data: Data, bound: Float[Array, " n"]) -> Dual:
        """The dual problem, whose coefficients have the sign of their label and a size of at most `bound`.

        **Arguments:**

        - `gram`: the kernel matrix.
        - `data`: the dataset.
        - `bound`: the largest size of a coefficient.

        **Returns:**

        A `Dual`.
        """
        signed = data.y * bound
        return Dual(gram, data.y, jnp.zeros((), gram.dtype), jnp.minimum(signed, 0.0), jnp.maximum(signed, 0.0))

    def loss(self, y: Float[Array, " n"], values: Float[Array, " n"]) -> Float[Array, " n"]:
        """The hinge loss, `max(1 - y f, 0)`.

        **Arguments:**

        - `y`: targets.
        - `values`: values of the function.

        **Returns:**

        The loss of each row.
        """
        return jnp.maximum(1.0 - y * values, 0.0)


class SupportVectors(AbstractExpansion):
    """A support vector machine conditioned on data: `f(x) = Σ α_i k(x, x_i) + b`, exact to rounding.

    Coefficients that are 0 or at their bound are exactly so. It is differentiable of any order with respect to the kernel,
    the penalty, ε, x and y, through the conditions on the free coefficients. A gradient costs one more factorisation of
    their rows.
    """

    model: Any
    """The machine."""
    data: Data
    """The dataset."""
    solver: AbstractSolver
    """The solver."""
    coefficients: Float[Array, " n"]
    """α, 0 in masked rows."""
    intercept: Float[Array, ""]
    """b."""
    values: Float[Array, " n"]
    """`f(x_i) + b` at the data."""
    at_bound: Bool[Array, " n"]
    """Rows outside the tube, or within the margin: α is ±C."""
    objective: Float[Array, ""]
    """`Σ C_i loss_i + ½‖f‖²`: what was minimised, divided by 2λ."""
    duality_gap: Float[Array, ""]
    """The objective minus that of the dual: 0 up to rounding."""
    kkt_residual: Float[Array, ""]
    """The largest violation of the conditions of optimality, in the unit of y."""
    num_steps: Int[Array, ""]
    """The number of linear systems solved."""
    result: Any
    """How the computation ended."""
    jitter: Float[Array, ""]
    """The jitter that was added to the diagonal."""

    @property
    def support(self) -> Bool[Array, " n"]:
        """The support vectors: rows whose coefficient is not 0."""
        return self.coefficients != 0

    @property
    def num_support(self) -> Int[Array, ""]:
        """The number of support vectors."""
        return jnp.sum(self.support)

    def classify(self, x: Any) -> Float[Array, " m"]:
        """The class of each row, by the sign of f.

        **Arguments:**

        - `x`: new rows, `(m, d)`.

        **Returns:**

        -1 or +1 for each row. Raises `TypeError` for an `SVR`.
        """
        if not isinstance(self.model, SVC):
            raise TypeError("SVR predicts numbers, not classes: call the machine itself, or train an SVC.")
        return sign(self(x))

    def __repr__(self):
        if not is_concrete(self.kkt_residual) or self.kkt_residual.ndim:
            return f"SupportVectors({self.model!r}, {self.data!r})"
        return (
            f"SupportVectors({result_name(self.result)}, {int(self.num_support)} of {int(self.data.count)} rows, "
            f"{int(jnp.sum(self.at_bound))} at their bound, objective={float(self.objective):.6g}, "
            f"kkt_residual={float(self.kkt_residual):.2g}, {self.model!r})"
        )


def support_vectors(
    model: SVR | SVC, data: Data, *, weights: Any = None, max_steps: int = MAX_STEPS, throw: bool = True
) -> SupportVectors:
    """Train a support vector machine: `kx.condition(model, data)`, with a weight for each row.

    It usually takes O(n²) for simple steps, and about ten factorisations of the free rows. If K is singular, an
    interior-point method factorises the matrix of all rows in each step.

    **Arguments:**

    - `model`: a `learners.SVR` or `learners.SVC`.
    - `data`: the rows.
    - `weights`: factors of the rows' losses. A row with weight 0 does not count.
    - `max_steps`: the largest number of steps of the interior-point method.
    - `throw`: raise an error if there is no solution; with `False` return the status.

    **Returns:**

    A [`kernax.learners.SupportVectors`][]: a function of new rows. Its status is a success if the KKT residual is at most
    1e-6 (1e-3 in float32) of the mean of `|y - b|`; otherwise it is `max_steps_reached`, or `stalled` if rounding ended it
    (for an enormous C, or in float32).
    """
    if not isinstance(model, SVR | SVC):
        raise TypeError(
            f"the first argument of support_vectors must be learners.SVR or learners.SVC, got {type(model).__name__}."
        )
    check_model_and_data(model, data, "support_vectors")
    if weights is not None:
        weights = as_row_weights(weights, data)
    if max_steps < 1:
        raise ValueError(f"max_steps must be 1 or more, got {max_steps}.")
    machine = _trained(model, data, Cholesky(), weights, max_steps)
    if throw:
        throw_unless((), machine.result, "training")
    return machine


def _trained(
    model: SVR | SVC, data: Data, solver: AbstractSolver, weights: Float[Array, " n"] | None, max_steps: int
) -> SupportVectors:
    """By two programs: the second one, with the interior-point method, is compiled and run only if the first did not do."""
    arguments = model, data, solver, weights, jax.device_put(max_steps)
    if not is_traced(arguments):
        machine, settled = _by_program(*arguments, by_pivoting_alone=True)
        if settled:
            return machine
    return _by_program(*arguments, by_pivoting_alone=False)[0]


@compiled
def _by_program(
    model: SVR | SVC,
    data: Data,
    solver: AbstractSolver,
    weights: Float[Array, " n"] | None,
    max_steps: Int[Array, ""],
    by_pivoting_alone: bool,
) -> tuple[SupportVectors, Bool[Array, ""]]:
    data, finite = data.finite_or_zero()
    return _solved(as_dtype(model, data.dtype), data, finite, solver, weights, max_steps, None, by_pivoting_alone)


def _solved(
    model: SVR | SVC,
    data: Data,
    finite: Bool[Array, ""],
    solver: AbstractSolver,
    weights: Float[Array, " n"] | None = None,
    max_steps: Int[Array, ""] | int = MAX_STEPS,
    start: Float[Array, " n"] | None = None,
    by_pivoting_alone: bool = False,
) -> tuple[SupportVectors, Bool[Array, ""]]:
    """The machine, and whether its solution is the exact one."""
    max_jitter_of(solver, type(model).__name__)
    gram, bound = gram_of(model.kernel, data.x, data.mask).dense(), model.C if weights is None else weights * model.C
    bound = data.zero_where_masked(jnp.broadcast_to(bound, data.y.shape))
    dual = model.dual(gram, data, bound)
    # What was traced could not be refused.
    finite = finite & jnp.isfinite(sum(jnp.sum(part) for part in dual)) & jnp.all(bound >= 0) & (dual.epsilon >= 0)
    known = jnp.all((jnp.abs(data.y) == 1) | ~data.mask) if isinstance(model, SVC) else jnp.asarray(True)
    # Numbers for every problem: where there are none, those of a harmless one, and NaN at the very end.
    harmless = Dual(jnp.eye(data.n, dtype=data.dtype), *(jnp.zeros_like(part) for part in dual[1:]))
    dual = jax.tree.map(lambda part, other: jnp.where(finite & known, part, other), dual, harmless)

    start = None if start is None else jnp.where(finite & known & data.mask, jax.lax.stop_gradient(start), 0.0)
    found = solve_dual(jax.lax.stop_gradient(dual), model.intercept, jnp.asarray(max_steps), start, by_pivoting_alone)
    alpha, b = attached(dual, found.alpha, found.intercept, model.intercept)
    values = matmul(dual.gram, alpha) + b
    gradient = values - b - dual.targets
    residual = kkt_residual(*jax.lax.stop_gradient((slopes(dual, alpha, gradient), b)))
    energy, losses = jnp.sum(alpha * (values - b)), jnp.sum(bound * model.loss(data.y, values))
    objective = losses + 0.5 * energy
    gap = losses + energy - jnp.sum(dual.targets * alpha) + dual.epsilon * jnp.sum(jnp.abs(alpha))

    result = outcome(residual, jax.lax.stop_gradient(data.y - b), data.mask, found.used_up)
    result = Result.where(known, result, Result.unknown_labels)
    result = Result.where(finite, result, Result.nonfinite)
    result = Result.where(jnp.any(data.mask), result, Result.empty)
    ok = finite & known & jnp.any(data.mask)
    numbers = (alpha, b, values, objective, gap, residual)
    alpha, b, values, objective, gap, residual = (jnp.where(ok, part, jnp.nan) for part in numbers)
    machine = SupportVectors(
        model=model,
        data=data,
        solver=solver,
        coefficients=alpha,
        intercept=b,
        values=values,
        at_bound=jnp.abs(places(dual, found.alpha)) == 2,
        objective=objective,
        duality_gap=gap,
        kkt_residual=residual,
        num_steps=found.num_systems,
        result=result,
        jitter=found.jitter,
    )
    return machine, found.settled


def outcome(
    residual: Float[Array, ""], targets: Float[Array, " n"], mask: Bool[Array, " n"], used_up: Bool[Array, ""]
) -> Any:
    """How training ended, from the KKT residual and the targets less the intercept."""
    # Neither a level that the intercept takes up nor a few outliers make it easier.
    scale = jnp.sum(jnp.where(mask, jnp.abs(targets), 0.0)) / jnp.maximum(jnp.sum(mask), 1)
    single = jnp.finfo(targets.dtype).eps > 1e-10
    near = residual <= (1e-3 if single else 1e-6) * jnp.where(scale > 0, scale, 1.0)
    # More steps would not help float32, which runs out of digits first.
    result = Result.where(used_up & (not single), Result.max_steps_reached, Result.stalled)
    return Result.where(near, Result.successful, result)
