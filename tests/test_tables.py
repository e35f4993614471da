"""Tables: columns with units, kernel expressions, fits and predictions in the table's units."""

import datetime
import itertools
import re
import subprocess
import sys

import duckdb
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from kernax import expressions, tables
from kernax.tables import Column, KernelExpressionError, TableError, parse_kernel

N = 24


def columns(seed=0):
    """A date, a number and a target, in units of their own."""
    rng = np.random.default_rng(seed)
    days = np.sort(rng.choice(3000, N, replace=False))
    dates = np.datetime64("2010-01-01") + days
    depth = 500 + 80 * rng.normal(size=N)
    y = 300 + 10 * np.sin(days / 600) + 0.05 * depth + rng.normal(size=N)
    return {"day": dates, "depth": depth, "level": y}


def write_csv(path, of, order=None):
    names = list(of) if order is None else order
    lines = [",".join(names), *(",".join(str(of[name][i]) for name in names) for i in range(N))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def path(folder):
    return write_csv(folder / "series.csv", columns())


@pytest.fixture(scope="module")
def fitted(path):
    return tables.fit_table(path, "level")


def raw(of):
    """The inputs as a plain reader of the documentation would make them."""
    days = (of["day"] - columns()["day"].min()).astype(float)
    return np.stack([days / 365.25, of["depth"]], axis=1)


def test_a_fit_is_that_of_kx_on_standardised_numbers(fitted, path):
    x, y = raw(columns()), columns()["level"]
    z, v = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    data = kx.Data(z, v)
    start = kx.initialise(kx.Model(1.0 * kx.Matern52(jnp.ones(2)), noise=0.1), data)
    c = kx.condition(kx.fit(start, data).model, data)
    new = columns(seed=1)
    z_new = (raw(new) - x.mean(0)) / x.std(0)
    mean, variance = kx.predict(c, z_new, noisy=True)[:2]
    answers = fitted.predict(new, level=0.9)
    assert list(answers) == ["mean", "sd", "lower", "upper"]
    np.testing.assert_allclose(answers["mean"], y.mean() + y.std() * np.asarray(mean), rtol=1e-6)
    np.testing.assert_allclose(answers["sd"], y.std() * np.sqrt(np.asarray(variance)), rtol=1e-4)
    np.testing.assert_allclose(answers["upper"] - answers["mean"], 1.6448536 * answers["sd"], rtol=1e-6)
    np.testing.assert_allclose(answers["mean"] - answers["lower"], 1.6448536 * answers["sd"], rtol=1e-6)
    function = fitted.predict(new, noisy=False)["sd"]
    noise = float(fitted.fit.model.noise) * y.std() ** 2
    np.testing.assert_allclose(answers["sd"] ** 2 - function**2, noise, rtol=1e-6)


def test_a_report_has_the_names_and_units_of_the_table(fitted):
    found = {parameter.name: parameter for parameter in kx.report(fitted).parameters}
    scale = fitted.fit.model.kernel.kernel.lengthscale
    depth = found["matern52.lengthscale[depth]"]
    assert (depth.value, depth.unit) == (pytest.approx(float(scale[1]) * columns()["depth"].std()), "depth")
    assert found["matern52.lengthscale[day (years)]"].unit == "day (years)"
    assert found["noise"].unit == "level²"


def test_numbers_in_a_kernel_are_in_the_units_of_the_table(path):
    text = "fixed(40.0 * rbf(lengthscale=[2.0, 60.0]) + 0.5)"
    fitted = tables.fit_table(path, "level", kernel=text, noise=0.7)
    x, y, new = raw(columns()), columns()["level"], columns(seed=1)
    kernel = 40.0 * sk.RBF([2.0, 60.0]) + sk.ConstantKernel(0.5)
    oracle = GaussianProcessRegressor(kernel, alpha=0.7, optimizer=None).fit(x, y - y.mean())
    mean, sd = oracle.predict(raw(new), return_std=True)
    answers = fitted.predict(new, noisy=False)
    np.testing.assert_allclose(answers["mean"], mean + y.mean(), rtol=1e-8)
    np.testing.assert_allclose(answers["sd"], sd, rtol=1e-6)
    assert int(fitted.fit.num_steps) == 0


def test_written_periods_are_where_the_fit_starts_and_fixed_ones_stay(path):
    text = 'periodic(period=fixed(1), columns="day") + linear(columns="depth")'
    fitted = tables.fit_table(path, "level", kernel=text)
    period = fitted.fit.model.kernel.kernels[0].kernel.kernel.period
    assert float(period) * fitted.columns[0].scale == pytest.approx(1.0, rel=1e-12)
    slope = fitted.fit.model.kernel.kernels[1].kernel.variance
    assert float(slope) != 1.0
    assert fitted.columns[0].unit == "years"
    assert fitted.columns[0].origin == str(columns()["day"].min())


def test_criteria_that_ignore_variances_are_given_some(path):
    fitted = tables.fit_table(path, "level", select="loo")
    c = fitted.conditioned()
    scores = np.asarray(kx.loo_residuals(c)) ** 2 / np.asarray(kx.loo_variance(c, noisy=True))
    assert np.mean(scores) == pytest.approx(1.0, rel=1e-6)
    assert any("variances" in note for note in fitted.notes)
    # The mean, and so what was minimised, is as it was.
    assert float(kx.loo_mse(c)) == pytest.approx(float(fitted.fit.value), rel=1e-6)
    assert float(fitted.fit.value) < 0.5


def test_files_of_every_kind_give_the_same_numbers(fitted, folder):
    of = columns()
    parquet = folder / "series.parquet"
    pyarrow.parquet.write_table(pyarrow.table({**of, "day": of["day"].astype("M8[us]")}), parquet)
    new = write_csv(folder / "other_order.csv", {**of, "extra": ["x"] * N}, order=["extra", "depth", "day"])
    want = fitted.predict(of)["mean"]
    np.testing.assert_array_equal(fitted.predict(str(parquet))["mean"], want)
    np.testing.assert_allclose(fitted.predict(new)["mean"], want, rtol=1e-12)


def test_a_saved_fit_predicts_the_same(fitted, folder):
    kx.save(folder / "model.kx", fitted)
    loaded = kx.load(folder / "model.kx")
    np.testing.assert_array_equal(loaded.predict(columns(seed=1))["sd"], fitted.predict(columns(seed=1))["sd"])
    assert loaded.columns == fitted.columns
    assert repr(loaded) == repr(fitted)


# Solvers


def series(n=1200):
    """One column of more rows than are called few, so that a solver is suggested."""
    t = np.linspace(0, 40, n)
    return {"t": t, "y": 5 + np.sin(t) + 0.1 * np.random.default_rng(0).normal(size=n)}


def test_a_suggested_solver_is_told_kept_and_used(tmp_path):
    of = series()
    model = "fixed(1 * matern32(lengthscale=2))"
    auto = tables.fit_table(of, "y", kernel=model, noise=0.01, solver="auto")
    plain = tables.fit_table(of, "y", kernel=model, noise=0.01)
    assert auto.fit.solver == kx.StateSpace()
    assert [note for note in auto.notes if note.startswith("solver StateSpace(): 1,200 rows in 1 column.")]
    assert plain.fit.solver == kx.Cholesky()
    assert plain.notes == ()
    kx.save(tmp_path / "auto.kx", auto)
    loaded = kx.load(tmp_path / "auto.kx")
    assert loaded.fit.solver == auto.fit.solver
    new = {"t": np.linspace(3, 45, 7)}
    np.testing.assert_allclose(loaded.predict(new)["sd"], plain.predict(new)["sd"], rtol=1e-6)
    assert loaded.conditioned().solver == kx.StateSpace()
    entries = [{entry.name: entry.text for entry in part.report().entries} for part in (loaded, plain)]
    assert [part.pop("solver") for part in entries] == ["kx.StateSpace()", "kx.Cholesky()"]
    assert entries[0]["leave-one-out RMSE"] == entries[1]["leave-one-out RMSE"]


def test_many_cycles_in_a_column_are_not_taken_for_noise():
    t = np.random.default_rng(0).uniform(0, 250, 400)
    of = {"t": t, "y": 5 + np.sin(t) + 0.3 * np.random.default_rng(1).normal(size=400)}
    found = tables.fit_table(of, "y", kernel="1 * matern52", solver="auto")
    assert found.fit.solver == kx.StateSpace()
    assert 0.15 < float(found.fit.model.noise) ** 0.5 * found.target.scale < 0.4
    # A value that was written is where the fit starts.
    given = tables.fit_table(of, "y", kernel="1 * matern52(lengthscale=70)", solver="state_space", max_steps=1)
    assert given.fit.start_values[0] > found.fit.start_values[0] + 100


def test_a_table_is_fitted_and_reported_with_vecchia(tmp_path):
    """With all rows as neighbours its numbers are those of the default."""
    of = {name: values[::30] for name, values in series().items()}
    options = {"kernel": "1 * matern32(lengthscale=2)", "noise": 0.01, "max_steps": 5}
    plain, near = (tables.fit_table(of, "y", solver=solver, **options) for solver in (None, "vecchia:neighbours=40"))
    assert near.fit.solver == kx.Vecchia(40)
    kx.save(tmp_path / "near.kx", near)
    loaded, new = kx.load(tmp_path / "near.kx"), {"t": np.linspace(3, 45, 7)}
    exact = kx.condition(near.fit.model, near.data)
    x = near.columns[0].standardised(new["t"])[:, None]
    np.testing.assert_allclose(loaded.predict(new, noisy=False)["sd"], near.target.scale * np.sqrt(kx.variance(exact, x)))
    entries = [{entry.name: entry.text for entry in part.report().entries} for part in (loaded, plain)]
    assert entries[0]["solver"] == "kx.Vecchia(neighbours=40)"
    assert set(entries[0]) == set(entries[1])


def test_a_suggestion_respects_the_criterion_and_few_rows():
    of = series()
    options = {"kernel": "fixed(1 * matern32(lengthscale=2))", "noise": 0.01, "solver": "auto"}
    assert tables.fit_table(of, "y", select="kfold", **options).fit.solver == kx.StateSpace()
    few = tables.fit_table({name: values[:40] for name, values in of.items()}, "y", **options)
    assert (few.fit.solver, few.notes) == (kx.Cholesky(), ())


def test_a_file_from_before_solvers_is_loaded(fitted, tmp_path):
    from kernax.io._file import pack, unpack

    kx.save(tmp_path / "before.kx", fitted)
    structure, arrays = unpack((tmp_path / "before.kx").read_bytes())
    del structure["value"]["fields"]["fit"]["fields"]["solver"]
    (tmp_path / "before.kx").write_bytes(pack(structure, arrays))
    loaded = kx.load(tmp_path / "before.kx")
    assert loaded.fit.solver is None
    np.testing.assert_array_equal(loaded.predict(columns(seed=1))["sd"], fitted.predict(columns(seed=1))["sd"])


@pytest.mark.parametrize(
    ("text", "solver"),
    [
        ("cholesky", kx.Cholesky()),
        (" Low_Rank : rank = 50 ", kx.LowRank(50)),
        ("cg:tolerance=1e-2,max_steps=70", kx.CG(tolerance=1e-2, max_steps=70)),
        ("eigh:max_jitter=1e-9", kx.Eigh(max_jitter=1e-9)),
        ("state_space", kx.StateSpace()),
        ("vecchia:neighbours=50,ordering=maxmin", kx.Vecchia(50, ordering="maxmin")),
    ],
)
def test_a_solver_from_text(text, solver):
    assert tables.parse_solver(text) == solver


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("low_rnk", r"there is no solver 'low_rnk'\. Did you mean 'low_rank'\? They are auto, cholesky, "),
        ("low_rank:ranks=5", r"no option 'ranks'\. Did you mean 'rank'\? .*its options are rank, tolerance, seed\."),
        ("state_space:rank=5", r"no option 'rank'\. Write state_space alone; it has no options\."),
        ("low_rank:rank", r"has no value: write low_rank:rank=200\."),
        ("low_rank:rank=many", r"needs a whole number for rank, got 'many': write low_rank:rank=200\."),
        ("low_rank:rank=0", r"solver 'low_rank:rank=0': LowRank\.rank must be a whole number of at least 1"),
    ],
)
def test_a_text_that_is_no_solver_is_told_what_to_write(text, says):
    with pytest.raises(TableError, match=says):
        tables.fit_table(columns(), "level", solver=text)


