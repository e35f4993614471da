"""kernax: differentiable kernel methods on JAX.

A kernel and a noise make a `Model`. `condition` combines it with `Data`. Predictions, likelihoods and cross-validation
scores are functions of the conditioned model, and `fit` minimises one of those scores.

The names for everyday use are here. All others are in the packages: `kx.kernels`, `kx.means`, `kx.parameters`,
`kx.bijectors`, `kx.priors`, `kx.noises`, `kx.data`, `kx.observe`, `kx.grams`, `kx.solvers`, `kx.model`, `kx.posterior`,
`kx.statistics`, `kx.selection`, `kx.fitting`, `kx.search`, `kx.forecasting`, `kx.learners`, `kx.io`, `kx.reports`,
`kx.tables`, and `kx.plot`, which needs matplotlib and is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kernax import (
    bijectors,
    data,
    fitting,
    forecasting,
    grams,
    io,
    kernels,
    learners,
    means,
    model,
    noises,
    observe,
    parameters,
    posterior,
    priors,
    reports,
    search,
    selection,
    solvers,
    statistics,
    tables,
)
from kernax._moved import moved
from kernax._version import __version__ as __version__
from kernax.data import Data
from kernax.fitting import concatenate, fit, fit_many, initialise, predict_many
from kernax.io import load, save
from kernax.kernels import (
    NNGP,
    NTK,
    RBF,
    AbstractKernel,
    ArcCosine,
    Constant,
    Cosine,
    CubicSpline,
    FeatureMap,
    Linear,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RandomFeatures,
    RationalQuadratic,
    Select,
    ThinPlate,
    Warp,
)
from kernax.model import Model, condition, extend, recondition
from kernax.parameters import freeze, positive, with_bijector, with_prior
from kernax.posterior import (
    components,
    conformal,
    covariance,
    mean,
    power_function,
    predict,
    sample,
    sample_paths,
    sensitivity,
    variance,
)
from kernax.reports import report
from kernax.rows import Grid
from kernax.search import search_kernel, search_kernel_many
from kernax.selection import (
    compare_selectors,
    discrepancy,
    gcv,
    kfold_mse,
    kfold_residuals,
    l_curve,
    log_marginal_likelihood,
    loo_mean,
    loo_mse,
    loo_negative_log_density,
    loo_residuals,
    loo_variance,
    ridge_path,
    select_ridge,
)
from kernax.solvers import CG, Cholesky, Eigh, FailedError, Kronecker, LowRank, Result, StateSpace, Vecchia, suggest_solver

if TYPE_CHECKING:
    from kernax import plot as plot

__all__ = [
    "CG",
    "NNGP",
    "NTK",
    "RBF",
    "AbstractKernel",
    "ArcCosine",
    "Cholesky",
    "Constant",
    "Cosine",
    "CubicSpline",
    "Data",
    "Eigh",
    "FailedError",
    "FeatureMap",
    "Grid",
    "Kronecker",
    "Linear",
    "LowRank",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "Model",
    "Periodic",
    "Polynomial",
    "RandomFeatures",
    "RationalQuadratic",
    "Result",
    "Select",
    "StateSpace",
    "ThinPlate",
    "Vecchia",
    "Warp",
    "bijectors",
    "compare_selectors",
    "components",
    "concatenate",
    "condition",
    "conformal",
    "covariance",
    "data",
    "discrepancy",
    "extend",
    "fit",
    "fit_many",
    "fitting",
    "forecasting",
    "freeze",
    "gcv",
    "grams",
    "initialise",
    "io",
    "kernels",
    "kfold_mse",
    "kfold_residuals",
    "l_curve",
    "learners",
    "load",
    "log_marginal_likelihood",
    "loo_mean",
    "loo_mse",
    "loo_negative_log_density",
    "loo_residuals",
    "loo_variance",
    "mean",
    "means",
    "model",
    "noises",
    "observe",
    "parameters",
    "positive",
    "posterior",
    "power_function",
    "predict",
    "predict_many",
    "priors",
    "recondition",
    "report",
    "reports",
    "ridge_path",
    "sample",
    "sample_paths",
    "save",
    "search",
    "search_kernel",
    "search_kernel_many",
    "select_ridge",
    "selection",
    "sensitivity",
    "solvers",
    "statistics",
    "suggest_solver",
    "tables",
    "variance",
    "with_bijector",
    "with_prior",
]

# The top-level names of earlier versions, by the package in which they are now.
_MOVED = {
    "bijectors": "AbstractBijector Interval Positive Real Softplus",
    "fitting": "ConditionedMany Fit Fits condition_many lbfgs log_posterior refit_many",
    "io": "FileError",
    "kernels": "AbstractActivation AbstractNetwork AbstractStationary Erf GaussianPair Power Product ReLU Scale Sum",
    "model": "AbstractModel Conditioned with_noise=recondition",
    "parameters": """
        Parameter Parametrised constrain interval log_jacobian log_prior non_negative ravel real trainable unconstrain
    """,
    "posterior": "Prediction error_bound negative_log_predictive_density rkhs_inner rkhs_norm",
    "priors": "Gamma HalfNormal LogNormal Normal",
    "reports": "Report",
    "selection": """
        Discrepancy LCurve LikelihoodTerms RidgeChoice RidgePath SelectorTable default_ridges effective_degrees_of_freedom
        fold_mse likelihood_terms negative_log_marginal_likelihood
    """,
    "solvers": "AbstractSolver",
}

if not TYPE_CHECKING:  # type checkers would otherwise accept every misspelt name
    _old_name = moved(__name__, "kx", _MOVED)

    def __getattr__(name: str) -> Any:
        if name != "plot":
            return _old_name(name)
        try:
            return importlib.import_module("kernax.plot")
        except ImportError as error:
            # An AttributeError, because `help(kx)` and `hasattr` expect no other error.
            raise AttributeError(str(error)) from error


def __dir__() -> list[str]:
    return sorted([*__all__, "plot", "__version__"])
