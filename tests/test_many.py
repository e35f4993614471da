"""One model for each of many datasets: what a loop of single fits gives, from every form of input, in both layouts."""

import dataclasses
import pickle
import re
import time

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import lognorm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import kernax as kx
from kernax.fitting import _many
from tests.hard_cases import oracle
from tests.tables import gradient_by_differences


def made(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, size=(n, 2))
    return x, np.sin(2.0 * x[:, 0]) + np.cos(x[:, 1]) + 0.5 * rng.normal(size=n)


# All are padded to 16 rows: one shape, and so one compiled program for each setting.
SETS = [made(n, seed=400 + i) for i, n in enumerate([16, 10] * 6)]
MODEL = kx.Model(1.0 * kx.RBF(lengthscale=[1.0, 1.0]), noise=0.5)
STARTS = [kx.Model((1.0 + 0.1 * i) * kx.RBF(lengthscale=[1.0, 0.5 + 0.1 * i]), noise=0.2 + 0.1 * i) for i in range(12)]
HELD = kx.freeze(MODEL, where=lambda m: m.noise)
LAYOUTS = {
    "one after another": {"together": False},
    # The budget is that of 16 lanes.
    "together": {"together": True, "memory_budget": 16 * 10 * 8 * 16**2},
}
WINDOWS_OF_THREE = 4 * 3 * 16 * (8 + 16 + 1)
"""The memory_budget whose quarter holds three datasets of 16 rows: x, y and mask."""


@pytest.fixture(scope="module")
def singles():
    return [kx.fit(MODEL, kx.Data(x, y)) for x, y in SETS]


@pytest.fixture(scope="module")
def fits():
    return kx.fit_many(MODEL, SETS)


@pytest.fixture(scope="module")
def fitted_together():
    return kx.fit_many(MODEL, SETS, **LAYOUTS["together"])


@pytest.fixture(scope="module")
def padded():
    """Single datasets, padded to 16 rows: `fit` compiles once for all of them."""
    stacked = kx.data.stack(SETS)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(len(SETS))]


def essence(fit):
    return fit.value, fit.model, fit.result, fit.num_steps, fit.at_bound, fit.start_values


