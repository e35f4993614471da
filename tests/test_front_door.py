"""The names of `import kernax as kx`, the names that have moved, and what results and errors say."""

import importlib
import inspect
import pickle
import subprocess
import sys
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax import solvers

# Every name of kernax 0.1 that is no longer at the top, and where it is now. Written out, so that none gets lost.
OLD_NAMES = {
    "AbstractActivation": "kernels",
    "AbstractBijector": "bijectors",
    "AbstractModel": "model",
    "AbstractNetwork": "kernels",
    "AbstractSolver": "solvers",
    "AbstractStationary": "kernels",
    "Conditioned": "model",
    "ConditionedMany": "fitting",
    "Discrepancy": "selection",
    "Erf": "kernels",
    "FileError": "io",
    "Fit": "fitting",
    "Fits": "fitting",
    "Gamma": "priors",
    "GaussianPair": "kernels",
    "HalfNormal": "priors",
    "Interval": "bijectors",
    "LCurve": "selection",
    "LikelihoodTerms": "selection",
    "LogNormal": "priors",
    "Normal": "priors",
    "Parameter": "parameters",
    "Parametrised": "parameters",
    "Positive": "bijectors",
    "Power": "kernels",
    "Prediction": "posterior",
    "Product": "kernels",
    "ReLU": "kernels",
    "Real": "bijectors",
    "Report": "reports",
    "RidgeChoice": "selection",
    "RidgePath": "selection",
    "Scale": "kernels",
    "SelectorTable": "selection",
    "Softplus": "bijectors",
    "Sum": "kernels",
    "condition_many": "fitting",
    "constrain": "parameters",
    "default_ridges": "selection",
    "effective_degrees_of_freedom": "selection",
    "error_bound": "posterior",
    "fold_mse": "selection",
    "interval": "parameters",
    "lbfgs": "fitting",
    "likelihood_terms": "selection",
    "log_jacobian": "parameters",
    "log_posterior": "fitting",
    "log_prior": "parameters",
    "negative_log_marginal_likelihood": "selection",
    "negative_log_predictive_density": "posterior",
    "non_negative": "parameters",
    "ravel": "parameters",
    "real": "parameters",
    "refit_many": "fitting",
    "rkhs_inner": "posterior",
    "rkhs_norm": "posterior",
    "trainable": "parameters",
    "unconstrain": "parameters",
}
RESULTS = {name: getattr(kx.Result, name) for name in kx.Result._name_to_item}


def line_number() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_the_top_has_the_names_of_every_day_and_no_others():
    shown = [name for name in dir(kx) if name != "__version__"]
    assert set(shown) == {*kx.__all__, "plot"}
    assert len(kx.__all__) == len(set(kx.__all__))
    names = [name for name in kx.__all__ if not inspect.ismodule(getattr(kx, name))]
    assert 50 <= len(names) <= 76


@pytest.mark.parametrize(
    "module", ["", ".bijectors", ".kernels", ".means", ".parameters", ".posterior", ".priors", ".solvers"]
)
def test_no_two_names_differ_by_case_only(module):
    module = importlib.import_module(f"kernax{module}")
    # A package and the class after which it is named (`kx.data`, `kx.Data`) are not mistaken for each other.
    names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    assert not [name for name, count in Counter(name.lower() for name in names).items() if count > 1]


@pytest.mark.parametrize("name", OLD_NAMES)
def test_an_old_name_works_and_warns_at_the_line_that_uses_it(name):
    place = OLD_NAMES[name]
    assert name not in dir(kx)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, line = getattr(kx, name), line_number()
    assert found is getattr(importlib.import_module(f"kernax.{place}"), name)
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert str(warning.message) == f"kx.{name} is deprecated: write kx.{place}.{name}. It will be removed in kernax 0.3."


