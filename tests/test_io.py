"""What is saved comes back bit for bit, and nothing else does."""

import dataclasses
import datetime
import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import safetensors.numpy

import kernax as kx
from kernax import learners, tables

rng = np.random.default_rng(0)
X = rng.normal(size=(12, 2))
Y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=12)
DATA, LABELS = kx.Data(X, Y), kx.Data(X, np.where(Y > 0, 1.0, -1.0))
PLAIN = kx.Model(kx.RBF(), 0.1)


def everything():
    """A thing of every kind, by name; made when asked for."""
    network = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    settings = kx.with_bijector(
        kx.Model(1.0 * kx.RBF(jnp.ones(2)) + kx.Linear(), 0.1), lambda m: m.noise, kx.bijectors.Interval(0.0, 2.0)
    )
    return {
        "model": lambda: kx.with_prior(settings, lambda m: m.kernel.kernels[0].variance, kx.priors.LogNormal()),
        "network model": lambda: kx.Model(
            kx.NNGP(depth=2) * kx.Select(kx.Periodic(period=0.5), 0), 0.1, mean=kx.means.Constant(0.3)
        ),
        "deep model": lambda: kx.Model(kx.Warp(kx.RBF(), network), 0.1),
        "function model": lambda: kx.Model(kx.Warp(kx.RBF(), jnp.tanh), 0.1),
        "conditioned": lambda: kx.condition(PLAIN, DATA),
        "by eigenvectors": lambda: kx.condition(PLAIN, DATA, kx.Eigh()),
        "spline": lambda: kx.condition(kx.Model(kx.CubicSpline(), 0.1), kx.Data(X[:, :1], Y)),
        "fit": lambda: kx.fit(PLAIN, DATA, max_steps=3),
        "fits": lambda: kx.fit_many(PLAIN, {"a": (X, Y), ("b", 2): (X, 2 * Y)}, objective=kx.loo_mse, max_steps=2),
        "choice": lambda: kx.select_ridge(PLAIN, DATA, by="gcv"),
        "support vectors": lambda: kx.condition(learners.SVR(kx.RBF(), C=1.0, epsilon=0.1), DATA),
        "huber": lambda: kx.condition(learners.KernelMachine(kx.RBF(), learners.Huber(delta=0.2), C=1.0), DATA),
        "classifier": lambda: kx.condition(learners.GPClassifier(1.0 * kx.RBF()), LABELS),
        "committee": lambda: learners.adaboost(LABELS, rounds=3),
        "classes": lambda: learners.one_against_rest(
            functools.partial(learners.adaboost, members=learners.Trees(2), rounds=3),
            X,
            np.digitize(Y, [-0.3, 0.3]).astype(str),
        ),
        "bag": lambda: learners.bagged(PLAIN, DATA, members=3, key=jax.random.key(0)),
        "lasso": lambda: learners.lasso(DATA, 0.1),
        "least squares": lambda: learners.least_squares(DATA, features=learners.PolynomialFeatures(degree=2)),
        "plain things": lambda: [
            1,
            -2.5,
            None,
            {"a": (True, "δ"), "b": np.float32(3)},
            float("inf"),
            datetime.date(2026, 2, 1),
        ],
    }


def same(a, b):
    """Whether two leaves are the same thing to the bit."""
    if eqx.is_array(a) or isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return a == b


@pytest.mark.parametrize("name", everything())
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    value = everything()[name]()
    kx.save(tmp_path / "it.kx", value)
    loaded = kx.load(tmp_path / "it.kx")
    if name == "fit":  # where its optimiser stands is not saved
        value = dataclasses.replace(value, state=None)
    assert jax.tree.structure(loaded) == jax.tree.structure(value)
    assert all(map(same, jax.tree.leaves(loaded), jax.tree.leaves(value)))
    assert repr(loaded) == repr(value).replace("weak_", "")
    if callable(value):
        assert np.array_equal(value(X), loaded(X))
    if isinstance(value, kx.model.Conditioned):
        x = value.data.x[:3] + 0.1
        assert np.array_equal(kx.variance(value, x), kx.variance(loaded, x))


def test_arrays_of_every_type(tmp_path):
    arrays = {
        "float32": np.float32([1.5, np.nan]),
        "bool": np.array([[True], [False]]),
        "int8": np.int8([3]),
        "empty": np.zeros((0, 3)),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(10)[::3],
        "jax": jnp.float32(2.0),
        "times": np.array(["2026-01-05", "NaT"], "M8[D]"),
        "text": np.array(["a", "δ"]),
        "bfloat16": jnp.array([[1.5], [2.0]], jnp.bfloat16),
        "float8_e5m2": np.array(2.0, jnp.float8_e5m2),
        "complex128": np.array([1 + 2j]),
    }
    kx.save(tmp_path / "it.kx", arrays)
    loaded = kx.load(tmp_path / "it.kx")
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array, strict=name != "text")
        assert isinstance(loaded[name], jax.Array) == isinstance(array, jax.Array)


