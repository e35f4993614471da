"""The command line, through its public commands: what it writes, what it says, how it ends."""

import html.parser
import json
import os
import signal
import subprocess
import sys

import equinox as eqx
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.stats
from typer.testing import CliRunner

import kernax as kx
from kernax import tables
from kernax.cli import app
from tests.test_tables import N, columns, groups_table, write_csv

runner = CliRunner()


def call(*words, code=0):
    """The result of a command that is to end with this code, and never with a traceback."""
    done = runner.invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def data(folder):
    return write_csv(folder / "series.csv", columns())


@pytest.fixture(scope="module")
def new(folder):
    return write_csv(folder / "new.csv", columns(seed=1), order=["depth", "day"])


@pytest.fixture(scope="module")
def model(folder, data):
    path = folder / "model.kx"
    done = call("fit", data, "--target", "level", "-o", path)
    assert "years since" in done.stdout
    assert "day: years since" in done.stderr
    assert "matern52" not in done.stderr
    return path


def read(path):
    lines = path.read_text().splitlines()
    cells = [line.split(",") for line in lines[1:]]
    return {name: [row[i] for row in cells] for i, name in enumerate(lines[0].split(","))}


def test_fit_and_predict_are_fit_table_and_predict(model, new, folder, data):
    out = folder / "out.csv"
    done = call("predict", model, new, "-o", out, "--level", "0.8")
    assert "24 predictions of level" in done.stdout
    got = read(out)
    assert list(got) == ["depth", "day", "mean", "sd", "lower", "upper"]
    want = tables.fit_table(data, "level").predict(columns(seed=1), level=0.8)
    for name, values in want.items():
        np.testing.assert_allclose(np.array(got[name], float), values, rtol=1e-9)
    printed = call("predict", model, new, "--only", "--level", "0.8").stdout
    assert printed == call("predict", model, new, "--only", "--level", "0.8", "-o", "-").stdout
    rows = [line.split(",") for line in printed.splitlines()]
    assert rows[0] == ["mean", "sd", "lower", "upper"]
    np.testing.assert_array_equal([row[0] for row in rows[1:]], got["mean"])


def test_predictions_as_parquet_and_json(model, new, folder):
    out = folder / "out.parquet"
    call("predict", model, new, "-o", out, "--function", "--prefix", "f_")
    table = pyarrow.parquet.read_table(out).to_pydict()
    assert list(table) == ["depth", "day", "f_mean", "f_sd", "f_lower", "f_upper"]
    answer = json.loads(call("predict", model, new, "--json", "--function").stdout)
    np.testing.assert_array_equal(answer["columns"]["sd"], table["f_sd"])
    assert answer["rows"] == N


def test_json_of_a_fit_is_one_object_and_nothing_else(data, folder):
    done = call("fit", data, "-t", "level", "-o", folder / "j.kx", "--json")
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    assert answer["result"] == "successful"
    assert [column["name"] for column in answer["columns"]] == ["day", "depth", "level"]
    assert answer["columns"][0]["unit"] == "years"
    loaded = kx.load(folder / "j.kx")
    assert answer["noise_sd"] == pytest.approx(float(loaded.fit.model.noise) ** 0.5 * loaded.target.scale)
    assert answer["loo_rmse"] == pytest.approx(float(kx.loo_mse(loaded.conditioned())) ** 0.5 * loaded.target.scale)


