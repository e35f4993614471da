"""What all estimators share: their precision travels with them, and a fit that fails leaves nothing behind."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator

from kernax.solvers import FailedError

Method = TypeVar("Method", bound=Callable[..., Any])


def has_float64() -> bool:
    """Whether JAX computes in float64 here."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


class Estimator(BaseEstimator):
    """An estimator that goes on in float64 in processes that do not set it, such as the workers of `n_jobs=2`.

    Workers do not inherit the settings of JAX. What is pickled where JAX computes in float64 therefore remembers it, and so
    do its clones.
    """

    _in_float64 = False

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        if not (self._in_float64 or has_float64()):
            return state
        return {name: _on_host(value) for name, value in state.items()} | {"_in_float64": True}

    def __setstate__(self, state: Any) -> None:
        with _precision(state.get("_in_float64", False)):
            super().__setstate__({name: _on_device(value) for name, value in state.items()})

    def __sklearn_clone__(self) -> Any:
        copy: Any = super().__sklearn_clone__()
        if self._in_float64:
            copy._in_float64 = True
        return copy

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name. A kernel or a solver is set as a whole."""
        for name in params:
            if name.startswith("kernel__"):
                raise ValueError(
                    f"{name} cannot be set: kernels are immutable. Give whole kernels instead, in a grid "
                    '{"kernel": [kx.RBF(0.5), kx.RBF(1.0)]}.'
                )
            if name.startswith("solver__"):
                raise ValueError(
                    f"{name} cannot be set: solvers are immutable. Give whole solvers instead, in a grid "
                    '{"solver": [kx.LowRank(200), kx.LowRank(500)]}.'
                )
        return super().set_params(**params)


def computing(method: Method) -> Method:
    """A method that runs in the precision of its estimator."""

    @wraps(method)
    def run(self: Estimator, *args: Any, **options: Any) -> Any:
        with _precision(self._in_float64):
            return method(self, *args, **options)

    return run  # pyright: ignore[reportReturnType]


def fitting(method: Method) -> Method:
    """A `fit` in the precision of its estimator, which is not fitted if that fails, not even to what came before."""

    @wraps(method)
    def fit(self: Estimator, *args: Any, **options: Any) -> Any:
        try:
            with _precision(self._in_float64):
                return method(self, *args, **options)
        except BaseException as error:
            for name in [name for name in vars(self) if name.endswith("_")]:
                delattr(self, name)
            if isinstance(error, FailedError):
                error.hint = ""  # on `throw=`, which estimators do not have
            raise

    return fit  # pyright: ignore[reportReturnType]


def _precision(in_float64: bool) -> Any:
    return jax.enable_x64(True) if in_float64 and not has_float64() else nullcontext()


@dataclass
class _Wide:
    """An array that JAX would cut if it were unpickled where float64 is not set."""

    values: np.ndarray


def _on_host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: _Wide(np.asarray(leaf)) if _is_wide(leaf) else leaf, tree)


def _is_wide(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.dtype in (np.float64, np.int64, np.uint64)


def _on_device(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf.values) if isinstance(leaf, _Wide) else leaf, tree)
