"""Tables with targets of classes and counts, fitted by Laplace's approximation."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from kernax import tables
from kernax.tables import TableError
from kernax.tables._likelihoods import folds_of

N = 40
HELD = "fixed(3 * rbf(lengthscale=1.5) + constant(variance=0.5))"


def rows(seed=0):
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 10, N)
    is_high = rng.random(N) < expit(3 * np.sin(t))
    third = np.digitize(t + rng.normal(size=N), [3, 7])
    counts = rng.poisson(np.exp(1 + np.sin(t)))
    return {"t": t, "high": is_high, "kind": np.array(["b", "a", "c"], object)[third], "visits": counts}


def only(*names, seed=0):
    return {name: rows(seed)[name] for name in names}


@pytest.fixture(scope="module")
def binary():
    return tables.fit_table(only("t", "high"), "high", kernel=HELD)


def oracle(rows_used):
    kernel = 3.0 * sk.RBF(1.5) + sk.ConstantKernel(0.5)
    of = rows()
    return GaussianProcessClassifier(kernel, optimizer=None).fit(of["t"][rows_used, None], of["high"][rows_used])


def test_two_classes_are_those_of_scikit_learn(binary):
    new = only("t", seed=1)
    answers = binary.predict(new)
    want = oracle(np.arange(N)).predict_proba(new["t"][:, None])[:, 1]
    assert list(answers) == binary.prediction_names == ["class", "p_false", "p_true"]
    np.testing.assert_allclose(answers["p_true"], want, atol=5e-3)  # its average over f is approximate
    np.testing.assert_array_equal(answers["class"], np.where(answers["p_true"] > 0.5, "true", "false"))
    assert binary.notes == ("target 'high': 2 classes ('false', 'true')",)


def test_accuracy_and_log_loss_are_those_of_rows_left_out(binary):
    folds = folds_of(N, 5, 0, rows()["high"].astype(float))
    share = np.full(N, np.nan)
    for fold in range(5):
        out = folds == fold
        share[out] = oracle(~out).predict_proba(rows()["t"][out, None])[:, 1]
    entries = kx.report(binary).as_dict()["entries"]
    own = np.where(rows()["high"], share, 1 - share)
    assert entries["cross-validated accuracy"] == pytest.approx(np.mean((share > 0.5) == rows()["high"]))
    assert entries["cross-validated log loss"] == pytest.approx(-np.mean(np.log(own)), abs=5e-3)
    assert {p.unit for p in kx.report(binary).parameters} == {"t", ""}


def test_several_classes_are_fitted_kept_and_predicted(tmp_path):
    fit = tables.fit_table(pd.DataFrame(only("t", "kind")), "kind", max_steps=5)
    assert (fit.likelihood, fit.kernel) == ("softmax", "matern52 + constant")
    answers = fit.predict(only("t", seed=1))
    shares = np.stack([answers[f"p_{name}"] for name in "abc"], axis=1)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-9)
    assert np.mean(answers["class"] == rows(seed=1)["kind"]) > 0.6
    kx.save(tmp_path / "kind.kx", fit)
    np.testing.assert_array_equal(kx.load(tmp_path / "kind.kx").predict(only("t", seed=1))["p_b"], answers["p_b"])


def test_counts_have_the_mean_of_laplace_s_approximation():
    of, new = only("t", "visits"), only("t", seed=1)["t"]
    fit = tables.fit_table(of, "visits", kernel=HELD, likelihood="poisson")
    answers = fit.predict({"t": new}, level=0.9)

    def kernel(a, b):
        return 3 * np.exp(-0.5 * ((a[:, None] - b) / 1.5) ** 2) + 0.5

    K, f = kernel(of["t"], of["t"]), np.zeros(N)
    for _ in range(50):  # Newton's steps, from Rasmussen & Williams, 3.18
        W = np.exp(f)
        f = K @ np.linalg.solve(np.eye(N) + W[:, None] * K, W * f + of["visits"] - W)
    cross = kernel(new, of["t"])
    mean = cross @ (of["visits"] - np.exp(f))
    variance = 3.5 - np.sum(cross * np.linalg.solve(K + np.diag(1 / np.exp(f)), cross.T).T, axis=1)
    np.testing.assert_allclose(answers["mean"], np.exp(mean + 0.5 * variance), rtol=1e-6)
    function = fit.predict({"t": new}, level=0.9, noisy=False)
    np.testing.assert_allclose(function["upper"], np.exp(mean + 1.6448536 * np.sqrt(variance)), rtol=1e-6)
    assert np.all(answers["lower"] == np.floor(answers["lower"]))
    assert "cross-validated log density" in kx.report(fit).as_dict()["entries"]


def test_outliers_hardly_count_with_student_s_t():
    noise = 0.1 * np.random.default_rng(0).normal(size=30)
    of = {"t": np.arange(30.0), "y": np.sin(np.arange(30.0) / 4) + noise}
    of["y"][12] += 20
    kernel = "fixed(1 * rbf(lengthscale=4))"
    plain = tables.fit_table(of, "y", kernel=kernel).predict({"t": [12.0]})["mean"]
    robust = tables.fit_table(of, "y", kernel=kernel, likelihood="student-t", max_steps=10).predict({"t": [12.0]})["mean"]
    assert abs(robust[0] - np.sin(3)) < 0.3 < abs(plain[0] - np.sin(3))


WRONG = {
    "fractions": ({"target": "t", "likelihood": "poisson"}, r"counts are 0, 1, 2, …: correct or remove these rows"),
    "spelling": ({"target": "visits", "likelihood": "poison"}, r"no likelihood 'poison'\. Did you mean 'poisson'\?"),
    "three": ({"target": "kind", "likelihood": "bernoulli"}, r"'kind' has 3 classes, and bernoulli is for 2: write softmax"),
    "text": ({"target": "kind", "likelihood": "normal"}, r"column 'kind' has '.' in rows 0, 1, .*must be a number here"),
    "criterion": ({"target": "kind", "select": "loo"}, r"select='loo' is for the normal likelihood"),
    "noise": ({"target": "high", "noise": 0.1}, r"noise is for the normal likelihood; bernoulli has no noise variance"),
    "many": ({"target": "t", "likelihood": "softmax"}, r"target 't' has 40 .*limit of 30 classes: .*--max-levels 40"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_likelihood_that_does_not_suit_is_refused(name):
    options, message = WRONG[name]
    with pytest.raises(TableError, match=message):
        tables.fit_table(rows(), max_levels=30, **options)


def kinds_of_target():
    high = rows()["high"]
    return {
        "booleans": (high, {}, ("false", "true")),
        "text": (np.where(high, "yes", "no").astype(object), {}, ("no", "yes")),
        "numbers": (high.astype(float), {}, ()),
        "numbers that are named": (high.astype(int), {"categories": "y"}, ("0", "1")),
        "categories of pandas": (pd.Categorical(high.astype(int)), {}, ("0", "1")),
    }


@pytest.mark.parametrize("kind", kinds_of_target())
def test_fit_and_compare_agree_on_what_is_classified(kind):
    target, options, levels = kinds_of_target()[kind]
    of = pd.DataFrame({"t": rows()["t"], "y": target})
    fit = tables.fit_table(of, "y", kernel="fixed(rbf)", max_steps=1, **options)
    assert fit.target.levels == levels
    assert fit.likelihood == ("bernoulli" if levels else "normal")
    compared = tables.compare_table(of, "y", folds=2, methods="majority" if levels else "mean", **options)
    assert compared.task == ("classification" if levels else "regression")
    assert compared.notes == fit.notes
    if not levels:
        assert "target 'y' has two values and is regressed: --categories y" in fit.notes[0]
        asked = tables.compare_table(of, "y", folds=2, methods="majority", task="classification")
        assert asked.notes == ("target 'y': 2 classes ('0', '1')",)
        assert tables.fit_table(of, "y", kernel="fixed(rbf)", likelihood="bernoulli", max_steps=1).target.levels == (
            "0",
            "1",
        )
    numbers = tables.compare_table(of.assign(y=rows()["high"]), "y", folds=2, methods="mean", task="regression")
    assert numbers.rows[0]["status"] == "ok"


def test_infinite_targets_are_refused_with_their_place(tmp_path):
    (tmp_path / "it.csv").write_text("t,y\n1,1\n2,inf\n3,0\n")
    for function in (tables.fit_table, tables.compare_table):
        with pytest.raises(TableError, match=r"column 'y' is infinite in line 3: correct or remove these rows"):
            function(tmp_path / "it.csv", "y")
    with pytest.raises(TableError, match="'y' does not hold classes, which are text, booleans or whole numbers"):
        tables.compare_table(tmp_path / "it.csv", "y", task="classification")


@pytest.mark.parametrize(
    ("kernel", "has_own"),
    [
        ("rbf(columns='bias')", False),
        ("arccosine(bias_variance=2)", False),
        ("rbf * constant", False),
        ("rbf + bias", True),
        ("rbf + 2", True),
        ("fixed(select(rbf + constant, 'bias'))", True),
    ],
)
def test_the_constant_of_classes_is_found_in_the_kernel_and_not_in_its_text(kernel, has_own):
    from kernax.expressions import has_level, parse_kernel

    column = tables.Column("bias", "number")
    assert has_level(parse_kernel(kernel, [column])) == has_own
    text, built = tables._likelihoods.built_with_level(kernel, [column], "bernoulli")
    assert text == (kernel if has_own else f"{kernel} + constant")
    assert has_level(built.kernel)
    assert tables._likelihoods.built_with_level(kernel, [column], "normal")[0] == kernel


def test_a_single_class_is_refused():
    with pytest.raises(TableError, match="the target 'y' is a in every row: there is nothing to learn"):
        tables.fit_table({"t": [1.0, 2.0], "y": ["a", "a"]}, "y")
