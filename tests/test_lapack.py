"""LAPACK as named targets of XLA: right results on every path, in threads, and in programs that go to other processes."""

import ctypes
import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import cython_lapack

import kernax as kx
from kernax import _ffi
from kernax.solvers import _lapack, _raw, custom_calls, factorise_matrix

N = 200
TOLERANCES = {"float32": 2e-4, "float64": 1e-11}


def definite(n=N, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, n))
    return rows @ rows.T / n + np.eye(n)


def factor_and_inverse():
    def both(matrix, added):
        upper = _raw.cholesky(matrix, added)
        return upper, _raw.inverse_triangle(upper)

    return jax.jit(both)


def check(answers, matrix, tolerance):
    upper, inverse = map(np.asarray, answers)
    np.testing.assert_allclose(np.triu(upper), np.linalg.cholesky(matrix).T, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(np.triu(inverse), np.triu(np.linalg.inv(matrix)), rtol=tolerance, atol=tolerance)


def use_another_ffi(monkeypatch):
    monkeypatch.setattr(_ffi, "MAJOR", 1)
    monkeypatch.setattr(_ffi, "version", _ffi.version.__wrapped__)


def use_long_integers(monkeypatch):
    """SciPy's routines under the signature that they have in a build with 64-bit integers."""
    for integer in (b"blas_int", b"int64_t"):
        for name in ("spotrf", "dpotrf"):
            signature = b"void (char *, I *, __pyx_t_5scipy_6linalg_13cython_lapack_%b *, I *, I *)" % name[:1].encode()
            monkeypatch.setitem(cython_lapack.__pyx_capi__, name, capsule(name, signature.replace(b"I", integer)))
            assert _lapack._routine.__wrapped__(name) is None
    monkeypatch.setattr(_lapack, "_routine", _lapack._routine.__wrapped__)


def capsule(name, signature, kept=[]):  # noqa: B006
    """A capsule with SciPy's pointer and another signature, whose text must stay in memory."""
    kept.append(signature)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    return new(ctypes.cast(_lapack._routine(name), ctypes.c_void_p), signature, None)


PATHS = {"lapack": lambda monkeypatch: None, "another ffi": use_another_ffi, "64-bit integers": use_long_integers}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factor_and_inverse_are_right_on_every_path(dtype, path, monkeypatch):
    PATHS[path](monkeypatch)
    n = N + list(PATHS).index(path)  # JAX may keep what it has traced for a shape
    matrix, added = definite(n).astype(dtype), np.where(np.arange(n) % 3 == 0, 0.5, 0.0).astype(dtype)
    program, tolerance = factor_and_inverse(), TOLERANCES[dtype]
    assert ("kernax_" in program.lower(matrix, added).as_text()) == (path == "lapack")
    check(program(matrix, 0 * added), matrix, tolerance)
    check(program(matrix, added), matrix + np.diag(added), tolerance)
    # Not definite: a diagonal of NaN. An infinite entry anywhere: the identity.
    assert np.all(np.isnan(np.diag(program(matrix - 2.0 * np.eye(n, dtype=dtype), added)[0])))
    added[n // 2] = np.inf
    for answer in program(matrix, added):
        np.testing.assert_array_equal(np.triu(answer), np.eye(n))


def test_a_signature_without_a_typedef_is_refused(monkeypatch):
    """Only the exact text that SciPy has today counts."""
    monkeypatch.setitem(
        cython_lapack.__pyx_capi__, "dpotrf", capsule("dpotrf", b"void (char *, int *, float *, int *, int *)")
    )
    assert _lapack._routine.__wrapped__("dpotrf") is None
    monkeypatch.delitem(cython_lapack.__pyx_capi__, "dpotrf")
    assert _lapack._routine.__wrapped__("dpotrf") is None


def test_a_program_that_cannot_reach_lapack_reports_it(monkeypatch):
    """As after `jax.export` to a machine with another LAPACK. Nothing may be returned then."""
    program = jax.jit(_raw.inverse_triangle)
    upper = np.eye(N)
    program(upper)
    monkeypatch.setattr(_lapack, "_routine", lambda name: None)
    with pytest.raises((ValueError, RuntimeError), match="kernax_dpotri_1: RuntimeError: SciPy's LAPACK"):
        jax.block_until_ready(program(upper))


def test_a_batch_and_four_threads_give_what_single_calls_give():
    matrices, added = np.stack([definite(seed=seed) for seed in range(4)]), np.zeros(N)
    program = factor_and_inverse()
    batch = jax.jit(jax.vmap(factor_and_inverse(), in_axes=(0, None)))(matrices, added)
    answers = {}

    def work(index):
        for _ in range(5):
            answers[index] = jax.block_until_ready(program(matrices[index], added))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, matrix in enumerate(matrices):
        check(answers[index], matrix, 1e-11)
        check([part[index] for part in batch], matrix, 1e-11)


def test_python_goes_on_while_lapack_runs():
    matrix = jnp.asarray(definite(2000))
    program = jax.jit(_raw.inverse_triangle)
    jax.block_until_ready(program(matrix))
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.perf_counter()
    jax.block_until_ready(program(matrix))
    took = time.perf_counter() - begun
    done.set()
    thread.join()
    assert any(begun + 0.25 * took < moment < begun + 0.75 * took for moment in ticks)


def padded_likelihoods():
    """Of eight rows with duplicates in float32, where jitter is needed: without and with masked rows.

    All entries of the matrix are integers below 2²⁴: no processor rounds them, and both matrices are the same.
    """
    x = np.repeat(np.arange(4.0), 2)[:, None].astype(np.float32)
    y = np.sin(x[:, 0])
    many, targets = np.concatenate([x, x + 7]), np.concatenate([y, y + 7])
    model = kx.Model(1e4 * kx.Polynomial(degree=2), noise=1e-3)
    for data in (kx.Data(x, y), kx.Data(many, targets, mask=np.arange(16) < 8)):
        c = kx.condition(model, data)
        yield float(kx.log_marginal_likelihood(c)), float(c.jitter)


def test_masked_rows_do_not_change_a_likelihood_that_needs_jitter():
    (plain, jitter), (padded, same) = padded_likelihoods()
    assert jitter == same > 0
    np.testing.assert_allclose(padded, plain, rtol=1e-5)


@pytest.mark.parametrize("n", [12, N])
def test_jitter_is_added_to_the_rows_that_count(n):
    """Determinant, inverse and gradient of a slightly indefinite matrix, against NumPy on the rows that count."""
    mask = np.arange(n) % 3 != 1
    live, count = np.ix_(mask, mask), int(mask.sum())
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(count, count)))[0]
    matrix = np.eye(n)
    matrix[live] = (vectors * np.append(-1e-4, np.linspace(1.0, 2.0, count - 1))) @ vectors.T

    @jax.jit
    def answers(matrix):
        def logdet(matrix):
            factor = factorise_matrix(matrix, jnp.zeros(()), jnp.asarray(mask), max_jitter=1e-2)
            return factor.logdet(), factor

        (value, factor), gradient = jax.value_and_grad(logdet, has_aux=True)(matrix)
        return value, factor.jitter, factor.inverse_diagonal(), gradient

    value, jitter, diagonal, gradient = map(np.asarray, answers(matrix))
    assert jitter > 1e-4
    expected = matrix[live] + jitter * np.eye(count)
    inverse = np.eye(n)
    inverse[live] = np.linalg.inv(expected)
    np.testing.assert_allclose(value, np.linalg.slogdet(expected)[1], rtol=1e-10)
    np.testing.assert_allclose(diagonal, np.diag(inverse), rtol=1e-9)
    np.testing.assert_allclose(gradient, np.where(mask[:, None] & mask, inverse, 0.0), rtol=1e-9, atol=1e-9)


