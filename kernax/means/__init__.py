"""Mean functions: the mean of the prior. Any function of one point can be used, too."""

from kernax.means._means import Constant, Linear, PerGroup, Zero, as_mean, mean_values

__all__ = ["Constant", "Linear", "PerGroup", "Zero", "as_mean", "mean_values"]
