"""Support vector machines, where data or parameters are at their worst."""

import functools

import jax
import numpy as np
import pytest
import sklearn.svm

import kernax as kx
from kernax import learners

RNG = np.random.default_rng(40)
N = 20
X = RNG.normal(size=(N, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=N)
LABELS = np.where(X[:, 0] + 0.4 * RNG.normal(size=N) > 0, 1.0, -1.0)
ON, ROWS = np.ones(N, bool), np.arange(N)
TAIL = ROWS >= 15
TWICE = np.repeat(X[:10], 2, axis=0)
WHOLE = RNG.integers(-2, 3, (N, 2)).astype(float)
SMOOTH, FLAT, ONE = (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)
"""How much of a squared exponential and of a linear kernel."""


def gram_of(x, parts):
    return parts[0] * np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1)) + parts[1] * x @ x.T


@functools.cache
def lanes(kind, intercept):
    """A machine with a slope for each of a batch of problems: traced, so that nothing is refused."""

    def solved(x, y, mask, parts, C, epsilon):
        kernel = parts[0] * kx.RBF() + parts[1] * kx.Linear()
        options = {"epsilon": epsilon} if kind is learners.SVR else {}
        c = kx.condition(kind(kernel, C=C, intercept=intercept, **options), kx.Data(x, y, mask))
        return c.objective, c

    def without_slope(*problem):
        return solved(*problem), np.nan

    # Compiling slopes takes as long again: one machine has them.
    with_slope = kind is learners.SVR and intercept
    return jax.jit(jax.vmap(jax.value_and_grad(solved, argnums=4, has_aux=True) if with_slope else without_slope))


def ask(cases, kind, intercept=True):
    columns = (np.stack([np.asarray(part, bool if i == 2 else float) for part in column]) for i, column in enumerate(cases))
    return lanes(kind, intercept)(*columns)


def violation(alpha, residuals, lower, upper, epsilon):
    """The largest violation of the conditions of optimality, by their definition."""
    up = np.where(alpha < upper, np.where(alpha >= 0, epsilon, -epsilon) - residuals, np.inf)
    down = np.where(alpha > lower, np.where(alpha > 0, epsilon, -epsilon) - residuals, -np.inf)
    assert np.all((lower <= alpha) & (alpha <= upper))
    return max(np.max(-up), np.max(down), 0.0)


REGRESSIONS = {
    "healthy": (X, Y, ON, ONE, 2.0, 0.1, "successful"),
    "masked": (X, Y, ~TAIL, SMOOTH, 2.0, 0.1, "successful"),
    "garbage behind the mask": (
        np.where(TAIL[:, None], np.nan, X),
        np.where(TAIL, np.inf, Y),
        ~TAIL,
        SMOOTH,
        2.0,
        0.1,
        "successful",
    ),
    "NaN in y": (X, np.where(TAIL, np.nan, Y), ON, SMOOTH, 2.0, 0.1, "nonfinite"),
    "NaN in x": (np.where(TAIL[:, None], np.nan, X), Y, ON, SMOOTH, 2.0, 0.1, "nonfinite"),
    "NaN for C": (X, Y, ON, SMOOTH, np.nan, 0.1, "nonfinite"),
    "negative C": (X, Y, ON, SMOOTH, -1.0, 0.1, "nonfinite"),
    "NaN for ε": (X, Y, ON, SMOOTH, 2.0, np.nan, "nonfinite"),
    "negative ε": (X, Y, ON, SMOOTH, 2.0, -0.1, "nonfinite"),
    "NaN in the kernel": (X, Y, ON, (np.nan, 0.0), 2.0, 0.1, "nonfinite"),
    "nothing counts": (X, Y, ~ON, SMOOTH, 2.0, 0.1, "empty"),
    "one row counts": (X, Y, ROWS == 4, SMOOTH, 2.0, 0.1, "successful"),
    "targets all equal": (X, np.full(N, 0.7), ON, SMOOTH, 2.0, 0.1, "successful"),
    "targets all 0, no tube": (X, np.zeros(N), ON, SMOOTH, 2.0, 0.0, "successful"),
    "a tube that holds everything": (X, Y, ON, SMOOTH, 2.0, 9.0, "successful"),
    "large C": (X, Y, ON, SMOOTH, 1e6, 0.01, "successful"),
    "small C": (X, Y, ON, SMOOTH, 1e-6, 0.1, "successful"),
    "large targets": (X, 1e8 * Y, ON, SMOOTH, 1e8, 1e6, "successful"),
    "linear": (X, Y, ON, FLAT, 2.0, 0.1, "successful"),
    "linear, large C": (X, Y, ON, FLAT, 1e3, 0.1, "successful"),
    "linear, whole numbers": (WHOLE, np.round(Y), ON, FLAT, 1.0, 0.0, "successful"),
    "duplicates": (TWICE, Y, ON, SMOOTH, 2.0, 0.1, "successful"),
    "duplicates with equal targets, no tube": (TWICE, np.repeat(Y[:10], 2), ON, SMOOTH, 1e3, 0.0, "successful"),
    "near-duplicates": (TWICE + 1e-15 * RNG.normal(size=(N, 2)), Y, ON, SMOOTH, 50.0, 0.05, "successful"),
    "one point": (np.ones((N, 2)), Y, ON, ONE, 2.0, 0.1, "successful"),
    "far from 0": (X + 1e4, Y, ON, SMOOTH, 2.0, 0.1, "successful"),
}


