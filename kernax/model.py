"""The hub: a kernel and a noise make a `Model`; conditioned on `Data` it answers everything else."""

import abc
from typing import Any, Protocol, overload, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import is_concrete, matmul
from kernax.data import Data
from kernax.kernels import AbstractKernel
from kernax.means import Constant, Zero, as_mean, mean_values
from kernax.parameters import Parameter, Parametrised, as_dtype, non_negative
from kernax.solvers import (
    AbstractFactor,
    AbstractSolver,
    Cholesky,
    ProjectedFactor,
    is_usable,
    result_name,
    throw_unless,
)


class AbstractModel(Parametrised):
    """What `condition` takes and `fit` fits: a kernel, and how an answer is made of it and of data.

    `Model` is kernel ridge regression and the Gaussian process; `kernax.learners` has machines for other losses.
    """

    kernel: eqx.AbstractVar[AbstractKernel]

    @property
    @abc.abstractmethod
    def is_per_row(self) -> bool:
        """Whether a parameter is given for each row, and so belongs to one dataset."""

    @abc.abstractmethod
    def check(self, data: Data, caller: str) -> None:
        """Refuse data that this model cannot be conditioned on, as far as may be looked at."""

    @abc.abstractmethod
    def conditioned(self, data: Data, finite: Bool[Array, ""], solver: AbstractSolver) -> "AnyConditioned":
        """The model that has seen data: `condition` less its checks. Where not `finite`, zeros stand for the data."""

    @abc.abstractmethod
    def initialised(self, data: Data) -> "AbstractModel":
        """This model with starting values that suit the data: `initialise` less the parameters' bounds."""


@runtime_checkable
class AnyConditioned(Protocol):
    """A model that has seen data, and how that ended; a field or a property each."""

    @property
    def model(self) -> Any: ...

    @property
    def data(self) -> Data: ...

    @property
    def result(self) -> Any: ...

    @property
    def jitter(self) -> Any: ...


class Model(AbstractModel):
    """What is believed before seeing data: `y = f(x) + ε`, f with this kernel and mean, ε with variance `noise`.

    `noise` is at once the noise variance of the Gaussian process and the ridge λ of kernel ridge regression,
    `min Σ(f(x_i) - y_i)² + λ‖f‖²`. One number, or one per row of the data. 0 interpolates.
    """

    kernel: AbstractKernel
    noise: Float[Parameter, "*n"] = non_negative(unit="y²")
    mean: Any = eqx.field(converter=as_mean, default_factory=Zero)
    """What is expected before data: a number, a mean of `kernax.means`, or any function of one point; 0 if not given."""

    def __check_init__(self):
        check_kernel(self)

    @property
    def is_per_row(self):
        return self.noise.ndim > 0

    def check(self, data, caller):
        shape = self.noise.shape
        if shape not in ((), (data.n,)):
            raise ValueError(
                f"Model.noise has shape {shape}, but the data has {data.n} rows: give one number or one per row."
            )

    def conditioned(self, data, finite, solver):
        # A noise of NaN makes the factor say `nonfinite`.
        noise = jnp.where(finite, self.noise, jnp.nan)
        factor = solver.factorise(self.kernel, data.x, noise, data.mask)
        return _conditioned(self, data, factor, solver, finite)

    def initialised(self, data):
        counts = data.mask if data.y.ndim == 1 else data.mask[:, None]
        level = _finite_or(jnp.mean(data.y, axis=0, where=counts), 0.0)
        spread = jnp.mean(jnp.var(data.y, axis=0, where=counts))
        spread = _finite_or(jnp.where(spread > 0, spread, 1.0), 1.0)
        start = eqx.tree_at(lambda m: m.kernel, self, self.kernel.initialised(data.x, data.mask, spread))
        if self.noise.ndim == 0:
            start = eqx.tree_at(lambda m: m.noise, start, jnp.where(self.noise > 0, 0.1 * spread, 0.0))
        if isinstance(self.mean, Constant):
            value = level if self.mean.value.ndim == level.ndim else jnp.mean(level)
            start = eqx.tree_at(lambda m: m.mean.value, start, jnp.broadcast_to(value, self.mean.value.shape))
        return start


def check_kernel(model: AbstractModel) -> None:
    """Refuse a model whose kernel is none."""
    if not isinstance(model.kernel, AbstractKernel):
        hint = " (write it with parentheses: an instance, not the class)" if isinstance(model.kernel, type) else ""
        raise TypeError(f"{type(model).__name__}.kernel must be a kernax kernel, got {model.kernel!r}{hint}.")


def _finite_or(value: Array, otherwise: float) -> Array:
    return jnp.where(jnp.isfinite(value), value, otherwise)


class FreePart(eqx.Module):
    """What a spline's polynomials add to a conditioned model.

    Weights `w(x) = W p(x)` reproduce every free function at x from its values at the data. What they miss of the kernel,
    `k_Xx - (K + noise·I) w(x)`, takes the place of `k_Xx` in every formula.
    """

    weights: Float[Array, "n q"]
    carried: Float[Array, "n q"]
    """`(K + noise·I) W`."""
    coefficients: Float[Array, "q *p"]
    """`Wᵀ (y - mean)`."""

    @property
    def num_functions(self) -> int:
        return self.weights.shape[-1]


