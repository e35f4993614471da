"""Committees: bagging and L2 boosting, against scikit-learn's, refits by brute force, and scipy's splines."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import RBFInterpolator
from scipy.stats import multivariate_normal
from sklearn.ensemble import BaggingRegressor
from sklearn.kernel_ridge import KernelRidge

import kernax as kx
from kernax import learners
from kernax.learners._resampling import drawn_counts
from kernax.learners._residual_boosting import _least
from kernax.solvers import FailedError, Result


def padded(x, y):
    """The rows among others that do not count and hold garbage, at the beginning and at the end."""
    garbage = [np.full((1, *part.shape[1:]), np.nan, part.dtype) for part in (x, y)]
    x, y = (np.concatenate([some, part, some]) for some, part in zip(garbage, (x, y), strict=True))
    return kx.Data(x, y, mask=np.isfinite(x[:, 0]))


_rng = np.random.default_rng(11)
N, NOISE, LENGTHSCALE = 14, 0.3, 0.8
X = _rng.uniform(-2.0, 2.0, size=(N, 2))
Y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * _rng.normal(size=N)
Z = _rng.uniform(-2.0, 2.0, size=(5, 2))
TWO = np.stack([Y, np.cos(X[:, 1])], axis=1)
MODEL = kx.Model(kx.RBF(lengthscale=LENGTHSCALE), noise=NOISE)
# All comparisons are made with padding: it is to change nothing.
DATA = padded(X, Y)
SICK = eqx.tree_at(lambda data: data.y, DATA, DATA.y.at[1 + 3].set(jnp.nan))
EMPTY = eqx.tree_at(lambda data: data.mask, DATA, jnp.zeros(N + 2, bool))
KEY = jax.random.key(3)


def krr(noise=NOISE, lengthscale=LENGTHSCALE):
    return KernelRidge(alpha=noise, kernel="rbf", gamma=0.5 / lengthscale**2)


def assert_close(actual, desired, tolerance=1e-10):
    np.testing.assert_allclose(actual, desired, rtol=tolerance, atol=tolerance)


def slopes(values, step):
    """Central differences from the values at the ends of steps up and down each axis, in that order."""
    up, down = np.split(np.asarray(values), 2)
    return (up - down) / (2 * step)


def around(at, step):
    moves = step * np.eye(len(at))
    return jnp.asarray(np.concatenate([at + moves, at - moves]))


@pytest.fixture(scope="module")
def committee():
    return learners.bagged(MODEL, DATA, members=6, key=KEY)


# Bagging


def test_the_committee_is_that_of_scikit_learn():
    """The same draws: prediction, members, spread, and what is out of bag."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some rows are never out of bag
        theirs = BaggingRegressor(krr(), n_estimators=6, oob_score=True, random_state=1).fit(X, Y)
    counts = np.stack([np.bincount(rows, minlength=N) for rows in theirs.estimators_samples_])
    # Counts of rows that do not count are no counts.
    ours = learners.bagged(MODEL, DATA, counts=np.pad(counts, ((0, 0), (1, 1)), constant_values=2))
    assert_close(ours(Z), theirs.predict(Z))
    each = np.stack([one.predict(Z) for one in theirs.estimators_])
    assert_close(ours.members_at(Z), each)
    assert_close(ours.spread(Z), each.std(axis=0))
    some = (counts == 0).any(axis=0)
    np.testing.assert_array_equal(ours.oob_counts, np.pad(np.sum(counts == 0, axis=0), 1))
    assert 0 < ours.num_never_oob == np.sum(~some) < N
    predictions = ours.oob_predictions[1:-1]
    assert_close(predictions[some], theirs.oob_prediction_[some])
    assert np.isnan(predictions[~some]).all()
    assert_close(ours.oob_error, np.mean((Y - theirs.oob_prediction_)[some] ** 2))