def test_a_table_whose_matrix_does_not_fit_is_refused_with_a_solver(monkeypatch):
    monkeypatch.setenv("KERNAX_MEMORY", "0.1")
    t = np.linspace(0, 40, 5000)
    with pytest.raises(MemoryError, match=r"5,000 rows takes 0\.75 GiB .*: write solver=kx\.StateSpace\(\)"):
        tables.fit_table({"t": t, "y": np.sin(t)}, "y")


def test_a_comparison_with_a_solver_has_the_numbers_of_the_default():
    of = {name: values[::30] for name, values in series().items()}
    plain, fast = (
        tables.compare_table(of, "y", methods="gp,krr_loo", kernel="matern32", folds=2, solver=solver)
        for solver in (None, "state_space")
    )
    for name in ("gp", "krr_loo"):
        scores = [next(row for row in answer.rows if row["method"] == name)["rmse"] for answer in (plain, fast)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-3)


@pytest.mark.parametrize(("span", "unit"), [(3 * 365, "years"), (300, "days"), (1.5, "hours"), (1 / 24 / 10, "seconds")])
def test_dates_are_counted_in_a_unit_that_suits_them(span, unit):
    start = datetime.datetime(2021, 3, 1, 6)
    times = [start + datetime.timedelta(days=span * i / 4) for i in range(5)]
    table = tables._read.as_table({"t": [time.isoformat() for time in times]})
    column, values, _ = tables._columns.fitted_column(table, "t")
    seconds = {"years": 365.25 * 86400, "days": 86400, "hours": 3600, "seconds": 1}[unit]
    assert (column.unit, column.origin) == (unit, "2021-03-01T06:00:00")
    np.testing.assert_allclose(values, [(t - start).total_seconds() / seconds for t in times], atol=1e-9)
    chosen, values, _ = tables._columns.fitted_column(table, "t", date_unit="hours")
    assert chosen.unit == "hours"
    assert values[-1] == pytest.approx(24 * span, abs=1e-9)
    assert chosen.shown(values[-1])[:10] == times[-1].isoformat()[:10]


