"""How good a choice of hyperparameters is: scalars of a conditioned model."""

from kernax.selection._leave_one_out import loo_mean, loo_mse, loo_negative_log_density, loo_residuals, loo_variance
from kernax.selection._likelihood import (
    LikelihoodTerms,
    likelihood_terms,
    log_marginal_likelihood,
    negative_log_marginal_likelihood,
)

__all__ = [
    "LikelihoodTerms",
    "likelihood_terms",
    "log_marginal_likelihood",
    "loo_mean",
    "loo_mse",
    "loo_negative_log_density",
    "loo_residuals",
    "loo_variance",
    "negative_log_marginal_likelihood",
]