def test_what_is_drawn():
    """Subsets, shares, chances; more members and padding leave the draws as they are."""
    data, draw = kx.Data(X, Y), drawn_counts
    counts = np.asarray(draw(DATA, 6, KEY, 1.0, True, None))
    many = np.asarray(draw(data, 4000, KEY, 1.0, True, None))
    np.testing.assert_array_equal(np.pad(many[:6], ((0, 0), (1, 1))), counts)
    assert (np.asarray(draw(DATA, 6, KEY, 0.01, True, None)).sum(axis=1) == 1).all()
    subsets = np.asarray(draw(data, 4000, KEY, 0.5, False, None))
    assert subsets.max() == 1
    assert (subsets.sum(axis=1) == 7).all()
    assert_close(subsets.mean(axis=0), np.full(N, 0.5), 0.03)
    chances = np.arange(N) / np.sum(np.arange(N))
    assert_close(np.asarray(draw(data, 4000, KEY, 1.0, True, chances)).mean(axis=0) / N, chances, 0.01)
    first = np.asarray(draw(data, 4000, KEY, 1 / N, False, 5.0 * chances))
    assert_close(first.mean(axis=0), chances, 0.03)
    assert first[:, 0].sum() == 0


def test_committees_are_differentiable_and_a_batch_is_the_single_ones(committee):
    def score(vector, y):
        model = kx.Model(vector[0] * kx.RBF(lengthscale=vector[1]), noise=vector[2])
        ours = learners.bagged(model, eqx.tree_at(lambda data: data.y, DATA, y), members=6, key=KEY)
        return ours.oob_error

    at = np.array([1.0, LENGTHSCALE, NOISE])
    vectors = around(at, 1e-6)
    targets = jnp.concatenate([jnp.broadcast_to(DATA.y, (7, N + 2)), SICK.y[None]])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(score)))(
        jnp.concatenate([vectors, jnp.stack([at, at])]), targets
    )
    assert_close(values[6], committee.oob_error)
    assert_close(gradients[6], slopes(values[:6], 1e-6), 1e-7)
    # Members that fail leave no NaN in the gradient of the others.
    assert np.isfinite(gradients[7]).all()
    assert (gradients[7] != 0).all()


def test_members_that_fail_are_left_out(committee):
    """One row is NaN: those who have seen it say so, and the others are as they were."""
    ours = learners.bagged(MODEL, SICK, members=6, key=KEY)
    seen = np.asarray(committee.counts)[:, 1 + 3] > 0
    assert 0 < seen.sum() < 6
    assert ours.num_failed == seen.sum()
    assert f"{seen.sum()} failed" in repr(ours)
    np.testing.assert_array_equal(ours.ok, ~seen)
    np.testing.assert_array_equal(ours.result == Result.nonfinite, seen)
    each, members = np.asarray(committee.members_at(Z)), np.asarray(ours.members_at(Z))
    assert np.isnan(members[seen]).all()
    assert_close(members[~seen], each[~seen], 1e-13)
    assert_close(ours(Z), each[~seen].mean(axis=0))
    assert_close(ours.spread(Z), each[~seen].std(axis=0))
    assert np.isfinite(ours.oob_error)
    assert np.isnan(ours.oob_predictions[1 + 3])


def test_splines_outputs_and_members_that_see_too_few_rows():
    """A straight line wants two rows: a member with one has a status; the others are scipy's, with copies of rows."""
    counts = np.zeros((3, N), int)
    counts[0, 4], counts[1], counts[2, ::2] = 9, 1, 2
    x, z = X[:, :1], Z[:, :1]
    ours = learners.bagged(kx.Model(kx.CubicSpline(), NOISE), kx.Data(x, TWO), counts=counts)
    np.testing.assert_array_equal(ours.ok, [False, True, True])
    np.testing.assert_array_equal(ours.result == Result.rank_deficient, [True, False, False])
    rows = np.repeat(np.arange(0, N, 2), 2)
    cubic = {"kernel": "cubic", "degree": 1, "smoothing": 12 * NOISE}
    whole, half = RBFInterpolator(x, TWO, **cubic), RBFInterpolator(x[rows], TWO[rows], **cubic)
    assert_close(ours.members_at(z)[1:], [whole(z), half(z)], 1e-8)
    assert_close(ours.oob_predictions[1::2], half(x[1::2]), 1e-8)


