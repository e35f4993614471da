"""The data, the model and the forecast."""

# Parameters are declared as the arrays they become; type checkers do not see that numbers are converted.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import importlib.resources
from typing import NamedTuple

import jax
import numpy as np

import kernax as kx


class Series(NamedTuple):
    """A time series of CO₂: decimal years and parts per million."""

    year: np.ndarray
    """Decimal years."""
    ppm: np.ndarray
    """Parts per million."""

    def between(self, first: float, last: float) -> "Series":
        """The weeks from `first` up to, but not including, `last`."""
        inside = (self.year >= first) & (self.year < last)
        return Series(self.year[inside], self.ppm[inside])

    def every(self, step: int) -> "Series":
        """Every `step`-th week."""
        return Series(self.year[::step], self.ppm[::step])


def load() -> Series:
    """Load weekly CO₂ concentrations at Mauna Loa, 1958–2001 (Keeling and Whorf, 2004; public domain).

    **Returns:**

    A `Series`. Weeks without a measurement are left out.
    """
    text = importlib.resources.files("kernax.demo").joinpath("co2.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    rows = [(date, ppm) for date, ppm in rows if ppm]
    dates = np.array([date for date, _ in rows], dtype="datetime64[D]")
    start = dates.astype("datetime64[Y]")
    length = (start + 1).astype("datetime64[D]") - start.astype("datetime64[D]")
    share = (dates - start.astype("datetime64[D]")) / length
    return Series(1970 + start.astype(int) + share, np.array([float(ppm) for _, ppm in rows]))


def inputs(year: np.ndarray) -> np.ndarray:
    """Years since 1980, one column: level and slope of the mean's straight line then hardly depend on each other."""
    return year[:, None] - 1980.0


def model() -> kx.Model:
    """A straight line, its slow bends, a season that drifts, and the weather of a few weeks.

    The numbers are starting values, in ppm² and years.
    """
    bends = 100.0 * kx.Matern52(lengthscale=30.0)
    season = 6.0 * kx.RBF(lengthscale=80.0) * kx.Periodic(lengthscale=1.3, period=1.0)
    weather = 0.1 * kx.Matern32(lengthscale=0.1)
    line = kx.means.Linear(slope=np.array([1.5]), intercept=340.0)
    return kx.Model(bends + season + weather, noise=0.05, mean=line)


def fit(training: Series, *, progress: bool) -> tuple[kx.fitting.Fit, kx.model.Conditioned]:
    """Maximum likelihood with the season's period held at one year."""
    start, data = model(), kx.Data(inputs(training.year), training.ppm)
    trainable = kx.freeze(start, where=lambda m: m.kernel.kernels[1].kernels[1].period)
    fitted = kx.fit(start, data, trainable=trainable, progress=progress)
    return fitted, kx.condition(fitted.model, data)


class Forecast(NamedTuple):
    """Mean and standard deviation of an observation, at these years."""

    year: np.ndarray
    mean: np.ndarray
    sd: np.ndarray


def forecast(c: kx.model.Conditioned, year: np.ndarray) -> Forecast:
    """What the model expects to be measured."""
    prediction = jax.block_until_ready(kx.predict(c, inputs(year), noisy=True))
    return Forecast(year, np.asarray(prediction.mean), np.sqrt(np.asarray(prediction.variance)))
