"""The groups of tables of every kind, against pandas' own."""

import decimal
import pickle
import sys
import warnings

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

from kernax.data import groups, stack
from kernax.data._many import windows
from kernax.data._places import UnreadableError
from kernax.data._tables import unread

STARS = ["b", "b", "a", "a", "a", "c"]
FRAME = pd.DataFrame(
    {"star": STARS, "band": [1, 2, 1, 1, 2, 1], "t": np.arange(6.0), "u": np.arange(6), "flux": np.arange(6.0) ** 2}
)
MIXED = FRAME.iloc[[2, 0, 5, 3, 1, 4]].reset_index(drop=True)


class Capsule:
    """What any library may hand out: only the stream of the Arrow interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, *args, **kwargs):
        return self.table.__arrow_c_stream__(*args, **kwargs)


IN_MEMORY = {
    "pandas": lambda frame: frame,
    "pandas categories": lambda frame: frame.astype({"star": "category"}),
    "pandas nullable": lambda frame: frame.convert_dtypes(),
    "polars": pl.from_pandas,
    "polars lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "polars categories": lambda frame: pl.from_pandas(frame).with_columns(pl.col("star").cast(pl.Categorical)),
    "duckdb": lambda frame: duckdb.from_arrow(pa.Table.from_pandas(frame, preserve_index=False)),
    "capsule": lambda frame: Capsule(pa.Table.from_pandas(frame, preserve_index=False)),
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "arrow dictionary": lambda frame: pa.Table.from_pandas(frame.astype({"star": "category"}), preserve_index=False),
    "dict": lambda frame: {name: frame[name].to_numpy() for name in frame},
    "dict of lists": lambda frame: frame.to_dict("list"),
}


def on_disk(frame, ending, path):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    path = path / f"stars{ending}"
    if ending == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=4)
    elif ending == ".csv":
        frame.to_csv(path, index=False)
    else:
        pyarrow.feather.write_feather(table, path)
    return path


def assert_like_pandas(found, frame, by, x, y):
    found = list(found)
    expected = list(frame.groupby(by, sort=False))
    assert [group.key for group in found] == [key for key, _ in expected]
    for group, (_, part) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(group.x, part[x if isinstance(x, list) else [x]].to_numpy(float))
        np.testing.assert_array_equal(group.y, part[y].to_numpy(float))
        parts = group.key if isinstance(group.key, tuple) else (group.key,)
        assert {type(part) for part in parts} <= {str, int}


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize(("by", "x", "y"), [("star", "t", "flux"), (["star", "band"], ["t", "u"], ["flux", "u"])])
def test_groups_are_those_of_pandas(kind, by, x, y):
    found = groups(IN_MEMORY[kind](MIXED), by, x, y)
    assert_like_pandas(found, MIXED, by, x, y)
    assert_like_pandas(found, MIXED, by, x, y)  # a second time
    assert len(found) == MIXED.groupby(by).ngroups
    assert repr(found).startswith(f"Groups({len(found)} groups by ")
    assert_like_pandas(pickle.loads(pickle.dumps(found)), MIXED, by, x, y)


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("ending", [".parquet", ".feather", ".arrow", ".csv"])
def test_files_are_read_in_pieces(tmp_path, ending, rows):
    found = groups(on_disk(FRAME, ending, tmp_path), ["star", "band"], ["t", "u"], "flux", rows_at_a_time=rows)
    assert_like_pandas(found, FRAME, ["star", "band"], ["t", "u"], "flux")
    assert_like_pandas(found, FRAME, ["star", "band"], ["t", "u"], "flux")
    with pytest.raises(TypeError, match="only after reading"):
        len(found)
    assert "stars" in repr(found)
    assert_like_pandas(pickle.loads(pickle.dumps(found)), FRAME, ["star", "band"], ["t", "u"], "flux")


def test_streams_are_read_as_far_as_asked_and_once(tmp_path):
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    read = []

    def batches():
        for batch in table.to_batches(max_chunksize=1):
            read.append(batch.num_rows)
            yield batch

    found = groups(pa.RecordBatchReader.from_batches(table.schema, batches()), "star", "t", "flux")
    stream = iter(found)
    assert next(stream).key == "b"
    assert len(read) == 3
    assert [group.key for group in stream] == ["a", "c"]
    with pytest.raises(ValueError, match="already been read"):
        list(found)
    dataset = pyarrow.dataset.dataset(on_disk(FRAME, ".parquet", tmp_path))
    assert_like_pandas(groups(dataset, "star", "t", "flux"), FRAME, "star", "t", "flux")


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_no_file_is_held_whole(tmp_path, ending):
    big = pa.table({"s": np.arange(300_000) // 50, "t": np.random.default_rng(0).normal(size=300_000)})
    path = tmp_path / f"big{ending}"
    if ending == ".parquet":
        pyarrow.parquet.write_table(big, path, row_group_size=10_000)
    else:
        pyarrow.feather.write_feather(big, path, chunksize=10_000)
    table_bytes = big.nbytes
    del big
    stream = iter(groups(path, "s", "t", "t", rows_at_a_time=5000))
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in stream]
    assert len(held) == 6000
    assert max(held) < 0.5 * table_bytes


def test_a_group_that_returns_in_a_file_is_refused(tmp_path):
    found = groups(on_disk(MIXED, ".parquet", tmp_path), "star", "t", "flux")
    with pytest.raises(
        ValueError, match=r"group 'a' begins again in row 3.*sort the table by 'star' first, or load it whole"
    ):
        list(found)


@pytest.mark.parametrize(("x", "y"), [("t", "flux"), (["t", "u", "gap"], ["flux", "flag"])])
@pytest.mark.parametrize("single", [False, True])
def test_groups_that_are_still_to_be_read(tmp_path, x, y, single):
    """Shapes and types are known from the names of groups alone, and the numbers come when they are asked for."""
    frame = FRAME.assign(gap=pd.array([1, None, 3, 4, None, 6], "Int64"), flag=pd.array([True, None] * 3, "boolean"))
    frame = frame.astype({"t": np.float32, "flux": np.float32}) if single else frame
    found = groups(on_disk(frame, ".parquet", tmp_path), ["star", "band"], x, y)
    for number, (group, data) in enumerate(zip(found, unread(pickle.loads(pickle.dumps(found))), strict=True)):
        assert (data.key, data.number, data.is_named) == (group.key, number, True)
        assert np.isnan(data.x).all()
        for before, after, array in ((data.x, data.read().x, group.x), (data.y, data.read().y, group.y)):
            assert (before.shape, before.dtype) == (after.shape, after.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(after, array)


def test_groups_that_cannot_wait(tmp_path):
    text = on_disk(FRAME.astype({"t": str}), ".parquet", tmp_path)
    for table in (FRAME, on_disk(FRAME, ".csv", tmp_path), on_disk(FRAME, ".feather", tmp_path), text):
        found = groups(table, "star", "t", "flux")
        assert unread(found) is found
    with pytest.raises(ValueError, match="begins again in row 3"):
        list(unread(groups(on_disk(MIXED, ".parquet", tmp_path), "star", "t", "flux")))


def test_a_file_that_changes_while_its_groups_wait(tmp_path):
    first, *_ = unread(groups(on_disk(FRAME, ".parquet", tmp_path), "star", "t", "flux"))
    first.read()
    on_disk(FRAME.assign(flux=0.0), ".parquet", tmp_path)
    with pytest.raises(UnreadableError, match="not the one that the groups were looked up in"):
        first.read()
    (tmp_path / "stars.parquet").unlink()
    with pytest.raises(UnreadableError, match="No such file"):
        first.read()


def test_groups_go_into_windows():
    window = next(windows(groups(MIXED, "star", "t", "flux")))
    assert [(data.key, data.n) for data in window] == [("a", 3), ("b", 2), ("c", 1)]
    np.testing.assert_array_equal(stack(groups(MIXED, "star", "t", "flux")).mask.sum(axis=1), [3, 2, 1])


def test_rows_keep_their_order_in_a_long_table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"star": rng.integers(0, 7, 2000), "t": np.arange(2000.0)})
    assert_like_pandas(groups(frame, "star", "t", "t"), frame, "star", "t", "t")


def test_float32_stays_if_all_columns_are():
    single = FRAME.astype({"t": np.float32, "flux": np.float32})
    for kind in ("pandas", "polars", "arrow", "dict"):
        table = IN_MEMORY[kind](single)
        assert {a.dtype for group in groups(table, "star", "t", "flux") for a in group[1:]} == {np.dtype(np.float32)}
        assert {a.dtype for group in groups(table, "star", ["t", "u"], "flux") for a in group[1:]} == {np.dtype(np.float64)}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_missing_numbers_become_nan(kind):
    frame = FRAME.assign(t=FRAME.t.where(FRAME.index != 3), u=FRAME.u.astype("Int64").where(FRAME.index != 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {group.key: group for group in groups(IN_MEMORY[kind](frame), "star", "t", "u")}
    np.testing.assert_array_equal(found["a"].x[:, 0], [2.0, np.nan, 4.0])
    np.testing.assert_array_equal(found["b"].y, [np.nan, 1.0])


def test_a_csv_file_may_have_gaps_and_change_its_mind(tmp_path):
    path = tmp_path / "stars.csv"
    path.write_text("star,t,flux\n1,1,NA\n1,2, 3\n2,2.5,\nx,1e3,-nan\n")
    keys, xs, ys = zip(*groups(path, "star", "t", "flux"), strict=True)
    assert keys == ("1", "2", "x")
    np.testing.assert_array_equal(np.concatenate(xs)[:, 0], [1.0, 2.0, 2.5, 1000.0])
    np.testing.assert_array_equal(np.concatenate(ys), [np.nan, 3.0, np.nan, np.nan])
    for absent in ("", "NA", " n/a "):
        path.write_text(f"star,t,flux\na,1,2\n\n{absent},2,3\n")
        with pytest.raises(
            ValueError, match=r"'star' names no group in 1 of the rows 0 to 1 \(first: row 1, line 4 of .*stars\.csv\)"
        ):
            list(groups(path, "star", "t", "flux"))
    path.write_text("star,t,flux\na,1,2\na,1,2.5\na,2,faint\n")
    with pytest.raises(ValueError, match=r"column 'flux' has 'faint' in row 2, line 4 of .*stars\.csv, and kernax"):
        list(groups(path, "star", "t", "flux", rows_at_a_time=1))
    path.write_text("star,t\n" + "1,2\n" * 400_000 + "x,2\n")
    with pytest.raises(ValueError, match="guesses the type"):
        list(groups(path, "star", "t", "t"))


def test_keys_are_plain_values():
    days = np.array(["2020-01-01", "2020-01-02"], "M8[ns]")
    for table in (
        {"by": days, "t": [1, 2]},
        pl.DataFrame({"by": days, "t": [1, 2]}),
        {"by": days.astype("M8[us]"), "t": [1, 2]},
    ):
        assert [group.key for group in groups(table, "by", "t", "t")] == days.astype("M8[us]").tolist()
    assert [type(g.key) for g in groups({"by": [np.int64(1), 2, "c"], "t": [1, 2, 3]}, "by", "t", "t")] == [int, int, str]
    assert [g.key for g in groups({"by": np.array([True, False]), "t": [1, 2]}, "by", "t", "t")] == [True, False]


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict of lists"])
@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("t", ["1", "2", "x", "4", "5", "6"], "column 't' has 'x' in row 2, and kernax takes numbers"),
        ("t", [None, "n/a", "NA", "4", "5", "6"], "column 't' has '4' in row 3, and kernax takes numbers"),
        ("flux", ["1", "2", "3", "4", "5", "6"], "column 'flux' has '1' in row 0"),
        ("t", pd.date_range("2020", periods=6), "column 't' holds dates or times.*convert it first"),
        ("t", pd.date_range("2020", periods=6, tz="UTC"), "column 't' holds dates or times"),
        ("star", ["a", None, "a", "b", None, "b"], r"column 'star' names no group in 2 of the rows 0 to 5 \(first: row 1\)"),
        (
            "star",
            ["a", "NaN", "a", "b", "none", "b"],
            r"column 'star' names no group in 2 of the rows 0 to 5 \(first: row 1",
        ),
        ("star", [1.0, np.nan, 1.0, 2.0, 2.0, 2.0], "names no group in 1 of"),
    ],
)
def test_columns_that_will_not_do(kind, column, values, message):
    with pytest.raises(ValueError, match=message):
        groups(IN_MEMORY[kind](FRAME.assign(**{column: values})), "star", "t", "flux")


def test_a_gap_in_an_encoded_column_stays_one():
    table = pa.table({"s": [1, 1, 1], "t": pa.array([1.5, None, 2.5]).dictionary_encode()})
    np.testing.assert_array_equal(next(iter(groups(table, "s", "t", "t"))).y, [1.5, np.nan, 2.5])


def test_decimals_are_numbers():
    numbers = [decimal.Decimal("1.5"), None]
    for table in (
        pa.table({"s": [1, 1], "t": numbers}),
        pl.DataFrame({"s": [1, 1], "t": numbers}),
        {"s": [1, 1], "t": numbers},
    ):
        np.testing.assert_array_equal(next(iter(groups(table, "s", "t", "t"))).y, [1.5, np.nan])


def test_other_faults_of_tables(tmp_path, monkeypatch):
    for table in (
        FRAME,
        pl.from_pandas(FRAME).lazy(),
        on_disk(FRAME, ".csv", tmp_path),
        on_disk(FRAME, ".parquet", tmp_path),
    ):
        with pytest.raises(ValueError, match=r"no column 'flx'; did you mean 'flux'\? Its columns are 'star', 'band', 't'"):
            groups(table, "star", "t", "flx")
    with pytest.raises(ValueError, match="2 columns called 't'"):
        groups(pd.concat([FRAME, FRAME[["t"]]], axis=1), "star", "t", "flux")
    with pytest.raises(ValueError, match=r"differ in length: \{'s': 2, 't': 3\}"):
        groups({"s": [1, 2], "t": [1, 2, 3]}, "s", "t", "t")
    with pytest.raises(ValueError, match=r"column 't' has shape \(2, 1\)"):
        groups({"s": [1, 2], "t": np.ones((2, 1))}, "s", "t", "t")
    with pytest.raises(ValueError, match="at least one column"):
        groups(FRAME, "star", [], "flux")
    with pytest.raises(ValueError, match=r"'stars.xlsx' is not a type of file"):
        groups("stars.xlsx", "star", "t", "flux")
    with pytest.raises(FileNotFoundError):
        groups(tmp_path / "none.parquet", "star", "t", "flux")
    with pytest.raises(TypeError, match="got ndarray"):
        groups(np.ones((3, 2)), "star", "t", "flux")
    assert len(groups({"s": [], "t": []}, "s", "t", "t")) == 0
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        groups("stars.parquet", "star", "t", "flux")
