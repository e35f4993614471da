"""H51: checkpoints of functions and classes that look the same but compute something else."""

import json
import os
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax._fingerprints import fingerprint
from kernax.fitting import _checkpoint, _many

MODULE = "module_of_a_user"
HEADER = """
import dataclasses, functools, math, operator
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import kernax as kx
"""


def run(source, value=1.0, name=MODULE):
    """The names that a module of a user would have; made anew in every call, as in every process."""
    module = types.ModuleType(name)
    exec(HEADER + textwrap.dedent(source).replace("VALUE", repr(value)), vars(module))
    return module


# Each of these defines `thing` from VALUE. Another VALUE must be seen.
CHANGES = {
    "a closed-over list": """
        def make(weights):
            return lambda c: weights[0] * c
        thing = make([VALUE])
    """,
    "a closed-over dict": """
        def make(weights):
            return lambda c: weights["a"]["b"] * c
        thing = make({"a": {"b": np.array([VALUE])}})
    """,
    "a closed-over set": """
        def make(weights):
            return lambda c: sum(weights) * c
        thing = make({VALUE, "a", ("b", 2)})
    """,
    "a global list": """
        WEIGHTS = [VALUE]
        def thing(c):
            return WEIGHTS[0] * c
    """,
    "a global object": """
        class Options:
            def __init__(self, value):
                self.value = value
        OPTIONS = Options(VALUE)
        def thing(c):
            return OPTIONS.value * c
    """,
    "a global of a function within": """
        SCALE = VALUE
        def thing(c):
            return (lambda a: SCALE * a)(c)
    """,
    "a constant of a function within": """
        def thing(c):
            return [VALUE * a for a in c]
    """,
    "a default": """
        def thing(c, scale=VALUE):
            return scale * c
    """,
    "a default by keyword": """
        def thing(c, *, scale=VALUE):
            return scale * c
    """,
    "a default of a helper in a list": """
        def helper(c, scales=[VALUE]):
            return scales[0] * c
        HELPERS = [helper]
        def thing(c):
            return HELPERS[0](c)
    """,
    "a helper of a helper": """
        def second(c):
            return VALUE * c
        def first(c):
            return second(c)
        def thing(c):
            return first(c)
    """,
    "helpers that call each other": """
        def even(c, n):
            return c if n == 0 else odd(c, n - 1)
        def odd(c, n):
            return VALUE if n == 0 else even(c, n - 1)
        def thing(c):
            return even(c, 3)
    """,
    "a decorator": """
        def scaled(scale):
            def decorate(function):
                @functools.wraps(function)
                def wrapper(c):
                    return scale * function(c)
                return wrapper
            return decorate
        @scaled(VALUE)
        def thing(c):
            return c
    """,
    "an attribute of a function": """
        def helper(c):
            return helper.scale * c
        helper.scale = VALUE
        thing = jax.jit(helper)
    """,
    "under functools.lru_cache": """
        @functools.lru_cache
        def helper(n):
            return VALUE * n
        def thing(c):
            return helper(2) * c
    """,
    "under jax.vmap of jax.grad": """
        def helper(c):
            return VALUE * c
        thing = jax.vmap(jax.grad(helper))
    """,
    "what jax.vmap is given": """
        thing = jax.vmap(lambda c: 1.0 * c, in_axes=int(VALUE))
    """,
    "the derivative of jax.custom_jvp": """
        @jax.custom_jvp
        def helper(c):
            return c
        @helper.defjvp
        def rule(primals, tangents):
            return primals[0], VALUE * tangents[0]
        def thing(c):
            return helper(c)
    """,
    "under eqx.filter_jit": """
        def helper(scale, c):
            return scale * c
        thing = functools.partial(eqx.filter_jit(helper), [VALUE])
    """,
    "a bound method": """
        @dataclasses.dataclass
        class Options:
            value: float
            def __call__(self, c):
                return self.value * c
        thing = Options(VALUE).__call__
    """,
    "a method of a dataclass": """
        @dataclasses.dataclass
        class Options:
            value: float
            def of(self, c):
                return VALUE * c
        OPTIONS = Options(3.0)
        def thing(c):
            return OPTIONS.of(c)
    """,
    "a property of a base class": """
        class Base:
            @property
            def value(self):
                return VALUE
        class Options(Base):
            pass
        thing = Options()
    """,
    "a compiled method": """
        class Network(eqx.Module):
            weight: jax.Array
            @eqx.filter_jit
            def __call__(self, x):
                return VALUE * self.weight * x
        thing = kx.Warp(kx.RBF(), Network(jnp.ones(1)))
    """,
    "the pair of a kernel": """
        class Own(kx.AbstractKernel):
            lengthscale: jax.Array = kx.positive(default=1.0)
            def pair(self, x, y):
                return jnp.exp(-jnp.abs(x[0] - y[0]) ** VALUE / self.lengthscale)
        thing = kx.Model(1.0 * Own(), noise=0.1)
    """,
    "the bijector of a field": """
        class Own(kx.kernels.AbstractStationary):
            lengthscale: jax.Array = kx.parameters.interval(0.0, 1.0 + VALUE, default=0.5)
            def of_squared_distance(self, s):
                return jnp.exp(-s)
        thing = Own(lengthscale=1.0)
    """,
    "a rate of optax": """
        thing = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(optax.exponential_decay(VALUE, 10, 0.9)))
    """,
    "a mask of optax": """
        thing = optax.masked(optax.sgd(0.1), {"a": VALUE > 1.0, "b": True})
    """,
    "a masked array": """
        thing = np.ma.masked_greater(np.array([1.0, 1.5]), VALUE)
    """,
    "a random key": """
        thing = jax.random.key(int(VALUE))
    """,
    "an array of objects": """
        thing = np.array([None, VALUE], dtype=object)
    """,
}


