"""The laws of selectors and of moving to another noise: under jit and vmap, behind masks, with their derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx

SELECTORS = ("loo", "gcv", "kfold", "likelihood", "l_curve", "discrepancy")
N, PADDED = 12, 14
NOISE = 0.1


def dataset(seed):
    """A noisy sine, on which every selector has an answer inside its grid."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-2.0, 2.0, N))[:, None]
    return x, np.sin(2.0 * x[:, 0]) + 0.35 * rng.standard_normal(N)


SETS = [dataset(seed) for seed in (1, 2, 7)]
X, Y = SETS[1]


def padded(x, y, places):
    """The rows at some places of a longer dataset, garbage between them."""
    mask = np.isin(np.arange(PADDED), places)
    wide, values = np.full((PADDED, 1), 40.0), np.full(PADDED, -1e5)
    wide[places], values[places] = x, y
    return wide, values, mask


def choose(by, lengthscale, x, y, mask=None):
    model = kx.Model(kx.Matern52(lengthscale), noise=NOISE)
    return kx.select_ridge(model, kx.Data(x, y, mask), by, folds=3)


@functools.cache
def chosen(by):
    """The choice for each of the three datasets, one call after another."""
    return [choose(by, 1.0, x, y) for x, y in SETS]


@functools.cache
def batch(by):
    """Ridge, criterion, and the slopes of log ridge in lengthscale and targets: padded, compiled, three at once."""
    places = [np.arange(12), np.array([0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13]), np.arange(2, 14)]
    x, y, mask = (
        np.stack(arrays) for arrays in zip(*[padded(*s, p) for s, p in zip(SETS, places, strict=True)], strict=True)
    )

    def log_ridge(lengthscale, y, x, mask):
        choice = choose(by, lengthscale, x, y, mask)
        return jnp.log(choice.ridge), (choice.value, choice.result)

    function = jax.vmap(jax.value_and_grad(log_ridge, argnums=(0, 1), has_aux=True), in_axes=(None, 0, 0, 0))
    (places_on_axis, (value, result)), (by_lengthscale, by_y) = jax.jit(function)(1.0, y, x, mask)
    return (
        np.exp(places_on_axis),
        value,
        result,
        by_lengthscale,
        np.stack([np.asarray(slope)[p] for slope, p in zip(by_y, places, strict=True)]),
    )


@pytest.mark.parametrize("by", SELECTORS)
def test_compiled_batched_and_padded_is_one_call_after_another(by):
    ridges, values, result, _, _ = batch(by)
    assert np.all(result == kx.Result.successful)
    for ridge, value, choice in zip(ridges, values, chosen(by), strict=True):
        assert choice.result == kx.Result.successful
        assert ridge == pytest.approx(float(choice.ridge), rel=1e-7)
        assert value == pytest.approx(float(choice.value), rel=1e-9)
    assert len({round(float(ridge), 8) for ridge in ridges}) == 3


@pytest.mark.parametrize("by", SELECTORS)
def test_the_choice_is_differentiable(by):
    """In the lengthscale and in the targets: differences of choosing again."""
    _, _, _, by_lengthscale, by_y = batch(by)
    x, y = SETS[1]
    direction = np.cos(np.arange(N))

    def differences(function, step):
        near, far = (function(s) - function(-s) for s in (step, 2 * step))
        return (8 * near - far) / (12 * step)

    want = differences(lambda s: np.log(choose(by, 1.0 + s, x, y).ridge), 2e-3)
    assert by_lengthscale[1] == pytest.approx(float(want), rel=1e-4)
    want = differences(lambda s: np.log(choose(by, 1.0, x, y + s * direction).ridge), 2e-3)
    assert by_y[1] @ direction == pytest.approx(float(want), rel=1e-4)


@pytest.mark.parametrize("by", SELECTORS)
def test_the_choice_in_single_precision(by):
    single = choose(by, np.float32(1.0), X.astype("float32"), Y.astype("float32"))
    assert single.ridge.dtype == single.value.dtype == single.conditioned.alpha.dtype == jnp.float32
    assert single.result == kx.Result.successful
    double = chosen(by)[1]
    assert np.log(single.ridge) == pytest.approx(np.log(double.ridge), abs=0.02)
    assert single.value == pytest.approx(float(double.value), rel=1e-3)


def test_jit_alone_is_eager():
    choice = jax.jit(lambda x, y: choose("gcv", 1.0, x, y))(X, Y)
    assert choice.ridge == pytest.approx(float(chosen("gcv")[1].ridge), rel=1e-9)
    assert choice.by == "gcv"
    assert repr(chosen("gcv")[1]).startswith("RidgeChoice(by='gcv', ridge=0.0")


