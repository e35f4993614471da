"""Conformal intervals against refits; statistics of Grams against NumPy and scikit-learn."""

import jax
import numpy as np
import pytest
from sklearn.decomposition import KernelPCA

import kernax as kx
from kernax import statistics

RNG = np.random.default_rng(4)
N = 12
X = RNG.uniform(-2, 2, (N, 1))
Y = np.stack([np.sin(X[:, 0]), X[:, 0] ** 2], axis=1) + 0.1 * RNG.normal(size=(N, 2))
NEW = np.array([[-1.1], [0.4], [2.5]])


def rbf(x, z, lengthscale=1.0):
    return np.exp(-0.5 * ((x[:, None] - z[None]) ** 2).sum(-1) / lengthscale**2)


CASES = {
    "dense": (kx.Model(kx.RBF(), noise=0.1, mean=0.3), kx.Cholesky()),
    "trend": (kx.Model(kx.Matern32(), noise=0.1, trend=1), kx.Cholesky()),
    "state space": (kx.Model(kx.Matern32(), noise=0.1), kx.StateSpace()),
}


@pytest.mark.parametrize("name", CASES)
def test_conformal_intervals_are_those_of_refits(name):
    """n refits, and the order statistics of jackknife+; masked rows do not count."""
    model, solver = CASES[name]
    x, y = np.concatenate([X, [[50.0]]]), np.concatenate([Y, [[9.0, 9.0]]])
    c = kx.condition(model, kx.Data(x, y, np.arange(N + 1) < N), solver)
    found = kx.conformal(c, NEW, 0.8)
    refit = jax.jit(lambda mask: kx.mean(kx.condition(model, kx.Data(x, y, mask)), np.concatenate([NEW, X])))
    low, high = [], []
    for i in range(N):
        values = np.asarray(refit((np.arange(N + 1) < N) & (np.arange(N + 1) != i)))
        residual = np.abs(Y[i] - values[len(NEW) + i])
        low.append(values[: len(NEW)] - residual)
        high.append(values[: len(NEW)] + residual)
    rank = int(np.ceil(0.8 * (N + 1)))
    np.testing.assert_allclose(found.lower, np.sort(low, axis=0)[N - rank], atol=1e-9)
    np.testing.assert_allclose(found.upper, np.sort(high, axis=0)[rank - 1], atol=1e-9)
    assert np.isinf(kx.conformal(c, NEW, 0.99).upper).all()


def test_conformal_intervals_cover_where_the_model_does_not():
    """Noise 0.3 taken for 0.01: the model's own intervals cover a third; jackknife+ covers about what it is asked for."""
    rng = np.random.default_rng(0)
    model = kx.Model(kx.RBF(), noise=1e-4)
    ask = jax.jit(lambda x, y, new: kx.conformal(kx.condition(model, kx.Data(x, y)), new, 0.8))
    inside = []
    for _ in range(40):
        x = rng.uniform(-2, 2, (50, 1))
        y = np.sin(x[:, 0]) + 0.3 * rng.standard_t(4, size=50)
        lower, upper = ask(x[:30], y[:30], x[30:])
        inside.append(np.mean((y[30:] >= lower) & (y[30:] <= upper)))
    assert 0.75 < np.mean(inside) < 0.95


def test_conformal_is_refused_with_a_remedy():
    with pytest.raises(TypeError, match="condition with"):
        kx.conformal(kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(X, Y), kx.CG()), NEW)
    with pytest.raises(ValueError, match="between 0 and 1"):
        kx.conformal(kx.condition(kx.Model(kx.RBF(), noise=0.1), kx.Data(X, Y)), NEW, 95)


def test_mean_discrepancy_is_the_sum_over_pairs():
    z = RNG.normal(size=(7, 1))
    xx, zz, xz = rbf(X, X), rbf(z, z), rbf(X, z)
    expected = (xx.sum() - N) / (N * (N - 1)) + (zz.sum() - 7) / 42 - 2 * xz.mean()
    np.testing.assert_allclose(statistics.mmd(kx.RBF(), X, z), expected, rtol=1e-12)
    slope = jax.grad(lambda x: statistics.mmd(kx.RBF(), x, z))(X)
    step = 1e-6 * (np.arange(N) == 2)[:, None]
    near = [statistics.mmd(kx.RBF(), X + sign * step, z) for sign in (1, -1)]
    np.testing.assert_allclose(slope[2, 0], (near[0] - near[1]) / 2e-6, rtol=1e-6)