@pytest.mark.parametrize("source", CHANGES.values(), ids=CHANGES)
def test_h51_every_change_is_seen(source):
    first, again, other = (fingerprint(run(source, value).thing) for value in (1.0, 1.0, 2.0))
    assert first == again
    assert first != other


OBJECTIVES = {
    "by attribute": "import helpers_of_a_user\ndef thing(c): return helpers_of_a_user.loss(c)",
    "by name": "from helpers_of_a_user import loss\ndef thing(c): return loss(c)",
    "within": "def thing(c):\n    from helpers_of_a_user import loss\n    return loss(c)",
    "within, by attribute": "def thing(c):\n    import helpers_of_a_user as helpers\n    return helpers.loss(c)",
    "a submodule": "def thing(c):\n    from package_of_a_user import helpers\n    return helpers.loss(c)",
    "through a package": "import package_of_a_user.helpers\ndef thing(c): return package_of_a_user.helpers.loss(c)",
}


@pytest.mark.parametrize("source", OBJECTIVES.values(), ids=OBJECTIVES)
def test_h51_helpers_of_other_modules_are_followed(source, tmp_path, monkeypatch):
    """Whether or not the function has run before, and has imported them."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "package_of_a_user").mkdir()
    (tmp_path / "package_of_a_user" / "__init__.py").write_text("")
    found = []
    for scale in (2.0, 2.0, 3.0):
        for path in (tmp_path / "helpers_of_a_user.py", tmp_path / "package_of_a_user" / "helpers.py"):
            path.write_text(
                f"def loss(c): return second(c)\ndef second(c): return {scale} * c\ndef unused(c): return {len(found)}"
            )
            os.utime(path, (0, len(found)))  # Python tells sources of the same length apart by their age
        for name in [name for name in sys.modules if "_of_a_user" in name]:
            monkeypatch.delitem(sys.modules, name)
        module = run(source)
        found.append(fingerprint(module.thing))
        assert module.thing(1.0) == scale
        assert fingerprint(module.thing) == found[-1]
    assert found[0] == found[1] != found[2]


# What must be the same in every process.
SAME = """
class Own(kx.kernels.AbstractStationary):
    lengthscale: jax.Array = kx.positive(default=1.0)
    names: frozenset = eqx.field(static=True, default=frozenset("abcdef"))

    def of_squared_distance(self, s):
        return jnp.exp(-s) if "a" in {"a", "b", "c"} else s


