"""Work, blocks and parts as bytes, for other processes."""

import functools
import importlib
import io
import pickle
import sys
import traceback
from typing import Any, NamedTuple

import equinox as eqx
import jax

from kernax._threads import one_blas_thread
from kernax._version import __version__
from kernax.fitting._blocks import Spec, run_block


class Failure(NamedTuple):
    """What a worker process sends instead of a part if the computation raised. The worker itself is well."""

    error: Exception
    traceback: str
    """The worker's: an error that is pickled loses its own."""


def sealed(thing: Any) -> bytes:
    """A spec, a block or a part as bytes for another process. Raises `TypeError` with a remedy if that is not possible.

    cloudpickle, where it is installed, also sends lambdas, closures, and functions of a notebook or a script.
    """
    try:
        return _pickled(thing)
    except Exception as error:
        which = "the objective, solver, optimiser or model"
        for name, part in thing.work.named().items() if isinstance(thing, Spec) else ():
            try:
                _pickled(part)
            except Exception:
                which = f"the {name}"
                break
        raise TypeError(
            f"{which} cannot be sent to other processes: {error}. Define classes at the top of a module that is installed "
            "there. Define functions at the top of such a module, too, or anywhere if cloudpickle is installed (pip install "
            "cloudpickle; loky and Dask bring it); they must not hold open files, locks and the like."
        ) from error


def _pickled(thing: Any) -> bytes:
    try:
        pickler: Any = importlib.import_module("cloudpickle").Pickler
    except ImportError:
        pickler = pickle.Pickler

    class Sealing(pickler):
        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would make a class without fields of it: the worker's kernel would have no parameters.
            if isinstance(obj, type) and issubclass(obj, eqx.Module) and not _is_importable(obj):
                raise TypeError(
                    f"the class {obj.__qualname__} of {obj.__module__} is not at the top of a module that can be imported"
                )
            inherited = getattr(super(), "reducer_override", None)
            return NotImplemented if inherited is None else inherited(obj)

    content = io.BytesIO()
    Sealing(content).dump(thing)
    return content.getvalue()


def _is_importable(kind: type) -> bool:
    """Whether another process finds the class by its name."""
    found = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def versions() -> dict[str, str]:
    """What must be the same in this process and in a worker."""
    return {"kernax": __version__, "jax": jax.__version__}


def run_sealed(wanted: dict[str, str], spec: bytes, block: bytes) -> bytes:
    """`run_block` in a worker process: a pickled `Part`, or a pickled `Failure` if the computation raises.

    `wanted` has the `versions` of the sender. They are compared first: what another version has pickled may not load.
    """
    try:
        if wanted != versions():
            there, here = (", ".join(f"{name} {number}" for name, number in v.items()) for v in (versions(), wanted))
            raise RuntimeError(f"a worker has {there}, but this process has {here}: install the same versions.")
        opened = _opened(spec)
        with jax.enable_x64(opened.is_float64), one_blas_thread():
            return sealed(run_block(opened, pickle.loads(block)))
    except Exception as error:
        told = traceback.format_exc()
        try:
            answer = pickle.dumps(Failure(error, told))
            pickle.loads(answer)
        except Exception:
            answer = pickle.dumps(Failure(RuntimeError(f"{type(error).__name__}: {error}"), told))
        return answer


@functools.lru_cache(maxsize=8)
def _opened(spec: bytes) -> Spec:
    """The same object for the same bytes, so that programs are compiled once."""
    try:
        return pickle.loads(spec)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"a worker process cannot load the objective, solver, optimiser or kernel ({error}). Install the module that "
            "defines it there. What is defined in a notebook or a script is sent if cloudpickle is installed here and there."
        ) from error
