"""A `Model` (kernel, noise and mean), and a `Conditioned`: the model with data, for all predictions and scores."""

import abc
import dataclasses
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax._arrays import is_concrete
from kernax._programs import compiled
from kernax.data import Data
from kernax.grams import AbstractGram, gram_of
from kernax.kernels import AbstractKernel, as_trend, joined_trends
from kernax.kernels._coregion import coregion_in
from kernax.kernels._functionals import check_observable
from kernax.kernels._kernel import check_is_kernel
from kernax.means import Constant, PerGroup, Zero, as_mean, mean_values
from kernax.noises import AbstractNoise, as_noise, check_noise, is_per_row, noise_values
from kernax.noises._noises import noise_axis
from kernax.parameters import Parametrised, as_dtype, non_negative
from kernax.rows import (
    functionals_in,
    observe_values,
    some_rows,
    take,
)
from kernax.solvers import (
    AbstractSolver,
    AbstractSystem,
    Result,
    Solution,
    is_usable,
    per_output,
    result_name,
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
        return condition_compiled(self, data, solver)

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
    - `trend`: functions whose coefficients have no prior (universal kriging): a degree of polynomials, such as 1, or a
      function from one point to a vector. By default there is no trend. With one, the likelihood is the restricted one.
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
        noise, sound = finite_noise(noise_values(self.noise, data.x, data.dtype), finite)

        def gram(mask: Bool[Array, " n"]) -> AbstractGram:
            kernel = self.kernel if trend is None else self.kernel.definite(take(data.x), mask)
            return gram_of(kernel, data.x, mask)

        def prepared(mask: Bool[Array, " n"]) -> AbstractSystem:
            axis = noise_axis(self.noise, data.x)
            system = solver.prepare(gram(mask), noise) if axis is None else solver.prepare_along(gram(mask), noise, axis)
            return system if trend is None else with_trend(system, trend)

        system = prepared(data.mask) if data.gaps is None else per_output(prepared, data.gaps, gram(data.mask), noise)
        return conditioned_on(self, data, flagged(system, sound), solver)

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
    check_is_kernel(model.kernel, f"{type(model).__name__}.kernel")


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


def conditioned_on(
    model: Model, data: Data, system: AbstractSystem, solver: AbstractSolver, known: Solution | None = None
) -> Conditioned:
    """The model with its solution; `known` is that of the first rows without the others, if rows were added."""
    residual = data.zero_where_masked(data.y - mean_values(model.mean, data.x, data.y))
    solution = system.solve(residual) if known is None else system.solve_grown(residual, known)
    return Conditioned(model, data, system, residual, solution, solver)


def finite_noise(noise: Float[Array, "*n"], finite: Bool[Array, ""]) -> tuple[Float[Array, "*n"], Bool[Array, ""]]:
    """The noise, 1 in its place where it is not finite, and whether data and noise are: no gradient is to meet NaN."""
    sound = finite & jnp.all(jnp.isfinite(noise))
    return jnp.where(jnp.isfinite(noise), noise, 1.0), sound


def flagged(system: AbstractSystem, sound: Bool[Array, ""]) -> AbstractSystem:
    """The System, with the result `nonfinite` if the numbers that it was made of were not finite."""
    result = Result.where(sound | (system.result == Result.empty), system.result, Result.nonfinite)
    return dataclasses.replace(system, result=result)


@compiled
def condition_compiled(model: AbstractModel, data: Data, solver: AbstractSolver) -> AnyConditioned:
    # Traced data cannot be refused. Data with NaN is taken out, so that no gradient behind a `where` meets it.
    data, finite = data.finite_or_zero()
    return as_dtype(model, data.dtype).conditioned(data, finite, solver)