@dataclasses.dataclass
class Options:
    names: set
    scale: float = 2.0

    def __call__(self, c):
        return self.scale * len(self.names)


def helper(c, options=Options(set("abcdef"))):
    return options(c) + math.pi + operator.add(1.0, np.sin(2.0))


def make(weights, functions):
    @jax.jit
    def objective(c):
        return sum(function(c) for function in functions) * len(weights) + jnp.tanh(KEY.size) + kx.loo_mse(c)
    return objective


KEY = jax.random.key(3)
network = eqx.nn.MLP(1, 1, 2, 1, activation=jax.nn.gelu, key=KEY)
things = {
    "model": kx.Model(Own(lengthscale=1.0) * kx.Warp(kx.RBF(), network) + 2.0 * kx.Linear(), noise=0.5),
    "objective": make({"a": set("abcdef"), "b": [frozenset("xyz")]}, [helper, jnp.sum, Options(set("xyz")), len]),
    "functions": {helper, jnp.sum, jax.nn.relu, np.sin, np.mean, len, Own, kx.loo_mse, math.sin},
    "adam": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(optax.cosine_decay_schedule(1.0, 10))),
    "lbfgs": kx.fitting.lbfgs(),
    "injected": optax.inject_hyperparams(optax.adamw)(learning_rate=0.1),
    "split": optax.multi_transform({"a": optax.adam(1.0), "b": optax.sgd(0.1)}, {"x": "a", "y": "b"}),
    "partial": functools.partial(helper, options=Options(set("pq"))),
    "unravel": jax.flatten_util.ravel_pytree({"a": jnp.ones(2), "b": (jnp.zeros(1), 3.0)})[1],
    "transformed": jax.checkpoint(jax.vmap(jax.value_and_grad(helper), in_axes=(0, None))),
    "filtered": eqx.filter_jit(eqx.filter_value_and_grad(helper)),
    "log posterior": kx.fitting.log_posterior,
    "solver": kx.Eigh(),
}
"""
PRINT = """
import json
from kernax._fingerprints import fingerprint
print(json.dumps({name: fingerprint(thing) for name, thing in things.items()}))
"""


def test_h51_fingerprints_are_the_same_in_every_process():
    """With another order of sets, and without the checks of types that tests add to kernax."""
    here = {name: fingerprint(thing) for name, thing in run(SAME, name="__main__").things.items()}
    assert len(set(here.values())) == len(here)
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "JAX_ENABLE_X64": "1"}
        command = [sys.executable, "-c", HEADER + SAME + PRINT]
        there = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert there.returncode == 0, there.stderr
        assert json.loads(there.stdout.splitlines()[-1]) == here


# The same through `fit_many`: refused before anything is fitted.

SETS = [(np.linspace(0.0, 1.0, n)[:, None], np.linspace(1.0, 3.0, n) ** 2) for n in (5, 6)]
OBJECTIVE = """
    WEIGHTS = {"noise": VALUE}
    def helper(c):
        return WEIGHTS["noise"] * jnp.log(c.model.noise)
    def thing(c):
        return helper(c)
"""
KERNEL = """
    class Own(kx.kernels.AbstractStationary):
        lengthscale: jax.Array = kx.positive(default=1.0)
        def of_squared_distance(self, s):
            return jnp.exp(-VALUE * s)
    thing = kx.Model(1.0 * Own(lengthscale=1.0), noise=0.5)
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    return folder, kx.fit_many(run(KERNEL).thing, SETS, objective=run(OBJECTIVE).thing, max_steps=1, checkpoint=folder)


