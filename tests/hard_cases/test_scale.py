"""Memory, compilations, and the same numbers by every way of calling."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax import rows
from tests.hard_cases import oracle

RNG = np.random.default_rng(5)
XS, YS = RNG.normal(size=(3, 8, 2)), RNG.normal(size=(3, 8))
X_NEW = RNG.normal(size=(5, 2))


# H40: a million test rows


@pytest.mark.parametrize("quantity", [kx.mean, kx.variance], ids=["mean", "variance"])
def test_h40_a_million_rows_against_5000_need_bounded_memory(quantity):
    """By the compiled program's own account; nothing of that size is run."""

    def condition(x, y):
        return kx.condition(kx.Model(kx.RBF(1.0), 0.1), kx.Data(x, y))

    rows, targets, many = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((5000, 3), (5000,), (10**6, 3)))
    c = eqx.filter_eval_shape(condition, rows, targets)
    memory = jax.jit(quantity).lower(c, many).compile().memory_analysis()
    # The whole cross-Gram matrix would take 40 GB.
    assert memory.temp_size_in_bytes < 300e6
    assert memory.output_size_in_bytes < 10e6


def test_h40_reverse_mode_keeps_no_block():
    """The gradient of many predictions needs little more memory than the predictions."""

    def total(lengthscale, x, y, x_new):
        c = kx.condition(kx.Model(kx.RBF(lengthscale), 0.1), kx.Data(x, y))
        return jnp.sum(jnp.sin(kx.mean(c, x_new)))

    shapes = ((), (2000, 3), (2000,), (10**5, 3))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    memory = jax.jit(jax.grad(total)).lower(*arguments).compile().memory_analysis()
    # The cross-Gram matrices of all blocks would take 1.6 GB.
    assert memory.temp_size_in_bytes < 500e6


def test_h40_answers_in_chunks_are_the_same(monkeypatch):
    # A number of rows that no other test asks for: a compiled program would not see the smaller chunks.
    x_new = RNG.normal(size=(23, 2))
    c = kx.condition(kx.Model(kx.RBF(1.0), 0.1), kx.Data(XS[0], YS[0]))
    with monkeypatch.context() as patch:
        patch.setattr(rows, "_ENTRIES", 100)
        program = jax.jit(kx.predict).lower(c, x_new)
        text = program.as_text()
        got = program.compile()(c, x_new)
    # 100 numbers are 3 rows of 4 · 8 for the variance: eight blocks of 3, of which the last is padded.
    assert "tensor<8x3xf64>" in text
    assert "tensor<8x23xf64>" not in text
    mean, variance = oracle.posterior(oracle.rbf(XS[0]), oracle.rbf(x_new, XS[0]), np.ones(23), YS[0], 0.1)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(got.variance, variance, rtol=1e-10)


# H41: compilations


def test_h41_the_same_shapes_again_compile_nothing(caplog):
    def work(x, y, x_new, lengthscale, noise):
        data = kx.Data(x, y)
        fit = kx.fit(kx.Model(kx.RBF(lengthscale), noise), data, max_steps=4)
        c = kx.condition(fit.model, data)
        return [fit.value, kx.mean(c, x_new), kx.variance(c, x_new), kx.log_marginal_likelihood(c), kx.loo_residuals(c)]

    def compilations(*args):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            answers = work(*args)
        return answers, [record.getMessage() for record in caplog.records if "Compiling" in record.getMessage()]

    # A dataset of another shape than in any other test, so that the first call does compile.
    rows, targets = np.concatenate(XS)[:11], np.concatenate(YS)[:11]
    first, compiled = compilations(rows, targets, X_NEW, 1.0, 0.1)
    assert compiled
    second, compiled_again = compilations(2.0 * rows, targets + 1.0, X_NEW - 1.0, 0.5, 0.3)
    assert compiled_again == []
    assert all((np.asarray(a) != np.asarray(b)).any() for a, b in zip(first, second, strict=True))


# H42: ways of calling


