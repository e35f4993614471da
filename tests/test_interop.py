"""kernax inside other libraries of JAX: samplers, optimisers, networks, the user's own loops and tables."""

import io

import blackjax
import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import polars as pl
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy
from scipy.stats import gamma, lognorm, multivariate_normal, uniform

import kernax as kx

X = np.random.default_rng(4).uniform(-3, 3, size=(15, 1))
Y = np.sin(X[:, 0]) + 0.3 * np.random.default_rng(5).normal(size=15)
DATA = kx.Data(X, Y)
START = kx.Model(1.0 * kx.RBF(lengthscale=1.0), noise=0.1)
NAMES = ("lengthscale", "variance", "noise")


def parts(model):
    """The three numbers that are sampled and fitted."""
    return model.kernel.kernel.lengthscale, model.kernel.variance, model.noise


# Samplers: the posterior of the hyperparameters


def with_priors():
    model = kx.with_prior(START, lambda m: m.kernel.kernel.lengthscale, kx.priors.LogNormal(0.0, 0.7))
    model = kx.with_prior(model, lambda m: m.kernel.variance, kx.priors.Gamma(2.0, 1.5))
    model = kx.with_bijector(model, lambda m: m.noise, kx.bijectors.Interval(0.01, 0.6))
    return kx.with_prior(model, lambda m: m.noise, lambda v: -jnp.log(0.59) * jnp.ones_like(v))  # uniform


VECTOR, REBUILD = kx.parameters.ravel(with_priors())


def log_density(vector):
    """What a user writes: log p(y|θ) + log p(θ) + log |dθ/du|."""
    model = REBUILD(vector)
    likelihood = kx.log_marginal_likelihood(kx.condition(model, DATA))
    return likelihood + kx.parameters.log_prior(model) + kx.parameters.log_jacobian(kx.parameters.unconstrain(model))


def numpyro_model():
    """The same posterior with numpyro's own priors and transforms."""
    model = kx.Model(
        numpyro.sample("variance", dist.Gamma(2.0, 1.5)) * kx.RBF(numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.7))),
        noise=numpyro.sample("noise", dist.Uniform(0.01, 0.6)),
    )
    numpyro.factor("y", kx.log_marginal_likelihood(kx.condition(model, DATA)))


@pytest.fixture(scope="module")
def by_blackjax():
    @jax.jit
    def sampled(key):
        warm_key, key = jax.random.split(key)
        (state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, log_density).run(warm_key, VECTOR, 500)
        step = blackjax.nuts(log_density, **parameters).step
        _, states = jax.lax.scan(lambda state, key: (step(key, state)[0],) * 2, state, jax.random.split(key, 3000))
        return states.position

    return values_of(sampled(jax.random.key(0)))


@pytest.fixture(scope="module")
def by_numpyro():
    sampler = MCMC(NUTS(potential_fn=lambda v: -log_density(v)), num_warmup=500, num_samples=3000, progress_bar=False)
    sampler.run(jax.random.key(1), init_params=VECTOR)
    return values_of(sampler.get_samples())


def values_of(vectors):
    """Samples of the values themselves, by name."""
    return {name: np.asarray(value) for name, value in zip(NAMES, parts(jax.vmap(REBUILD)(vectors)), strict=True)}


