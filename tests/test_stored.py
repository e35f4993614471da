"""Rows in a file: the same numbers as in memory, from a part of the rows at a time."""

import functools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax import _stored
from kernax.rows import Stored, map_rows, take
from kernax.solvers._neighbours import nearest_in_blocks

N, D = 300, 3
MODEL = kx.Model(1.2 * kx.Matern32(jnp.array([0.8, 1.5, 3.0])), 0.05, mean=0.3)
SOLVER = kx.Vecchia(8, prediction_neighbours=16)


def rows(seed=0, n=N):
    return np.random.default_rng(seed).normal(size=(n, D))


X = rows()
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.2 * np.random.default_rng(1).normal(size=N)
NEW = rows(2, 40)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Seventy rows at a time, so that files are read in several blocks, and the last one is not full."""
    monkeypatch.setattr(_stored, "_ENTRIES", 70 * D)


@pytest.fixture
def on_disk(tmp_path):
    def write(x, name="x"):
        np.save(tmp_path / f"{name}.npy", x)
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    return write


def test_a_memory_map_stays_in_its_file_and_rows_are_read_by_number(on_disk):
    data = kx.Data(on_disk(X), Y)
    assert isinstance(data.x, Stored)
    assert (data.x.shape, data.x.dtype, data.n) == ((N, D), np.float64, N)
    assert repr(data) == "Data(x=(300, 3) on disk, y=(300,), float64)"
    numbers = np.array([[5, 299], [0, -1]])
    for choice in (None, slice(3, 9), numbers, X[:, 0] > 0):
        np.testing.assert_array_equal(take(data.x, choice), take(jnp.asarray(X), choice))
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda i: take(data.x, i)))(numbers), X[numbers])
    np.testing.assert_array_equal(map_rows(lambda x: x[:, 0] * 2, data.x, 1), X[:, 0] * 2)


@pytest.mark.parametrize("kind", ["float32", "int16", ">f8"])
def test_rows_are_read_in_the_floating_type_of_the_data(on_disk, kind):
    x = np.round(10 * X).astype(kind)
    data = kx.Data(on_disk(x), Y.astype(np.float32) if kind == "float32" else Y)
    assert data.dtype == data.x.dtype == ("float32" if kind == "float32" else "float64")
    np.testing.assert_array_equal(take(data.x, np.arange(7)), x[:7])


def test_a_structure_may_have_a_part_on_disk(on_disk):
    site = np.arange(N) % 3
    kernel = kx.Select(kx.Matern32(), key="x")
    model = kx.Model(kernel, kx.noises.PerGroup("site", jnp.array([0.1, 0.2, 0.3])))
    memory, disk = (kx.Data({"x": x, "site": site}, Y) for x in (X, on_disk(X)))
    new = {"x": NEW, "site": np.zeros(40, int)}
    expected, found = (kx.predict(kx.condition(model, data, SOLVER), new, noisy=True) for data in (memory, disk))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "solver",
    [SOLVER, kx.Vecchia(8, block=4, ordering="maxmin", prediction_neighbours=16), kx.LowRank(30), kx.Cholesky(), kx.CG()],
    ids=["vecchia", "blocks", "low_rank", "cholesky", "cg"],
)
def test_answers_are_those_of_rows_in_memory(on_disk, solver):
    def answers(data, new):
        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def value(model):
            c = kx.condition(model, data, solver)
            loo = () if isinstance(solver, kx.CG) else (kx.loo_residuals(c),)
            return kx.log_marginal_likelihood(c), (c.alpha, loo)

        c = kx.condition(MODEL, data, solver)
        return value(MODEL), kx.predict(c, new)[:2], kx.mean(c, new), kx.covariance(c, new[:4])

    expected, found = answers(kx.Data(X, Y), NEW), answers(kx.Data(on_disk(X), Y), on_disk(NEW, "new"))
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_a_fit_is_that_of_rows_in_memory(on_disk):
    start = kx.initialise(MODEL, kx.Data(X, Y))
    for a, b in zip(*map(jax.tree.leaves, (start, kx.initialise(MODEL, kx.Data(on_disk(X), Y)))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    expected, found = (kx.fit(MODEL, data, solver=SOLVER, max_steps=8) for data in (kx.Data(X, Y), kx.Data(on_disk(X), Y)))
    assert found.num_refreshes == 2
    np.testing.assert_allclose(found.history, expected.history, rtol=1e-10)
    for a, b in zip(*map(jax.tree.leaves, (found.model, expected.model)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)


def test_nothing_depends_on_what_masked_rows_of_a_file_hold(on_disk):
    mask = np.arange(N) % 7 != 0

    def value(x):
        data = kx.Data(x, np.where(mask, Y, np.nan), mask)
        c = kx.condition(MODEL, data, SOLVER)
        slope = jax.jit(jax.grad(lambda m: kx.log_marginal_likelihood(kx.condition(m, data, SOLVER))))(MODEL)
        return kx.mean(c, NEW), slope

    for a, b in zip(*map(jax.tree.leaves, (value(on_disk(np.where(mask[:, None], X, np.nan))), value(X))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_bad_rows_of_a_file_are_named(on_disk):
    x = X.copy()
    x[[71, 299], 1] = np.nan
    with pytest.raises(ValueError, match=r"x has NaN or infinite values in 2 of 300 rows \(first rows: 71, 299\)"):
        kx.Data(on_disk(x), Y)
    c = kx.condition(MODEL, kx.Data(X, Y), SOLVER)
    with pytest.raises(ValueError, match="x has NaN or infinite values"):
        kx.predict(c, on_disk(x))
    with pytest.raises(ValueError, match="give both the same columns"):
        kx.predict(c, on_disk(x[:, :2]))
    with pytest.raises(TypeError, match="x has dtype complex128"):
        kx.Data(on_disk(x.astype(complex)), Y)


def test_a_search_in_blocks_finds_the_nearest_rows_before_each_query():
    rng = np.random.default_rng(3)
    points, live, places = rng.normal(size=(101, 2)), rng.random(101) < 0.8, rng.permutation(101).astype(np.int32)
    queries, before = rng.normal(size=(30, 2)), rng.integers(0, 102, 30).astype(np.int32)
    given = map(jnp.asarray, (live, places, queries, before))
    found = nearest_in_blocks(lambda i: jnp.asarray(points)[i], 13, *given, 6)
    far = np.sum((queries[:, None] - points) ** 2, axis=2)
    far[(places >= before[:, None]) | ~live] = np.inf
    nearest = np.argsort(far, axis=1)[:, :6]
    expected = np.where(np.isfinite(np.take_along_axis(far, nearest, 1)), places[nearest], -1)
    np.testing.assert_array_equal(found, expected)


def _log_density_of(plan):
    """The sum of the log densities of some rows, each given its neighbours."""
    matrix, y = np.asarray(MODEL.kernel(X)) + 0.05 * np.eye(N), Y - 0.3
    assert plan.rows.shape == (60, 1)
    total = 0.0
    for (row,), found in zip(np.asarray(plan.rows), np.asarray(plan.neighbours), strict=True):
        near = found[found >= 0]
        weights = np.linalg.solve(matrix[np.ix_(near, near)], matrix[near, row])
        variance = matrix[row, row] - weights @ matrix[near, row]
        total -= 0.5 * ((y[row] - weights @ y[near]) ** 2 / variance + np.log(2 * np.pi * variance))
    return total


def test_a_part_of_the_conditionals_estimates_the_likelihood_and_predicts_from_all_rows(on_disk):
    data, part = kx.Data(on_disk(X), Y), kx.Vecchia(8, prediction_neighbours=16, part=60)
    c, whole = kx.condition(MODEL, data, part), kx.condition(MODEL, data, SOLVER)
    np.testing.assert_allclose(kx.mean(c, NEW), kx.mean(whole, NEW), atol=1e-12)
    np.testing.assert_allclose(kx.log_marginal_likelihood(c), N / 60 * _log_density_of(c.system.plan), rtol=1e-10)
    assert np.isnan(c.alpha).all()
    with pytest.raises(TypeError, match="the diagonal of the inverse, which Vecchia does not offer here"):
        kx.loo_residuals(c)
    with pytest.raises(TypeError, match="leave out part="):
        kx.condition(kx.Model(kx.RBF(), 0.1, trend=1), data, part)
    with pytest.raises(ValueError, match=r"Vecchia.part must be a whole number of at least 1, got 0"):
        kx.Vecchia(part=0)
    fit = kx.fit(MODEL, data, solver=part, max_steps=4)
    assert np.isfinite(fit.value)


def test_what_cannot_be_done_with_rows_in_a_file_is_refused(on_disk, tmp_path):
    data = kx.Data(on_disk(X), Y)
    fit = kx.fit(MODEL, data, max_steps=2)
    with pytest.raises(
        TypeError, match=r"Fit.data.x is stored in its own file \(.*x.npy\), so it cannot be saved: save the model"
    ):
        kx.save(tmp_path / "fit.kx", fit)
    with pytest.raises(TypeError, match="condition on all rows again"):
        kx.extend(kx.condition(MODEL, data), NEW, np.zeros(40))
    foreign = data.x.__class__(jnp.asarray(7, jnp.int32), None, None, (N, D), np.dtype("float64"))
    with pytest.raises(Exception, match="a file that this process has not opened"):
        np.asarray(foreign.read(np.arange(3)))


def test_many_fits_and_learners_read_files_whole(on_disk):
    labels = np.sign(Y)
    memory, disk = kx.Data(X, labels), kx.Data(on_disk(X), labels)
    for learn in (kx.learners.adaboost, lambda data: kx.condition(kx.learners.SVC(kx.RBF(), C=1.0), data)):
        np.testing.assert_allclose(learn(disk)(NEW), learn(memory)(NEW), atol=1e-12)
    fits = kx.fit_many(kx.Model(kx.RBF(), 0.1), [disk, memory], max_steps=3)
    assert fits.value[0] == fits.value[1]


LARGE = """
    import sys, threading, time
    import jax, numpy as np
    jax.config.update("jax_enable_x64", True)
    import kernax as kx

    folder, n, d = sys.argv[1], 400_000, 100
    rng = np.random.default_rng(0)
    # Only the first columns matter, which keeps the search short.
    model = kx.Model(kx.Select(kx.Matern32(0.1), [0, 1]), 0.1)
    solver = kx.Vecchia(10, prediction_neighbours=20, part=500)

    def written(name, n):
        with open(f"{folder}/{name}.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (n, d)})
            for begin in range(0, n, 20_000):
                file.write(rng.random((min(20_000, n - begin), d)).tobytes())
        return np.load(f"{folder}/{name}.npy", mmap_mode="r")

    def answers(x):
        data = kx.Data(x, np.sin(6 * np.asarray(x[:, 0])))
        c = kx.condition(model, data, solver)
        return float(kx.log_marginal_likelihood(c)), kx.mean(c, np.full((5, d), 0.4))

    def in_use():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon"))

    answers(written("small", 30_000))  # compiles
    x = written("large", n)
    before, peak = in_use(), [0.0]

    def watch():
        while True:
            peak[0] = max(peak[0], in_use())
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()
    value, mean = answers(x)
    assert abs(np.max(mean) - np.sin(2.4)) < 0.05, mean
    print(peak[0] - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the memory in use is read from Linux")
def test_memory_is_a_fraction_of_the_file(tmp_path):
    code = textwrap.dedent(LARGE)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # The file has 320 MB.
    assert float(done.stdout) < 160
