"""Committees and AdaBoost (F41–F44), and several classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.ensemble import AdaBoostClassifier
from sklearn.linear_model import RidgeClassifier
from sklearn.tree import DecisionTreeClassifier

import kernax as kx
from kernax import learners

from ._oracles import assert_close

_rng = np.random.default_rng(41)
# Few distinct values, so that columns have ties; eighths are exact in scikit-learn's float32, too.
X = np.round(2 * _rng.normal(size=(40, 3)) * [1.0, 3.0, 0.5]) / 8
Y = np.where(X[:, 0] + 0.5 * X[:, 1] ** 2 - X[:, 2] + 0.2 * _rng.normal(size=40) > 0.05, 1.0, -1.0)
Z = 0.3 * _rng.normal(size=(15, 3))
WEIGHTS = _rng.uniform(0.5, 1.5, 40)  # without them, columns that split the same rows off would tie
D1 = WEIGHTS / WEIGHTS.sum()
ROUNDS = 25
DATA = kx.Data(X, Y)


@pytest.fixture(scope="module")
def stumps():
    return learners.adaboost(DATA, rounds=ROUNDS, weights=WEIGHTS)


def all_stumps(x):
    """The values of every stump at the rows of x: thresholds between distinct values, and the constants."""
    rows = [np.ones(len(x))]
    for column in x.T:
        levels = np.unique(column)
        rows += [np.where(column >= middle, 1.0, -1.0) for middle in (levels[1:] + levels[:-1]) / 2]
    return np.concatenate([rows, -np.array(rows)])


def weights_by_round(committee):
    """D₁, …, D_{T+1} from the definition, and the members' values."""
    values = np.diff(committee.staged(X), axis=0, prepend=0.0) / np.asarray(committee.votes)[:, None]
    values = np.round(values)
    weights = [D1]
    for vote, value in zip(np.asarray(committee.votes), values, strict=True):
        changed = weights[-1] * np.exp(-vote * Y * value)
        weights.append(changed / changed.sum())
    return np.array(weights), values


# F41: committees


def test_f41_majority_vote():
    """Most of the members, by counting; a tie says +1; weights count members several times."""
    votes = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1)
    want = [1 if list(column).count(1) >= 2 else -1 for column in votes.T]
    np.testing.assert_array_equal(learners.majority_vote(votes), want)
    repeated = np.repeat(votes, [3, 1, 1, 0], axis=0)
    np.testing.assert_array_equal(learners.majority_vote(votes, [3, 1, 1, 0]), learners.majority_vote(repeated))
    np.testing.assert_array_equal(learners.majority_vote(votes, [3, 1, 1, 0]), votes[0])
    assert float(learners.majority_vote([1, -1, -1])) == -1


def test_f41_every_stump_is_the_best_of_all_stumps(stumps):
    """Under the weights of every round, by enumeration."""
    weights, values = weights_by_round(stumps)
    everything = all_stumps(X)
    for t in range(ROUNDS):
        errors = np.sum(weights[t] * (everything != Y), axis=1)
        assert float(stumps.errors[t]) == pytest.approx(errors.min(), abs=1e-13)
        assert np.sum(weights[t] * (values[t] != Y)) == pytest.approx(errors.min(), abs=1e-13)
    for feature, threshold in zip(stumps.fitted.feature, stumps.fitted.threshold, strict=True):
        levels = np.unique(X[:, feature])
        assert threshold == -np.inf or float(threshold) in (levels[1:] + levels[:-1]) / 2
    at_new = (
        np.where(Z.T[stumps.fitted.feature] >= stumps.fitted.threshold[:, None], 1.0, -1.0) * stumps.fitted.sign[:, None]
    )
    assert_close(stumps(Z), stumps.votes @ at_new, 1e-13)
    np.testing.assert_array_equal(stumps.classify(Z), np.sign(stumps.votes @ at_new))
    np.testing.assert_array_equal(stumps.majority(Z), np.where(np.sum(at_new > 0, axis=0) >= ROUNDS / 2, 1, -1))


def test_f41_of_ties_the_lowest_column_and_threshold():
    """Both thresholds 0.5 and 2.5 of every column err on one row of four, and so do no others."""
    column = np.tile([0.0, 1.0, 2.0, 3.0], 10)
    y = np.tile([-1.0, 1.0, -1.0, 1.0], 10)
    committee = learners.adaboost(kx.Data(np.stack([column] * 3, axis=1), y), rounds=ROUNDS)
    first = [float(part[0]) for part in (committee.fitted.feature, committee.fitted.threshold, committee.fitted.sign)]
    assert first == [0, 0.5, 1.0]