@pytest.mark.parametrize("intercept", [True, False])
def test_h02_h12_h17_h27_h29_h30_regression(intercept):
    """Every lane of one batch has its own status, and if it has an answer, it is optimal by definition."""
    (objective, c), slope = ask(list(zip(*REGRESSIONS.values(), strict=True))[:-1], learners.SVR, intercept)
    for lane, (name, (x, y, mask, parts, C, epsilon, status)) in enumerate(REGRESSIONS.items()):
        alpha, b = np.asarray(c.coefficients[lane]), float(c.intercept[lane])
        assert bool((c.result == getattr(kx.Result, status))[lane]), name
        if status != "successful":
            assert np.isnan(objective[lane]), name
            assert np.all(np.isnan(alpha)), name
            continue
        np.testing.assert_array_equal(alpha[~mask], 0.0)
        scale = np.max(np.abs(y[mask]))
        residuals = y[mask] - gram_of(x[mask], parts) @ alpha[mask] - b
        bound = np.nextafter(C, np.inf)  # C became λ and C again
        assert violation(
            np.where(c.at_bound[lane], np.sign(alpha) * bound, alpha)[mask], residuals, -bound, bound, epsilon
        ) <= (1e-6 * (scale + (scale == 0))), name
        if intercept:
            # Of an optimum, only the direct dependence on C counts.
            losses = np.sum(np.maximum(np.abs(residuals) - epsilon, 0.0))
            assert float(slope[lane]) == pytest.approx(losses, rel=1e-6, abs=1e-6 * (scale + 1)), name
            assert abs(np.sum(alpha)) <= 1e-9 * (1e-12 + np.sum(np.abs(alpha))), name
    order = list(REGRESSIONS)
    masked, garbage, full = (
        order.index(name) for name in ("masked", "garbage behind the mask", "a tube that holds everything")
    )
    np.testing.assert_array_equal(c.coefficients[masked], c.coefficients[garbage])
    np.testing.assert_array_equal(c.coefficients[full], 0.0)
    for name in ("targets all equal", "targets all 0, no tube", "one row counts"):
        if intercept:
            np.testing.assert_array_equal(c.coefficients[order.index(name)], 0.0)
    if intercept:
        assert float(c.intercept[full]) == pytest.approx(0.5 * (Y.min() + Y.max()), rel=1e-12)
        assert float(c.intercept[order.index("one row counts")]) == pytest.approx(Y[4], rel=1e-12)
        assert float(c.intercept[order.index("targets all equal")]) == pytest.approx(0.7, rel=1e-12)