@pytest.fixture(scope="module")
def by_quadrature():
    """Weights of the values on a grid, by NumPy and SciPy alone, without any change of variables."""
    ranges = {"lengthscale": (0.05, 6.0), "variance": (1e-3, 9.0), "noise": (0.01, 0.6)}
    rules = {}
    for name, (low, high) in ranges.items():
        nodes, weights = np.polynomial.legendre.leggauss(100)
        rules[name] = low + (high - low) * (nodes + 1) / 2, weights * (high - low) / 2
    ell, v, s = (rules[name][0] for name in NAMES)
    log = np.empty((100, 100, 100))
    for i, lengthscale in enumerate(ell):
        eigenvalues, vectors = np.linalg.eigh(np.exp(-0.5 * ((X - X.T) / lengthscale) ** 2))
        spectrum = v[:, None, None] * eigenvalues + s[:, None]
        log[i] = -0.5 * np.sum((vectors.T @ Y) ** 2 / spectrum + np.log(2 * np.pi * spectrum), axis=-1)
    covariance = v[70] * np.exp(-0.5 * ((X - X.T) / ell[40]) ** 2) + s[20] * np.eye(15)
    np.testing.assert_allclose(log[40, 70, 20], multivariate_normal(np.zeros(15), covariance).logpdf(Y), rtol=1e-9)
    prior = np.ix_(lognorm(0.7).logpdf(ell), gamma(2.0, scale=1 / 1.5).logpdf(v), uniform(0.01, 0.59).logpdf(s))
    log += sum(prior)
    density = np.exp(log - log.max())
    for axis, name in enumerate(NAMES):
        density = density * np.expand_dims(rules[name][1], [a for a in range(3) if a != axis])
    density /= density.sum()
    return {name: (rules[name][0], density.sum(tuple(a for a in range(3) if a != axis))) for axis, name in enumerate(NAMES)}


@pytest.mark.parametrize("library", ["by_blackjax", "by_numpyro"])
def test_samplers_find_the_posterior_of_the_hyperparameters(library, by_quadrature, request):
    samples = request.getfixturevalue(library)
    for name, (nodes, weights) in by_quadrature.items():
        draws = samples[name]
        mean = np.sum(weights * nodes)
        sd = np.sqrt(np.sum(weights * (nodes - mean) ** 2))
        effective = effective_sample_size(draws[None])
        assert effective > 300
        assert abs(draws.mean() - mean) < 4 * sd / np.sqrt(effective), name
        for level in (0.1, 0.5, 0.9):
            quantile = np.interp(level, np.cumsum(weights) - weights / 2, nodes)
            below = np.mean(draws < quantile)
            indicator = effective_sample_size((draws < quantile)[None].astype(float))
            assert abs(below - level) < 4 * np.sqrt(level * (1 - level) / indicator), (name, level)


def test_the_log_density_is_that_of_numpyro_at_every_point():
    """Priors, transforms and Jacobians are numpyro's own; only the likelihood is common."""
    ours = jax.jit(lambda vector: -log_density(vector))
    theirs = jax.jit(lambda values: potential_energy(numpyro_model, (), {}, values))
    for vector in np.random.default_rng(0).normal(size=(5, 3)):
        named = dict(zip(NAMES, parts(kx.parameters.unconstrain(REBUILD(jnp.asarray(vector)))), strict=True))
        np.testing.assert_allclose(ours(vector), theirs(named), rtol=1e-9)


# Optimisers: the user's own chain


CHAIN_WITHOUT_MASK = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adam(optax.exponential_decay(0.1, transition_steps=100, decay_rate=0.5)),
)
CHAIN = optax.chain(
    CHAIN_WITHOUT_MASK,
    optax.masked(optax.scale(0.5), lambda tree: kx.freeze(tree, lambda m: m.kernel)),  # the noise goes half as fast
)


@pytest.fixture(scope="module")
def by_chain():
    return kx.fit(START, DATA, optimiser=CHAIN, max_steps=400)


def objective(model):
    return kx.selection.negative_log_marginal_likelihood(kx.condition(model, DATA))


def trained(loss, optimiser, start, steps):
    """The loop of optax's own documentation: the values met, and the last point."""

    def step(carry, _):
        point, state = carry
        value, gradient = jax.value_and_grad(loss)(point)
        updates, state = optimiser.update(gradient, state, point)
        return (optax.apply_updates(point, updates), state), value

    (point, _), values = jax.jit(lambda p: jax.lax.scan(step, (p, optimiser.init(p)), length=steps))(start)
    return values, point


def test_a_chain_of_optax_reaches_the_optimum_of_lbfgs(by_chain):
    best = kx.fit(START, DATA)
    assert best.result == kx.Result.successful
    assert by_chain.value < by_chain.history[0] - 0.1
    np.testing.assert_allclose(by_chain.value, best.value, atol=1e-6)
    np.testing.assert_allclose(parts(by_chain.model), parts(best.model), rtol=2e-3)