PRELUDE = """
    import importlib.util, json, sys
    import jax, numpy as np
    from jax import export
    import kernax as kx
    from kernax import _ffi
    from kernax.solvers import _lapack

    folder = sys.argv[1]
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))

    def likelihood(parameters, x, y):
        variance, lengthscale, noise = parameters
        model = kx.Model(variance * kx.RBF(lengthscale), noise)
        return kx.log_marginal_likelihood(kx.condition(model, kx.Data(x, y)))

    x = np.linspace(0.0, 20.0, 200)[:, None]
    arguments = (np.array([1.3, 0.7, 0.2]), x, np.sin(x[:, 0]))

    def numbers(answer):
        return [float(answer[0]), *np.asarray(answer[1]).tolist()]

    def compiled():
        lowered = jax.jit(jax.value_and_grad(likelihood)).lower(*arguments)
        events.clear()
        program = lowered.compile()
        hits = events.count("/jax/compilation_cache/cache_hits")
        return {"numbers": numbers(program(*arguments)), "hits": hits, "direct": "kernax_dpotri_1" in lowered.as_text()}
"""

FIRST = """
    if importlib.util.find_spec("flatbuffers"):
        checks = [export.DisabledSafetyCheck.custom_call(name) for name in kx.solvers.custom_calls()]
        exported = export.export(jax.jit(jax.value_and_grad(likelihood)), disabled_checks=checks)(*arguments)
        with open(folder + "/exported", "wb") as file:
            file.write(exported.serialize())
    print(json.dumps({"compiled": compiled()}))
"""

