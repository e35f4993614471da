"""Forecasts: scores are what integrals say, fits are those of `fit_many`, and backtests see no future."""

import dataclasses
import json
import math
import pickle

import jax
import numpy as np
import pytest
from scipy import integrate, stats
from typer.testing import CliRunner

import kernax as kx
from kernax.cli import app
from kernax.forecasting import Seasonal, backtest_many, coverage, forecast, forecast_many, gaussian_crps, naive_error
from kernax.forecasting._seasonal import negative_log_posterior
from kernax.tables._clock import clock_of

PERIOD, HORIZON = 4, 4
MODEL = Seasonal(periods=PERIOD)


def made(seed, rows=32):
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    return 50.0 + 0.3 * t + 4.0 * np.sin(2 * np.pi * t / PERIOD) + rng.normal(size=rows)


@pytest.fixture(scope="module")
def backtest():
    series = {"a": made(0), "b": made(1), "gaps": made(2), "short": made(3)[:12]}
    series["gaps"][[3, 10, 31]] = np.nan
    return series, backtest_many(series, HORIZON, model=MODEL, origins=2)


def dense(model, centred, values, new):
    """Mean and variance of new observations, in NumPy, from the parameters of a fitted model."""
    line, walk, trend, season, short = model.kernel.kernels

    def matern12(r, kernel):
        return float(kernel.variance) * np.exp(-r / float(kernel.kernel.lengthscale))

    def covariance(a, b):
        r = np.abs(a[:, None] - b[None, :])
        s = math.sqrt(5.0) * r / float(trend.kernel.lengthscale)
        wave, memory = season.kernel.kernels
        turn = np.sin(np.pi * r / PERIOD) / float(wave.lengthscale)
        K = float(line.variance) * np.outer(a, b) + matern12(r, walk) + matern12(r, short)
        K += float(trend.variance) * (1 + s + s**2 / 3) * np.exp(-s)
        return K + float(season.variance) * np.exp(-2.0 * turn**2 - r / float(memory.lengthscale))

    noise = float(model.noise)
    K = covariance(centred, centred) + noise * np.eye(len(centred))
    cross = covariance(new, centred)
    variance = np.diag(covariance(new, new)) - np.einsum("ij,ji->i", cross, np.linalg.solve(K, cross.T)) + noise
    return cross @ np.linalg.solve(K, values), variance


@pytest.mark.parametrize(("observed", "mean", "sd"), [(0.3, 0.0, 1.0), (-4.0, 1.0, 0.7), (2.0, 2.0, 3.0)])
def test_crps_is_its_integral(observed, mean, sd):
    below = integrate.quad(lambda z: stats.norm.cdf(z, mean, sd) ** 2, -40, observed)[0]
    above = integrate.quad(lambda z: stats.norm.sf(z, mean, sd) ** 2, observed, 40)[0]
    np.testing.assert_allclose(gaussian_crps(observed, mean, sd), below + above, rtol=1e-7)


def test_scores_at_their_edges():
    np.testing.assert_array_equal(gaussian_crps([1.0, 2.0], 0.0, 0.0), [1.0, 2.0])
    np.testing.assert_array_equal(coverage([1.9, -2.0, np.nan], 0.0, 1.0, 0.95), [1.0, 0.0, np.nan])
    assert naive_error(np.array([1.0, 5.0, 2.0, np.nan, 4.0]), 2) == pytest.approx(1.5)
    assert math.isnan(naive_error(np.ones(5), 1))
    assert math.isnan(naive_error(np.ones(2), 4))


def test_a_backtest_is_refits_from_the_past_alone(backtest):
    series, found = backtest
    assert found.keys == ("a", "a", "b", "b", "gaps", "gaps")
    assert found.too_short == ("short",)
    np.testing.assert_array_equal(found.origins, [24, 28] * 3)
    np.testing.assert_array_equal(found.observed[3], series["b"][28:])
    alone = forecast_many([series["a"][:24], series["gaps"][:28]], HORIZON, model=MODEL)
    for number, place in ((0, 0), (1, 5)):
        np.testing.assert_allclose(alone[number].mean, found.mean[place], rtol=1e-5)
        np.testing.assert_allclose(alone[number].sd, found.sd[place], rtol=1e-4)
        assert alone[number].result == "successful"


def test_scores_of_a_backtest(backtest):
    series, found = backtest
    columns = found.table()
    unit = np.array([np.mean(np.abs(series["b"][4:cut] - series["b"][: cut - 4])) for cut in (24, 28)])[:, None]
    observed, mean, sd = (part[2:4] for part in (found.observed, found.mean, found.sd))
    assert columns["mase"][1] == pytest.approx(np.mean(np.abs(observed - mean) / unit))
    assert columns["crps"][1] == pytest.approx(np.mean(gaussian_crps(observed, mean, sd) / unit))
    assert columns["coverage_80"][1] == np.mean(np.abs(observed - mean) < stats.norm.ppf(0.9) * sd)
    assert found.overall()["mase"] == pytest.approx(np.mean(columns["mase"]))
    assert np.isfinite(columns["mase"]).all()
    wider = dataclasses.replace(found, sd=found.sd * found.spread())
    assert np.nanmean(coverage(wider.observed, wider.mean, wider.sd, 0.8)) == pytest.approx(0.8, abs=0.05)
    text = repr(pickle.loads(pickle.dumps(found)))
    assert "1 series too short" in text
    assert text.splitlines()[-1].startswith("all")