def resumed(folder, model=1.0, objective=1.0):
    """Nothing is to be fitted."""
    objective = objective if callable(objective) else run(OBJECTIVE, objective).thing
    return kx.fit_many(run(KERNEL, model).thing, SETS, objective=objective, max_steps=1, checkpoint=folder)


@pytest.fixture
def no_fit(monkeypatch):
    def fitted(spec, blocks, *rest, **options):
        assert not blocks, "something is fitted"

    monkeypatch.setattr(_many, "run_blocks", fitted)


def test_h51_the_same_functions_resume(kept, no_fit):
    folder, fits = kept
    np.testing.assert_array_equal(resumed(folder).value, fits.value)


def test_h51_another_content_is_refused_by_name(kept, no_fit):
    folder, _ = kept
    with pytest.raises(
        ValueError, match=rf"differs in objective \(WEIGHTS of {MODULE}.helper is not the same.*Give another folder, delete"
    ):
        resumed(folder, objective=2.0)
    with pytest.raises(ValueError, match=rf"differs in model \(code of {MODULE}.Own.of_squared_distance is not the same"):
        resumed(folder, model=2.0)


# What an objective uses, `SCALE` of a module or VALUE, and the ways in which it gets there.
WITH_HELPERS = "import functools, importlib, sys\nimport helpers_of_a_user\nimport package_of_a_user.part\n"
REACHED = {
    "a list in a closure": "def make(numbers): return lambda c: numbers[1][0] * c\nthing = make([1.0, [VALUE]])",
    "a default argument": "def thing(c, scale=VALUE): return scale * c",
    "a helper in another module": "def thing(c): return helpers_of_a_user.helper(c)",
    "an attribute of a class there": "def thing(c): return helpers_of_a_user.Config.scale * c",
    "getattr": "def thing(c): return getattr(helpers_of_a_user, 'SCALE') * c",
    "getattr of a submodule": "def thing(c): return getattr(package_of_a_user.part, 'SCALE') * c",
    "getattr within": "def thing(c):\n    import helpers_of_a_user as h\n    return getattr(h, 'SCALE') * c",
    "getattr of a part": "def thing(c):\n    from package_of_a_user import part as h\n    return getattr(h, 'SCALE') * c",
    "vars": "def thing(c): return vars(helpers_of_a_user)['SCALE'] * c",
    "__dict__": "def thing(c): return helpers_of_a_user.__dict__['SCALE'] * c",
    "another name": "def thing(c):\n    h = helpers_of_a_user\n    return h.SCALE * c",
    "a dictionary": "modules = {'h': helpers_of_a_user}\ndef thing(c): return modules['h'].SCALE * c",
    "a closure": "def make(h): return lambda c: (lambda: getattr(h, 'SCALE') * c)()\nthing = make(helpers_of_a_user)",
    "a module as default argument": "def thing(c, h=helpers_of_a_user): return h.SCALE * c",
    "a module as argument": "def loss(c, h): return h.SCALE * c\nthing = functools.partial(loss, h=helpers_of_a_user)",
    "a class": """
class Loss:
    h = helpers_of_a_user
    def __call__(self, c):
        return self.h.SCALE * c
thing = Loss()
""",
    "sys.modules": "def thing(c): return sys.modules['helpers_of_a_user'].SCALE * c",
    "import_module": "def thing(c): return importlib.import_module('helpers_of_a_user').SCALE * c",
    "globals": "SCALE = VALUE\ndef thing(c): return globals()['SCALE'] * c",
    "eval": "SCALE = VALUE\ndef thing(c): return eval('SCALE') * c",
}
HELPERS = """
SCALE = {value}
class Config:
    scale = {value}
def helper(c):
    return second(c)
def second(c):
    return SCALE * c
"""


def reached(source, value, folder, monkeypatch, helpers=HELPERS):
    """The objective of a source, whose helper modules have this value."""
    (folder / "package_of_a_user").mkdir(exist_ok=True)
    (folder / "package_of_a_user" / "__init__.py").write_text("")
    for path in (folder / "helpers_of_a_user.py", folder / "package_of_a_user" / "part.py"):
        path.write_text(helpers.format(value=value))
        os.utime(path, (0, value))  # Python tells sources of the same length apart by their age
    for name in [name for name in sys.modules if "_of_a_user" in name]:
        monkeypatch.delitem(sys.modules, name)
    return run(WITH_HELPERS + source, value).thing


