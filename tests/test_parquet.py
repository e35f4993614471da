"""Parquet files, read one row group at a time into rows that stay in a file."""

import os

import numpy as np
import pytest

import kernax as kx
from kernax.rows import Stored, take

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 250
RNG = np.random.default_rng(0)
COLUMNS = {
    "a": RNG.normal(size=N),
    "b": RNG.integers(0, 9, N),
    "c": RNG.normal(size=N).astype("f4"),
    "y": RNG.normal(size=N),
}


def write(path, columns, rows=100):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path


def test_rows_and_targets_are_those_of_the_file(tmp_path):
    path = write(tmp_path / "t.parquet", COLUMNS | {"text": ["no"] * N})
    data = kx.data.from_parquet(path, ["c", "a", "b"], "y", folder=tmp_path / "kept", progress=True)
    assert isinstance(data.x, Stored)
    expected = np.stack([COLUMNS[name] for name in "cab"], axis=1)
    np.testing.assert_array_equal(take(data.x), expected)
    np.testing.assert_array_equal(data.y, COLUMNS["y"])
    c = kx.condition(kx.Model(kx.Matern32(), 0.1), data, kx.Vecchia(5))
    d = kx.condition(kx.Model(kx.Matern32(), 0.1), kx.Data(expected, COLUMNS["y"]), kx.Vecchia(5))
    np.testing.assert_allclose(kx.mean(c, expected[:5]), kx.mean(d, expected[:5]), rtol=1e-12)


def test_several_files_outputs_and_single_precision(tmp_path):
    singles = {name: np.asarray(COLUMNS[name], "f4") for name in ("a", "c", "y")}
    paths = [write(tmp_path / f"{i}.parquet", {k: v[i::2] for k, v in singles.items()}) for i in range(2)]
    data = kx.data.from_parquet(paths, ["a"], ["y", "c"])
    assert data.dtype == "float32"
    np.testing.assert_array_equal(take(data.x)[:, 0], np.concatenate([singles["a"][0::2], singles["a"][1::2]]))
    assert data.y.shape == (N, 2)


def test_what_was_written_is_used_again_unless_the_file_changes(tmp_path):
    path, kept = write(tmp_path / "t.parquet", COLUMNS), tmp_path / "kept"
    kx.data.from_parquet(path, ["a", "b"], "y", folder=kept)
    first = (kept / "x.npy").stat().st_mtime_ns
    old = kx.data.from_parquet(path, ["a", "b"], "y", folder=kept)
    assert (kept / "x.npy").stat().st_mtime_ns == first
    write(path, COLUMNS | {"a": COLUMNS["a"] + 1})
    os.utime(path, ns=(1, 1))
    new = kx.data.from_parquet(path, ["a", "b"], "y", folder=kept)
    np.testing.assert_array_equal(take(new.x)[:, 0], COLUMNS["a"] + 1)
    np.testing.assert_array_equal(take(old.x)[:, 0], COLUMNS["a"])  # its file is still open
    assert take(kx.data.from_parquet(path, ["b"], "y", folder=kept).x).shape == (N, 1)
    assert sorted(os.listdir(kept)) == ["source.json", "x.npy", "y.npy"]


def test_bad_input_is_named(tmp_path):
    holes = COLUMNS["a"].astype(object)
    holes[[120, 130]] = None
    path = write(tmp_path / "t.parquet", COLUMNS | {"a": pyarrow.array(holes, from_pandas=True), "text": ["x"] * N})
    read = kx.data.from_parquet
    with pytest.raises(
        ValueError, match=r"t.parquet, row group 1: column 'a' is missing, NaN or infinite in 2 of 100 rows "
    ):
        read(path, ["a"], "y", folder=tmp_path / "kept")
    assert os.listdir(tmp_path / "kept") == []
    with pytest.raises(ValueError, match=r"t.parquet, row group 0: column 'text' has 'x' in row 0"):
        read(path, ["text"], "y")
    with pytest.raises(ValueError, match=r"t.parquet: the table has no column 'z'"):
        read(path, ["z"], "y")
    with pytest.raises(ValueError, match="x must be a list of columns"):
        read(path, "b", "y")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read(tmp_path / "none.parquet", ["b"], "y")
    (tmp_path / "no.parquet").write_text("hello")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        read(tmp_path / "no.parquet", ["b"], "y")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds other files \(letter.txt, …\)"):
        read(path, ["b"], "y", folder=tmp_path / "mine")
