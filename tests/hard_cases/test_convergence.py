"""H44: whatever offset and scale the targets have, a fit that says `successful` has arrived.

Two judges: the fit itself, told to go on from where it stopped, and SciPy's optimiser on a likelihood written in NumPy.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

import kernax as kx
from kernax.selection import negative_log_marginal_likelihood

X = np.linspace(0.0, 10.0, 80)[:, None]
SIGNAL = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=80)
MODEL = kx.Model(1.0 * kx.RBF(), noise=0.1)
WITH_MEAN = kx.Model(1.0 * kx.RBF(), noise=0.1, mean=kx.means.Constant())
LEAST = 1e-3
"""Nats that a fit may leave lying."""
OFFSETS_AND_SCALES = [(offset, scale) for offset in (0.0, 1e3, 1e6) for scale in (1e-6, 1.0, 1e6)]
TARGETS = [scale * (offset + SIGNAL) for offset, scale in OFFSETS_AND_SCALES]
GROWTH = 2700.0 * np.exp(np.cumsum(0.02 + 0.012 * np.random.default_rng(3).normal(size=80)))
"""Like a gross domestic product: far from 0, rough, without a mean to come back to."""


def numpys_likelihood(y):
    """The negative log marginal likelihood by itself, as a function of log lengthscale, log variance and log noise."""
    squares = (X - X.T) ** 2

    def value(log_parameters):
        lengthscale, variance, noise = np.exp(log_parameters[:3])
        a = variance * np.exp(-0.5 * squares / lengthscale**2) + noise * np.eye(len(y))
        residuals = y - (log_parameters[3] * np.abs(y).max() if len(log_parameters) > 3 else 0.0)
        try:
            factor = cho_factor(a, lower=True)
        except np.linalg.LinAlgError:
            return 1e300
        quadratic = residuals @ cho_solve(factor, residuals)
        return 0.5 * quadratic + np.log(np.diag(factor[0])).sum() + 0.5 * len(y) * np.log(2 * np.pi)

    return value


def where_scipy_goes_on(model, y):
    kernel, noise = model.kernel, model.noise
    begin = np.log([kernel.kernel.lengthscale, kernel.variance, noise]).astype(float)
    if isinstance(model.mean, kx.means.Constant):
        begin = np.append(begin, model.mean.value / np.abs(y).max())
    value = numpys_likelihood(np.asarray(y, float))
    bounds = [(-34.0, 34.0)] * 3 + [(None, None)] * (len(begin) - 3)
    simplex = minimize(value, begin, method="Nelder-Mead", bounds=bounds, options={"maxfev": 400})
    return min(simplex.fun, minimize(value, begin, method="L-BFGS-B", bounds=bounds).fun)


def what_going_on_gains(fits, datasets):
    """How much lower the same fits come from where they stopped, with no tolerance at all."""
    on = kx.fit_many(fits, datasets, gradient_tolerance=0.0, value_tolerance=0.0, patience=60, max_steps=200)
    return np.asarray(fits.value) - np.asarray(on.value)


@pytest.fixture(scope="module", params=[MODEL, WITH_MEAN], ids=["no_mean", "constant_mean"])
def over_offsets_and_scales(request):
    datasets = [(X, y) for y in TARGETS]
    return kx.fit_many(request.param, datasets), datasets


def test_h44_successful_means_that_going_on_gains_nothing(over_offsets_and_scales):
    fits, datasets = over_offsets_and_scales
    gains = what_going_on_gains(fits, datasets)
    assert (gains[~fits.failed] < LEAST).all(), dict(zip(OFFSETS_AND_SCALES, gains, strict=True))


def test_h44_scipy_finds_nothing_better_nearby(over_offsets_and_scales):
    fits, _ = over_offsets_and_scales
    for number in np.flatnonzero(~fits.failed):
        fit, y = fits[int(number)], TARGETS[number]
        if not any(np.any(flag) for flag in (fit.at_bound.noise, fit.at_bound.kernel.variance)):
            assert where_scipy_goes_on(fit.model, y) > float(fit.value) - LEAST, OFFSETS_AND_SCALES[number]


def test_h44_defaults_arrive(over_offsets_and_scales):
    """With a mean all nine do. Without one, a kernel matrix with entries of 1e12 and a noise of 0.01 is singular but for
    rounding, and the fit says that it stalled."""
    fits, _ = over_offsets_and_scales
    has_mean = isinstance(fits.model.mean, kx.means.Constant)
    assert np.sum(fits.failed) <= (0 if has_mean else 2)


@pytest.mark.parametrize("restarts", [0, 2])
def test_h44_the_offset_of_a_million(restarts):
    """Once ended `successful` at 153,841 with a gradient of 153,662, where 105.9 can be reached."""
    y = 1e6 + SIGNAL
    fit = kx.fit(MODEL, kx.Data(X, y), restarts=restarts)
    assert float(fit.value) < 105.9
    if fit.result == kx.Result.successful:
        assert where_scipy_goes_on(fit.model, y) > float(fit.value) - LEAST


def test_h44_a_series_that_grows():
    data = kx.Data(X, GROWTH)
    fit = kx.fit(MODEL, data)
    assert fit.result == kx.Result.successful
    assert where_scipy_goes_on(fit.model, GROWTH) > float(fit.value) - LEAST


def test_h44_float32():
    datasets = [(np.float32(X), np.float32(offset + scale * SIGNAL)) for offset in (0.0, 10.0) for scale in (0.1, 1.0, 1e4)]
    fits = kx.fit_many(WITH_MEAN, datasets)
    gains = what_going_on_gains(fits, datasets)
    assert np.sum(fits.failed) <= 1
    assert (gains[~fits.failed] < LEAST).all(), gains


@pytest.mark.parametrize(("optimiser", "enough"), [(optax.adam(0.05), 500), (optax.adam(0.05), 30), (optax.sgd(1e-3), 300)])
def test_h44_other_optimisers_say_the_truth(optimiser, enough):
    data = kx.Data(X, SIGNAL)
    best = kx.fit(MODEL, data).value
    fit = kx.fit(MODEL, data, optimiser=optimiser, max_steps=enough)
    arrived = float(fit.value) < float(best) + LEAST
    assert (fit.result == kx.Result.successful) <= arrived
    if enough == 30:
        assert fit.result == kx.Result.max_steps_reached


def test_h44_other_objectives_are_judged_relative_to_their_best_value():
    values = []
    for scale in (1e-6, 1.0, 1e6):
        data = kx.Data(X, scale * SIGNAL)
        fit = kx.fit(MODEL, data, objective=kx.loo_mse)
        assert fit.result == kx.Result.successful
        values.append(float(fit.value) / scale**2)
    np.testing.assert_allclose(values, values[1], rtol=1e-5)


def test_h44_a_parameter_that_leapt_out_of_its_range_comes_back():
    """Outside its range a parameter has no influence, so a gradient of 0; that alone must not end the fit."""
    narrow = kx.bijectors.Positive(floor=0.5, ceiling=3.0)

    def hollow(c):
        """Lowest at lengthscale 1. From 2.9, the first steps lead far below 0.5, where the value is still lower."""
        return 1.0 + 30.0 * jnp.log(c.model.kernel.lengthscale) ** 2

    model = kx.with_bijector(kx.Model(kx.RBF(2.9), noise=0.1), lambda m: m.kernel.lengthscale, narrow)
    fit = kx.fit(model, kx.Data(X, SIGNAL), objective=hollow, trainable=kx.freeze(model, lambda m: m.noise))
    assert fit.result == kx.Result.successful
    np.testing.assert_allclose(fit.model.kernel.lengthscale, 1.0, rtol=1e-3)


def test_h44_the_default_objective_is_judged_in_nats_with_a_prior_too():
    prior = kx.with_prior(MODEL, lambda m: m.kernel.kernel.lengthscale, kx.priors.LogNormal(0.0, 1.0))
    data = kx.Data(X, 1e3 + SIGNAL)
    fit = kx.fit(prior, data)
    assert fit.result == kx.Result.successful
    on = kx.fit(fit.model, data, gradient_tolerance=0.0, value_tolerance=0.0, max_steps=100, throw=False)
    assert float(fit.value) - float(on.value) < LEAST
    value = negative_log_marginal_likelihood(kx.condition(fit.model, data)) - kx.parameters.log_prior(fit.model)
    np.testing.assert_allclose(fit.value, value, rtol=1e-8)
