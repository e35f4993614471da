"""Common parts of machines: `min Σ loss(y_i, f(x_i) + b) + λ‖f‖²`, and `f(x) = Σ α_i k(x, x_i)` for an answer."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kernax._arrays import as_floats, is_concrete
from kernax._programs import compiled
from kernax.data import Data
from kernax.grams import gram_of
from kernax.model import AbstractModel
from kernax.model._model import check_kernel
from kernax.parameters import Parameter
from kernax.posterior import rows_like
from kernax.rows import Rows
from kernax.solvers import AbstractSolver, result_name


class AbstractMachine(AbstractModel):
    """A kernel, a loss and a penalty λ (one number, or one per row), with an intercept b that is not penalised, or none.

    The C of support vector machines is `1/(2λ)`: `C Σ loss + ½‖f‖²` has the same minimiser. Rows of weight w have a penalty
    of λ/w.
    """

    penalty: eqx.AbstractVar[Float[Parameter, "*n"]]
    intercept: eqx.AbstractVar[bool]
    takes_any_solver: ClassVar[bool] = False
    """Whether it accepts any solver; otherwise it factorises dense matrices."""

    @property
    def C(self) -> Float[Array, "*n"]:  # noqa: N802
        """`1/(2λ)`."""
        return 0.5 / self.penalty

    @property
    def is_per_row(self):
        return self.penalty.ndim > 0

    @property
    @abc.abstractmethod
    def wants_labels(self) -> bool:
        """Whether y must be -1 or +1."""

    def conditioned_near(self, other: Any, data: Data, finite: Bool[Array, ""], solver: AbstractSolver) -> Any:
        """`conditioned`, for data that is mostly that of `other`: a machine may start from the solution of `other`."""
        del other
        return self.conditioned(data, finite, solver)

    @abc.abstractmethod
    def held_out_loss(self, y: Float[Array, " m"], values: Float[Array, " m"]) -> Float[Array, " m"]:
        """The loss of each row that `holdout_loss` and `kfold_loss` average by default."""


def as_penalty(C: Any, penalty: Any, name: str) -> Any:
    """λ from `C` or `penalty`; C = 1 if neither is given."""
    if C is not None and penalty is not None:
        raise ValueError(f"{name} takes C or penalty, which mean the same (C = 1/(2·penalty)): give only one of them.")
    if penalty is not None:
        return penalty
    bound = as_floats(1.0 if C is None else C, f"{name}.C")
    if is_concrete(bound) and not ((np.asarray(bound) > 0) & np.isfinite(bound)).all():
        raise ValueError(f"{name}.C must be positive and finite, got {C}.")
    return 0.5 / (np.asarray(bound) if is_concrete(bound) else bound)  # NumPy compiles nothing


def check_machine(model: AbstractMachine) -> None:
    """Raise `TypeError` if `model.kernel` is not a definite kernel, or `model.intercept` not a boolean."""
    check_kernel(model)
    if not isinstance(model.intercept, bool):
        raise TypeError(f"{type(model).__name__}.intercept must be True or False, got {model.intercept!r}.")
    if model.kernel.trend() is not None:
        raise TypeError(
            f"{model.kernel!r} is only conditionally definite, which kx.Model supports and {type(model).__name__} does "
            f"not: use a definite kernel, such as kx.Matern32()."
        )


def check_targets(model: AbstractMachine, data: Data, caller: str) -> None:
    """Raise if there are several outputs, or penalties for other rows."""
    name = type(model).__name__
    if data.y.ndim != 1:
        raise ValueError(f"{caller} of {name} takes one output, got y of shape {data.y.shape}: take one column at a time.")
    if model.penalty.shape not in ((), (data.n,)):
        raise ValueError(
            f"{name}.penalty has shape {model.penalty.shape}, but the data has {data.n} rows: "
            "give one number or one per row."
        )


def check_labels(data: Data, name: str) -> None:
    """Raise if there are labels other than -1 and +1. Traced labels are not checked."""
    if not is_concrete(data.y) or not is_concrete(data.mask):
        return
    found = np.unique(np.asarray(data.y)[np.asarray(data.mask)])
    if not np.isin(found, (-1.0, 1.0)).all():
        shown = ", ".join(f"{label:g}" for label in found[:5]) + (", …" if len(found) > 5 else "")
        remedy = f"write jnp.where(y == {found[-1]:g}, 1.0, -1.0)"
        if len(found) > 2:
            remedy = f"for probabilities use learners.LatentGP(kernel, learners.Softmax({len(found)})) with labels 0, 1, …; "
            remedy += "for decisions use learners.one_against_rest"
        raise ValueError(f"{name} needs labels -1 and +1 in y, got {shown}: {remedy}.")


def max_jitter_of(solver: AbstractSolver, name: str) -> float | None:
    """The largest jitter that the solver allows. Raises if the machine cannot use the solver."""
    if not solver.suits_machines:
        raise TypeError(f"{name} is solved by Cholesky factorisations only, got solver={solver!r}: leave it out.")
    return getattr(solver, "max_jitter", None)


class AbstractExpansion(eqx.Module):
    """A machine conditioned on data, `f(x) = Σ α_i k(x, x_i) + b`; call it with new rows. α is 0 in masked rows."""

    model: eqx.AbstractVar[Any]
    data: eqx.AbstractVar[Data]
    solver: eqx.AbstractVar[AbstractSolver]
    coefficients: eqx.AbstractVar[Float[Array, "n *k"]]
    intercept: eqx.AbstractVar[Float[Array, ""]]
    result: eqx.AbstractVar[Any]
    jitter: eqx.AbstractVar[Float[Array, ""]]

    def __call__(self, x: Any) -> Float[Array, "m *k"]:
        """The function at the rows of x, in blocks of bounded memory; O(n) a row with a dense solver."""
        return expansion(self, rows_like(self.model, self.data, x))

    def _sum(self, x: Rows) -> Float[Array, "m *k"]:
        """`k_xX α`; anything finite where training failed."""
        # NaN is chosen last: multiplied by it, a derivative behind a `where` would be NaN, too.
        coefficients = jnp.where(jnp.isfinite(self.intercept), self.coefficients, 0.0)
        return gram_of(self.model.kernel, self.data.x, self.data.mask).cross_mv(x, coefficients[:, None])[:, 0]


@compiled
def expansion(c: AbstractExpansion, x: Rows) -> Float[Array, "m *k"]:
    """`k_xX α + b`."""
    ok = jnp.isfinite(c.intercept)
    return jnp.where(ok, c._sum(x) + jnp.where(ok, c.intercept, 0.0), jnp.nan)


def described(c: AbstractExpansion, *numbers: str) -> str:
    """How it ended in one line, with some of its numbers; without them while traced or in a batch."""
    name = type(c).__name__
    if not is_concrete(c.intercept) or c.intercept.ndim:
        return f"{name}({c.model!r}, {c.data!r})"
    shown = ", ".join(f"{number}={float(getattr(c, number)):.4g}" for number in numbers)
    return f"{name}({result_name(c.result)}, {int(c.data.count)} rows, {shown}, {c.model!r})"