def of(fits, which):
    """Some of the fits, taken on the host: JAX would compile a program for every array."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], fits)


def assert_same_fits(many, singles):
    """Value, parameters, status, steps, what is at a bound, and what each start arrived at."""
    value, model, result, num_steps, at_bound, start_values = essence(many)
    singles = jax.tree.map(lambda *leaves: np.stack(leaves), *(essence(single) for single in singles))
    np.testing.assert_allclose(value, singles[0], rtol=1e-10)
    chex.assert_trees_all_close(model, singles[1], rtol=1e-6)
    chex.assert_trees_all_equal((result, num_steps, at_bound), singles[2:5])
    np.testing.assert_allclose(start_values, singles[5], rtol=1e-10)


def assert_identical(ours, theirs):
    """To the bit, but for the names."""
    chex.assert_trees_all_equal(jax.tree.leaves(ours), jax.tree.leaves(theirs))


def summed(logs, sets=SETS):
    """`Σ_i -log p(y_i)` in NumPy, of the logarithms of two lengthscales, variance and noise."""
    lengthscale, variance, noise = np.exp(logs[:2]), *np.exp(logs[2:])
    grams = [oracle.rbf(x, lengthscale=lengthscale, variance=variance) for x, _ in sets]
    return -sum(oracle.log_likelihood(gram, y, noise) for gram, (_, y) in zip(grams, sets, strict=True))


def logs_of(model):
    return np.log([*model.kernel.kernel.lengthscale, model.kernel.variance, model.noise])


# --- a loop of single fits ---


@pytest.mark.parametrize("layout", ["fits", "fitted_together"])
def test_equals_a_loop_of_single_fits(layout, singles, request):
    many = request.getfixturevalue(layout)
    assert_same_fits(many, singles)
    np.testing.assert_allclose(many.gradient_norm, [single.gradient_norm for single in singles], rtol=1e-4)
    np.testing.assert_array_equal(many.num_rows, [16, 10] * 6)
    # The sizes of x differ, so lanes do take different numbers of steps.
    assert len(set(many.num_steps.tolist())) > 4


@pytest.mark.parametrize("number", [0, 1, 2])
def test_reaches_the_optimum_of_scikit_learn(number, fits):
    kernel = sk.ConstantKernel(1.0) * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.5)
    theirs = GaussianProcessRegressor(kernel).fit(*SETS[number])
    assert -float(fits.value[number]) > theirs.log_marginal_likelihood_value_ - 1e-5


MAP = kx.with_prior(MODEL, lambda m: m.kernel.kernel.lengthscale, kx.priors.LogNormal(0.5, 0.1))
MAP = kx.with_bijector(MAP, lambda m: m.noise, kx.bijectors.Positive(floor=0.4, ceiling=0.6))


BY_LOO = {"objective": kx.loo_mse, "solver": kx.Eigh()}


@pytest.mark.parametrize(
    ("model", "options"),
    [(MAP, BY_LOO), (MODEL, {"restarts": 2, "key": jax.random.key(7)})],
    ids=["objective, solver, priors and bounds", "restarts"],
)
def test_every_option_is_that_of_fit(model, options, padded, fits):
    """Optimisers: `test_h28_gradients_are_clipped_lane_by_lane`."""
    many = kx.fit_many(model, SETS[:3], **options)
    assert_same_fits(many, [kx.fit(model, data, **options) for data in padded[:3]])
    assert "restarts" in options or (np.asarray(many.value) != np.asarray(fits.value)[:3]).all()


def test_restarts_of_another_key_are_others():
    first, second = (kx.fit_many(MODEL, SETS[:3], restarts=2, key=jax.random.key(k)) for k in (7, 8))
    ours, theirs = np.asarray(first.start_values), np.asarray(second.start_values)
    np.testing.assert_array_equal(ours[:, 0], theirs[:, 0])
    assert (ours[:, 1:] != theirs[:, 1:]).any()
    np.testing.assert_array_equal(first.value, ours.min(axis=1))


def test_float32_stays_float32(fits):
    single = kx.fit_many(MODEL, [(x.astype(np.float32), y.astype(np.float32)) for x, y in SETS[:3]])
    floats = [leaf.dtype for leaf in jax.tree.leaves(single) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert set(floats) == {jnp.dtype(jnp.float32)}
    assert not single.failed.any()
    np.testing.assert_allclose(single.value, of(fits.value, slice(3)), rtol=1e-4)


# --- where fits start ---


def test_a_model_for_each_dataset(singles):
    many = kx.fit_many(STARTS, SETS)
    assert_same_fits(many, [kx.fit(start, kx.Data(*own)) for start, own in zip(STARTS, SETS, strict=True)])
    assert many.num_steps.tolist() != [int(single.num_steps) for single in singles]


def test_earlier_fits_are_starts(fits):
    again = kx.fit_many(fits, SETS)
    assert_same_fits(again, [kx.fit(one.model, kx.Data(*own)) for one, own in zip(fits, SETS, strict=True)])
    assert (np.asarray(again.num_steps) < np.asarray(fits.num_steps)).all()


def test_starting_values_suit_each_dataset():
    shifted = [(100.0 * x, 10.0 * y) for x, y in SETS]
    many = kx.fit_many(MODEL, shifted, initialise=True)
    data = [kx.Data(*own) for own in shifted[:2]]
    assert_same_fits(of(many, slice(2)), [kx.fit(kx.initialise(MODEL, own), own) for own in data])
    assert not many.failed.any()


def test_what_is_held_keeps_its_value_to_the_bit():
    """Each dataset's own, with and without starting values that suit the data; the rest is at its optimum."""
    noises = np.array([start.noise for start in STARTS])
    np.testing.assert_array_equal(kx.fit_many(STARTS, SETS, trainable=HELD).model.noise, noises)
    many = kx.fit_many(STARTS, SETS, trainable=HELD, initialise=True)
    np.testing.assert_array_equal(many.model.noise, noises)
    for number in (4, 5):
        logs = logs_of(many[number].model)
        slopes = gradient_by_differences(lambda logs, own=SETS[number]: summed(logs, [own]), logs)
        np.testing.assert_allclose(many.value[number], summed(logs, [SETS[number]]), rtol=1e-10)
        np.testing.assert_allclose(slopes[:3], 0.0, atol=1e-3)
        assert abs(slopes[3]) > 0.01
    alone = kx.fit_many(MODEL, SETS[:3], trainable=HELD, initialise=True)
    np.testing.assert_array_equal(alone.model.noise, 0.5)


