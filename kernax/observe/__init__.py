"""What rows observe of a function: values, slopes, averages. For kernels `kx.kernels.OfFunctionals(kernel)`."""

from kernax.observe._builders import average_error, averages, averages_between, gradients, slopes, together, values
from kernax.observe._noise import Noise

__all__ = ["Noise", "average_error", "averages", "averages_between", "gradients", "slopes", "together", "values"]