def test_the_choice_is_differentiable_for_the_folds_own_best_ridges():
    def ridge(y):
        return kx.select_ridge(
            kx.Model(kx.Matern52(1.0), noise=NOISE),
            kx.Data(X, y),
            "kfold",
            folds=2,
            rule="mean_of_best",
            ridges=np.geomspace(1e-6, 1e3, 30),
        ).ridge

    direction = np.cos(np.arange(N))
    slope = jax.jit(jax.grad(lambda s: ridge(Y + s * direction)))(0.0)
    step = 1e-3
    near, far = (ridge(Y + s * direction) - ridge(Y - s * direction) for s in (step, 2 * step))
    assert slope == pytest.approx(float(8 * near - far) / (12 * step), rel=1e-4)


# Another noise from the same eigendecomposition


X2 = np.random.default_rng(5).uniform(-2.0, 2.0, (N, 2))
Y2 = np.sin(X2[:, 0]) + X2[:, 1] + 0.2 * np.random.default_rng(6).standard_normal(N)
Z2 = np.random.default_rng(7).uniform(-2.0, 2.0, (4, 2))
THETA = np.array([0.9, 1.7, 0.3])
QUANTITIES = {
    "mean": lambda c: kx.mean(c, Z2),
    "variance": lambda c: kx.variance(c, Z2),
    "alpha": lambda c: c.alpha,
    "residuals": kx.loo_residuals,
    "loo variance": kx.loo_variance,
    "likelihood": kx.log_marginal_likelihood,
    "folds": lambda c: kx.kfold_residuals(c, 5),
    "gcv": kx.gcv,
    "degrees of freedom": kx.selection.effective_degrees_of_freedom,
}


def moved(theta):
    """Conditioned at one noise, then moved to another."""
    model = kx.Model(theta[1] * kx.RBF(theta[0]), noise=5.0)
    return kx.recondition(kx.condition(model, kx.Data(X2, Y2), kx.Eigh()), noise=theta[2])


def direct(theta):
    model = kx.Model(theta[1] * kx.RBF(theta[0]), noise=theta[2])
    return kx.condition(model, kx.Data(X2, Y2), kx.Cholesky())


def test_another_noise_is_as_if_conditioned_with_it():
    """All quantities, with their derivatives in lengthscale, variance and noise."""

    def with_slopes(make):
        def all_of_them(theta):
            c = make(theta)
            return {name: quantity(c) for name, quantity in QUANTITIES.items()}

        return jax.jit(lambda theta: (all_of_them(theta), jax.jacrev(all_of_them)(theta)))(THETA)

    (values, slopes), (wants, want_slopes) = with_slopes(moved), with_slopes(direct)
    for name in QUANTITIES:
        np.testing.assert_allclose(values[name], wants[name], rtol=1e-9, atol=1e-11, err_msg=name)
        np.testing.assert_allclose(slopes[name], want_slopes[name], rtol=1e-7, atol=1e-9, err_msg=name)
        assert np.max(np.abs(want_slopes[name])) > 1e-3


OBJECTIVES = {
    "likelihood": kx.selection.negative_log_marginal_likelihood,
    "loo": kx.loo_mse,
    "folds": functools.partial(kx.kfold_mse, folds=np.arange(N) % 4),
    "gcv": kx.gcv,
}


def scores(theta, make):
    c = make(theta)
    return jnp.stack([objective(c) for objective in OBJECTIVES.values()])


def scores_by_refits(theta):
    """The same in NumPy."""
    lengthscale, variance, noise = theta
    K = variance * np.exp(-((X2[:, None] - X2[None]) ** 2).sum(-1) / (2 * lengthscale**2))
    system = K + noise * np.eye(N)
    inverse = np.linalg.inv(system)
    alpha = inverse @ Y2
    likelihood = 0.5 * (Y2 @ alpha + np.linalg.slogdet(system)[1] + N * np.log(2 * np.pi))
    folds = 0.0
    for fold in range(4):
        out, rest = np.flatnonzero(np.arange(N) % 4 == fold), np.flatnonzero(np.arange(N) % 4 != fold)
        error = Y2[out] - K[np.ix_(out, rest)] @ np.linalg.solve(system[np.ix_(rest, rest)], Y2[rest])
        folds += np.mean(error**2) / 4
    loo = np.mean((alpha / np.diagonal(inverse)) ** 2)
    return np.array([likelihood, loo, folds, N * np.sum(alpha**2) / np.trace(inverse) ** 2])


