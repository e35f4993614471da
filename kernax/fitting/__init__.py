"""Fitting: one loop, any objective, any optax optimiser."""

from kernax.fitting._fit import Fit, fit
from kernax.fitting._lbfgs import lbfgs
from kernax.fitting._starts import initialise

__all__ = ["Fit", "fit", "initialise", "lbfgs"]
