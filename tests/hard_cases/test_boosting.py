"""Boosting on data that are degenerate, masked, or no labels at all."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax import learners

RNG = np.random.default_rng(44)
X = np.round(RNG.normal(size=(12, 2)), 1)
Y = np.where(X[:, 0] * X[:, 1] + 0.3 * RNG.normal(size=12) > 0, 1.0, -1.0)
Z = RNG.normal(size=(5, 2))
ON = np.arange(12) < 9
ROUNDS = 6

boost = functools.partial(learners.adaboost, rounds=ROUNDS)

# Name: x, y, mask.
LANES = {
    "plain": (X, Y, ON | True),
    "one class": (X, np.ones(12), ON | True),
    "the other class": (X, -np.ones(12), ON | True),
    "opposite labels everywhere": (np.repeat(X[:6], 2, axis=0), np.tile([1.0, -1.0], 6), ON | True),
    "opposite labels of one point": (np.vstack([X[:11], X[:1]]), np.append(Y[:11], -Y[0]), ON | True),
    "NaN in x": (np.where(np.arange(12)[:, None] == 4, np.nan, X), Y, ON | True),
    "NaN in y": (X, np.append(Y[:11], np.nan), ON | True),
    "labels 0 and 1": (X, (Y + 1) / 2, ON | True),
    "all masked": (X, Y, ON & False),
    "constant columns": (np.ones((12, 2)), Y, ON | True),
    "masked": (X, Y, ON),
    "garbage behind the mask": (np.where(ON[:, None], X, np.nan), np.where(ON, Y, 7.0), ON),
    "wild values behind the mask": (np.where(ON[:, None], X, 1e300), np.where(ON, Y, -np.inf), ON),
}


@pytest.fixture(scope="module")
def batch():
    """All lanes in one program: training, and the scores at new points."""

    def of(x, y, mask):
        committee = boost(kx.Data(x, y, mask))
        return committee, committee(Z), committee.classify(Z)

    return jax.jit(jax.vmap(of))(*(np.stack(part) for part in zip(*LANES.values(), strict=True)))


def lane(batch, name):
    return jax.tree.map(lambda leaf: leaf[list(LANES).index(name)], batch)


def test_every_lane_has_its_own_status(batch):
    want = dict.fromkeys(LANES, "successful") | {
        "opposite labels everywhere": "no_better_than_chance",
        "NaN in x": "nonfinite",
        "NaN in y": "nonfinite",
        "labels 0 and 1": "unknown_labels",
        "all masked": "empty",
        "constant columns": "no_better_than_chance",
    }
    for name, status in want.items():
        assert lane(batch, name)[0].result == getattr(kx.Result, status), name


def test_h42_a_batch_is_its_single_cases(batch):
    for name in ("plain", "one class", "opposite labels of one point", "constant columns", "masked"):
        single, together = boost(kx.Data(*LANES[name])), lane(batch, name)[0]
        for field in ("votes", "errors", "normalisers", "bounds", "training_errors", "weights", "margins", "num_rounds"):
            np.testing.assert_allclose(getattr(single, field), getattr(together, field), rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(single.fitted.threshold, together.fitted.threshold)
        np.testing.assert_allclose(lane(batch, name)[1], single(Z), rtol=1e-12)


def test_h29_what_is_behind_the_mask_changes_nothing(batch):
    clean = jax.tree.leaves(lane(batch, "masked"))
    for name in ("garbage behind the mask", "wild values behind the mask"):
        for ours, theirs in zip(jax.tree.leaves(lane(batch, name)), clean, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    alone = boost(kx.Data(X[ON], Y[ON]))
    np.testing.assert_allclose(lane(batch, "masked")[1], alone(Z), rtol=1e-12)


@pytest.mark.parametrize(("name", "sign"), [("one class", 1.0), ("the other class", -1.0)])
def test_one_class_is_one_constant_member(batch, name, sign):
    """A member without error ends it with a finite vote, and `∏Z = mean e^{-yF}` holds for that one, too."""
    committee, scores, _ = lane(batch, name)
    assert int(committee.num_rounds) == 1
    np.testing.assert_array_equal(committee.votes, np.eye(ROUNDS)[0])
    assert float(committee.fitted.threshold[0]) == -np.inf
    assert (float(committee.errors[0]), float(committee.training_errors[0])) == (0.0, 0.0)
    assert float(committee.bounds[0]) == pytest.approx(np.exp(-1.0))
    np.testing.assert_array_equal(scores, sign)
    np.testing.assert_array_equal(committee.margins, 1.0)


def test_labels_that_contradict_each_other_have_no_committee(batch):
    """No member, score 0, and the tie says +1; an eager call raises."""
    committee, scores, classes = lane(batch, "opposite labels everywhere")
    assert int(committee.num_rounds) == 0
    np.testing.assert_array_equal(scores, 0.0)
    np.testing.assert_array_equal(classes, 1.0)
    assert np.all(np.isnan(committee.errors))
    with pytest.raises(kx.FailedError, match=r"AdaBoost failed\. no_better_than_chance.*learners\.Trees"):
        boost(kx.Data(*LANES["opposite labels everywhere"]))


def test_constant_columns_leave_the_larger_class(batch):
    """The constant has error ½ after its own round: boosting ends, with what it has, and an eager call does not raise."""
    committee, _, classes = lane(batch, "constant columns")
    assert int(committee.num_rounds) == 1
    np.testing.assert_array_equal(classes, np.sign(Y.sum()))
    assert float(committee.errors[0]) == pytest.approx(np.mean(np.sign(Y.sum()) != Y))
    assert boost(kx.Data(*LANES["constant columns"])).result == kx.Result.no_better_than_chance


def test_one_point_with_both_labels_is_not_learnt_and_the_rest_is(batch):
    committee = lane(batch, "opposite labels of one point")[0]
    margins = np.asarray(committee.margins)
    assert margins[0] == pytest.approx(-margins[11], abs=1e-14)
    assert np.all(committee.training_errors >= 1 / 12 - 1e-15)


@pytest.mark.parametrize("name", ["NaN in x", "NaN in y", "labels 0 and 1", "all masked"])
def test_a_lane_that_cannot_be_learnt_answers_nan(batch, name):
    committee, scores, classes = lane(batch, name)
    assert np.all(np.isnan(scores))
    assert np.all(np.isnan(classes))
    assert int(committee.num_rounds) == 0


def test_eager_failures_raise():
    with pytest.raises(kx.FailedError, match="empty"):
        boost(kx.Data(*LANES["all masked"]))
    assert boost(kx.Data(*LANES["all masked"]), throw=False).result == kx.Result.empty


def test_h41_the_same_shapes_again_compile_nothing(caplog):
    """Other labels, weights, masks and limits; and so all classes of one_against_rest but the first."""

    def compilations(data, **options):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            # A number of rounds that no other test asks for, so that the first call does compile.
            learners.adaboost(data, rounds=5, **options)
        return sum("Compiling" in record.getMessage() and "_adaboost" in record.getMessage() for record in caplog.records)

    assert compilations(kx.Data(X, Y)) == 1
    assert compilations(kx.Data(X + 1, -Y)) == 0
    assert compilations(kx.Data(*LANES["masked"]), weights=np.arange(12.0)) == 0
    assert compilations(kx.Data(X, Y), bound=0.5) == 0


def test_one_row_and_float32():
    """One row is learnt by a constant. The input's dtype is kept, also beside float64 weights."""
    single = boost(kx.Data(X[:1], Y[:1]))
    np.testing.assert_array_equal(single.classify(Z), Y[0])
    committee = boost(kx.Data(X.astype(np.float32), Y.astype(np.float32)), weights=np.ones(12))
    floats = [leaf.dtype for leaf in jax.tree.leaves(committee) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert set(floats) == {jnp.dtype("float32")}
    np.testing.assert_allclose(committee.votes, boost(kx.Data(X, Y)).votes, rtol=1e-4)


def test_thresholds_between_neighbouring_numbers():
    """The midpoint of two neighbouring floating-point numbers is one of them, and must not leave the upper one below."""
    x = X.copy()
    x[:, 0], x[:, 1] = np.where(Y > 0, np.nextafter(1.0, 2.0), 1.0), 0.0
    committee = boost(kx.Data(x, Y))
    assert float(committee.errors[0]) == 0.0
    np.testing.assert_array_equal(committee.classify(x), Y)


class Slow(learners.AbstractMembers):
    """A class of a user's own: the sign of the first coordinate under equal weights, of the second under all others."""

    def prepare(self, x):
        return None

    def best(self, prepared, y, weights):
        return jnp.where(jnp.ptp(weights) < 1e-9, 0, 1)

    def values(self, member, x):
        return jnp.where(x[:, member] >= 0, 1.0, -1.0)


def test_a_perfect_member_decides_alone():
    """Found in the second round, it outvotes the first, and `∏Z = mean e^{-yF}` still holds."""
    x = np.stack([np.where(np.arange(12) < 2, -X[:, 1], X[:, 1]), X[:, 1]], axis=1)
    y = np.where(x[:, 1] >= 0, 1.0, -1.0)
    committee = boost(kx.Data(x, y), members=Slow())
    assert int(committee.num_rounds) == 2
    first = 0.5 * np.log(5.0)
    np.testing.assert_allclose(committee.votes, [first, 1 + first, 0, 0, 0, 0], rtol=1e-12)
    np.testing.assert_array_equal(committee.classify(x), y)
    assert float(committee.bounds[1]) == pytest.approx(np.mean(np.exp(-y * np.asarray(committee(x)))), rel=1e-12)
    assert committee.result == kx.Result.successful


REFUSED = {
    "labels 0 and 1": (lambda: boost(kx.Data(X, (Y + 1) / 2)), ValueError, r"labels -1 and \+1 in y, got 0, 1: .*y == 1,"),
    "labels 1 and 2": (lambda: boost(kx.Data(X, (Y + 3) / 2)), ValueError, r"got 1, 2: .*y == 2,"),
    "targets": (lambda: boost(kx.Data(X, X[:, 0])), ValueError, "one_against_rest"),
    "NaN labels": (lambda: boost(kx.Data(X, Y * np.nan)), ValueError, "NaN"),
    "several outputs": (lambda: boost(kx.Data(X, X)), ValueError, "one label for each row"),
    "no data": (lambda: boost(X), TypeError, r"kx\.Data\(x, y\)"),
    "no members": (lambda: boost(kx.Data(X, Y), members=learners.Stumps), TypeError, r"learners\.Stumps\(\)"),
    "no rounds": (lambda: learners.adaboost(kx.Data(X, Y), rounds=0), ValueError, "whole number"),
    "patience alone": (lambda: boost(kx.Data(X, Y), patience=3), ValueError, "validation="),
    "negative weights": (lambda: boost(kx.Data(X, Y), weights=-np.ones(12)), ValueError, "weights must be finite"),
    "few weights": (lambda: boost(kx.Data(X, Y), weights=np.ones(3)), ValueError, "each of the 12 rows"),
    "other columns": (lambda: boost(kx.Data(X, Y))(X[:, :1]), ValueError, "trained on"),
    "validation columns": (
        lambda: boost(kx.Data(X, Y), validation=kx.Data(X[:, :1], Y)),
        ValueError,
        "rows of validation",
    ),
    "one point": (lambda: boost(kx.Data(X, Y))(X[0]), ValueError, r"x\[None, :\]"),
    "NaN in new rows": (lambda: boost(kx.Data(X, Y))(X * np.nan), ValueError, "NaN"),
    "votes": (lambda: learners.majority_vote([0.3, -0.2]), ValueError, "vote −1 or"),
    "structured inputs": (lambda: boost(kx.Data({"a": X}, Y)), ValueError, r"learners\.Dictionary"),
    "depth": (lambda: learners.Trees(30), ValueError, "10 at most"),
    "empty dictionary": (lambda: learners.Dictionary([]), ValueError, "at least one function"),
    "one class": (lambda: learners.one_against_rest(boost, X, np.ones(12, int)), ValueError, "two classes or more, got 1"),
    "float classes": (lambda: learners.one_against_rest(boost, X, Y), ValueError, r"astype\(int\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_remedy(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_one_against_rest_of_a_classifier_that_is_to_be_conditioned():
    labels = np.where(Y > 0, "b", "a")
    machine = learners.one_against_rest(learners.SVC(kx.RBF(), C=10.0), X, labels)
    np.testing.assert_array_equal(machine.classify(X), np.where(np.asarray(machine.machines[1](X)) > 0, "b", "a"))
    assert "SupportVectors" in repr(machine)


def test_one_against_rest_masks_and_ties():
    """A class that stands behind the mask only is none; equal scores go to the first class."""
    labels = np.where(ON, np.where(Y > 0, "b", "a"), "hidden")
    machine = learners.one_against_rest(boost, X, labels, ON)
    assert machine.classes == ("a", "b")
    constant = learners.one_against_rest(lambda data: lambda x: jnp.zeros(len(x)), X, labels)
    np.testing.assert_array_equal(constant.classify(Z), "a")
