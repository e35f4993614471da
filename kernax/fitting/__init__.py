"""Fitting: one loop, any objective, any optax optimiser; one dataset or thousands."""

from kernax.fitting._ask_many import ConditionedMany, condition_many, predict_many, score_many
from kernax.fitting._fit import fit
from kernax.fitting._fits import Fits, concatenate
from kernax.fitting._fitted import Fit
from kernax.fitting._lbfgs import lbfgs
from kernax.fitting._log_posterior import LogPosterior, log_posterior
from kernax.fitting._many import fit_many
from kernax.fitting._refit import refit_many
from kernax.fitting._starts import initialise
from kernax.fitting._stochastic import Stochastic

__all__ = [
    "ConditionedMany",
    "Fit",
    "Fits",
    "LogPosterior",
    "Stochastic",
    "concatenate",
    "condition_many",
    "fit",
    "fit_many",
    "initialise",
    "lbfgs",
    "log_posterior",
    "predict_many",
    "refit_many",
    "score_many",
]
