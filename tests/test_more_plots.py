"""Pictures of how well a model predicts, of what it depends on and of how it was fitted, against numbers computed here."""

import re
import warnings
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.dom import minidom

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.dates import num2date

import kernax as kx
from kernax import plot

ROWS = np.arange(24) < 20
NOISE, SCALE = 0.09, 0.7


@pytest.fixture(autouse=True)
def _no_figures_are_left():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3, 3, size=24))[:, None]
    data = kx.Data(x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=24), mask=ROWS)
    return kx.fit(kx.Model(1.0 * kx.RBF(lengthscale=SCALE), noise=NOISE), data, restarts=2, key=jax.random.key(1))


@pytest.fixture(scope="module")
def wide():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 3))
    data = kx.Data(x, np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=30))
    return kx.fit(kx.Model(1.0 * kx.RBF(jnp.array([1.0, 2.0, 3.0])), noise=0.1), data)


def rbf(model, a, b):
    """The matrix of a scaled RBF kernel, by its formula."""
    scale = np.asarray(model.kernel.kernel.lengthscale)
    distances = (((a[:, None] - b[None]) / scale) ** 2).sum(axis=2)
    return float(model.kernel.variance) * np.exp(-0.5 * distances)


def refits(fit):
    """Observed, expected and standard deviation of each row that counts: predicted by a model without it."""
    rows = np.asarray(fit.data.mask)
    x, y, noise = np.asarray(fit.data.x)[rows], np.asarray(fit.data.y)[rows], float(fit.model.noise)
    expected, sd = np.empty(len(y)), np.empty(len(y))
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        covariance = rbf(fit.model, x[rest], x[rest]) + noise * np.eye(len(y) - 1)
        cross = rbf(fit.model, x[[i]], x[rest])[0]
        expected[i] = cross @ np.linalg.solve(covariance, y[rest])
        sd[i] = np.sqrt(rbf(fit.model, x[[i]], x[[i]])[0, 0] + noise - cross @ np.linalg.solve(covariance, cross))
    return y, expected, sd


def line(ax, label):
    """The points of the line whose label begins so."""
    (found,) = [one for one in ax.lines if str(one.get_label()).startswith(label)]
    return found.get_xydata()


def texts(ax):
    return " | ".join(text.get_text() for text in ax.get_legend().get_texts())