def answers(x, y, x_new, lengthscale):
    """Everyday quantities of one dataset."""
    c = kx.condition(kx.Model(kx.RBF(lengthscale), 0.1), kx.Data(x, y))
    prediction = kx.predict(c, x_new)
    return {
        "alpha": c.alpha,
        "mean": prediction.mean,
        "variance": prediction.variance,
        "likelihood": kx.log_marginal_likelihood(c),
        "leave one out": kx.loo_residuals(c),
        "norm": kx.posterior.rkhs_norm(c),
    }


def likelihood(lengthscale, x, y):
    return kx.log_marginal_likelihood(kx.condition(kx.Model(kx.RBF(lengthscale), 0.1), kx.Data(x, y)))


def test_h42_jit_and_vmap_equal_eager_calls_in_a_loop():
    lengthscales = jnp.array([0.7, 1.0, 1.4])
    loop = [answers(x, y, X_NEW, lengthscale) for x, y, lengthscale in zip(XS, YS, lengthscales, strict=True)]
    jitted = jax.jit(answers)
    one_by_one = [jitted(x, y, X_NEW, lengthscale) for x, y, lengthscale in zip(XS, YS, lengthscales, strict=True)]
    together = jax.jit(jax.vmap(answers, in_axes=(0, 0, None, 0)))(XS, YS, X_NEW, lengthscales)
    for lane in range(3):
        for name, want in loop[lane].items():
            np.testing.assert_allclose(one_by_one[lane][name], want, rtol=1e-12, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(together[name][lane], want, rtol=1e-12, atol=1e-12, err_msg=name)


def test_h42_gradients_by_vmap_equal_those_one_by_one():
    lengthscales = jnp.array([0.7, 1.0, 1.4])
    single = jax.jit(jax.grad(likelihood))
    loop = [single(lengthscale, x, y) for lengthscale, x, y in zip(lengthscales, XS, YS, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(likelihood)))(lengthscales, XS, YS), loop, rtol=1e-12)
    step = 1e-5
    ends = [oracle.log_likelihood(oracle.rbf(XS[0], lengthscale=0.7 + shift), YS[0], 0.1) for shift in (step, -step)]
    np.testing.assert_allclose(loop[0], (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


# H49: a dense system larger than memory

HUGE = 10**6


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model, data: kx.condition(model, data), r"condition with kx.Cholesky\(\) .* solver=kx\.StateSpace\(\)"),
        (lambda model, data: kx.fit(model, data), r"fit with kx.Cholesky\(\) .* solver=kx\.StateSpace\(\)"),
        (lambda model, data: kx.select_ridge(model, data), r"select_ridge with kx.Eigh\(\) .* solver=kx\.StateSpace\(\)"),
        (lambda model, data: jax.jit(lambda d: kx.condition(model, d).alpha)(data), r"solver=kx\.StateSpace\(\)"),
        (lambda model, data: kx.condition(kx.learners.SVR(model.kernel), data), r"use fewer rows"),
    ],
    ids=["condition", "fit", "select_ridge", "jit", "machine"],
)
def test_h49_a_matrix_larger_than_memory_is_refused_with_a_solver(call, says):
    data = kx.Data(np.zeros((HUGE, 1)), np.zeros(HUGE))
    with pytest.raises(MemoryError, match=says) as error:
        call(kx.Model(kx.Matern32(), 0.1), data)
    assert "1,000,000 rows" in str(error.value)
    assert "are available" in str(error.value)


def test_h49_the_suggested_solver_works(monkeypatch):
    monkeypatch.setenv("KERNAX_MEMORY", "0.1")  # so that few rows are too many
    x = np.linspace(0, 9, 5000)[:, None]
    model, data = kx.Model(kx.Matern32(), 0.1), kx.Data(x, np.sin(x[:, 0]))
    with pytest.raises(MemoryError, match=r"0\.37 GiB"):
        kx.condition(model, data)
    solver = kx.suggest_solver(model, data).solver
    np.testing.assert_allclose(kx.mean(kx.condition(model, data, solver), x), data.y, atol=0.1)
