"""What a row may be: arrays, structures, grids; and labels, which keep their type all the way."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest

import kernax as kx
from kernax.rows import Grid, as_rows, check_same_columns, map_rows, num_rows, take

rng = np.random.default_rng(0)
PLACES = rng.normal(size=(9, 2))
TASKS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0])
Y = np.sin(PLACES[:, 0]) + TASKS


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    place: jax.Array
    task: jax.Array


class Row(eqx.Module):
    place: jax.Array
    task: jax.Array


class Table(kx.AbstractKernel):
    """A covariance of labels that is looked up in a table, `T Tᵀ`."""

    root: jax.Array = kx.parameters.real()

    def pair(self, a, b):
        return (self.root @ self.root.T)[a, b]


class Both(kx.AbstractKernel):
    """Similar places and tasks, for rows of any structure with these two parts."""

    place: kx.AbstractKernel
    task: kx.AbstractKernel
    parts: object = eqx.field(static=True)

    def pair(self, a, b):
        (p, t), (q, u) = self.parts(a), self.parts(b)
        return self.place.pair(p, q) * self.task.pair(t, u)


ROOT = np.array([[1.0, 0.0], [0.5, 0.8], [-0.3, 0.6]])
STRUCTURES = {
    "dict": (lambda place, task: {"place": place, "task": task}, lambda row: (row["place"], row["task"])),
    "tuple": (lambda place, task: (place, task), lambda row: row),
    "list": (lambda place, task: [place, task], lambda row: row),
    "dataclass": (Point, lambda row: (row.place, row.task)),
    "module": (Row, lambda row: (row.place, row.task)),
    "nested": (lambda place, task: {"a": (place, {"b": task})}, lambda row: (row["a"][0], row["a"][1]["b"])),
}


def model(name="dict", noise=0.1):
    return kx.Model(Both(kx.RBF(), Table(ROOT), STRUCTURES[name][1]), noise=noise)


def dense_mean(place, task, y, new_place, new_task, noise=0.1):
    """Plain NumPy."""

    def gram(p, t, q, u):
        squares = ((p[:, None] - q[None]) ** 2).sum(-1)
        return np.exp(-0.5 * squares) * (ROOT @ ROOT.T)[np.asarray(t, int)[:, None], np.asarray(u, int)[None]]

    weights = np.linalg.solve(gram(place, task, place, task) + noise * np.eye(len(y)), y)
    return gram(new_place, new_task, place, task) @ weights


# What becomes rows


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("kind", ["int8", "int64", "uint8", "bool"])
def test_labels_inside_a_structure_keep_their_type(name, kind):
    labels = TASKS.astype(kind)
    data = kx.Data(STRUCTURES[name][0](PLACES.astype("float32"), labels), Y.astype("float32"))
    place, task = STRUCTURES[name][1](data.x)
    assert (place.dtype, task.dtype, data.dtype) == (np.float32, kind, np.float32)
    assert jax.tree.structure(data.x) == jax.tree.structure(STRUCTURES[name][0](0, 0))
    np.testing.assert_array_equal(task, labels)


def test_bare_arrays_become_floating_point():
    for x in (np.arange(4, dtype="uint8")[:, None], [[0], [1], [2], [3]], jnp.arange(4)[:, None], np.eye(4, 1, dtype=bool)):
        assert kx.Data(x, np.zeros(4)).x.dtype == np.float64
    # A list of numbers is one array, at any depth, in a structure too.
    assert kx.Data([[0.0, 1.0], [2.0, 3.0]], [1, 2]).x.shape == (2, 2)
    assert kx.Data([np.array([0.0, 1.0]), np.array([2.0, 3.0])], [1, 2]).x.shape == (2, 2)
    data = kx.Data({"place": [[0.0], [1.0]], "task": [0, 1]}, [1.0, 2.0])
    assert data.x["place"].dtype == np.float64
    assert data.x["task"].dtype.kind == "i"
    data = kx.Data([[[0.0], [1.0]], np.array([[1, 2], [3, 4]])], [1.0, 2.0])
    assert [leaf.shape for leaf in data.x] == [(2, 1), (2, 2)]
    assert data.x[1].dtype.kind == "i"


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_and_columns_of_other_libraries(frame):
    table = frame({"a": [1.0, 2.0, 3.0], "b": [0, 1, 0]})
    np.testing.assert_array_equal(kx.Data(table, table["a"]).x, [[1, 0], [2, 1], [3, 0]])
    data = kx.Data({"place": table[["a"]], "task": table["b"]}, table["a"])
    assert data.x["place"].shape == (3, 1)
    assert data.x["task"].dtype.kind == "i"


def test_one_floating_type_for_all_numbers():
    x = {"a": np.zeros((3, 1), "float32"), "b": np.zeros((3, 2), "float64"), "c": np.zeros(3, int)}
    data = kx.Data(x, np.zeros(3, "float32"))
    assert (data.x["a"].dtype, data.x["b"].dtype, data.y.dtype, data.x["c"].dtype) == ("float64",) * 3 + ("int64",)
    # Labels alone have no precision, so y decides.
    assert kx.Data({"c": np.zeros(3, int)}, np.zeros(3, "float32")).dtype == np.float32
    assert kx.Data({"c": np.zeros(3, int)}, [0, 1, 2]).dtype == np.float64


def test_what_cannot_be_rows_is_refused():
    @dataclasses.dataclass
    class Unknown:
        place: object

    for x, error, words in (
        (np.zeros(3), ValueError, r"x has shape \(3,\); kernax needs \(n, d\): write x\[:, None\]"),
        ({"a": np.zeros((3, 1)), "b": np.zeros(2)}, ValueError, "one common number of rows"),
        ({"a": np.zeros((3, 1)), "b": np.float64(1.0)}, ValueError, "one common number of rows"),
        ({}, ValueError, "one common number of rows"),
        ({"a": np.array(["x", "y", "z"])}, TypeError, "a leaf of x has dtype <U1"),
        ({"a": np.zeros((3, 1), complex)}, TypeError, "a leaf of x has dtype complex128"),
        (Unknown(np.zeros((3, 1))), TypeError, r"x is a Unknown, .*: register the class with jax.tree_util"),
    ):
        with pytest.raises(error, match=words):
            kx.Data(x, np.zeros(3))


# Grids


def test_a_grid_is_all_combinations_with_the_last_axis_fastest():
    grid = kx.Grid((np.array([[0], [1]]), np.array([5, 6, 7], "int8"), {"a": np.array([[0.5], [0.7]])}))
    assert grid.shape == (2, 3, 2)
    assert num_rows(grid) == 12
    first, second, third = take(grid)
    # An (n, d) axis holds numbers, a vector of integers labels.
    assert (first.dtype, second.dtype) == (np.float64, np.int8)
    np.testing.assert_array_equal(first[:, 0], np.repeat([0, 1], 6))
    np.testing.assert_array_equal(second, np.tile(np.repeat([5, 6, 7], 2), 2))
    np.testing.assert_array_equal(third["a"][:, 0], np.tile([0.5, 0.7], 6))
    some = take(grid, jnp.array([11, 0]))
    assert [int(some[1][0]), int(some[1][1])] == [7, 5]
    data = kx.Data(grid, np.zeros((2, 3, 2), "float32"))
    assert data.n == 12
    assert data.x.axes[1].dtype == np.int8
    assert "Grid(2, 3, 2)" in repr(data)


def test_what_is_no_grid_is_refused():
    for axes in (np.zeros((3, 1)), (), [1.0, 2.0]):
        with pytest.raises(ValueError, match="Grid takes a tuple of axes"):
            kx.Grid(axes)
    with pytest.raises(ValueError, match=r"axis 1 of the grid has shape \(3,\)"):
        kx.Grid((np.zeros((3, 1)), np.linspace(0, 1, 3)))
    with pytest.raises(ValueError, match="x has 6 rows and y has 5"):
        kx.Data(kx.Grid((np.zeros((2, 1)), np.zeros((3, 1)))), np.zeros(5))
    with pytest.raises(ValueError, match=r"x has NaN or infinite values in 1 of 2 rows"):
        # A cell that does not count has coordinates all the same.
        kx.Data(kx.Grid((np.array([[0.0], [np.nan]]), np.zeros((1, 1)))), np.zeros(2), mask=np.array([True, False]))


def test_every_solver_takes_a_grid():
    grid = kx.Grid((np.array([[0.0], [1.0], [1.5]]), np.array([[0.2], [0.9]])))
    kernel = kx.Select(kx.RBF(), axis=0) + kx.Select(kx.Matern32(), axis=1)
    y = np.arange(6.0)
    for solver in (kx.Cholesky(), kx.Eigh()):
        c = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(grid, y), solver)
        rows = kx.condition(kx.Model(kernel, noise=0.1), kx.Data(take(grid), y), solver)
        np.testing.assert_allclose(kx.mean(c, grid), kx.mean(rows, take(grid)), rtol=1e-12)


# Labels from the data to the answers


@pytest.mark.parametrize("name", STRUCTURES)
def test_kernels_of_labels(name):
    build = STRUCTURES[name][0]
    c = kx.condition(model(name), kx.Data(build(PLACES, TASKS), Y))
    new = rng.normal(size=(4, 2)), np.array([0, 2, 1, 1])
    expected = dense_mean(PLACES, TASKS, Y, *new)
    np.testing.assert_allclose(kx.mean(c, build(*new)), expected, rtol=1e-10)
    np.testing.assert_allclose(jax.jit(lambda c, x: kx.mean(c, x))(c, build(*new)), expected, rtol=1e-10)
    assert STRUCTURES[name][1](c.data.x)[1].dtype.kind == "i"
    with pytest.raises(ValueError, match="numbers where the data the model was conditioned on has labels: write x as int"):
        kx.mean(c, build(new[0], new[1].astype(float)))
    # Whole numbers where the data has numbers are numbers.
    whole = np.array([[1, 2], [0, -1]])
    np.testing.assert_allclose(kx.mean(c, build(whole, TASKS[:2])), kx.mean(c, build(whole.astype(float), TASKS[:2])))


def test_another_structure_or_width_at_prediction_is_refused():
    c = kx.condition(model(), kx.Data({"place": PLACES, "task": TASKS}, Y))
    with pytest.raises(ValueError, match="x has the structure"):
        kx.mean(c, (PLACES, TASKS))
    with pytest.raises(ValueError, match="x has 1 columns, but the data the model was conditioned on has 2 columns"):
        kx.mean(c, {"place": PLACES[:, :1], "task": TASKS})
    with pytest.raises(ValueError, match=r"has rows of shape \(\)"):
        kx.mean(c, {"place": PLACES, "task": TASKS[:, None]})


def test_garbage_behind_a_mask_has_no_influence_on_labels_either():
    mask = np.arange(9) != 4
    places, tasks, y = PLACES.copy(), TASKS.copy(), Y.copy()
    places[4], tasks[4], y[4] = np.nan, 10**6, np.inf
    data = kx.Data({"place": places, "task": tasks}, y, mask)
    assert int(data.x["task"][4]) == TASKS[0]
    expected = dense_mean(PLACES[mask], TASKS[mask], Y[mask], PLACES[:3], TASKS[:3])
    np.testing.assert_allclose(kx.mean(kx.condition(model(), data), {"place": PLACES[:3], "task": TASKS[:3]}), expected)
    # Where none counts, label 0 stands in.
    nothing = kx.Data({"place": places, "task": tasks}, y, np.zeros(9, bool))
    assert not np.any(nothing.x["task"])


def test_labels_through_fit_save_and_load(tmp_path):
    data = kx.Data({"place": PLACES, "task": TASKS.astype("int32")}, Y)
    start = kx.Model(kx.Select(kx.RBF(), key="place") * kx.Select(Table(ROOT), key="task"), noise=0.1)
    fit = kx.fit(start, data, max_steps=20)
    assert fit.value < -kx.log_marginal_likelihood(kx.condition(start, data))
    kx.io.register(Table)
    kx.save(tmp_path / "c.kx", kx.condition(fit.model, data))
    loaded = kx.load(tmp_path / "c.kx")
    assert loaded.data.x["task"].dtype == np.int32
    np.testing.assert_array_equal(
        kx.mean(loaded, {"place": PLACES, "task": TASKS}),
        kx.mean(kx.condition(fit.model, data), {"place": PLACES, "task": TASKS}),
    )


@pytest.mark.parametrize("name", ["dict", "list", "dataclass"])
def test_labels_through_many_ragged_datasets(name):
    build = STRUCTURES[name][0]
    sets = [(build(PLACES[:n], TASKS[:n]), Y[:n]) for n in (9, 5, 6)]
    stack = kx.data.stack(sets)
    place, task = STRUCTURES[name][1](stack.x)
    assert task.dtype.kind == "i"
    assert place.dtype == np.float64
    assert task.shape == (3, 9)
    fits = kx.fit_many(model(name), sets, max_steps=15)
    alone = kx.fit(model(name), kx.Data(*sets[1]), max_steps=15)
    np.testing.assert_allclose(fits[1].value, alone.value, rtol=1e-6)
    new = rng.normal(size=(2, 2)), np.array([2, 0])
    many = kx.predict_many(model(name), sets, [build(*new)] * 3)
    np.testing.assert_allclose(many[2].mean, dense_mean(PLACES[:6], TASKS[:6], Y[:6], *new), rtol=1e-9)
    with pytest.raises(ValueError, match="numbers where its data has labels"):
        kx.predict_many(model(name), sets, [build(new[0], np.array([2.0, 0.0]))] * 3)
    with pytest.raises(ValueError, match=r"dataset 1 has numbers where dataset 0 has labels"):
        kx.fit_many(model(name), [sets[0], (build(PLACES, TASKS.astype(float)), Y)])


def test_many_datasets_of_mixed_origin():
    """Frames, lists, masks, an empty set and a grid, whose rows are written out."""
    frame = pd.DataFrame({"place": PLACES[:, 0], "task": TASKS})
    sets = [
        ({"place": frame[["place"]], "task": frame["task"]}, Y),
        ({"place": PLACES[:4, :1].tolist(), "task": TASKS[:4].tolist()}, Y[:4]),
        ({"place": PLACES[:, :1], "task": np.where(TASKS == 2, 99, TASKS)}, Y, TASKS != 2),
        ({"place": np.zeros((0, 1)), "task": np.zeros(0, int)}, np.zeros(0)),
    ]
    stack = kx.data.stack(sets)
    assert stack.x["task"].dtype.kind == "i"
    assert int(stack.x["task"].max()) == 2
    grid = kx.Grid((PLACES[:3], np.arange(2)))
    own = kx.data.stack([(grid, np.zeros(6)), kx.Data(grid, np.zeros((3, 2)))])
    assert [leaf.shape for leaf in own.x] == [(2, 6, 2), (2, 6)]
    with pytest.raises(ValueError, match="one common number of rows"):
        kx.data.stack([({"place": PLACES, "task": TASKS[:3]}, Y)])


# The helpers


def test_functions_of_rows_in_blocks(monkeypatch):
    monkeypatch.setattr("kernax.rows._ENTRIES", 12)
    x = {"a": jnp.arange(10.0), "b": jnp.arange(10)}

    def function(rows):
        assert num_rows(rows) <= 3
        return rows["a"] * 2 + rows["b"]

    np.testing.assert_array_equal(map_rows(function, x, 4), 3 * np.arange(10))
    slope = jax.grad(lambda a: map_rows(function, {"a": a, "b": x["b"]}, 4).sum())(x["a"])
    np.testing.assert_array_equal(slope, np.full(10, 2.0))


def test_rows_are_compared_by_structure_width_and_kind():
    known = as_rows({"a": np.zeros((3, 2)), "b": np.zeros(3, int)}, "x")
    check_same_columns(as_rows({"a": np.ones((1, 2)), "b": np.ones(1, "uint8")}, "z"), known, "z", "x")
    grid = Grid((np.zeros((3, 2)), np.arange(3)))
    check_same_columns((np.ones((1, 2)), np.ones(1, int)), grid, "z", "x")
    with pytest.raises(ValueError, match="z has 3 columns, but x has 2 columns"):
        check_same_columns((np.ones((1, 3)), np.ones(1, int)), grid, "z", "x")