def test_fitted_members():
    """Each has the hyperparameters of its own rows, and the predictions of scikit-learn with those, copies included."""
    ours = learners.bagged(MODEL, DATA, members=6, key=KEY, fit_members=True, max_steps=30)
    assert ours.ok.all()
    members = ours.members_at(Z)
    for member, counts in enumerate(np.asarray(ours.counts)[:, 1:-1]):
        fit = ours.fits[member]
        noise, lengthscale = float(fit.model.noise), float(fit.model.kernel.lengthscale)
        rows, some = np.repeat(np.arange(N), counts), counts > 0
        assert_close(members[member], krr(noise, lengthscale).fit(X[rows], Y[rows]).predict(Z), 1e-6)
        gram = np.exp(-0.5 * np.sum((X[some, None] - X[some]) ** 2, axis=2) / lengthscale**2)
        assert_close(fit.value, -multivariate_normal(cov=gram + noise * np.eye(some.sum())).logpdf(Y[some]), 1e-6)
    assert np.ptp(ours.fits.model.noise) > 0.01


def test_one_row_one_member_and_none():
    one = learners.bagged(MODEL, kx.Data(X[:1], Y[:1]), members=1, key=KEY, fraction=0.2)
    assert_close(one(Z), krr().fit(X[:1], Y[:1]).predict(Z))
    assert one.num_never_oob == 1
    with pytest.raises(FailedError, match=r"every member of the committee failed\. empty"):
        learners.bagged(MODEL, EMPTY, members=6, key=KEY)
    none = learners.bagged(MODEL, EMPTY, members=6, key=KEY, throw=False)
    assert none.num_failed == 6
    assert np.isnan(none(Z)).all()
    assert (none.result == Result.empty).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, r"give key=jax.random.key\(0\)"),
        ({"key": 0}, TypeError, "key must be one of JAX's"),
        ({"key": jax.random.split(KEY)}, TypeError, "key must be one of JAX's"),
        ({"key": KEY, "fraction": 1.5}, ValueError, "fraction must be above 0"),
        ({"key": KEY, "fraction": 0}, ValueError, "fraction must be above 0"),
        ({"key": KEY, "members": 0}, ValueError, "members must be a whole number"),
        ({"key": KEY, "weights": np.ones(3)}, ValueError, "weights must be 16 numbers"),
        ({"key": KEY, "weights": np.zeros(N + 2)}, ValueError, "not all be 0"),
        ({"counts": np.ones((2, 3), int)}, ValueError, r"of shape \(members, 16\)"),
        ({"counts": np.ones((2, N + 2))}, ValueError, "whole numbers"),
        ({"counts": -np.ones((2, N + 2), int)}, ValueError, "0 or more"),
        ({"counts": np.ones((2, N + 2), int), "key": KEY}, ValueError, "give either counts= or key="),
        ({"key": KEY, "max_steps": 3}, TypeError, "need fit_members=True"),
        ({"key": KEY, "members": 6, "fit_members": True, "shared": True}, ValueError, "kx.fit instead"),
        ({"key": KEY, "solver": "eigh"}, TypeError, "configured instance"),
    ],
)
def test_what_committees_refuse(options, error, words):
    with pytest.raises(error, match=words):
        learners.bagged(MODEL, DATA, **options)


def test_what_a_committee_refuses_to_predict(committee):
    with pytest.raises(ValueError, match="x has 1 columns, but the data of the committee has 2 columns"):
        committee(Z[:, :1])
    with pytest.raises(ValueError, match="NaN"):
        committee(np.full((1, 2), np.nan))


# Boosting


