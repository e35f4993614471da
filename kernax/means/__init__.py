"""Mean functions: what a model expects before it has seen data. Any callable of one point is one."""

from kernax.means._means import Constant, Linear, PerGroup, Zero, as_mean, mean_values

__all__ = ["Constant", "Linear", "PerGroup", "Zero", "as_mean", "mean_values"]