def test_times_of_other_zones_are_the_same_moments():
    same = ["2020-06-01T12:00+02:00", "2020-06-01 10:00:00Z", "2020-06-01T06:00:00.000-0400"]
    table = tables._read.as_table({"t": [*same, "2020-06-01T11:00Z"]})
    column, values, notes = tables._columns.fitted_column(table, "t", date_unit="hours")
    np.testing.assert_allclose(values, [0, 0, 0, 1])
    assert column.kind == "zoned date"
    assert "UTC" in notes[0]
    naive = tables._read.as_table({"t": ["2020-06-01T11:00"]})
    with pytest.raises(TableError, match=r"without a time zone, but held times with a time zone.*give times with"):
        tables._columns.new_values(naive, column)


BAD = {
    "empty": ("", "the file is empty"),
    "no rows": ("a,y\n", "no rows"),
    "no header": ("1,2\n3,4\n", "holds numbers; it must contain column names"),
    "missing": ("a,y\n1,2\nNA,3\n4,\n,5\n", r"column 'a' in lines 3, 5; column 'y' in line 4\. .*--missing drop"),
    "many missing": ("a,y\n" + ",1\n" * 9, r"lines 2, 3, 4, 5, 6, … \(9 in all\)"),
    "text": ("a,y\n1,2\n2,3\nabc,4\n", r"column 'a' has 'abc' in line 4, but numbers elsewhere"),
    "decimal comma": ('a,y\n"1,5",2\n"2,5",3\n', r"'1,5' in lines 2, 3, which may be a decimal comma"),
    "thousands": ('a,y\n"1,500",2\n"2,500.5",3\n', "thousands separator"),
    "semicolons": ("a;y\n1,5;2\n", "separated by semicolons"),
    "double": ("a,a,y\n1,2,3\n", "several columns are called 'a'"),
    "ragged": ("a,y\n1,2\n3\n4,5,6\n", r"names 2 columns, but lines 3, 4 have 1 and other numbers of values"),
    "infinite": ("a,y\n1,2\n1e999,3\n", r"column 'a' is infinite in line 3"),
    "other dates": ("a,y\n31/01/2020,2\n01/02/2020,3\n", r"may be read in two ways: write dates as 2020-01-31"),
    "no such day": ("a,y\n2020-01-31,2\n2020-02-30,3\n2020-03-01,3\n", r"'2020-02-30' is not one, in line 3"),
    "mixed zones": ("a,y\n2020-01-31T00:00Z,2\n2020-02-01T00:00,3\n2020-02-03T00:00,3\n", r"line 2 have one: give all"),
    "quotes": ('a,y\n"1,2\n', "not a text table"),
    "bytes": (b"a,y\n\xff\xfe,1\n", "not UTF-8"),
    "one row": ("a,y\n1,2\n", "one row is not enough"),
    "all missing": ("a,y\n,2\n,3\n", "values are missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_a_table_is_told(name, tmp_path):
    text, message = BAD[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TableError, match=message) as raised:
        tables.fit_table(str(path), "y")
    assert "bad.csv" in str(raised.value)


def test_lines_are_those_of_the_file_whatever_is_in_its_rows(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text('\ufeff"a\nname",b,y\n\n1,"two\nlines",3\n   \n2,"x",-nan\n\n3, NaN ,4\n')
    read = tables.read_table(path)
    assert read.names == ["a\nname", "b", "y"]
    assert read.lines.tolist() == [4, 7, 9]
    missing = tables._values.missing_rows(read, read.names)
    assert {name: rows.tolist() for name, rows in missing.items()} == {"b": [2], "y": [1]}
    assert read.copied()["b"].tolist() == ["two\nlines", "x", " NaN "]
    with pytest.raises(TableError, match=r"column 'b' in line 9; column 'y' in line 7"):
        tables.fit_table(path, "y")
    read = tables.read_table(path)
    path.write_text("a,b,y\n1,2,3\n")
    assert read.lines is None  # the file is another one now
    assert read.taken(np.array([2])).places([0]) == "row 0 (counted from 0)"


def test_text_that_is_missing_is_the_same_in_every_kind_of_table(tmp_path):
    words = ["east", "NA", "n/a", "NaN", "-nan", "null", "None", "", "  ", "<NA>", "west"]
    of = {"word": words, "y": [float(i) for i in range(11)]}
    (tmp_path / "it.csv").write_text("word,y\n" + "".join(f"{word},{i}\n" for i, word in enumerate(words)))
    frame = pl.DataFrame(of)
    kinds = [of, pd.DataFrame(of), frame, frame.lazy(), frame.to_arrow(), duckdb.from_arrow(frame.to_arrow())]
    tables.write_table(tmp_path / "it.feather", {name: np.array(values, object) for name, values in of.items()})
    for kind in [*kinds, tmp_path / "it.csv", tmp_path / "it.feather"]:
        read = tables._read.as_table(kind)
        assert tables._values.missing_rows(read, ["word"])["word"].tolist() == list(range(1, 10))
        kept, _ = tables._values.without_missing(read, ["word"], "drop")
        assert tables._values.group_names(kept, "word") == ["east", "west"]
        np.testing.assert_array_equal(np.asarray(read.columns["y"], float), of["y"])


def test_lazy_frames_and_relations_are_tables(fitted):
    of = columns(seed=1)
    frame = pl.DataFrame(of)
    want = fitted.predict(of)["mean"]
    for kind in (frame.lazy(), duckdb.from_arrow(frame.to_arrow()), pyarrow.RecordBatchReader.from_stream(frame)):
        np.testing.assert_array_equal(fitted.predict(kind)["mean"], want)
    with pytest.raises(TypeError, match=r"table must be a pandas or polars frame, .*got int"):
        fitted.predict(3)


def test_rows_that_lack_a_value_can_be_dropped(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("a,b,y\n1,2,3\n2,,4\n\nnan,1,1\n4,5,null\n5,6,7\n6,7,9\n")
    read, kept = tables._values.without_missing(tables.read_table(path), ["a", "b", "y"], "drop")
    np.testing.assert_array_equal(kept, [0, 4, 5])
    assert read.lines.tolist() == [2, 7, 8]
    assert "3 of 6 rows dropped" in read.notes[0]
    with pytest.raises(TableError, match="missing must be 'error' or 'drop'"):
        tables._values.without_missing(tables.read_table(path), ["a"], "ignore")


def test_columns_are_found_by_name_and_near_names_are_told(fitted, path):
    for options, message in [
        ({"target": "levle"}, r"no column 'levle'\. Did you mean 'level'\?"),
        ({"target": "level", "columns": "Dept"}, r"no column 'Dept'\. Did you mean 'depth'\?"),
        ({"target": "level", "columns": ["depth", "level"]}, "'level' is the target"),
        ({"target": "level", "ignore": "day,depth"}, "no columns remain"),
        ({"target": "level", "select": "looo"}, r"select must be one of .* Did you mean 'loo'\?"),
        ({"target": "level", "date_unit": "weeks"}, "one of years, days, hours, seconds"),
    ]:
        with pytest.raises(TableError, match=message):
            tables.fit_table(path, **options)
    new = columns(seed=1)
    with pytest.raises(TableError, match=r"no column 'depth', with which the model was fitted\. Did you mean 'depths'\?"):
        fitted.predict({"day": new["day"], "depths": new["depth"]})
    with pytest.raises(TableError, match="'day' holds numbers, but held dates"):
        fitted.predict({**new, "day": np.arange(N)})
    with pytest.raises(ValueError, match="level must be a probability"):
        fitted.predict(new, level=95)


def test_rows_outside_of_the_training_range_are_told(fitted):
    new = columns()
    new["depth"] = new["depth"] + np.where(np.arange(N) < 3, 1e4, 0.0)
    _, _, notes = fitted.predict_rows(new)
    assert any("3 of 24 rows lie outside the training range of depth" in note for note in notes)


def test_too_many_rows_are_refused_or_drawn_from():
    table = tables._read.as_table({"a": np.arange(50.0), "y": np.arange(50.0) ** 2})
    with pytest.raises(TableError, match=r"50 rows are more than the 40 .* use fewer rows \(--sample 40"):
        tables._design.make_design(table, "y", most_rows=40)
    drawn = [tables._design.make_design(table, "y", tables._design.Reading(sample=10, seed=seed)) for seed in (0, 0, 1)]
    rows = [design.columns[0].restored(design.x[:, 0]) for design in drawn]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert rows[0].shape == (10,)
    assert set(np.round(rows[0])) != set(np.round(rows[2]))
    np.testing.assert_allclose(drawn[0].target.restored(drawn[0].y), rows[0] ** 2, atol=1e-9)
    assert "10 of 50 rows drawn at random" in drawn[0].notes


def test_durations_have_no_unit_to_guess():
    table = {"a": np.array([1, 2, 3], "m8[s]"), "y": [1.0, 2.0, 4.0]}
    with pytest.raises(TableError, match=r"column 'a' has '1 seconds' in rows 0, 1, 2 .*encode it as numbers"):
        tables.fit_table(table, "y")


def test_what_numpy_hides_is_missing_and_what_is_not_asked_for_may_be_anything():
    odd = {
        "hidden": np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]),
        "lists": np.array([[1], [2, 3], None], object),
        "na": [1, pd.NA, 3],
        "far": np.array(["12000-01-01", "2000-01-01", "2001-01-01"], "M8[us]"),
    }
    read = tables._read.as_table({**odd, "y": [1.0, 2.0, 4.0]})
    missing = tables._values.missing_rows(read, list(odd))
    assert {name: rows.tolist() for name, rows in missing.items()} == {"hidden": [1], "lists": [2], "na": [1]}
    with pytest.raises(TableError, match=r"column 'far' has days before the year 1 or after 9999 in row 0"):
        tables._values.read_values(read, "far")
    whole = pyarrow.table({"lists": [[1], [2, 3]], "x": [1.0, 2.0]})
    with pytest.raises(TableError, match=r"column 'lists' has '\[1\]' in rows 0, 1"):
        tables._values.read_values(tables._read.as_table(whole), "lists")
    assert tables._dates.microseconds("0001-01-01T00:00:00+05:00") is None


def test_text_becomes_numbers_in_a_parquet_file_only_if_nothing_is_lost(tmp_path):
    texts = {"id": ["007", "12"], "large": ["1152921504606846977", "1"], "some": ["1", None], "mixed": ["1", "2.5"]}
    columns = {name: np.array(values, object) for name, values in texts.items()}
    tables.write_table(tmp_path / "it.parquet", columns)
    assert pyarrow.parquet.read_table(tmp_path / "it.parquet").to_pydict() == {
        **texts,
        "some": [1, None],
        "mixed": [1.0, 2.5],
    }


def test_constant_columns_keep_their_scale():
    table = tables._read.as_table({"a": [3.0, 3.0], "y": [1.0, 2.0]})
    column, _, notes = tables._columns.fitted_column(table, "a")
    assert (column.centre, column.scale) == (3.0, 1.0)
    assert "is constant and has no effect" in notes[0]


X = jnp.asarray(np.random.default_rng(3).normal(size=(5, 2)))
SAME = {
    "rbf": 1.0 * kx.RBF(),
    "RBF(lengthscale=2) + Matern_32": 1.0 * kx.RBF(2.0) + 1.0 * kx.Matern32(),
    "2.5 * rbf * periodic(period=1/2, lengthscale=3)": 2.5 * kx.RBF() * kx.Periodic(3.0, 0.5),
    "rbf + 3": 1.0 * kx.RBF() + 3.0,
    "2 * (rbf + linear) * matern12": (2.0 * kx.RBF() + kx.Linear(2.0)) * kx.Matern12(),
    "(rbf + 1) ** 2": 1.0 * (1.0 * kx.RBF() + 1.0) ** 2,
    "select(rbf, 1) + rbf(columns=[0])": kx.Select(1.0 * kx.RBF(), 1) + 1.0 * kx.Select(kx.RBF(), 0),
    "select(rbf * linear, [1]) * rq(alpha=2)": 1.0 * kx.Select(kx.RBF() * kx.Linear(), 1) * kx.RationalQuadratic(1.0, 2.0),
    "polynomial(degree=3, offset=0.5)": 1.0 * kx.Polynomial(3, offset=0.5),
    "arccosine(order=2) + nngp(depth=2, activation='erf')": 1.0 * kx.ArcCosine(2) + 1.0 * kx.NNGP(2, kx.kernels.Erf()),
    "NTK + cosine(period=[1, 2])": 1.0 * kx.NTK() + 1.0 * kx.Cosine(jnp.array([1.0, 2.0])),
    "2 * thinplate + cubicspline": 2.0 * kx.ThinPlate() + 1.0 * kx.CubicSpline(),
    "sho(period=2, quality=3, columns=[0])": 1.0 * kx.Select(kx.kernels.SHO(2.0, 3.0), 0),
    "select(periodic(harmonics=25), 0)": 1.0 * kx.Select(kx.Periodic(harmonics=25), 0),
    "matern52(lengthscale=[1, 2])": 1.0 * kx.Matern52(jnp.array([1.0, 2.0])),
    "constant(variance=4) * linear(variance=2)": 1.0 * kx.Constant(4.0) * kx.Linear(2.0),
}


@pytest.mark.parametrize("text", SAME)
def test_expressions_are_the_kernels_that_they_say(text):
    with jax.disable_jit():
        np.testing.assert_allclose(parse_kernel(text, 2).gram(X, None), SAME[text].gram(X, None), rtol=1e-12, atol=1e-12)


def bell(a, b):
    return np.exp(-0.5 * ((a - b) / 3.0) ** 2)


HELD = {
    "fixed(constant(variance=4) * rbf(lengthscale=3))": lambda a, b: 4 * bell(a, b),
    "fixed((6 * rbf(lengthscale=3)) ** 2)": lambda a, b: 36 * bell(a, b) ** 2,
    "fixed((2 * rbf(lengthscale=3) + 1) ** 2)": lambda a, b: (2 * bell(a, b) + 1) ** 2,
    "fixed(linear(variance=0.5) * rbf(lengthscale=3))": lambda a, b: 0.5 * (a - 4.5) * (b - 4.5) * bell(a, b),
}


@pytest.mark.parametrize("text", HELD)
def test_numbers_that_are_held_are_those_that_were_written(text):
    """Against NumPy in the table's own units; inputs and targets are centred, and nothing else."""
    t, kernel = np.arange(10.0), HELD[text]
    y = 300 + 20 * np.sin(t)
    weights = np.linalg.solve(kernel(t[:, None], t) + 0.5 * np.eye(10), y - y.mean())
    new = np.array([1.5, 8.2, 12.0])
    got = tables.fit_table({"t": t, "y": y}, "y", kernel=text, noise=0.5).predict({"t": new})["mean"]
    np.testing.assert_allclose(got, y.mean() + kernel(new[:, None], t) @ weights, rtol=1e-9)


def test_a_variance_alone_can_be_held():
    built = expressions.build_kernel("fixed(2) * rbf + 3 * matern32 + fixed(5) * linear + fixed(4)", 1)
    kernel, held = built.kernel, built.tree(built.held)
    assert [float(k.variance) for k in kernel.kernels] == [2.0, 3.0, 5.0, 4.0]
    assert [k.variance for k in held.kernels] == [True, False, True, True]
    assert not held.kernels[0].kernel.lengthscale
    with pytest.raises(KernelExpressionError, match="write it before each term"):
        parse_kernel("fixed(2) * (rbf + linear)")


def test_several_columns_have_a_lengthscale_each_unless_told_otherwise():
    assert parse_kernel("rbf", 3).kernel.lengthscale.shape == (3,)
    assert parse_kernel("rbf(ard=False)", 3).kernel.lengthscale.shape == ()
    assert parse_kernel("rbf(lengthscale=2)", 3).kernel.lengthscale.shape == ()
    assert parse_kernel("rbf", 1).kernel.lengthscale.shape == ()


def test_units_of_columns_are_those_of_the_expression():
    t = Column("t", "date", "years", "2020-01-01", 5.0, 4.0)
    p = Column("p", "number", None, None, 0.0, 10.0)
    kernel = parse_kernel('50 * periodic(period=1, columns="t") + linear(variance=[3, 7])', [t, p], target_scale=5.0)
    assert float(kernel.kernels[0].variance) == 2.0
    assert float(kernel.kernels[0].kernel.kernel.period) == 0.25
    np.testing.assert_allclose(kernel.kernels[1].variance, [3 * 16 / 25, 7 * 100 / 25])
    with pytest.raises(KernelExpressionError, match=r"one number for columns in different units \(t in years, p in its own"):
        parse_kernel("rbf(lengthscale=2)", [t, p])
    with pytest.raises(KernelExpressionError, match=r"no column 'tt' here\. Did you mean 't'\?"):
        parse_kernel('rbf(columns="tt")', [t, p])


WRONG = {
    "1e200 * rbf * 1e200": ("this number is not finite", 0),
    "rbf + perodic(period=1)": (r"no kernel 'perodic'\. Did you mean 'periodic'\?", 6),
    "rbf(lenghtscale=1)": (r"Did you mean 'lengthscale'\? rbf takes lengthscale, ard, columns", 0),
    "__import__('os').system('x')": ("only kernels, numbers", 0),
    "rbf.lengthscale": ("only kernels, numbers", 0),
    "eval('1')": ("name this", 5),
    "open": ("no kernel 'open'", 0),
    "rbf - linear": ("a difference or quotient is not a kernel", 0),
    "rbf ** 2.5": ("whole number from 1 to 20", 7),
    "rbf ** 100": ("whole number from 1 to 20", 7),
    "rbf(lengthscale=-1)": ("lengthscale must be positive", 0),
    "rbf(lengthscale=[1, 2, 3])": ("3 numbers for 2 columns", 0),
    "rbf * cubicspline": ("only conditionally definite", 0),
    "polynomial(degree=1e9)": ("degree is a whole number", 0),
    "thinplate(order=1)": ("raise the order", 0),
    "rbf(lengthscale=1e999)": ("not finite", 16),
    "rbf(lengthscale=9**9**9**9)": ("not finite", 19),
    "rbf +": ("not a kernel expression", 5),
    "-2 * rbf": ("a variance is a positive number", 0),
    "3": ("a number is not a kernel", 0),
    "rbf if 1 else linear": ("only kernels", 0),
    "[rbf for x in y]": ("only kernels", 0),
    "(" * 60 + "rbf" + ")" * 60: ("nested more than 40", 40),
    "rbf(**{'a': 1})": ("stars have no meaning", 6),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_expression_is_pointed_at(text):
    message, at = WRONG[text]
    with pytest.raises(KernelExpressionError, match=message) as raised:
        parse_kernel(text, 2)
    line, caret = str(raised.value).split("\n")[1:]
    assert line.strip() in text
    assert caret.index("^") - 2 == at


def test_huge_expressions_are_refused():
    for text in ("rbf+" * 5000 + "rbf", "+".join(["rbf"] * 390), "-" * 1900 + "1", ""):
        with pytest.raises(KernelExpressionError):
            parse_kernel(text)


PIECES = [
    "rbf",
    "linear",
    "matern32",
    "periodic(period=1)",
    "select",
    "fixed",
    "2",
    "1.5",
    "(",
    ")",
    "+",
    "*",
    "**",
    ",",
    "=",
]
PIECES += [
    "[0]",
    "columns",
    "lengthscale",
    "'t'",
    ".",
    "__class__",
    "lambda",
    ":",
    "é",
    "\x00",
    "constant",
    "cubicspline",
    "-",
    "/",
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)))
def test_any_text_is_a_kernel_or_refused(text):
    try:
        kernel = parse_kernel(text, 2)
    except KernelExpressionError:
        return
    assert isinstance(kernel, kx.AbstractKernel)


def groups_table(seed=0):
    rng = np.random.default_rng(seed)
    shop = np.repeat([3, 1, 2], 12)
    t = rng.uniform(0, 10, 36)
    return {"shop": shop, "t": t, "sales": 100 * shop + 5 * np.sin(t) + 0.2 * rng.normal(size=36)}


@pytest.fixture(scope="module")
def many():
    return tables.fit_table_many(groups_table(), "sales", "shop", kernel="rbf")


def test_many_fits_predict_each_with_its_own_model(many):
    of, new = groups_table(), groups_table(seed=1)
    s = np.std(of["sales"])
    z, y = (of["t"] - of["t"].mean()) / of["t"].std(), (of["sales"] - of["sales"].mean()) / s
    answers = many.predict(new)
    for name in (1, 3):
        rows, wanted = of["shop"] == name, new["shop"] == name
        model = many.fits[str(name)].model
        K = float(model.kernel.variance) * np.exp(
            -0.5 * ((z[rows, None] - z[None, rows]) / float(model.kernel.kernel.lengthscale)) ** 2
        )
        z_new = (new["t"][wanted] - of["t"].mean()) / of["t"].std()
        cross = float(model.kernel.variance) * np.exp(
            -0.5 * ((z_new[:, None] - z[None, rows]) / float(model.kernel.kernel.lengthscale)) ** 2
        )
        level = float(model.mean.value)
        alpha = np.linalg.solve(K + float(model.noise) * np.eye(rows.sum()), y[rows] - level)
        mean = (cross @ alpha + level) * s + of["sales"].mean()
        np.testing.assert_allclose(answers["mean"][wanted], mean, rtol=1e-6)
    with pytest.raises(TableError, match=r"column 'shop' has '7' in rows 0, .*a group that the model does not know"):
        many.predict({**new, "shop": np.full(36, 7)})


def test_the_table_of_many_fits_is_in_the_units_of_the_table(many):
    """Its numbers and the rows as they are give the same leave-one-out errors, by refits in plain NumPy."""
    of, table = groups_table(), many.table()
    for i, name in enumerate(table["dataset"]):
        t, y = (of[column][of["shop"] == int(name)] for column in ("t", "sales"))
        K = table["rbf.variance"][i] * np.exp(-0.5 * ((t[:, None] - t) / table["rbf.lengthscale"][i]) ** 2)
        K += table["noise"][i] * np.eye(12)
        left_out = []
        for row in range(12):
            others = np.arange(12) != row
            weights = np.linalg.solve(K[np.ix_(others, others)], K[others, row])
            level = table["mean.value"][i]
            left_out.append(y[row] - level - weights @ (y[others] - level))
        np.testing.assert_allclose(many.loo_rmse()[i], np.sqrt(np.mean(np.square(left_out))), rtol=1e-6)
    quartiles = kx.report(many).as_dict()["entries"]["noise"]
    np.testing.assert_allclose(quartiles, np.quantile(table["noise"], (0.25, 0.5, 0.75)))


def test_intervals_of_many_fits_hold_what_they_say_whatever_chose_the_mean():
    rng = np.random.default_rng(0)
    of = {"g": np.repeat(np.arange(8), 25), "t": rng.uniform(0, 10, 200)}
    of["y"] = 50 + 3 * np.sin(of["t"] + of["g"]) + rng.normal(size=200)
    many = tables.fit_table_many(of, "y", "g", kernel="rbf", select="loo", max_steps=40)
    new = {"g": np.repeat(np.arange(8), 50), "t": rng.uniform(1, 9, 400)}
    y = 50 + 3 * np.sin(new["t"] + new["g"]) + rng.normal(size=400)
    answers = many.predict(new)
    assert 0.85 < np.mean((answers["lower"] < y) & (y < answers["upper"])) < 0.99
    assert any("scaled so that leave-one-out errors" in note for note in many.notes)


def test_a_group_of_one_row_has_no_predictions():
    of = groups_table()
    lonely = {name: np.append(values, last) for (name, values), last in zip(of.items(), (9, 1.0, 5.0), strict=True)}
    many = tables.fit_table_many(lonely, "sales", "shop", kernel="rbf", max_steps=5)
    assert "1 of 4 groups have fewer than 2 rows: nothing is predicted for them" in many.notes
    answers, _, notes = many.predict_rows({"shop": np.array([9, 1]), "t": np.array([1.0, 2.0])})
    assert np.isnan(answers["mean"][0])
    assert np.isfinite(answers["sd"][1])
    assert any("1 rows belong to groups whose fit failed" in note for note in notes)


def test_many_fits_have_a_solver_and_take_numbers_only(tmp_path):
    of = groups_table()
    held = {"kernel": "fixed(25 * matern32(lengthscale=2))", "max_steps": 3}
    plain, fast = (tables.fit_table_many(of, "sales", "shop", solver=solver, **held) for solver in (None, "state_space"))
    assert fast.solver == kx.StateSpace()
    kx.save(tmp_path / "fast.kx", fast)
    loaded, new = kx.load(tmp_path / "fast.kx"), groups_table(seed=1)
    np.testing.assert_allclose(loaded.predict(new)["sd"], plain.predict(new)["sd"], rtol=1e-5)
    np.testing.assert_allclose(loaded.loo_rmse(), plain.loo_rmse(), rtol=1e-5)
    without = tables.fit_table_many(of, "sales", "shop", solver="cg:num_probes=2", **held)
    assert np.isnan(without.loo_rmse()).all()
    for target in (of["sales"] > 200, np.where(of["sales"] > 200, "yes", "no").astype(object)):
        with pytest.raises(TableError, match=r"column 'sales' has '.*' in rows 0, .*the target must be a number here"):
            tables.fit_table_many({**of, "sales": target}, "sales", "shop")


def test_units_inside_products_and_powers():
    """Each number of a kernel that is held is told as it was written."""
    of = {"t": np.arange(12.0), "y": 500 + 100 * np.sin(np.arange(12.0))}
    text = "fixed(1000 * (rbf(lengthscale=7) + 2) * (1 * rbf(lengthscale=9) + 3) + (20 * rbf(lengthscale=3)) ** 2)"
    told = [(p.value, p.unit) for p in kx.report(tables.fit_table(of, "y", kernel=text, noise=1.0)).parameters]
    product = [(7.0, "t"), (1000.0, "y²"), (2000.0, "y²"), (9.0, "t"), (1.0, ""), (3.0, "")]
    power, noise = [(3.0, "t"), (20.0, ""), (1.0, "y²")], [(1.0, "y²")]
    for found, expected in zip(told, product + power + noise, strict=True):
        assert found == (pytest.approx(expected[0]), expected[1])


def test_names_of_groups_stay_apart_and_are_the_same_in_every_file():
    large = [2**60 + 1, 2**60 + 2, None]
    whole = {"pandas": pd.Series(large[:2]), "nullable": pd.Series(large, dtype="Int64")}
    frames = [pd.DataFrame({"g": values}) for values in whole.values()] + [pl.DataFrame({"g": large})]
    for frame in [*frames, pyarrow.table({"g": large}), {"g": large}]:
        read = tables._read.as_table(frame)
        kept, _ = tables._values.without_missing(read, ["g"], "drop")
        assert tables._many.group_names(kept, "g") == ["1152921504606846977", "1152921504606846978"]
    days = np.array(["2020-01-01", "2020-01-01T12:30"], "M8[us]")
    for values, names in [
        (np.array([3.0, 2.5]), ["3", "2.5"]),
        (np.array(["3.0", "2.5"], object), ["3", "2.5"]),
        (days, ["2020-01-01", "2020-01-01T12:30:00"]),
        (np.array(["2020-01-01T00:00:00", "2020-01-01T12:30:00"], object), ["2020-01-01", "2020-01-01T12:30:00"]),
    ]:
        assert tables._many.group_names(tables._read.Table({"g": values}, "it"), "g") == names


def test_many_fits_come_back_from_a_file(many, tmp_path):
    kx.save(tmp_path / "fits.kx", many)
    with pytest.raises(TypeError, match="needs its targets to predict"):
        kx.save(tmp_path / "without.kx", many, targets=False)
    loaded = kx.load(tmp_path / "fits.kx")
    text = {"shop": np.array(["2", "1"], object), "t": np.array([1.0, 2.0])}
    number = {"shop": np.array([2.0, 1.0]), "t": np.array([1.0, 2.0])}
    np.testing.assert_array_equal(loaded.predict(text)["mean"], many.predict(number)["mean"])


def test_a_comparison_leaves_the_same_rows_out_for_all():
    of = columns()
    x, y = np.stack([raw(of)[:, 0], of["depth"]], axis=1), of["level"]
    answer = tables.compare_table(of, "level", folds=N, methods="mean,least_squares")
    rows = {row["method"]: row for row in answer.rows}
    design = np.column_stack([np.ones(N), x])
    hat = design @ np.linalg.solve(design.T @ design, design.T)
    residuals = (y - hat @ y) / (1 - np.diag(hat))
    assert rows["least_squares"]["rmse"] == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-8)
    assert rows["least_squares"]["mae"] == pytest.approx(np.mean(np.abs(residuals)), rel=1e-8)
    assert rows["mean"]["rmse"] == pytest.approx(np.std(y) * N / (N - 1), rel=1e-10)
    assert 0.8 <= rows["mean"]["coverage"] <= 1.0