def test_a_forecast_is_the_dense_formula_in_the_units_of_the_series():
    values = made(0)[:24]
    values[5] = np.nan
    known = np.isfinite(values)
    centre, scale = np.nanmean(values), np.nanstd(values)
    t = np.arange(28) - 11.5
    data = (t[:24][known][:, None], ((values - centre) / scale)[known])
    fits = kx.fit_many(MODEL.model(), [data], objective=negative_log_posterior, trainable=MODEL.trainable(), max_steps=100)
    c = kx.condition(fits[0].model, kx.Data(*data))
    logs = [np.log(leaf) for leaf in jax.tree.leaves(fits[0].model)]
    held = math.log(1000.0) + math.log(PERIOD)  # of the walk, and the period
    expected = -float(kx.log_marginal_likelihood(c)) - float(np.sum(logs)) + held
    np.testing.assert_allclose(float(negative_log_posterior(c)), expected, rtol=1e-6)
    assert float(fits[0].model.kernel.kernels[3].kernel.kernels[0].period) == PERIOD
    mean, variance = dense(fits[0].model, data[0][:, 0], data[1], t[24:])
    found = forecast(values, HORIZON, model=MODEL)
    np.testing.assert_allclose(found.mean, centre + scale * mean, rtol=1e-4)
    np.testing.assert_allclose(found.sd, MODEL.spread * scale * np.sqrt(variance), rtol=1e-3)
    lower, upper = found.interval(0.5)
    np.testing.assert_allclose(upper - lower, 2 * stats.norm.ppf(0.75) * found.sd)
    moved = forecast(10.0 * values - 3.0, HORIZON, model=MODEL)
    np.testing.assert_allclose(moved.mean, 10.0 * found.mean - 3.0, rtol=1e-5)


