"""A `Model` (kernel, noise and mean), and a `Conditioned`: the model with data, for all predictions and scores."""

import abc
import dataclasses
import functools
from typing import Any, Protocol, overload, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import is_concrete
from kernax._programs import compiled, compiled_without_copies, is_traced
from kernax._threads import with_threads_for
from kernax.data import Data
from kernax.grams import AbstractGram, gram_of
from kernax.kernels import AbstractKernel, as_trend, joined_trends
from kernax.kernels._coregion import coregion_in
from kernax.kernels._functionals import check_observable
from kernax.kernels._kernel import check_rows
from kernax.means import Constant, PerGroup, Zero, as_mean, mean_values
from kernax.means._means import check_mean
from kernax.noises import AbstractNoise, as_noise, check_noise, is_per_row, noise_values
from kernax.noises._noises import noise_axis
from kernax.parameters import Parametrised, as_dtype, non_negative
from kernax.rows import (
    Grid,
    check_same_columns,
    fitted_to,
    functionals_in,
    is_on_disk,
    observe_values,
    some_rows,
    take,
    with_room,
)
from kernax.solvers import (
    AbstractSolver,
    AbstractSystem,
    Cholesky,
    Result,
    Solution,
    check_memory,
    is_usable,
    offered,
    per_output,
    result_name,
    throw_unless,
    with_trend,
    worse,
)

_LOOK = 2**16
"""Rows in a file that `initialise` looks at."""


class AbstractModel(Parametrised):
    """Base class of what `condition` and `fit` accept: a kernel with a way to solve for data.

    `Model` is kernel ridge regression and the Gaussian process; `kernax.learners` has machines for other losses.
    """

    kernel: eqx.AbstractVar[AbstractKernel]

    @property
    @abc.abstractmethod
    def is_per_row(self) -> bool:
        """Whether a parameter is given per row. The model then fits one dataset only."""

    @abc.abstractmethod
    def check(self, data: Data, caller: str) -> None:
        """Raise an error if the model cannot be conditioned on this data, as far as that can be checked before tracing.

        **Arguments:**

        - `data`: the dataset.
        - `caller`: the function that the user called, for the message.
        """

    def can_be_fitted(self, data: Data) -> Any:
        """Whether the rows that count have what every parameter is learned from: each task, and several classes.

        A fit to data without them has the result `unknown_labels`. `True` or a scalar array of it.
        """
        tasks = coregion_in(self.kernel)
        if tasks is None or not isinstance(data.x, dict) or tasks.key not in data.x:
            return True
        labels = jnp.where(data.mask, data.x[tasks.key].astype(int), -1)
        return jnp.all(jnp.any(labels[:, None] == jnp.arange(tasks.number), axis=0)) | ~jnp.any(data.mask)

    @abc.abstractmethod
    def conditioned(self, data: Data, finite: Bool[Array, ""], solver: AbstractSolver) -> "AnyConditioned":
        """`condition` without its checks.

        **Arguments:**

        - `data`: the dataset. If it is not finite, its numbers have been replaced by zeros.
        - `finite`: whether the dataset is finite, a traced boolean.
        - `solver`: the solver.

        **Returns:**

        A conditioned model.
        """

    def conditioned_now(self, data: Data, solver: AbstractSolver) -> "AnyConditioned":
        """`condition` outside of any trace: one compiled program, unless a model has a faster way.

        **Arguments:**

        - `data`: the dataset.
        - `solver`: the solver.

        **Returns:**

        A conditioned model.
        """
        return _condition(self, data, solver)

    @abc.abstractmethod
    def initialised(self, data: Data) -> "AbstractModel":
        """This model with starting values that suit the data, before they are moved into the bounds of the parameters.

        **Arguments:**

        - `data`: the dataset.

        **Returns:**

        A model of the same structure.
        """


@runtime_checkable
class AnyConditioned(Protocol):
    """The fields or properties that every conditioned model has: `model`, `data`, `result` and `jitter`."""

    @property
    def model(self) -> Any: ...

    @property
    def data(self) -> Data: ...

    @property
    def result(self) -> Any: ...

    @property
    def jitter(self) -> Any: ...