def test_h27_h42_h43_lanes_are_single_machines():
    """The healthy lane is that of an eager call; with healthy problems in place of the sick, the others stay to the bit."""
    healed = [case if case[-1] == "successful" else REGRESSIONS["healthy"] for case in REGRESSIONS.values()]
    (_, sick), slopes = ask(list(zip(*REGRESSIONS.values(), strict=True))[:-1], learners.SVR)
    (_, well), others = ask(list(zip(*healed, strict=True))[:-1], learners.SVR)
    same = [case[-1] == "successful" for case in REGRESSIONS.values()]
    for one, other in ((sick.coefficients, well.coefficients), (sick.intercept, well.intercept), (slopes, others)):
        np.testing.assert_array_equal(np.asarray(one)[same], np.asarray(other)[same])
    single = kx.condition(learners.SVR(1.0 * kx.RBF() + 1.0 * kx.Linear(), C=2.0, epsilon=0.1), kx.Data(X, Y))
    np.testing.assert_allclose(sick.coefficients[0], single.coefficients, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sick.intercept[0], single.intercept, rtol=0, atol=1e-12)


CLASSIFICATIONS = {
    "healthy": (X, LABELS, ON, SMOOTH, 2.0, "successful"),
    "NaN": (X, np.where(TAIL, np.nan, LABELS), ON, SMOOTH, 2.0, "nonfinite"),
    "labels 0 and 1": (X, 0.5 * (LABELS + 1), ON, SMOOTH, 2.0, "unknown_labels"),
    "other labels behind the mask": (X, np.where(TAIL, 7.0, LABELS), ~TAIL, SMOOTH, 2.0, "successful"),
    "nothing counts": (X, LABELS, ~ON, SMOOTH, 2.0, "empty"),
    "one class": (X, np.ones(N), ON, SMOOTH, 2.0, "successful"),
    "one class that counts": (X, LABELS, LABELS < 0, SMOOTH, 2.0, "successful"),
    "separable": (X, np.where(X[:, 0] > 0, 1.0, -1.0), ON, SMOOTH, 1e6, "successful"),
    "not separable": (X, LABELS, ON, FLAT, 1e3, "successful"),
    "each point with both labels": (TWICE, np.tile([1.0, -1.0], 10), ON, SMOOTH, 3.0, "successful"),
    "some points with both labels": (TWICE, LABELS, ON, SMOOTH, 3.0, "successful"),
    "whole numbers": (WHOLE, LABELS, ON, FLAT, 1.0, "successful"),
    "one point": (np.ones((N, 2)), LABELS, ON, ONE, 2.0, "successful"),
}


def test_h02_h12_h27_classification():
    """The same for classes. One class only has the constant for its answer; a point of both labels counts for neither."""
    (_, c), _ = ask([*list(zip(*CLASSIFICATIONS.values(), strict=True))[:-1], np.zeros(len(CLASSIFICATIONS))], learners.SVC)
    for lane, (name, (x, y, mask, parts, C, status)) in enumerate(CLASSIFICATIONS.items()):
        alpha, b = np.asarray(c.coefficients[lane]), float(c.intercept[lane])
        assert bool((c.result == getattr(kx.Result, status))[lane]), name
        if status != "successful":
            assert np.all(np.isnan(alpha)), name
            continue
        np.testing.assert_array_equal(alpha[~mask], 0.0)
        residuals = y[mask] - gram_of(x[mask], parts) @ alpha[mask] - b
        bound = np.nextafter(C, np.inf) * y
        held = np.where(c.at_bound[lane], bound, alpha)[mask]
        assert violation(held, residuals, np.minimum(bound, 0)[mask], np.maximum(bound, 0)[mask], 0.0) <= 1e-6, name
    order = list(CLASSIFICATIONS)
    for name, label in (("one class", 1.0), ("one class that counts", -1.0)):
        np.testing.assert_array_equal(c.coefficients[order.index(name)], 0.0)
        assert float(c.intercept[order.index(name)]) == label
    separable = CLASSIFICATIONS["separable"]
    lane = order.index("separable")
    margins = separable[1] * (gram_of(X, SMOOTH) @ c.coefficients[lane] + c.intercept[lane])
    assert np.min(margins) > 1 - 1e-6
    assert not np.any(c.at_bound[lane])
    tied = order.index("each point with both labels")
    np.testing.assert_allclose(gram_of(TWICE, SMOOTH) @ c.coefficients[tied] + c.intercept[tied], 0.0, atol=1e-9)