def test_fit_makes_the_steps_of_a_loop_by_hand(by_chain):
    steps = int(by_chain.num_steps)
    values, last = trained(
        lambda free: objective(kx.parameters.constrain(free)), CHAIN, kx.parameters.unconstrain(START), steps
    )
    np.testing.assert_allclose(by_chain.history, values, rtol=1e-9)
    assert objective(kx.parameters.constrain(last)) < by_chain.value + 1e-6


def test_a_loop_over_the_flat_vector_makes_the_same_steps(by_chain):
    vector, rebuild = kx.parameters.ravel(START)
    noise = np.array([np.isclose(v, np.log(0.1)) for v in vector])
    assert noise.sum() == 1
    halved = optax.stateless(lambda updates, _: updates * np.where(noise, 0.5, 1.0))
    values, _ = trained(lambda v: objective(rebuild(v)), optax.chain(CHAIN_WITHOUT_MASK, halved), vector, 50)
    np.testing.assert_allclose(by_chain.history[:50], values, rtol=1e-9)


# Networks: a deep kernel


def deep_model(seed):
    network = eqx.nn.MLP(1, 2, width_size=4, depth=1, activation=jnp.tanh, key=jax.random.key(seed))
    return kx.Model(1.0 * kx.Warp(kx.RBF(), network), noise=0.1)


def weights(model):
    return model.kernel.kernel.transform.layers[0].weight


def test_a_network_is_trained_together_with_its_kernel():
    start = deep_model(0)
    fit = kx.fit(start, DATA, max_steps=40)
    assert fit.value < objective(start) - 1.0
    assert jnp.max(jnp.abs(weights(fit.model) - weights(start))) > 0.05
    assert abs(fit.model.noise - start.noise) > 1e-3
    assert fit.model.kernel.kernel.transform.activation is start.kernel.kernel.transform.activation