def test_predicted_and_observed_are_those_of_refits(fit):
    y, expected, sd = refits(fit)
    ax = plot.predicted_observed(fit, target="level")
    np.testing.assert_allclose(line(ax, "RMSE"), np.column_stack([expected, y]), rtol=1e-6, atol=1e-8)
    bars = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(bars[:, 0, 0], expected - 1.959964 * sd, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(bars[:, 1], np.column_stack([expected + 1.959964 * sd, y]), rtol=1e-5, atol=1e-7)
    rmse = np.sqrt(np.mean((y - expected) ** 2))
    assert f"RMSE {rmse:.3g}, R² {1 - rmse**2 / np.var(y):.3f}" in texts(ax)
    assert ax.get_xlabel().startswith("level, predicted")


def test_calibration_counts_the_rows_inside(fit):
    y, expected, sd = refits(fit)
    ax = plot.calibration(fit)
    levels, shares = line(ax, "calibrated").T
    by_count = [np.mean(np.abs(y - expected) <= stats.norm.interval(level)[1] * sd) for level in levels]
    np.testing.assert_allclose(shares, by_count)
    wrong = kx.recondition(kx.condition(fit.model, fit.data, kx.Eigh()), noise=40 * fit.model.noise)
    assert "too wide, by up to" in texts(plot.calibration(wrong))


def test_a_qq_plot_has_sorted_residuals_within_the_band_of_order_statistics(fit):
    y, expected, sd = refits(fit)
    ax = plot.residuals(fit, against="normal")
    x, z = line(ax, "rows").T
    np.testing.assert_allclose(z, np.sort((y - expected) / sd), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(x, stats.norm.ppf((np.arange(20) + 0.5) / 20))
    draws = np.sort(np.random.default_rng(0).normal(size=(20_000, 20)), axis=1)
    edge = ax.collections[0].get_paths()[0].vertices
    for i in (0, 10):
        own = edge[np.isclose(edge[:, 0], x[i]), 1]
        np.testing.assert_allclose([own.min(), own.max()], np.quantile(draws[:, i], (0.025, 0.975)), atol=0.05)


def test_the_autocorrelation_is_compared_with_what_the_model_itself_gives():
    """The line and the band are those of many datasets drawn from the model, by dense formulas."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 12, size=60))[:, None]
    covariance = np.exp(-0.5 * (x - x.T) ** 2) + 0.2 * np.eye(60)
    inverse = np.linalg.inv(covariance)
    draws = np.linalg.cholesky(covariance) @ rng.normal(size=(60, 4000))
    z = (inverse @ draws) / np.sqrt(np.diag(inverse))[:, None]
    square = np.sum(z**2, axis=0)
    simulated = np.array([np.sum(z[h:] * z[:-h], axis=0) / square for h in range(1, 9)])

    shuffled = rng.permutation(60)
    c = kx.condition(kx.Model(1.0 * kx.RBF(1.0), noise=0.2), kx.Data(x[shuffled], draws[shuffled, 0]))
    ax = plot.residuals(c, against="lag", lags=8)
    np.testing.assert_allclose(line(ax, "residuals"), np.column_stack([np.arange(1, 9), simulated[:, 0]]), atol=1e-6)
    expected = line(ax, "what the model expects")[:, 1]
    np.testing.assert_allclose(expected, simulated.mean(axis=1), atol=0.03)
    edge = ax.collections[0].get_paths()[0].vertices
    for h in range(8):
        own = edge[np.isclose(edge[:, 0], h + 1), 1]
        assert np.mean((simulated[h] > own.min()) & (simulated[h] < own.max())) == pytest.approx(0.95, abs=0.03)


def test_the_trace_is_the_history_with_its_running_minimum(fit):
    ax = plot.trace(fit, objective="nats")
    values = np.asarray(fit.history)
    best = line(ax, "best so far")
    np.testing.assert_allclose(best[:, 1], [min(values[: i + 1]) for i in range(len(values))])
    assert best[-1, 1] == pytest.approx(float(fit.value))
    np.testing.assert_allclose(line(ax, "ends of 3 starts")[:, 1], fit.start_values)
    with pytest.raises(ValueError, match="keep none"):
        plot.trace(kx.fit_many(fit.model, [fit.data], max_steps=2)[0])
    with pytest.raises(TypeError, match=r"Fit from kx\.fit"):
        plot.trace(fit.model)


def test_sensitivity_has_inverse_lengthscales_and_intervals_of_the_likelihoods_curvature(wide):
    x, y = np.asarray(wide.data.x), np.asarray(wide.data.y)
    kernel = wide.model.kernel

    def negative_log_likelihood(theta):
        inverse, (variance, noise) = theta[:3], np.exp(theta[3:])
        distances = (((x[:, None] - x[None]) * inverse) ** 2).sum(axis=2)
        covariance = variance * np.exp(-0.5 * distances) + noise * np.eye(30)
        return -stats.multivariate_normal(np.zeros(30), covariance).logpdf(y)

    s = 1 / np.asarray(kernel.kernel.lengthscale)
    theta = np.concatenate([s, np.log([float(kernel.variance), float(wide.model.noise)])])
    step, eye = 1e-3, np.eye(5)
    hessian = np.empty((5, 5))
    for i in range(5):
        for j in range(5):
            corners = [(a, b, a * b) for a in (-1, 1) for b in (-1, 1)]
            parts = [sign * negative_log_likelihood(theta + step * (a * eye[i] + b * eye[j])) for a, b, sign in corners]
            hessian[i, j] = sum(parts) / (4 * step**2)
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))[:3]

    ax = plot.sensitivity(wide, columns=["a", "b", "c"])
    spread = np.std(x, axis=0)
    order = np.argsort(-s * spread)
    assert [text.get_text() for text in ax.get_yticklabels()] == [["a", "b", "c"][i] for i in order]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], (s * spread)[order], rtol=1e-6)
    ends = np.array(ax.collections[0].get_segments())[:, :, 0]
    low, high = np.maximum(s - 1.959964 * errors, 0.0) * spread, (s + 1.959964 * errors) * spread
    np.testing.assert_allclose(ends, np.column_stack([low, high])[order], rtol=0.01, atol=1e-3)


def test_sensitivity_draws_any_table_of_indices():
    table = {"column": ["age", "$ pay"], "first": [0.2, 0.5], "first_lower": [0.1, 0.4], "first_upper": [0.3, 0.6]}
    table["total"] = [0.3, 0.7]
    ax = plot.sensitivity(table)
    assert [bar.get_width() for bar in ax.patches] == [0.5, 0.2, 0.7, 0.3]
    np.testing.assert_allclose(np.array(ax.collections[0].get_segments())[:, :, 0], [[0.4, 0.6], [0.1, 0.3]])
    assert texts(ax) == "first | total"

    class Indices:
        def table(self):
            return {"name": ["x"], "index": [0.4]}

    assert plot.sensitivity(Indices()).patches[0].get_width() == 0.4
    ends = SimpleNamespace(lower=jnp.array([0.1, 0.3]), upper=jnp.array([0.3, 0.5]))
    first, total = jnp.array([0.2, 0.4]), jnp.array([0.5, 0.6])
    sobol = SimpleNamespace(columns=("a", "b"), first=first, first_interval=ends, total=total, total_interval=None)
    ax = plot.sensitivity(sobol)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], [0.4, 0.2, 0.6, 0.5], rtol=1e-6)
    np.testing.assert_allclose(np.array(ax.collections[0].get_segments())[:, :, 0], [[0.3, 0.5], [0.1, 0.3]], rtol=1e-6)
    assert texts(ax) == "first-order | total"
    with pytest.raises(ValueError, match="one column of names"):
        plot.sensitivity({"first": [0.1]})
    with pytest.raises(TypeError, match="a dict of columns"):
        plot.sensitivity(3)


def test_partial_dependence_at_medians_and_on_average(wide):
    x, y, noise = np.asarray(wide.data.x), np.asarray(wide.data.y), float(wide.model.noise)
    covariance = rbf(wide.model, x, x) + noise * np.eye(30)
    places = np.array([-1.0, 0.2, 1.5])

    def posterior(points):
        cross = rbf(wide.model, points, x)
        joint = rbf(wide.model, points, points) - cross @ np.linalg.solve(covariance, cross.T)
        return cross @ np.linalg.solve(covariance, y), joint

    points = np.repeat(np.median(x, axis=0)[None], 3, axis=0)
    points[:, 1] = places
    mean, joint = posterior(points)
    ax = plot.partial_dependence(wide, "b", places, columns=["a", "b", "c"])
    np.testing.assert_allclose(line(ax, "mean"), np.column_stack([places, mean]), rtol=1e-6, atol=1e-8)
    for band, variance in zip(ax.collections, (np.diag(joint) + noise, np.diag(joint)), strict=True):
        top = [band.get_paths()[0].vertices[:, 1][band.get_paths()[0].vertices[:, 0] == place].max() for place in places]
        np.testing.assert_allclose(top, mean + 1.959964 * np.sqrt(variance), rtol=1e-5, atol=1e-7)
    assert ax.get_xlabel() == "b"

    ax = plot.partial_dependence(wide, 1, places, others="average")
    averages = []
    for place in places:
        points = x.copy()
        points[:, 1] = place
        mean, joint = posterior(points)
        averages.append((mean.mean(), np.sqrt(joint.mean())))
    averages = np.array(averages)
    np.testing.assert_allclose(line(ax, "mean")[:, 1], averages[:, 0], rtol=1e-6, atol=1e-8)
    edge = ax.collections[0].get_paths()[0].vertices
    low = [edge[edge[:, 0] == place, 1].min() for place in places]
    np.testing.assert_allclose(low, averages[:, 0] - 1.959964 * averages[:, 1], rtol=1e-4, atol=1e-6)

    # The dots are the curve at each row plus its leave-one-out residual.
    observed, expected, _ = refits(wide)
    points = np.repeat(np.median(x, axis=0)[None], 30, axis=0)
    points[:, 1] = x[:, 1]
    ax = plot.partial_dependence(wide, 1)
    wanted = np.column_stack([x[:, 1], posterior(points)[0] + observed - expected])
    np.testing.assert_allclose(line(ax, "curve + residual"), wanted, rtol=1e-6, atol=1e-7)


def test_partial_dependence_of_a_category_in_the_units_of_a_table():
    rng = np.random.default_rng(3)
    kind, x = rng.integers(0, 3, size=30), rng.uniform(0, 1, size=(30, 1))
    y = np.array([-1.0, 0.0, 2.0])[kind] + 0.1 * rng.normal(size=30)
    kernel = kx.kernels.Categorical("kind", ("a", "b", "c")) * kx.kernels.Select(kx.RBF(), key="t")
    c = kx.condition(kx.Model(kernel, noise=0.01), kx.Data({"kind": kind, "t": x}, y))
    ax = plot.partial_dependence(c, "kind")
    rows = {"kind": np.arange(3), "t": np.full((3, 1), np.median(x))}
    np.testing.assert_allclose(line(ax, "mean")[:, 1], kx.mean(c, rows), rtol=1e-6)

    class Day:
        name, label, centre, scale, is_date = "day", "day (days since 2020)", 10.0, 4.0, True

        def times(self, values):
            return (np.asarray(values) * 86_400e6).astype("M8[us]")

    class Price:
        name = label = "price"
        centre, scale, is_date = 100.0, 20.0, False

    c = kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(x, y))
    ax = plot.partial_dependence(c, columns=[Day()], target=Price())
    dots = line(ax, "data")
    np.testing.assert_allclose(dots[:, 1], 100 + 20 * y)
    assert num2date(dots[0, 0]).timestamp() == pytest.approx((10 + 4 * x[0, 0]) * 86_400, abs=1.0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("day", "price")


def test_a_surface_is_the_posterior_over_two_columns(wide):
    rng = np.random.default_rng(0)
    ax = plot.surface(wide, 0, 2, num=12)
    c = kx.condition(wide.model, wide.data)
    dots = ax.collections[-1]
    np.testing.assert_allclose(dots.get_offsets(), np.asarray(wide.data.x)[:, [0, 2]])
    np.testing.assert_allclose(dots.get_array(), wide.data.y)
    # Every filled level lies where the mean has its values.
    filled = ax.collections[0]
    low, high = ax.get_xlim(), ax.get_ylim()
    fine = plot.surface(wide, 0, 2, num=80).collections[0]
    checked = 0
    for point in rng.uniform((low[0], high[0]), (low[1], high[1]), size=(40, 2)):
        (inside,) = [k for k, path in enumerate(fine.get_paths()) if path.contains_point(point)] or [None]
        row = np.median(np.asarray(wide.data.x), axis=0)
        row[[0, 2]] = point
        value = float(kx.mean(c, row[None])[0])
        if inside is not None:
            bounds = fine.levels[inside : inside + 2]
            assert bounds[0] - 0.02 < value < bounds[1] + 0.02
            checked += 1
    assert checked > 30
    assert len(filled.get_paths()) == len(filled.levels) - 1
    with pytest.raises(ValueError, match="two different columns"):
        plot.surface(wide, 1, 1)
    with pytest.raises(ValueError, match="no column 'z'"):
        plot.surface(wide, "z")


def test_a_kernel_is_its_formula_and_draws_from_its_prior(fit):
    places = np.linspace(-2, 2, 9)
    left, right = plot.kernel(kx.Matern12(0.5), places, at=[0.0], num_samples=2, key=jax.random.key(3))
    np.testing.assert_allclose(line(left, "$x_0$"), np.column_stack([places, np.exp(-np.abs(places) / 0.5)]), rtol=1e-6)
    draws = kx.sample(kx.Model(kx.Matern12(0.5), noise=0.0), places[:, None], key=jax.random.key(3), num_samples=2)
    np.testing.assert_allclose([one.get_ydata() for one in right.lines], draws)
    (alone,) = plot.kernel(fit, num_samples=0)
    known = np.asarray(fit.data.x)[ROWS, 0]
    assert alone.lines[1].get_xdata().min() < known.min()
    with pytest.raises(ValueError, match="2 panels"):
        plot.kernel(kx.RBF(), ax=[alone])


def test_many_fits_are_drawn_worst_first(fit):
    rng = np.random.default_rng(5)
    x = np.linspace(0, 4, 15)[:, None]
    sets = {f"{noise}": (x, np.sin(2 * x[:, 0]) + noise * rng.normal(size=15)) for noise in (0.05, 2.0, 0.5)}
    sets["gap"] = (x, np.full(15, np.nan))
    many = kx.fit_many(kx.Model(1.0 * kx.RBF(), noise=0.1), sets)
    panels = plot.fits(many, sets, number=3)
    assert panels[0].get_title().startswith("gap · ")
    errors = {name: np.asarray(kx.loo_mse(kx.condition(many[name].model, kx.Data(*sets[name])))) for name in ("2.0", "0.5")}
    for panel, name in zip(panels[1:], ("2.0", "0.5"), strict=True):
        y = sets[name][1]
        assert panel.get_title() == f"{name} · R² {1 - errors[name] / np.var(y):.2f}"
        np.testing.assert_allclose(panel.lines[0].get_xydata(), np.column_stack([x[:, 0], y]))
        at, mean = panel.lines[1].get_data()
        c = kx.condition(many[name].model, kx.Data(*sets[name]))
        np.testing.assert_allclose(mean, kx.mean(c, np.asarray(at)[:, None]), rtol=1e-5, atol=1e-6)
    named = plot.fits(many, sets, number=2, scores=[3.0, 1.0, 2.0, 0.0])
    assert [panel.get_title().split(" · ")[0] for panel in named] == ["gap", "0.05"]
    with pytest.raises(ValueError, match="4 fits and 1 datasets"):
        plot.fits(many, [(x, x[:, 0])])


def test_the_landscape_is_the_objective_with_the_ends_of_the_starts(fit):
    assert len(fit.start_models) == 3
    ends = [kx.selection.negative_log_marginal_likelihood(kx.condition(m, fit.data)) for m in fit.start_models]
    np.testing.assert_allclose(ends, fit.start_values, rtol=1e-8)
    ax = plot.landscape(fit, "lengthscale", "noise", num=15)
    wanted = [[float(m.kernel.kernel.lengthscale), float(m.noise)] for m in (fit.model, *fit.start_models)]
    np.testing.assert_allclose(line(ax, "fit"), wanted[:1])
    np.testing.assert_allclose(line(ax, "ends of 3 starts"), wanted[1:])
    assert ax.get_xscale() == ax.get_yscale() == "log"
    rows = np.asarray(fit.data.mask)
    x, y = np.asarray(fit.data.x)[rows], np.asarray(fit.data.y)[rows]

    def objective(scale, noise):
        covariance = float(fit.model.kernel.variance) * np.exp(-0.5 * ((x - x.T) / scale) ** 2) + noise * np.eye(len(y))
        return -stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)

    filled, (low, high), (bottom, top) = ax.collections[0], ax.get_xlim(), ax.get_ylim()
    lines = np.geomspace(low, high, 15), np.geomspace(bottom, top, 15)
    values = np.array([[objective(scale, noise) for scale in lines[0]] for noise in lines[1]])
    above = values - values.min()
    for i, j in ((3, 4), (7, 7), (12, 2), (5, 10)):
        point = (lines[0][j], lines[1][i])
        inside = [k for k, path in enumerate(filled.get_paths()) if path.contains_point(point)]
        near = np.searchsorted(filled.levels, above[i, j]) - 1
        assert near in {k + step for k in inside for step in (-1, 0, 1)}
    by_path = plot.landscape(fit, "kernel.kernel.lengthscale", "noise", num=15)
    assert by_path.get_xlabel() == ax.get_xlabel() == "rbf.lengthscale"
    with pytest.raises(ValueError, match="no parameter is called 'nois'"):
        plot.landscape(fit, "nois")


def test_components_are_the_posterior_of_each_summand():
    rng = np.random.default_rng(2)
    x, y, places = rng.uniform(-2, 2, 10), rng.normal(size=10), np.linspace(-2.5, 2.5, 6)
    c = kx.condition(kx.Model(1.3 * kx.RBF(0.7) + 0.4 * kx.Linear(), noise=NOISE), kx.Data(x[:, None], y))
    parts = {
        "1.3 * RBF": lambda a, b: 1.3 * np.exp(-0.5 * ((a[:, None] - b) / 0.7) ** 2),
        "0.4 * Linear": lambda a, b: 0.4 * np.outer(a, b),
    }
    A = sum(part(x, x) for part in parts.values()) + NOISE * np.eye(10)
    axes = plot.components(c, places, level=0.9)
    for ax, (name, part) in zip(axes, parts.items(), strict=True):
        cross = part(places, x)
        sd = np.sqrt(np.diag(part(places, places) - cross @ np.linalg.solve(A, cross.T)))
        drawn = line(ax, name)
        np.testing.assert_allclose(drawn, np.stack([places, cross @ np.linalg.solve(A, y)], axis=1), atol=1e-8)
        edge = ax.collections[0].get_paths()[0].vertices
        width = [np.ptp(edge[edge[:, 0] == place, 1]) for place in places]
        np.testing.assert_allclose(width, 2 * stats.norm.ppf(0.95) * sd, atol=1e-6)
    with pytest.raises(ValueError, match="the kernel has 2 summands: give as many axes"):
        plot.components(c, ax=axes[:1])
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        plot.components(c, level=90)


def test_pictures_of_a_fit_are_those_of_its_model_conditioned(fit):
    c = kx.condition(fit.model, fit.data)
    for draw in (plot.posterior, plot.components, plot.residuals):
        pair = [np.ravel(draw(of))[0] for of in (fit, c)]
        for ours, theirs in zip(pair[0].lines, pair[1].lines, strict=True):
            np.testing.assert_allclose(ours.get_xydata(), theirs.get_xydata())
    with pytest.raises(ValueError, match="does not hold its data"):
        plot.calibration(kx.fit_many(fit.model, [fit.data], max_steps=2)[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert plot.loo_residuals is plot.residuals
    assert "write kx.plot.residuals" in str(caught[0].message)


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)

    def all_of(self, name):
        return [value for key, value in self.attributes if key == name]


EVIL = '<img src=x onerror="alert(1)">'


def check_page(text):
    """A page that loads nothing, has no identifier twice and whose pictures are well-formed."""
    page = Page(text)
    assert not [source for source in page.all_of("src") + page.all_of("href") if not source.startswith("#")]
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    names = page.all_of("id")
    assert len(names) == len(set(names))
    assert {source[1:] for source in page.all_of("href")} <= set(names)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    pictures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    for picture in pictures:
        minidom.parseString(picture)
        assert "currentColor" in picture
        assert "#000000" not in picture
    assert set(re.findall(r"url\(#([\w.-]+)\)", text)) <= set(names)
    return page, pictures


def test_a_report_becomes_a_page_with_pictures_and_nothing_is_left_unescaped(wide):
    page, pictures = check_page(kx.report(wide, columns=["a & b", EVIL, "$c$"], target=EVIL).to_html())
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert len(pictures) == 4 + 1 + 3 + 1  # rows left out, sensitivity, columns, optimiser
    assert "".join(page.text).count(EVIL) >= 4
    assert "a & b" in page.text
    assert "<svg" not in kx.report(wide).to_html(pictures=False)


def test_the_page_of_many_fits_has_a_table_to_sort_and_search(fit):
    import base64
    import hashlib

    x = np.linspace(0, 4, 12)[:, None]
    many = kx.fit_many(fit.model, {EVIL: (x, np.sin(x[:, 0])), "b": (x, np.cos(x[:, 0]))})
    text = kx.report(many).to_html()
    page, pictures = check_page(text)
    assert len(pictures) == 3
    assert page.tags.count("script") == 1
    script = re.search(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.all_of("content")[0].replace("&#39;", "'")
    assert EVIL in page.text
    noises = [float(value) for value in page.all_of("data-v")]
    for value in np.asarray(many.model.noise):
        assert float(value) in noises
