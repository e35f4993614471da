"""LowRank where it approximates: equal to a dense oracle of the same approximation, and to the exact answer at full rank."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.grams import gram_of
from kernax.parameters import as_dtype
from kernax.solvers import _features
from kernax.solvers._pivots import pivots
from tests.tables import pairs, second_derivatives

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = np.sin(X[:, 0]) + 0.2 * RNG.normal(size=12)
NEW = RNG.normal(size=(5, 2))
Z = X[[1, 4, 6, 9]] + 0.1
KERNEL = 1.3 * kx.RBF(lengthscale=[0.9, 1.4])
MASK = np.array([True, False, True, True, True, True, True, True, False, True, True, True])
PER_ROW = np.linspace(0.1, 2.0, 12)


@jax.jit
def approximation(kernel, z, x, new):
    """`Q` over x, `Q` between x and new rows, and what both miss of the kernel's diagonal and matrix, in plain JAX."""
    zz, zx, zn = pairs(kernel, z, z), pairs(kernel, z, x), pairs(kernel, z, new)
    seen = jnp.linalg.inv(zz) @ zx
    q, cross = zx.T @ seen, seen.T @ zn
    missed = jnp.diagonal(pairs(kernel, x, x)) - jnp.diagonal(q)
    return q, cross, missed, pairs(kernel, new, new) - zn.T @ jnp.linalg.inv(zz) @ zn


@jax.jit
def oracle(kernel, noise, z, x, y, new):
    """SGPR by dense inverses: bound, mean, covariance, leave-one-out residuals."""
    q, cross, missed, beyond = approximation(kernel, z, x, new)
    noise = jnp.broadcast_to(noise, len(y))
    inverse = jnp.linalg.inv(q + jnp.diag(noise))
    alpha = inverse @ y
    bound = -0.5 * y @ alpha + 0.5 * jnp.linalg.slogdet(inverse)[1] - 0.5 * len(y) * jnp.log(2 * jnp.pi)
    bound = bound - 0.5 * jnp.sum(missed / noise)
    zn = pairs(kernel, z, new)
    prior = beyond + zn.T @ jnp.linalg.inv(pairs(kernel, z, z)) @ zn
    return bound, cross.T @ alpha, prior - cross.T @ inverse @ cross, alpha / jnp.diagonal(inverse)


@eqx.filter_jit
def answers(model, data, solver, new):
    """Evidence, mean, variance and leave-one-out residuals, in one program."""
    c = kx.condition(model, data, solver)
    return kx.log_marginal_likelihood(c), kx.mean(c, new), kx.variance(c, new), kx.loo_residuals(c)


@eqx.filter_jit
def products(c, new, v):
    """Covariances of the posterior, and everything that the approximate Gram matrix does."""
    gram = c.system.gram
    covariances = kx.covariance(c, new), kx.covariance(c, new, new[:2])
    whole = gram.dense(), gram.cross(new), gram.diagonal(), gram.rows(jnp.array([0]))
    return covariances, whole, (gram.mv(v), gram.cross_mv(new, v))


