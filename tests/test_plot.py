"""Pictures: each is drawn into the Axes it is given, with the numbers that kernax computes."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

import kernax as kx
from kernax import plot

RIDGES = np.geomspace(1e-6, 1e2, 25)
ROWS = np.arange(24) < 20


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3, 3, size=24))[:, None]
    return kx.Data(x, np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=24), mask=ROWS)


@pytest.fixture(scope="module")
def model():
    return kx.Model(1.0 * kx.RBF(lengthscale=0.7), noise=0.09)


@pytest.fixture(scope="module")
def c(model, data):
    return kx.condition(model, data, kx.Eigh())


@pytest.fixture(scope="module")
def two_outputs(model, data):
    return kx.condition(model, kx.Data(data.x, jnp.stack([data.y, jnp.cos(data.x[:, 0])], axis=1), mask=ROWS))


@pytest.fixture(scope="module")
def table(model, data):
    return kx.compare_selectors(model, data, ridges=RIDGES, folds=5, verbose=False)


@pytest.fixture
def ax():
    """Axes of a figure that pyplot knows; nothing else may reach pyplot, and no setting may change."""
    before = dict(mpl.rcParams)
    figure, axes = plt.subplots()
    yield axes
    assert plt.get_fignums() == [figure.number]
    plt.close(figure)
    figure.canvas.draw()
    assert dict(mpl.rcParams) == before


def line_through(ax, x, y):
    """Whether a line of the picture goes through these points, in their order."""
    wanted = np.column_stack([x, y])
    shapes = [line.get_xydata() for line in ax.lines]
    return any(shape.shape == wanted.shape and np.allclose(shape, wanted, equal_nan=True) for shape in shapes)


def legend_texts(ax):
    return " | ".join(text.get_text() for text in ax.get_legend().get_texts())


# ---------------------------------------------------------------------------------------------------------- the L-curve


def test_l_curve_draws_the_norms_and_marks_the_corner(c, ax):
    curve = kx.l_curve(c, RIDGES)
    assert plot.l_curve(curve, ax=ax) is ax
    path = kx.ridge_path(c, RIDGES)
    assert line_through(ax, path.residual_norm, path.rkhs_norm)
    here = kx.recondition(c, noise=curve.corner)
    residual = jnp.linalg.norm(here.model.noise * here.alpha)
    assert line_through(ax, [residual], [kx.posterior.rkhs_norm(here)])
    assert f"ridge {float(curve.corner):.3g}" in legend_texts(ax)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    # The line itself passes through the corner, between the points of the grid.
    line = max((line.get_xydata() for line in ax.lines), key=len)
    assert len(line) == len(RIDGES) + 1
    assert np.all(np.diff(line[:, 0]) > 0)


@pytest.mark.parametrize("ridges", [[1e-3, 1e-2], [0.0, 1e-2, 1e-1], [0.5]])
def test_an_l_curve_without_a_corner_says_so(c, ax, ridges):
    plot.l_curve(kx.l_curve(c, ridges, throw=False), ax=ax)
    assert "no corner" in legend_texts(ax)


# ------------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize("by", ["loo", "gcv", "kfold", "likelihood", "l_curve", "discrepancy"])
def test_a_choice_is_its_curve_with_its_ridge_marked(table, ax, by):
    choice = table[by]
    assert plot.ridge_choice(choice, ax=ax) is ax
    assert line_through(ax, RIDGES, choice.values)
    assert line_through(ax, [choice.ridge], [choice.value])
    assert f"ridge {float(choice.ridge):.3g}" in legend_texts(ax)
    low, high = ax.get_ylim()
    assert low < float(choice.value) < high
    assert ax.get_xlabel()
    assert ax.get_ylabel()


def test_the_discrepancy_principle_shows_the_noise(table, model, ax):
    plot.ridge_choice(table["discrepancy"], ax=ax)
    assert any(np.allclose(line.get_ydata(), float(model.noise)) for line in ax.lines)
    assert f"{float(model.noise):.3g}" in legend_texts(ax)


def test_a_choice_without_a_ridge_is_drawn_and_named(model, data, ax):
    choice = kx.select_ridge(model, data, "discrepancy", noise_variance=100.0, ridges=RIDGES, throw=False)
    plot.ridge_choice(choice, ax=ax)
    assert line_through(ax, RIDGES, choice.values)
    assert "no root" in legend_texts(ax)


def test_a_choice_at_the_end_of_the_grid_says_so(model, data, ax):
    choice = kx.select_ridge(model, data, "gcv", ridges=RIDGES[-5:])
    plot.ridge_choice(choice, ax=ax)
    assert line_through(ax, [RIDGES[-5]], [choice.value])
    assert "at edge" in legend_texts(ax)


def test_ridge_0_has_a_place_on_the_axis(model, data, ax):
    ridges = np.concatenate([[0.0], RIDGES])
    plot.ridge_choice(kx.select_ridge(model, data, "loo", ridges=ridges), ax=ax)
    assert ax.get_xscale() == "symlog"
    left, right = ax.transData.transform([(0.0, 1.0), (RIDGES[0], 1.0)])[:, 0]
    assert np.isfinite(left)
    assert left < right - 5
    assert 0.0 in ax.get_xticks()


def test_a_likelihood_that_falls_without_end_leaves_the_minimum_visible(model, data, ax):
    choice = kx.select_ridge(model, data, "likelihood", ridges=np.geomspace(1e-9, 1e2, 40))
    assert np.ptp(np.asarray(choice.values)) > 1e4
    plot.ridge_choice(choice, ax=ax)
    low, high = ax.get_ylim()
    assert low < float(choice.value) < high < 1e4


def test_all_choices_side_by_side(table):
    axes = plot.ridge_choices(table)
    assert axes.shape == (6,)
    assert [ax.get_title() for ax in axes] == list(table)
    for ax, choice in zip(axes, table.values(), strict=True):
        assert line_through(ax, [choice.ridge], [choice.value])
    assert len(axes[0].figure.axes) == 6
    plt.close(axes[0].figure)

    figure, given = plt.subplots(2, 4)
    returned = plot.ridge_choices(table, axes=given)
    assert list(returned) == list(given.ravel()[:6])
    with pytest.raises(ValueError, match="only 2 Axes"):
        plot.ridge_choices(table, axes=given[0, :2])
    plt.close(figure)

    few = {"loo": table["loo"], "gcv": table["gcv"], "kfold": table["kfold"], "l_curve": table["l_curve"]}
    axes = plot.ridge_choices(few)
    assert len(axes[0].figure.axes) == len(axes) == 4
    plt.close(axes[0].figure)


# --------------------------------------------------------------------------------------------------------- leave one out


@pytest.mark.parametrize("against", ["mean", "index"])
def test_residuals_with_their_bars_and_the_outliers_ringed(c, ax, against):
    assert plot.residuals(c, against=against, ax=ax) is ax
    residuals = np.asarray(kx.loo_residuals(c))[ROWS]
    places = np.asarray(kx.loo_mean(c))[ROWS] if against == "mean" else np.flatnonzero(ROWS)
    reach = 2 * np.sqrt(np.asarray(kx.loo_variance(c, noisy=True))[ROWS])
    outside = np.abs(residuals) > reach
    assert outside.any()
    assert line_through(ax, places, residuals)
    assert line_through(ax, places[outside], residuals[outside])
    bars = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(bars, np.stack([np.stack([places, -reach], 1), np.stack([places, reach], 1)], 1))
    assert f"{outside.sum()} of 20 outside" in legend_texts(ax)


def test_residuals_of_every_output(two_outputs, ax):
    plot.residuals(two_outputs, ax=ax)
    for j in range(2):
        assert line_through(ax, kx.loo_mean(two_outputs)[ROWS, j], kx.loo_residuals(two_outputs)[ROWS, j])
    assert "output 1" in legend_texts(ax)


# ------------------------------------------------------------------------------------------------------------- posterior


def band_of(ax, j=0):
    """Lower and upper edge of a band, by increasing place."""
    corners = ax.collections[j].get_paths()[0].vertices
    places = np.unique(corners[:, 0])
    return np.array([[corners[corners[:, 0] == p, 1].min(), corners[corners[:, 0] == p, 1].max()] for p in places]).T


@pytest.mark.parametrize("noisy", [False, True])
def test_posterior_mean_band_and_data(c, ax, noisy):
    places = np.linspace(-4, 4, 30)
    assert plot.posterior(c, places[::-1], noisy=noisy, level=0.6827, ax=ax) is ax
    mean, variance = kx.predict(c, places[:, None], noisy=noisy)[:2]
    assert line_through(ax, places, mean)
    assert line_through(ax, np.asarray(c.data.x)[ROWS, 0], np.asarray(c.data.y)[ROWS])
    np.testing.assert_allclose(band_of(ax), np.stack([mean - variance**0.5, mean + variance**0.5]), rtol=1e-3, atol=1e-4)
    assert ("new observations" in legend_texts(ax)) == noisy


def test_posterior_samples_and_default_places(c, ax):
    key = jax.random.key(3)
    plot.posterior(c, num_samples=2, key=key, ax=ax)
    places = max((line.get_xdata() for line in ax.lines), key=len)
    known = np.asarray(c.data.x)[ROWS, 0]
    assert places[0] < known.min()
    assert places[-1] > known.max()
    assert np.ptp(places) < 1.5 * np.ptp(known)
    for draw in kx.sample(c, places[:, None], key=key, num_samples=2):
        assert line_through(ax, places, draw)


def test_posterior_of_every_output(two_outputs, ax):
    places = np.linspace(-3, 3, 10)[:, None]
    plot.posterior(two_outputs, places, num_samples=1, key=jax.random.key(0), ax=ax)
    for j in range(2):
        assert line_through(ax, places[:, 0], kx.mean(two_outputs, places)[:, j])
        assert line_through(ax, np.asarray(two_outputs.data.x)[ROWS, 0], np.asarray(two_outputs.data.y)[ROWS, j])
    assert len(ax.collections) == 2


def test_posterior_of_one_point(model, ax):
    plot.posterior(kx.condition(model, kx.Data([[1.0]], [2.0])), ax=ax)
    assert np.ptp(max((line.get_xdata() for line in ax.lines), key=len)) > 0


def test_what_is_drawn_later_is_still_fitted_into_the_picture(c, ax):
    plot.posterior(c, ax=ax)
    ax.plot([0.0], [50.0], "x")
    assert ax.get_ylim()[1] > 50


# ------------------------------------------------------------------------------------------------------------------ Gram


def test_gram_of_a_matrix_a_kernel_a_model_and_a_conditioned(c, model, data):
    matrix = np.asarray(model.kernel(data.x[:20]))
    for of, x in ((matrix, None), (model.kernel, data.x[:20]), (model, data.x[:20]), (c, None), (c, data.x[:20])):
        figure, ax = plt.subplots()
        assert plot.gram(of, x, ax=ax) is ax
        np.testing.assert_allclose(ax.images[0].get_array(), matrix, rtol=1e-12)
        assert len(figure.axes) == 2, "the picture and its colour bar"
        plt.close(figure)


def test_gram_takes_a_cross_gram_matrix(model, data, ax):
    plot.gram(model.kernel(data.x[:20], data.x[:3]), ax=ax)
    assert ax.images[0].get_array().shape == (20, 3)


# -------------------------------------------------------------------------------------------------------------- refusals


def test_without_axes_a_new_figure_is_made(c):
    for draw in (plot.posterior, plot.residuals, plot.gram, lambda c: plot.l_curve(kx.l_curve(c, RIDGES))):
        before = plt.get_fignums()
        ax = draw(c)
        assert len(plt.get_fignums()) == len(before) + 1
        plt.close(ax.figure)


def test_wrong_things_are_refused_by_name(c, model, data, table):
    for draw in (plot.l_curve, plot.ridge_choice, plot.ridge_choices, plot.residuals, plot.posterior):
        with pytest.raises(TypeError):
            draw(model)
    for draw, of in ((plot.residuals, c), (plot.posterior, c), (plot.gram, c), (plot.ridge_choice, table["loo"])):
        with pytest.raises(TypeError, match="one matplotlib Axes"):
            draw(of, ax=[1, 2])
    with pytest.raises(ValueError, match="against"):
        plot.residuals(c, against="time")
    with pytest.raises(ValueError, match="level"):
        plot.posterior(c, level=95)
    with pytest.raises(ValueError, match=r"jax\.random\.key"):
        plot.posterior(c, num_samples=3)
    with pytest.raises(ValueError, match=r"\(m,\) or \(m, 1\)"):
        plot.posterior(c, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="points to compare"):
        plot.gram(model.kernel)
    with pytest.raises(ValueError, match="x is for kernels only"):
        plot.gram(np.eye(3), data.x)
    with pytest.raises(TypeError, match="a matrix, a kernel"):
        plot.gram("kernel")
    assert not plt.get_fignums(), "a refusal leaves no empty figure behind"


def test_several_input_columns_are_refused(model):
    wide = kx.condition(model, kx.Data(np.eye(3), np.arange(3.0)))
    with pytest.raises(ValueError, match=r"one input column.*\(3, 3\)"):
        plot.posterior(wide)


def test_what_failed_is_not_drawn(model, data):
    failed = kx.condition(model, kx.Data(data.x, data.y, mask=np.zeros(24, bool)), throw=False)
    for draw in (plot.posterior, plot.residuals, plot.gram):
        with pytest.raises(ValueError, match="empty"):
            draw(failed)


def test_batches_are_refused(model, data):
    noises = jnp.array([0.1, 0.2])

    def conditioned(noise):
        return kx.condition(eqx.tree_at(lambda m: m.noise, model, noise), data, kx.Eigh())

    def choice(noise):
        return kx.select_ridge(conditioned(noise).model, data, "gcv", ridges=RIDGES)

    batch = jax.vmap(conditioned)(noises)
    for draw in (plot.posterior, plot.residuals, plot.gram):
        with pytest.raises(ValueError, match=r"batch of shape \(2,\)"):
            draw(batch)
    with pytest.raises(ValueError, match=r"batch of shape \(2,\)"):
        plot.ridge_choice(jax.vmap(choice)(noises))
    with pytest.raises(ValueError, match=r"batch of shape \(2,\)"):
        plot.l_curve(jax.vmap(lambda noise: kx.l_curve(conditioned(noise), RIDGES))(noises))
    with pytest.raises(ValueError, match="one matrix at a time"):
        plot.gram(np.zeros((2, 3, 3)))
    plt.close(plot.posterior(jax.tree.map(lambda leaf: leaf[1], batch)).figure)


def test_traced_numbers_are_refused(model, data):
    def drawn(noise):
        plot.posterior(kx.condition(eqx.tree_at(lambda m: m.noise, model, noise), data))
        return noise

    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(drawn)(0.1)


# --------------------------------------------------------------------------------------------------------------- imports


def test_matplotlib_is_imported_only_where_it_is_needed():
    """`import kernax` leaves it alone, without it the error names the extra, and axes of one's own need no pyplot."""
    code = """
import sys, kernax
assert not [name for name in sys.modules if name.split(".")[0] == "matplotlib"]

sys.modules["matplotlib"] = None
try:
    from kernax import plot
except ImportError as error:
    assert "kernax.plot draws with matplotlib: pip install matplotlib" in str(error), error
else:
    raise AssertionError("kernax.plot came without matplotlib")

del sys.modules["matplotlib"]
import numpy as np
from matplotlib.figure import Figure
from kernax import plot
plot.gram(np.eye(3), ax=Figure().subplots())
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_of_many_rows_some_are_drawn_and_all_are_counted(c, ax, monkeypatch):
    monkeypatch.setattr("kernax.plot._canvas.MOST_DOTS", 7)
    plot.posterior(c, ax=ax)
    dots = ax.get_lines()[-1]
    assert len(dots.get_xdata()) == 7
    assert dots.get_label() == "data (7 of 20 rows)"
    ax.clear()
    plot.residuals(c, ax=ax)
    assert len(ax.get_lines()[1].get_xdata()) == len(ax.collections[0].get_segments()) == 7
    assert "of 20 outside" in ax.get_lines()[1].get_label()


def test_each_task_is_drawn_with_its_own_data():
    rng = np.random.default_rng(4)
    x, y = rng.uniform(0, 3, size=(9, 1)), rng.normal(size=(9, 2))
    y[2:5, 1] = np.nan
    model = kx.Model(kx.kernels.ICM(kx.RBF(0.6), 2), kx.noises.PerGroup("task", [0.1, 0.4]))
    c = kx.condition(model, kx.data.long(x, y))
    panels = plot.tasks(c, noisy=True, names=["wet", "dry"])
    assert [panel.get_ylabel() for panel in panels] == ["wet", "dry"]
    for j, panel in enumerate(panels):
        mean, dots = panel.get_lines()
        places, values = mean.get_data()
        rows = {"x": jnp.asarray(places)[:, None], "task": jnp.full(400, j)}
        np.testing.assert_allclose(values, kx.mean(c, rows), rtol=1e-6, atol=1e-9)
        seen = ~np.isnan(y[:, j])
        np.testing.assert_array_equal(np.stack(dots.get_data()), np.stack([x[seen, 0], y[seen, j]]))
        edge = panel.collections[0].get_paths()[0].vertices
        width = 1.959964 * np.sqrt(kx.variance(c, rows, noisy=True))
        np.testing.assert_allclose(edge[:, 1].max(), np.max(values + width), rtol=1e-5)
    plt.close("all")
    grid = kx.Data(kx.Grid({"x": x, "task": np.arange(2)}), rng.normal(size=(9, 2)))
    mine = plt.subplots(2, 1)[1]
    c = kx.condition(kx.Model(model.kernel, 0.1), grid, kx.Kronecker())
    assert plot.tasks(c, x=[0.0, 1.0], ax=list(mine)) == list(mine)
    plt.close("all")
    for ask, error, words in (
        (lambda: plot.tasks(c, ax=list(mine)[:1]), ValueError, "2 tasks: give as many axes"),
        (lambda: plot.tasks(c, names=["one"]), ValueError, "2 tasks: give as many names"),
        (lambda: plot.tasks(c, level=1.0), ValueError, "level must be between 0 and 1"),
        (lambda: plot.tasks(kx.condition(kx.Model(kx.RBF(), 0.1), kx.Data(x, y[:, 0]))), TypeError, "need a kernel with"),
    ):
        with pytest.raises(error, match=words):
            ask()
    wide = kx.condition(model, kx.data.long(np.concatenate([x, x], axis=1), y))
    with pytest.raises(ValueError, match="tasks are drawn over one input column"):
        plot.tasks(wide)