def test_priors_are_moments_of_the_fits():
    """Of the logarithms; the periods are no part of them. Priors sit where the parameters are."""
    series = [made(seed) for seed in range(3)]
    found = MODEL.fit_priors(series)
    assert found.periods == (4.0,)
    assert set(found.priors) == set(MODEL.priors)
    assert all(prior.sd >= 1.0 for prior in found.priors.values())
    # A clear line, a clear season, and a tenth of the variance or so is noise.
    assert found.priors["season_variance"].mean > found.priors["noise"].mean
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_constant_series_is_forecast_by_its_value():
    values = np.full(24, 7.0)
    values[5] = np.nan
    found = forecast(values, HORIZON, model=MODEL)
    np.testing.assert_allclose(found.mean, 7.0, rtol=1e-3)
    assert np.all(found.sd < 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Seasonal(periods=0.5), "more than 1"),
        (lambda: Seasonal(12, {"nose": kx.priors.LogNormal()}), "unknown name 'nose'"),
        (lambda: Seasonal(12, {"noise": kx.priors.Normal()}), "must be a kx.priors.LogNormal"),  # pyright: ignore
        (lambda: Seasonal(12, spread=0.0), "spread must be"),
        (lambda: forecast(np.ones((3, 2)), 2), "one axis"),
        (lambda: forecast([1.0, np.inf], 2), "infinite"),
        (lambda: forecast(["a", "b"], 2), "must hold numbers"),
        (lambda: forecast([1.0, np.nan], 2), "fewer than two"),
        (lambda: forecast([1.0, 2.0], 0), "horizon"),
        (lambda: forecast([1.0, 2.0], 2, model=kx.RBF()), "Seasonal"),  # pyright: ignore
        (lambda: forecast_many([1.0, 2.0], 2), "put a single series into a list"),
        (lambda: forecast_many({}, 2), "series is empty"),
        (lambda: backtest_many([made(0)[:9]], 4, model=MODEL), "no series is long enough"),
        (lambda: Seasonal().fit_priors([made(0)]), "two series or more"),
        (lambda: kx.forecasting.Forecast(np.ones(1), np.ones(1), "").interval(95), "between 0 and 1"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def table(times, **columns):
    return {"when": times, **columns}


def days(text):
    return np.array(text.split(), "M8[D]").astype("M8[us]")


MONTHS = np.arange("2019-11", "2022-07", dtype="M8[M]").astype("M8[D]").astype("M8[us]")  # 32 months
NONE = Seasonal()


@pytest.mark.parametrize(
    ("times", "step", "following"),
    [
        (MONTHS, "1 month", days("2022-07-01 2022-08-01")),
        (np.arange("2019-12", "2022-08", dtype="M8[M]").astype("M8[D]") - 1, "1 month", days("2022-07-31 2022-08-31")),
        (np.arange("1990", "2022", dtype="M8[Y]").astype("M8[D]"), "1 year", days("2022-01-01 2023-01-01")),
        (np.arange("2022-01-01", "2022-02-02", dtype="M8[D]"), "1 day", days("2022-02-02 2022-02-03")),
        (np.arange(32) * 2 + 7, "2", np.array([71, 73])),
        (np.arange(32) * 0.1 + 7, "0.1", np.array([10.2, 10.3])),
    ],
    ids=["months", "ends of months", "years", "days", "numbers", "fractions"],
)
def test_the_step_of_a_table(times, step, following):
    times = times.astype("M8[us]") if times.dtype.kind == "M" else times
    keep = np.delete(np.arange(32), [4, 17])  # gaps
    found = kx.tables.forecast_table(
        table(times[keep], y=made(0)[keep]), 2, time="when", target="y", model=dataclasses.replace(NONE)
    )
    assert found.step == step
    if following.dtype.kind == "f":
        np.testing.assert_allclose(found.columns["when"], following)
    else:
        np.testing.assert_array_equal(found.columns["when"], following)
    values = made(0)
    values[[4, 17]] = np.nan
    np.testing.assert_allclose(found.columns["mean"], forecast(values, 2).mean, rtol=1e-5)


def test_the_command_line_forecasts_each_series(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [("b", MONTHS, made(1)), ("a", MONTHS[:28], made(0)[:28]), ("new", MONTHS[:1], made(2)[:1])]
    kx.tables.write_table(
        "sales.csv",
        {
            "shop": np.concatenate([np.full(len(t), name, object) for name, t, _ in rows]),
            "month": np.concatenate([t for _, t, _ in rows]),
            "sales": np.concatenate([y for _, _, y in rows]),
        },
    )
    base = ["forecast", "sales.csv", "--by", "shop", "--horizon", str(HORIZON), "--period", str(PERIOD), "--no-cache"]
    done = CliRunner().invoke(app, [*base, "--level", "0.8", "-o", "next.csv"])
    assert done.exit_code == 0, done.output
    assert "2 series → next.csv" in done.output
    assert "series with fewer than two values are left out: 'new'" in done.output
    written = kx.tables.read_table("next.csv").columns
    assert written["shop"].tolist() == ["b"] * HORIZON + ["a"] * HORIZON
    assert written["month"].tolist()[3:6] == ["2022-10-01", "2022-03-01", "2022-04-01"]
    expected = forecast_many([made(1), made(0)[:28]], HORIZON, model=MODEL)
    for number in range(2):
        some = slice(number * HORIZON, (number + 1) * HORIZON)
        np.testing.assert_allclose(written["mean"][some].astype(float), expected[number].mean, rtol=1e-4)
        np.testing.assert_allclose(written["upper"][some].astype(float), expected[number].interval(0.8)[1], rtol=1e-4)
    answer = json.loads(CliRunner().invoke(app, [*base, "--json"]).stdout)
    assert answer["results"] == {"successful": 2}
    assert answer["columns"]["month"][0] == "2022-07-01"
    assert (answer["step"], answer["periods"]) == ("1 month", [4.0])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (table([1.0, 2.0], y=[1.0, 2.0]), {}, "no columns of dates"),
        (table(MONTHS[:3], y=[1.0, 2.0, 3.0], z=[1.0, 2.0, 3.0]), {}, "several columns"),
        (table(MONTHS[[0, 0, 1]], y=[1.0, 2.0, 3.0]), {}, "several rows for one time"),
        (table([0.0, 1.0, 2.3], y=[1.0, 2.0, 3.0]), {"time": "when"}, "not regular"),
        (table(days("2020-01-01 2020-01-02 2023-07-09"), y=[1.0, 2.0, 3.0]), {}, "not regular"),
        (table(MONTHS[:1], y=[1.0]), {}, "one time only"),
        (table(MONTHS[:2], y=[np.nan, np.nan]), {}, "no row has a value"),
        (table(MONTHS[:3], y=["a", "b", "c"]), {}, "does not hold numbers"),
        (table(["a", "b", "c"], y=[1.0, 2.0, 3.0]), {"time": "when"}, "neither dates nor numbers"),
        (table(MONTHS[:3], y=[1.0, 2.0, 3.0]), {"by": "y", "target": "y"}, "different columns"),
        (table(MONTHS[:3], y=[1.0, 2.0, 3.0]), {"periods": 4, "model": MODEL}, "not both"),
        (table(MONTHS[:3], y=[1.0, 2.0, 3.0]), {"level": 95}, "between 0 and 1"),
    ],
)
def test_tables_that_cannot_be_forecast(columns, options, message):
    with pytest.raises(ValueError, match=message):
        kx.tables.forecast_table(columns, 2, **options)


def test_the_season_follows_from_the_step():
    hours = np.datetime64("2022-01-01", "us") + np.arange(50) * np.timedelta64(1, "h")
    cases = [(MONTHS, (12.0,)), (MONTHS[::3], (4.0,)), (MONTHS[:20], ()), (hours, (24.0,)), (hours[:10], ())]
    for times, periods in cases:
        assert clock_of(kx.tables.Table({"t": times}, "made"), "t")[0].periods(len(times)) == periods