def test_h04_one_row():
    """The intercept alone passes through it; none at all is told."""
    data = kx.Data(X[:1], np.array([3.0]))
    c = kx.condition(learners.SVR(kx.RBF(), C=2.0, epsilon=0.5), data)
    np.testing.assert_allclose(c(X[:1]), 3.0, rtol=1e-14)
    assert int(c.num_support) == 0
    off = kx.Data(X[:1], np.array([3.0]), np.zeros(1, bool))
    with pytest.raises(kx.FailedError, match="empty"):
        kx.condition(learners.SVR(kx.RBF(), C=2.0, epsilon=0.5), off)
    c = kx.condition(learners.SVR(kx.RBF(), C=2.0, epsilon=0.5), off, throw=False)
    assert np.isnan(c.coefficients).all()
    assert np.isnan(c(X)).all()


def test_h10_float32():
    """Single precision stays single, and is optimal to its own rounding."""
    data = kx.Data(X.astype(np.float32), Y.astype(np.float32))
    c = kx.condition(learners.SVR(kx.RBF(), C=2.0, epsilon=0.1), data)
    assert c.coefficients.dtype == c.intercept.dtype == c(X).dtype == np.float32
    assert float(c.kkt_residual) < 1e-5
    peer = sklearn.svm.SVR(kernel="rbf", gamma=0.5, C=2.0, epsilon=0.1, tol=1e-9).fit(X, Y)
    np.testing.assert_allclose(c(X), peer.predict(X), atol=1e-4)
    np.testing.assert_array_equal(np.flatnonzero(c.support), peer.support_)


