"""Models of the groups of a file that is read in pieces, against the same fits with the file read whole."""

import dataclasses
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import kernax as kx
from kernax import tables
from kernax.tables import TableError

OPTIONS = {"target": "sales", "by": "shop", "kernel": "rbf", "missing": "drop"}


def rows(seed=0):
    """Rows of three shops, one after another; two rows lack a value, and the second column is far from 0."""
    rng = np.random.default_rng(seed)
    number, t = np.repeat([3, 1, 2], 12), rng.uniform(0, 10, 36)
    sales = 100 * number + 5 * np.sin(t) + 0.2 * rng.normal(size=36)
    sales[20] = np.nan
    names = np.array(["", "1", "2.0", "007"], object)
    return {"shop": names[number], "t": t, "u": 1e6 + np.where(np.arange(36) == 35, np.nan, t % 1), "sales": sales}


def written(folder, ending, of):
    path = str(folder / f"shops{ending}")
    tables.write_table(path, of)
    return path


@pytest.fixture(scope="module", params=[".csv", ".parquet", ".feather"])
def pair(request, tmp_path_factory):
    """The fits of a file that is read whole, and of the same file in pieces."""
    path = written(tmp_path_factory.mktemp("streams"), request.param, rows())
    return [tables.fit_table_many(path, **OPTIONS, stream=stream) for stream in (False, True)]


def test_a_streamed_fit_is_that_of_the_whole_table(pair, tmp_path):
    whole, streamed = pair
    assert streamed.x.shape == (0, 2)
    assert streamed.y.shape == (0,)
    assert streamed.fits.keys == ("007", "1", "2")
    assert streamed.sizes.tolist() == [12, 11, 11]
    assert streamed.notes == whole.notes
    for ours, theirs in zip(streamed.columns, whole.columns, strict=True):
        assert [ours.name, ours.kind, ours.low, ours.high] == [theirs.name, theirs.kind, theirs.low, theirs.high]
        np.testing.assert_allclose([ours.centre, ours.scale], [theirs.centre, theirs.scale], rtol=1e-9)
    for name, values in whole.table().items():
        if values.dtype.kind == "f" and name != "gradient_norm":
            np.testing.assert_allclose(streamed.table()[name], values, rtol=1e-4, err_msg=name)
    kx.save(tmp_path / "fits.kx", streamed)
    loaded, new = kx.load(tmp_path / "fits.kx"), {**rows(seed=1), "u": rows(seed=1)["t"] + 1e6}
    for name, values in whole.predict(new).items():
        np.testing.assert_allclose(loaded.predict(new)[name], values, rtol=1e-6)
    np.testing.assert_allclose(loaded.loo_rmse(), whole.loo_rmse(), rtol=1e-4)
    for (x, y), (x_whole, y_whole) in zip(loaded.datasets([2, 0]), whole.datasets([2, 0]), strict=True):
        np.testing.assert_allclose(x, x_whole, atol=1e-8)
        np.testing.assert_allclose(y, y_whole, atol=1e-12)


def test_the_report_of_a_streamed_fit(pair):
    whole, streamed = map(kx.report, pair)
    assert streamed.title == whole.title
    entries, expected = (report.as_dict()["entries"]["noise"] for report in (streamed, whole))
    np.testing.assert_allclose(entries, expected, rtol=1e-4)
    page = streamed.to_html()
    assert page.count("<svg") == whole.to_html().count("<svg")
    assert "34 rows of" in page


@pytest.mark.parametrize("select", ["likelihood", "loo"])
def test_numbers_in_the_kernel_and_known_noise(tmp_path, select):
    path, words = written(tmp_path, ".csv", rows()), {"kernel": "rbf(lengthscale=2)", "columns": "t", "max_steps": 30}
    words |= {"select": select} | ({"noise": 0.04} if select == "likelihood" else {})
    whole, streamed = (
        tables.fit_table_many(path, **{**OPTIONS, **words}, stream=stream).table() for stream in (False, True)
    )
    for name in ("rbf.lengthscale", "rbf.variance", "noise"):
        np.testing.assert_allclose(streamed[name], whole[name], rtol=1e-4)