def test_times_as_names_and_numbers_that_stand_alone(tmp_path):
    """Groups may be named by days of pandas or NumPy."""
    day, moment = pd.Timestamp("2026-02-03"), np.datetime64("2026-02-03T04:05", "m")
    value = {day: 1, moment: 2, datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC): np.timedelta64(3, "D")}
    kx.save(tmp_path / "it.kx", value)
    assert kx.load(tmp_path / "it.kx") == value
    days = pd.DataFrame({"day": pd.to_datetime(["2026-01-01", "2026-01-02"] * 6), "x": X[:, 0], "y": Y})
    fits = kx.fit_many(PLAIN, kx.data.groups(days, by="day", x="x", y="y"), max_steps=2)
    kx.save(tmp_path / "it.kx", fits)
    assert kx.load(tmp_path / "it.kx").of(pd.Timestamp("2026-01-02")).value == fits.of(pd.Timestamp("2026-01-02")).value


def test_one_array_stays_one(tmp_path):
    array = jnp.arange(5.0)
    kx.save(tmp_path / "it.kx", [array] * 3)
    loaded = kx.load(tmp_path / "it.kx")
    assert loaded[0] is loaded[1] is loaded[2]


def test_what_predicts_from_its_targets_is_not_saved_without_them(tmp_path):
    table = tables.fit_table({"x": X[:, 0], "y": Y}, "y", max_steps=2)
    many = tables.fit_table_many({"x": X[:, 0], "y": Y, "g": [0, 1] * 6}, "y", "g", max_steps=2)
    for value, where in ((table, r"TableFit\.fit"), (table.fit, "Fit"), (many, "ManyTableFits")):
        with pytest.raises(TypeError, match=f"^{where} needs its targets to predict"):
            kx.save(tmp_path / "it.kx", value, targets=False)
    assert not (tmp_path / "it.kx").exists()


def test_layers_that_pool_and_losses_of_ones_own(tmp_path, registered):
    registered(squares, name="squares")
    pool, machine = eqx.nn.AvgPool1d(2), learners.KernelMachine(kx.RBF(), squares, C=1.0)
    kx.save(tmp_path / "it.kx", (pool, machine))
    loaded, again = kx.load(tmp_path / "it.kx")
    assert np.array_equal(loaded(jnp.ones((1, 4))), pool(jnp.ones((1, 4))))
    assert again.loss.value(2.0, 0.5) == 2.25


def test_random_keys(tmp_path):
    kx.save(tmp_path / "it.kx", jax.random.key(3))
    assert jax.random.normal(kx.load(tmp_path / "it.kx")) == jax.random.normal(jax.random.key(3))


def test_other_tools_read_the_arrays(tmp_path):
    kx.save(tmp_path / "it.kx", {"a": np.arange(3.0)})
    (array,) = safetensors.numpy.load_file(tmp_path / "it.kx").values()
    assert np.array_equal(array, np.arange(3.0))


@pytest.mark.parametrize(
    "name", ["conditioned", "by eigenvectors", "spline", "support vectors", "huber", "classifier", "bag"]
)
def test_predictions_need_no_targets(name, tmp_path):
    value = everything()[name]()
    kx.save(tmp_path / "it.kx", value, targets=False)
    loaded = kx.load(tmp_path / "it.kx")
    assert np.isnan(loaded.data.y).all()
    assert loaded.data.y.shape == value.data.y.shape
    x = value.data.x[:3] + 0.1
    if isinstance(value, kx.model.Conditioned):
        assert np.array_equal(kx.mean(loaded, x), kx.mean(value, x))
        assert np.array_equal(kx.variance(loaded, x), kx.variance(value, x))
        key = jax.random.key(0)
        assert np.array_equal(kx.sample(loaded, x, key=key), kx.sample(value, x, key=key))
    elif name == "classifier":
        assert np.array_equal(loaded.probability(x), value.probability(x))
    else:
        assert np.array_equal(loaded(x), value(x))
    written = safetensors.numpy.load_file(tmp_path / "it.kx").values()
    targets = np.asarray(value.data.y)
    assert not any(array.shape == targets.shape and np.array_equal(array, targets) for array in written)


class Tent(kx.AbstractKernel):
    """A kernel of one's own."""

    width: jax.Array = kx.positive(default=1.0)

    def pair(self, a, b):
        return jnp.maximum(0.0, 1.0 - jnp.abs(a[0] - b[0]) / self.width)


def wrinkled(a):
    return a + jnp.sin(a)


def squares(y, f):
    return (y - f) ** 2


@pytest.fixture
def registered():
    """`register`, forgotten again."""
    from kernax.io import _allowed

    before = dict(_allowed._own)
    yield kx.io.register
    _allowed._own.clear()
    _allowed._own.update(before)