@pytest.mark.parametrize("make", [moved, direct])
def test_second_derivatives(make):
    """Of every objective, by the rules of the spectral factor and of Cholesky's: second differences of refits."""
    np.testing.assert_allclose(scores(THETA, make), scores_by_refits(THETA), rtol=1e-9)
    hessians = jax.jit(jax.hessian(functools.partial(scores, make=make)))(THETA)
    steps = 1e-3 * np.eye(3)
    want = [
        [sum(p * q * scores_by_refits(THETA + p * a + q * b) for p in (1, -1) for q in (1, -1)) for b in steps]
        for a in steps
    ]
    want = np.moveaxis(np.array(want) / 4e-6, -1, 0)
    for name, mine, theirs in zip(OBJECTIVES, np.asarray(hessians), want, strict=True):
        np.testing.assert_allclose(mine, mine.T, rtol=0, atol=1e-9 * np.max(np.abs(theirs)), err_msg=name)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4 * np.max(np.abs(theirs)), err_msg=name)


def test_reverse_over_reverse_is_forward_over_reverse():
    slope = jax.grad(lambda theta: OBJECTIVES["folds"](moved(theta)))
    ways = [jax.jit(way(slope))(THETA) for way in (jax.jacfwd, jax.jacrev)]
    np.testing.assert_allclose(ways[0], ways[1], rtol=1e-8, atol=1e-10)


def test_many_noises_at_once():
    c = kx.condition(kx.Model(1.7 * kx.RBF(0.9), noise=5.0), kx.Data(X2, Y2), kx.Eigh())
    noises = np.array([0.01, 0.3, 8.0])
    means = jax.jit(jax.vmap(lambda noise: kx.mean(kx.recondition(c, noise=noise), Z2)))(noises)
    for noise, got in zip(noises, means, strict=True):
        want = kx.mean(kx.condition(kx.Model(1.7 * kx.RBF(0.9), noise=noise), kx.Data(X2, Y2)), Z2)
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_the_model_knows_its_new_noise():
    c = kx.recondition(kx.condition(kx.Model(kx.RBF(), noise=5.0), kx.Data(X2, Y2), kx.Eigh()), noise=0.3)
    assert c.model.noise == 0.3
    observed = kx.variance(c, Z2, noisy=True)
    np.testing.assert_allclose(observed - kx.variance(c, Z2), 0.3, rtol=1e-12)


# The smoother


def hat(noise):
    K = 1.7 * np.exp(-((X2[:, None] - X2[None]) ** 2).sum(-1) / (2 * 0.9**2))
    return np.linalg.solve(K + np.diag(np.broadcast_to(noise, N)), K).T


@pytest.mark.parametrize("solver", [kx.Cholesky(), kx.Eigh()], ids=repr)
@pytest.mark.parametrize("noise", [0.3, np.linspace(0.05, 2.0, N), 40.0], ids=["common", "per row", "large"])
def test_degrees_of_freedom_and_gcv_are_those_of_the_hat_matrix(solver, noise):
    H = hat(noise)
    for y in (Y2, np.stack([Y2, Y2**2, X2[:, 0]], axis=1)):
        c = kx.condition(kx.Model(1.7 * kx.RBF(0.9), noise=noise), kx.Data(X2, y), solver)
        assert kx.selection.effective_degrees_of_freedom(c) == pytest.approx(np.trace(H), rel=1e-9)
        want = np.mean((y - H @ y) ** 2) / (1 - np.trace(H) / N) ** 2
        assert kx.gcv(c) == pytest.approx(want, rel=1e-9)


def test_gcv_without_noise_is_its_limit():
    """0/0 by its formula; `n ‖K⁻¹y‖² / tr(K⁻¹)²` in truth."""
    c = kx.condition(kx.Model(kx.Matern12(), noise=0.0), kx.Data(X2, Y2))
    near = kx.condition(kx.Model(kx.Matern12(), noise=1e-7), kx.Data(X2, Y2))
    inverse = np.linalg.inv(np.exp(-np.sqrt(((X2[:, None] - X2[None]) ** 2).sum(-1))))
    assert kx.gcv(c) == pytest.approx(N * np.sum((inverse @ Y2) ** 2) / np.trace(inverse) ** 2, rel=1e-9)
    assert kx.gcv(c) == pytest.approx(float(kx.gcv(near)), rel=1e-5)
    assert kx.selection.effective_degrees_of_freedom(c) == pytest.approx(N, rel=1e-12)

    def score(noise):
        return kx.gcv(kx.condition(kx.Model(kx.Matern12(), noise=noise), kx.Data(X2, Y2)))

    slope = jax.grad(score)(0.0)
    assert slope == pytest.approx(float(score(1e-5) - score(0.0)) / 1e-5, rel=1e-3)
