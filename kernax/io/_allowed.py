"""The classes and functions that a file may refer to: a list, to which users can add their own."""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from kernax import learners, selection
from kernax.fitting._fits import Settings
from kernax.learners._features import columns
from kernax.parameters._fields import Setting
from kernax.rows import Functionals

_NAMES = """
    bijectors data fitting grams kernels learners means model noises observe parameters posterior priors rows selection
    solvers statistics
"""
_PACKAGES = tuple(f"kernax.{name}" for name in _NAMES.split())
"""Where kernax's own modules come from; packages above these register what they save."""

# Functions one by one, each of which computes and does nothing else: a file might name any of them, with any arguments, and
# `jax.numpy.save`, or a fit with a checkpoint, would write to any path.
_OBJECTIVES = "gcv kfold_mse log_marginal_likelihood loo_mse loo_negative_log_density negative_log_marginal_likelihood"
_ACTIVATIONS = """
    celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax mish relu relu6
    selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus swish tanh
"""
_ELEMENTWISE = """
    abs arccosh arcsinh arctan arctanh cbrt cos cosh exp exp2 expm1 log log10 log1p log2 negative ravel reciprocal sign
    sin sinc sinh sqrt square tan tanh
"""

_own: dict[str, Any] = {}


def register(thing: Any, *, name: str | None = None) -> Any:
    """Allow files to contain your own class or function. Call it before saving, and again before loading.

    It can also be used as a decorator.

    A file contains only the name. The program that loads the file decides what the name refers to. A class must be an
    Equinox module, a dataclass or a NamedTuple; its fields are saved, and set again without calling `__init__`.

    **Arguments:**

    - `thing`: the class or function.
    - `name`: its name in files; by default the name of its module, a dot, and its own name.

    **Returns:**

    `thing`, unchanged.
    """
    if not callable(thing):
        raise TypeError(f"register takes a class or a function, got {thing!r}.")
    if isinstance(thing, type) and not _has_fields(thing):
        raise TypeError(f"{thing.__qualname__} has no declared fields: make it an eqx.Module or a dataclass.")
    if name is None:
        name = f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"
        if "<" in name or name.startswith(".") or name.endswith("."):
            raise ValueError(f"{thing!r} has no name by which a file could refer to it: write register(it, name='…').")
    is_ours = getattr(thing, "__module__", "").split(".")[0] == "kernax"
    if name in _built_in() or (name.split(".")[0] in ("kernax", "equinox", "jax") and not is_ours):
        raise ValueError(f"the name {name!r} is already used by kernax, Equinox or JAX: give another one.")
    known = _own.get(name)
    # A class that is defined again (a cell of a notebook run twice) takes the place of its former self.
    if known is not None and (known.__module__, known.__qualname__) != (thing.__module__, thing.__qualname__):
        raise ValueError(f"the name {name!r} already belongs to {known!r}: give another one.")
    _own[name] = thing
    return thing


def name_of(thing: Any) -> str | None:
    """The name under which a class or function stands in files; None if it is not allowed."""
    for name, known in _own.items():
        if known is thing:
            return name
    return _built_in_names().get(id(thing))


def named(name: str) -> Any:
    """The class or function with this name; `None` if no allowed one has it."""
    return _own.get(name, _built_in().get(name))


def names() -> list[str]:
    """All names that are allowed."""
    return [*_own, *_built_in()]


def is_named_tuple(kind: type) -> bool:
    """Whether a class is a `NamedTuple`."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or is_named_tuple(kind)


def _own_modules(base: type) -> Iterator[type]:
    """Every concrete Equinox module that kernax defines: a new kernel or System can be saved without being listed."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith(_PACKAGES) and not inspect.isabstract(kind):
            yield kind
        yield from _own_modules(kind)


def _public_records() -> Iterator[type]:
    """Public dataclasses and named tuples of these packages that are no modules: constraints, priors, predictions."""
    for package in _PACKAGES:
        module = sys.modules[package]
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if isinstance(thing, type) and _has_fields(thing) and not inspect.isabstract(thing):
                yield thing


@functools.cache
def _built_in() -> dict[str, Any]:
    """All of kernax's own modules by package, its objectives, Equinox's layers, and JAX's elementwise functions."""
    found: dict[str, Any] = {}
    for kind in (*_own_modules(eqx.Module), *_public_records(), Setting, Settings):
        package = kind.__module__.split(".")[1]
        found[f"kernax.{package}.{kind.__name__}"] = kind
    # Older files name bijectors and priors by the package in which they were then.
    moved = [thing for name, thing in found.items() if name.startswith(("kernax.bijectors.", "kernax.priors."))]
    found |= {f"kernax.parameters.{thing.__name__}": thing for thing in moved}
    found |= {f"kernax.selection.{name}": getattr(selection, name) for name in _OBJECTIVES.split()}
    found |= {f"kernax.learners.{f.__name__}": f for f in (columns, learners.holdout_loss, learners.kfold_loss)}
    # What Equinox's networks have behind their last layer if nothing is given: a lambda without a name.
    found["equinox.nn.identity"] = inspect.signature(eqx.nn.MLP).parameters["final_activation"].default
    for name, thing in vars(eqx.nn).items():
        if isinstance(thing, type) and issubclass(thing, eqx.Module) and not name.startswith("_"):
            found[f"equinox.nn.{name}"] = thing
    found |= {f"jax.nn.{name}": getattr(jax.nn, name) for name in _ACTIVATIONS.split()}
    found["kernax.rows.Functionals"] = Functionals
    found |= {f"jax.lax.{f.__name__}": f for f in (jax.lax.add, jax.lax.max)}  # of Equinox's layers that pool
    found |= {f"jax.numpy.{name}": getattr(jnp, name) for name in _ELEMENTWISE.split()}
    return found


@functools.cache
def _built_in_names() -> dict[int, str]:
    # `jnp.sin` is also found elsewhere: the first name that was found stays.
    return {id(thing): name for name, thing in reversed(_built_in().items())}
