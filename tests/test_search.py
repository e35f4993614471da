"""The search for a kernel: known structures are recovered, and scores and averages are what their formulas say."""

import io
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.demo import load_co2
from kernax.search import _search
from kernax.search._structures import changes, first_structures

ROWS = 58
OPTIONS: dict = {"base": [kx.Linear(), kx.RBF(), kx.Periodic()], "depth": 3, "beam": 1, "starts": 1}
"""The same base kernels and depth for all tests, and all data has as many rows: one program serves them all."""


def made(seed):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 20.0, ROWS))
    return x[:, None], 0.3 * x + np.sin(2 * np.pi * x / 1.7) + 0.2 * rng.normal(size=ROWS)


@pytest.fixture(scope="module")
def search():
    return kx.search_kernel(kx.Data(*made(0)), **OPTIONS | {"starts": 2})


def covariance(model, x):
    """Of `linear + periodic`, with noise, in NumPy."""
    line, season = model.kernel.kernels
    t = x[:, 0]
    K = float(line.variance * line.kernel.variance) * np.outer(t, t)
    waves = np.sin(np.pi * (t[:, None] - t[None, :]) / float(season.kernel.period))
    K += float(season.variance) * np.exp(-2.0 * (waves / float(season.kernel.lengthscale)) ** 2)
    return K + float(model.noise) * np.eye(len(t))


def found(search, expression):
    return next(one for one in search.tried if one.expression == expression)


def test_a_trend_and_a_season_are_found(search):
    assert search.tried[0].expression == "linear + periodic"
    assert search.best.model.kernel.kernels[1].kernel.period == pytest.approx(1.7, rel=0.01)
    assert search.best.model.noise == pytest.approx(0.04, rel=0.6)
    assert search.ended == "no better"
    scores = [one.score for one in search.tried]
    assert scores == sorted(scores)
    assert len({one.expression for one in search.tried}) == len(scores) > 15


def test_bic_is_its_formula(search):
    x, y = made(0)
    one = found(search, "linear + periodic")
    K, residual = covariance(one.model, x), y - float(one.model.mean.value)
    _, logdet = np.linalg.slogdet(K)
    likelihood = -0.5 * (residual @ np.linalg.solve(K, residual) + logdet + ROWS * math.log(2 * math.pi))
    # Two variances, lengthscale and period, noise, level.
    assert one.num_parameters == 6
    assert one.log_likelihood == pytest.approx(likelihood, abs=1e-6)
    assert one.score == pytest.approx(-2 * likelihood + 6 * math.log(ROWS), abs=1e-6)
    assert search.best.value == pytest.approx(-likelihood, abs=1e-6)


def test_loo_is_that_of_refits():
    x, y = made(0)
    search = kx.search_kernel(kx.Data(x, y), by="loo", **OPTIONS)
    one = found(search, "linear + periodic")
    K, residual, total = covariance(one.model, x), y - float(one.model.mean.value), 0.0
    for i in range(ROWS):
        rest = np.arange(ROWS) != i
        gain = np.linalg.solve(K[np.ix_(rest, rest)], K[rest, i])
        variance = K[i, i] - gain @ K[rest, i]
        total += 0.5 * ((residual[i] - gain @ residual[rest]) ** 2 / variance + math.log(2 * math.pi * variance))
    assert one.score == pytest.approx(total, abs=1e-6)
    scores = np.array([kept.score for kept in search.tried[:5]])
    np.testing.assert_allclose(search.weights, np.exp(scores[0] - scores) / np.exp(scores[0] - scores).sum())


def test_predictions_are_those_of_the_mixture():
    data, new = kx.Data(*made(3)), np.linspace(0.0, 25.0, 7)[:, None]
    search = kx.search_kernel(data, keep=2, **OPTIONS)
    weights = np.exp(-0.5 * np.array([one.score - search.tried[0].score for one in search.tried[:2]]))
    weights /= weights.sum()
    parts = [kx.predict(kx.condition(fit.model, data), new, noisy=True) for fit in search.fits]
    mean = sum(w * np.asarray(p.mean) for w, p in zip(weights, parts, strict=True))
    square = sum(w * (np.asarray(p.variance) + np.asarray(p.mean) ** 2) for w, p in zip(weights, parts, strict=True))
    average = search.predict(new, noisy=True)
    np.testing.assert_allclose(average.mean, mean, atol=1e-8)
    np.testing.assert_allclose(average.variance, square - mean**2, atol=1e-8)


