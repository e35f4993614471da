"""What a report says of fits and of models that have seen data."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import kernax as kx
from kernax import learners

rng = np.random.default_rng(0)
N = 40
X = rng.uniform(-3, 3, size=(N, 3))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=N)
DATA = kx.Data(X, Y)
MODEL = kx.Model(1.0 * kx.RBF(lengthscale=jnp.ones(3)), noise=0.1)
FIT = kx.fit(MODEL, DATA)


def entries(report):
    return report.as_dict()["entries"]


def values(report):
    return {p["name"]: p["value"] for p in report.as_dict()["parameters"]}


def test_a_fit_is_told_with_its_scores():
    report = kx.report(FIT)
    found = entries(report)
    assert found["result"] == "successful"
    assert found["objective"] == pytest.approx(float(FIT.value))
    assert found["gradient"] == pytest.approx(float(FIT.gradient_norm))
    assert found["rows"] == N
    assert found["log marginal likelihood"] == pytest.approx(-float(FIT.value))
    text = str(report)
    for words in ("after", "evaluations", "condition number", "jitter", "leave-one-out R²", "rbf.lengthscale[0]"):
        assert words in text
    assert repr(report) == text


def test_left_out_scores_are_those_of_refits():
    """Each row left out in turn, in plain NumPy: residuals, variances, coverage and densities."""
    scale = np.asarray(FIT.model.kernel.kernel.lengthscale)
    z = X / scale
    gram = float(FIT.model.kernel.variance) * np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1))
    noise = float(FIT.model.noise)
    mean, sd = np.empty(N), np.empty(N)
    for i in range(N):
        others = np.arange(N) != i
        weights = np.linalg.solve(gram[np.ix_(others, others)] + noise * np.eye(N - 1), gram[others, i])
        mean[i], sd[i] = weights @ Y[others], np.sqrt(gram[i, i] - weights @ gram[others, i] + noise)
    found = entries(kx.report(FIT))
    assert found["leave-one-out RMSE"] == pytest.approx(np.sqrt(np.mean((Y - mean) ** 2)))
    assert found["leave-one-out R²"] == pytest.approx(1 - np.mean((Y - mean) ** 2) / np.var(Y))
    assert found["leave-one-out log density"] == pytest.approx(scipy.stats.norm.logpdf(Y, mean, sd).mean())
    for level in (0.5, 0.95):
        low, high = scipy.stats.norm.interval(level, mean, sd)
        assert found[f"in {100 * level:.0f} % intervals"] == pytest.approx(np.mean((low <= Y) & (high >= Y)))


def test_units_are_those_of_the_table():
    """The same numbers from standardised data and from the data themselves."""
    x_scales, y_scale = np.array([2.0, 5.0, 0.3]), 10.0
    model = kx.Model(
        2.0 * kx.RBF(lengthscale=np.array([1.0, 2.0, 3.0])) + kx.Linear(variance=np.array([0.1, 0.2, 0.3])), 0.2
    )
    raw = kx.Model(
        200.0 * kx.RBF(lengthscale=np.array([2.0, 10.0, 0.9]))
        + kx.Linear(variance=100 * np.array([0.1, 0.2, 0.3]) / x_scales**2),
        20.0,
    )
    names = ["time", "depth", "salt"]
    scaled = kx.report(kx.condition(model, DATA), columns=names, target="heat", scales=(x_scales, y_scale))
    direct = kx.report(kx.condition(raw, kx.Data(X * x_scales, Y * y_scale)), columns=names, target="heat")
    assert values(scaled) == pytest.approx(values(direct))
    for name in ("leave-one-out RMSE", "leave-one-out log density", "leave-one-out R²"):
        assert entries(scaled)[name] == pytest.approx(entries(direct)[name])
    units = {p.name: p.unit for p in scaled.parameters}
    assert units == {
        "rbf.lengthscale[time]": "time",
        "rbf.lengthscale[depth]": "depth",
        "rbf.lengthscale[salt]": "salt",
        "rbf.variance": "heat²",
        "linear.variance[time]": "heat²/time²",
        "linear.variance[depth]": "heat²/depth²",
        "linear.variance[salt]": "heat²/salt²",
        "noise": "heat²",
    }


def test_a_report_says_what_was_standardised():
    x_scales, y_scale = np.array([2.0, 5.0, 0.3]), 10.0
    c = kx.condition(MODEL, DATA)
    text = str(kx.report(c, target="heat"))
    assert "standardised" not in text
    assert "(density in 1/[heat] per row)" in text
    scaled = entries(kx.report(c, target="heat", scales=(x_scales, y_scale)))
    assert scaled["units"].startswith("the inputs and the target were standardised; ")
    only_target = kx.report(c, scales=(None, y_scale))
    assert entries(only_target)["units"].startswith("the target was standardised; ")
    assert values(only_target)["noise"] == pytest.approx(100 * 0.1)
    assert {p.name: p.unit for p in only_target.parameters}["rbf.lengthscale[0]"] == "x[0]"


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_target_that_looks_standardised_has_such_a_unit(ddof):
    """Nobody said so, but measured targets do not have mean 0 and standard deviation 1 by chance."""
    shifted = (Y - Y.mean()) / Y.std(ddof=ddof)
    report = kx.report(kx.condition(MODEL, kx.Data(X, shifted)))
    assert "mean 0 and standard deviation 1" in entries(report)["units"]
    text = str(report)
    assert "[standardised y]" in text
    assert "[y]" not in text
    assert {p.name: p.unit for p in report.parameters}["noise"] == "standardised y²"


def test_many_fits_have_units():
    fits = kx.fit_many(MODEL, [(X, Y), (X, 2 * Y)], max_steps=5)
    names = {"columns": ["time", "depth", "salt"], "target": "heat"}
    plain, scaled = kx.report(fits, **names), kx.report(fits, **names, scales=([2.0, 5.0, 0.3], 10.0))
    noise, depth = (np.asarray(entries(plain)[name]) for name in ("noise", "rbf.lengthscale[1]"))
    np.testing.assert_allclose(entries(scaled)["noise"], 100 * noise)
    np.testing.assert_allclose(entries(scaled)["rbf.lengthscale[1]"], 5 * depth)
    assert "[heat²] (quartiles)" in str(plain)
    assert "units" not in entries(plain)
    assert entries(scaled)["units"].startswith("the inputs and the target were standardised; objective, gradient and jitter")
    (table,) = scaled.tables
    assert {"value (standardised)", "gradient_norm (standardised)", "noise [heat²]", "rbf.lengthscale[0] [time]"} <= {
        *table.columns
    }
    (table,) = plain.tables
    assert {"value", "gradient_norm", "noise [heat²]"} <= {*table.columns}


def test_units_of_some_columns_of_all_and_of_none():
    model = kx.Model(kx.Select(kx.Periodic(period=2.0), 1) * kx.RBF() + kx.Warp(kx.RBF(), jnp.tanh), 0.1)
    report = kx.report(kx.condition(model, DATA), columns=["a", "b", "c"], scales=([1.0, 3.0, 2.0], 1.0))
    units = {p.name: (p.value, p.unit) for p in report.parameters}
    assert units["periodic.period"] == (6.0, "b")
    assert units["periodic.lengthscale"] == (1.0, "")
    assert units["rbf_1.lengthscale"] == (1.0, "standardised")
    assert units["rbf_2.lengthscale"] == (1.0, "standardised")


def bounded(where, low, high):
    return kx.with_bijector(MODEL, where, kx.bijectors.Positive(low, high))


@pytest.mark.parametrize(
    ("where", "low", "high", "message"),
    [
        (
            lambda m: m.kernel.kernel.lengthscale,
            0.01,
            9.0,
            "lengthscale[salt] is at its upper bound: the column may be",
        ),
        (lambda m: m.noise, 0.05, 9.0, "noise is at its lower bound: widen its range"),
        (lambda m: m.kernel.variance, 0.01, 1.1, "variance is at its upper bound: widen its range"),
    ],
)
def test_bounds_that_were_hit(where, low, high, message):
    report = kx.report(kx.fit(bounded(where, low, high), DATA), columns=["time", "depth", "salt"])
    assert any(message in sentence for sentence in report.advice)
    assert sum(bool(p.bound) for p in report.parameters) >= 1
    assert "bound)" in str(report)


def advice_of(model, x, y, **options):
    return " ".join(kx.report(kx.condition(model, kx.Data(x, y)), **options).advice)


def test_a_good_fit_gets_no_advice():
    x = np.linspace(0, 6, N)[:, None]
    y = np.sin(x[:, 0]) + 0.2 * np.random.default_rng(3).normal(size=N)
    assert kx.report(kx.fit(kx.Model(1.0 * kx.RBF(), 0.1), kx.Data(x, y))).advice == ()


def test_advice_where_something_looks_wrong():
    x = np.linspace(0, 6, N)[:, None]
    noise = np.random.default_rng(1).normal(size=N)
    y = np.sin(x[:, 0]) + 0.1 * noise
    good = kx.Model(1.0 * kx.RBF(), 0.01)
    assert "0.00" not in advice_of(good, x, y)
    assert "they are nearly independent" in advice_of(kx.Model(1.0 * kx.RBF(0.01), 0.01), x, y)
    assert "hardly varies over the data" in advice_of(kx.Model(1.0 * kx.RBF(1e3), 0.01), x, y)
    assert "hardly better than the mean" in advice_of(kx.Model(1.0 * kx.RBF(), 1.0), x, noise)
    assert "95 % intervals cover only" in advice_of(kx.Model(1.0 * kx.RBF(), 1e-4), x, y)
    assert "50 % intervals cover" in advice_of(kx.Model(1.0 * kx.RBF(), 1.0), x, y)
    assert "it a mean, kx.means.Constant" in advice_of(good, x, y + 50)
    assert "a jitter of" in advice_of(kx.Model(kx.RBF(1e3) * 1e3, 1e-13), x, y)
    outlier = y.copy()
    outlier[7] += 5
    assert "rows far from their leave-one-out prediction, in standard deviations: 7 (+" in advice_of(good, x, outlier)
    both = np.column_stack([x, np.ones(N), 1e-3 * noise])
    said = advice_of(kx.Model(1.0 * kx.RBF(jnp.ones(3)), 0.01), both, y, columns=["t", "k", "w"])
    assert "column k is constant" in said
    assert "column w may be irrelevant" in said


def test_a_column_is_relevant_if_any_part_of_the_model_needs_it():
    """A long lengthscale alone says nothing: a large variance, another part of the kernel or the mean may use the column."""
    x = np.random.default_rng(2).uniform(-1, 1, size=(N, 2))
    straight = kx.Data(x, np.sin(6 * x[:, 0]) + 3 * x[:, 1])
    for model in (
        kx.Model(900.0 * kx.RBF(lengthscale=jnp.array([0.5, 30.0])), 0.01),
        kx.Model(1.0 * kx.RBF(lengthscale=jnp.array([0.5, 1e4])) + kx.Linear(), 0.01),
        kx.Model(1.0 * kx.RBF(lengthscale=jnp.array([0.5, 1e4])), 0.01, mean=kx.means.Linear(jnp.array([0.0, 3.0]))),
        kx.Model(1.0 * kx.RBF(lengthscale=jnp.array([0.5, 1e4])) * kx.Select(kx.Linear(), 1), 0.01),
        kx.Model(1.0 * kx.Select(kx.RBF(0.5), 0) + 9.0 * kx.Select(kx.Periodic(period=2.0), 1), 0.01),
    ):
        assert "irrelevant" not in " ".join(kx.report(kx.condition(model, straight)).advice)
    useless = kx.Model(1.0 * kx.RBF(lengthscale=jnp.array([0.5, 1e4])), 0.01)
    assert "column x[1] may be irrelevant: over its whole range" in kx.report(kx.condition(useless, straight)).advice[0]
    line = kx.condition(kx.Model(1e4 * kx.RBF(lengthscale=100.0), 0.01), kx.Data(x[:, 1:], 3 * x[:, 1]))
    assert "acts as a constant" not in " ".join(kx.report(line).advice)


def test_targets_that_cannot_be_learned():
    x = np.linspace(0, 1, 20)[:, None]
    model = kx.Model(1.0 * kx.RBF(), 0.1)
    same = kx.report(kx.condition(model, kx.Data(x, np.full(20, 3.0))))
    assert "all targets are equal" in " ".join(same.advice)
    assert "nan" not in str(same)
    tiny = kx.report(kx.condition(model, kx.Data(x, 1e-8 * np.sin(9 * x[:, 0]))))
    assert "multiply the targets so" in " ".join(tiny.advice)


def test_what_ranges_declared_by_kernels_mean():
    x = np.linspace(0, 1, 12)[:, None]
    exact = kx.Data(x, 2.0 * x[:, 0])
    bound = eqx.tree_at(lambda m: m.noise, kx.Model(kx.Linear(), 0.1), jnp.asarray(1e-15))
    fit = kx.fit(bound, exact, max_steps=1)
    assert "noise is at its lower bound: the fit goes through every target" in " ".join(kx.report(fit).advice)


def test_advice_on_how_a_fit_ended():
    few = kx.fit(MODEL, DATA, max_steps=2)
    assert "max_steps_reached: The computation reached the maximum number of steps" in kx.report(few).advice[0]
    several = kx.fit(MODEL, DATA, restarts=2, key=jax.random.key(0))
    assert "3, of which" in str(kx.report(several))


def test_fits_and_machines():
    fits = kx.fit_many(MODEL, [(X, Y), (np.full_like(X, np.nan), Y)], max_steps=80)
    report = kx.report(fits)
    assert "1 fits did not end successful (1)" in report.advice[0]
    assert "kx.fitting.refit_many" in report.advice[0]
    one = kx.report(fits[0])
    assert "leave-one-out RMSE" not in str(one)
    assert "leave-one-out RMSE" in str(kx.report(fits[0], DATA))
    machine = kx.condition(learners.SVR(kx.RBF(), C=1.0, epsilon=1e-3), DATA)
    assert "nearly every row is a support vector" in kx.report(machine).advice[0]
    assert entries(kx.report(machine))["support vectors"] == int(machine.num_support)


def test_as_html_and_as_json():
    report = kx.report(FIT, columns=["<script>", "b & c", "d"], target='"y"')
    page = report._repr_html_()
    assert "<script>" not in page
    assert "lengthscale[&lt;script&gt;]" in page
    assert "b &amp; c" in page
    assert page.count("<table") == page.count("</table>") == 1
    again = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert again["advice"] == list(report.advice)
    assert again["title"] == "Gaussian process: rbf kernel, fitted"


def test_a_model_without_its_targets(tmp_path):
    c = kx.condition(FIT.model, DATA)
    kx.save(tmp_path / "it.kx", c, targets=False)
    text = str(kx.report(kx.load(tmp_path / "it.kx")))
    assert "left out when it was saved" in text
    assert "nan" not in text


def test_many_rows_are_told_without_products_of_their_matrix():
    """Beyond 10,000 rows the condition number is left out, and rows that are far by chance are no outliers."""
    n = 10_001
    x = np.linspace(0, 100, n)[:, None]
    noise = np.random.default_rng(0).normal(size=n)
    noise[:2] = 4.6, 9.0
    data = kx.Data(x, np.sin(x[:, 0]) + 0.1 * noise)
    c = kx.condition(kx.Model(kx.Matern52(2.0), 0.01), data, kx.StateSpace())
    told = kx.report(c).as_dict()
    assert "condition number" not in told["entries"]
    assert told["entries"]["solver"] == "kx.StateSpace()"
    assert told["entries"]["leave-one-out RMSE"] == pytest.approx(0.1, rel=0.1)
    assert not [sentence for sentence in told["advice"] if "intervals" in sentence]
    (outliers,) = [sentence for sentence in told["advice"] if sentence.startswith("rows far")]
    assert "1 (+" in outliers
    assert " 0 (+" not in outliers


def test_a_solver_without_left_out_rows_is_told_without_their_scores():
    x = np.linspace(0, 5, 30)[:, None]
    c = kx.condition(kx.Model(kx.RBF(), 0.1), kx.Data(x, np.sin(x[:, 0])), kx.CG(num_probes=2))
    told = kx.report(c).as_dict()["entries"]
    assert told["solver"] == "kx.CG(num_probes=2)"
    assert "leave-one-out RMSE" not in told


def test_what_is_refused():
    with pytest.raises(ValueError, match="columns has 2 names, and the data has 3 columns"):
        kx.report(FIT, columns=["a", "b"])
    with pytest.raises(ValueError, match="scales has 1 scales of columns"):
        kx.report(FIT, scales=([1.0], 1.0))
    batch = jax.vmap(lambda noise: kx.condition(kx.Model(MODEL.kernel, noise), DATA))(jnp.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="one dataset, but this is a batch"):
        kx.report(batch)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda c: str(kx.report(c)))(kx.condition(MODEL, DATA))
