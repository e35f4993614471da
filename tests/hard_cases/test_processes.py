"""What depends on settings of the whole process: each test runs a small script in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.optimize

from tests.hard_cases import oracle


def run(code, **settings):
    """The JSON that a script prints last; a hang or a fault fails the test."""
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_ENABLE_X64", "NPROC")}
    # These scripts mostly compile; how fast what they compile runs is of no matter. The emitters are those that users have.
    flags = (
        "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 "
        "--xla_llvm_disable_expensive_passes=true --xla_cpu_enable_concurrency_optimized_scheduler=false"
    )
    environment |= {"XLA_FLAGS": flags} | settings
    script = textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def single():
    """Answers of a process that has JAX's default settings, and its warnings step by step."""
    return run(
        """
        import json, warnings
        import jax, jax.numpy as jnp, numpy as np
        import kernax as kx

        x, y = np.linspace(0.0, 1.0, 5)[:, None], np.arange(5.0)
        told, settings = {}, dict(jax.config.values)

        def step(name, action):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                action()
            told[name] = [[str(w.message), w.filename] for w in caught]

        step("python floats", lambda: kx.Model(2.0 * kx.RBF(1.0), noise=0.1))
        step("float32", lambda: kx.Data(x.astype("float32"), y.astype("float32")))
        step("float64", lambda: kx.Data(x, y))
        step("float64 again", lambda: kx.Data(x, y))
        told["settings unchanged"] = dict(jax.config.values) == settings
        told["dtype"] = kx.Data(x, y).dtype.name

        rng = np.random.default_rng(6)
        x, x_new, noise = (rng.uniform(-2.0, 2.0, size=s).astype("float32") for s in ((12, 2), (5, 2), 12))
        y = np.sin(2.0 * x[:, 0]) + 0.2 * noise
        data, model = kx.Data(x, y), kx.Model(1.0 * kx.RBF(1.0), 0.1)
        c = kx.condition(model, data)
        prediction = kx.predict(c, x_new)

        def likelihood(model):
            return kx.log_marginal_likelihood(kx.condition(model, data))

        gradient = jax.jit(jax.grad(likelihood))(model)
        fit = kx.fit(model, data)

        grid = np.linspace(-3.0, 3.0, 500, dtype="float32")[:, None]
        smooth = kx.condition(kx.Model(kx.RBF(1.0), 1e-9), kx.Data(grid, np.sin(2.0 * grid[:, 0])))
        arrays = [c.alpha, *prediction[:2], fit.value, *jax.tree.leaves(fit.model), smooth.jitter]
        print(json.dumps({
            "told": told,
            "dtypes": sorted({array.dtype.name for array in arrays}),
            "mean": prediction.mean.tolist(),
            "variance": prediction.variance.tolist(),
            "likelihood": float(kx.log_marginal_likelihood(c)),
            "gradient": [float(gradient.kernel.variance), float(gradient.kernel.kernel.lengthscale), float(gradient.noise)],
            "fit": float(fit.value),
            "smooth result": kx.solvers.result_name(smooth.result),
            "smooth jitter": float(smooth.jitter),
            "smooth mean": kx.mean(smooth, grid[::50]).tolist(),
        }))
        """
    )


@pytest.fixture(scope="module")
def told(single):
    """What a process in float32 says, step by step."""
    return single["told"]


def test_h11_float64_that_is_cut_is_told_once_and_no_setting_changes(told):
    messages = [message for message, _ in told["python floats"] + told["float64"] + told["float64 again"]]
    assert len(messages) == 1
    assert "float64" in messages[0]
    assert 'jax.config.update("jax_enable_x64", True)' in messages[0]
    assert told["float64 again"] == []
    assert told["settings unchanged"]
    assert told["dtype"] == "float32"


def test_h11_python_numbers_and_float32_are_no_float64(told):
    """The one warning must not be spent on `noise=0.1`, which loses nothing that the user has."""
    assert told["python floats"] == []
    assert told["float32"] == []
    assert [message.split()[0] for message, _ in told["float64"]] == ["x"]