def test_f41_linear_thresholds_have_fishers_direction_and_the_best_threshold():
    committee = learners.adaboost(DATA, members=learners.LinearThresholds(ridge=1e-12), rounds=5, weights=WEIGHTS)
    root = np.sqrt(D1)[:, None]
    slopes = np.linalg.lstsq(root * np.column_stack([X, np.ones(40)]), root[:, 0] * Y)[0][:3]
    assert_close(committee.fitted.direction[0], slopes, 1e-9)
    errors = np.sum(D1 * (all_stumps((X @ slopes)[:, None]) != Y), axis=1)
    assert float(committee.errors[0]) == pytest.approx(errors.min(), abs=1e-13)
    assert_close(committee.margins, Y * np.asarray(committee(X)) / np.sum(committee.votes), 1e-13)


def test_f41_a_dictionary_takes_the_best_function_or_its_negation():
    """On points of a structure of their own."""
    functions = [
        lambda p: p["a"][0],
        lambda p: p["b"] - 0.3,
        lambda p: p["a"][1] ** 2 - p["b"] ** 2,
        lambda p: -1.0 + 0 * p["b"],
    ]
    points = {"a": jnp.asarray(X[:, :2]), "b": jnp.asarray(X[:, 2])}
    committee = learners.adaboost(
        kx.Data(points, Y), members=learners.Dictionary(functions), rounds=ROUNDS, weights=WEIGHTS, throw=False
    )
    raw = np.stack([X[:, 0], X[:, 2] - 0.3, X[:, 1] ** 2 - X[:, 2] ** 2, -np.ones(40)])
    table = np.where(raw >= 0, 1.0, -1.0)
    D = D1
    for t in range(int(committee.num_rounds)):
        errors = np.sum(D * (table != Y), axis=1)
        index = int(committee.fitted.index[t])
        assert min(errors[index], 1 - errors[index]) == pytest.approx(np.minimum(errors, 1 - errors).min(), abs=1e-13)
        D = D * np.exp(-float(committee.votes[t] * committee.fitted.sign[t]) * Y * table[index])
        D = D / D.sum()
    chosen = np.asarray(committee.fitted.sign)[:, None] * table[np.asarray(committee.fitted.index)]
    assert_close(committee(points), np.asarray(committee.votes) @ chosen, 1e-13)


# F42: AdaBoost


@pytest.mark.parametrize("depth", [1, 2])
def test_f42_adaboost_is_scikit_learns(depth):
    """The same errors, votes (scikit-learn's are twice ours) and predictions in every round, at the data and elsewhere."""
    committee = learners.adaboost(DATA, members=learners.Trees(depth), rounds=ROUNDS, weights=WEIGHTS)
    peer = AdaBoostClassifier(DecisionTreeClassifier(max_depth=depth), n_estimators=ROUNDS, random_state=0)
    peer.fit(X, Y, sample_weight=WEIGHTS)
    made = len(peer.estimators_)
    assert int(committee.num_rounds) == made == ROUNDS
    assert_close(committee.errors, peer.estimator_errors_, 1e-11)
    assert_close(2 * committee.votes, peer.estimator_weights_, 1e-11)
    everywhere = np.concatenate([X, Z])
    staged = np.asarray(committee.staged(everywhere))
    for ours, theirs in zip(staged, peer.staged_predict(everywhere), strict=True):
        np.testing.assert_array_equal(np.sign(ours), theirs)
    wrong = [np.sum(D1 * (predicted != Y)) for predicted in peer.staged_predict(X)]
    assert_close(committee.training_errors, wrong, 1e-13)
    assert_close(committee.margins, Y * staged[-1, :40] / np.sum(committee.votes), 1e-13)


def test_f42_the_update_of_the_weights(stumps):
    """`αₜ`, `Zₜ`; ΣD = 1; the member of a round has error ½ under the weights of the next."""
    weights, values = weights_by_round(stumps)
    errors = np.asarray(stumps.errors)
    assert_close(stumps.votes, 0.5 * np.log((1 - errors) / errors), 1e-13)
    assert_close(stumps.normalisers, 2 * np.sqrt(errors * (1 - errors)), 1e-13)
    for t in range(ROUNDS):
        unscaled = weights[t] * np.exp(-float(stumps.votes[t]) * Y * values[t])
        assert unscaled.sum() == pytest.approx(float(stumps.normalisers[t]), rel=1e-12)
        assert np.sum(weights[t + 1] * (values[t] != Y)) == pytest.approx(0.5, abs=1e-12)
    assert_close(stumps.weights, weights[-1], 1e-11)
    assert float(np.sum(stumps.weights)) == pytest.approx(1.0, rel=1e-14)


# F43: the bound


