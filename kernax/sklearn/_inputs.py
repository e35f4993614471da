"""What scikit-learn's users hand over, checked: rows, targets, weights, kernels, random states."""

from typing import Any

import jax
import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_scalar, validate_data

from kernax.kernels import RBF, AbstractKernel
from kernax.sklearn._estimator import has_float64
from kernax.solvers import AbstractSolver

_NAMES = {
    "linear": "kernax.Linear()",
    "rbf": "kernax.RBF()",
    "laplacian": "kernax.Matern12()",
    "poly": "kernax.Polynomial()",
    "polynomial": "kernax.Polynomial()",
}


def training_rows(estimator: Any, X: Any, y: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets as scikit-learn checks them; `estimator` remembers the number and names of the columns."""
    checked: Any = validate_data(estimator, X, y, dtype=_dtypes(), **options)
    kind, name = checked[1].dtype, type(estimator).__name__
    if options.get("y_numeric") and kind.kind not in "biuf":
        raise TypeError(f"y has dtype {kind}, and {name} takes real numbers only: convert y to float first.")
    return checked


def new_rows(estimator: Any, X: Any) -> np.ndarray:
    """Rows for a fitted estimator, with the columns that it was fitted to."""
    check_is_fitted(estimator)
    checked: Any = validate_data(estimator, X, dtype=_dtypes(), reset=False)
    return checked


def _dtypes() -> Any:
    """What rows are converted to: float64 if JAX has it. If not, kernax says so of those that come in float64."""
    return np.float64 if has_float64() else (np.float32, np.float64)


def check_flag(value: Any, name: str) -> None:
    """Refuse what is neither True nor False: a text such as "no" would count as True."""
    check_scalar(value, name, (bool, np.bool_))


def row_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """A weight for each row, 1 if none are given; not negative, and not 0 everywhere."""
    weights = np.asarray(_check_sample_weight(sample_weight, X, dtype=X.dtype))
    if (weights < 0).any():
        raise ValueError("sample_weight must not be negative: give 0 to rows that must not count.")
    if not weights.any():
        raise ValueError("sample_weight is zero in every row: give some of them more.")
    return weights


def as_kernel(estimator: Any, X: np.ndarray, weights: np.ndarray | None = None) -> AbstractKernel:
    """The estimator's kernel; for None an RBF as wide as scikit-learn's `gamma="scale"` makes it."""
    kernel, name = estimator.kernel, type(estimator).__name__
    if kernel is None:
        return RBF(_scale(X, weights))
    if isinstance(kernel, AbstractKernel):
        return kernel
    if isinstance(kernel, type) and issubclass(kernel, AbstractKernel):
        remedy = f"an instance, not the class: write kernax.{kernel.__name__}()"
    elif isinstance(kernel, str) and kernel in _NAMES:
        remedy = f"not a name: write {_NAMES[kernel]}"
    else:
        remedy = "such as kernax.RBF(lengthscale=2.0) or 1.5 * kernax.Matern32() + kernax.Linear()"
    raise TypeError(f"{name}.kernel must be a kernax kernel, got {kernel!r}: {remedy}.")


def check_solver(estimator: Any) -> None:
    """Refuse a solver that is none: a name, or a class instead of an instance."""
    solver, name = estimator.solver, type(estimator).__name__
    if solver is not None and not isinstance(solver, AbstractSolver):
        raise TypeError(f"{name}.solver must be None or a kernax solver, such as kernax.Vecchia(), got {solver!r}.")


def _scale(X: np.ndarray, weights: np.ndarray | None) -> float:
    """The lengthscale ℓ with `1/2ℓ² = gamma = 1/(d · variance of all entries of X)`; gamma is 1 if they are all the same."""
    columns = X.astype(np.float64).T
    weights = np.ones(len(X)) if weights is None else weights
    middle = np.average(columns, axis=1, weights=weights).mean()
    variance = np.average((columns - middle) ** 2, axis=1, weights=weights).mean()
    gamma = 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
    return float(np.sqrt(0.5 / gamma))


def as_key(random_state: Any) -> Any:
    """A key of JAX drawn from what scikit-learn takes for a random state."""
    return jax.random.key(int(check_random_state(random_state).randint(np.iinfo(np.int32).max)))