def test_h11_the_warning_points_at_the_users_own_line(told):
    assert [file for _, file in told["float64"]] == ["<string>"]


def test_h43_a_users_own_vmap_ends_on_two_cores_and_equals_the_loop():
    answers = run(
        """
        import json
        import jax, jax.numpy as jnp, numpy as np
        import kernax as kx

        rng = np.random.default_rng(0)
        xs = jnp.asarray(rng.uniform(-2.0, 2.0, size=(6, 30, 2)))
        ys = jnp.sin(2.0 * xs[..., 0]) + 0.1 * jnp.asarray(rng.normal(size=(6, 30)))
        model = kx.Model(kx.RBF(1.0), 0.1)

        def alpha(x, y):
            return kx.condition(model, kx.Data(x, y)).alpha

        def gradient(x, y):
            def likelihood(model):
                return kx.log_marginal_likelihood(kx.condition(model, kx.Data(x, y)))

            return jnp.stack(jax.tree.leaves(jax.grad(likelihood)(model)))

        def fitted(x, y):
            fit = kx.fit(model, kx.Data(x, y), max_steps=15)
            return jnp.stack([fit.value, *jax.tree.leaves(fit.model)])

        answers = {}
        for function, single in ((alpha, alpha), (gradient, jax.jit(gradient)), (fitted, fitted)):
            together = np.asarray(jax.jit(jax.vmap(function))(xs, ys))
            loop = np.stack([np.asarray(single(x, y)) for x, y in zip(xs, ys)])
            answers[function.__name__] = [together.tolist(), loop.tolist()]
        print(json.dumps(answers))
        """,
        NPROC="2",
        JAX_ENABLE_X64="1",
    )
    for name, tolerance in (("alpha", 1e-10), ("gradient", 1e-10), ("fitted", 1e-6)):
        together, loop = answers[name]
        np.testing.assert_allclose(together, loop, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def double():
    """The same dataset, and its likelihood as a function of variance, lengthscale and noise, in NumPy."""
    rng = np.random.default_rng(6)
    x, x_new, noise = (rng.uniform(-2.0, 2.0, size=s).astype("float32") for s in ((12, 2), (5, 2), 12))
    y = (np.sin(2.0 * x[:, 0]) + 0.2 * noise).astype(np.float64)

    def likelihood(parameters):
        variance, lengthscale, noise = parameters
        return oracle.log_likelihood(oracle.rbf(x, lengthscale=lengthscale, variance=variance), y, noise)

    return x, x_new, y, likelihood


def test_h10_without_x64_everything_is_float32(single):
    assert single["dtypes"] == ["float32"]


def test_h10_without_x64_predictions_are_right_to_float32(single, double):
    x, x_new, y, likelihood = double
    mean, variance = oracle.posterior(oracle.rbf(x), oracle.rbf(x_new, x), np.ones(5), y, 0.1)
    np.testing.assert_allclose(single["mean"], mean, atol=2e-5)
    np.testing.assert_allclose(single["variance"], variance, atol=2e-5)
    np.testing.assert_allclose(single["likelihood"], likelihood([1.0, 1.0, 0.1]), rtol=1e-5)


def test_h10_without_x64_gradients_and_fits_are_right_to_float32(single, double):
    likelihood = double[-1]
    slopes = scipy.optimize.approx_fprime(np.array([1.0, 1.0, 0.1]), likelihood, 1e-6)
    np.testing.assert_allclose(single["gradient"], slopes, rtol=1e-3, atol=1e-3)
    best = scipy.optimize.minimize(lambda logs: -likelihood(np.exp(logs)), np.log([1.0, 1.0, 0.1]), method="Nelder-Mead")
    np.testing.assert_allclose(single["fit"], best.fun, rtol=1e-3)


def test_h23_without_x64_a_smooth_kernel_reports_its_jitter(single):
    assert single["smooth result"] == "successful"
    assert 0.0 < single["smooth jitter"] <= 1e-2
    grid = np.linspace(-3.0, 3.0, 500)[::50]
    np.testing.assert_allclose(single["smooth mean"], np.sin(2.0 * grid), atol=1e-2)