def test_imports_of_old_names_warn_at_their_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from kernax import Interval as Top
        from kernax.parameters import Interval as Inner

        line = line_number() - 3
    assert Top is Inner is kx.bijectors.Interval
    # Python looks a name up twice while it imports; its default filter shows a warning once per line.
    assert {(w.filename, w.lineno, str(w.message).split(":")[0]) for w in caught} == {
        (__file__, line, "kx.Interval is deprecated"),
        (__file__, line + 1, "kx.parameters.Interval is deprecated"),
    }


def test_new_names_do_not_warn_and_unknown_ones_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in dir(kx):
            getattr(kx, name)
    with pytest.raises(AttributeError, match="module 'kernax' has no attribute 'RFB'"):
        kx.RFB  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'kernax\.parameters' has no attribute 'Infinite'"):
        kx.parameters.Infinite  # noqa: B018


def test_report_is_a_function_and_no_module():
    assert callable(kx.report)
    with pytest.raises(ModuleNotFoundError, match=r"kernax\.report"):
        importlib.import_module("kernax.report")
    assert inspect.ismodule(importlib.import_module("kernax.reports"))


def test_plot_and_scipy_are_imported_on_first_use_only():
    code = """
import sys, jax
known = set(sys.modules)
import kernax as kx
assert not [name for name in sys.modules if name.startswith(("matplotlib", "kernax.plot"))]
assert not [name for name in set(sys.modules) - known if name.startswith("scipy.")]
sys.modules["matplotlib"] = None
assert not hasattr(kx, "plot")
try:
    kx.plot
except AttributeError as error:
    assert "pip install matplotlib" in str(error), error
del sys.modules["matplotlib"]
assert callable(kx.plot.posterior)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_its_name_what_happened_and_what_to_do(name):
    result = RESULTS[name]
    meaning, advice = solvers.result_meaning(result), solvers.result_advice(result)
    assert solvers.result_name(result) == name
    assert kx.Result[result] == f"{meaning} {advice}".strip()
    assert solvers.result_text(result) == f"{name}: {kx.Result[result]}"
    for text in (meaning, advice):
        assert (text[:1].isupper() and text[-1] in ".)") or (text is advice and name == "successful" and not text)
        assert name not in text.split()  # the name is not repeated in the text


def test_the_result_of_a_computation_has_the_same_words():
    codes = jnp.arange(len(RESULTS))
    results = jax.vmap(lambda code: jax.tree.map(lambda _: code, kx.Result.successful))(codes)
    for i, name in enumerate(RESULTS):
        assert solvers.result_name(jax.tree.map(lambda leaf, i=i: leaf[i], results)) == name
    with pytest.raises(ValueError, match=rf"one result, and this is a batch of shape \({len(RESULTS)},\)"):
        solvers.result_name(results)
    seen = []
    jax.jit(lambda result: seen.append(solvers.result_name(result)))(kx.Result.flat)
    assert seen == ["traced"]


def test_an_error_tells_its_result():
    twice = kx.Data(np.zeros((2, 1)), [0.0, 1.0])
    with pytest.raises(kx.FailedError) as caught:
        kx.condition(kx.Model(kx.RBF(), noise=0.0), twice)
    error = caught.value
    assert error.result is kx.Result.singular
    assert error.name == "singular"
    assert error.advice == solvers.result_advice(kx.Result.singular)
    assert error.explanation == f"conditioning failed. singular: {kx.Result[kx.Result.singular]}"
    assert str(error) == f"{error.explanation} (throw=False returns the status instead.)"
    error.advice = "Change this, or that."
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert str(copy).endswith("diagonal. Change this, or that. (throw=False returns the status instead.)")
    assert copy.result == kx.Result.singular


@pytest.mark.parametrize("value", [kx.bijectors.Interval(0.1, 10.0), kx.priors.LogNormal(0.0, 1.0)])
def test_files_name_bijectors_and_priors_by_their_old_or_their_new_place(value):
    from kernax.io import _allowed

    kind = type(value)
    assert _allowed.name_of(kind) == f"{kind.__module__}.{kind.__name__}"
    assert _allowed.named(f"kernax.parameters.{kind.__name__}") is kind