class Conditioned(eqx.Module):
    """A model that has seen data: the factor of `K + noise·I` and `alpha = (K + noise·I)⁻¹ (y - mean)`.

    For splines, both are those of the bordered system, and `free` holds what their polynomials add.

    Every quantity of kernax is a function of this object. All its numbers have the data's floating type.
    """

    model: Model
    data: Data
    factor: AbstractFactor
    """Of `K + noise·I`: answers `solve`, `logdet` and `inverse_diagonal`."""
    alpha: Float[Array, "n *p"]
    """`(K + noise·I)⁻¹ (y - mean)`: the coefficients of `f(x) = mean(x) + Σ alpha_i k(x, x_i)`."""
    solver: AbstractSolver
    finite: Bool[Array, ""]
    """Whether all numbers of the data were finite; if not, zeros stand for them, and the result says so."""
    free: FreePart | None
    """What a spline's polynomials add; None of other kernels."""

    @property
    def result(self) -> Any:
        """How the factorisation ended; one per dataset in a batch."""
        return self.factor.result

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether there are numbers behind `result`; one per dataset in a batch."""
        return is_usable(self.result)

    @property
    def jitter(self) -> Float[Array, "..."]:
        """What had to be added to the diagonal to factorise it, beyond the noise."""
        return self.factor.jitter

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
    """Condition a model on data. O(n³), once; what is asked afterwards is cheap.

    Called eagerly on one dataset it raises `FailedError` if the matrix cannot be factorised; `throw=False` returns the
    status instead. Traced (inside `jit`, `grad`, `vmap`) it never raises. The model is cast to the data's floating type.
    """
    check_model_and_data(model, data, "condition")
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a configured instance, such as kx.Eigh(), got {solver!r}.")
    conditioned = _condition(model, data, Cholesky() if solver is None else solver)
    if throw:
        throw_unless((), conditioned.result, "conditioning")
    return conditioned


def check_model_and_data(model: Any, data: Any, caller: str) -> None:
    """Refuse what is no model, no data, or data that do not belong to this model."""
    if not isinstance(model, AbstractModel):
        raise TypeError(f"{caller} wants a kx.Model first, got {type(model).__name__}: write kx.Model(kernel, noise=…).")
    if not isinstance(data, Data):
        raise TypeError(f"{caller} wants a kx.Data second, got {type(data).__name__}: write kx.Data(x, y).")
    if data.mask.ndim != 1:
        raise ValueError(
            f"{caller} wants one dataset, got a batch of shape {data.mask.shape[:-1]}: map over it with jax.vmap."
        )
    model.check(data, caller)


def check_conditioned(c: Any) -> None:
    """Refuse what has not seen data."""
    if not isinstance(c, Conditioned) and not isinstance(c, type) and callable(c):
        raise TypeError(
            f"a {type(c).__name__} is itself the function that it has learned: call it with new rows, machine(x)."
        )
    if not isinstance(c, Conditioned):
        raise TypeError(
            f"expected a Conditioned, got {type(c).__name__}: condition first, c = kx.condition(fit.model, data)."
        )


@eqx.filter_jit
def _condition(model: AbstractModel, data: Data, solver: AbstractSolver) -> AnyConditioned:
    # Traced data cannot be refused. Data with NaN is taken out, so that no gradient behind a `where` meets it.
    data, finite = data.finite_or_zero()
    return as_dtype(model, data.dtype).conditioned(data, finite, solver)


def _conditioned(
    model: Model, data: Data, factor: AbstractFactor, solver: AbstractSolver, finite: Bool[Array, ""]
) -> Conditioned:
    residual = data.zero_where_masked(data.y - mean_values(model.mean, data.x, data.y))
    free = None
    if isinstance(factor, ProjectedFactor):
        weights = factor.projection.weights
        free = FreePart(weights, factor.carried, matmul(weights.T, residual))
    elif model.kernel.is_conditional:
        raise TypeError(
            f"{model.kernel!r} is only conditionally definite, and {solver!r} leaves its polynomials out: "
            "condition with kx.Cholesky() or kx.Eigh()."
        )
    return Conditioned(
        model=model, data=data, factor=factor, alpha=factor.solve(residual), solver=solver, finite=finite, free=free
    )


def with_noise(c: Conditioned, noise: Any) -> Conditioned:
    """The same model conditioned with another noise (ridge), in O(n²), from an eigendecomposition that is at hand.

    Needs `condition(model, data, solver=kx.Eigh())`. One number; many under `jax.vmap`, which share the eigenvectors.
    """
    check_conditioned(c)
    if is_concrete(noise) and not np.all(np.asarray(noise) >= 0):
        raise ValueError(f"a noise is not negative, got {noise}.")
    return _with_noise(c, jnp.asarray(noise, c.data.dtype))


@eqx.filter_jit
def _with_noise(c: Conditioned, noise: Float[Array, ""]) -> Conditioned:
    model = eqx.tree_at(lambda m: m.noise, c.model, noise)
    factor = c.factor.shifted(jnp.where(c.finite, noise, jnp.nan))
    return _conditioned(model, c.data, factor, c.solver, c.finite)