def test_permutations_of_two_samples():
    """Far samples differ, and halves of one sample do not; the p-value is right if nothing differs."""
    key = jax.random.key(0)
    far = statistics.mmd_test(kx.RBF(), X, X + 6.0, key=key, permutations=199)
    assert float(far.p_value) <= 0.01
    np.testing.assert_allclose(far.statistic, statistics.mmd(kx.RBF(), X, X + 6.0), rtol=1e-12)
    same = statistics.mmd_test(kx.RBF(), X, X, key=key, permutations=199)
    assert float(same.p_value) == 1.0
    ask = jax.jit(lambda x, z, key: statistics.mmd_test(kx.RBF(), x, z, key=key, permutations=99).p_value)
    values = [ask(*RNG.normal(size=(2, 10, 1)), jax.random.key(i)) for i in range(100)]
    assert 0.35 < np.mean(values) < 0.65
    assert np.mean(np.array(values) <= 0.1) < 0.25


def test_dependence_is_the_trace_of_centred_matrices():
    y = RNG.normal(size=(N, 2))
    centre = np.eye(N) - 1 / N
    expected = np.trace(centre @ rbf(X, X) @ centre @ rbf(y, y)) / N**2
    np.testing.assert_allclose(statistics.hsic(kx.RBF(), X, kx.RBF(), y), expected, rtol=1e-12)
    key = jax.random.key(1)
    assert float(statistics.hsic_test(kx.RBF(), X, kx.RBF(), X**2, key=key, permutations=199).p_value) < 0.02
    test = statistics.hsic_test(kx.RBF(), X, kx.RBF(), y, key=key, permutations=199)
    assert float(test.p_value) > 0.05
    assert test.permuted.shape == (199,)


def test_components_are_those_of_scikit_learn():
    x = RNG.normal(size=(N, 3))
    theirs = KernelPCA(4, kernel="rbf", gamma=0.5, eigen_solver="dense").fit(x)
    ours = statistics.kernel_pca(kx.RBF(), x, 4)
    np.testing.assert_allclose(ours.eigenvalues, theirs.eigenvalues_, rtol=1e-10)
    new = RNG.normal(size=(5, 3))
    sign = np.sign(np.sum(np.asarray(ours.scores) * theirs.transform(x), axis=0))
    np.testing.assert_allclose(ours.scores * sign, theirs.transform(x), atol=1e-10)
    np.testing.assert_allclose(ours(new) * sign, theirs.transform(new), atol=1e-10)
    np.testing.assert_allclose(ours(x), ours.scores, atol=1e-10)
    flat = statistics.kernel_pca(kx.Linear(), x, 5)
    np.testing.assert_array_equal(flat.eigenvalues[3:], 0.0)
    assert np.isfinite(flat(new)).all()


def test_answers_have_the_floating_type_of_the_rows():
    x, kernel = X.astype(np.float32), 1.5 * kx.Matern32(0.7)
    for ask in (
        lambda x: statistics.mmd(kernel, x, x + 1),
        lambda x: statistics.hsic(kernel, x, kernel, x**2),
        lambda x: statistics.kernel_pca(kernel, x, 2)(x),
    ):
        found = ask(x)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, ask(X), atol=1e-5)


def test_samples_are_refused_with_a_reason():
    with pytest.raises(ValueError, match="two rows or more"):
        statistics.mmd(kx.RBF(), X, X[:1])
    with pytest.raises(ValueError, match="as many rows in x as in y"):
        statistics.hsic(kx.RBF(), X, kx.RBF(), X[:5])
    with pytest.raises(ValueError, match="number of rows"):
        statistics.kernel_pca(kx.RBF(), X, 13)
    with pytest.raises(ValueError, match="permutations"):
        statistics.mmd_test(kx.RBF(), X, X, key=jax.random.key(0), permutations=0)


def test_rows_and_options_are_checked():
    """A kernel refuses rows that it does not know; a class is no kernel; numbers are whole."""
    known, unknown = {"c": np.array([0, 1, 1])}, {"c": np.array([0, 3, 1])}
    kernel = kx.kernels.Categorical("c", 2)
    key = jax.random.key(0)
    for ask in (
        lambda: statistics.mmd(kernel, known, unknown),
        lambda: statistics.mmd_test(kernel, unknown, known, key=key),
        lambda: statistics.hsic(kx.RBF(), X[:3], kernel, unknown),
        lambda: statistics.kernel_pca(kernel, unknown, 1),
        lambda: statistics.kernel_pca(kernel, known, 1)(unknown),
    ):
        with pytest.raises(ValueError, match="row 1 has the category 3"):
            ask()
    with pytest.raises(TypeError, match="kernel"):
        statistics.mmd(kx.RBF, X, X)
    with pytest.raises((TypeError, ValueError), match="permutations"):
        statistics.hsic_test(kx.RBF(), X, kx.RBF(), X, key=key, permutations=99.5)
    with pytest.raises((TypeError, ValueError), match="number"):
        statistics.kernel_pca(kx.RBF(), X, 2.5)