def test_a_solver_is_chosen_said_and_used_by_every_command(folder):
    t = np.linspace(0, 40, 1500)
    tables.write_table(folder / "long.csv", {"t": t, "y": np.sin(t)})
    words = ("fit", folder / "long.csv", "-t", "y", "-k", "fixed(1 * matern32(lengthscale=2))", "--noise", "0.01")
    done = call(*words, "-o", folder / "long.kx")
    assert "note: solver StateSpace(): 1,500 rows in 1 column." in done.stderr
    assert "Choose another with --solver" in done.stderr
    assert "kx.StateSpace()" in done.stdout
    call("predict", folder / "long.kx", folder / "long.csv", "-o", folder / "auto.csv", "--only")
    # Without leave-one-out predictions there are fewer numbers and pictures.
    answer = json.loads(call(*words, "-o", folder / "cg.kx", "--solver", "cg:num_probes=2", "--json").stdout)
    assert answer["solver"] == "kx.CG(num_probes=2)"
    assert answer["loo_rmse"] is None
    call("predict", folder / "cg.kx", folder / "long.csv", "-o", folder / "cg.csv", "--only")
    auto, cg = (np.array(read(folder / f"{name}.csv")["mean"], float) for name in ("auto", "cg"))
    np.testing.assert_allclose(auto, cg, atol=1e-4)
    pages = []
    for name in ("long", "cg"):
        call("report", folder / f"{name}.kx", "-o", folder / f"{name}.html")
        pages.append(Page((folder / f"{name}.html").read_text()))
    assert [page.tags.count("svg") for page in pages] == [4 + 1 + 1, 1]  # one solver offers rows left out
    assert any("solver StateSpace()" in text for text in pages[0].text)


def test_a_matrix_that_does_not_fit_ends_with_1_and_a_solver(folder, monkeypatch):
    monkeypatch.setenv("KERNAX_MEMORY", "0.1")
    t = np.linspace(0, 40, 5000)
    tables.write_table(folder / "longer.csv", {"t": t, "y": np.sin(t)})
    done = call("fit", folder / "longer.csv", "-t", "y", "--solver", "cholesky", "-o", folder / "x.kx", code=1)
    assert "5,000 rows takes 0.75 GiB of memory, and 0.1 GiB are available" in done.stderr
    assert "--solver auto" in done.stderr


def test_an_interrupted_fit_resumes_from_a_folder(data, tmp_path, monkeypatch):
    from kernax.fitting import _lanes

    advance, calls = _lanes._advance, []
    monkeypatch.setattr(_lanes, "_advance", lambda *given: (calls.append(1), advance(*given))[1])
    words = ("fit", data, "-t", "level", "--max-steps", 4, "--checkpoint", tmp_path / "kept")
    call(*words, "-o", tmp_path / "first.kx")
    assert calls
    calls.clear()
    call(*words, "-o", tmp_path / "second.kx")
    assert not calls  # nothing is computed again
    first, second = (float(kx.load(tmp_path / f"{name}.kx").fit.value) for name in ("first", "second"))
    assert first == second


def test_forecasts_leave_out_rows_without_a_time(folder):
    days = np.arange("2026-01-01", "2026-02-01", dtype="M8[D]")
    rows = [f"{day},{np.sin(i)}\n" for i, day in enumerate(days)]
    rows[5] = "NA,3\n"
    (folder / "untimed.csv").write_text("day,y\n" + "".join(rows))
    words = ("forecast", folder / "untimed.csv", "--horizon", 2, "--period", 0, "-o", folder / "later.feather")
    assert "column 'day' in line 7" in call(*words, code=2).stderr
    assert "1 of 31 rows dropped: values are missing in 'day'" in call(*words, "--missing", "drop").stderr
    assert tables.read_table(folder / "later.feather").num_rows == 2


def test_32_bits_if_they_are_asked_for(data, folder):
    words = ("fit", data, "-t", "level", "-o", folder / "single.kx", "--float32", "-k", "fixed(1 * rbf)", "--noise", "2")
    assert "JAX" not in call(*words).stderr
    assert kx.load(folder / "single.kx").data.dtype == np.float32


def test_an_interrupted_fit_keeps_the_best_so_far(data, folder, monkeypatch):
    real = tables._table_fit.fit

    def interrupted(*args, **options):
        answer = real(*args, **{**options, "max_steps": 3})
        return eqx.tree_at(lambda f: f.result, answer, kx.Result.interrupted)

    monkeypatch.setattr(tables._table_fit, "fit", interrupted)
    done = call("fit", data, "-t", "level", "-o", folder / "part.kx", code=130)
    assert "holds the best model so far" in done.stderr
    assert kx.load(folder / "part.kx").data.n == N

    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tables._table_fit, "fit", stopped)
    call("fit", data, "-t", "level", "-o", folder / "never.kx", code=130)
    assert not (folder / "never.kx").exists()