class Model(AbstractModel):
    """A Gaussian process model, `y = f(x) + ε`: f has this kernel and mean, and ε has variance `noise`.

    `noise` is both the noise variance of the Gaussian process and the ridge λ of kernel ridge regression,
    `min Σ(f(x_i) - y_i)² + λ‖f‖²`.

    **Arguments:**

    - `kernel`: a kernel.
    - `noise`: one number, one per row of the data, or a module that is called with one row and returns a variance, such as
      those of `kx.noises`. 0 interpolates.
    - `mean`: the prior mean of f: a number, a mean of `kx.means`, or any function of one point; 0 if not given.
    - `trend`: functions left free, without a prior (universal kriging): a degree of polynomials, such as 1, or a function
      from one point to a vector; none if not given. The likelihood is then the restricted one.
    """

    kernel: AbstractKernel
    noise: Any = non_negative(unit="y²", converter=as_noise)
    mean: Any = eqx.field(converter=as_mean, default_factory=Zero)
    trend: Any = eqx.field(converter=as_trend, default=None)

    def __check_init__(self):
        check_kernel(self)

    @property
    def is_per_row(self):
        return is_per_row(self.noise)

    def check(self, data, caller):
        check_noise(self.noise, data.x)
        check_observable(self.kernel, data.x)

    def conditioned(self, data, finite, solver):
        trend = trend_of(self)
        if trend is not None and not solver.solves:
            raise TypeError(f"a trend needs all rows, but {solver!r} uses only some of them: leave out part=.")
        noise, sound = _finite_noise(noise_values(self.noise, data.x, data.dtype), finite)

        def gram(mask: Bool[Array, " n"]) -> AbstractGram:
            kernel = self.kernel if trend is None else self.kernel.definite(take(data.x), mask)
            return gram_of(kernel, data.x, mask)

        def prepared(mask: Bool[Array, " n"]) -> AbstractSystem:
            axis = noise_axis(self.noise, data.x)
            system = solver.prepare(gram(mask), noise) if axis is None else solver.prepare_along(gram(mask), noise, axis)
            return system if trend is None else with_trend(system, trend)

        system = prepared(data.mask) if data.gaps is None else per_output(prepared, data.gaps, gram(data.mask), noise)
        return _conditioned(self, data, _flagged(system, sound), solver)

    def initialised(self, data):
        seen = data.observed
        if functionals_in(data.x):  # slopes have another unit
            seen = seen & jnp.reshape(observe_values(data.x), (-1, *[1] * (seen.ndim - 1)))
        level = _finite_or(jnp.mean(data.y, axis=0, where=seen), 0.0)
        spread = jnp.mean(jnp.var(data.y, axis=0, where=seen))
        spread = _finite_or(jnp.where(spread > 0, spread, 1.0), 1.0)
        look = some_rows(data.x, _LOOK)
        x, mask = take(data.x, look), data.mask if look is None else data.mask[look]
        start = eqx.tree_at(lambda m: m.kernel, self, self.kernel.initialised(x, mask, spread))
        if isinstance(self.noise, AbstractNoise):
            start = eqx.tree_at(lambda m: m.noise, start, self.noise.initialised(0.1 * spread))
        elif not callable(self.noise) and self.noise.ndim == 0:
            start = eqx.tree_at(lambda m: m.noise, start, jnp.where(self.noise > 0, 0.1 * spread, 0.0))
        if isinstance(self.mean, Constant):
            value = level if self.mean.value.ndim == level.ndim else jnp.mean(level)
            start = eqx.tree_at(lambda m: m.mean.value, start, jnp.broadcast_to(value, self.mean.value.shape))
        if isinstance(self.mean, PerGroup) and data.y.ndim == 1:
            start = eqx.tree_at(lambda m: m.mean.values, start, self.mean.levels(take(data.x), data.y, seen))
        return start


def trend_of(model: AbstractModel) -> Any:
    """The functions that a model leaves free, by its kernel or by itself; `None` if there are none."""
    return joined_trends(model.kernel.trend(), getattr(model, "trend", None))


