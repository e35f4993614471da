"""Criteria for hyperparameters (likelihood, leave-one-out, k-fold, GCV, L-curve), and the choice of a ridge by them."""

from kernax.selection._compare import SelectorTable, compare_selectors
from kernax.selection._discrepancy import Discrepancy, discrepancy
from kernax.selection._kfold import fold_mse, kfold_mse, kfold_residuals
from kernax.selection._l_curve import LCurve, l_curve
from kernax.selection._leave_one_out import loo_mean, loo_mse, loo_negative_log_density, loo_residuals, loo_variance
from kernax.selection._likelihood import (
    LikelihoodTerms,
    likelihood_terms,
    log_marginal_likelihood,
    negative_log_marginal_likelihood,
)
from kernax.selection._ridge_path import RidgePath, default_ridges, ridge_path
from kernax.selection._select import RidgeChoice, select_ridge
from kernax.selection._smoother import effective_degrees_of_freedom, gcv

__all__ = [
    "Discrepancy",
    "LCurve",
    "LikelihoodTerms",
    "RidgeChoice",
    "RidgePath",
    "SelectorTable",
    "compare_selectors",
    "default_ridges",
    "discrepancy",
    "effective_degrees_of_freedom",
    "fold_mse",
    "gcv",
    "kfold_mse",
    "kfold_residuals",
    "l_curve",
    "likelihood_terms",
    "log_marginal_likelihood",
    "loo_mean",
    "loo_mse",
    "loo_negative_log_density",
    "loo_residuals",
    "loo_variance",
    "negative_log_marginal_likelihood",
    "ridge_path",
    "select_ridge",
]
