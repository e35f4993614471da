"""The model of a series: a fixed sum of a line, a trend, seasons, a short-term part and noise, with priors."""

import dataclasses
import math
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax.fitting import Fits, fit_many
from kernax.forecasting._series import rows_of, series_of, standardised
from kernax.kernels import Linear, Matern12, Matern52, Periodic, Scale
from kernax.model import Model
from kernax.parameters import freeze, parameters, setting, with_prior
from kernax.priors import LogNormal
from kernax.selection import negative_log_marginal_likelihood
from kernax.solvers import AbstractSolver, Cholesky, StateSpace

_MEASURED = {
    "slope": LogNormal(-7.98, 1.01),
    "walk": LogNormal(-4.38, 1.10),
    "trend_variance": LogNormal(-1.04, 1.00),
    "trend_lengthscale": LogNormal(3.61, 1.00),
    "season_variance": LogNormal(-0.56, 1.01),
    "season_lengthscale": LogNormal(0.02, 1.00),
    "season_memory": LogNormal(4.00, 1.02),
    "short_variance": LogNormal(-2.05, 1.09),
    "short_lengthscale": LogNormal(1.10, 1.34),
    "noise": LogNormal(-3.03, 1.43),
}
"""The default priors, as `benchmarks/forecast_priors.py` prints them."""
_SPREAD = 1.08
"""The default `spread`, from the same benchmark."""
_LEAST_SD = 1.0
"""The smallest standard deviation of a fitted prior, for parameters about which the series say little."""
_WIDE = 1.5
"""The standard deviation of the priors with which priors are measured."""
_FAR = 1000.0
"""The lengthscale, in steps, with which a `Matern12` is a random walk."""
_SEASONS = 3
"""The place of the first season in the sum."""
_LONG = 2000
"""With so many rows an evaluation by the state space takes a seventh of the time of a dense matrix. It takes longer to
compile, so short series are better off without it."""


@dataclasses.dataclass(frozen=True)
class Seasonal:
    """A model of one series: a line, a random walk, a smooth trend, a season for each period, a short-term part, and noise.

    The kernel is a fixed sum, so no structure is searched. Its parameters have log-normal priors that were fitted to many
    series, so they have sensible values even for a short series (the idea of G. Corani, A. Benavoli and M. Zaffalon, *Time
    series forecasting with Gaussian processes needs priors*, 2021). The model is meant for standardised values (mean 0,
    standard deviation 1) at times that count steps, with 0 in the middle: [`kernax.forecasting.forecast`][] converts a
    series.

    The kernel is `Linear + Matern12 (a random walk) + Matern52 (trend) + Σ Periodic · Matern12 + Matern12 (short-term)`. The
    factor `Matern12` lets each season change slowly.

    **Arguments:**

    - `periods`: the periods in steps, such as 12 for months, or `(24, 168)` for hours; a number or several. `()` for no
      season. Periods are not fitted.
    - `priors`: a dict of the priors that differ from the default, by name: `slope` (variance of the line, per squared step),
      `walk` (variance of one step of the random walk), `trend_variance`, `trend_lengthscale` (steps), `season_variance`,
      `season_lengthscale` (that of `Periodic`), `season_memory` (the number of periods over which a season changes),
      `short_variance`, `short_lengthscale` (steps), `noise`.
      Each is a `kx.priors.LogNormal`. [`kernax.forecasting.Seasonal.fit_priors`][] measures them on series of your own.
    - `spread`: standard deviations of forecasts are multiplied by it, because a fitted model does not know how uncertain its
      parameters are. [`kernax.forecasting.Backtest.spread`][] measures it.
    """

    periods: Any = ()
    priors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spread: float = _SPREAD

    def __post_init__(self):
        values = np.atleast_1d(np.asarray(self.periods, float))
        if values.ndim != 1 or not np.all(np.isfinite(values) & (values > 1)):
            raise ValueError(f"periods must be numbers of steps, each more than 1, got {self.periods!r}.")
        object.__setattr__(self, "periods", tuple(values.tolist()))
        if unknown := [name for name in self.priors if name not in _MEASURED]:
            raise ValueError(f"priors has the unknown name {unknown[0]!r}: the names are {', '.join(_MEASURED)}.")
        for name, prior in self.priors.items():
            if not isinstance(prior, LogNormal):
                raise TypeError(f"the prior of {name} must be a kx.priors.LogNormal, got {prior!r}.")
        if not (isinstance(self.spread, int | float) and 0 < self.spread < math.inf):
            raise ValueError(f"spread must be a positive number, got {self.spread!r}.")
        object.__setattr__(self, "priors", _MEASURED | dict(self.priors))

    def model(self) -> Model:
        """The model with its priors; each parameter starts at the median of its prior.

        **Returns:**

        A `kx.Model` for one column of times.
        """
        start = {name: math.exp(prior.mean) for name, prior in self.priors.items()}
        kernel = Linear(start["slope"]) + Scale(Matern12(_FAR), start["walk"] * 0.5 * _FAR)
        kernel = kernel + Scale(Matern52(start["trend_lengthscale"]), start["trend_variance"])
        for period in self.periods:
            season = Periodic(start["season_lengthscale"], period) * Matern12(start["season_memory"] * period)
            kernel = kernel + Scale(season, start["season_variance"])
        kernel = kernel + Scale(Matern12(start["short_lengthscale"]), start["short_variance"])
        model = Model(kernel, noise=start["noise"])
        for name, unit, where in _places(self.periods):
            prior = self.priors[name]
            model = with_prior(model, where, LogNormal(prior.mean + math.log(unit), prior.sd))
        return model

    def trainable(self) -> Model:
        """Which parameters are fitted: those with a prior. Periods and the lengthscale of the random walk are fixed.

        **Returns:**

        A boolean tree for `kx.fit(..., trainable=...)`.
        """

        def held(m: Model) -> list[Any]:
            seasons = [m.kernel.kernels[_SEASONS + i].kernel.kernels[0].period for i in range(len(self.periods))]
            return [m.kernel.kernels[1].kernel.lengthscale, *seasons]

        return freeze(self.model(), held)

    def solver(self, rows: int) -> AbstractSolver:
        """The solver for series of a given length.

        **Arguments:**

        - `rows`: how many rows the longest series has.

        **Returns:**

        `kx.StateSpace()` for long series, else `kx.Cholesky()`.
        """
        return StateSpace() if rows >= _LONG else Cholesky()

    def fit_priors(self, series: Any, *, max_steps: int = 100, progress: bool = False) -> "Seasonal":
        """Measure the priors on many series (empirical Bayes).

        Fits the model to each series with wider priors. The new prior of a parameter has the mean and the standard deviation
        of the logarithms of its fitted values.

        **Arguments:**

        - `series`: as in [`kernax.forecasting.forecast_many`][]; a few dozen or more.
        - `max_steps`: as in `fit_many`.
        - `progress`: show a progress bar.

        **Returns:**

        A `Seasonal` with these priors.
        """
        every = list(series_of(series).values())
        if len(every) < 2:
            raise ValueError("fit_priors needs two series or more: a single one does not show how series differ.")
        wide = Seasonal(self.periods, {name: LogNormal(prior.mean, _WIDE) for name, prior in self.priors.items()})
        fits = fit_series(wide, [rows_of(standardised(values)[0]) for values in every], max_steps, progress)
        usable = np.isfinite(np.asarray(fits.value))
        if usable.sum() < 2:
            raise ValueError("fewer than two of the series could be fitted: kx.forecasting.forecast_many reports why.")
        logs: dict[str, list[np.ndarray]] = {}
        for name, unit, where in _places(self.periods):
            logs.setdefault(name, []).append(np.log(np.asarray(where(fits.model), float)[usable] / unit))
        found = {name: _log_normal(np.concatenate(values)) for name, values in logs.items()}
        return Seasonal(self.periods, {**self.priors, **found}, self.spread)


