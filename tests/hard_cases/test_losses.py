"""Kernel machines with smooth losses, where data or parameters are at their worst."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax import learners

RNG = np.random.default_rng(8)
X = RNG.normal(size=(10, 2))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=10) > 0, 1.0, -1.0)
ON = np.ones(10, bool)
TAIL = np.arange(10) >= 7
K = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1))


def machine(penalty=0.5, **options):
    return learners.KernelMachine(kx.RBF(), penalty=penalty, **options)


LANES = {
    "healthy": (X, Y, ON, 0.5, "successful"),
    "masked": (X, Y, ~TAIL, 0.5, "successful"),
    "garbage behind the mask": (np.where(TAIL[:, None], np.nan, X), np.where(TAIL, 7.0, Y), ~TAIL, 0.5, "successful"),
    "NaN": (X, np.where(TAIL, np.nan, Y), ON, 0.5, "nonfinite"),
    "labels 0 and 1": (X, 0.5 * (Y + 1), ON, 0.5, "unknown_labels"),
    "one class": (X, np.ones(10), ON, 0.5, "no_minimum"),
    "one class that counts": (X, Y, Y > 0, 0.5, "no_minimum"),
    "nothing counts": (X, Y, ~ON, 0.5, "empty"),
    "negative penalty": (X, Y, ON, -1.0, "nonfinite"),
    "NaN penalty": (X, Y, ON, np.nan, "nonfinite"),
}


def test_h27_h29_h43_each_lane_of_a_batch_has_its_own_status():
    """Traced, nothing is refused and nothing raises; the healthy lanes are those of single calls, gradients included."""

    def solved(x, y, mask, penalty):
        c = kx.condition(machine(penalty), kx.Data(x, y, mask))
        return c.objective, c

    ask = jax.jit(jax.vmap(jax.value_and_grad(solved, argnums=3, has_aux=True)))
    (objective, c), slope = ask(*(np.stack(column) for column in list(zip(*LANES.values(), strict=True))[:4]))
    for lane, (name, (*_, status)) in enumerate(LANES.items()):
        assert bool((c.result == getattr(kx.Result, status))[lane]), name
        assert np.isfinite(objective[lane]) == (status == "successful"), name
    np.testing.assert_array_equal(c.coefficients[1][TAIL], 0.0)
    for part in (objective, slope, c.intercept, c.coefficients):
        np.testing.assert_array_equal(part[1], part[2])
    single = kx.condition(machine(), kx.Data(X, Y))
    np.testing.assert_allclose(c.coefficients[0], single.coefficients, atol=1e-13)
    np.testing.assert_allclose(objective[0], single.objective, rtol=1e-13)
    on = ~TAIL
    np.testing.assert_allclose(c.values[1][on], K[on][:, on] @ c.coefficients[1][on] + c.intercept[1], atol=1e-12)
    np.testing.assert_allclose(c.coefficients[1][on], Y[on] / (1 + np.exp(Y[on] * c.values[1][on])), atol=1e-11)
    # C² × the losses' sum is what a change of λ meets: dC = -2C² dλ.
    np.testing.assert_allclose(slope[0], -2.0 * np.sum(np.logaddexp(0.0, -Y * single.values)), rtol=1e-10)


EXTREMES = {
    "separable, hardly any penalty": (X, np.where(X[:, 0] > 0, 1.0, -1.0), 1e-8),
    "a penalty that leaves nothing": (X, Y, 1e8),
    "each point with both labels": (np.repeat(X[:5], 2, axis=0), np.tile([1.0, -1.0], 5), 1e-3),
    "near-duplicates": (np.repeat(X[:5], 2, axis=0) + 1e-15 * RNG.normal(size=(10, 2)), Y, 1e-3),
    "one point only": (np.ones((10, 2)), Y, 1e-3),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_h12_h14_optimal_at_extremes(name):
    """The optimality conditions in NumPy: `α = C y/(1 + e^{yf})`, `Σα = 0`, `f = Kα + b`."""
    x, y, penalty = EXTREMES[name]
    c = kx.condition(machine(penalty), kx.Data(x, y))
    alpha, values = np.asarray(c.coefficients), np.asarray(c.values)
    scale = np.max(np.abs(alpha)) + 1e-15 / penalty
    np.testing.assert_allclose(alpha, 0.5 / penalty * y / (1 + np.exp(y * values)), atol=1e-8 * scale)
    assert abs(np.sum(alpha)) < 1e-8 * scale
    gram = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1))
    np.testing.assert_allclose(gram @ alpha + c.intercept, values, atol=1e-10 * np.max(np.abs(values)) + 1e-12)
    assert float(c.jitter) == 0.0


def test_h10_float32_stays_float32():
    single = kx.condition(machine(), kx.Data(X.astype(np.float32), Y.astype(np.float32)))
    assert single.coefficients.dtype == single(X).dtype == np.float32
    np.testing.assert_allclose(single.values, kx.condition(machine(), kx.Data(X, Y)).values, atol=2e-5)


def test_outliers_only():
    """Huber's loss has no curvature where all residuals are large: on both sides alike, far off, and on a constant."""
    model = learners.KernelMachine(kx.RBF(), learners.Huber(1.0), penalty=1.0)
    for y in (100.0 * Y, 1e6 + 1e3 * X[:, 0], np.full(10, 0.3), 1e4 * (np.arange(10) == 3)):
        c = kx.condition(model, kx.Data(X, y))
        pull = np.clip(y - np.asarray(c.values), -1.0, 1.0)
        np.testing.assert_allclose(c.coefficients, 0.5 * pull, atol=1e-9)
        assert abs(np.sum(pull)) < 1e-8
        np.testing.assert_allclose(K @ c.coefficients + c.intercept, c.values, rtol=1e-12, atol=1e-12)