@pytest.mark.parametrize("noise", [0.05, 30.0, "per_row"])
def test_inducing_rows_equal_a_dense_oracle_of_the_same_approximation(noise):
    noise = PER_ROW if noise == "per_row" else noise
    x = np.where(MASK[:, None], X, np.nan)
    c = kx.condition(kx.Model(KERNEL, noise=noise), kx.Data(x, Y, MASK), kx.LowRank(inducing=Z))
    live = np.broadcast_to(noise, 12)[MASK]
    bound, mean, covariance, loo = oracle(KERNEL, live, Z, X[MASK], Y[MASK], NEW)
    assert c.result == kx.Result.successful
    assert c.jitter == 0
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), bound, rtol=1e-11)
    prediction = kx.predict(c, NEW)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(prediction.variance, np.diag(covariance), rtol=1e-10)
    np.testing.assert_allclose(kx.loo_residuals(c)[MASK], loo, rtol=1e-10)
    v = np.random.default_rng(1).normal(size=(12, 2))
    (ours, some), (matrix, columns, diagonal, rows), (product, at_new) = products(c, jnp.asarray(NEW), jnp.asarray(v))
    np.testing.assert_allclose(ours, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(some, covariance[:, :2], rtol=1e-9, atol=1e-12)
    q, cross, _, _ = map(np.asarray, approximation(KERNEL, Z, X[MASK], NEW))
    np.testing.assert_allclose(matrix[np.ix_(MASK, MASK)], q, rtol=1e-10)
    np.testing.assert_allclose(columns[MASK], cross, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(diagonal[MASK], np.diag(q), rtol=1e-10)
    np.testing.assert_allclose(rows[0, MASK], q[0], rtol=1e-10)
    np.testing.assert_allclose(product[MASK], q @ v[MASK], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(at_new, cross.T @ v[MASK], rtol=1e-9, atol=1e-12)


def test_derivatives_to_second_order_also_in_the_inducing_rows():
    model = kx.Model(KERNEL, noise=0.3)
    vector, rebuild = kx.parameters.ravel(model)
    size = vector.size

    def ours(v):
        c = kx.condition(rebuild(v[:size]), kx.Data(X, Y), kx.LowRank(inducing=v[size:].reshape(Z.shape)))
        value = kx.log_marginal_likelihood(c) + jnp.sum(jnp.sin(kx.mean(c, NEW))) + jnp.sum(kx.variance(c, NEW) ** 2)
        return value + kx.loo_mse(c) + jnp.sum(kx.covariance(c, NEW) ** 2) + kx.kfold_mse(c, 3)

    def plain(v):
        m = rebuild(v[:size])
        z = v[size:].reshape(Z.shape)
        bound, mean, covariance, loo = oracle(m.kernel, m.noise, z, jnp.asarray(X), jnp.asarray(Y), jnp.asarray(NEW))
        q, _, _, _ = approximation(m.kernel, z, jnp.asarray(X), jnp.asarray(NEW))
        inverse = jnp.linalg.inv(q + m.noise * jnp.eye(12))
        folds = np.arange(12).reshape(3, 4)
        held = [jnp.linalg.inv(inverse[np.ix_(f, f)]) @ (inverse @ Y)[f] for f in folds]
        value = bound + jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.diagonal(covariance) ** 2) + jnp.mean(loo**2)
        return value + jnp.sum(covariance**2) + jnp.mean(jnp.concatenate(held) ** 2)

    second_derivatives(ours, plain, jnp.concatenate([vector, Z.reshape(-1)]), rtol=1e-9)


def of_rank(rank, kernel, x, mask=None, **options):
    """The solver settled for these rows."""
    mask = np.ones(len(x), bool) if mask is None else mask
    return kx.LowRank(rank, **options).settled(gram_of(as_dtype(kernel, x.dtype), jnp.asarray(x), jnp.asarray(mask)))


def share_left(kernel, x, z):
    """What the rows z leave of the trace over x, in NumPy."""
    matrix, cross = np.asarray(kernel(x)), np.asarray(kernel(z, x))
    return 1.0 - np.sum(cross * np.linalg.lstsq(np.asarray(kernel(z)), cross, rcond=1e-14)[0]) / np.trace(matrix)


def test_rows_are_drawn_in_proportion_to_the_variance_that_is_left():
    """The first two of eight, which one round proposes together: as often as the slow algorithm would draw each pair."""
    x, mask = X[:6], np.array([True, True, True, False, True, True])
    kernel = kx.Linear(variance=[2.0, 0.5]) * kx.RBF(lengthscale=1.5) + 0.3 * kx.Matern52(0.8)
    gram = gram_of(kernel, jnp.asarray(np.concatenate([x, x])), jnp.asarray(np.append(mask, np.zeros(6, bool))))
    number = 4000
    keys = jax.random.split(jax.random.key(0), number)
    pairs_drawn = np.asarray(jax.jit(jax.vmap(lambda key: pivots(gram, 8, 0.0, key)[0][:2]))(keys))
    matrix = np.where(mask[:, None] & mask, np.asarray(kernel(x)), 0.0)
    expected = np.zeros((6, 6))
    for i in np.flatnonzero(mask):
        left = np.maximum(np.diag(matrix) - matrix[i] ** 2 / matrix[i, i], 0.0)
        left[i] = 0.0
        expected[i] = matrix[i, i] / np.trace(matrix) * left / left.sum()
    found = np.zeros((6, 6))
    np.add.at(found, tuple(pairs_drawn.T), 1.0 / number)
    np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(expected.max() / number))
    assert not np.any(found[~mask])


def test_the_choice_is_the_same_at_every_call_and_is_made_anew_when_asked_again():
    kernel, data = kx.Matern52([0.3, 2.0]), kx.Data(X, Y, MASK)
    first, again = (of_rank(5, kernel, X, MASK) for _ in range(2))
    np.testing.assert_array_equal(first.inducing, again.inducing)
    rows = {tuple(row) for row in np.asarray(first.inducing)}
    assert len(rows) == 5
    assert rows <= {tuple(row) for row in X[MASK]}
    assert not np.array_equal(of_rank(5, kernel, X, MASK, seed=1).inducing, first.inducing)
    # Settled again for another kernel: other rows, of the same number; and as if it had not been settled before.
    other = gram_of(kx.Matern52([2.0, 0.3]), data.x, data.mask)
    renewed = first.settled(other)
    assert jax.tree.map(jnp.shape, renewed) == jax.tree.map(jnp.shape, first)
    np.testing.assert_array_equal(renewed.inducing, kx.LowRank(5).settled(other).inducing)
    assert not np.array_equal(renewed.inducing, first.inducing)
    # Rows that were given, and features, stay.
    given, plain = kx.LowRank(inducing=Z), kx.LowRank(5)
    assert given.settled(other) is given
    assert plain.settled(gram_of(kx.Linear(), data.x, data.mask)) is plain


def test_no_more_rows_are_chosen_than_the_tolerance_needs():
    x = np.random.default_rng(4).uniform(size=(300, 2))
    kernel = 2.0 * kx.RBF(lengthscale=0.7)
    numbers = []
    for tolerance in (1e-2, 1e-4, 1e-7):
        settled = of_rank(100, kernel, x, tolerance=tolerance)
        used = np.asarray(settled.chosen)
        assert settled.inducing.shape == (100, 2)
        assert share_left(kernel, x, np.asarray(settled.inducing)[used]) < tolerance
        numbers.append(used.sum())
    assert 3 < numbers[0] < numbers[1] < numbers[2] < 100
    # Places that are not in use change nothing.
    c = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(x, x[:, 0]), settled)
    same = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(x, x[:, 0]), kx.LowRank(inducing=settled.inducing[used]))
    np.testing.assert_allclose(kx.mean(c, NEW), kx.mean(same, NEW), rtol=1e-8)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), kx.log_marginal_likelihood(same), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_twins_by_the_thousand_constant_columns_and_equal_rows(dtype):
    """3000 rows, of which 40 differ: each is chosen at most once, and of rows that are all equal there is one."""
    few = np.random.default_rng(5).normal(size=(40, 3)).astype(dtype)
    few[:, 1] = 7.0
    x = few[np.random.default_rng(6).integers(40, size=3000)]
    settled = of_rank(200, kx.Matern32(1.0), x)
    chosen = np.asarray(settled.inducing)[np.asarray(settled.chosen)]
    assert len(chosen) == len(np.unique(chosen, axis=0)) == len(np.unique(x, axis=0))
    c = kx.condition(kx.Model(kx.Matern32(1.0), noise=0.1), kx.Data(x, np.sin(x[:, 0])), kx.LowRank(200))
    assert c.result == kx.Result.successful
    assert np.isfinite(kx.loo_mse(c))
    equal = np.ones((500, 2), dtype)
    assert of_rank(20, kx.RBF(), equal).chosen.sum() == 1
    c = kx.condition(kx.Model(kx.RBF(), noise=0.5), kx.Data(equal, np.arange(500.0, dtype=dtype)), kx.LowRank(20))
    np.testing.assert_allclose(kx.mean(c, equal[:1]), 249.5 * 500 / 500.5, rtol=1e-4)


