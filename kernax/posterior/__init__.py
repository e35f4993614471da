"""Predictions, samples, intervals and bounds of a conditioned model at new points."""

from kernax.posterior._bounds import data_norm_squared, error_bound, power_function, rkhs_inner, rkhs_norm
from kernax.posterior._components import SumComponents, components
from kernax.posterior._conformal import Interval, conformal
from kernax.posterior._new_rows import rows_like
from kernax.posterior._paths import SamplePaths, sample_paths
from kernax.posterior._predict import (
    Prediction,
    covariance,
    mean,
    negative_log_predictive_density,
    normal_negative_log_density,
    predict,
    safe_sqrt,
    variance,
)
from kernax.posterior._sample import sample
from kernax.posterior._sensitivity import SensitivityIndices, sensitivity
from kernax.posterior._stream import Streamed, stream
from kernax.posterior._tasks import predict_tasks

__all__ = [
    "Interval",
    "Prediction",
    "SamplePaths",
    "SensitivityIndices",
    "Streamed",
    "SumComponents",
    "components",
    "conformal",
    "covariance",
    "data_norm_squared",
    "error_bound",
    "mean",
    "negative_log_predictive_density",
    "normal_negative_log_density",
    "power_function",
    "predict",
    "predict_tasks",
    "rkhs_inner",
    "rkhs_norm",
    "rows_like",
    "safe_sqrt",
    "sample",
    "sample_paths",
    "sensitivity",
    "stream",
    "variance",
]