def test_a_network_is_trained_by_a_loop_of_equinox():
    optimiser = optax.adam(0.02)
    free = kx.parameters.unconstrain(deep_model(0))
    state = optimiser.init(eqx.filter(free, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(free, state):
        value, gradient = eqx.filter_value_and_grad(lambda free: objective(kx.parameters.constrain(free)))(free)
        updates, state = optimiser.update(gradient, state, free)
        return eqx.apply_updates(free, updates), state, value

    values = []
    for _ in range(60):
        free, state, value = step(free, state)
        values.append(float(value))
    assert values[-1] < values[0] - 1.0
    assert jnp.max(jnp.abs(weights(free) - weights(deep_model(0)))) > 0.05
    fit = kx.fit(deep_model(0), DATA, optimiser=optimiser, max_steps=60, gradient_tolerance=0.0)
    np.testing.assert_allclose(fit.history, values, rtol=1e-8)


def test_gradients_of_a_deep_kernel_are_finite_differences():
    vector, rebuild = kx.parameters.ravel(deep_model(0))
    assert vector.size == 4 + 4 + 8 + 2 + 3
    loss = jax.jit(lambda v: objective(rebuild(v)))
    gradient = jax.grad(loss)(vector)
    for direction in np.random.default_rng(0).normal(size=(4, vector.size)):
        h = 1e-5
        slope = (loss(vector + h * direction) - loss(vector - h * direction)) / (2 * h)
        np.testing.assert_allclose(gradient @ direction, slope, rtol=1e-6)


def test_a_deep_model_is_saved_and_loaded_by_equinox():
    model = deep_model(0)
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, kx.condition(model, DATA))
    file.seek(0)
    like = kx.condition(deep_model(1), kx.Data(X + 1, Y + 1))
    loaded = eqx.tree_deserialise_leaves(file, like)
    chex.assert_trees_all_equal(*(eqx.filter(m, eqx.is_array) for m in (loaded.model, model)))
    grid = np.linspace(-3, 3, 7)[:, None]
    expected = kx.mean(kx.condition(model, DATA), grid)
    assert jnp.max(jnp.abs(kx.mean(like, grid) - expected)) > 0.01
    np.testing.assert_array_equal(kx.mean(loaded, grid), expected)


# Loops of the user's own: scan, while_loop, vmap


def chosen_one_by_one(model, count):
    """P-greedy: always the point where the power function is largest, by a scan over conditioned models."""

    def step(chosen, _):
        power = kx.power_function(kx.condition(model, kx.Data(X, Y, mask=chosen)), X)
        power = jnp.where(chosen, -1.0, power)
        best = jnp.argmax(power)
        return chosen.at[best].set(True), (best, power[best])

    first = jnp.arange(15) == 0
    return jax.lax.scan(step, first, length=count)[1]


def chosen_by_numpy(lengthscale, noise, count):
    gram = np.exp(-0.5 * ((X - X.T) / lengthscale) ** 2)
    chosen, powers = [0], []
    for _ in range(count):
        cross = gram[chosen]
        inverse = np.linalg.inv(gram[np.ix_(chosen, chosen)] + noise * np.eye(len(chosen)))
        power = np.sqrt(1 - np.sum(cross * (inverse @ cross), axis=0))
        power[chosen] = -1
        chosen.append(int(np.argmax(power)))
        powers.append(power[chosen[-1]])
    return chosen[1:], powers


def test_points_chosen_inside_a_scan_are_those_of_a_python_loop():
    chex.clear_trace_counter()
    greedy = jax.jit(chex.assert_max_traces(chosen_one_by_one, n=1), static_argnums=1)
    for lengthscale in (0.5, 1.1):
        order, powers = greedy(kx.Model(kx.RBF(lengthscale), noise=1e-3), 6)
        expected_order, expected_powers = chosen_by_numpy(lengthscale, 1e-3, 6)
        np.testing.assert_array_equal(order, expected_order)
        np.testing.assert_allclose(powers, expected_powers, rtol=1e-8)


def needed_points(kernel, x, tolerance):
    """How many greedy points bring the power function below a tolerance: a Newton basis in a while_loop."""

    def goes_on(state):
        return jnp.max(state[0]) > tolerance**2

    def turn(state):
        squared_power, basis, count = state
        best = jnp.argmax(squared_power)
        column = kernel(x, x[best][None])[:, 0] - basis @ basis[best]
        column = column / jnp.sqrt(squared_power[best])
        return squared_power - column**2, basis.at[:, count].set(column), count + 1

    n = x.shape[0]
    return jax.lax.while_loop(goes_on, turn, (kernel.diag(x), jnp.zeros((n, n)), 0))[2]


def test_a_kernel_works_in_a_batch_of_while_loops():
    chex.clear_trace_counter()

    def counts(lengthscales, x):
        return jax.vmap(lambda lengthscale: needed_points(kx.Matern32(lengthscale), x, 0.3))(lengthscales)

    many = jax.jit(chex.assert_max_traces(counts, n=1))
    lengthscales = np.array([0.3, 1.0, 4.0])
    for x in (X, 2.0 * X):
        expected = []
        for lengthscale in lengthscales:
            r = np.sqrt(3) * np.abs(x - x.T) / lengthscale
            gram = (1 + r) * np.exp(-r)
            chosen, power = [], np.ones(15)
            while power.max() > 0.3**2:
                chosen.append(int(np.argmax(power)))
                cross = gram[chosen]
                power = 1 - np.sum(cross * np.linalg.solve(gram[np.ix_(chosen, chosen)], cross), axis=0)
            expected.append(len(chosen))
        assert len(set(expected)) == 3
        np.testing.assert_array_equal(many(lengthscales, jnp.asarray(x)), expected)


def test_predicting_one_row_after_another_adds_up_to_the_likelihood():
    """log p(y) = Σ log p(y_t | y_1 … y_{t-1}), the rows seen so far being a mask that the scan carries."""

    def step(seen, t):
        c = kx.condition(START, kx.Data(X, Y, mask=seen))
        mean, variance = kx.predict(c, jnp.asarray(X)[t][None], noisy=True)[:2]
        return seen.at[t].set(True), jax.scipy.stats.norm.logpdf(jnp.asarray(Y)[t], mean[0], jnp.sqrt(variance[0]))

    first = jnp.arange(15) == 0
    _, terms = jax.jit(lambda: jax.lax.scan(step, first, jnp.arange(1, 15)))()
    covariance = np.exp(-0.5 * (X - X.T) ** 2) + 0.1 * np.eye(15)
    joint = multivariate_normal(np.zeros(15), covariance).logpdf(Y) - multivariate_normal(0, covariance[0, 0]).logpdf(Y[0])
    np.testing.assert_allclose(jnp.sum(terms), joint, rtol=1e-9)


# Tables in, arrays out


def test_frames_go_in_and_answers_come_out():
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=15), "b": rng.normal(size=15).astype(np.float32), "y": rng.normal(size=15)}
    model = kx.Model(kx.RBF(lengthscale=[1.0, 2.0]), noise=0.1)
    plain = np.stack([columns["a"], columns["b"]], axis=1)
    expected = np.asarray(kx.mean(kx.condition(model, kx.Data(plain, columns["y"])), plain))
    for frame in (pd.DataFrame(columns, index=range(5, 20)), pl.DataFrame(columns)):
        c = kx.condition(model, kx.Data(frame[["a", "b"]], frame["y"]))
        assert c.data.dtype == np.float64
        np.testing.assert_array_equal(kx.mean(c, frame[["a", "b"]]), expected)
    frame = pd.DataFrame(columns, index=range(5, 20))
    c = kx.condition(model, kx.Data(frame[["a", "b"]], frame["y"], mask=frame["a"] > -10))
    frame["mean"] = kx.mean(c, frame[["a", "b"]])
    assert frame["mean"].dtype == np.float64
    np.testing.assert_array_equal(frame["mean"], expected)
    answer = pd.DataFrame(kx.predict(c, frame[["a", "b"]])._asdict())
    np.testing.assert_array_equal(answer["mean"], expected)
    np.testing.assert_array_equal(pl.Series(np.asarray(kx.loo_residuals(c))), kx.loo_residuals(c))