def test_a_method_that_fails_says_why_and_the_others_go_on():
    of = {**columns(), "flat": np.ones(N)}
    answer = tables.compare_table(of, "level", folds=2, methods=["least_squares", "gp"], kernel="linear")
    rows = {row["method"]: row for row in answer.rows}
    assert rows["least_squares"]["rmse"] is None
    assert "rank_deficient" in rows["least_squares"]["status"]
    assert rows["gp"]["status"] == "ok"
    assert rows["gp"]["nlpd"] is not None
    with pytest.raises(TableError, match=r"no method 'laso'\. Did you mean 'lasso'\?"):
        tables.compare_table(of, "level", methods="laso")


def test_two_values_are_classes():
    rng = np.random.default_rng(5)
    x = rng.normal(size=N)
    of = {"x": x, "kind": np.where(x > 0.1, "yes", "no").astype(object)}
    answer = tables.compare_table(of, "kind", folds=3, methods="majority,adaboost")
    rows = {row["method"]: row for row in answer.rows}
    assert answer.task == "classification"
    assert rows["adaboost"]["error_rate"] < 0.3 < rows["majority"]["error_rate"] + 0.2
    assert rows["majority"]["error_rate"] == pytest.approx(np.mean(x > 0.1) if np.mean(x > 0.1) < 0.5 else np.mean(x <= 0.1))
    assert answer.notes == ("target 'kind': 2 classes ('no', 'yes')",)


