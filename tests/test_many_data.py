"""Many datasets on the host: taken in, read in pieces, padded, and planned."""

import itertools

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kernax as kx
from kernax.data import Group, stack
from kernax.data._host import host_data
from kernax.data._many import stacked, windows
from kernax.data._shapes import bucket_of, plan_rows, work


def ragged(sizes, columns=2, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, columns)), rng.normal(size=n)) for n in sizes]


def taken(datasets, **options):
    return [data for window in windows(datasets, **options) for data in window]


# --- one dataset ---


def test_every_form_of_a_dataset_gives_the_same():
    x, y = ragged([5])[0]
    mask = np.array([False, True, True, False, True])
    for item in ((x, y), [x, y], kx.Data(x, y), Group(0, x, y), (x.tolist(), y.tolist()), (pd.DataFrame(x), pd.Series(y))):
        data = host_data(item)
        np.testing.assert_array_equal(data.x, x)
        np.testing.assert_array_equal(data.y, y)
        assert data.mask.all()
        assert data.key == 0
    ours, theirs = host_data((x, y, mask)), kx.Data(x, y, mask)
    for a, b in zip(ours[:3], (theirs.x, theirs.y, theirs.mask), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(host_data(theirs).x, ours.x)


def test_no_array_of_the_caller_is_kept_or_changed():
    x, y = ragged([4])[0]
    before = x.copy()
    data = host_data((x, y, np.array([False, True, True, True])))
    np.testing.assert_array_equal(x, before)
    x[:] = 7.0
    np.testing.assert_array_equal(data.x[1:], before[1:])


def test_precision_is_that_of_data():
    x, y = ragged([4])[0]
    single = x.astype(np.float32), y.astype(np.float32)
    for item in (
        (x, y),
        single,
        (single[0], y),
        (x, single[1]),
        (np.arange(8).reshape(4, 2), single[1]),
        (single[0], y.tolist()),
        ([[1]], [2]),
    ):
        data = host_data(item)
        assert data.x.dtype == data.y.dtype == kx.Data(*item).dtype
    # What has no precision of its own takes that of the first dataset.
    assert taken([single, ([[1, 2]], [3])])[1].x.dtype == np.float32


def test_float64_under_float32_is_cut_and_told_once(monkeypatch):
    monkeypatch.setattr("kernax._arrays._told", set())
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="rounds it") as told:
            data = taken(ragged([3, 4]))
        assert len(told) == 1
        assert told[0].filename == __file__
        assert data[0].x.dtype == data[1].y.dtype == np.float32


def test_what_one_dataset_suffers_from_does_not_raise():
    x, y = ragged([4])[0]
    sick = y.copy()
    sick[2] = np.nan
    nothing, masked, bad, good = taken([([], []), (x, y, np.zeros(4, bool)), (x, sick), (x, y)])
    assert nothing.x.shape == (0, 2)
    assert not masked.mask.any()
    assert not masked.x.any()
    assert np.isnan(bad.y[2])
    np.testing.assert_array_equal(good.y, y)


X, Y = np.ones((3, 2)), np.ones(3)


FAULTY = {
    "x of one axis": (X[:, 0], Y),
    "x of no axis": (1.0, Y),
    "rows": (X, Y[:2]),
    "y of three axes": (X, X[None]),
    "no output": (X, X[:, :0]),
    "no columns": (X[:, :0], Y),
    "complex": (X + 1j, Y),
    "text": (X, ["a", "b", "c"]),
    "float16": (X.astype(np.float16), Y),
    "mask of integers": (X, Y, [1, 0, 1]),
    "mask too short": (X, Y, [True]),
    "leaves": ({"a": X, "b": Y[:2]}, Y),
}


