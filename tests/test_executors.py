"""Many datasets through executors: the same numbers wherever they are computed, and nothing lost with a worker."""

import dataclasses
import functools
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow as pa
import pyarrow.parquet
import pytest

import kernax as kx
from kernax.data._many import Unread
from kernax.data._places import Place, UnreadableError
from kernax.fitting import _blocks, _elsewhere, _engine, _plan, _sealed
from kernax.fitting._models import Models
from tests.initializers import without_licence

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


def test_the_number_of_workers_does_not_change_a_bit(monkeypatch):
    """Shapes are planned for the cores of this process, and no number depends on how many datasets are in a block."""
    monkeypatch.setattr(_plan, "_COST_OF_SHAPE", 0.05)
    monkeypatch.setattr(_plan, "_COST_OF_SHAPE_BESIDE_OTHERS", 0.05)
    sets = [made(20 + 140 * (i % 3), i) for i in range(36)]
    options = {"max_steps": 1, "initialise": True, "restarts": 2, "key": jax.random.key(0)}
    here = kx.fit_many(MODEL, sets, **options)
    for workers in (1, 64):
        pool = Pretended(workers)
        same(kx.fit_many(MODEL, sets, executor=pool, **options), here)
        assert pool.rows == {20, 160, 300}


def test_threads_of_ones_own_and_loky(local):
    with ThreadPoolExecutor(3) as pool:
        same(kx.fit_many(MODEL, SETS, executor=pool), local)
    same(kx.fit_many(MODEL, SETS, executor=loky.get_reusable_executor(1)), local)


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


@pytest.fixture
def parquet(tmp_path):
    """`SETS` as the groups of a Parquet file; the row groups, of 50 rows, end within datasets."""
    table = pa.table(
        {
            "name": [f"s{i}" for i, (x, _) in enumerate(SETS) for _ in x],
            "t": np.concatenate([x[:, 0] for x, _ in SETS]),
            "v": np.concatenate([y for _, y in SETS]),
        }
    )
    path = tmp_path / "sets.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    return path


def damage(path, row_group):
    """Overwrite the targets of a row group with zeros."""
    column = pyarrow.parquet.read_metadata(path).row_group(row_group).column(2)
    begin = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)


def read_here(monkeypatch):
    """Record the rows that this process reads itself. (That of the names of groups is not recorded.)"""
    read, original = [], Place.read
    monkeypatch.setattr(Place, "read", lambda place: read.append(place.begin) or original(place))
    return read


def test_workers_read_a_parquet_file(parquet, pool, local, tmp_path, monkeypatch):
    """Blocks carry no data, and the numbers, also those in a checkpoint, are those of the data in memory."""
    sent, sealed, read = [], _sealed.sealed, read_here(monkeypatch)
    monkeypatch.setattr(_elsewhere, "sealed", lambda value: sent.append(value) or sealed(value))
    groups = kx.data.groups(parquet, by="name", x="t", y="v")
    named = dataclasses.replace(local, keys=tuple(f"s{i}" for i in range(40)), is_named=True)
    fits = kx.fit_many(MODEL, groups, executor=pool, checkpoint=tmp_path / "kept")
    same(fits, named)
    np.testing.assert_array_equal(fits.num_rows, named.num_rows)
    blocks = [value for value in sent if isinstance(value, _blocks.Block)]
    assert blocks
    assert all(isinstance(block.data, Unread) for block in blocks)
    assert not read
    ours, theirs = kx.predict_many(named, groups, X_NEW, executor=pool), kx.predict_many(named, groups, X_NEW)
    np.testing.assert_array_equal([one.mean for one in ours], [one.mean for one in theirs])
    same(kx.fitting.refit_many(fits, groups, where=["s3", "s5"], executor=pool), named)
    assert not read

    # The checkpoint knows the contents: it holds for the same data in memory, and not for a file that has changed.
    resumed = kx.fit_many(MODEL, SETS, checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resumed.value, local.value)
    sent.clear()
    same(kx.fit_many(MODEL, groups, executor=pool, checkpoint=tmp_path / "kept"), named)
    assert not sent
    whole = parquet.read_bytes()
    damage(parquet, row_group=0)
    with pytest.raises(ValueError, match=r"dataset 0 \('s0'\) cannot be compared with the one .*: repair the file"):
        kx.fit_many(MODEL, groups, executor=pool, checkpoint=tmp_path / "kept")
    parquet.write_bytes(whole)
    changed = pyarrow.parquet.read_table(parquet).to_pandas()
    changed.loc[[200, 201], "v"] = changed.loc[[201, 200], "v"].to_numpy()
    changed.to_parquet(parquet, row_group_size=50)
    with pytest.raises(ValueError, match=r"dataset \d+ \('s\d+'\) is not the one that the checkpoint was made with"):
        kx.fit_many(MODEL, kx.data.groups(parquet, by="name", x="t", y="v"), executor=pool, checkpoint=tmp_path / "kept")