def test_a_kernel_of_ones_own(tmp_path, registered):
    path = tmp_path / "it.kx"
    model = kx.Model(kx.Warp(Tent(width=2.0), wrinkled), 0.1)
    with pytest.raises(
        TypeError, match=r"Model.kernel.kernel is a .*Tent, which cannot be saved: call kx.io.register\(Tent\)"
    ):
        kx.save(path, model)
    assert registered(Tent) is Tent
    with pytest.raises(TypeError, match=r"Model.kernel.transform.function is a .*kx.io.register\(f, name='…'\)"):
        kx.save(path, model)
    assert not path.exists()
    registered(wrinkled, name="wrinkled")
    kx.save(path, model)
    assert repr(kx.load(path)) == repr(model)
    assert np.array_equal(kx.load(path).kernel.gram(X, X), model.kernel.gram(X, X))


def test_names_that_are_not_known_here(tmp_path, registered):
    registered(Tent, name="tent")
    kx.save(tmp_path / "it.kx", Tent())
    from kernax.io import _allowed

    del _allowed._own["tent"]
    with pytest.raises(kx.io.FileError, match=r"it\.kx cannot be loaded: it refers to 'tent', .*kx.io.register"):
        kx.load(tmp_path / "it.kx")


def test_a_class_defined_anew_takes_its_own_place(registered):
    registered(Tent)
    registered(type(Tent)("Tent", (kx.AbstractKernel,), {"__module__": Tent.__module__, "pair": Tent.pair}))
    with pytest.raises(ValueError, match="give another one"):
        registered(wrinkled, name=f"{Tent.__module__}.Tent")


@pytest.mark.parametrize(
    ("thing", "name", "message"),
    [
        (3, None, "takes a class or a function"),
        (lambda x: x, None, "has no name by which"),
        (wrinkled, "kernax.kernels.RBF", "already used"),
        (wrinkled, "jax.nn.mine", "already used"),
        (object, None, "no declared fields"),
    ],
)
def test_what_cannot_be_registered(thing, name, message, registered):
    with pytest.raises((TypeError, ValueError), match=message):
        registered(thing, name=name)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": object()}, r"dict\['a'\] is a builtins.object"),
        (kx.RBF, "is the class RBF: save an instance"),
        ([2**70], r"list\[0\] is an integer of more than 64 bits"),
        ((1, {2}), r"tuple\[1\] is a builtins.set"),
        ([pd.NaT], r"list\[0\] is NaT"),
        (np.ma.array([1.0, 2.0], mask=[True, False]), "is a masked NumPy array"),
        (np.zeros(2, [("a", float)]), "which cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_named_and_leaves_no_file(value, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        kx.save(tmp_path / "it.kx", value)
    assert not list(tmp_path.iterdir())


def test_what_is_traced_cannot_be_saved(tmp_path):
    with pytest.raises(TypeError, match="being traced"):
        jax.jit(lambda x: kx.save(tmp_path / "it.kx", kx.RBF(x)))(1.0)


def test_fits_are_saved_although_their_optimiser_is_not(tmp_path):
    fits = kx.fit_many(PLAIN, [(X, Y), (X, 2 * Y)], optimiser=optax.adam(0.1), max_steps=2)
    kx.save(tmp_path / "it.kx", fits)
    loaded = kx.load(tmp_path / "it.kx")
    assert np.array_equal(loaded.value, fits.value)
    with pytest.raises(TypeError, match="was not saved with the fits: give it again"):
        kx.fitting.refit_many(loaded, [(X, Y), (X, 2 * Y)])
    kx.save(tmp_path / "again.kx", loaded)
    assert repr(kx.load(tmp_path / "again.kx").settings.optimiser) == repr(loaded.settings.optimiser)
    again = kx.fitting.refit_many(loaded, [(X, Y), (X, 2 * Y)], optimiser=optax.adam(0.1), max_steps=2)
    assert (again.value <= fits.value).all()


def test_an_older_file_lacks_a_field_that_has_a_default(tmp_path):
    from kernax.io._file import pack, unpack

    path = tmp_path / "it.kx"
    kx.save(path, kx.fit(PLAIN, DATA, max_steps=3))
    structure, arrays = unpack(path.read_bytes())
    del structure["value"]["fields"]["data"]
    path.write_bytes(pack(structure, arrays))
    assert kx.load(path).data is None
    del structure["value"]["fields"]["value"]
    path.write_bytes(pack(structure, arrays))
    with pytest.raises(kx.io.FileError, match="lacks the field 'value'"):
        kx.load(path)


def test_the_structure_is_json_with_a_version(tmp_path):
    kx.save(tmp_path / "it.kx", kx.RBF(2.0))
    with safetensors.safe_open(tmp_path / "it.kx", "numpy") as file:
        structure = json.loads(file.metadata()["kernax"])
    assert structure["format"] == 1
    assert structure["version"] == kx.__version__
    assert structure["value"]["class"] == "kernax.kernels.RBF"