def boosted_by_refits(x, y, z, rounds, rate, level=0.0):
    """scikit-learn fitted to the residuals, round by round: values at x and at z after every round."""
    here, there = [np.full_like(y, level)], [np.full((len(z), *y.shape[1:]), level)]
    for _ in range(rounds):
        weak = krr().fit(x, y - here[-1])
        here.append(here[-1] + rate * weak.predict(x))
        there.append(there[-1] + rate * weak.predict(z))
    return np.stack(here), np.stack(there)


def test_boosting_is_refitting_to_the_residuals():
    """Every round, its errors, its degrees of freedom, and the choice of rounds by validation."""
    here, there = boosted_by_refits(X, Y, Z, 12, 0.5)
    checks = there[7] + np.array([0.01, -0.02, 0.01, -0.01, 0.02])
    ours = learners.boosted(MODEL, DATA, rounds=12, learning_rate=0.5, validation=padded(Z, checks))
    assert_close(ours.staged(Z), there)
    assert_close(ours.training_error, np.mean((Y - here) ** 2, axis=1))
    gram = np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, axis=2) / LENGTHSCALE**2)
    left = np.eye(N) - 0.5 * gram @ np.linalg.inv(gram + NOISE * np.eye(N))
    traces = np.array([np.trace(np.linalg.matrix_power(left, t)) for t in range(13)])
    assert_close(ours.effective_degrees_of_freedom, N - traces)
    assert_close(ours.gcv, np.mean((Y - here) ** 2, axis=1) / (traces / N) ** 2)
    errors = np.mean((checks - there) ** 2, axis=1)
    assert_close(ours.validation_error, errors)
    assert 0 < ours.num_rounds == errors.argmin() < 12
    assert ours.result == Result.successful
    assert_close(ours(Z), there[errors.argmin()])
    assert f"{errors.argmin()} of 12 rounds" in repr(ours)


def test_the_rounds_that_are_best():
    """By GCV, none of pure noise; at the last round the status says so. Patience ends a search before a lower score."""
    nothing, little = (padded(X, np.random.default_rng(seed).normal(size=N)) for seed in (0, 1))
    assert learners.boosted(MODEL, nothing, rounds=12, learning_rate=0.5, by="gcv").num_rounds == 0
    ours = learners.boosted(MODEL, little, rounds=12, learning_rate=0.5, by="gcv")
    assert 0 < ours.num_rounds == np.asarray(ours.gcv).argmin() < 12
    short = learners.boosted(MODEL, DATA, rounds=12, learning_rate=0.01, by="gcv")
    assert short.num_rounds == 12
    assert short.result == Result.max_steps_reached
    assert short.ok
    scores = jnp.array([5.0, 4.0, 4.5, 4.0, jnp.nan, 3.0, 1.0])
    assert [int(_least(scores, patience)) for patience in (1, 3, 4, None)] == [1, 1, 6, 6]


def test_outputs_means_and_single_precision():
    model = kx.Model(kx.RBF(lengthscale=LENGTHSCALE), noise=NOISE, mean=0.5)
    z = Z.astype(np.float32)
    ours = learners.boosted(model, padded(X.astype(np.float32), TWO.astype(np.float32)), rounds=12, learning_rate=0.5)
    here, there = boosted_by_refits(X, TWO, Z, 12, 0.5, level=0.5)
    assert ours.staged(z).dtype == ours.gcv.dtype == np.float32
    assert ours.num_rounds == 12
    assert_close(ours.staged(z), there, 1e-4)
    assert_close(ours.training_error, np.mean((TWO - here) ** 2, axis=(1, 2)), 1e-4)