def test_tiles_give_the_same_numbers_as_one_piece(monkeypatch):
    """37 rows in tiles of 5: value, gradient and curvature of the likelihood, also in a rough kernel's parameters."""
    rng = np.random.default_rng(8)
    x, y, mask = rng.normal(size=(37, 2)), rng.normal(size=37), np.arange(37) % 6 != 2

    def numbers(noise):
        vector, rebuild = kx.parameters.ravel(kx.Model(1.3 * kx.Matern32([0.8, 1.2]), noise=noise))
        along = jnp.cos(jnp.arange(vector.size, dtype=vector.dtype))

        def value(v):
            return kx.log_marginal_likelihood(kx.condition(rebuild(v), kx.Data(x, y, mask), kx.LowRank(inducing=x[:4])))

        @jax.jit
        def program(v):
            return jax.jvp(jax.value_and_grad(value), (v,), (along,)), jax.jvp(value, (v,), (along,))

        return jax.tree.map(np.asarray, program(vector))

    noises = 0.3, np.linspace(0.1, 2.0, 37)
    whole = [numbers(noise) for noise in noises]
    jax.clear_caches()  # programs made with other tiles
    monkeypatch.setattr(_features, "_ENTRIES", 20)
    monkeypatch.setattr(_features, "_WHOLE", 1)
    tiles = [numbers(noise) for noise in noises]
    jax.clear_caches()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), tiles, whole)