@pytest.mark.parametrize("item", FAULTY.values(), ids=FAULTY)
def test_faults_are_told_as_data_tells_them_and_name_their_dataset(item):
    with pytest.raises((TypeError, ValueError)) as plain:
        kx.Data(*item)
    with pytest.raises(plain.type) as caught:
        taken({"a": (X, Y), "star 4": item})
    assert str(caught.value) == f"dataset 1 ('star 4'): {plain.value}"


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ((X, Y, Y, Y), TypeError, r"must be \(x, y\), \(x, y, mask\) or kx.Data, got tuple of length 4"),
        (X, TypeError, "got ndarray"),
        (("star 4", pd.DataFrame({"t": Y})), TypeError, "write kx.data.groups"),
        (((4, "r"), pd.DataFrame({"t": Y})), TypeError, "write kx.data.groups"),
        ((X[:, [0, 1, 1]], Y), ValueError, "has 3 columns, dataset 0 has 2 columns: every dataset must have the same"),
        (((X, X), Y), ValueError, "structure"),
        ((X, X), ValueError, "same outputs"),
        ((X.astype(np.float32), Y.astype(np.float32)), ValueError, "is float32, dataset 0 is float64"),
        ((np.ones((0, 3)), []), ValueError, "has 3 columns"),
    ],
)
def test_datasets_that_do_not_go_together_are_refused(item, error, message):
    with pytest.raises(error, match=f"^dataset 1.*{message}"):
        taken(iter([(X, Y), item]))


# --- windows ---


def test_windows_keep_order_and_bounds_and_read_no_further_than_they_must():
    sizes = [3, 9, 4, 30, 2, 2, 2, 5, 1]
    read = []

    def generate():
        for i, item in enumerate(ragged(sizes)):
            read.append(i)
            yield item

    row = 8 * 3 + 1  # two columns, one target, one mask
    stream = windows(generate(), budget=20 * row)
    assert read == []
    found = []
    for window in stream:
        found.append([data.n for data in window])
        assert len(read) <= sum(map(len, found)) + 1
        assert len(window) == 1 or sum(leaf.nbytes for leaf in jax.tree.leaves(stacked(window, max(found[-1])))) <= 20 * row
    assert found == [[3, 9], [4], [30], [2, 2, 2, 5], [1]]


def test_names_come_from_dicts_and_groups_and_else_count():
    (a, b), c = ragged([3, 4]), kx.Data(X, Y)
    assert [data.key for data in taken({"p": a, ("q", 1): b, 7: c})] == ["p", ("q", 1), 7]
    assert [data.key for data in taken([Group("p", *a), b, c])] == ["p", 1, 2]
    assert taken(iter([])) == []


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ("stars.parquet", "kx.data.groups"),
        (pd.DataFrame({"x": Y}), "kx.data.groups"),
        (pa.table({"x": Y}), "kx.data.groups"),
        (X, r"zip\(x, y\)"),
        ((X, Y), r"write \[\(x, y\)\]"),
        (({"a": X}, Y), r"write \[\(x, y\)\]"),
        (kx.Data(X, Y), r"write \[data\]"),
        (None, "list, dict or generator"),
    ],
)
def test_what_is_not_many_datasets_is_refused_at_once(datasets, message):
    with pytest.raises(TypeError, match=message):
        windows(datasets)


# --- padding ---


