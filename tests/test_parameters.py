"""Declaring, constraining, freezing, weighing and flattening hyperparameters."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import kernax as kx
from tests.tables import points, targets

X = points(8)
DATA = kx.Data(X, targets(X))
BIJECTORS = {
    "real": (kx.bijectors.Real(), [-3.0, 0.0, 5.0]),
    "positive": (kx.bijectors.Positive(), [1e-9, 1.0, 1e9]),
    "softplus": (kx.bijectors.Softplus(), [1e-6, 1.0, 500.0]),
    "interval": (kx.bijectors.Interval(-1.0, 3.0), [-0.99, 0.0, 2.99]),
}


def model() -> kx.Model:
    return kx.Model(1.5 * kx.RBF(lengthscale=[0.7, 1.9]) + kx.Linear(), noise=0.2, mean=kx.means.Constant(0.1))


@pytest.mark.parametrize("name", BIJECTORS)
def test_bijectors_go_there_and_back(name):
    bijector, values = BIJECTORS[name]
    values = jnp.asarray(values)
    free = bijector.inverse(values)
    np.testing.assert_allclose(bijector.forward(free), values, rtol=1e-9, atol=1e-15)
    slope = jax.vmap(jax.grad(bijector.forward))(free)
    np.testing.assert_allclose(bijector.log_jacobian(free), jnp.log(slope), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_positive_parameter_never_reaches_zero_or_infinity(dtype):
    far = kx.bijectors.Positive().forward(jnp.asarray([-1e4, 1e4], dtype))
    assert (far > 0).all()
    assert jnp.isfinite(far**2).all()
    assert kx.bijectors.Positive().at_bound(far).all()


def test_values_are_stored_as_they_are_and_constrain_undoes_unconstrain():
    m = model()
    assert float(m.noise) == 0.2
    chex.assert_trees_all_close(kx.parameters.constrain(kx.parameters.unconstrain(m)), m, rtol=1e-12)
    np.testing.assert_allclose(kx.parameters.unconstrain(m).noise, np.log(0.2))


def test_one_instance_may_have_another_bijector():
    m = kx.with_bijector(model(), lambda m: m.noise, kx.bijectors.Interval(0.1, 0.3))
    np.testing.assert_allclose(kx.parameters.unconstrain(m).noise, 0.0, atol=1e-12)
    np.testing.assert_allclose(kx.parameters.unconstrain(model()).noise, np.log(0.2))
    fitted = kx.fit(m, DATA).model
    assert 0.1 < float(fitted.noise) < 0.3
    deep = kx.with_bijector(model(), lambda m: m.kernel.kernels[0].kernel.lengthscale, kx.bijectors.Softplus())
    np.testing.assert_allclose(
        kx.parameters.unconstrain(deep).kernel.kernels[0].kernel.lengthscale, np.log(np.expm1([0.7, 1.9]))
    )


def test_freezing_is_a_boolean_tree_and_holds_to_the_bit():
    m = model()
    free = kx.freeze(m, lambda m: m.kernel.kernels[0].kernel.lengthscale)
    assert free.noise is True
    assert free.kernel.kernels[0].kernel.lengthscale is False
    both = kx.freeze(m, lambda m: (m.noise, m.mean), trainable=free)
    fitted = kx.fit(m, DATA, trainable=both).model
    for held in (lambda m: m.kernel.kernels[0].kernel.lengthscale, lambda m: m.noise, lambda m: m.mean.value):
        np.testing.assert_array_equal(held(fitted), held(m))
    assert float(fitted.kernel.kernels[1].variance) != 1.0
    whole = kx.freeze(m, lambda m: m.kernel)
    assert sum(jax.tree.leaves(whole)) == 2
    with pytest.raises(ValueError, match="picks no parameter"):
        kx.freeze(m, lambda m: m.kernel.kernels[0].settings)
    with pytest.raises(ValueError, match="nothing to fit"):
        kx.fit(m, DATA, trainable=kx.freeze(m, lambda m: m))


def test_priors_are_the_densities_of_scipy():
    values = np.array([0.3, 1.0, 2.5])
    table = [
        (kx.priors.Normal(0.5, 2.0), stats.norm(0.5, 2.0)),
        (kx.priors.LogNormal(0.4, 0.7), stats.lognorm(s=0.7, scale=np.exp(0.4))),
        (kx.priors.HalfNormal(1.7), stats.halfnorm(scale=1.7)),
        (kx.priors.Gamma(2.5, 0.8), stats.gamma(2.5, scale=1 / 0.8)),
    ]
    for ours, theirs in table:
        np.testing.assert_allclose(ours(jnp.asarray(values)), theirs.logpdf(values), rtol=1e-10, err_msg=str(ours))
        draws = ours.sample(jax.random.key(0), (4000,), jnp.float64)
        assert stats.kstest(np.asarray(draws), theirs.cdf).pvalue > 1e-3
    with pytest.raises(ValueError, match="positive number"):
        kx.priors.Gamma(-1.0)


def test_log_prior_adds_what_was_attached():
    m = kx.with_prior(model(), lambda m: m.kernel.kernels[0].kernel.lengthscale, kx.priors.LogNormal(0.0, 1.0))
    m = kx.with_prior(m, lambda m: m.noise, lambda noise: -3.0 * noise)
    expected = stats.lognorm(s=1.0).logpdf([0.7, 1.9]).sum() - 3.0 * 0.2
    np.testing.assert_allclose(kx.parameters.log_prior(m), expected, rtol=1e-12)
    assert kx.parameters.log_prior(model()) == 0
    np.testing.assert_allclose(
        kx.parameters.log_prior(kx.with_prior(m, lambda m: m.noise, None)), expected + 0.6, rtol=1e-12
    )


def test_priors_make_a_fit_the_posterior_mode():
    """At the mode the gradient of likelihood and prior together vanishes, and not that of the likelihood alone."""
    m = kx.with_prior(kx.Model(kx.RBF(), noise=0.2), lambda m: m.kernel.lengthscale, kx.priors.LogNormal(2.0, 0.1))
    fitted = kx.fit(m, DATA)
    vector, rebuild = kx.parameters.ravel(fitted.model)

    def likelihood(vector):
        return kx.log_marginal_likelihood(kx.condition(rebuild(vector), DATA))

    def posterior(vector):
        length = rebuild(vector).kernel.lengthscale
        return likelihood(vector) - 0.5 * ((jnp.log(length) - 2.0) / 0.1) ** 2 - jnp.log(length)

    at_mode, of_likelihood = jax.jit(lambda v: (jax.grad(posterior)(v), jax.grad(likelihood)(v)))(vector)
    assert np.abs(at_mode).max() < 1e-3
    assert np.abs(of_likelihood).max() > 1e-2
    assert 5.0 < float(fitted.model.kernel.lengthscale) < 9.0


def test_ravel_is_a_vector_and_the_way_back():
    m = model()
    vector, rebuild = kx.parameters.ravel(m)
    assert vector.shape == (6,)
    chex.assert_trees_all_close(rebuild(vector), m, rtol=1e-12)
    held = kx.freeze(m, lambda m: m.kernel)
    small, rebuild = kx.parameters.ravel(m, trainable=held)
    assert small.shape == (2,)
    moved = rebuild(small + 1.0)
    chex.assert_trees_all_equal(moved.kernel, m.kernel)
    np.testing.assert_allclose(moved.noise, 0.2 * np.e)


def test_log_jacobian_makes_densities_of_the_unconstrained_space():
    """exp(u) of a standard log-normal is a standard normal u."""
    m = kx.with_prior(kx.Model(kx.RBF(lengthscale=1.7), noise=0.4), lambda m: m.noise, kx.priors.LogNormal())
    m = kx.with_prior(m, lambda m: m.kernel.lengthscale, kx.priors.LogNormal())
    total = kx.parameters.log_prior(m) + kx.parameters.log_jacobian(kx.parameters.unconstrain(m))
    np.testing.assert_allclose(total, stats.norm.logpdf(np.log([1.7, 0.4])).sum(), rtol=1e-12)


def test_settings_belong_to_kernax_modules():
    deep = kx.Model(kx.Warp(kx.RBF(), eqx.nn.Linear(2, 1, key=jax.random.key(0))), noise=0.1)
    with pytest.raises(TypeError, match="is not a field of a kernax module"):
        kx.with_prior(deep, lambda m: m.kernel.transform.weight, kx.priors.Normal())


def test_interval_fields():
    class Mixture(kx.AbstractKernel):
        """`w · RBF + (1-w) · Linear`."""

        weight: jax.Array = kx.parameters.interval(0.0, 1.0, default=0.5)

        def pair(self, a, b):
            return self.weight * jnp.exp(-0.5 * jnp.sum((a - b) ** 2)) + (1 - self.weight) * jnp.sum(a * b)

    with pytest.raises(ValueError, match="between 0 and 1"):
        Mixture(weight=1.5)
    fitted = kx.fit(kx.Model(Mixture(), noise=0.1), DATA).model
    assert 0 < float(fitted.kernel.weight) < 1


def test_messages_end_with_one_full_stop():
    with pytest.raises(ValueError, match=r"SHO\.period must be finite and positive, got 0\.$"):
        kx.kernels.SHO(0.0)
