"""BLAS threads by the size of the matrix: one for small ones, and the number of before is restored."""

import os
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import kernax as kx
from kernax import _threads
from kernax._programs import compiled
from kernax._threads import one_blas_thread, with_threads_for

IS_BUSY = _threads.is_busy


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture(autouse=True)
def several_threads(monkeypatch):
    """Two BLAS threads before each test, whatever the machine has and whatever else runs on it."""
    monkeypatch.setattr(_threads, "is_busy", lambda: False)
    with _threads._blas().limit(limits=2):
        yield
        assert blas_threads() == {2}


@pytest.fixture
def seen(monkeypatch):
    """The numbers of BLAS threads while programs run, in a list that grows."""
    numbers = []

    def look(kernel, s):
        jax.debug.callback(lambda: numbers.append(blas_threads()))
        return jnp.exp(-0.5 * s)

    monkeypatch.setattr(kx.RBF, "of_squared_distance", look)
    return numbers


def data(n: int) -> kx.Data:
    x = np.linspace(0.0, 1.0, n)[:, None]
    return kx.Data(x, np.sin(6 * x[:, 0]))


@pytest.mark.parametrize(("size", "expected"), [(1, {1}), (_threads.SMALL, {1}), (_threads.SMALL + 1, {2})])
def test_small_matrices_get_one_thread(size, expected):
    assert with_threads_for(size, blas_threads) == expected


def test_medium_matrices_get_one_thread_while_the_machine_is_busy(monkeypatch):
    monkeypatch.setattr(_threads, "is_busy", lambda: True)
    assert with_threads_for(_threads.MEDIUM, blas_threads) == {1}
    assert with_threads_for(_threads.MEDIUM + 1, blas_threads) == {2}


@pytest.mark.skipif(not os.path.exists("/proc/loadavg"), reason="Linux tells how many threads want to run")
def test_a_machine_is_busy_while_more_processes_compute_than_it_has_cores():
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    others = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(os.cpu_count() + 1)]
    try:
        end = time.monotonic() + 60.0
        while not IS_BUSY() and time.monotonic() < end:
            time.sleep(0.01)
        assert IS_BUSY()
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize(("n", "expected"), [(9, {1}), (11, {2})])
def test_fit_condition_and_predict_go_by_the_rows_of_the_data(n, expected, seen, monkeypatch):
    monkeypatch.setattr(_threads, "SMALL", 10)
    model, given = kx.Model(kx.RBF(0.37), noise=0.1), data(n)
    calls = {
        "fit": lambda: kx.fit(model, given, max_steps=2).value,
        "condition": lambda: kx.condition(model, given),
        "predict": lambda: kx.predict(kx.condition(model, given), given.x[:3]).mean,
    }
    for name, call in calls.items():
        seen.clear()
        jax.block_until_ready(call())
        jax.effects_barrier()
        assert seen, name
        assert all(number == expected for number in seen), name


def test_many_new_rows_count_as_a_large_matrix(seen, monkeypatch):
    c = kx.condition(kx.Model(kx.RBF(0.41), noise=0.1), data(9))
    jax.effects_barrier()
    seen.clear()
    monkeypatch.setattr(_threads, "SMALL", 10)
    jax.block_until_ready(kx.predict(c, data(30).x))
    jax.effects_barrier()
    assert seen
    assert {2} in seen


def test_vecchia_goes_by_its_neighbours_and_not_by_the_rows():
    assert kx.Vecchia(neighbours=5, prediction_neighbours=7).largest_matrix(10**6) == 8
    assert kx.Vecchia(neighbours=900, block=100).largest_matrix(10**6) == 1000
    assert kx.Cholesky().largest_matrix(10**6) == 10**6


def test_the_number_is_restored_when_the_last_of_overlapping_blocks_ends():
    """Two threads whose blocks overlap, the first to begin being the first to end."""
    begun, ended, numbers = threading.Event(), threading.Event(), []

    def second():
        with one_blas_thread():
            begun.set()
            ended.wait(10)
            numbers.append(blas_threads())

    other = threading.Thread(target=second)
    with one_blas_thread():
        other.start()
        assert begun.wait(10)
    ended.set()
    other.join()
    assert numbers == [{1}]
    assert blas_threads() == {2}


def test_the_number_is_restored_after_an_exception():
    with pytest.raises(RuntimeError, match="stop"), one_blas_thread():
        raise RuntimeError("stop")
    assert blas_threads() == {2}


def test_every_compiled_program_goes_by_its_longest_argument(monkeypatch):
    monkeypatch.setattr(_threads, "SMALL", 10)
    numbers = []

    @compiled
    def program(x):
        jax.debug.callback(lambda: numbers.append(blas_threads()))
        return x + 1.0

    for n in (10, 11):
        jax.block_until_ready(program(jnp.zeros((n, 2))))
        jax.effects_barrier()
    assert numbers == [{1}, {2}]