def test_the_likelihood_and_its_gradient_keep_one_array_of_features():
    """Compiled, not run. Autodiff through all steps would plan about ten of them."""
    model, n, rank = kx.Model(1.2 * kx.RBF(np.ones(4)), noise=0.1), 50_000, 256
    rows = jax.eval_shape(lambda: kx.Data(jnp.zeros((n, 4)), jnp.zeros(n)))

    def value(model, data, inducing):
        return kx.log_marginal_likelihood(kx.condition(model, data, kx.LowRank(inducing=inducing)))

    program = jax.jit(jax.value_and_grad(value)).lower(model, rows, jnp.zeros((rank, 4))).compile()
    assert program.memory_analysis().temp_size_in_bytes < 1.7 * 8 * n * rank


def test_all_rows_as_inducing_rows_are_exact_whatever_rank_and_padding():
    model = kx.Model(kx.Matern32(0.7), noise=0.1)
    plain, padded = kx.Data(X[MASK], Y[MASK]), kx.Data(X, Y, MASK)
    exact = answers(model, plain, kx.Cholesky(), NEW)
    for data in (plain, padded):
        ours = answers(model, data, kx.LowRank(1000), NEW)
        np.testing.assert_allclose(ours[0], exact[0], rtol=1e-10)
        np.testing.assert_allclose(ours[2], exact[2], rtol=1e-9)
    assert kx.selection.likelihood_terms(kx.condition(model, padded, kx.LowRank(1000))).correction == 0


def test_exhausted_variances_repeated_rows_and_too_many_pivots_give_numbers():
    """A kernel so smooth that few rows explain all, and rows twice: nothing is left to choose, and nothing is NaN."""
    x = np.repeat(np.linspace(0.0, 1.0, 15), 2)[:, None]
    y = np.sin(x[:, 0])
    model = kx.Model(kx.RBF(lengthscale=5.0), noise=1e-2)
    exact = answers(model, kx.Data(x, y), kx.Cholesky(), x[:5])
    for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 2e-3)):
        ours = answers(model, kx.Data(x.astype(dtype), y.astype(dtype)), kx.LowRank(30), x[:5].astype(dtype))
        np.testing.assert_allclose(ours[1], exact[1], rtol=tolerance)
        np.testing.assert_allclose(ours[0], exact[0], rtol=tolerance, atol=tolerance)
    # The same row as an inducing row again adds nothing.
    once, twice = (answers(model, kx.Data(x, y), kx.LowRank(inducing=z), NEW[:, :1])[1] for z in (x[:4:2], x[:4]))
    np.testing.assert_allclose(twice, once, rtol=1e-12)