def test_several_classes_are_compared_and_progress_is_told():
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 9, N)
    of = {"x": x, "kind": np.array(["low", "mid", "high"], object)[np.digitize(x, [3, 6])]}
    told, ended = [], []
    answer = tables.compare_table(
        of,
        "kind",
        folds=3,
        kernel="fixed(9 * rbf(lengthscale=2))",
        tell=lambda *step: told.append(step),
        finished=ended.append,
    )
    rows = {row["method"]: row for row in answer.rows}
    assert [row["method"] for row in ended] == ["majority", "gpc"]
    assert told[:4] == [("majority (1 of 2)", done, 3) for done in range(4)]
    assert told[4] == ("gpc (2 of 2)", 0, 3)
    assert answer.notes == ("target 'kind': 3 classes ('high', 'low', 'mid')",)
    assert rows["gpc"]["error_rate"] < 0.25 < rows["majority"]["error_rate"]
    assert rows["gpc"]["log_loss"] < rows["majority"]["log_loss"]
    numbered = {"x": x, "kind": np.digitize(x, [3, 6])}
    again = tables.compare_table(numbered, "kind", task="classification", folds=3, methods="majority")
    assert again.rows[0]["error_rate"] == rows["majority"]["error_rate"]
    assert tables.compare_table(numbered, "kind", folds=3, methods="mean").task == "regression"


