"""The laws of kernels, for every kernel and floating type."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from tests.tables import KERNELS, TOLERANCES, pairs, points

X, Z = points(7), points(5, seed=3)


def as_type(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_gram_equals_pairs(name, dtype):
    """Gram, cross-Gram and diagonal are what `pair` says, in the input's type, and the Gram matrix is a kernel matrix."""
    kernel, x, z = as_type(KERNELS[name], dtype), X.astype(dtype), Z.astype(dtype)
    tolerance = TOLERANCES[dtype]

    @eqx.filter_jit
    def matrices(kernel, x, z):
        return (kernel(x), kernel(x, z), kernel.diag(x)), (pairs(kernel, x, x), pairs(kernel, x, z))

    (gram, cross, diagonal), (gram_by_pairs, cross_by_pairs) = matrices(kernel, x, z)
    assert gram.dtype == cross.dtype == diagonal.dtype == dtype
    np.testing.assert_allclose(gram, gram_by_pairs, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(cross, cross_by_pairs, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(diagonal, np.diag(gram), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(gram, gram.T, atol=tolerance)
    assert np.linalg.eigvalsh(np.asarray(gram, np.float64)).min() > -10 * tolerance * np.trace(gram)


@pytest.mark.parametrize("name", KERNELS)
def test_gram_and_pairs_have_the_same_derivatives(name):
    """The fast Gram path has the derivatives of `pair`: in hyperparameters (first and second order) and in inputs."""
    kernel, weights = KERNELS[name], np.random.default_rng(5).normal(size=(7, 7))
    weights = weights + weights.T
    if not jax.tree.leaves(eqx.filter(kernel, eqx.is_inexact_array)):
        vector, rebuild = jnp.zeros(0), lambda _: kernel
    else:
        vector, rebuild = kx.parameters.ravel(kernel)

    def fast(vector, x):
        return jnp.sum(weights * rebuild(vector).gram(x, None))

    def by_pairs(vector, x):
        pair = rebuild(vector).pair
        return jnp.sum(weights * jax.vmap(lambda a: jax.vmap(lambda b: pair(a, b))(x))(x))

    def derivatives(f):
        return jax.jit(lambda v, x: (jax.grad(f, argnums=(0, 1))(v, x), jax.hessian(f)(v, x)))(vector, X)

    (first, second), (first_by_pairs, second_by_pairs) = derivatives(fast), derivatives(by_pairs)
    for ours, theirs in zip(first, first_by_pairs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(second, second_by_pairs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (kx.RBF(lengthscale=[0.7, 1.9]), sk.RBF([0.7, 1.9])),
        (kx.Matern12(lengthscale=1.3), sk.Matern(1.3, nu=0.5)),
        (kx.Matern32(lengthscale=[0.8, 2.0]), sk.Matern([0.8, 2.0], nu=1.5)),
        (kx.Matern52(lengthscale=1.3), sk.Matern(1.3, nu=2.5)),
        (kx.RationalQuadratic(lengthscale=1.3, alpha=0.7), sk.RationalQuadratic(1.3, 0.7)),
        (kx.Linear() + 0.49, sk.DotProduct(sigma_0=0.7)),
        (2.5 * kx.RBF() + kx.Constant(0.3) * kx.Matern52(), 2.5 * sk.RBF() + sk.ConstantKernel(0.3) * sk.Matern(nu=2.5)),
        (kx.Polynomial(degree=2, offset=0.49), sk.DotProduct(sigma_0=0.7) ** 2),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_parity_with_scikit_learn(ours, theirs):
    np.testing.assert_allclose(ours(X, Z), theirs(X, Z), rtol=1e-12, atol=1e-14)


def test_periodic_parity_with_scikit_learn_in_one_dimension():
    ours, theirs = kx.Periodic(lengthscale=0.8, period=1.7), sk.ExpSineSquared(0.8, 1.7)
    np.testing.assert_allclose(ours(X[:, :1], Z[:, :1]), theirs(X[:, :1], Z[:, :1]), rtol=1e-12)


def test_many_columns_by_matrix_product_agree_with_differences():
    """Beyond 8 columns distances come from a matrix product: never negative, an exact diagonal, the same derivatives."""
    x = 100.0 + np.random.default_rng(0).normal(size=(6, 40))
    x[3] = x[1]
    kernel = kx.Matern52(lengthscale=5.0)
    gram = np.asarray(kernel(x))
    distances = np.sqrt(5 * ((x[:, None] - x[None]) ** 2).sum(-1)) / 5.0
    np.testing.assert_allclose(gram, (1 + distances + distances**2 / 3) * np.exp(-distances), rtol=1e-10)
    assert (np.diag(gram) == 1.0).all()
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.arange(36.0)).reshape(6, 6) * kernel.gram(x, None)))(jnp.asarray(x))
    pairs = jax.vmap(jax.vmap(kernel.pair, (None, 0)), (0, None))
    slow = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.arange(36.0)).reshape(6, 6) * pairs(x, x)))(jnp.asarray(x))
    np.testing.assert_allclose(gradient, slow, rtol=1e-8, atol=1e-10)