@pytest.mark.parametrize("source", REACHED.values(), ids=REACHED)
def test_h51_whatever_an_objective_reaches_is_compared(source, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_many, "run_blocks", lambda *given, **options: {})  # which functions there are is known before
    for value in (1.0, 1.0):
        resumed(tmp_path / "kept", objective=reached(source, value, tmp_path, monkeypatch))
    with pytest.raises(ValueError, match="differs in objective"):
        resumed(tmp_path / "kept", objective=reached(source, 2.0, tmp_path, monkeypatch))


def test_h51_a_module_that_cannot_be_read_is_refused_if_it_counts_whole(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_many, "run_blocks", lambda *given, **options: {})
    unreadable = "import threading\nLOCK = threading.Lock()\nSCALE = {value}"
    words = r"cannot record LOCK of the module helpers_of_a_user: .* All of the module helpers_of_a_user counts, since it is"
    with pytest.raises(ValueError, match=words):
        resumed(tmp_path / "kept", objective=reached(REACHED["getattr"], 1.0, tmp_path, monkeypatch, unreadable))
    named = "def thing(c): return helpers_of_a_user.SCALE * c"
    resumed(tmp_path / "kept", objective=reached(named, 1.0, tmp_path, monkeypatch, unreadable))


def test_h51_another_version_is_refused(kept, no_fit, monkeypatch):
    folder, fits = kept
    monkeypatch.setattr(_checkpoint, "__version__", "99.0")
    with pytest.raises(ValueError, match=r"differs in kernax \(kernax there: .*; here: 99.0\)"):
        resumed(folder)
    monkeypatch.undo()
    monkeypatch.setattr(jax, "__version__", "99.0")  # differences of rounding at most
    np.testing.assert_array_equal(resumed(folder).value, fits.value)


def test_h51_what_has_no_content_is_refused_before_anything_is_written(tmp_path, no_fit):
    with open(os.devnull) as file:
        for unreadable, kind in ((file, "_io.TextIOWrapper"), ((i for i in range(3)), "builtins.generator")):

            def objective(c, unreadable=unreadable):
                del unreadable
                return jnp.log(c.model.noise)

            with pytest.raises(
                ValueError, match=rf"cannot record defaults of .*objective: the content of a {kind} cannot be read"
            ):
                resumed(tmp_path / "new", objective=objective)
    assert not (tmp_path / "new").exists()


def test_what_has_no_content_is_no_matter_without_a_checkpoint():
    with open(os.devnull) as file:
        fits = kx.fit_many(
            kx.Model(1.0 * kx.RBF(), noise=0.5), SETS, objective=lambda c: jnp.log(c.model.noise) + file.closed, max_steps=1
        )
    assert len(fits) == 2


@pytest.mark.parametrize(
    "fitted",
    [
        lambda objective, folder: (
            kx.fit(kx.Model(kx.RBF(0.5), 0.1), kx.Data(*SETS[0]), objective=objective, checkpoint=folder, max_steps=30).value
        ),
        lambda objective, folder: kx.fit_many(
            kx.Model(kx.RBF(0.5), 0.1), SETS[:1], objective=objective, checkpoint=folder, max_steps=30
        ).value[0],
    ],
)
def test_h51_a_list_changes_between_two_runs_in_one_process(fitted, tmp_path):
    """JAX finds compiled programs by the identity of functions; the program of the old list must not be used."""
    weights = [1.0]

    def objective(c):
        return weights[0] * kx.loo_mse(c)

    first = fitted(objective, tmp_path / "1")
    weights[0] = 2.0
    np.testing.assert_allclose(fitted(objective, tmp_path / "2"), 2.0 * first, rtol=1e-4)
