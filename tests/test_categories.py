"""Columns of text and of booleans in tables: categories, without encoding anything."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pyarrow.parquet
import pytest

import kernax as kx
from kernax import tables
from kernax.tables import Column, KernelExpressionError, TableError, parse_kernel

N = 30
SITES = ("east", "north", "west")
HELD = 'fixed(4 * rbf(lengthscale=2, columns="t") * categorical("site", correlation=0.3)) + fixed(2 * categorical("wet"))'


def rows(seed=0):
    """A number, a text, a boolean and a target that depends on all of them."""
    rng = np.random.default_rng(seed)
    site, wet, t = rng.integers(0, 3, N), rng.random(N) < 0.5, rng.uniform(0, 10, N)
    y = np.sin(t) + 3 * (site == 1) + wet + 0.1 * rng.normal(size=N)
    return {"t": t, "site": np.array(SITES, object)[site], "wet": wet, "y": y}


@pytest.fixture(scope="module")
def fitted():
    return tables.fit_table(rows(), "y", kernel=HELD, noise=0.2)


def test_predictions_are_those_of_the_formula(fitted):
    of, new = rows(), rows(seed=1)

    def kernel(a, b):
        bell = np.exp(-0.5 * ((a["t"][:, None] - b["t"]) / 2.0) ** 2)
        site = np.where(a["site"][:, None] == b["site"], 1.0, 0.3)
        return 4 * bell * site + 2 * np.where(a["wet"][:, None] == b["wet"], 1.0, 0.5)

    inverse = np.linalg.inv(kernel(of, of) + 0.2 * np.eye(N))
    answers = fitted.predict(new, noisy=False)
    cross, level = kernel(new, of), of["y"].mean()
    np.testing.assert_allclose(answers["mean"], level + cross @ inverse @ (of["y"] - level), rtol=1e-9)
    np.testing.assert_allclose(answers["sd"] ** 2, np.diag(kernel(new, new) - cross @ inverse @ cross.T), rtol=1e-8)
    assert fitted.notes == ("column 'site': 3 categories", "column 'wet': 2 categories")
    assert fitted.columns[1].levels == SITES


def kinds():
    """The same table in every form that kernax takes."""
    frame = pd.DataFrame(rows(seed=1))
    nullable = frame.astype({"site": "string", "wet": "boolean"})
    polar = pl.from_pandas(frame)
    return {
        "object": frame,
        "category": frame.astype({"site": "category", "wet": "category"}),
        "string": nullable,
        "capitals": frame.assign(wet=np.where(frame.wet, "TRUE", "False")),
        "polars": polar,
        "polars categories": polar.with_columns(pl.col("site").cast(pl.Categorical)),
        "polars enum": polar.with_columns(pl.col("site").cast(pl.Enum(["west", "north", "east", "south"]))),
        "arrow": pyarrow.Table.from_pandas(nullable),
        "dictionary": pyarrow.Table.from_pandas(frame.astype({"site": "category"})),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_table_is_read_alike(kind, fitted, tmp_path):
    want = fitted.predict(rows(seed=1))["mean"]
    table = kinds()[kind]
    np.testing.assert_array_equal(fitted.predict(table)["mean"], want)
    read = tables.fit_table(table, "y", kernel=HELD, noise=0.2)
    assert read.columns == tables.fit_table(rows(seed=1), "y", kernel=HELD, noise=0.2).columns
    if kind == "dictionary":
        pyarrow.parquet.write_table(table, tmp_path / "it.parquet")
        np.testing.assert_array_equal(fitted.predict(tmp_path / "it.parquet")["mean"], want)
    if kind == "object":
        table.to_csv(tmp_path / "it.csv", index=False)
        np.testing.assert_allclose(fitted.predict(tmp_path / "it.csv")["mean"], want, rtol=1e-12)


def test_categories_with_missing_values_follow_the_rules_for_missing_values(fitted):
    site = rows()["site"].copy()
    site[[2, 5]] = None, "NA"
    wet = pd.array([None if i == 7 else value for i, value in enumerate(rows()["wet"])], dtype="boolean")
    of = pd.DataFrame(rows() | {"site": site}).assign(wet=wet)
    with pytest.raises(TableError, match=r"column 'site' in rows 2, 5 .*; column 'wet' in row 7 "):
        tables.fit_table(of, "y", kernel=HELD, noise=0.2)
    few = tables.fit_table(of, "y", kernel=HELD, noise=0.2, missing="drop")
    assert few.data.n == N - 3
    assert fitted.predict_rows(of, missing="drop")[1].tolist() == [i for i in range(N) if i not in (2, 5, 7)]


def test_a_category_that_the_model_does_not_know_is_named(fitted):
    new = rows(seed=1)
    new["site"][[3, 8]] = "nort"
    with pytest.raises(TableError, match=r"'site' has 'nort' in rows 3, 8 .* mean 'north'\?.*Leave these rows out, or"):
        fitted.predict(new)


def test_too_many_categories_are_refused_with_three_remedies():
    of = rows() | {"site": np.array([f"s{i}" for i in range(N)], object)}
    with pytest.raises(TableError, match=r"'site' has 30 different .*limit of 20 .*--drop site.*--max-levels 30"):
        tables.fit_table(of, "y", max_levels=20)
    fit = tables.fit_table(of, "y", kernel="fixed(1 * rbf)", noise=0.1, columns=["t", "site"])
    assert "no two rows have the same one" in fit.notes[0]


def test_numbers_can_be_read_as_categories():
    code = np.array([7, 12, 101])[np.searchsorted(SITES, rows()["site"])]
    of = {"t": rows()["t"], "site": code, "y": rows()["y"]}
    kernel = 'fixed(1 * rbf(columns="t")) + fixed(2 * categorical("site"))'
    with pytest.raises(KernelExpressionError, match="site is read as numbers: write --categories site"):
        tables.fit_table(of, "y", kernel=kernel, noise=0.2)
    fit = tables.fit_table(of, "y", kernel=kernel, noise=0.2, categories="site")
    assert fit.columns[1].levels == ("101", "12", "7")
    want = fit.predict(of)["mean"]
    np.testing.assert_array_equal(fit.predict(of | {"site": code.astype(float)})["mean"], want)
    np.testing.assert_array_equal(fit.predict(of | {"site": [str(c) for c in code]})["mean"], want)
    declared = pd.DataFrame(of).astype({"site": "category"})
    np.testing.assert_array_equal(tables.fit_table(declared, "y", kernel=kernel, noise=0.2).predict(declared)["mean"], want)


T, U = (Column(name, "number") for name in "tu")
A, B = Column("a", "category", levels=("p", "q")), Column("x", "category", levels=("r", "s", "t"))
X = np.random.default_rng(3).normal(size=(6, 2))
ROWS = {"x_": jnp.asarray(X), "a": jnp.array([0, 1, 1, 0, 1, 0]), "x": jnp.array([2, 1, 0, 2, 2, 0])}
BOTH = kx.kernels.Categorical("a", ["p", "q"])
THREE = kx.kernels.Categorical("x", ["r", "s", "t"])


def of_numbers(kernel):
    return kx.Select(kernel, key="x_")


SAME = {
    "rbf": 1.0 * of_numbers(kx.RBF()) * BOTH * THREE,
    "rbf(columns='t') + linear + 2": 1.0 * of_numbers(kx.Select(kx.RBF(), 0))
    + 1.0 * of_numbers(kx.Linear()) * BOTH * THREE
    + 2.0,
    "rbf * categorical('a') + 3 * categorical('a', correlation=0.2)": 1.0 * of_numbers(kx.RBF()) * BOTH * THREE
    + 3.0 * kx.kernels.Categorical("a", ["p", "q"], correlation=0.2),
    "(rbf + select(matern32 + linear, 'u')) * categorical('x') ** 2": (
        1.0 * of_numbers(kx.RBF()) + of_numbers(kx.Select(1.0 * kx.Matern32() + kx.Linear(), 1))
    )
    * THREE**2
    * BOTH,
    "categorical('a') * categorical('x', rank=2)": 1.0 * BOTH * kx.kernels.Categorical("x", ["r", "s", "t"], rank=2),
}


@pytest.mark.parametrize("text", SAME)
def test_expressions_with_categories_are_the_kernels_that_they_say(text):
    with jax.disable_jit():
        got = parse_kernel(text, [T, A, U, B]).gram(ROWS, None)
        np.testing.assert_allclose(got, SAME[text].gram(ROWS, None), rtol=1e-12, atol=1e-12)


WRONG = {
    "categorical": r'name the column, categorical\("a"\)\. The categories here are a, x',
    "categorical('t')": "t is read as numbers: write --categories t",
    "categorical('a', correlation=2)": "correlation is a number from 0 to 1",
    "categorical('x', rank=4)": "rank is a whole number from 1 to 3, the number of categories",
    "categorical('x', rank=1, correlation=0.5)": "rank or correlation, not both",
    "categorical('x', levels=3)": "categorical has no 'levels'",
    "rbf(columns='a')": r"a is a column of categories: multiply or add categorical\(\"a\"\)",
    "cubicspline(columns='t') + thinplate": r"thinplate cannot be multiplied by a kernel of categories: add one",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_expression_of_categories_says_what_to_write(text):
    with pytest.raises(KernelExpressionError, match=WRONG[text]):
        parse_kernel(text, [T, A, U, B])


def test_a_table_of_categories_alone_needs_no_other_kernel():
    of = {name: rows()[name] for name in ("site", "wet", "y")}
    fit = tables.fit_table(of, "y", max_steps=3)
    assert [type(kernel) for kernel in fit.fit.model.kernel.kernel.kernels] == [kx.kernels.Categorical] * 2
    with pytest.raises(KernelExpressionError, match=r'numbers, but the table has none: write categorical\("site"'):
        tables.fit_table(of, "y", kernel="rbf + matern32 * categorical('site')")


def test_a_fit_by_default_learns_from_categories_and_comes_back_from_a_file(tmp_path):
    fit = tables.fit_table(rows(), "y")
    new = rows(seed=1)
    error = fit.predict(new)["mean"] - new["y"]
    assert np.sqrt(np.mean(error**2)) < 0.4 * np.std(new["y"])
    kx.save(tmp_path / "model.kx", fit)
    np.testing.assert_array_equal(kx.load(tmp_path / "model.kx").predict(new)["sd"], fit.predict(new)["sd"])
    assert {p.unit for p in fit.report().parameters} == {"t", "", "y²"}


def test_many_fits_and_comparisons_take_categories():
    many = tables.fit_table_many(rows(), "y", "wet", kernel='fixed(4 * rbf(lengthscale=2) * categorical("site")) + constant')
    new, table = rows(seed=1), many.table()
    got = many.predict(new)["mean"]
    of = rows()
    for wet in (False, True):
        mine, wanted = of["wet"] == wet, new["wet"] == wet
        place = list(table["dataset"]).index(str(wet))
        variance = many.fits.model.kernel.kernels[1].variance[place] * many.target.scale**2

        def kernel(a, b, variance=variance):
            bell = np.exp(-0.5 * ((a[0][:, None] - b[0]) / 2.0) ** 2)
            return 4 * bell * np.where(a[1][:, None] == b[1], 1.0, 0.5) + variance

        x, z = (of["t"][mine], of["site"][mine]), (new["t"][wanted], new["site"][wanted])
        level = table["mean.value"][place]
        weights = np.linalg.solve(kernel(x, x) + table["noise"][place] * np.eye(mine.sum()), of["y"][mine] - level)
        np.testing.assert_allclose(got[wanted], level + kernel(z, x) @ weights, rtol=1e-6)
    answer = tables.compare_table(of, "y", folds=N, methods="least_squares")
    design = np.column_stack([np.ones(N), of["t"], of["site"] == "north", of["site"] == "west", of["wet"]]).astype(float)
    hat = design @ np.linalg.pinv(design)
    residuals = (of["y"] - hat @ of["y"]) / (1 - np.diag(hat))
    assert answer.rows[0]["rmse"] == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-8)