def test_boosting_is_differentiable_and_a_batch_is_the_single_ones():
    def score(vector):
        model = kx.Model(vector[0] * kx.RBF(lengthscale=vector[1]), noise=vector[2], mean=vector[3])
        ours = learners.boosted(model, DATA, rounds=5, learning_rate=vector[4])
        total = jnp.sum(ours(Z)) + ours.gcv[5] + ours.effective_degrees_of_freedom[3]
        return total, ours.result

    at = np.array([1.0, LENGTHSCALE, NOISE, 0.0, 0.5])
    vectors = jnp.concatenate([around(at, 1e-6), jnp.stack([at, at + np.array([0.0, 0.0, 0.0, 0.0, 1.0])])])
    (values, results), gradients = jax.jit(jax.vmap(jax.value_and_grad(score, has_aux=True)))(vectors)
    single = learners.boosted(MODEL, DATA, rounds=12, learning_rate=0.5, by="gcv")
    _, there = boosted_by_refits(X, Y, Z, 5, 0.5)
    assert_close(values[10], np.sum(there[5]) + single.gcv[5] + single.effective_degrees_of_freedom[3])
    assert_close(gradients[10], slopes(values[:10], 1e-6), 1e-6)
    # A traced learning rate cannot be refused.
    np.testing.assert_array_equal(results == Result.nonfinite, np.arange(12) == 11)


def test_splines_are_boosted_with_their_polynomials():
    """scipy's smoothing by |r|³ and straight lines, fitted to the residuals."""
    x, z = X[:, :1], Z[:, :1]
    ours = learners.boosted(kx.Model(kx.CubicSpline(), 2.0), kx.Data(x, Y), rounds=3, learning_rate=0.7)
    here, there = np.zeros(N), np.zeros(len(z))
    for _ in range(3):
        weak = RBFInterpolator(x, Y - here, kernel="cubic", degree=1, smoothing=24.0)
        here, there = here + 0.7 * weak(x), there + 0.7 * weak(z)
    assert_close(ours(z), there, 1e-8)
    smoother = RBFInterpolator(x, np.eye(N), kernel="cubic", degree=1, smoothing=24.0)(x)
    left = np.linalg.matrix_power(np.eye(N) - 0.7 * smoother, 3)
    assert_close(ours.effective_degrees_of_freedom[3], N - np.trace(left), 1e-8)


def test_boosting_of_one_row_none_and_nan():
    one = learners.boosted(MODEL, kx.Data(X[:1], Y[:1]), rounds=3, learning_rate=1.0)
    assert_close(one(Z), boosted_by_refits(X[:1], Y[:1], Z, 3, 1.0)[1][-1])
    options = {"rounds": 12, "learning_rate": 0.5, "by": "gcv"}
    with pytest.raises(FailedError, match=r"boosting failed\. empty"):
        learners.boosted(MODEL, EMPTY, **options)
    none = learners.boosted(MODEL, EMPTY, throw=False, **options)
    assert not none.ok
    assert np.isnan(none(Z)).all()
    assert np.isnan(none.gcv).all()
    with pytest.raises(FailedError, match="nonfinite"):
        learners.boosted(MODEL, SICK, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be one number above 0"),
        ({"learning_rate": 1.5}, "learning_rate must be one number above 0"),
        ({"by": "loo"}, "by must be"),
        ({"by": "validation"}, "along with validation"),
        ({"patience": 3}, "patience needs a criterion"),
        ({"patience": 0, "by": "gcv"}, "patience must be a whole number"),
        ({"validation": kx.Data(Z[:, :1], Z[:, 0])}, "validation.x has 1 columns"),
        ({"validation": kx.Data(Z, Z)}, "the same outputs"),
    ],
)
def test_what_boosting_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        learners.boosted(MODEL, DATA, **options)


def test_what_the_model_is_to_be():
    for learner in (learners.bagged, learners.boosted):
        with pytest.raises(TypeError, match=r"must be a kx\.Model, got RBF"):
            learner(kx.RBF(), DATA)
        with pytest.raises(TypeError, match=r"must be a kx\.Data, got tuple"):
            learner(MODEL, (X, Y))
    with pytest.raises(ValueError, match="one noise for all rows"):
        learners.boosted(kx.Model(kx.RBF(), noise=np.full(N + 2, 0.1)), DATA)
    with pytest.raises(ValueError, match="one noise for all rows"):
        learners.boosted(kx.Model(kx.RBF(), noise=np.full(N + 2, 0.1)), DATA)
