"""Outputs with gaps of their own: everything equals conditioning each output by itself on its observed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.selection._smoother import fit_residuals
from tests.tables import points

X, NEW = points(9), points(4, seed=3)
Y = np.stack([np.sin(X[:, 0]), X[:, 1] ** 2, np.cos(X[:, 0]), 0.5 + X[:, 1]], axis=1)
Y = Y + 0.4 * np.random.default_rng(5).normal(size=Y.shape)
OBSERVED = np.ones((9, 4), bool)
OBSERVED[[1, 4], 0] = OBSERVED[[1, 4], 2] = False
OBSERVED[[0, 3, 7], 1] = False
OBSERVED[5] = False
GARBAGE = np.where(OBSERVED, Y, np.where(np.arange(4) % 2, np.nan, 1e30))
MODELS = {
    "plain": kx.Model(1.4 * kx.Matern32(), noise=0.2, mean=kx.means.Constant(0.3)),
    "per_row": kx.Model(kx.RBF(), noise=np.linspace(0.1, 1.0, 9)),
    "trend": kx.Model(1.4 * kx.Matern32(), noise=0.2, trend=1),
    "spline": kx.Model(0.5 * kx.CubicSpline(), noise=0.1),
}
BY_OUTPUT = {
    "alpha": lambda c: c.alpha,
    "mean": lambda c: kx.mean(c, new_rows(c)),
    "variance": lambda c: kx.variance(c, new_rows(c)),
    "loo_residuals": kx.loo_residuals,
    "loo_mean": kx.selection.loo_mean,
    "loo_variance": kx.selection.loo_variance,
    "loo_noisy_variance": lambda c: kx.selection.loo_variance(c, noisy=True),
    "dof": kx.selection.effective_degrees_of_freedom,
    "residuals": fit_residuals,
    "norm": kx.posterior.rkhs_norm,
}
SUMS = {"likelihood": kx.log_marginal_likelihood, "loo_density": kx.loo_negative_log_density}
MEANS = {"loo_mse": kx.loo_mse, "gcv": kx.gcv}


def new_rows(c):
    return NEW[:, : c.data.x.shape[1]]


def rows_of(name):
    return X[:, :1] if name == "spline" else X


def separately(model, x, y, observed, solver=None):
    """Every output conditioned by itself, its gaps behind a row mask."""
    outputs = range(y.shape[1])
    return [kx.condition(model, kx.Data(x, y[:, j], observed[:, j]), solver, throw=False) for j in outputs]


@jax.jit
def answers(c):
    return {name: ask(c) for name, ask in (BY_OUTPUT | SUMS | MEANS).items()}


def check_equal(c, alone, rtol):
    """Quantities of each output side by side; sums and, weighted by observations, means over outputs."""
    ours, theirs, counts = answers(c), [answers(own) for own in alone], [int(own.data.count) for own in alone]
    for name, value in ours.items():
        want = np.stack([own[name] for own in theirs], axis=-1)
        if name not in BY_OUTPUT:
            want = np.sum(want) if name in SUMS else np.average(want, weights=counts)
        np.testing.assert_allclose(value, want, rtol=rtol, atol=rtol * np.abs(want).max(), err_msg=name)


CASES = [("plain", kx.Cholesky()), ("per_row", kx.Eigh()), ("trend", kx.Eigh()), ("spline", kx.Cholesky())]


@pytest.mark.parametrize(("name", "solver"), CASES, ids=[name for name, _ in CASES])
def test_it_is_each_output_by_itself(name, solver):
    data = kx.Data(rows_of(name), GARBAGE, OBSERVED)
    c = kx.condition(MODELS[name], data, solver)
    check_equal(c, separately(MODELS[name], rows_of(name), Y, OBSERVED, solver), 1e-9)
    assert isinstance(c.system, kx.solvers.PerOutput)
    assert c.system.systems.jitter.shape == (3,)  # outputs 0 and 2 share a System
    np.testing.assert_array_equal(data.observed, OBSERVED)
    assert data.num_observed == OBSERVED.sum()


def test_it_is_numpys_answer():
    c = kx.condition(kx.Model(1.3 * kx.RBF(0.8), noise=0.3), kx.Data(X, GARBAGE, OBSERVED))
    likelihood = 0.0
    for j in range(4):
        own = OBSERVED[:, j]
        x, y = X[own], Y[own, j]
        K, k = (1.3 * np.exp(-((x[:, None] - z) ** 2).sum(-1) / (2 * 0.8**2)) for z in (x, NEW))
        A = K + 0.3 * np.eye(len(x))
        likelihood -= 0.5 * (y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + len(x) * np.log(2 * np.pi))
        prediction = kx.predict(c, NEW, noisy=True)
        np.testing.assert_allclose(prediction.mean[:, j], k.T @ np.linalg.solve(A, y), rtol=1e-9)
        np.testing.assert_allclose(prediction.variance[:, j], 1.6 - np.sum(k * np.linalg.solve(A, k), axis=0), rtol=1e-9)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), likelihood, rtol=1e-10)


@pytest.mark.parametrize("noise", [1e-3, 0.0])
def test_jitter_belongs_to_its_output(noise):
    """Float32 with duplicates: only outputs that are observed in both copies need jitter."""
    x = np.concatenate([points(7)[:6], points(7)[:6]]).astype(np.float32)
    y, observed = np.stack([np.sin(x[:, 0])] * 3, axis=1), np.ones((12, 3), bool)
    observed[6:, 1] = False
    observed[2:5, 2] = False
    model = kx.Model(1e6 * kx.RBF(), noise=noise)
    c = kx.condition(model, kx.Data(x, np.where(observed, y, np.nan), observed), throw=False)
    alone = separately(model, x, y, observed)
    jitters = [float(own.jitter) for own in alone]
    assert jitters[0] > jitters[1]
    assert c.jitter == max(jitters)
    check_equal(c, alone, 1e-4)
    slope = jax.jit(jax.grad(lambda model, data: kx.log_marginal_likelihood(kx.condition(model, data, throw=False))))
    filled = [kx.Data(x, np.where(observed, y, np.float32(garbage)), observed) for garbage in (np.nan, -1e30)]
    for a, b in zip(*(jax.tree.leaves(slope(model, data)) for data in filled), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_are_sums_over_outputs_also_for_traced_masks():
    model = MODELS["trend"]

    def score(model, data):
        c = kx.condition(model, data)
        return kx.log_marginal_likelihood(c) + 20 * kx.loo_mse(c) + kx.gcv(c) + jnp.sum(kx.variance(c, NEW))

    def of_one(model, y, own):
        c, share = kx.condition(model, kx.Data(X, y, own)), jnp.sum(own) / OBSERVED.sum()
        return kx.log_marginal_likelihood(c) + share * (20 * kx.loo_mse(c) + kx.gcv(c)) + jnp.sum(kx.variance(c, NEW))

    one = jax.jit(jax.value_and_grad(of_one))
    parts = [one(model, Y[:, j], OBSERVED[:, j]) for j in range(4)]
    want = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    known = jax.jit(jax.value_and_grad(score))(model, kx.Data(X, GARBAGE, OBSERVED))
    masks = jnp.stack([jnp.asarray(OBSERVED), jnp.ones((9, 4), bool)])
    many = jax.jit(jax.vmap(lambda mask: jax.value_and_grad(score)(model, kx.Data(X, GARBAGE, mask))))(masks)
    for got in (known, jax.tree.map(lambda leaf: leaf[0], many)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), got, want)


def test_a_gap_has_no_slope():
    def score(y):
        return kx.loo_mse(kx.condition(MODELS["plain"], kx.Data(X, y, OBSERVED)))

    slope = np.asarray(jax.jit(jax.grad(score))(jnp.asarray(GARBAGE)))
    assert np.isfinite(slope).all()
    np.testing.assert_array_equal(slope != 0, OBSERVED)


def test_equal_masks_are_a_row_mask():
    mask = np.arange(9) > 1
    data, rows = kx.Data(X, Y, np.repeat(mask[:, None], 4, axis=1)), kx.Data(X, Y, mask)
    assert data.gaps is None
    jax.tree.map(np.testing.assert_array_equal, data, rows)
    c = kx.condition(MODELS["plain"], data, kx.Eigh())
    path = kx.ridge_path(c, [0.1, 0.2])
    assert path.effective_degrees_of_freedom.shape == (2,)
    assert kx.predict(c, NEW, noisy=True).variance.shape == (4,)
    assert kx.loo_residuals(c).shape == (9, 4)


def test_fit_ridge_and_file(tmp_path):
    data = kx.Data(X, GARBAGE, OBSERVED)
    fit = kx.fit(kx.initialise(MODELS["plain"], data), data)
    assert fit.result == kx.Result.successful
    c = kx.condition(fit.model, data)
    slope = jax.jit(jax.grad(lambda model: kx.log_marginal_likelihood(kx.condition(model, data))))(fit.model)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(slope)) < 1e-2
    kx.save(tmp_path / "c.kx", c)
    loaded = kx.load(tmp_path / "c.kx")
    jax.tree.map(np.testing.assert_array_equal, kx.predict(loaded, NEW), kx.predict(c, NEW))
    model = kx.Model(kx.RBF(), noise=1.0)
    path = kx.ridge_path(kx.condition(model, data, kx.Eigh()), [0.1, 2.0])
    moved = kx.condition(kx.Model(kx.RBF(), noise=2.0), data)
    np.testing.assert_allclose(path.loo_mse[1], kx.loo_mse(moved), rtol=1e-9)
    np.testing.assert_allclose(path.alpha[1], moved.alpha, rtol=1e-9, atol=1e-12)
    assert np.isfinite(kx.select_ridge(model, data, "gcv", throw=False).value)


def test_what_needs_common_rows_says_so():
    data = kx.Data(X, GARBAGE, OBSERVED)
    c = kx.condition(MODELS["plain"], data)
    refused = [
        lambda: kx.covariance(c, NEW),
        lambda: kx.sample(c, NEW, key=jax.random.key(0)),
        lambda: kx.kfold_mse(c, 3),
        lambda: kx.extend(c, NEW, Y[:4]),
        lambda: kx.components(c, NEW),
        lambda: kx.report(c),
        lambda: kx.plot.residuals(c),
        lambda: kx.fit_many(MODELS["plain"], [data]),
        lambda: kx.learners.bagged(MODELS["plain"], data),
        lambda: kx.learners.ridge(data, 1.0),
    ]
    for ask in refused:
        with pytest.raises((TypeError, ValueError), match="the same rows: take one output at a time"):
            ask()
    with pytest.raises(ValueError, match=r"9 booleans.*or \(9, 4\) of them"):
        kx.Data(X, Y, OBSERVED[:, :3])
    with pytest.raises(ValueError, match="NaN"):
        kx.Data(X, GARBAGE, np.ones((9, 4), bool))


def test_an_output_without_observations_fails():
    """One output that cannot be solved makes all answers NaN, with its status, and no NaN gradient behind a `where`."""
    observed = OBSERVED.copy()
    observed[:, 3] = False
    data = kx.Data(X, Y, observed)
    c = kx.condition(MODELS["plain"], data, throw=False)
    assert c.result == kx.Result.empty
    assert np.isnan(kx.mean(c, NEW)).all()

    def guarded(model):
        c = kx.condition(model, data, throw=False)
        return jnp.where(c.ok, jnp.sum(kx.mean(c, NEW)) + kx.log_marginal_likelihood(c), 0.0)

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(jax.grad(guarded))(MODELS["plain"])))


def test_a_failure_is_worse_than_a_warning():
    choose = jax.vmap(lambda flag: kx.Result.where(flag, kx.Result.singular, kx.Result.empty))
    assert kx.solvers.worst(choose(jnp.array([True, False]))) == kx.Result.empty