def test_co2_is_a_trend_and_a_season():
    series = load_co2().between(1990.0, 2001.0).every(10)
    assert len(series.year) == ROWS
    search = kx.search_kernel(kx.Data(series.year[:, None] - 1990.0, series.ppm), **OPTIONS)
    best = search.tried[0]
    assert "periodic" in best.expression
    assert " + " in best.expression
    parts = best.model.kernel.summands()
    (season,) = [part for part in parts if "Periodic" in repr(part)]
    kernels = [season.kernel] if isinstance(season.kernel, kx.Periodic) else season.kernel.kernels
    (periodic,) = [kernel for kernel in kernels if isinstance(kernel, kx.Periodic)]
    assert periodic.period == pytest.approx(1.0, abs=0.01)


# Monthly totals of international airline passengers in thousands, January 1949 to December 1960, a row for each year:
# Series G of Box and Jenkins, Time Series Analysis (1970), often called AirPassengers.
_YEARS = """
112 118 132 129 121 135 148 148 136 119 104 118
115 126 141 135 125 149 170 170 158 133 114 140
145 150 178 163 172 178 199 199 184 162 146 166
171 180 193 181 183 218 230 242 209 191 172 194
196 196 236 235 229 243 264 272 237 211 180 201
204 188 235 227 234 264 302 293 259 229 203 229
242 233 267 269 270 315 364 347 312 274 237 278
284 277 317 313 318 374 413 405 355 306 271 306
315 301 356 348 355 422 465 467 404 347 305 336
340 318 362 348 363 435 491 505 404 359 310 337
360 342 406 396 420 472 548 559 463 407 362 405
417 391 419 461 472 535 622 606 508 461 390 432
"""
PASSENGERS = np.loadtxt(io.StringIO(_YEARS)).ravel()


def test_airline_passengers_are_a_trend_and_a_season_of_twelve_months():
    """Their logarithms: the season grows with the number of passengers."""
    months = np.arange(144.0)
    search = kx.search_kernel(kx.Data(months[:, None], np.log(PASSENGERS)), **OPTIONS)
    products = [set(product.split(" * ")) for product in search.tried[0].expression.split(" + ")]
    assert any(product <= {"linear", "rbf"} for product in products), "a trend, straight or smooth"
    assert any("periodic" in product for product in products)
    kernels = jax.tree.leaves(search.best.model.kernel, is_leaf=lambda part: isinstance(part, kx.Periodic))
    (season,) = [part for part in kernels if isinstance(part, kx.Periodic)]
    assert season.period == pytest.approx(12.0, abs=0.1)
    sentences = search.describe(columns=["time (months)"], target="log passengers")
    assert any("a pattern that repeats every 12 months" in sentence.lower() for sentence in sentences)
    assert len(sentences) >= len(products) + 1


def test_many_are_as_each_alone_and_say_why_one_failed(search):
    x, y = made(0)
    unknown = np.where(np.arange(ROWS) == 4, np.nan, y)
    hidden = (x, unknown, np.arange(ROWS) != 4)
    datasets = {"good": (x, y), "unknown": (x, unknown), "hidden": hidden, "empty": (x[:0], y[:0])}
    many = kx.search_kernel_many(datasets, **OPTIONS | {"starts": 2})
    assert set(many) == {"good", "hidden"}
    assert many.failed == {"unknown": "nonfinite", "empty": "empty"}
    with pytest.raises(KeyError, match="nonfinite"):
        many["unknown"]
    assert [one.expression for one in many["good"].tried] == [one.expression for one in search.tried]
    np.testing.assert_allclose(
        [one.score for one in many["good"].tried], [one.score for one in search.tried], rtol=1e-5, atol=1e-3
    )
    best = many["hidden"].tried[0]
    assert best.score == pytest.approx(-2 * best.log_likelihood + best.num_parameters * math.log(ROWS - 1))
    assert many.table()["dataset"] == ["good", "hidden"]
    assert "linear + periodic" in repr(many)