class Scaled(kx.AbstractKernel):
    """No kernel at all if the scale is negative."""

    scale: jax.Array = kx.parameters.real()

    def pair(self, a, b):
        return self.scale * jnp.exp(-jnp.sum((a - b) ** 2))


def test_h04_h24_one_row_and_an_indefinite_kernel():
    """The mode of a single latent value is `f = yk/(1 + e^{yf})`; a `kernel` that is negative there is flagged."""
    data = kx.Data(X[:1], Y[:1])
    f = float(kx.condition(learners.GPClassifier(Scaled(2.0)), data).values[0])
    assert f == pytest.approx(2.0 * Y[0] / (1 + np.exp(Y[0] * f)), rel=1e-12)
    c = kx.condition(learners.GPClassifier(Scaled(-100.0)), data, throw=False)
    assert c.result == kx.Result.not_positive_definite
    assert np.isnan(kx.log_marginal_likelihood(c))


def test_h31_out_of_steps():
    model = machine(1e-6, max_steps=1)
    with pytest.raises(kx.FailedError, match="max_steps_reached"):
        kx.condition(model, kx.Data(X, Y))
    c = kx.condition(model, kx.Data(X, Y), throw=False)
    assert c.result == kx.Result.max_steps_reached
    assert float(c.gradient_norm) > 1e-3
    assert np.all(np.isfinite(c.coefficients))