def test_the_log_posterior_is_what_one_would_write(recwarn):
    density, start, rebuild = kx.fitting.log_posterior(with_priors(), DATA)
    assert not recwarn.list
    np.testing.assert_array_equal(start, VECTOR)
    vectors = VECTOR + np.random.default_rng(0).normal(size=(3, 3))
    np.testing.assert_allclose(jax.vmap(density)(vectors), jax.vmap(log_density)(vectors), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(density)(vectors[0]), jax.grad(log_density)(vectors[0]), rtol=1e-9)
    np.testing.assert_array_equal(rebuild(vectors[0]).noise, REBUILD(vectors[0]).noise)


def test_the_log_posterior_of_some_parameters_and_where_there_is_none():
    sampled = with_priors()
    held = kx.freeze(sampled, where=lambda m: m.noise)
    density, start, rebuild = kx.fitting.log_posterior(sampled, DATA, trainable=held)
    assert start.shape == (2,)
    assert rebuild(start + 1).noise == 0.1
    # The held one counts in the prior, but not in the change of variables: against the values' own density, in NumPy.
    model = rebuild(start)
    ell, v, s = map(float, parts(model))
    covariance = v * np.exp(-0.5 * ((X - X.T) / ell) ** 2) + s * np.eye(15)
    expected = multivariate_normal(np.zeros(15), covariance).logpdf(Y) + lognorm(0.7).logpdf(ell) + np.log(ell)
    expected += gamma(2.0, scale=1 / 1.5).logpdf(v) + np.log(v) + uniform(0.01, 0.59).logpdf(s)
    np.testing.assert_allclose(density(start), expected, rtol=1e-9)
    with pytest.warns(UserWarning, match=r"kernel.kernel.lengthscale, kernel.variance, noise have no prior"):
        flat = kx.fitting.log_posterior(START, DATA)
    assert np.isneginf(flat.density(jnp.array([jnp.nan, 0.0, 0.0])))
