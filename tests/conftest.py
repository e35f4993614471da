"""Float64 throughout, and every shape that kernax promises checked at every call."""

import gc
import os

# Two test processes on two cores: BLAS threads that wait for each other would spend most of the time waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# scikit-learn checks input of other array libraries only if this is set, before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
# Most of the time is spent on compiling small programs that run once. It is faster without the optimisations of LLVM, with
# the older fusion emitters, with one object file instead of several, and with the simpler scheduler. Flags that are already
# in XLA_FLAGS come last and take precedence. KERNAX_TEST_XLA_DEFAULTS=1 leaves XLA_FLAGS alone, to test the code that users
# run.
os.environ["XLA_FLAGS"] = (
    (
        "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
        "--xla_llvm_disable_expensive_passes=true --xla_cpu_enable_concurrency_optimized_scheduler=false "
    )
    * (os.environ.get("KERNAX_TEST_XLA_DEFAULTS") != "1")
    + os.environ.get("XLA_FLAGS", "")
).strip()

import jax
import pytest
from jaxtyping import install_import_hook
from xdist.scheduler import LoadFileScheduling

import tests.typechecker  # noqa: F401  (so that the hook finds it by name)

jax.config.update("jax_enable_x64", True)

with install_import_hook("kernax", "tests.typechecker.typechecked"):
    import kernax  # noqa: F401


LONGEST = ("test_systems", "test_docs", "test_readme", "test_devices", "test_state_space", "test_cli", "test_sklearn")


def pytest_collection_modifyitems(items):
    """The longest files first: begun last, one of them would leave the other process idle."""

    def place(item):
        name = item.path.stem
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_collection_finish():
    """Tracing makes so many objects that a tenth of the time would go to looking for garbage among those of the imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(optionalhook=True)  # the tests also run without xdist
def pytest_xdist_make_scheduler(config, log):
    """A file's tests in one process: its fixtures are made once, and its programs compiled once."""
    config.option.loadscopereorder = False  # in the order above, and not the files with most tests first
    return LoadFileScheduling(config, log)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A file's programs are of no use to the next. A process may hold some ten thousand of them, and then crashes."""
    yield
    jax.clear_caches()


def pytest_unconfigure():
    """What was frozen is freed, or DuckDB complains of leaks at the end of the process."""
    gc.unfreeze()