def test_when_the_data_is_read_here(parquet):
    """In threads, and if the noise is a function of the row: rows are checked against it before anything is sent."""
    groups = kx.data.groups(parquet, by="name", x="t", y="v")

    def is_read(executor, model):
        return next(_engine.windows_for(executor, Models.of(model), groups))[0].place is None

    with ThreadPoolExecutor(1) as threads:
        assert is_read(threads, MODEL)
    assert is_read(None, MODEL)
    assert is_read(Elsewhere(), kx.Model(kx.RBF(1.0), lambda row: 0.1 + row[0] ** 2))
    assert not is_read(Elsewhere(), MODEL)


class Pretended(Executor):
    """Pretends to have a number of workers in other processes."""

    def __init__(self, workers=1):
        self._max_workers, self.rows = workers, set()

    def submit(self, function, /, *arguments):
        future = Future()
        self.rows.add(pickle.loads(arguments[-1]).data.mask.shape[1])
        future.set_result(function(*arguments))
        return future


class Elsewhere(Pretended):
    """Its workers cannot read files."""

    def submit(self, function, /, *arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Place, "read", unreadable)
            return super().submit(function, *arguments)


def unreadable(place):
    raise UnreadableError("there is no such file here")


def test_what_workers_cannot_read_is_sent_to_them(parquet, local):
    fits = kx.fit_many(MODEL, kx.data.groups(parquet, by="name", x="t", y="v"), executor=Elsewhere())
    same(fits, dataclasses.replace(local, keys=fits.keys))


def test_what_nobody_can_read_has_a_status(parquet, pool, local, tmp_path):
    """A damaged row group costs its own datasets; those that are done are kept, and the others are tried again."""
    groups, whole = kx.data.groups(parquet, by="name", x="t", y="v"), parquet.read_bytes()
    damage(parquet, row_group=3)
    ends = np.cumsum([len(y) for _, y in SETS])
    hit = (ends > 150) & (ends - [len(y) for _, y in SETS] < 200)
    assert 0 < hit.sum() < 10
    fits = kx.fit_many(MODEL, groups, executor=pool, checkpoint=tmp_path / "kept")
    assert (fits.result_names[hit] == "unreadable").all()
    assert np.isnan(fits.value[hit]).all()
    named = dataclasses.replace(local, keys=fits.keys, is_named=True)
    same(fits[~hit], named[~hit])
    answers = kx.predict_many(named, groups, X_NEW, executor=pool)
    assert [kx.solvers.result_name(answer.result) == "unreadable" for answer in answers] == hit.tolist()
    assert [bool(np.isnan(answer.mean).all()) for answer in answers] == hit.tolist()
    many = kx.fitting.condition_many(named, groups, executor=pool)
    assert len(many) == 40
    assert sorted(many.missing) == np.flatnonzero(hit).tolist()
    with pytest.raises(kx.FailedError, match=r"unreadable.*Check that the file is there"):
        many[int(np.flatnonzero(hit)[0])]
    np.testing.assert_array_equal(np.isnan(kx.fitting.score_many(named, groups, scores, executor=pool)), hit)
    parquet.write_bytes(whole)
    same(kx.fit_many(MODEL, groups, executor=pool, checkpoint=tmp_path / "kept"), named)