def test_the_likelihood_is_a_lower_bound_once_for_every_output():
    model, ys = kx.Model(KERNEL, noise=0.1), np.stack([Y, np.cos(X[:, 1])], axis=1)

    exact = answers(model, kx.Data(X, Y), kx.Cholesky(), NEW)[0]
    few, some, all_rows = (answers(model, kx.Data(X, Y), kx.LowRank(rank), NEW)[0] for rank in (2, 5, 12))
    assert few < some < exact - 1e-3
    np.testing.assert_allclose(all_rows, exact, rtol=1e-8)
    both = answers(model, kx.Data(X, ys), kx.LowRank(5), NEW)
    other = answers(model, kx.Data(X, ys[:, 1]), kx.LowRank(5), NEW)[0]
    np.testing.assert_allclose(both[0], some + other, rtol=1e-10)
    assert both[1].shape == (5, 2)


def test_no_variance_is_negative():
    x = RNG.uniform(size=(40, 1)).astype("float32")
    c = kx.condition(kx.Model(kx.RBF(0.5), noise=1e-5), kx.Data(x, np.sin(x[:, 0])), kx.LowRank(20))
    prediction = kx.predict(c, np.concatenate([x, np.linspace(-1, 2, 200, dtype="float32")[:, None]]))
    assert prediction.num_clamped == 0
    assert np.all(prediction.variance >= 0)
    assert np.isfinite(prediction.mean).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_that_is_0_or_below_rounding_gets_a_jitter_that_is_reported(dtype):
    x, y = X.astype(dtype), Y.astype(dtype)
    solver = kx.LowRank(4)
    with pytest.raises(kx.FailedError, match=r"noise 0 .* Give a positive noise"):
        kx.condition(kx.Model(KERNEL, noise=0.0), kx.Data(x, y), solver)

    def value(noise):
        c = kx.condition(kx.Model(KERNEL, noise=noise), kx.Data(x, y), solver, throw=False)
        return jnp.sum(kx.mean(c, NEW.astype(dtype))) + 1e-9 * kx.log_marginal_likelihood(c), c

    program = eqx.filter_jit(jax.grad(value, has_aux=True))
    gradient, c = program(jnp.zeros((), dtype))
    assert c.result == kx.Result.singular
    assert 0 < c.jitter < 1e-3
    assert np.isfinite(gradient)
    # The answer of the least squares fit by the four features.
    features = np.asarray(c.system.gram.u, np.float64)
    weights = np.linalg.lstsq(features, Y, rcond=None)[0]
    expected = np.asarray(c.system.gram.features(jnp.asarray(NEW, dtype)), np.float64) @ weights
    np.testing.assert_allclose(kx.mean(c, NEW.astype(dtype)), expected, rtol=2e-2 if dtype == np.float32 else 1e-8)
    # Below rounding, but positive: the same, and no failure.
    _, tiny = program(jnp.asarray(1e-30, dtype))
    assert tiny.result == kx.Result.successful
    assert tiny.jitter == c.jitter
    # One row without noise is enough to need it.
    noise = np.where(np.arange(12) == 3, 0.0, 0.1)
    assert kx.condition(kx.Model(KERNEL, noise=noise), kx.Data(x, y), solver, throw=False).result == kx.Result.singular


class Indefinite(kx.AbstractKernel):
    """No kernel at all: its matrices have negative eigenvalues."""

    scale: jax.Array = kx.positive(default=1.0)

    def pair(self, a, b):
        return self.scale * jnp.abs(a[0] - b[0])


def test_a_failure_has_a_result_nan_answers_and_finite_gradients_behind_where():
    def value(model):
        c = kx.condition(model, kx.Data(X, Y), kx.LowRank(5), throw=False)
        numbers = kx.log_marginal_likelihood(c), kx.mean(c, NEW).sum(), kx.variance(c, NEW).sum(), kx.loo_mse(c)
        return jnp.where(c.ok, sum(numbers), 0.0), (c.result, jnp.stack(numbers))

    gradient, (result, numbers) = jax.jit(jax.grad(value, has_aux=True))(kx.Model(Indefinite(), noise=0.1))
    assert result == kx.Result.not_positive_definite
    assert np.isnan(numbers).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    empty = kx.condition(kx.Model(KERNEL, noise=0.1), kx.Data(X, Y, np.zeros(12, bool)), kx.LowRank(5), throw=False)
    assert empty.result == kx.Result.empty