def test_a_file_is_read_in_pieces(tmp_path):
    """Its numbers never are in memory at the same time. Nothing is fitted, because the groups are too large."""
    n = 200_000
    columns = {name: np.random.default_rng(0).normal(size=n) for name in ("a", "b", "y")} | {"g": np.arange(n) // 25_000}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "long.parquet", row_group_size=20_000)
    peaks = []
    for stream in (False, True):
        tracemalloc.start()
        with pytest.raises(TableError, match="the largest group has 25000 rows"):
            tables.fit_table_many(tmp_path / "long.parquet", "y", "g", stream=stream)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] / 3


BAD = {
    "text": ("g,x,y\na,1,1\na,b,2\na,1,3\n", {}, r"column 'x' has 'b' in line 3, but numbers elsewhere"),
    "all text": (
        "g,x,y\na,b,1\na,c,2\n",
        {},
        r"column 'x' holds text or booleans, .*leave it out \(--drop x.* without --str",
    ),
    "booleans": ("g,x,y\na,true,1\na,false,2\n", {}, "column 'x' holds text or booleans"),
    "dates": ("g,x,y\na,2020-01-01,1\na,2020-01-02,2\n", {}, "column 'x' holds dates"),
    "target": ("g,x,y\na,1,b\na,2,c\n", {}, "column 'y' holds text .* numbers: write it as numbers, or fit without"),
    "missing": ("g,x,y\na,1,1\na,,2\n", {}, r"values are missing: column 'x' in line 3\. .*missing='drop'"),
    "no rows remain": ("g,x,y\na,,1\na,,2\n", {"missing": "drop"}, "every row lacks a value in 'x': no rows remain"),
    "one row": ("g,x,y\na,1,1\n", {}, "1 rows are not enough"),
    "apart": ("g,x,y\na,1,1\nb,,2\nb,1,2\na,1,3\n", {"missing": "drop"}, r"'a' begins again in line 5.*sort .* by 'g'"),
    "huge": ("g,x,y\na,1e200,1\na,2,2\n", {}, "column 'x' has values of about 1e.200: give it in other units"),
    "no column": ("g,x,y\na,1,1\n", {"columns": "z"}, "there is no column 'z'"),
    "no group": ("h,x,y\na,1,1\n", {}, "there is no column 'g'"),
    "categories": ("g,x,y\na,1,1\n", {"categories": "x"}, "categories cannot be used with --stream"),
    "sample": ("g,x,y\na,1,1\n", {"sample": 2}, "sample cannot be used with --stream"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_cannot_be_streamed(name, tmp_path):
    text, options, message = BAD[name]
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(TableError, match=message):
        tables.fit_table_many(tmp_path / "bad.csv", "y", "g", stream=True, **options)


def test_tables_in_memory_and_absent_files_are_not_streamed(tmp_path):
    with pytest.raises(TableError, match="stream=True is for files: give the path"):
        tables.fit_table_many(rows(), **OPTIONS, stream=True)
    with pytest.raises(TableError, match="there is no such file"):
        tables.fit_table_many(tmp_path / "absent.csv", **OPTIONS, stream=True)


def test_predictions_need_the_file_as_it_was(pair, tmp_path):
    streamed, new = dataclasses.replace(pair[1], source=str(tmp_path / "shops.csv")), {**rows(), "u": np.full(36, 1e6)}
    with pytest.raises(TableError, match=r"shops\.csv: there is no such file.*put it back, or fit again without --stream"):
        streamed.predict(new)
    written(tmp_path, ".csv", {name: values[1:] for name, values in rows().items()})
    with pytest.raises(TableError, match=r"where it had group '007' of 12 rows, it has group '007' of 11 rows\. Put"):
        streamed.predict(new)
    written(tmp_path, ".csv", {name: values[:24] for name, values in rows().items()})
    with pytest.raises(TableError, match="where it had group '2' of 11 rows, it has no more groups"):
        streamed.predict(new)


class Interrupted(ThreadPoolExecutor):
    def submit(self, *args, **options):
        raise KeyboardInterrupt


def test_after_an_interruption_every_group_has_its_name(tmp_path):
    path = written(tmp_path, ".csv", rows())
    stopped = tables.fit_table_many(path, **OPTIONS, stream=True, executor=Interrupted(1))
    assert stopped.fits.keys == ("007", "1", "2")
    assert set(stopped.fits.result_names) == {"interrupted"}
    assert len(stopped.datasets()) == 3