DRIVER = """
import multiprocessing, pickle, sys, time
from concurrent.futures import ProcessPoolExecutor
import jax
jax.config.update("jax_enable_x64", True)
import kernax as kx
from kernax.fitting import _collect
from kernax.fitting._checkpoint import Checkpoint

def write_and_wait(checkpoint, part, write=Checkpoint.write):
    write(checkpoint, part)
    time.sleep(600.0)

if __name__ == "__main__":
    _collect._WRITE_EVERY, Checkpoint.write = 0.0, write_and_wait
    model, sets = pickle.load(open(sys.argv[1], "rb"))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        kx.fit_many(model, sets, executor=pool, checkpoint=sys.argv[2])
"""


def test_a_driver_that_is_killed(local, tmp_path):
    """A run with a process pool is killed after it has written its first results, and resumes in threads."""
    script, given, kept = tmp_path / "driver.py", tmp_path / "given.pickle", tmp_path / "kept"
    script.write_text(DRIVER)
    given.write_bytes(pickle.dumps((MODEL, SETS)))
    driver = subprocess.Popen([sys.executable, script, given, kept], start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not list(kept.glob("part-*.npz")) and driver.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    done = sum(len(np.load(part)["numbers"]) for part in kept.glob("part-*.npz"))
    assert 0 < done < 40
    with ThreadPoolExecutor(1) as pool:
        same(kx.fit_many(MODEL, SETS, executor=pool, checkpoint=kept), local)


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


def set_variable(value):
    os.environ["KERNAX_TEST_INITIALISED"] = value


def deadly(c):
    """The likelihood; but worker processes die over the dataset with 12 rows and the largest sum, a number of times."""
    value = kx.selection.negative_log_marginal_likelihood(c)

    def perhaps_die(total):
        folder, last, home, times = (os.environ[f"KERNAX_TEST_{name}"] for name in ("FOLDER", "SUM", "HOME", "TIMES"))
        # A pool that takes the place of another is set up like that one.
        assert os.getpid() == int(home) or os.environ["KERNAX_TEST_INITIALISED"] == "YES"
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
    if times == 1:
        pool = loky.get_reusable_executor(1, initializer=set_variable, initargs=("YES",))
        fits = kx.fit_many(MODEL, SETS, objective=deadly, executor=pool)
        assert len(os.listdir(tmp_path)) == 1
        same(fits, alone)
        return
    spawn = multiprocessing.get_context("spawn")
    warns = pytest.warns(UserWarning, match="workers gave no answer for 8 or more datasets, which are lost")
    with ProcessPoolExecutor(1, spawn, initializer=set_variable, initargs=("YES",)) as pool, warns:
        fits = kx.fit_many(MODEL, SETS, objective=deadly, executor=pool)
    assert len(os.listdir(tmp_path)) == 2
    lost = fits.result_names == "lost"
    assert lost[21]
    assert lost.sum() == 8
    assert np.isnan(fits.value[lost]).all()
    same(fits[~lost], alone[~lost])


def test_a_dask_cluster_and_a_worker_that_dies(local, tmp_path, monkeypatch):
    """Dask starts the worker again, and repeats its block by itself."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(_plan, "_SMALLEST", 8)
    settings = {"FOLDER": tmp_path, "SUM": np.sum(SETS[21][1]), "HOME": os.getpid(), "TIMES": 1, "INITIALISED": "YES"}
    for name, value in settings.items():
        monkeypatch.setenv(f"KERNAX_TEST_{name}", str(value))
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(kx.fit_many(MODEL, SETS, executor=client.get_executor()), local)
        fits = kx.fit_many(MODEL, SETS, objective=deadly, executor=client.get_executor())
    assert len(os.listdir(tmp_path)) == 1
    same(fits, kx.fit_many(MODEL, SETS, objective=deadly))


def test_what_cannot_be_sent(pool, monkeypatch):
    class Local(kx.AbstractKernel):
        scale: kx.parameters.Parameter = kx.positive(default=1.0)

        def pair(self, a, b):
            return jnp.exp(-0.5 * jnp.sum((a - b) ** 2) / self.scale**2)

    with pytest.raises(TypeError, match=r"the model cannot be sent .* class .*Local .* Define classes at the top of a mod"):
        kx.fit_many(kx.Model(Local(), 0.5), SETS, executor=pool)
    offset = 1.0
    objective = functools.partial(lambda c, by: kx.loo_mse(c) * by, by=offset)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    remedy = r"cannot be sent .* functions at the top of such a module, too, or anywhere if cloudpickle is installed .*loky"
    with pytest.raises(TypeError, match=f"the objective {remedy}"):
        kx.fit_many(MODEL, SETS, objective=objective, executor=pool)
    with pytest.raises(TypeError, match=f"the optimiser {remedy}"):
        kx.fit_many(MODEL, SETS, optimiser=optax.adam(0.1), executor=pool)
    with pytest.raises(TypeError, match=f"the quantity {remedy}"):
        kx.fitting.score_many(MODEL, SETS, objective, executor=pool)


def test_closures_are_sent(pool):
    """With cloudpickle."""
    weight = 2.0
    fits = kx.fit_many(MODEL, SETS[:3], objective=lambda c: weight * kx.loo_mse(c), executor=pool)
    assert (fits.result_names == "successful").all()
    c = kx.condition(fits[0].model, kx.Data(*SETS[0]))
    np.testing.assert_allclose(weight * kx.loo_mse(c), fits.value[0], rtol=1e-8)


class Unable(Executor):
    """Pretends to have workers without kernax."""

    def submit(self, function, /, *arguments):
        future = Future()
        future.set_exception(ModuleNotFoundError("No module named 'kernax'"))
        return future


@pytest.mark.parametrize("count", [1, 40])
def test_workers_that_die_at_start(count, tmp_path, monkeypatch):
    """The pool is replaced once, not for every block."""
    monkeypatch.setattr(_plan, "_SMALLEST", 8)
    spawn = multiprocessing.get_context("spawn")
    words = r"the workers of ProcessPoolExecutor die when they start .*Check the pool's initializer"
    with (
        ProcessPoolExecutor(1, spawn, initializer=without_licence, initargs=(str(tmp_path),)) as pool,
        pytest.raises(RuntimeError, match=words),
    ):
        kx.fit_many(MODEL, SETS[:count], executor=pool)
    assert len(os.listdir(tmp_path)) == 2


class Gone(Pretended):
    """Its workers are there for a number of blocks, and then no more."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def submit(self, function, /, *arguments):
        self.blocks -= 1
        if self.blocks < 0:
            raise BrokenExecutor("the job on the cluster has ended")
        return super().submit(function, *arguments)


def test_an_executor_of_another_kind_that_breaks(local, monkeypatch):
    """It is not replaced by processes of this machine."""
    with pytest.raises(RuntimeError, match=r"Gone is broken and takes no work \(BrokenExecutor: the job .*Make a new exec"):
        kx.fit_many(MODEL, SETS, executor=Gone(0))
    monkeypatch.setattr(_plan, "_SMALLEST", 8)
    with pytest.warns(UserWarning, match=r"no answer for 24 or more datasets, which are lost .*the job on the cluster"):
        fits = kx.fit_many(MODEL, SETS, executor=Gone(2))
    lost = fits.result_names == "lost"
    assert lost.sum() == 24
    same(fits[~lost], local[~lost])


class Interrupted(Pretended):
    """Ctrl-C is pressed while blocks are handed over."""

    def __init__(self):
        super().__init__(workers=4)
        self.blocks = 0

    def submit(self, function, /, *arguments):
        self.blocks += 1
        if self.blocks == 4:
            raise KeyboardInterrupt
        return super().submit(function, *arguments)


def test_ctrl_c_keeps_what_is_finished(local, tmp_path, monkeypatch):
    monkeypatch.setattr(_plan, "_SMALLEST", 8)
    fits = kx.fit_many(MODEL, SETS, executor=Interrupted(), checkpoint=tmp_path)
    done = fits.result_names != "interrupted"
    assert done.sum() == 24
    same(fits[done], local[done])
    assert sum(len(np.load(part)["numbers"]) for part in tmp_path.glob("part-*.npz")) == 24


def recorded(c, folder):
    """The likelihood; each tracing of it leaves a file."""
    open(os.path.join(folder, f"{os.getpid()}-{c.data.n}-{time.monotonic_ns()}"), "w").close()
    return kx.selection.negative_log_marginal_likelihood(c)


def test_a_worker_compiles_each_shape_once(pool, tmp_path, monkeypatch):
    """In one call and in the next: the second has no program of another shape, and so compiles nothing."""
    monkeypatch.setattr(_plan, "_SMALLEST", 8)
    objective = functools.partial(recorded, folder=str(tmp_path))
    kx.fit_many(MODEL, SETS[:8], objective=objective, executor=pool)
    traced = len(os.listdir(tmp_path))
    assert traced
    kx.fit_many(MODEL, SETS, objective=objective, executor=pool)
    assert len(os.listdir(tmp_path)) == traced


def test_devices_are_not_for_other_processes(pool):
    with pytest.raises(ValueError, match="devices= are those of this process"):
        kx.fit_many(MODEL, SETS, executor=pool, devices=jax.local_devices())


def test_workers_that_cannot_work():
    with pytest.raises(RuntimeError, match=r"no worker of Unable gave an answer \(ModuleNotFoundError.*Install the same"):
        kx.fit_many(MODEL, SETS, executor=Unable())
    with pytest.raises(TypeError, match=r"executor must be a concurrent\.futures\.Executor.*got 4"):
        _engine.check_executor(4)  # (in the tests, `fit_many` itself refuses it before, by its annotation)
    with pytest.raises(ValueError, match="no executor"):
        kx.fit_many(MODEL, SETS, shared=True, executor=Unable())


def test_what_raises_in_a_worker_raises_here(pool):
    """With the worker's traceback, and the numbers of the datasets."""
    with pytest.raises(AttributeError, match="no_such_thing") as caught:
        kx.fit_many(MODEL, SETS, objective=raises, executor=pool)
    note = caught.value.__notes__[-1]
    words = r"Raised in a worker process, over datasets 0, 1, 2, 3, 4, 5, 6, 7 and 8 more:\nTraceback.* in raises\n"
    assert re.match(words, note, re.DOTALL)


def raises(c):
    return c.no_such_thing


class Other(Pretended):
    """Its workers have another version of JAX or kernax. They must not open what they are sent: it may not load there."""

    def submit(self, function, /, wanted, *sent):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_sealed, "versions", lambda: wanted | self.versions)
            patch.setattr(_sealed, "_opened", None)
            return super().submit(function, wanted, *sent)


@pytest.mark.parametrize("versions", [{"kernax": "9.9.9"}, {"jax": "1.2.3"}], ids=["kernax", "jax"])
def test_another_version_is_refused(versions):
    executor = Other()
    executor.versions = versions
    there, here = (
        ", ".join(f"{name} {re.escape(number)}" for name, number in own.items())
        for own in (_sealed.versions() | versions, {"kernax": kx.__version__, "jax": jax.__version__})
    )
    with pytest.raises(RuntimeError, match=f"a worker has {there}, but this process has {here}: install the same"):
        kx.fit_many(MODEL, SETS, executor=executor)
