"""Fits that end badly, at a bound, or early."""

import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kernax as kx
from kernax.fitting import _lanes

RNG = np.random.default_rng(4)
X = RNG.uniform(-2.0, 2.0, size=(8, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=8)
DATA = kx.Data(X, Y)
MODEL = kx.Model(kx.RBF(1.0), noise=0.1)
LONG = kx.Model(kx.RBF(2.0), noise=0.1)
SLOW = optax.adam(1e-3)


# Objectives that do not look at the data compile in a third of the likelihood's time; the loop is the same.


def log_lengthscale(c):
    """Without a minimum: the smaller the lengthscale, the better."""
    return jnp.log(c.model.kernel.lengthscale)


def minus_log_lengthscale(c):
    return -jnp.log(c.model.kernel.lengthscale)


def bowl(c):
    """Lowest, 1, at lengthscale 1."""
    return 1.0 + jnp.log(c.model.kernel.lengthscale) ** 2


def bowl_with_a_cliff(c):
    """The same, and not finite for lengthscales below five times the noise."""
    return jnp.where(c.model.kernel.lengthscale > 5.0 * c.model.noise, bowl(c), jnp.nan)


def values_met(fit):
    history = np.asarray(fit.history)
    assert len(history) == fit.num_steps
    return history[np.isfinite(history)]


@pytest.fixture(scope="module")
def only_the_lengthscale():
    """The noise is held."""
    return kx.freeze(MODEL, where=lambda m: m.noise)


# H21: the ends of a parameter's range


@pytest.mark.parametrize(("objective", "bound"), [(log_lengthscale, 1e-15), (minus_log_lengthscale, 1e15)])
def test_h21_a_parameter_driven_to_its_end_stops_there_and_is_flagged(objective, bound, only_the_lengthscale):
    fit = kx.fit(MODEL, DATA, objective=objective, optimiser=optax.sgd(5.0), max_steps=40, trainable=only_the_lengthscale)
    np.testing.assert_allclose(fit.model.kernel.lengthscale, bound, rtol=1e-9)
    assert fit.at_bound.kernel.lengthscale
    assert not fit.at_bound.noise
    c = kx.condition(fit.model, DATA, throw=False)
    prediction = kx.predict(c, X[:5] + 0.1)
    assert np.isfinite(prediction.mean).all()
    assert np.isfinite(prediction.variance).all()


def test_h21_data_without_noise_drive_the_noise_to_its_floor():
    model = kx.with_bijector(MODEL, lambda m: m.noise, kx.bijectors.Positive(floor=1e-3))
    data = kx.Data(X, np.sin(0.5 * X[:, 0]))
    fit = kx.fit(model, data)
    np.testing.assert_allclose(fit.model.noise, 1e-3, rtol=1e-2)
    assert fit.at_bound.noise
    assert not fit.at_bound.kernel.lengthscale
    assert np.isfinite(kx.mean(kx.condition(fit.model, data), X[:5] + 0.1)).all()


# H31: steps used up, diverging, stalled


@pytest.mark.parametrize(
    ("result", "rate", "max_steps"),
    [(kx.Result.max_steps_reached, 0.1, 3), (kx.Result.stalled, 1e-14, 50), (kx.Result.diverged, 1.5, 50)],
    ids=["steps used up", "stalled", "diverged"],
)
def test_h31_three_ways_to_end_badly_have_three_flags(result, rate, max_steps, only_the_lengthscale):
    fit = kx.fit(
        LONG,
        DATA,
        objective=bowl,
        optimiser=optax.sgd(rate),
        patience=4,
        max_steps=max_steps,
        trainable=only_the_lengthscale,
    )
    assert fit.result == result
    assert fit.num_steps == 3 if max_steps == 3 else fit.num_steps < 10
    assert fit.gradient_norm > 0.1
    np.testing.assert_allclose(fit.value, values_met(fit).min(), rtol=1e-14)
    np.testing.assert_allclose(fit.value, 1.0 + np.log(fit.model.kernel.lengthscale) ** 2, rtol=1e-12)


def test_h31_values_that_are_not_finite_keep_the_best_finite_point(only_the_lengthscale):
    # The step from u to -3u goes over the cliff, where no gradient leads back.
    fit = kx.fit(
        LONG, DATA, objective=bowl_with_a_cliff, optimiser=optax.sgd(2.0), patience=4, trainable=only_the_lengthscale
    )
    assert fit.result == kx.Result.diverged
    assert np.isnan(np.asarray(fit.history)).any()
    np.testing.assert_allclose(fit.value, 1.0 + np.log(2.0) ** 2, rtol=1e-12)
    np.testing.assert_allclose(fit.model.kernel.lengthscale, 2.0, rtol=1e-12)


# H32: restarts


@pytest.fixture(scope="module")
def fit_from_six_starts(only_the_lengthscale):
    def fit(lengthscale, noise, **more):
        model, settings = kx.Model(kx.RBF(lengthscale), noise), {"objective": bowl_with_a_cliff, "max_steps": 30}
        return kx.fit(model, DATA, restarts=5, key=jax.random.key(1), trainable=only_the_lengthscale, **settings, **more)

    return fit


def test_h32_all_starts_failing_is_flagged_and_raises(fit_from_six_starts):
    with pytest.raises(kx.FailedError, match=r"the fit failed\. all_starts_failed: .* Check the data's scale"):
        fit_from_six_starts(1.0, 1e6)
    fit = fit_from_six_starts(1.0, 1e6, throw=False)
    assert fit.result == kx.Result.all_starts_failed
    assert np.isnan(fit.value)
    np.testing.assert_array_equal(fit.start_values, np.inf)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fit.model))