def test_f43_the_training_error_is_bounded(stumps):
    """`Σ D₁ 1[yF ≤ 0] ≤ ∏Z = Σ D₁ e^{-yF} ≤ (1 - 4γ²)^{T/2}` after every round."""
    margins = Y * np.asarray(stumps.staged(X))
    assert_close(stumps.bounds, np.exp(-margins) @ D1, 1e-12)
    assert_close(stumps.bounds, np.cumprod(stumps.normalisers), 1e-12)
    assert_close(stumps.training_errors, (margins <= 0) @ D1, 1e-13)
    assert np.all(stumps.training_errors <= stumps.bounds)
    edges = 0.5 - np.maximum.accumulate(np.asarray(stumps.errors))
    assert np.all(stumps.bounds <= (1 - 4 * edges**2) ** (np.arange(1, ROUNDS + 1) / 2) * (1 + 1e-12))


@pytest.mark.parametrize(("edge", "error"), [(0.1, 0.01), (0.3, 1e-6), (0.5, 0.5)])
def test_f43_rounds_for_an_error(edge, error):
    rounds = learners.rounds_for(edge, error)
    assert (1 - 4 * edge**2) ** (rounds / 2) <= error
    assert rounds - 1 < np.log(1 / error) / (2 * edge**2) <= rounds


# F44: when to stop


def test_f44_rounds_by_default():
    """`n^{3/4}`, below linear, of the rows that count: padding makes longer arrays and no more rounds."""
    committee = learners.adaboost(DATA)
    assert int(committee.num_rounds) == round(40**0.75) == 16
    masked = learners.adaboost(kx.Data(X, Y, np.arange(40) < 30))
    assert int(masked.num_rounds) == round(30**0.75) == 13
    np.testing.assert_array_equal(masked.votes[13:], 0.0)
    np.testing.assert_array_equal(np.isnan(masked.errors), np.arange(16) >= 13)


def test_f44_the_round_with_the_least_validation_error_is_kept(stumps):
    """Against the staged scores; with patience the same committee, and fewer rounds made."""
    held = kx.Data(_rng.normal(size=(12, 3)) * 0.3, np.where(_rng.uniform(size=12) < 0.5, 1.0, -1.0))
    whole = learners.adaboost(DATA, rounds=ROUNDS, weights=WEIGHTS, validation=held)
    wrong = np.mean(np.asarray(held.y) * np.asarray(stumps.staged(held.x)) <= 0, axis=1)
    assert_close(whole.validation_errors, wrong, 1e-14)
    best = int(np.argmin(wrong))
    assert int(whole.num_rounds) == best + 1
    assert best + 1 < ROUNDS
    assert_close(whole(Z), stumps.staged(Z)[best], 1e-13)
    assert_close(whole.margins, Y * np.asarray(stumps.staged(X)[best]) / np.sum(stumps.votes[: best + 1]), 1e-12)
    patient = learners.adaboost(DATA, rounds=ROUNDS, weights=WEIGHTS, validation=held, patience=ROUNDS - best - 2)
    np.testing.assert_array_equal(patient.votes, whole.votes)
    assert int(np.sum(np.isfinite(patient.errors))) == ROUNDS - 1
    assert stumps.validation_errors is None


def test_f44_rounds_end_at_a_bound(stumps):
    bound = float(stumps.bounds[9]) * 1.0001
    assert int(learners.adaboost(DATA, rounds=ROUNDS, weights=WEIGHTS, bound=bound).num_rounds) == 10


# Several classes


def test_one_against_rest_is_scikit_learns_ridge_classifier():
    labels = np.array(["no", "may be", "yes"])[np.digitize(X[:, 0] + X[:, 1], [-0.2, 0.3])]
    machine = learners.one_against_rest(lambda data: learners.ridge(data, 1.0), X, labels)
    peer = RidgeClassifier(alpha=1.0).fit(X, labels)
    assert list(machine.classes) == list(peer.classes_) == ["may be", "no", "yes"]
    assert_close(machine.scores(Z), peer.decision_function(Z), 1e-11)
    np.testing.assert_array_equal(machine.classify(Z), peer.predict(Z))


def test_one_against_rest_by_boosting():
    """Every class is its own AdaBoost, the largest score decides, and under jit numbers come back."""
    labels = np.digitize(X[:, 0] + X[:, 1], [-0.2, 0.3]) * 10
    machine = learners.one_against_rest(lambda data: learners.adaboost(data, rounds=ROUNDS), X, labels)
    alone = [learners.adaboost(kx.Data(X, np.where(labels == k, 1, -1)), rounds=ROUNDS)(Z) for k in (0, 10, 20)]
    np.testing.assert_array_equal(machine.scores(Z), np.stack(alone, axis=1))
    np.testing.assert_array_equal(machine.classify(Z), 10 * np.argmax(alone, axis=0))
    np.testing.assert_array_equal(jax.jit(lambda x: machine.classify(x))(Z), machine.classify(Z))
