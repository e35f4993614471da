"""Which solver suits, and what a dense one would take. Many rows are columns of zeros; their matrices are never made."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.solvers._suggest import Facts, suggestion

GIB = 2**30


def suggested(kernel, rows, columns=1, noise=0.1):
    return kx.suggest_solver(kx.Model(kernel, noise), kx.Data(np.zeros((rows, columns)), np.zeros(rows)))


def grid(missing=False):
    axes = kx.Grid((np.arange(40.0)[:, None], np.arange(60.0)[:, None]))
    mask = np.ones(axes.shape, bool)
    mask[3, 4] = not missing
    return kx.Data(axes, np.zeros(axes.shape), mask)


ON_GRID = kx.Select(kx.RBF(), axis=0) * kx.Select(kx.Matern32(), axis=1)


@pytest.mark.parametrize(
    ("kernel", "rows", "columns", "solver", "word"),
    [
        (kx.Matern32(), 300, 1, kx.Cholesky(), "few"),
        (1.0 * kx.Matern32() + kx.Constant(), 500, 1, kx.StateSpace(), "state space"),
        (kx.RBF(), 500, 1, kx.Cholesky(), "few"),
        (kx.Matern32(), 2000, 2, kx.Cholesky(), "exact"),
        (kx.Select(kx.Matern32(), columns=1), 2000, 2, kx.StateSpace(), "state space"),
        (kx.Linear() + kx.Polynomial(degree=2), 2000, 3, kx.LowRank(), "13 features"),
        (kx.Linear(), 2000, 1500, kx.Cholesky(), "exact"),
        (kx.NNGP(), 200_000, 2, kx.CG(), "no lengthscales"),
        (1.0 * kx.Matern52() + kx.Linear(), 200_000, 8, kx.Vecchia(), "nearest neighbours"),
        (kx.RBF(), 200_000, 2, kx.Vecchia(), "kx.LowRank(rank=1000)"),
        (kx.Matern52(), 9_999, 2, kx.Cholesky(), "exact"),
        (kx.Matern52(), 10_000, 2, kx.Vecchia(), "nearest neighbours"),
    ],
)
def test_the_solver_follows_rows_columns_and_the_kernels_structure(kernel, rows, columns, solver, word):
    answer = suggested(kernel, rows, columns)
    assert answer.solver == solver
    assert word in answer.reason
    assert f"{rows:,} rows in {columns:,} column" in answer.reason


def test_a_grid_is_kronecker_if_it_is_full_and_has_one_noise():
    assert kx.suggest_solver(kx.Model(ON_GRID, 0.1), grid()).solver == kx.Kronecker()
    for model, data in (
        (kx.Model(ON_GRID, 0.0), grid(missing=True)),
        (kx.Model(ON_GRID, jnp.full(2400, 0.1)), grid()),
        (kx.Model(kx.Select(kx.RBF(), axis=0), 0.1), grid()),
    ):
        assert kx.suggest_solver(model, data).solver == kx.Cholesky()
    holes = kx.suggest_solver(kx.Model(ON_GRID, 0.1), grid(missing=True))
    assert holes.solver == kx.CG(kx.Kronecker())
    assert "missing cells" in holes.reason
    assert str(holes).startswith("solver=kx.CG(preconditioner=kx.Kronecker())")
    assert kx.suggest_solver(kx.Model(ON_GRID, 0.1), grid(missing=True), ridges=True).solver == kx.Eigh()


def test_structure_that_needs_noise_is_not_used_without_it():
    assert (
        suggested(kx.Matern32(), 500, noise=0.0).solver == suggested(kx.Matern32(), 2000, noise=0.0).solver == kx.Cholesky()
    )
    assert suggested(kx.Linear(), 2000, noise=0.0).solver == kx.Cholesky()


def test_folds_need_a_solver_that_answers_them():
    model, data = kx.Model(kx.Matern32(), 0.1), kx.Data(np.zeros((2000, 1)), np.zeros(2000))
    assert kx.suggest_solver(model, data, folds=True).solver == kx.StateSpace()
    assert kx.suggest_solver(model, data, ridges=True).solver == kx.StateSpace()
    assert kx.suggest_solver(kx.Model(ON_GRID, 0.1), grid(), folds=True).solver == kx.Cholesky()
    assert suggestion(Facts(rows=50_000), None, folds=True).solver == kx.LowRank(1000)


def test_a_large_state_pays_off_with_more_rows():
    assert suggestion(Facts(rows=900, num_states=50), None).solver == kx.Cholesky()
    assert suggestion(Facts(rows=1100, num_states=50), None).solver == kx.StateSpace()


def test_outputs_with_gaps_are_counted_one_by_one():
    observed = np.array([[True, False], [True, True]] * 1000)
    data = kx.Data(np.zeros((2000, 2)), np.zeros((2000, 2)), observed)
    one = kx.Data(np.zeros((2000, 2)), np.zeros(2000))
    model = kx.Model(kx.RBF(), 0.1)
    sizes = [kx.suggest_solver(model, part).memory["kx.Cholesky()"] for part in (data, one)]
    assert sizes == [2 * 4 * 2000**2 * 8, 4 * 2000**2 * 8]


def test_machines_have_one_solver():
    data = kx.Data(np.zeros((5000, 2)), np.ones(5000))
    assert kx.suggest_solver(kx.learners.SVC(kx.RBF()), data).solver == kx.Cholesky()


def test_likelihoods_have_that_of_their_structure():
    data = kx.Data(np.linspace(0.0, 1.0, 5000)[:, None], np.ones(5000))
    counts = kx.learners.LatentGP(kx.Matern32(), kx.learners.Poisson())
    assert kx.suggest_solver(counts, data).solver == kx.StateSpace()


def test_memory_decides_where_rows_do_not():
    facts = Facts(rows=8000, columns=4)
    assert suggestion(facts, 3 * GIB).solver == kx.Cholesky()
    assert suggestion(facts, None).solver == kx.Cholesky()
    assert suggestion(facts, 1 * GIB).solver == kx.Vecchia()
    assert suggestion(facts._replace(itemsize=4), 1 * GIB).solver == kx.Cholesky()
    assert suggestion(facts, 4 * GIB, ridges=True).solver == kx.Eigh()
    assert suggestion(facts, 1 * GIB, ridges=True).solver == kx.LowRank(1000)
    assert "LowRank(rank=1000)" in suggestion(facts._replace(rows=50_000, columns=2, is_smooth=True), None).reason


def test_a_suggestion_reads_like_text(monkeypatch):
    monkeypatch.setenv("KERNAX_MEMORY", "16")
    answer = suggested(1.0 * kx.Matern32(), 100_000)
    assert str(answer) == repr(answer)
    assert str(answer).startswith("solver=kx.StateSpace()\n100,000 rows in 1 column. ")
    assert "(16.0 GiB available)" in str(answer)
    assert "298 GiB" in str(answer)
    assert answer.available == 16 * GIB
    assert answer.memory["kx.StateSpace()"] < GIB / 2


def test_code_of_a_solver_leaves_out_defaults():
    assert kx.solvers.as_code(kx.CG()) == "kx.CG()"
    assert kx.solvers.as_code(kx.CG(kx.LowRank(50), tolerance=0.1)) == (
        "kx.CG(preconditioner=kx.LowRank(rank=50), tolerance=0.1)"
    )
    assert kx.solvers.as_code(kx.LowRank(inducing=np.zeros((3, 1)))) == "kx.LowRank(inducing=…)"


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"suggest_solver needs a kx.Model and a kx.Data, got RBF and Data"):
        kx.suggest_solver(kx.RBF(), kx.Data(np.zeros((3, 1)), np.zeros(3)))


def test_available_memory_is_that_of_the_machine_unless_it_is_given(monkeypatch):
    monkeypatch.delenv("KERNAX_MEMORY", raising=False)
    found = kx.solvers.available_memory(jnp.zeros(3))
    assert found is None or 2**20 < found < 2**50
    monkeypatch.setenv("KERNAX_MEMORY", "0.5")
    assert kx.solvers.available_memory() == GIB // 2
    monkeypatch.setenv("KERNAX_MEMORY", "inf")
    assert kx.solvers.available_memory() is None
    monkeypatch.setenv("KERNAX_MEMORY", "16GB")
    with pytest.raises(ValueError, match=r"KERNAX_MEMORY .* got '16GB'"):
        kx.solvers.available_memory()


@pytest.mark.parametrize(("limit", "stat", "room"), [("4096", "inactive_file 96", 1192), ("max", "", None)])
def test_a_container_may_have_less(limit, stat, room, tmp_path, monkeypatch):
    """Files as Linux has them for a process in a group, whose limit holds for the group inside it."""
    from kernax.solvers import _memory

    (tmp_path / "cgroup/job/inner").mkdir(parents=True)
    for name, text in {"memory.max": limit, "memory.current": "3000", "memory.stat": stat}.items():
        (tmp_path / "cgroup/job" / name).write_text(text + "\n")
    files = {"/proc/self/cgroup": "0::/job/inner\n", "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"}
    read = _memory._text
    monkeypatch.setattr(_memory, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(_memory, "_text", lambda path: files.get(str(path)) or read(path))
    monkeypatch.delenv("KERNAX_MEMORY", raising=False)
    assert kx.solvers.available_memory() == (8000 * 1024 if room is None else room)


@pytest.mark.parametrize(("solver", "matrices", "workspace"), [(kx.Cholesky(), 2, 0), (kx.Eigh(), 3, 2)])
def test_a_solver_needs_what_it_says(solver, matrices, workspace):
    """The least memory, by the compiled program's own account, in which LAPACK's workspace (2n² for syevd) is not."""
    n = 300
    data = kx.Data(np.random.default_rng(0).normal(size=(n, 2)), np.zeros(n))

    def condition(model, data):
        return kx.condition(model, data, solver, throw=False)

    plan = eqx.filter_jit(condition).lower(kx.Model(kx.RBF(), 0.1), data).compile().compiled.memory_analysis()
    planned = (plan.temp_size_in_bytes + plan.output_size_in_bytes) / (8 * n * n)
    assert matrices <= planned <= matrices + 1
    assert matrices <= solver.bytes_needed(n, 8) / (8 * n * n) - workspace <= matrices + 1
    assert solver.bytes_needed(n, 8) < solver.bytes_needed(n, 8, gradient=True)
    assert kx.StateSpace().bytes_needed(n, 8) is None


def test_grids_with_a_long_axis(monkeypatch):
    """A state space runs along the long axis; an eigendecomposition of it would not fit."""
    tasks = kx.FeatureMap(lambda t: jnp.eye(3)[t])
    model = kx.Model(kx.Select(kx.Matern32(), axis=0) * kx.Select(tasks, axis=1), 0.1)
    axes = kx.Grid((np.arange(50_000.0)[:, None], np.arange(3)))
    data = kx.Data(axes, np.zeros(150_000))
    assert kx.suggest_solver(model, data).solver == kx.StateSpace()
    monkeypatch.setenv("KERNAX_MEMORY", "16")
    with pytest.raises(
        MemoryError, match=r"condition with kx.Kronecker\(\) on 150,000 rows takes .*: write solver=kx.StateSpace\(\)"
    ):
        kx.condition(model, data, kx.Kronecker())
