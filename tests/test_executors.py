"""Many datasets through executors: the same numbers wherever they are computed, and nothing lost with a worker."""

import functools
import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.fitting import _blocks, _plan

loky = pytest.importorskip("loky")


def made(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, size=(n, 1))
    return x, np.sin(2.0 * x[:, 0]) + 0.5 * rng.normal(size=n)


SETS = [made(8 + i % 5, i) for i in range(40)]
MODEL = kx.Model(kx.RBF(1.0), 0.5)
X_NEW = np.linspace(-1.0, 1.0, 3)[:, None]


def same(fits, others):
    assert fits.keys == others.keys
    assert fits.result_names.tolist() == others.result_names.tolist()
    for one, other in ((fits.value, others.value), (fits.model.noise, others.model.noise)):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def local():
    return kx.fit_many(MODEL, SETS)


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_a_process_pool_gives_the_same_bits(pool, local, tmp_path):
    """The worker has not been told of float64: that travels with the work."""
    fits = kx.fit_many(MODEL, SETS, executor=pool, checkpoint=tmp_path)
    assert fits.value.dtype == jnp.float64
    same(fits, local)
    for one, other in zip(*(kx.predict_many(local, SETS, X_NEW, executor=e) for e in (pool, None)), strict=True):
        np.testing.assert_array_equal(one.mean, other.mean)
        np.testing.assert_array_equal(one.variance, other.variance)
    ours, theirs = (kx.fitting.condition_many(local, SETS, executor=e) for e in (pool, None))
    assert len(ours) == 40
    np.testing.assert_array_equal(ours[7].alpha, theirs[7].alpha)
    np.testing.assert_array_equal(kx.mean(ours[7], X_NEW), kx.mean(theirs[7], X_NEW))
    same(kx.fitting.refit_many(local, SETS, where=[3, 5], executor=pool), local)


def test_threads_of_ones_own_and_loky(local):
    with ThreadPoolExecutor(3) as pool:
        same(kx.fit_many(MODEL, SETS, executor=pool), local)
    same(kx.fit_many(MODEL, SETS, executor=loky.get_reusable_executor(1)), local)


def test_a_dask_cluster(local):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(kx.fit_many(MODEL, SETS, executor=client.get_executor()), local)


def test_ray(local):
    """With the few lines that the how-to shows."""
    ray = pytest.importorskip("ray")

    class RayExecutor(Executor):
        def __init__(self):
            ray.init(num_cpus=1, include_dashboard=False)
            self._run = ray.remote(lambda function, *arguments: function(*arguments))

        def submit(self, function, /, *arguments):
            return self._run.remote(function, *arguments).future()

    try:
        same(kx.fit_many(MODEL, SETS, executor=RayExecutor()), local)
    finally:
        ray.shutdown()


def scores(c):
    return kx.loo_mse(c)


def test_scores(local):
    ours = kx.fitting.score_many(local, SETS, scores)
    np.testing.assert_allclose(
        ours, [kx.loo_mse(kx.condition(f.model, kx.Data(*d))) for f, d in zip(local, SETS, strict=True)]
    )
    empty = kx.fitting.score_many(MODEL, [SETS[0], (np.zeros((0, 1)), np.zeros(0))], scores)
    assert np.isfinite(empty[0])
    assert np.isnan(empty[1])


def deadly(c):
    """The likelihood; but worker processes die over the dataset with 12 rows and the largest sum, a number of times."""
    value = kx.selection.negative_log_marginal_likelihood(c)

    def perhaps_die(total):
        folder, last, home, times = (os.environ[f"KERNAX_TEST_{name}"] for name in ("FOLDER", "SUM", "HOME", "TIMES"))
        is_it = abs(float(total) - float(last)) < 1e-5 and os.getpid() != int(home)
        if is_it and len(os.listdir(folder)) < int(times):
            open(os.path.join(folder, str(os.getpid())), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    jax.debug.callback(perhaps_die, jnp.sum(c.data.y))
    return value


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies(times, tmp_path, monkeypatch):
    """Once: its block is tried again. Twice: its datasets are lost, and nothing else is."""
    monkeypatch.setattr(_plan, "_SMALLEST", 8)
    settings = {"FOLDER": tmp_path, "SUM": np.sum(SETS[21][1]), "HOME": os.getpid(), "TIMES": times}
    for name, value in settings.items():
        monkeypatch.setenv(f"KERNAX_TEST_{name}", str(value))
    alone = kx.fit_many(MODEL, SETS, objective=deadly)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        fits = kx.fit_many(MODEL, SETS, objective=deadly, executor=pool)
    assert len(os.listdir(tmp_path)) == times
    if times == 1:
        same(fits, alone)
        return
    lost = fits.result_names == "lost"
    assert lost[21]
    assert lost.sum() == 8
    assert np.isnan(fits.value[lost]).all()
    same(fits[~lost], alone[~lost])


def test_what_cannot_be_sent(pool, monkeypatch):
    offset = 1.0
    objective = functools.partial(lambda c, by: kx.loo_mse(c) * by, by=offset)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match=r"cannot be sent .* install cloudpickle"):
        kx.fit_many(MODEL, SETS, objective=objective, executor=pool)


def test_what_raises_in_a_worker_raises_here(pool):
    with pytest.raises(AttributeError, match="no_such_thing"):
        kx.fit_many(MODEL, SETS, objective=raises, executor=pool)


def raises(c):
    return c.no_such_thing


def test_another_version_is_refused():
    spec = _blocks.sealed(_blocks.Spec(None, None, True, {"kernax": "9.9.9", "jax": "1.2.3"}))
    answer = pickle.loads(_blocks.run_sealed(spec, b""))
    words = r"a worker has kernax .*, but this process has kernax 9\.9\.9, jax 1\.2\.3: install the same"
    with pytest.raises(RuntimeError, match=words):
        raise answer.error