def test_eigenvalues_are_those_of_the_approximation_and_zeros():
    @eqx.filter_jit
    def eigenvalues(kernel, solver):
        return kx.condition(kx.Model(kernel, noise=0.1), kx.Data(X, Y, MASK), solver).system.eigenvalues()

    q = np.asarray(approximation(KERNEL, Z, X[MASK], NEW)[0])
    ours = eigenvalues(KERNEL, kx.LowRank(inducing=Z))
    np.testing.assert_allclose(ours[:10], np.linalg.eigvalsh(q), atol=1e-12)
    assert np.isnan(ours[10:]).all()
    # More features than rows.
    kernel = kx.Polynomial(degree=4, offset=0.5)
    features = eigenvalues(kernel, kx.LowRank())
    np.testing.assert_allclose(features[:10], np.linalg.eigvalsh(np.asarray(kernel(X[MASK]))), rtol=1e-7, atol=1e-9)
    # First derivatives: the sum of eigenvalues is the trace.
    slope = jax.jit(jax.grad(lambda v: jnp.nansum(eigenvalues(v * kx.RBF(), kx.LowRank(inducing=Z)) ** 2)))(2.0)
    square = np.linalg.eigvalsh(np.asarray(approximation(kx.RBF(), Z, X[MASK], NEW)[0])) ** 2
    np.testing.assert_allclose(slope, 4.0 * square.sum(), rtol=1e-9)


def test_draws_have_the_covariance_of_the_system():
    c = kx.condition(kx.Model(KERNEL, noise=PER_ROW), kx.Data(X, Y, MASK), kx.LowRank(3))
    draws = np.asarray(c.system.draw(jax.random.key(0), 40000))
    expected = np.where(MASK[:, None] & MASK, np.asarray(c.system.operator.dense()), 0.0)
    np.testing.assert_allclose(draws @ draws.T / 40000, expected, atol=0.08)


def test_paths_and_choices_of_the_ridge_use_one_choice_of_features():
    model, data, solver = kx.Model(KERNEL, noise=1.0), kx.Data(X, Y, MASK), kx.LowRank(inducing=Z)
    ridges = np.array([0.01, 0.3, 5.0])
    path = kx.ridge_path(kx.condition(model, data, solver), ridges, folds=4)

    @jax.jit
    def alone(ridge):
        c = kx.condition(kx.Model(KERNEL, noise=ridge), data, solver)
        return kx.log_marginal_likelihood(c), kx.loo_mse(c), kx.gcv(c), kx.kfold_mse(c, 4)

    for i, ridge in enumerate(ridges):
        likelihood, *errors = alone(ridge)
        np.testing.assert_allclose(path.log_marginal_likelihood[i], likelihood, rtol=1e-10)
        np.testing.assert_allclose((path.loo_mse[i], path.gcv[i], path.kfold_mse[i]), errors, rtol=1e-9)
    for by in ("loo", "gcv", "l_curve", "discrepancy"):
        choice = kx.select_ridge(kx.Model(KERNEL, noise=0.3), data, by=by, solver=solver, throw=False)
        assert choice.conditioned.solver is solver or choice.conditioned.system.gram.rank == 4


def test_leave_one_out_equals_refits_with_the_same_features():
    c = kx.condition(kx.Model(KERNEL, noise=0.2), kx.Data(X, Y), kx.LowRank(inducing=Z))
    q, *_ = approximation(KERNEL, Z, X, NEW)
    q = np.asarray(q)
    expected = []
    for i in range(12):
        rest = np.delete(np.arange(12), i)
        weights = np.linalg.solve(q[np.ix_(rest, rest)] + 0.2 * np.eye(11), Y[rest])
        expected.append(Y[i] - q[i, rest] @ weights)
    np.testing.assert_allclose(kx.loo_residuals(c), expected, rtol=1e-10)