SECOND = """
    from jax._src import xla_bridge

    importlib.reload(_lapack)
    told = {"started": xla_bridge.backends_are_initialized()}
    if importlib.util.find_spec("flatbuffers"):
        with open(folder + "/exported", "rb") as file:
            told["exported"] = numbers(export.deserialize(bytearray(file.read())).call(*arguments))
    told["compiled"] = compiled()
    _ffi.MAJOR = 1
    _ffi.version.cache_clear()
    jax.clear_caches()
    print(json.dumps(told | {"by xla": compiled()}))
"""


def run(code, folder):
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Answers of two processes. The second imports kernax and runs what the first has exported before it traces anything."""
    folder = tmp_path_factory.mktemp("programs")
    return run(FIRST, folder), run(SECOND, folder)


def test_a_program_compiled_in_one_process_is_in_the_cache_for_the_next(processes):
    first, second = (answers["compiled"] for answers in processes)
    assert (first["direct"], first["hits"]) == (True, 0)
    assert (second["direct"], second["hits"]) == (True, 1)
    assert second["numbers"] == first["numbers"]
    x = np.linspace(0.0, 20.0, N)
    matrix = 1.3 * np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.7**2) + 0.2 * np.eye(N)
    value = -0.5 * (np.sin(x) @ np.linalg.solve(matrix, np.sin(x)) + np.linalg.slogdet(2 * np.pi * matrix)[1])
    np.testing.assert_allclose(first["numbers"][0], value, rtol=1e-10)


def test_an_exported_program_runs_in_a_process_that_only_imports_kernax(processes):
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")
    np.testing.assert_allclose(processes[1]["exported"], processes[0]["compiled"]["numbers"], rtol=1e-12)


def test_importing_kernax_twice_starts_no_device(processes):
    assert not processes[1]["started"]


def test_without_the_targets_xla_gives_the_same_likelihood_and_gradient(processes):
    by_xla = processes[1]["by xla"]
    assert not by_xla["direct"]
    np.testing.assert_allclose(by_xla["numbers"], processes[0]["compiled"]["numbers"], rtol=1e-10)


def test_the_names_of_the_targets_are_public():
    routines = [f"kernax_{letter}{verb}_1" for letter in "sd" for verb in ("potrf", "potri")]
    assert custom_calls() == tuple(sorted([*routines, "kernax_nearest_1", "kernax_rows_1"]))