def test_a_fit_that_fails_ends_with_1_and_a_remedy(data, folder, monkeypatch):
    def failed(*args, **options):
        raise kx.FailedError("the fit", kx.Result.nonfinite, "throw=False returns the status instead.")

    monkeypatch.setattr(tables._table_fit, "fit", failed)
    done = call("fit", data, "-t", "level", "-o", folder / "failed.kx", code=1)
    assert done.stderr.startswith("error: the fit failed. nonfinite: ")
    assert "Look for NaN" in done.stderr
    assert "throw=False" not in done.stderr
    assert not (folder / "failed.kx").exists()


BAD = {
    "no file": (["fit", "nowhere.csv", "-t", "level", "-o", "OUT.kx"], "nowhere.csv: there is no such file"),
    "no target": (["fit", "DATA", "-t", "levl", "-o", "OUT.kx"], "Did you mean 'level'?"),
    "no column": (["fit", "DATA", "-t", "level", "-c", "dept", "-o", "OUT.kx"], "Did you mean 'depth'?"),
    "no kernel": (["fit", "DATA", "-t", "level", "-k", "rfb", "-o", "OUT.kx"], "Did you mean 'rbf'?\n  rfb\n  ^"),
    "code": (
        ["fit", "DATA", "-t", "level", "-k", "__import__('os').system('touch OUT.kx')", "-o", "OUT.kx"],
        "only kernels",
    ),
    "selector": (["fit", "DATA", "-t", "level", "--select", "luck", "-o", "OUT.kx"], "'--select'"),
    "gaps": (["fit", "GAPS", "-t", "level", "-o", "OUT.kx"], "column 'depth' in line 3"),
    "gaps otherwise": (["fit", "GAPS", "-t", "level", "--missing", "hide", "-o", "OUT.kx"], "'--missing'"),
    "folder": (["fit", "DATA", "-t", "level", "-o", "none/OUT.kx"], "there is no folder"),
    "itself": (["fit", "DATA", "-t", "level", "-o", "DATA"], "this is the input"),
    "solver": (["fit", "DATA", "-t", "level", "--solver", "colesky", "-o", "OUT.kx"], "Did you mean 'cholesky'?"),
    "noise": (["fit", "DATA", "-t", "level", "--noise", "-1", "-o", "OUT.kx"], "a positive number"),
    "unit": (["fit", "DATA", "-t", "level", "--date-unit", "moons", "-o", "OUT.kx"], "'--date-unit'"),
    "usage": (["fit", "DATA", "-o", "OUT.kx"], "--target"),
    "seed": (["fit", "DATA", "-t", "level", "--seed", "99999999999999999999", "-o", "OUT.kx"], "--seed"),
    "no methods": (["compare", "DATA", "-t", "level", "--methods", ""], "name at least one method"),
    "restarts": (["fit", "DATA", "-t", "level", "--restarts", "-3", "-o", "OUT.kx"], "--restarts"),
    "no model": (["predict", "nowhere.kx", "NEW", "-o", "OUT.csv"], "nowhere.kx: there is no such file"),
    "not a model": (["predict", "NEW", "NEW", "-o", "OUT.csv"], "cannot be loaded"),
    "another file": (["predict", "OTHER", "NEW", "-o", "OUT.csv"], "holds a Model, not a model that `kernax fit`"),
    "mismatch": (["predict", "MODEL", "ODD", "-o", "OUT.csv"], "no column 'depth', with which"),
    "level": (["predict", "MODEL", "NEW", "--level", "95", "-o", "OUT.csv"], "between 0 and 1"),
    "ending": (["predict", "MODEL", "NEW", "-o", "OUT.xlsx"], "end in .csv, .parquet, "),
    "over input": (["predict", "MODEL", "NEW", "-o", "NEW"], "this is the input"),
    "no group": (["fit-many", "DATA", "-t", "level", "--by", "shop", "-o", "OUT.kx"], "no column 'shop'"),
    "method": (["compare", "DATA", "-t", "level", "--methods", "magic", "-o", "OUT.csv"], "no method 'magic'"),
    "folds": (["compare", "DATA", "-t", "level", "--folds", "99", "-o", "OUT.csv"], "not 99"),
    "task": (["compare", "DATA", "-t", "level", "--task", "both", "-o", "OUT.csv"], "'--task'"),
    "classes": (["compare", "DATA", "-t", "level", "--task", "classification"], "does not hold classes"),
    "to nowhere": (["fit", "DATA", "-t", "level", "-o", "-"], "give the name of a file"),
    "page": (["report", "MODEL", "-o", "OUT.pdf"], "end in .html"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_with_2_one_message_and_no_file(name, folder, data, new, model):
    words, message = BAD[name]
    (folder / "gaps.csv").write_text("day,depth,level\n2020-01-01,1,2\n2020-02-01,,3\n2020-03-01,4,5\n")
    (folder / "odd.csv").write_text("day,dpth\n2020-01-01,1\n")
    kx.save(folder / "other.kx", kx.Model(kx.RBF(), noise=0.1))
    names = {"DATA": data, "NEW": new, "MODEL": model, "GAPS": folder / "gaps.csv", "ODD": folder / "odd.csv"}
    names["OTHER"] = folder / "other.kx"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = call(*(names.get(word, word.replace("OUT", str(folder / "OUT"))) for word in words), code=2)
    assert message in done.stderr
    assert done.stdout == ""
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_rows_with_gaps_are_dropped_and_counted(folder, data, model):
    of = read(folder / "series.csv")
    of["depth"] = ["NA" if i in (2, 5) else value for i, value in enumerate(of["depth"])]
    gaps = write_csv(folder / "some_gaps.csv", of)
    done = call("predict", model, gaps, "-o", folder / "kept.csv", "--missing", "drop")
    assert "2 of 24 rows dropped: values are missing in 'depth'" in done.stderr
    kept = read(folder / "kept.csv")
    assert kept["day"] == [day for i, day in enumerate(of["day"]) if i not in (2, 5)]


def test_text_and_booleans_are_categories_and_say_so(folder):
    rng = np.random.default_rng(0)
    kind, wet = rng.integers(0, 3, 30), rng.random(30) < 0.5
    depth = rng.normal(size=30)
    rows = [f"{d},{'abc'[k]},{w},{np.sin(d) + k + w}\n" for d, k, w in zip(depth, kind, wet, strict=True)]
    (folder / "kinds.csv").write_text("depth,kind,wet,y\n" + "".join(rows))
    words = ("-k", "fixed(1 * rbf)", "--noise", 0.01, "-o", folder / "kinds.kx")
    done = call("fit", folder / "kinds.csv", "-t", "y", *words)
    assert done.stderr == "note: column 'kind': 3 categories\nnote: column 'wet': 2 categories\n"
    assert "3 categories: a, b, c" in done.stdout
    assert "categorical_kind.correlation" in done.stdout
    call("predict", folder / "kinds.kx", folder / "kinds.csv", "-o", folder / "kinds_out.csv")
    got = read(folder / "kinds_out.csv")
    assert np.max(np.abs(np.array(got["mean"], float) - np.array(got["y"], float))) < 0.5
    (folder / "kinds_new.csv").write_text("depth,kind,wet\n0.1,d,true\n0.2,a,false\n")
    done = call("predict", folder / "kinds.kx", folder / "kinds_new.csv", code=2)
    assert "column 'kind' has 'd' in line 2, a category that no row had" in done.stderr
    call("report", folder / "kinds.kx", "-o", folder / "kinds.html")
    page = Page((folder / "kinds.html").read_text())
    assert "y along kind" in page.text
    words = ("compare", folder / "kinds.csv", "-t", "y", "--methods", "least_squares", "--max-levels", 2)
    assert "--drop kind" in call(*words, code=2).stderr
    call(*words, "--drop", "kind")


def test_classes_are_fitted_predicted_and_reported(folder):
    rng = np.random.default_rng(0)
    t = rng.uniform(0, 10, 30)
    kind = np.digitize(t, [3, 7])
    (folder / "classes.csv").write_text("t,kind\n" + "".join(f"{a},{'abc'[k]}\n" for a, k in zip(t, kind, strict=True)))
    words = ("fit", folder / "classes.csv", "-t", "kind", "-o", folder / "classes.kx", "--max-steps", 5)
    done = call(*words)
    assert "note: target 'kind': 3 classes ('a', 'b', 'c')" in done.stderr
    assert "cross-validated accuracy" in done.stdout
    call("predict", folder / "classes.kx", folder / "classes.csv", "-o", folder / "classes_out.csv", "--prefix", "new_")
    got = read(folder / "classes_out.csv")
    assert list(got) == ["t", "kind", "new_class", "new_p_a", "new_p_b", "new_p_c"]
    assert np.mean(np.array(got["new_class"]) == np.array(got["kind"])) > 0.9
    call("report", folder / "classes.kx", "-o", folder / "classes.html")
    page = Page((folder / "classes.html").read_text())
    assert "Optimisation" in page.text
    assert "kind along t" in page.text
    assert "Probability of each class." in page.text
    done = call("fit", folder / "classes.csv", "-t", "kind", "--likelihood", "poisson", "-o", folder / "x.kx", code=2)
    assert "the target must be a number here" in done.stderr


def test_columns_are_copied_to_the_letter_and_times_keep_their_zone(folder):
    (folder / "zoned.csv").write_text(
        "when,name,y\n" + "".join(f"2020-01-{d:02}T06:00+02:00,{'NA' if d % 2 else '007'},{d % 5}\n" for d in range(1, 13))
    )
    call("fit", folder / "zoned.csv", "-t", "y", "-c", "when", "-k", "rbf", "--max-steps", 2, "-o", folder / "zoned.kx")
    call("predict", folder / "zoned.kx", folder / "zoned.csv", "-o", folder / "zoned_out.csv")
    assert read(folder / "zoned_out.csv")["name"][:2] == ["NA", "007"]
    call("predict", folder / "zoned.kx", folder / "zoned.csv", "-o", folder / "zoned.parquet")
    assert pyarrow.parquet.read_table(folder / "zoned.parquet")["name"].to_pylist()[:2] == ["NA", "007"]
    times = pyarrow.array(
        np.arange("2020-01-01", "2020-01-04", dtype="M8[D]").astype("M8[us]"), pyarrow.timestamp("us", "UTC")
    )
    pyarrow.parquet.write_table(pyarrow.table({"when": times}), folder / "utc.parquet")
    for ending in ("csv", "parquet"):
        call("predict", folder / "zoned.kx", folder / "utc.parquet", "-o", folder / f"utc_out.{ending}")
        call("predict", folder / "zoned.kx", folder / f"utc_out.{ending}", "--only")


def test_advice_names_lines_and_likelihoods_are_of_the_tables_numbers(folder):
    rng = np.random.default_rng(0)
    t = np.arange(30.0)
    y = 100 + 20 * np.sin(t / 4) + rng.normal(size=30)
    y[17] += 90
    rows = [f"{a},{b}\n" for a, b in zip(t, y, strict=True)]
    rows[4] = "4.0,\n"
    (folder / "outlier.csv").write_text("t,y\n" + "".join(rows))
    words = ("-k", "fixed(400 * rbf(lengthscale=6))", "--noise", 4, "--missing", "drop")
    done = call("fit", folder / "outlier.csv", "-t", "y", "-o", folder / "outlier.kx", *words)
    assert "lines far from their leave-one-out prediction, in standard deviations: 19 (+" in done.stdout
    kept = np.arange(30) != 4
    covariance = 400 * np.exp(-0.5 * ((t[kept, None] - t[kept]) / 6) ** 2) + 4 * np.eye(29)
    expected = scipy.stats.multivariate_normal(np.full(29, y[kept].mean()), covariance).logpdf(y[kept])
    entries = kx.report(kx.load(folder / "outlier.kx")).as_dict()["entries"]
    assert entries["log marginal likelihood"] == pytest.approx(expected, rel=1e-6)


def test_two_outputs_are_two_files(folder):
    words = (
        "fit-many",
        folder / "series.csv",
        "--by",
        "day",
        "-t",
        "level",
        "-o",
        folder / "z.csv",
        "--table",
        folder / "z.csv",
    )
    assert "this is the input" in call(*words, code=2).stderr
    assert not (folder / "z.csv").exists()


def test_many_fits_and_their_predictions(folder):
    of = groups_table()
    path = folder / "shops.csv"
    path.write_text("shop,t,sales\n" + "".join(f"{s},{t},{y}\n" for s, t, y in zip(*of.values(), strict=True)))
    done = call(
        "fit-many", path, "--by", "shop", "-t", "sales", "-k", "rbf", "-o", folder / "fits.kx", "--table", folder / "f.csv"
    )
    assert "3 groups by shop" in done.stdout
    assert sorted(read(folder / "f.csv")["dataset"]) == ["1", "2", "3"]
    assert "rbf.lengthscale" in done.stdout
    call("predict", folder / "fits.kx", path, "-o", folder / "shops_out.csv")
    got = read(folder / "shops_out.csv")
    assert np.max(np.abs(np.array(got["mean"], float) - of["sales"])) < 2.0
    words = ("fit-many", path, "--by", "shop", "-t", "sales", "-k", "rbf", "--stream", "-o", folder / "streamed.kx")
    assert json.loads(call(*words, "--json").stdout)["rows"] == 36
    call("predict", folder / "streamed.kx", path, "-o", folder / "streamed_out.csv")
    np.testing.assert_allclose(*(np.array(of["mean"], float) for of in (read(folder / "streamed_out.csv"), got)), rtol=1e-6)
    assert "stream" in call(*words, "--sample", 9, code=2).stderr
    call("report", folder / "streamed.kx", "-o", folder / "streamed.html")
    (folder / "unknown.csv").write_text("shop,t\n9,1.0\n")
    assert "a group that" in call("predict", folder / "fits.kx", folder / "unknown.csv", code=2).stderr
    call("report", folder / "fits.kx", "-o", folder / "many.html")
    page = Page((folder / "many.html").read_text())
    assert all(source.startswith("#") for source in page.sources)
    assert page.tags.count("svg") == 1 + 1 + 4  # the worst fits, errors, lengthscale, variance, noise and level
    assert f"{float(read(folder / 'f.csv')['loo_rmse'][0]):.4g}" in page.text
    assert {"Columns", "Groups"} <= set(page.text)


def test_many_fits_resume_from_a_folder_and_run_on_a_cluster(folder, monkeypatch):
    distributed = pytest.importorskip("distributed")
    of = groups_table()
    path = folder / "resumed.csv"
    path.write_text("shop,t,sales\n" + "".join(f"{s},{t},{y}\n" for s, t, y in zip(*of.values(), strict=True)))
    words = ("fit-many", path, "--by", "shop", "-t", "sales", "-k", "rbf", "--max-steps", 3)
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    )
    with cluster:
        address = cluster.scheduler_address.replace("tcp", "dask", 1)
        call(*words, "-o", folder / "one.kx", "--checkpoint", folder / "kept", "--executor", address)
    monkeypatch.setattr("kernax.fitting._engine.run_block", None)  # nothing is computed again
    call(*words, "-o", folder / "two.kx", "--checkpoint", folder / "kept")
    ours, theirs = (kx.load(folder / f"{name}.kx").fits.value for name in ("one", "two"))
    np.testing.assert_array_equal(ours, theirs)
    assert "write processes:4" in call(*words, "--executor", "cloud", "-o", folder / "x.kx", code=2).stderr


def test_compare_prints_a_table_a_file_or_json(data, folder):
    words = ("compare", data, "-t", "level", "--methods", "mean,least_squares", "--folds", "4")
    printed = call(*words, "-o", folder / "compared.csv").stdout
    answer = json.loads(call(*words, "--json").stdout)
    best, worst = answer["methods"]
    assert (best["method"], worst["method"]) == ("least_squares", "mean")
    assert best["coverage"] is None
    assert best["rmse"] < worst["rmse"]
    table = read(folder / "compared.csv")
    assert table["method"] == ["least_squares", "mean"]
    assert float(table["rmse"][0]) == best["rmse"]
    assert printed.index("least_squares") < printed.index("mean ")


def test_a_comparison_shows_its_table_as_it_grows(data, monkeypatch):
    monkeypatch.setattr("kernax.cli._console.shows_progress", lambda quiet: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    words = ("compare", data, "-t", "level", "--methods", "mean,least_squares", "--folds", "4")
    shown = call(*words).stderr
    assert shown.index("rmse") < shown.index("least_squares (2 of 2)")
    assert "4/4" in shown


class Page(html.parser.HTMLParser):
    """What a page loads and shows."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href", "data", "srcset")]

    def handle_data(self, data):
        self.text.append(data)


def test_a_report_is_one_page_that_loads_nothing_and_runs_nothing(folder):
    evil = '<script>alert("x")</script>'
    of = {"a $x$ & b": columns()["depth"], evil: columns()["level"]}
    path = folder / "evil.csv"
    head = ",".join('"' + name.replace('"', '""') + '"' for name in of)
    path.write_text(head + "\n" + "".join(f"{a},{b}\n" for a, b in zip(*of.values(), strict=True)))
    call("fit", path, "-t", evil, "-o", folder / "evil.kx", "-k", "rbf")
    call("report", folder / "evil.kx", "-o", folder / "evil.html")
    text = (folder / "evil.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert evil in "".join(page.text)
    assert page.tags.count("svg") == 4 + 1 + 1 + 1  # rows left out, their autocorrelation, the column, the optimiser
    assert all(source.startswith("#") for source in page.sources)
    assert "a $x$ & b" in page.text
    assert "Columns" in page.text
    assert kx.report(kx.load(folder / "evil.kx")).to_html() == text
    assert "RMSE" in text


def test_the_demonstration_is_that_of_the_package(folder, monkeypatch):
    from kernax.demo import __main__ as demonstration

    asked = []
    monkeypatch.setattr(demonstration, "run", asked.append)
    call("demo", "-o", folder / "co2.png", "--every", "8")
    assert (asked[0].output, asked[0].until, asked[0].every) == (folder / "co2.png", 1998.0, 8)
    monkeypatch.undo()
    assert "too little data" in call("demo", "--until", "1950", "-o", folder / "co2.png", code=2).stderr


def test_version_help_and_completion():
    assert call("--version").stdout.strip() == f"kernax {kx.__version__}"
    for command in ("demo", "fit", "predict", "fit-many", "forecast", "compare", "report"):
        assert command in call("--help").stdout
        assert "--help" in call(command, "--help").stdout
    at = {"_KERNAX_COMPLETE": "complete_bash", "COMP_WORDS": "kernax fit --select ", "COMP_CWORD": "3"}
    completed = CliRunner().invoke(app, [], prog_name="kernax", env=at).output
    assert completed.split() == ["likelihood", "loo", "gcv", "kfold", "loo_density"]


LOUD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from kernax.cli import run
from kernax.fitting import _lanes

advance = _lanes._advance
_lanes._advance = lambda *given: (print("piece", file=sys.stderr, flush=True), advance(*given))[1]
run()
"""


def test_ctrl_c_stops_a_program_soon_and_keeps_the_best_model(folder):
    """As from a terminal: SIGINT to the process in the middle of a fit."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 6))
    y = np.sin(x).sum(axis=1) + 0.1 * rng.normal(size=500)
    table = np.column_stack([x, y])
    np.savetxt(folder / "long.csv", table, delimiter=",", header=",".join("abcdef") + ",y", comments="")
    command = [sys.executable, "-c", LOUD, "fit", "long.csv", "-t", "y", "-o", "long.kx", "-k", "rbf + matern12"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    lines = iter(process.stderr)
    assert [next(line for line in lines if line == "piece\n") for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=120)
    assert process.returncode == 130, words
    assert "interrupted: long.kx holds the best model so far" in words
    assert "Traceback" not in words
    assert kx.load(folder / "long.kx").data.n == 500


def test_as_a_program_it_is_quiet_in_a_pipe_and_keeps_its_programs_unless_told_not_to(folder, model, new):
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"COLUMNS": "100", "XDG_CACHE_HOME": str(folder / "cache")}

    def run(*words):
        command = [sys.executable, "-m", "kernax", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)

    def programs():
        return {path.name for path in (folder / "cache").rglob("*-cache")}

    predict = ["predict", str(model), new, "--only"]
    answers, kept = [], []
    for words in (["--no-cache", *predict], predict, predict, [*predict, "--no-cache"]):
        done = run(*words)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == N + 1
        assert all(line.startswith("note: ") for line in done.stderr.splitlines())
        answers.append(done.stdout)
        kept.append(programs())
    assert len(set(answers)) == 1
    assert not kept[0]
    assert kept[1]
    assert kept[2] == kept[1]  # found again