@pytest.mark.parametrize("kernel", [kx.CubicSpline(), kx.RBF(0.3)], ids=["spline", "trend"])
def test_splines_and_trends_at_full_rank_equal_the_dense_answer(kernel):
    x = np.linspace(0.0, 1.0, 14)[:, None]
    y = 3.0 + 2.0 * x[:, 0] + np.sin(6.0 * x[:, 0])
    model = kx.Model(kernel, noise=1e-3, trend=None if kernel.trend() is not None else 1)
    new = np.linspace(-0.2, 1.2, 7)[:, None]
    exact, ours = (answers(model, kx.Data(x, y), solver, new) for solver in (kx.Cholesky(), kx.LowRank(14)))
    for mine, theirs, tolerance in zip(ours, exact, (1e-6, 1e-6, 1e-5, 1e-5), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance)


def test_a_fit_chooses_rows_anew_and_keeps_those_that_are_given():
    """Rows that suit the start do not suit the end; between two choices the objective is one smooth function."""
    model, data = kx.Model(1.0 * kx.RBF(lengthscale=[0.2, 3.0]), noise=0.3), kx.Data(X, Y)
    fit = kx.fit(model, data, solver=kx.LowRank(4), max_steps=100)
    assert fit.result == kx.Result.successful
    assert fit.num_refreshes == 2
    start = of_rank(4, model.kernel, X)
    given = kx.fit(model, data, solver=kx.LowRank(inducing=start.inducing), max_steps=100)
    assert given.num_refreshes == 0
    there = kx.log_marginal_likelihood(kx.condition(given.model, data, kx.LowRank(inducing=start.inducing)))
    np.testing.assert_allclose(given.value, -there, rtol=1e-8)
    assert fit.value < given.value


def test_rows_of_labels_and_networks():
    """Integers in a structure stay integers as inducing rows, and a network in the kernel is no array."""
    network = eqx.nn.MLP(2, 2, 3, 1, activation=jnp.tanh, key=jax.random.key(0))
    noise = kx.noises.PerGroup("task", [0.1, 0.4])
    model = kx.Model(kx.Select(kx.Warp(kx.RBF(0.8), network), key="x"), noise=noise)
    data = kx.Data({"x": X, "task": np.arange(12) % 2}, Y)
    new = {"x": NEW, "task": np.arange(5) % 2}

    @eqx.filter_jit
    def slope_and_mean(model, solver):
        def value(model):
            c = kx.condition(model, data, solver)
            return kx.log_marginal_likelihood(c), kx.mean(c, new)

        return eqx.filter_grad(value, has_aux=True)(model)

    exact, ours = (slope_and_mean(model, solver) for solver in (kx.Cholesky(), kx.LowRank(12)))
    np.testing.assert_allclose(ours[1], exact[1], rtol=1e-8)
    for a, b in zip(*(jax.tree.leaves(answer[0]) for answer in (ours, exact)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    settled = kx.LowRank(5).settled(gram_of(model.kernel, data.x, data.mask))
    assert settled.inducing["task"].dtype == data.x["task"].dtype


def test_wrong_options_are_refused_with_the_remedy():
    data = kx.Data(X, Y)
    with pytest.raises(ValueError, match=r"LowRank\.rank must be a whole number of at least 1"):
        kx.LowRank(0)
    with pytest.raises(ValueError, match=r"LowRank\.tolerance must lie between 0 and 1"):
        kx.LowRank(tolerance=1.5)
    with pytest.raises(ValueError, match=r"LowRank\.inducing has 1 columns, but x has 2"):
        kx.condition(kx.Model(KERNEL, noise=0.1), data, kx.LowRank(inducing=Z[:, :1]))
    with pytest.raises(ValueError, match=r"inducing has shape \(4,\)"):
        kx.LowRank(inducing=Z[:, 0])
    c = kx.condition(kx.Model(KERNEL, noise=0.1), data, kx.LowRank(3))
    with pytest.raises(TypeError, match="new rows from the same factorisation, which LowRank does not offer"):
        kx.extend(c, NEW, np.zeros(5))
