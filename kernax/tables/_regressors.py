"""The regression methods that are compared: each learns from a fold's training rows and predicts all of its rows."""

# Parameters are declared as the arrays they become; type checkers do not see that numbers are converted.
# pyright: reportArgumentType=false

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kernax import learners
from kernax.data import Data
from kernax.expressions import Built
from kernax.model import Conditioned, Model, condition
from kernax.posterior import predict
from kernax.selection import loo_negative_log_density, negative_log_marginal_likelihood, select_ridge
from kernax.solvers import AbstractSolver
from kernax.tables._start import fit_or_stop, start_of, suited_to_series


class Fold(NamedTuple):
    """The whole table with a mask of the training rows, so that all folds have one shape; standardised by these rows."""

    data: Data
    rows: Any
    """The inputs of all rows: `Data` overwrites those that are masked."""
    plain: Data
    """The same for methods without a kernel: one matrix, in which categories are columns of 0 and 1."""
    x: np.ndarray
    """That matrix, of all rows."""
    y: np.ndarray
    built: Built
    level: float
    spread: float
    noise: float | None
    seed: int
    kept: dict[str, Any]
    """What one method has fitted and others may use."""
    classes: int = 0
    """Of a target that is classified."""
    solver: AbstractSolver | None = None
    """How Gaussian processes and kernel ridge regression are solved; `None` for the default."""


class Answer(NamedTuple):
    """Predictions at all rows, and their standard deviations if the method has some.

    For classes: the code of the class of each row, and the probability of each class.
    """

    mean: Any
    sd: Any = None


def fitted(fold: Fold, objective: Any = negative_log_marginal_likelihood, name: str = "likelihood") -> Model:
    """The model of least `objective` on the training rows; fitted once for all methods that use it."""
    if name not in fold.kept:
        model, free = start_of(fold.built, None, fold.data)
        model = suited_to_series(model, fold.built, fold.data, fold.solver)
        fold.kept[name] = fit_or_stop(model, fold.data, objective=objective, solver=fold.solver, trainable=free)
    return fold.kept[name]


def _with_sd(c: Conditioned, fold: Fold) -> Answer:
    mean, variance = predict(c, fold.rows, noisy=True)[:2]
    return Answer(mean, np.sqrt(np.asarray(variance)))


def _gp(objective: Any = negative_log_marginal_likelihood, name: str = "likelihood") -> Callable[[Fold], Answer]:
    return lambda fold: _with_sd(condition(fitted(fold, objective, name), fold.data, fold.solver), fold)


def _krr(by: Any) -> Callable[[Fold], Answer]:
    def method(fold: Fold) -> Answer:
        # A single discrete choice without gradients; the variance is that of the likelihood only if that chose.
        given = {"noise_variance": fold.noise} if by == "discrepancy" else {}
        folds = {"folds": 5, "key": jax.random.key(fold.seed)} if by == "kfold" else {}
        choice = select_ridge(fitted(fold), fold.data, by=by, solver=fold.solver, **given, **folds)
        answer = _with_sd(choice.conditioned, fold)
        return answer if by == "likelihood" else Answer(answer.mean)

    return method


def _ridge(fold: Fold) -> Answer:
    """The penalty with the least leave-one-out error: `r_i/(1 - h_i)` from one singular value decomposition."""
    training = np.asarray(fold.data.mask)
    x, y = fold.x[training] - fold.x[training].mean(axis=0), fold.y[training] - fold.y[training].mean()
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    penalties = np.logspace(-6, 6, 121) * max(float(s[0]) ** 2, 1e-12)
    shares = s**2 / (s**2 + penalties[:, None])
    leverage = (shares @ (u**2).T) + 1.0 / len(y)
    errors = np.mean(((y - (shares * (u.T @ y)) @ u.T) / (1.0 - leverage)) ** 2, axis=1)
    return Answer(learners.ridge(fold.plain, float(penalties[np.argmin(errors)]))(fold.x))


def _lasso(fold: Fold) -> Answer:
    """The penalty with the least error on a fifth of the training rows, then the path of all of them."""
    training = np.flatnonzero(np.asarray(fold.data.mask))
    checked = np.random.default_rng(fold.seed).permutation(training)[: max(1, len(training) // 5)]
    mask = np.asarray(fold.data.mask).copy()
    mask[checked] = False
    path = learners.lasso_path(fold.plain, num=50)
    inner = learners.lasso_path(Data(fold.x, fold.y, jnp.asarray(mask)), np.asarray(path.penalties))
    values = fold.x @ np.asarray(inner.coefficients).T + np.asarray(inner.intercepts)
    errors = np.mean((values[checked] - fold.y[checked, None]) ** 2, axis=0)
    best = int(np.argmin(errors))
    return Answer(fold.x @ np.asarray(path.coefficients)[best] + np.asarray(path.intercepts)[best])


def _noise_sd(model: Model) -> float:
    return float(jnp.sqrt(model.noise)) or 1e-3


def _svr(fold: Fold) -> Answer:
    """Tube and slope that suit the noise: half its deviation, and the pull of a square at 1.345 of them."""
    model = fitted(fold)
    sd = _noise_sd(model)
    return Answer(condition(learners.SVR(model.kernel, penalty=sd / 2.69, epsilon=0.5 * sd), fold.data)(fold.rows))


def _huber(fold: Fold) -> Answer:
    model = fitted(fold)
    sd = _noise_sd(model)
    machine = learners.KernelMachine(model.kernel, learners.Huber(1.345 * sd), penalty=0.5 * sd**2)
    return Answer(condition(machine, fold.data)(fold.rows))


def _boosted(fold: Fold) -> Answer:
    model = fitted(fold)
    weak = Model(model.kernel, noise=10.0 * model.noise, mean=model.mean)
    return Answer(learners.boosted(weak, fold.data, rounds=200, learning_rate=0.3, by="gcv")(fold.rows))


def _bagged(fold: Fold) -> Answer:
    committee = learners.bagged(fitted(fold), fold.data, members=20, key=jax.random.key(fold.seed))
    return Answer(committee(fold.rows))


REGRESSORS: dict[str, Callable[[Fold], Answer]] = {
    # The targets are standardised by the training rows: their mean is 0 and their spread 1.
    "mean": lambda fold: Answer(np.zeros(fold.data.n), np.ones(fold.data.n)),
    "least_squares": lambda fold: Answer(learners.least_squares(fold.plain)(fold.x)),
    "ridge": _ridge,
    "lasso": _lasso,
    "gp": _gp(),
    "gp_loo_density": _gp(loo_negative_log_density, "loo_density"),
    **{f"krr_{by}": _krr(by) for by in ("loo", "gcv", "kfold", "likelihood", "l_curve", "discrepancy")},
    "svr": _svr,
    "huber": _huber,
    "boosted": _boosted,
    "bagged": _bagged,
}