# --- forms of input ---


def test_datasets_of_every_form_keep_their_order_and_names(fits):
    as_dict = {f"set {i}": own for i, own in enumerate(SETS)}
    assert_identical(kx.fit_many(MODEL, as_dict), fits)
    assert kx.fit_many(MODEL, as_dict).keys == tuple(as_dict)
    assert_identical(kx.fit_many(MODEL, [kx.Data(*own) for own in SETS]), fits)
    assert_identical(kx.fit_many(MODEL, (own for own in SETS)), fits)
    assert fits.keys == tuple(range(12))
    backwards = kx.fit_many(MODEL, SETS[::-1])
    assert_identical(of(backwards, slice(None, None, -1)), fits)


def test_masked_rows_do_not_count(fits):
    """Dataset 0 cut to its last ten rows is another one, dataset 1 with rows of garbage before its own is the same."""
    (x, y), (x1, y1) = SETS[:2]
    before = np.full((6, 2), np.nan), np.full(6, 1e9)
    mask = np.arange(16) >= 6
    masked = kx.Data(np.concatenate([before[0], x1]), np.concatenate([before[1], y1]), mask)
    many = kx.fit_many(MODEL, [(x, y, mask), masked])
    np.testing.assert_array_equal(many.num_rows, [10, 10])
    assert_same_fits(of(many, [1]), [fits[1]])
    assert_same_fits(of(many, [0]), [kx.fit(MODEL, kx.Data(x[6:], y[6:]))])


def test_the_groups_of_a_table_are_datasets(fits):
    names = [f"site {i}" for i in range(12)]
    table = pd.concat(
        [pd.DataFrame({"site": name, "a": x[:, 0], "b": x[:, 1], "y": y}) for name, (x, y) in zip(names, SETS, strict=True)]
    )
    many = kx.fit_many(MODEL, kx.data.groups(table, by="site", x=["a", "b"], y="y"))
    assert many.keys == tuple(names)
    assert_identical(many, fits)


def test_a_generator_is_read_as_memory_allows(fits, monkeypatch):
    events, run = [], _many.run_blocks

    def datasets():
        for number, own in enumerate(SETS):
            events.append(number)
            yield own

    def recorded(*args, **options):
        events.append("run")
        return run(*args, **options)

    monkeypatch.setattr(_many, "run_blocks", recorded)
    assert_identical(kx.fit_many(MODEL, datasets(), memory_budget=WINDOWS_OF_THREE), fits)
    # A window is closed by the first dataset that has no place in it.
    assert events[:9] == [0, 1, 2, 3, "run", 4, 5, 6, "run"]
    assert events.count("run") == 4