def test_padding_copies_the_first_row_that_counts():
    (x, y), other = ragged([3, 5])
    mask = np.array([False, True, True])
    batch = stacked(taken([(x, y, mask), other, ([], []), (x, y, np.zeros(3, bool))]), rows=8)
    assert isinstance(batch, kx.Data)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(batch))
    assert (batch.x.shape, batch.y.shape, batch.mask.shape) == ((4, 8, 2), (4, 8), (4, 8))
    np.testing.assert_array_equal(batch.x[0], x[[1, 1, 2, 1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(batch.y[0], [0, y[1], y[2], 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(batch.mask.sum(axis=1), [2, 5, 0, 0])
    np.testing.assert_array_equal(batch.x[1], other[0][[0, 1, 2, 3, 4, 0, 0, 0]])
    assert not any(leaf[2:].any() for leaf in jax.tree.leaves(batch))
    with pytest.raises(ValueError, match=r"dataset 1 has 5 rows: it does not fit into 4"):
        stacked(taken([(x, y), other]), rows=4)


def test_trees_and_outputs_are_padded_leaf_by_leaf():
    rng = np.random.default_rng(0)
    sets = [({"t": rng.normal(size=n), "image": rng.normal(size=(n, 2, 3))}, rng.normal(size=(n, 2))) for n in (2, 4)]
    batch = stack(sets)
    assert jax.tree.map(lambda leaf: leaf.shape, batch.x) == {"t": (2, 4), "image": (2, 4, 2, 3)}
    assert batch.y.shape == (2, 4, 2)
    np.testing.assert_array_equal(batch.x["image"][0], sets[0][0]["image"][[0, 1, 0, 0]])
    np.testing.assert_array_equal(batch.y[1], sets[1][1])


def test_a_stack_is_data_for_vmap():
    sets = ragged([3, 5], columns=1)
    model = kx.Model(kx.RBF(), noise=0.1)
    batch = stack(sets)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batch))
    values = jax.vmap(lambda d: kx.log_marginal_likelihood(kx.condition(model, d, throw=False)))(batch)
    expected = [kx.log_marginal_likelihood(kx.condition(model, kx.Data(*pair))) for pair in sets]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert stack([([], []), (np.ones((0, 2)), [])]).mask.shape == (2, 1)
    with pytest.raises(ValueError, match="no dataset"):
        stack([])


# --- which shapes ---


def cost(sizes, plan, known, price):
    seconds = {shape: work(shape) for shape in plan}
    return sum(seconds[min(shape for shape in plan if shape >= n)] for n in sizes) + price * len(set(plan) - set(known))


@pytest.mark.parametrize("price", [0.0, 2e-3, 2e-2, 1.0])
@pytest.mark.parametrize("known", [(), (24, 60), (500,)])
def test_the_plan_is_the_best_of_all(price, known):
    for seed in range(3):
        sizes = np.random.default_rng(seed).integers(0, 57, size=12).tolist()
        shapes = sorted({8 * -(-max(n, 1) // 8) for n in sizes} | set(known))
        plan = plan_rows(sizes, known=known, cost_of_shape=price)
        assert {bucket_of(n, plan) for n in sizes} == set(plan) <= set(shapes)
        subsets = (s for k in range(1, len(shapes) + 1) for s in itertools.combinations(shapes, k) if s[-1] >= max(sizes))
        best = min(cost(sizes, subset, known, price) for subset in subsets)
        assert cost(sizes, plan, known, price) == pytest.approx(best, rel=1e-12)


def test_plans_of_regular_and_of_very_ragged_sizes():
    assert plan_rows([]) == ()
    assert plan_rows([50] * 1000) == (50,)
    assert plan_rows([0]) == (1,)
    assert plan_rows([50] * 10, known=(64,)) == (64,)
    sizes = np.random.default_rng(0).lognormal(4.0, 1.0, 5000).astype(int)
    free = plan_rows(sizes, cost_of_shape=0.0)
    assert 32 < len(free) <= 64
    assert max(sizes) <= free[-1] <= max(sizes) + 7
    ideal = sum(work(n) for n in sizes)
    assert cost(sizes, free, (), 0.0) < 1.3 * ideal
    assert len(plan_rows(sizes, cost_of_shape=100.0)) < len(plan_rows(sizes)) < len(free)


def test_the_bucket_is_the_smallest_that_holds():
    assert [bucket_of(n, (8, 16, 40)) for n in (0, 8, 9, 16, 17, 40)] == [8, 8, 16, 16, 40, 40]
    with pytest.raises(ValueError, match="41 rows fit into none"):
        bucket_of(41, (8, 16, 40))