def check_kernel(model: AbstractModel) -> None:
    """Raise `TypeError` if `model.kernel` is not a kernel."""
    if not isinstance(model.kernel, AbstractKernel):
        hint = " (write it with parentheses: an instance, not the class)" if isinstance(model.kernel, type) else ""
        raise TypeError(f"{type(model).__name__}.kernel must be a kernax kernel, got {model.kernel!r}{hint}.")


def _finite_or(value: Array, otherwise: float) -> Array:
    return jnp.where(jnp.isfinite(value), value, otherwise)


class Conditioned(eqx.Module):
    """A model conditioned on data, by [`kernax.condition`][]. Predictions and scores are functions of it.

    All its numbers have the floating type of the data.

    **Arguments:**

    - `model`: the model.
    - `data`: the dataset.
    - `system`: the prepared System `A = K + noise·I`, with the methods `solve`, `logdet`, `mean`, `variance` and more.
    - `residual`: `y - mean`, 0 in masked rows.
    - `solution`: `A⁻¹ (y - mean)`, and the numbers that predictions are made from.
    - `solver`: the solver.
    """

    model: Model
    data: Data
    system: AbstractSystem
    residual: Float[Array, "n *p"]
    solution: Solution
    solver: AbstractSolver

    @property
    def alpha(self) -> Float[Array, "n *p"]:
        """`(K + noise·I)⁻¹ (y - mean)`: the coefficients of `f(x) = mean(x) + Σ alpha_i k(x, x_i)`."""
        return self.solution.value

    @property
    def result(self) -> Any:
        """How conditioning ended; one per dataset in a batch."""
        return worse(self.system.result, self.solution.result)

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether conditioning gave usable numbers; one per dataset in a batch."""
        return is_usable(self.result)

    @property
    def jitter(self) -> Float[Array, "..."]:
        """The jitter that was added to the diagonal, in addition to the noise; with `kx.Vecchia()`, the largest."""
        return jnp.maximum(self.system.jitter, self.solution.jitter)

    def __repr__(self):
        if not is_concrete(self.jitter) or self.jitter.ndim:
            return f"Conditioned({self.model!r}, {self.data!r}, {self.solver!r})"
        status = f"{result_name(self.result)}, jitter={float(self.jitter):.3g}"
        return f"Conditioned({self.model!r}, {self.data!r}, {self.solver!r}, {status})"


@overload
def condition(model: Model, data: Data, solver: Any = None, *, throw: bool = True) -> Conditioned: ...


@overload
def condition(model: AbstractModel, data: Data, solver: Any = None, *, throw: bool = True) -> Any: ...


def condition(model: AbstractModel, data: Data, solver: Any = None, *, throw: bool = True) -> Any:
    """Condition a model on data. Predictions and scores are then functions of the result.

    **Arguments:**

    - `model`: a `kx.Model`, or a machine of `kx.learners`. It is cast to the data's floating type.
    - `data`: the dataset.
    - `solver`: a configured solver, such as `kx.Eigh()`; `kx.Cholesky()` if not given, O(n³).
    - `throw`: raise `FailedError` if the system cannot be solved; with `False` the status is in `result`. Inside `jit`,
      `grad` and `vmap` no error is raised.

    **Returns:**

    A `Conditioned`; for a machine of `kx.learners`, its own class of results. Raises `MemoryError` if the solver keeps dense
    matrices that do not fit into the memory that is available, before anything is allocated; see `kx.suggest_solver`.
    """
    check_model_and_data(model, data, "condition")
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a configured instance, such as kx.Eigh(), got {solver!r}.")
    solver = Cholesky() if solver is None else solver
    check_solver(model, data, solver)
    check_memory(model, data, solver, "condition")
    run = functools.partial(_condition, model) if is_traced((model, data, solver)) else model.conditioned_now
    conditioned = with_threads_for(solver.largest_matrix(data.n), run, data, solver)
    if throw:
        throw_unless(("several_modes",), conditioned.result, f"conditioning{_how_it_went(conditioned)}")
    return conditioned


def _how_it_went(conditioned: Any) -> str:
    """Steps and residual of an iterative solve, for the message of a failure."""
    solution = getattr(conditioned, "solution", None)
    steps = getattr(solution, "steps", 0)
    if solution is None or not is_concrete(steps) or np.ndim(steps) > 0 or int(steps) == 0:
        return ""
    remedy = ""
    if result_name(conditioned.result) == "max_steps_reached":
        remedy = "; a preconditioner of higher rank helps, such as kx.CG(kx.LowRank(2000))"
    return f" ({int(steps)} steps, relative residual {float(solution.residual):.1e}{remedy})"


def settled(solver: AbstractSolver, model: AbstractModel, data: Data, part: int | None = None) -> AbstractSolver:
    """The solver with its data-dependent choices made for this model and data. `fit` calls it in each round.

    **Arguments:**

    - `solver`: a solver.
    - `model`, `data`: the model and the dataset.
    - `part`: about how many random rows are enough for an estimate of the likelihood; all rows if not given.

    **Returns:**

    A solver; the same one if it makes no such choices.
    """
    if not has_choices(solver):
        return solver
    if trend_of(model) is not None or not isinstance(model, Model):
        # Free functions and modes are solved for, with all rows.
        part = None
    return _settled(solver, model, data, part)


def has_choices(solver: AbstractSolver) -> bool:
    """Whether the solver makes choices that depend on the data, by its method `settled`."""
    return type(solver).settled is not AbstractSolver.settled


@compiled
def _settled(solver: AbstractSolver, model: AbstractModel, data: Data, part: int | None) -> AbstractSolver:
    data, _ = data.finite_or_zero()
    kernel = as_dtype(model.kernel, data.dtype)
    if kernel.trend() is not None:
        kernel = kernel.definite(take(data.x), data.mask)
    return solver.settled(gram_of(kernel, data.x, data.mask), part)


def check_model_and_data(model: Any, data: Any, caller: str) -> None:
    """Raise if the arguments are not a model and its data."""
    check_model(model, caller)
    if not isinstance(data, Data):
        raise TypeError(
            f"the second argument of {caller} must be a kx.Data, got {type(data).__name__}: write kx.Data(x, y)."
        )
    if data.mask.ndim != 1:
        raise ValueError(
            f"{caller} needs one dataset, got a batch of shape {data.mask.shape[:-1]}: map over it with jax.vmap."
        )
    check_known(model, data.x, data.mask)
    model.check(data, caller)


def check_model(model: Any, caller: str) -> None:
    """Raise `TypeError` if `model` is not a model. If it is an object that contains one, the message says where."""
    if isinstance(model, AbstractModel):
        return
    remedy = "write kx.Model(kernel, noise=…)"
    if isinstance(getattr(model, "model", None), AbstractModel):
        remedy = "choose one of them, fits[0].model" if hasattr(model, "__len__") else "take its model, fit.model"
    raise TypeError(f"the first argument of {caller} must be a kx.Model, got {type(model).__name__}: {remedy}.")


def model_of(given: Any) -> Any:
    """The model of a `kx.Fit`, or what was given if it is no fit. (`kx.fitting.Fits` have several models.)"""
    return given.model if hasattr(given, "start_values") and not hasattr(given, "__len__") else given


def check_solver(model: AbstractModel, data: Data, solver: AbstractSolver) -> None:
    """Raise if the solver cannot solve for this model and data, as far as that can be seen before tracing."""
    solver.check(data.x, data.mask)
    asks = type(solver).check_equal_rows is not AbstractSolver.check_equal_rows
    if not asks or not eqx.is_array(data.x) or data.x.shape[0] < 2 or not all(map(is_concrete, (data.x, data.mask))):
        return
    # (Rows that do not count are copies of one that does. In most data the last row differs from the first.)
    x = np.asarray(data.x)
    equal = x.shape[1] == 1 and x[0, 0] == x[-1, 0] and bool(np.all(x == x[0, 0]))
    number = int(np.sum(np.asarray(data.mask)))
    if equal and number > 1:
        trend, noise = trend_of(model), getattr(model, "noise", None)
        num_free = 0 if trend is None else jax.eval_shape(trend.scaled(data.x, data.mask), data.x).shape[1]
        known = not callable(noise) and is_concrete(noise)
        solver.check_equal_rows(number, np.asarray(noise) if known and noise is not None else None, num_free)


def check_known(model: AbstractModel, x: Any, counts: Any = None) -> None:
    """Raise `ValueError` if the kernel or the mean does not accept some rows, such as a label out of range.

    Traced rows are not checked. For training rows, `counts` is the mask: each label must occur in a row that counts.
    """
    check_rows(model.kernel, x, counts)
    check_mean(getattr(model, "mean", None), x)


_ANSWERS = (
    ("mean", "mean(x)", "the mean of a new observation"),
    ("interval", "interval(x)", "where it lies"),
    ("latent", "latent(x)", "the mean and variance of the function"),
    ("probability", "probability(x)", "probabilities"),
    ("classify", "classify(x)", "classes"),
    ("log_density", "log_density(x, y)", "the log density of new observations"),
)
"""Methods of conditioned models that are not a `Conditioned`, how to call them, and what for."""


LEARN_AGAIN = "write kx.learners.kfold_loss(machine), which learns again without each fold"
"""How a machine is validated: for `check_conditioned`."""


def of_function(c: Any) -> Any:
    """A `Conditioned` with the posterior of f: for a `LaplaceGP` that of the regression at its mode; else `c` itself."""
    return c.as_regression() if hasattr(c, "as_regression") else c


def check_conditioned(c: Any, quantity: str = "", instead: str = "") -> None:
    """Raise `TypeError` if `c` is not a `Conditioned`.

    **Arguments:**

    - `c`: what was given.
    - `quantity`: what was asked for, and
    - `instead`: what to do if that is not available because the likelihood is not normal.
    """
    if not isinstance(c, Conditioned) and not isinstance(c, type) and callable(c):
        name = type(c).__name__
        if hasattr(c, "latent") and quantity:
            raise TypeError(f"{quantity} is not available for a {name}, whose likelihood is not normal: {instead}.")
        own = [f"c.{ask} for {what}" for name, ask, what in _ANSWERS if hasattr(c, name)]
        others = f" It has answers of its own: {', '.join(own)}." if own else ""
        raise TypeError(f"a {name} predicts when it is called with new rows: write machine(x).{others}")
    if not isinstance(c, Conditioned):
        raise TypeError(
            f"expected a Conditioned, got {type(c).__name__}: condition first, c = kx.condition(fit.model, data)."
        )


@compiled
def _condition(model: AbstractModel, data: Data, solver: AbstractSolver) -> AnyConditioned:
    # Traced data cannot be refused. Data with NaN is taken out, so that no gradient behind a `where` meets it.
    data, finite = data.finite_or_zero()
    return as_dtype(model, data.dtype).conditioned(data, finite, solver)


def _conditioned(
    model: Model, data: Data, system: AbstractSystem, solver: AbstractSolver, known: Solution | None = None
) -> Conditioned:
    """The model with its solution; `known` is that of the first rows without the others, if rows were added."""
    residual = data.zero_where_masked(data.y - mean_values(model.mean, data.x, data.y))
    solution = system.solve(residual) if known is None else system.solve_grown(residual, known)
    return Conditioned(model, data, system, residual, solution, solver)


def _finite_noise(noise: Float[Array, "*n"], finite: Bool[Array, ""]) -> tuple[Float[Array, "*n"], Bool[Array, ""]]:
    """The noise, 1 in its place where it is not finite, and whether data and noise are: no gradient is to meet NaN."""
    sound = finite & jnp.all(jnp.isfinite(noise))
    return jnp.where(jnp.isfinite(noise), noise, 1.0), sound


def _flagged(system: AbstractSystem, sound: Bool[Array, ""]) -> AbstractSystem:
    """The System, with the result `nonfinite` if the numbers that it was made of were not finite."""
    result = Result.where(sound | (system.result == Result.empty), system.result, Result.nonfinite)
    return dataclasses.replace(system, result=result)


def recondition(c: Any, noise: Any) -> Conditioned:
    """The same model and data with another noise (ridge), from the existing factorisation.

    **Arguments:**

    - `c`: a model conditioned with a solver that can move to another noise: `kx.condition(model, data, kx.Eigh())`, or
      `LowRank`, `StateSpace`, `Kronecker`. O(n²) for `Eigh`.
    - `noise`: one number, 0 or more. Under `jax.vmap` many noises share the factorisation.

    **Returns:**

    A `Conditioned` with that noise. Its status is in `result`: a numerical failure raises no error.
    """
    check_conditioned(c)
    if is_concrete(noise) and not np.all(np.asarray(noise) >= 0):
        raise ValueError(f"noise must not be negative, got {noise}.")
    noise = jnp.asarray(noise, c.data.dtype)
    if noise.ndim:
        raise ValueError(f"recondition takes one number for all rows, got noise of shape {noise.shape}.")
    return _recondition(c, noise)


def extend(c: Any, x: Any, y: Any, *, noise: Any = None) -> Conditioned:
    """Condition on more rows: O(n²) for each with `Cholesky`, O(n) for all of them with `StateSpace`.

    For a stream of rows at the end of a series, see `kx.posterior.stream`: O(1) for each row.

    **Arguments:**

    - `c`: a model conditioned with `kx.Cholesky()` or `kx.StateSpace()`.
    - `x`: new inputs, `(m, d)`.
    - `y`: new targets, `(m,)` or `(m, p)`.
    - `noise`: the noise of the new rows, if the model's noise is given per row.

    **Returns:**

    A `Conditioned` on all rows, old and new, with the same numbers as conditioning again. The jitter does not change: if
    the new rows need more, the result is `not_positive_definite`.
    """
    check_conditioned(c, "extend", "condition on all rows again")
    new = Data(x, y)
    if functionals_in(c.data.x):
        new = eqx.tree_at(lambda d: d.x, new, fitted_to(new.x, c.data.x))
    check_same_columns(new.x, c.data.x, "x", "the data the model was conditioned on")
    check_known(c.model, new.x)
    new = eqx.tree_at(lambda d: d.x, new, with_room(new.x, c.data.x)) if functionals_in(new.x) else new
    if isinstance(c.data.x, Grid) or is_on_disk((c.data.x, new.x)):
        raise TypeError("extend cannot add rows to a grid, or to rows in a file: condition on all rows again.")
    if new.y.shape[1:] != c.data.y.shape[1:]:
        raise ValueError(f"y has shape {new.y.shape}, but the model was conditioned on targets of shape {c.data.y.shape}.")
    if is_per_row(c.model.noise) != (noise is not None):
        raise ValueError("give noise= for the new rows if the model's noise is given per row, and leave it out otherwise.")
    extra = None if noise is None else jnp.broadcast_to(jnp.asarray(noise, c.data.dtype), (new.n,))
    return _extend(c, new, extra)


def _num_new(arguments: Any) -> int:
    """The columns of the triangular solves of `_extend`: with few, a second thread of BLAS mostly waits for memory."""
    (_, new, _), _ = arguments
    return new.n


@functools.partial(compiled_without_copies, size_of=_num_new)
def _extend(c: Conditioned, new: Data, extra: Float[Array, " m"] | None) -> Conditioned:
    new, finite = new.finite_or_zero()

    def joined(old: Array, more: Array) -> Array:
        return jnp.concatenate([old, more.astype(old.dtype)])

    x, y, mask = jax.tree.map(joined, (c.data.x, c.data.y, c.data.mask), (new.x, new.y, new.mask))
    data = eqx.tree_at(lambda d: (d.x, d.y, d.mask), c.data, (x, y, mask))
    model = c.model
    if extra is not None:
        model = eqx.tree_at(lambda m: m.noise, model, joined(model.noise, extra))
    check_noise(model.noise, x)
    noise, sound = _finite_noise(noise_values(model.noise, x, data.dtype), finite)
    # The kernel of the System, which is not the model's own for a spline, so that old rows keep their entries.
    system = c.system.appended(gram_of(c.system.gram.kernel, x, mask), noise)
    system = offered(system, c.solver, "extend", "new rows from the same factorisation")
    return _conditioned(model, data, _flagged(system, sound), c.solver, c.solution)


@compiled
def _recondition(c: Conditioned, noise: Float[Array, ""]) -> Conditioned:
    model = eqx.tree_at(lambda m: m.noise, c.model, noise)
    safe, sound = _finite_noise(noise, c.system.result != Result.nonfinite)
    system = c.system.shifted(safe)
    system = offered(system, c.solver, "another ridge", "another noise from the same factorisation")
    return _conditioned(model, c.data, _flagged(system, sound), c.solver)