COUNTING = learners.KernelMachine(kx.RBF(), learners.Poisson())
REFUSED = {
    "labels 0 and 1": (lambda: kx.condition(machine(), kx.Data(X, 0.5 * (Y + 1))), ValueError, "needs labels -1 and"),
    "one class": (lambda: kx.condition(machine(), kx.Data(X, ON)), ValueError, "one class only.*intercept=False"),
    "negative counts": (lambda: kx.condition(COUNTING, kx.Data(X, -ON.astype(float))), ValueError, r"y = -1 \(row 0\)"),
    "no counts": (lambda: kx.condition(COUNTING, kx.Data(X, 0.0 * Y)), ValueError, "no count above 0"),
    "several outputs": (lambda: kx.condition(machine(), kx.Data(X, X)), ValueError, "one column at a time"),
    "other rows' penalty": (lambda: kx.condition(machine(np.ones(3)), kx.Data(X, Y)), ValueError, "10 rows"),
    "negative penalty": (lambda: machine(-1.0), ValueError, "penalty must be finite and positive"),
    "negative C": (lambda: learners.KernelMachine(kx.RBF(), C=-1.0), ValueError, "C must be positive"),
    "both": (lambda: machine(C=1.0), ValueError, "which mean the same"),
    "no steps": (lambda: machine(max_steps=0), ValueError, "max_steps must be 1 or more"),
    "a class": (lambda: learners.KernelMachine(kx.RBF(), learners.Huber), TypeError, r"write Huber\(\)"),
    "no loss": (lambda: learners.KernelMachine(kx.RBF(), 3), TypeError, "function loss"),
    "a vector": (lambda: learners.KernelMachine(kx.RBF(), lambda y, f: jnp.ones(2)), ValueError, "one number for one row"),
    "no kernel": (lambda: learners.KernelMachine(kx.RBF), TypeError, "must be a kernax kernel"),
    "spline": (lambda: learners.GPClassifier(kx.CubicSpline()), TypeError, "conditionally definite"),
    "solver": (lambda: kx.condition(machine(), kx.Data(X, Y), kx.Eigh()), TypeError, "Cholesky factorisations only"),
    "level": (lambda: learners.SmoothQuantile(1.0), ValueError, "between 0 and 1"),
    "delta": (lambda: learners.Huber(-1.0), ValueError, "Huber.delta must be"),
    "infinite C": (lambda: learners.KernelMachine(kx.RBF(), C=np.inf), ValueError, "C must be positive and finite"),
    "no data held out": (lambda: learners.holdout_loss(TRAINED, (X, Y)), TypeError, "must be a kx.Data"),
    "labels held out": (lambda: learners.holdout_loss(TRAINED, kx.Data(X, X[:, 0])), ValueError, "needs labels -1 and"),
    "asked like a Gaussian process": (lambda: kx.mean(TRAINED, X), TypeError, "called with new rows"),
}
TRAINED = kx.condition(machine(), kx.Data(X, Y))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_remedy(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_a_loss_that_is_enormous_where_newton_starts():
    """Tolerances are relative to the forces at the answer, not to those at f = 0, which are 1e22 times as large."""
    y = 5.0 * np.sin(X[:, 0])
    own = learners.KernelMachine(kx.RBF(), lambda y, f: jnp.exp(10 * (y - f)) + jnp.exp(f - y), C=1.0)
    c = kx.condition(own, kx.Data(X, y), throw=False)
    off = y - np.asarray(c.values)
    np.testing.assert_allclose(c.coefficients, 10 * np.exp(10 * off) - np.exp(-off), rtol=1e-6)
    np.testing.assert_allclose(np.sum(c.coefficients), 0.0, atol=1e-6)
    assert c.result == kx.Result.successful


def test_one_class_is_enough_for_the_squared_hinge():
    c = kx.condition(learners.KernelMachine(kx.RBF(), learners.SquaredHinge()), kx.Data(X, ON.astype(float)))
    np.testing.assert_allclose(c.objective, 0.0, atol=1e-12)
    np.testing.assert_array_equal(c.classify(X), 1.0)
    assert "successful" in repr(c)
    assert "KernelMachine: rbf kernel, conditioned on data" in str(kx.report(c))


def test_questions_that_a_loss_cannot_answer():
    c = kx.condition(learners.KernelMachine(kx.RBF(), learners.Huber(1.0), penalty=1.0), kx.Data(X, Y))
    with pytest.raises(TypeError, match="gives no probabilities"):
        c.probability(X)
    with pytest.raises(TypeError, match="not a loss for labels"):
        c.classify(X)
    with pytest.raises(TypeError, match="intercept, which has no prior"):
        kx.log_marginal_likelihood(c)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_h46_padding_changes_no_laplace_approximation(dtype):
    """Rows twice and a large variance: the likelihood, its gradient and predictions are those of the rows that count."""
    x = np.repeat(np.linspace(0.0, 3.0, 5), 2)[:, None].astype(dtype)
    y = np.array([1, 1, -1, 1, -1, -1, 1, -1, 1, 1], dtype)
    padded = kx.Data(np.concatenate([x, x[:6]]), np.concatenate([y, -y[:6]]), mask=np.arange(16) < 10)

    @jax.jit
    def answers(variance, data):
        def evidence(variance):
            c = kx.condition(learners.GPClassifier(variance * kx.RBF()), data, throw=False)
            return kx.log_marginal_likelihood(c), c.probability(x[:3] + 0.1)

        return jax.value_and_grad(evidence, has_aux=True)(variance)

    plain, longer = (jax.tree.leaves(answers(jnp.asarray(1e3, dtype), d)) for d in (kx.Data(x, y), padded))
    for ours, theirs in zip(longer, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3 if dtype == np.float32 else 1e-8)