def test_shapes_that_come_one_after_another(fits, monkeypatch):
    """Three datasets of up to 16 rows, three with 20, and then both: shapes that are compiled already are used for both."""

    def longer(x, y):
        more = 20 - len(y)
        return np.concatenate([x, np.zeros((more, 2))]), np.append(y, np.zeros(more)), np.arange(20) < len(y)

    long = [3, 4, 5, 7, 8, 10]
    sets = (longer(*own) if number in long else own for number, own in enumerate(SETS))
    shapes, run = [], _many.run_blocks

    def recorded(spec, blocks, *rest, **options):
        shapes.append(sorted(block.data.y.shape[1] for block in blocks))
        return run(spec, blocks, *rest, **options)

    monkeypatch.setattr(_many, "run_blocks", recorded)
    many = kx.fit_many(MODEL, sets, memory_budget=4 * 3 * 20 * (8 + 16 + 1))
    assert shapes == [[16], [20], [16, 20], [16, 20]]
    assert_same_fits(many, [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], fits) for i in range(12)])


# --- one model for all ---


@pytest.fixture(scope="module")
def best_for_all():
    return minimize(summed, np.log([1.0, 1.0, 1.0, 0.5]), method="BFGS")


@pytest.mark.parametrize(
    "options",
    [{"together": False}, {"together": True}, {"optimiser": optax.lbfgs()}],
    ids=["one by one", "together", "an optimiser with evaluations of its own"],
)
def test_one_model_for_all_datasets_minimises_the_sum(options, best_for_all):
    fit = kx.fit_many(MODEL, SETS, shared=True, **options)
    assert isinstance(fit, kx.fitting.Fit)
    assert fit.result == kx.Result.successful
    logs = logs_of(fit.model)
    np.testing.assert_allclose(fit.value, summed(logs), rtol=1e-10)
    np.testing.assert_allclose(gradient_by_differences(summed, logs), 0.0, atol=1e-5 * summed(logs))
    np.testing.assert_allclose(fit.value, best_for_all.fun, rtol=1e-6)
    np.testing.assert_allclose(logs, best_for_all.x, atol=1e-3)
    assert fit.history.shape == (int(fit.num_steps),)


def test_one_model_for_all_with_restarts_priors_and_what_is_held():
    """A dataset without rows adds nothing."""
    held = kx.freeze(MAP, where=lambda m: m.noise)
    many = [*SETS[:3], (np.zeros((0, 2)), np.zeros(0))]
    fit = kx.fit_many(MAP, many, shared=True, restarts=1, initialise=True, trainable=held)
    assert fit.start_values.shape == (2,)
    assert float(fit.value) == np.asarray(fit.start_values).min()
    assert float(fit.model.noise) == 0.5
    prior = lognorm(s=0.1, scale=np.exp(0.5)).logpdf(np.asarray(fit.model.kernel.kernel.lengthscale)).sum()
    np.testing.assert_allclose(fit.value, summed(logs_of(fit.model), SETS[:3]) - prior, rtol=1e-10)


# --- Fits ---


def test_fits_are_a_sequence_of_fits(fits, singles):
    assert len(fits) == 12
    assert len(list(fits)) == 12
    assert isinstance(fits[3], kx.fitting.Fit)
    for which, number in ((3, 3), (-1, 11), (np.int64(5), 5), (jnp.asarray(4), 4)):
        np.testing.assert_allclose(fits[which].model.noise, singles[number].model.noise, rtol=1e-6)
        assert int(fits[which].num_steps) == int(singles[number].num_steps)
    assert fits[3].history.shape == (0,)
    assert "successful" in repr(fits[3])
    for which, numbers in (
        (slice(2, 9, 3), [2, 5, 8]),
        ([4, -1], [4, 11]),
        (np.arange(12) % 5 == 0, [0, 5, 10]),
        (slice(0), []),
        ([], []),
    ):
        part = fits[which]
        assert isinstance(part, kx.fitting.Fits)
        assert part.keys == tuple(numbers)
        assert_identical(part, of(fits, np.array(numbers, int)))