def fit_series(
    model: Seasonal, datasets: list[Any], max_steps: int, progress: bool, executor: Executor | None = None
) -> Fits:
    """The model fitted to standardised series."""
    return fit_many(
        model.model(),
        datasets,
        objective=negative_log_posterior,
        trainable=model.trainable(),
        solver=model.solver(max(len(y) for _, y in datasets)),
        max_steps=max_steps,
        executor=executor,
        progress=progress,
    )


def _log_normal(logs: np.ndarray) -> LogNormal:
    return LogNormal(float(np.mean(logs)), max(float(np.std(logs)), _LEAST_SD))


def _places(periods: tuple[float, ...]) -> list[tuple[str, float, Any]]:
    """The name of each fitted parameter, the unit of its prior, and how to find it in a model."""
    places: list[tuple[str, float, Any]] = [
        ("slope", 1.0, lambda m: m.kernel.kernels[0].variance),
        ("walk", 0.5 * _FAR, lambda m: m.kernel.kernels[1].variance),
        ("trend_variance", 1.0, lambda m: m.kernel.kernels[2].variance),
        ("trend_lengthscale", 1.0, lambda m: m.kernel.kernels[2].kernel.lengthscale),
        ("short_variance", 1.0, lambda m: m.kernel.kernels[-1].variance),
        ("short_lengthscale", 1.0, lambda m: m.kernel.kernels[-1].kernel.lengthscale),
        ("noise", 1.0, lambda m: m.noise),
    ]
    for i, period in enumerate(periods, _SEASONS):
        places += [
            ("season_variance", 1.0, lambda m, i=i: m.kernel.kernels[i].variance),
            ("season_lengthscale", 1.0, lambda m, i=i: m.kernel.kernels[i].kernel.kernels[0].lengthscale),
            ("season_memory", period, lambda m, i=i: m.kernel.kernels[i].kernel.kernels[1].lengthscale),
        ]
    return places


def negative_log_posterior(c: Any) -> Float[Array, ""]:
    """What is minimised, without the priors, which every fit adds: `-log p(y)` less the logarithms of the parameters.

    With them the priors are densities of the logarithms. The greatest density of a log-normal parameter itself is far below
    its median if the prior is wide.
    """
    own = [value for path, value in parameters(c.model) if setting(c.model, path).prior is not None]
    return negative_log_marginal_likelihood(c) - sum((jnp.sum(jnp.log(value)) for value in own), 0.0)