def test_structured_inputs():
    """A kernel of one's own may act on any pytree of arrays with a leading row axis, up to the posterior."""

    class Mixed(kx.AbstractKernel):
        """Same group, and close."""

        lengthscale: jax.Array = kx.positive(default=1.0)

        def pair(self, a, b):
            same = jnp.where(a["group"] == b["group"], 1.0, 0.3)
            return same * jnp.exp(-0.5 * jnp.sum((a["at"] - b["at"]) ** 2) / self.lengthscale**2)

    x = {"at": X, "group": np.array([0, 1, 0, 1, 0, 1, 1])}
    model, y = kx.Model(Mixed(), noise=0.2), np.cos(X[:, 0])
    k = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(-1)) * np.where(x["group"][:, None] == x["group"], 1.0, 0.3)
    expected = k @ np.linalg.solve(k + 0.2 * np.eye(7), y)
    np.testing.assert_allclose(kx.mean(kx.condition(model, kx.Data(x, y)), x), expected, rtol=1e-10)


def test_kernels_are_readable():
    kernel = 2.0 * kx.RBF(lengthscale=[1.0, 0.25]) + kx.Periodic(period=3.0) * kx.Matern32()
    text = repr(kernel)
    assert text == ("2 * RBF(lengthscale=[1.  , 0.25]) + Periodic(lengthscale=1., period=3.) * Matern32(lengthscale=1.)")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: -1.0 * kx.RBF(), "Scale.variance must be finite and positive"),
        (lambda: kx.RBF() ** 0, "at least 1"),
        (lambda: kx.RBF() ** 1.5, "whole number"),
        (lambda: kx.Polynomial(degree=0), "at least 1"),
        (lambda: kx.RBF(lengthscale=[1.0, 1.0, 1.0])(X), "inputs have 2 columns"),
        (lambda: kx.Select(kx.RBF(), columns=(0, 2))(X), "inputs have 2 columns"),
        (lambda: kx.Select(kx.RBF(), columns=-1), "counted from 0"),
        (lambda: kx.RBF()(X[:, 0]), r"write x\[:, None\]"),
    ],
)
def test_bad_kernels_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_adding_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError):
        kx.RBF() + "linear"


@pytest.mark.parametrize("kernel", [kx.Matern12, kx.Matern32, kx.RBF])
def test_gradients_survive_nearly_equal_rows(kernel):
    """Pairs of rows 1e-9 apart, far from the origin: the likelihood's slope is that of central differences."""
    x = np.random.default_rng(0).uniform(0, 100, size=(20, 1))
    x = 1e3 + np.concatenate([x, x[:8] + 1e-9])
    data = kx.Data(x, np.sin(x[:, 0]))

    def objective(log_length):
        return kx.selection.negative_log_marginal_likelihood(
            kx.condition(kx.Model(kernel(jnp.exp(log_length)), noise=1e-3), data)
        )

    value = jax.jit(objective)
    for at in (-3.0, 0.0, 2.0):
        difference = (value(at + 1e-5) - value(at - 1e-5)) / 2e-5
        np.testing.assert_allclose(jax.grad(objective)(at), difference, rtol=1e-4, atol=1e-4)


def test_numpy_and_python_numbers_mix_with_kernels():
    assert repr(np.float64(2.0) * kx.RBF()) == repr(2.0 * kx.RBF())
    assert repr(sum([kx.RBF(), kx.Linear()])) == repr(kx.RBF() + kx.Linear())
    assert (kx.RBF() ** np.int64(2)).exponent == 2
    assert kx.Select(kx.RBF(), np.int64(1)).columns == (1,)
    with pytest.raises(TypeError):
        np.ones(3) * kx.RBF()
    for bad in ([True, False], [0.5], "ab"):
        with pytest.raises(ValueError, match="column numbers"):
            kx.Select(kx.RBF(), bad)


def test_scalar_parameters_refuse_vectors():
    for build in (kx.Constant, lambda v: kx.kernels.Scale(kx.RBF(), v), lambda v: kx.RationalQuadratic(alpha=v)):
        with pytest.raises((ValueError, TypeError)):
            build(np.ones(7))