@pytest.mark.parametrize("where", ["between fits", "inside fits"])
def test_ctrl_c_keeps_what_was_found(where, monkeypatch):
    calls = []

    def interrupted(*args, **options):
        calls.append(len(args[1]))
        if len(calls) == 2 and where == "between fits":
            raise KeyboardInterrupt
        fits = fit_many(*args, **options)
        if len(calls) == 2:
            codes = np.where(np.arange(len(fits)) < 4, fits.result._value, kx.Result.interrupted._value)
            fits = eqx.tree_at(lambda f: f.result._value, fits, codes)
        return fits

    fit_many = _search.fit_many
    monkeypatch.setattr(_search, "fit_many", interrupted)
    search = kx.search_kernel(kx.Data(*made(0)), **OPTIONS)
    assert len(calls) == 2
    assert search.ended == "interrupted"
    assert len(search.tried) == 3 + 4 * (where == "inside fits")
    assert search.best.value == pytest.approx(-search.tried[0].log_likelihood)


def test_the_table_prints_and_has_every_structure(search):
    table = search.table()
    assert len({len(column) for column in table.values()}) == 1
    assert table["bic"] == [one.score for one in search.tried]
    assert table["expression"][0] == "linear + periodic"
    assert sum(table["weight"]) == pytest.approx(1.0)
    words = repr(search)
    assert words.splitlines()[2].startswith("linear + periodic")
    assert f"and {len(search.tried) - 10} more" in words
    # The best structure in words, with a sentence for each summand.
    assert "\nbest: linear + periodic\n" in words
    assert words.endswith("\n".join(f"  {sentence}" for sentence in search.describe()))
    assert any(sentence.startswith("A straight line explains") for sentence in search.describe())
    assert any("repeats every 1.7 " in sentence for sentence in search.describe())
    assert "periodic.period" in str(kx.report(search.best))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_changes_reach_every_structure(depth):
    """All sums of products of at most `depth` factors, without those that say the same as a smaller one."""
    has_parameters = [False, True, True]
    reached = {change.structure for change in first_structures(3)}
    waiting = list(reached)
    while waiting:
        for change in changes(waiting.pop(), has_parameters, depth):
            if change.structure not in reached:
                reached.add(change.structure)
                waiting.append(change.structure)
    products = [p for size in range(1, depth + 1) for p in itertools.combinations_with_replacement(range(3), size)]
    products = [p for p in products if p.count(1) < 2 and p.count(2) < 2]
    sums = (s for size in range(1, depth + 1) for s in itertools.combinations_with_replacement(products, size))
    wanted = {
        tuple(sorted(s)) for s in sums if sum(map(len, s)) <= depth and all(s.count(p) == 1 for p in s if set(p) == {0})
    }
    assert reached == wanted


def test_columns_are_chosen_in_float32():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=40)).astype(np.float32)
    search = kx.search_kernel(kx.Data(x, y), depth=2, beam=1, starts=1)
    assert search.tried[0].expression == "rbf[0] + linear[1]"
    assert search.best.model.noise.dtype == search.predict(x[:3]).mean.dtype == jnp.float32


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"by": "aic"}, ValueError, 'by must be "bic" or "loo"'),
        ({"base": []}, ValueError, "at least one"),
        ({"base": kx.RBF()}, TypeError, "a list of kernels"),
        ({"base": {"rbf": kx.RBF}}, TypeError, "'rbf' is not a kernel"),
        ({"base": [kx.CubicSpline()]}, ValueError, "spline"),
        ({"depth": 0}, ValueError, "depth"),
        ({"starts": 0}, ValueError, "starts"),
        ({"periods": [-1.0]}, ValueError, "positive numbers"),
    ],
)
def test_bad_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        kx.search_kernel(kx.Data(*made(0)), **options)


def test_data_without_an_answer_is_an_error():
    with pytest.raises(ValueError, match="there is no dataset"):
        kx.search_kernel_many([])
    with pytest.raises(ValueError, match="no structure could be fitted: empty"):
        kx.search_kernel(kx.Data(*made(0), np.zeros(ROWS, bool)), **OPTIONS)