def test_fits_by_name():
    named = kx.fit_many(MODEL, {"a": SETS[0], "b": SETS[1], ("c", 1): SETS[2]})
    assert_identical(named["b"], named[1])
    assert_identical(named["c", 1], named[2])
    assert named[["b", "a"]].keys == ("b", "a")
    assert_identical(named[["b", "a"]], of(named, [1, 0]))
    for unknown in ("d", ["a", "d"]):
        with pytest.raises(KeyError, match="no dataset called 'd'"):
            named[unknown]
    swapped = {"b": SETS[1], "a": SETS[0], ("c", 1): SETS[2]}
    with pytest.raises(ValueError, match=r"the fit 0 is of 'a', but dataset 0 \('b'\) was given"):
        kx.predict_many(named, swapped, NEW[3])
    # A refit finds them by their names.
    assert_identical(
        kx.fitting.refit_many(named, swapped, where=["a"]), kx.fitting.refit_many(named, {"a": SETS[0]}, where=[0])
    )


def test_fits_are_kept_on_the_host_pickled_and_saved(fits, tmp_path):
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(eqx.filter(fits, eqx.is_array)))
    kx.save(tmp_path / "fits.kx", fits)
    for again in (pickle.loads(pickle.dumps(fits)), kx.load(tmp_path / "fits.kx")):
        assert again.keys == fits.keys
        assert_identical(again, fits)
        assert_identical(again[[5, 1]], fits[[5, 1]])


def test_fits_of_several_calls_are_joined(fits):
    named = {name: fits[numbers] for name, numbers in (("first", [0, 1, 2]), ("rest", list(range(3, 12))))}
    joined = kx.concatenate(list(named.values()))
    assert joined.keys == fits.keys
    assert_identical(joined, fits)
    with_names = kx.fit_many(MODEL, {"a": SETS[0], "b": SETS[1]})
    joined = kx.concatenate([with_names, fits[[7]]])
    assert joined.keys == ("a", "b", 7)
    assert_identical(joined["b"], fits[1])
    assert_identical(kx.concatenate([fits[:0], fits]), fits)


def test_fits_that_cannot_be_joined_are_named(fits):
    with pytest.raises(TypeError, match=r"needs a list of kx.fitting.Fits"):
        kx.concatenate([])
    other = kx.fit_many(kx.Model(kx.Matern32(), noise=0.1), SETS[:2])
    with pytest.raises(ValueError, match="different models"):
        kx.concatenate([fits, other])
    restarted = kx.fit_many(MODEL, SETS[:2], restarts=1, key=jax.random.key(0))
    with pytest.raises(ValueError, match="different numbers of starts"):
        kx.concatenate([fits, restarted])


def test_a_name_is_found_as_fast_among_many(fits):
    """A search through all of 300,000 names would take seconds for a thousand of them."""
    names = [f"name {i}" for i in range(300_000)]
    many = dataclasses.replace(fits[np.zeros(300_000, int)], keys=tuple(names), is_named=True)
    assert many.numbers(names[-1:]).tolist() == [299_999]
    begun = time.perf_counter()
    assert many.numbers(names[-1000:]).tolist() == list(range(299_000, 300_000))
    assert time.perf_counter() - begun < 1.0


@pytest.mark.parametrize("number", [12, -13])
def test_a_number_that_no_fit_has_is_refused(number, fits):
    with pytest.raises(IndexError, match=f"index {number} is out of range for 12 fits"):
        fits[number]


@pytest.fixture(scope="module")
def cut_short():
    """Twelve steps are enough for some."""
    return kx.fit_many(MODEL, SETS, max_steps=12)


def test_how_fits_ended(cut_short, fits):
    late = np.asarray(fits.num_steps) > 12
    assert 0 < late.sum() < 12
    np.testing.assert_array_equal(cut_short.failed, late)
    np.testing.assert_array_equal(cut_short.result_names, np.where(late, "max_steps_reached", "successful"))
    assert repr(cut_short) == f"Fits(12 datasets: {late.sum()} max_steps_reached, {12 - late.sum()} successful)"
    assert "12 successful" in repr(fits)
    assert not fits.failed.any()