def test_h32_a_failed_start_is_never_the_one_chosen(fit_from_six_starts):
    fit = fit_from_six_starts(0.4, 0.1)
    values = np.asarray(fit.start_values)
    assert values[0] == np.inf
    assert np.isfinite(values).any()
    assert fit.value == values.min()
    assert fit.result == kx.Result.successful
    np.testing.assert_allclose(fit.model.kernel.lengthscale, 1.0, rtol=1e-2)


# H39: Ctrl-C


@pytest.fixture
def interrupt_at_third_piece(monkeypatch):
    """A function that makes the third piece of work of a fit call `interrupt` first."""
    calls, real = [], _lanes._advance

    def install(interrupt):
        def advance(*args):
            calls.append(args)
            if len(calls) == 3:
                interrupt()
            return real(*args)

        monkeypatch.setattr(_lanes, "_advance", advance)
        return calls

    return install


def endless(**more):
    """A fit that would make a million steps."""
    never = {"gradient_tolerance": -1.0, "value_tolerance": 0.0, "patience": 10**6, "max_steps": 10**6}
    return kx.fit(LONG, DATA, objective=bowl, optimiser=SLOW, **never, **more)


def test_h39_ctrl_c_returns_the_best_so_far(interrupt_at_third_piece):
    def interrupt():
        raise KeyboardInterrupt

    calls = interrupt_at_third_piece(interrupt)
    fit = endless()
    assert len(calls) == 3
    assert fit.result == kx.Result.interrupted
    # Pieces of one step, then of one or two.
    assert fit.num_steps in (2, 3)
    np.testing.assert_allclose(fit.value, values_met(fit).min(), rtol=1e-14)
    np.testing.assert_allclose(fit.value, 1.0 + np.log(fit.model.kernel.lengthscale) ** 2, rtol=1e-12)
    assert fit.model.kernel.lengthscale < 2.0


def test_h39_ctrl_c_stops_every_start(interrupt_at_third_piece):
    """A real signal, which Python hands to the main thread while the lanes run in others."""
    main = threading.main_thread().ident
    interrupt_at_third_piece(lambda: signal.pthread_kill(main, signal.SIGINT))
    fit = endless(restarts=2)
    assert fit.result == kx.Result.interrupted
    assert 0 < fit.num_steps < 10**6
    assert np.isfinite(fit.value)
    assert fit.value == np.asarray(fit.start_values).min()