def test_tables_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.csv"
    tables.write_table(path, {"a": np.array([1.5, np.nan]), "b": np.array(["x, y", None], object)})
    assert path.read_text() == 'a,b\n1.5,"x, y"\n,\n'
    with pytest.raises(ValueError):
        tables.write_table(path, {"a": np.zeros(2), "b": np.zeros(3)})
    assert path.read_text() == 'a,b\n1.5,"x, y"\n,\n'
    assert [file.name for file in tmp_path.iterdir()] == ["out.csv"]
    tables.write_table(tmp_path / "out.feather", {"a": np.array([1.5, 2.0])})
    assert tables.read_table(tmp_path / "out.feather").columns["a"].tolist() == [1.5, 2.0]
    with pytest.raises(TableError, match=r"tables are written as \.csv, .*\.feather or \.arrow"):
        tables.write_table(tmp_path / "out.xlsx", {"a": np.zeros(2)})
    tables.write_table(tmp_path / "out.parquet", {"a": np.array(["1", "2.5"], object), "b": np.array(["x", "1"], object)})
    back = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert back == {"a": [1.0, 2.5], "b": ["x", "1"]}


def test_tables_need_no_extra():
    code = (
        "import sys\n"
        "absent = 'pyarrow', 'narwhals', 'typer', 'rich', 'matplotlib', 'tqdm', 'pandas', 'sklearn'\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from kernax import tables\n"
        "print(tables.parse_kernel('rbf').variance)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1.0"


def test_messages_name_no_more_than_a_few_lines():
    table = tables.Table({"a": np.arange(100)}, "f.csv", np.arange(2, 102))
    assert table.places(range(100)) == "lines 2, 3, 4, 5, 6, … (100 in all)"
    assert table.places([4]) == "line 6"
    assert re.fullmatch(r"rows 1, 2 \(counted from 0\)", tables.Table({"a": np.arange(9)}, "x").places([1, 2]))
    assert all(len(line) < 200 for line in itertools.chain([table.places(range(100))]))


def test_frames_in_frames_out():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": np.repeat(["a", "b"], 12), "day": np.tile(np.arange(12.0), 2)})
    frame["sales"] = np.sin(frame.day) + 0.1 * rng.normal(size=24)
    options = {"target": "sales", "by": "shop", "columns": ["day"]}
    answer = frame.groupby("shop", group_keys=False)[["shop", "day", "sales"]].apply(
        lambda own: tables.fit_frame(own, **options)
    )
    assert answer.dataset.tolist() == ["a", "b"]
    alone = tables.fit_table_many(frame[frame.shop == "b"], **options).table()
    assert answer.value.tolist()[1] == alone["value"][0]
    schema = tables.frame_schema(frame[frame.shop == "a"], **options)
    assert schema.startswith("`dataset` string, `rows` int, `result` string, `value` double")
    assert [part.split("`")[1] for part in schema.split(", ")] == list(answer.columns)


def test_groups_of_frames_with_too_few_rows_have_a_status():
    """An exception would end a job on a cluster. One group in a frame or several, and also if rows are dropped."""
    frame = pd.DataFrame({"shop": list("baaaaac"), "day": np.arange(7.0), "sales": np.arange(7.0) ** 2})
    options = {"target": "sales", "by": "shop", "columns": ["day"], "max_steps": 5}
    together = tables.fit_frame(frame, **options)
    assert together.dataset.tolist() == ["b", "a", "c"]
    assert together.rows.tolist() == [1, 5, 1]
    assert (together.result == "too_few_rows").tolist() == [True, False, True]
    assert together.noise.isna().tolist() == [True, False, True]
    alone = tables.fit_frame(frame[:1], **options)
    pd.testing.assert_frame_equal(alone, together[:1])
    assert tables.frame_schema(frame[:1], **options) == tables.frame_schema(frame, **options)
    frame.loc[[0, 2], "sales"] = np.nan
    dropped = tables.fit_frame(frame, missing="drop", **options)
    assert dropped.rows.tolist() == [0, 4, 1]
    pd.testing.assert_frame_equal(tables.fit_frame(frame[:1], missing="drop", **options), dropped[:1])
    with pytest.raises(tables.TableError, match="values are missing: column 'sales'"):
        tables.fit_frame(frame[:1], **options)


def test_frames_of_dates_need_a_unit():
    """Each group would choose its own: days for 20 days, years for 20 years."""
    day = pd.to_datetime(["2024-01-01", "2024-01-09", "2024-01-20", "2001-01-01", "2010-01-01", "2021-01-01"])
    frame = pd.DataFrame({"shop": list("aaabbb"), "day": day, "sales": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]})
    options = {"target": "sales", "by": "shop", "columns": ["day"], "max_steps": 1}
    for function in (tables.fit_frame, tables.frame_schema):
        with pytest.raises(tables.TableError, match=r"column 'day' has dates, .* give date_unit='years' or 'days' or"):
            function(frame[:3], **options)
    together = tables.fit_frame(frame, date_unit="days", **options)
    apart = [tables.fit_frame(own, date_unit="days", **options) for _, own in frame.groupby("shop")]
    # Standardised apart: the lengthscale in days of a group is not that of the table, but has the same unit.
    assert list(apart[0].columns) == list(together.columns)
    assert apart[1]["matern52.lengthscale"][0] / apart[0]["matern52.lengthscale"][0] > 100