def test_a_table_has_a_row_for_each_dataset(fits):
    table = pd.DataFrame(fits.table())
    expected = {
        "dataset": list(range(12)),
        "rows": [16, 10] * 6,
        "result": ["successful"] * 12,
        "value": fits.value,
        "num_steps": fits.num_steps,
        "gradient_norm": fits.gradient_norm,
        "jitter": [0.0] * 12,
        "at_bound": [""] * 12,
        "rbf.lengthscale[0]": fits.model.kernel.kernel.lengthscale[:, 0],
        "rbf.lengthscale[1]": fits.model.kernel.kernel.lengthscale[:, 1],
        "rbf.variance": fits.model.kernel.variance,
        "noise": fits.model.noise,
    }
    assert sorted(table.columns) == sorted(expected)
    for name, column in expected.items():
        assert table[name].tolist() == np.asarray(column).tolist(), name


def test_a_table_names_what_is_at_a_bound():
    fits = kx.fit_many(MAP, {"low": SETS[5], "between": SETS[6], "high": SETS[7]}, **BY_LOO)
    table = fits.table()
    assert table["dataset"].tolist() == ["low", "between", "high"]
    assert table["at_bound"].tolist() == ["noise", "", "noise"]
    np.testing.assert_allclose(table["noise"][[0, 2]], [0.4, 0.6], rtol=1e-3)


def test_fits_are_a_tree_to_map_over(fits):
    def likelihood(model, data):
        return kx.log_marginal_likelihood(kx.condition(model, data))

    values = jax.jit(jax.vmap(likelihood))(fits.model, kx.data.stack(SETS))
    np.testing.assert_allclose(values, -fits.value, rtol=1e-10)


# --- again, and questions to all ---


def test_refits_better_those_that_failed_and_touch_no_other(cut_short, fits):
    late = cut_short.failed
    again = kx.fitting.refit_many(cut_short, SETS)
    assert not again.failed.any()
    assert again.keys == cut_short.keys
    assert_identical(of(again, ~late), of(cut_short, ~late))
    assert (np.asarray(again.value)[late] < np.asarray(cut_short.value)[late]).all()
    np.testing.assert_allclose(again.value, fits.value, rtol=1e-5)
    assert kx.fitting.refit_many(again, SETS) is again


def test_refits_start_from_other_fits(cut_short, fits):
    """`Fits` or models of all datasets, or of those that are tried again."""
    begin = kx.fitting.refit_many(cut_short, SETS, where=[2, 0], model=fits[[2, 0]], max_steps=1)
    for model in (fits, list(fits), list(fits[[2, 0]])):
        again = kx.fitting.refit_many(cut_short, SETS, where=[2, 0], model=model, max_steps=1)
        np.testing.assert_array_equal(again.value, begin.value)
    np.testing.assert_allclose(np.asarray(again.value)[[0, 2]], np.asarray(fits.value)[[0, 2]], rtol=1e-8)


def test_refits_are_never_worse(fits):
    """Twelve steps from a bad start: what was there is kept."""
    bad = kx.Model(100.0 * kx.RBF(lengthscale=[50.0, 50.0]), noise=30.0)
    again = kx.fitting.refit_many(fits, SETS, where=[0, 2], model=bad, max_steps=12, restarts=1)
    np.testing.assert_array_equal(again.value, fits.value)
    np.testing.assert_array_equal(again.model.noise, fits.model.noise)
    assert not again.failed.any()
    assert again.start_values.shape == (12, 1)


NEW = [np.random.default_rng(i).uniform(-2.0, 2.0, size=(i % 4, 2)) for i in range(12)]