def test_many_rows():
    """From 128 rows on only the free ones are factorised, in one of four sizes: still scikit-learn's."""
    n = 256
    rng = np.random.default_rng(5)
    x = rng.uniform(-3, 3, (n, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n)
    for epsilon, C, sizes in ((0.8, 5.0, (1, 64)), (0.3, 5.0, (65, 128)), (0.01, 100.0, (129, 256))):
        c = kx.condition(learners.SVR(kx.RBF(0.5), C=C, epsilon=epsilon), kx.Data(x, y))
        peer = sklearn.svm.SVR(kernel="rbf", gamma=2.0, C=C, epsilon=epsilon, tol=1e-9).fit(x, y)
        alpha = np.zeros(n)
        alpha[peer.support_] = peer.dual_coef_[0]
        np.testing.assert_allclose(c.coefficients, alpha, atol=1e-3 * C)
        np.testing.assert_allclose(c(x[::-1]), peer.predict(x[::-1]), atol=1e-3)
        assert float(c.kkt_residual) < 1e-11
        assert sizes[0] <= int(np.sum(c.support & ~c.at_bound)) <= sizes[1]


def machine(**options):
    return learners.SVR(kx.RBF(), **options)


DATA, CLASSES = kx.Data(X, Y), kx.Data(X, LABELS)
SVC = learners.SVC(kx.RBF())
REFUSED = {
    "labels 0 and 1": (lambda: kx.condition(SVC, kx.Data(X, LABELS > 0)), ValueError, r"jnp\.where\(y == 1, 1\.0, -1\.0\)"),
    "labels 1 and 2": (lambda: kx.condition(SVC, kx.Data(X, 1 + (LABELS > 0))), ValueError, r"got 1, 2: .*y == 2"),
    "three classes": (
        lambda: kx.condition(SVC, kx.Data(X, ROWS % 3)),
        ValueError,
        r"got 0, 1, 2: .*Softmax\(3\).*learners.one_against_rest",
    ),
    "a column": (lambda: kx.condition(machine(), kx.Data(X, Y[:, None])), ValueError, "takes one output"),
    "two outputs": (lambda: kx.condition(SVC, kx.Data(X, X)), ValueError, "one column at a time"),
    "C of 0": (lambda: machine(C=0.0), ValueError, "C must be positive"),
    "negative C": (lambda: learners.SVC(kx.RBF(), C=-1.0), ValueError, "C must be positive"),
    "NaN for C": (lambda: machine(C=np.nan), ValueError, "C must be"),
    "negative penalty": (lambda: machine(penalty=-1.0), ValueError, "penalty must be"),
    "negative ε": (lambda: machine(epsilon=-0.1), ValueError, "epsilon must be"),
    "several ε": (lambda: machine(epsilon=[0.1, 0.2]), ValueError, "epsilon"),
    "both": (lambda: machine(C=1.0, penalty=0.5), ValueError, "which mean the same"),
    "other rows' C": (lambda: kx.condition(machine(C=np.ones(3)), DATA), ValueError, "20 rows"),
    "few weights": (lambda: learners.support_vectors(SVC, CLASSES, weights=np.ones(3)), ValueError, "each of the 20 rows"),
    "negative weights": (lambda: learners.support_vectors(SVC, CLASSES, weights=-1.0 * ON), ValueError, "0 or more"),
    "NaN weights": (lambda: learners.support_vectors(SVC, CLASSES, weights=np.nan * ON), ValueError, "finite"),
    "no steps": (lambda: learners.support_vectors(SVC, CLASSES, max_steps=0), ValueError, "max_steps must be 1 or more"),
    "spline": (lambda: learners.SVR(kx.CubicSpline()), TypeError, "conditionally definite.*Matern32"),
    "solver": (lambda: kx.condition(machine(), DATA, kx.Eigh()), TypeError, "Cholesky factorisations only"),
    "NaN": (lambda: kx.condition(machine(), kx.Data(X, np.where(TAIL, np.nan, Y))), ValueError, "NaN"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_remedy(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_h08_h31_out_of_steps():
    """The interior-point method alone counts steps: a singular kernel that needs it, and gets one. Integers are floats."""
    model = learners.SVR(kx.Linear(), C=1.0, epsilon=0.0)
    data = kx.Data(WHOLE.astype(np.int8), np.round(Y).astype(int))
    c = learners.support_vectors(model, data, max_steps=1, throw=False)
    assert c.result == kx.Result.max_steps_reached
    assert float(c.kkt_residual) > 1e-6
    with pytest.raises(kx.FailedError, match="max_steps_reached"):
        learners.support_vectors(model, data, max_steps=1)
    assert learners.support_vectors(model, data).result == kx.Result.successful
    with pytest.raises(TypeError, match="train an SVC"):
        c.classify(X)


@pytest.mark.parametrize("kernel", [kx.RBF(), kx.Linear()], ids=repr)
def test_one_against_one_is_a_machine_for_every_pair(kernel):
    """Text for labels, a mask and weights; the linear kernel is singular, so that pivoting alone may not settle."""
    names = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    on, weights = ROWS != 4, 1.0 + ROWS % 2
    model = learners.SVC(kernel, C=2.0)
    machine = learners.one_against_one(model, X, names, weights=weights, mask=on)
    assert machine.classes == ("a", "b", "c")
    assert machine.result == kx.Result.successful
    for at, (first, second) in enumerate(machine.pairs):
        pair = on & np.isin(names, [machine.classes[first], machine.classes[second]])
        data = kx.Data(X, np.where(names == machine.classes[second], 1, -1), pair)
        single = learners.support_vectors(model, data, weights=weights)
        np.testing.assert_allclose(machine.scores(X)[:, at], single(X), atol=1e-6)
    won = np.asarray(machine.scores(X)) > 0
    votes = np.stack([2 - won[:, 0] - won[:, 1].astype(int), 1 + won[:, 0] - won[:, 2].astype(int), won[:, 1:].sum(1)], 1)
    np.testing.assert_array_equal(np.round(machine.votes(X)), votes)
    clear = votes.max(axis=1) == 2
    np.testing.assert_array_equal(machine.classify(X)[clear], np.array(machine.classes)[votes.argmax(axis=1)][clear])


def test_one_against_one_refuses():
    with pytest.raises(TypeError, match=r"must be a learners\.SVC"):
        learners.one_against_one(learners.SVR(kx.RBF()), X, LABELS > 0)
    with pytest.raises(ValueError, match="two classes or more"):
        learners.one_against_one(SVC, X, ROWS > -1)
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(lambda x: learners.one_against_one(SVC, x, LABELS > 0).intercepts)(X)
