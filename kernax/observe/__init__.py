"""Rows that observe values, slopes or averages of a function, for kernels `kx.kernels.OfFunctionals(kernel)`."""

from kernax.observe._builders import average_error, averages, averages_between, gradients, slopes, together, values
from kernax.observe._noise import Noise

__all__ = ["Noise", "average_error", "averages", "averages_between", "gradients", "slopes", "together", "values"]