@pytest.mark.parametrize("x", [NEW, NEW[3]], ids=["own rows", "the same rows"])
def test_predictions_of_all(x, fits):
    answers = kx.predict_many(fits, SETS, x)
    noisy = kx.predict_many(fits, SETS, x, noisy=True)
    assert len(answers) == 12
    for number, (answer, fit) in enumerate(zip(answers, fits, strict=True)):
        new, (rows, y) = x[number] if x is NEW else x, SETS[number]
        variance = float(fit.model.kernel.variance)
        own = {"lengthscale": np.asarray(fit.model.kernel.kernel.lengthscale), "variance": variance}
        mean, spread = oracle.posterior(
            oracle.rbf(rows, **own), oracle.rbf(new, rows, **own), np.full(len(new), variance), y, float(fit.model.noise)
        )
        np.testing.assert_allclose(answer.mean, mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(answer.variance, spread, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(noisy[number].variance, spread + float(fit.model.noise), rtol=1e-8)
        assert answer.num_clamped == 0


def test_one_model_predicts_for_all_and_without_data_nobody():
    answers = kx.predict_many(MODEL, [SETS[0], SETS[1], (np.zeros((0, 2)), np.zeros(0))], NEW[3])
    for answer, (x, y) in zip(answers[:2], SETS[:2], strict=True):
        mean, variance = oracle.posterior(oracle.rbf(x), oracle.rbf(NEW[3], x), np.ones(3), y, 0.5)
        np.testing.assert_allclose(answer.mean, mean, rtol=1e-8)
        np.testing.assert_allclose(answer.variance, variance, rtol=1e-8)
    assert np.isnan(answers[2].mean).all()


def test_all_conditioned(fits):
    many = kx.fitting.condition_many(fits, SETS)
    assert len(many) == 12
    assert "12 datasets" in repr(many)
    for number in (0, 5):
        c, (x, y), model = many[number], SETS[number], fits[number].model
        assert isinstance(c, kx.model.Conditioned)
        # Padded to 16 rows: the mask says which are its own.
        np.testing.assert_array_equal(c.data.mask, np.arange(16) < len(y))
        lengthscale, variance = np.asarray(model.kernel.kernel.lengthscale), float(model.kernel.variance)
        system = oracle.rbf(x, lengthscale=lengthscale, variance=variance) + float(model.noise) * np.eye(len(y))
        expected = np.append(np.linalg.solve(system, y), np.zeros(16 - len(y)))
        np.testing.assert_allclose(c.alpha, expected, rtol=1e-8)
        np.testing.assert_allclose(kx.log_marginal_likelihood(c), -float(fits.value[number]), rtol=1e-10)
    assert_identical(many[-1].alpha, many[11].alpha)
    assert [int(c.data.count) for c in many] == [16, 10] * 6
    with pytest.raises(IndexError, match="none has the number 12"):
        many[12]


def test_the_progress_bar_shows_how_many_are_done_and_failed(capsys):
    kx.fit_many(MODEL, [*SETS, (np.full((3, 2), np.nan), np.zeros(3))], progress=True)
    shown = capsys.readouterr().err
    assert "13/13" in shown
    assert "failed=1" in shown
    kx.predict_many(MODEL, SETS[:3], SETS[0][0][:1], progress=True)
    kx.fitting.condition_many(MODEL, SETS[:3], progress=True)
    kx.fitting.score_many(MODEL, SETS[:3], kx.loo_mse, progress=True)
    shown = capsys.readouterr().err
    for name in ("predict_many", "condition_many", "score_many"):
        assert re.search(rf"{name}: 100%.* 3/3", shown), name


def test_fits_of_a_lambda_are_pickled():
    """Without the lambda, which has to be given again."""
    fits = kx.fit_many(kx.Model(kx.RBF(1.0), 0.5), SETS[:2], objective=lambda c: 2.0 * kx.loo_mse(c), max_steps=3)
    again = pickle.loads(pickle.dumps(fits))
    np.testing.assert_array_equal(again.value, fits.value)
    with pytest.raises(ValueError, match=r"objective .* was not saved with these fits"):
        kx.fitting.refit_many(again, SETS[:2], where=[0])
