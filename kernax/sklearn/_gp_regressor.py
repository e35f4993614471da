"""Gaussian process regression."""

from numbers import Integral
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_scalar

from kernax._programs import compiled
from kernax.data import Data
from kernax.fitting import fit
from kernax.kernels import RBF, AbstractKernel
from kernax.model import Model, condition
from kernax.parameters import as_dtype, at_bound, freeze
from kernax.posterior import covariance, mean, predict
from kernax.reports import Report, report
from kernax.selection import log_marginal_likelihood
from kernax.sklearn._estimator import Estimator, computing, fitting
from kernax.sklearn._inputs import as_kernel, as_key, check_flag, check_solver, new_rows, row_weights, training_rows
from kernax.sklearn._shapes import ask, fitted_width, padded, padded_count, padded_data, with_columns
from kernax.sklearn._tasks import coregion_rank, covariance_of_tasks, grid_data, long_data, tasks_at, with_tasks
from kernax.sklearn._warnings import warn_unless_converged
from kernax.sklearn._weighted import WeightedModel
from kernax.solvers import draw_root


class GaussianProcessRegressor(MultiOutputMixin, RegressorMixin, Estimator):
    """Gaussian process regression, with kernel and noise fitted by maximum likelihood.

    Parameters
    ----------
    kernel : kernax kernel, default None
        Where the fit starts, and its priors and bounds. None is `1.0 * kernax.RBF()` with values that suit the data.
    noise : float or array (n,), default None
        The noise's variance (scikit-learn's `alpha`, or the level of its `WhiteKernel`); with `normalize_y` that of the
        normalised y. One number is where the fit starts, one a row is held. None is a tenth of the variance of y.
    optimise : bool or "kernel", default True
        Whether kernel and noise are fitted; "kernel" holds the noise. A noise of 0 is held, too.
    restarts : int, default 0
        Further fits from random starts, of which the best counts.
    normalize_y : bool, default False
        Subtract the mean of y and divide by its standard deviation. The process itself has mean 0. Predictions and
        `report()` are in the units of y; `fit_`, `conditioned_` and `noise_` are of the normalised y.
    max_steps : int, default 500
        Steps of L-BFGS.
    random_state : int, RandomState or None
        For the restarts.
    solver : kernax solver, default None
        How the system is solved, such as `kernax.Vecchia()`. None is `kernax.Cholesky()`; `kernax.suggest_solver` says
        which one suits many rows.
    coregion : bool or int, default False
        Whether the outputs of targets (n, p) are correlated, by a matrix `B Bᵀ + diag(v)` that is fitted with the rest
        (`kernax.kernels.ICM`); a number is the rank of B, and True is 1. All outputs have one noise: with outputs of
        different sizes, set `normalize_y`. `kernax.Kronecker()` solves this faster. By default each output is learned for
        itself, with one kernel.

    Attributes
    ----------
    kernel_, noise_ : the fitted kernel and noise.
    log_marginal_likelihood_value_ : float
        Of the (normalised) y; with an approximate solver, its approximation.
    fit_ : kernax.fitting.Fit
        How the fit went; None without one.
    conditioned_ : kernax.model.Conditioned
        What kernax's functions take; its data has masked rows of padding.

    Examples
    --------
    >>> import numpy as np
    >>> from kernax.sklearn import GaussianProcessRegressor
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> gp = GaussianProcessRegressor().fit(X, np.sin(X[:, 0]) + 0.1 * np.cos(40 * X[:, 0]))
    >>> mean, std = gp.predict([[1.5]], return_std=True)
    """

    _width: int | None = None
    _tasks: int = 1

    def __init__(
        self,
        kernel: Any = None,
        *,
        noise: Any = None,
        optimise: Any = True,
        restarts: int = 0,
        normalize_y: bool = False,
        max_steps: int = 500,
        random_state: Any = None,
        solver: Any = None,
        coregion: Any = False,
    ):
        self.kernel = kernel
        self.noise = noise
        self.optimise = optimise
        self.restarts = restarts
        self.normalize_y = normalize_y
        self.max_steps = max_steps
        self.random_state = random_state
        self.solver = solver
        self.coregion = coregion

    @fitting
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GaussianProcessRegressor":
        """Fit to rows X (n, d) and targets y (n,) or (n, p), optionally with a weight for each row.

        A row of weight w has the noise `noise / w`. With a noise that is held, that is the same as w copies of the row;
        copies would also say that there is little noise, which weights do not.
        """
        X, y = training_rows(self, X, y, multi_output=True, y_numeric=True)
        check_scalar(self.restarts, "restarts", Integral, min_val=0)
        check_scalar(self.max_steps, "max_steps", Integral, min_val=1)
        check_flag(self.normalize_y, "normalize_y")
        check_solver(self)
        if not isinstance(self.optimise, bool | np.bool_ | str) or self.optimise not in (True, False, "kernel"):
            raise ValueError(f'optimise must be True, False or "kernel", got {self.optimise!r}.')
        rank = coregion_rank(self.coregion)
        self._tasks = y.shape[1] if rank and y.ndim == 2 else 1
        weights = row_weights(sample_weight, X)
        places = np.flatnonzero(weights)
        X, y, w = X[places], y[places], weights[places]
        level, spread = np.average(y, axis=0, weights=w), np.ones(y.shape[1:])
        variance = np.average((y - level) ** 2, axis=0, weights=w)
        if self.normalize_y:
            spread = np.sqrt(np.where(variance > 0, variance, 1.0))
            y, variance = (y - level) / spread, variance / spread**2
        self._level, self._spread = (level if self.normalize_y else 0.0 * level), spread

        start = self._start(X, w, places, len(weights), float(np.mean(variance)), sample_weight is not None)
        if self._tasks == 1:
            self._width = fitted_width(X.shape[1], start.kernel, self.solver)
            data = padded_data(X, y, self._width)
        else:
            needs_grid = self.solver is not None and self.solver.needs_every_row
            if needs_grid and (start.noise.ndim or isinstance(start, WeightedModel)):
                raise ValueError(
                    f"{self.solver!r} needs one noise for all rows and outputs: leave out sample_weight and noise for each "
                    "row, or choose another solver."
                )
            data = grid_data(X, y) if needs_grid else long_data(X, y)
        found = self._fitted(start, data) if self.optimise else None
        model = start if found is None else found.model
        self.kernel_ = model.kernel
        own = slice(0, self._tasks * len(places), self._tasks)
        self.noise_ = float(model.noise) if model.noise.ndim == 0 else np.array(model.noise)[own]
        if isinstance(model, WeightedModel):
            model = model.plain
            if found is not None:
                found = eqx.tree_at(lambda fit: (fit.model, fit.at_bound), found, (model, at_bound(model)))
        self.fit_, self.conditioned_ = found, condition(model, data, self.solver)
        if self._tasks == 1:
            self.fit_ = None if found is None else with_columns(found, X.shape[1])
            self.conditioned_ = with_columns(self.conditioned_, X.shape[1])
        warn_unless_converged(self, [] if found is None else [found])
        self.log_marginal_likelihood_value_ = float(log_marginal_likelihood(self.conditioned_))
        return self

    def _start(self, X: np.ndarray, w: np.ndarray, places: np.ndarray, n: int, variance: float, weighted: bool) -> Any:
        """The model before the fit."""
        variance = variance if variance > 0 else 1.0
        kernel = _initial_kernel(X, variance) if self.kernel is None else as_kernel(self, X)
        noise = np.asarray(0.1 * variance if self.noise is None else self.noise, float)
        if noise.shape not in ((), (n,)) or not (np.isfinite(noise) & (noise >= 0)).all():
            raise ValueError(f"noise must be one number or one for each of {n} rows, finite and not negative, got {noise}.")
        tasks = self._tasks
        if tasks > 1:
            # The variance of the initial kernel becomes that of the outputs.
            kernel, scale = (kernel.kernel, variance) if self.kernel is None else (kernel, 1.0)
            kernel = with_tasks(kernel, tasks, coregion_rank(self.coregion), scale)
        noise = padded(np.repeat(noise[places].astype(X.dtype), tasks)) if noise.ndim else float(noise)
        return WeightedModel(kernel, noise, padded(np.repeat(w, tasks))) if weighted else Model(kernel, noise)

    def _fitted(self, start: Any, data: Any) -> Any:
        held = []
        if self.optimise == "kernel" or start.noise.ndim or start.noise == 0:
            held.append(lambda m: m.noise)
        if isinstance(start, WeightedModel):
            held.append(lambda m: m.weights)
        trainable = freeze(start, lambda m: [where(m) for where in held]) if held else None
        key = as_key(self.random_state)
        options = {"trainable": trainable, "restarts": self.restarts, "key": key, "max_steps": self.max_steps}
        return fit(start, data, solver=self.solver, **options)

    @computing
    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, *, noisy: bool = False) -> Any:
        """The mean at the rows of X, (m,) or (m, p); with it the standard deviation (the same shape) or covariance.

        Of the function, as in scikit-learn with `alpha`; `noisy=True` of new observations, as with its `WhiteKernel`; after
        a fit with weights, of new rows of weight 1.
        """
        X = new_rows(self, X)
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True: choose one of them.")
        noise = self._new_noise() if noisy else 0.0
        if self._tasks > 1:
            return self._predict_tasks(X, return_std, return_cov, noise)
        if return_std:
            mu, variance = ask(lambda c, x: tuple(predict(c, x)[:2]), self.conditioned_, X, self._width)
            return self._unscaled(mu), self._outer(np.sqrt(variance + noise), self._spread)
        mu = self._unscaled(ask(mean, self.conditioned_, X, self._width))
        if return_cov:
            matrix = self._covariance(X)
            return mu, self._outer(matrix + noise * np.eye(len(X), dtype=matrix.dtype), self._spread**2)
        return mu

    @computing
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Functions drawn from the posterior, (m, n_samples) or (m, p, n_samples)."""
        X = new_rows(self, X)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        if self._tasks == 1:
            mu, root = ask(mean, self.conditioned_, X, self._width), _root(self._covariance(X))
        else:
            mu, root = tasks_at(self.conditioned_, X)[0].ravel(), _root(self._covariance(X))
        shocks = check_random_state(random_state).standard_normal((int(n_samples), *mu.shape)).astype(mu.dtype)
        drawn = mu + np.einsum("ij,sj...->si...", root, shocks, optimize=True)
        if self._tasks > 1:
            drawn = drawn.reshape(len(drawn), -1, self._tasks)
        return np.moveaxis(self._unscaled(drawn), 0, -1)

    @computing
    def report(self) -> Report:
        """The report of `kernax.report` in the units of X and y, also with `normalize_y`; `kernax.report(estimator)` too.

        If several outputs were divided by different standard deviations, the report says that it is of the standardised y.
        """
        check_is_fitted(self)
        spreads = np.unique(self._spread)
        # Each output has its own factor, so that there is none for their common errors and densities.
        scales = None if len(spreads) > 1 else (None, float(spreads[0]))
        target = "standardised y" if scales is None else "y"
        columns = getattr(self, "feature_names_in_", None) if self._tasks == 1 else None
        of = self.conditioned_ if self.fit_ is None else self.fit_
        return report(of, columns=None if columns is None else [str(name) for name in columns], target=target, scales=scales)

    def _predict_tasks(self, X: np.ndarray, return_std: bool, return_cov: bool, noise: float) -> Any:
        """`predict` where the outputs are correlated; the covariance is that of the rows of each output, (m, m, p)."""
        mu, variance = tasks_at(self.conditioned_, X)
        if return_std:
            return self._unscaled(mu), (np.sqrt(variance + noise) * self._spread).astype(mu.dtype, copy=False)
        if not return_cov:
            return self._unscaled(mu)
        m = len(X)
        every = self._covariance(X).reshape(m, self._tasks, m, self._tasks)
        own = np.diagonal(every, axis1=1, axis2=3) + noise * np.eye(m)[:, :, None]
        return self._unscaled(mu), (own * self._spread**2).astype(mu.dtype, copy=False)

    def _covariance(self, X: np.ndarray) -> np.ndarray:
        if self._tasks > 1:
            return covariance_of_tasks(self.conditioned_, X, self._tasks)
        return ask(covariance, self.conditioned_, X, self._width)[:, : len(X)]

    def _new_noise(self) -> float:
        """The noise of a new row of weight 1."""
        if np.ndim(self.noise_):
            raise ValueError(
                "noisy=True is not possible: the noise was given for each training row, so that of new rows is unknown. "
                "Add it yourself."
            )
        return float(self.noise_)

    def _unscaled(self, values: np.ndarray) -> np.ndarray:
        return (values * self._spread + self._level).astype(values.dtype, copy=False)

    def _outer(self, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """All outputs have the same variance but for their scale."""
        return (values[..., None] * scale if np.ndim(scale) else values * scale).astype(values.dtype, copy=False)


def _initial_kernel(X: np.ndarray, variance: float) -> AbstractKernel:
    """An RBF that suits the data. Rows of equal inputs count once, so that weights and copies start alike."""
    rows = np.unique(X, axis=0)
    return _initialised(1.0 * RBF(), padded_data(rows, np.zeros(len(rows), X.dtype)), np.asarray(variance, X.dtype))


def _root(matrix: np.ndarray) -> np.ndarray:
    """`L` with `L Lᵀ = matrix`, in padded shapes: a diagonal of the same size as its own changes nothing in front of it."""
    m, size = len(matrix), float(np.mean(np.diag(matrix)))
    wide = size * np.eye(padded_count(m), dtype=matrix.dtype)
    wide[:m, :m] = matrix
    return np.asarray(_padded_root(jnp.asarray(wide)))[:m, :m]


_padded_root = compiled(draw_root)


@compiled
def _initialised(kernel: AbstractKernel, data: Data, variance: Any) -> AbstractKernel:
    return as_dtype(kernel, data.dtype).initialised(data.x, data.mask, variance)
