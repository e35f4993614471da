"""What a conditioned model says of new points: predictions, samples, bounds."""

from kernax.posterior._bounds import data_norm_squared, error_bound, power_function, rkhs_inner, rkhs_norm, safe_sqrt
from kernax.posterior._chunks import map_rows, rows_like
from kernax.posterior._predict import (
    Prediction,
    covariance,
    mean,
    negative_log_predictive_density,
    normal_negative_log_density,
    predict,
    variance,
)
from kernax.posterior._sample import sample

__all__ = [
    "Prediction",
    "covariance",
    "data_norm_squared",
    "error_bound",
    "map_rows",
    "mean",
    "negative_log_predictive_density",
    "normal_negative_log_density",
    "power_function",
    "predict",
    "rkhs_inner",
    "rkhs_norm",
    "rows_like",
    "safe_sqrt",
    "sample",
    "variance",
]
