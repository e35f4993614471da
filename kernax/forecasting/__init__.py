"""Forecasts of series: one fixed model with priors, fitted to thousands of series, and backtests with rolling origins."""

from kernax.forecasting._backtest import Backtest, backtest_many
from kernax.forecasting._forecast import Forecast, forecast, forecast_many
from kernax.forecasting._scores import coverage, gaussian_crps, naive_error
from kernax.forecasting._seasonal import Seasonal

__all__ = [
    "Backtest",
    "Forecast",
    "Seasonal",
    "backtest_many",
    "coverage",
    "forecast",
    "forecast_many",
    "gaussian_crps",
    "naive_error",
]
