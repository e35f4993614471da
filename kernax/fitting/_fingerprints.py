"""What tells one model, objective or optimiser from another, so that a checkpoint is not taken for somebody else's."""

import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def fingerprint(thing: Any) -> str:
    """A digest, the same in every process, of a tree's structure and numbers, or of a function.

    Functions count by their code, their constants, what they close over, and the numbers and functions of their own module
    that they name: `optax.adam(1e-2)` is not `optax.adam(1e-3)`. Those of kernax count by their names.
    """
    hasher = hashlib.blake2b(digest_size=16)
    _add(hasher, thing, frozenset())
    return hasher.hexdigest()


def name_of(function: Callable[..., Any]) -> str:
    """A function by its name."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def described(thing: Any) -> str:
    """What is printed of it, without where in memory its functions lie."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _add(hasher: Any, thing: Any, above: frozenset[int]) -> None:
    """Feed the hasher with whatever distinguishes `thing`. `above` are the things that it is a part of."""
    hasher.update(str(type(thing)).encode())
    if isinstance(thing, str | bytes | int | float | complex | bool | None | type(Ellipsis)):
        hasher.update(repr(thing).encode())
        return
    if isinstance(thing, jax.Array) and jnp.issubdtype(thing.dtype, jax.dtypes.prng_key):
        thing = jax.random.key_data(thing)
    if isinstance(thing, np.ndarray | np.generic | jax.Array) and thing.dtype != object:
        array = np.asarray(thing)
        hasher.update(f"{array.dtype}{array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
        return
    if id(thing) in above:  # a function that calls itself, say
        return
    parts = _parts(thing)
    hasher.update(str(len(parts)).encode())
    for part in parts:
        _add(hasher, part, above | {id(thing)})


def _parts(thing: Any) -> list[Any]:
    """What it is made of; if that cannot be seen, what is printed of it."""
    if isinstance(thing, types.FunctionType):
        return _parts_of_function(thing)
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, types.CodeType):
        return [thing.co_code, thing.co_names, thing.co_consts]
    if isinstance(thing, list | tuple):
        return list(thing)
    if isinstance(thing, dict):
        return [[key, value] for key, value in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(map(described, thing))
    if isinstance(thing, type | types.ModuleType):
        return [described(thing)]
    if dataclasses.is_dataclass(thing):
        return [[field.name, getattr(thing, field.name, None)] for field in dataclasses.fields(thing)]
    wrapped = getattr(thing, "__wrapped__", None)  # under jax.jit, say
    if wrapped is not None:
        return [wrapped]
    attributes = getattr(thing, "__dict__", None)
    return [described(thing)] if not attributes else [type(thing), attributes]


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    if (function.__module__ or "").split(".")[0] == "kernax":
        return [name_of(function), cells if "<locals>" in function.__qualname__ else []]
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:  # a decorator's own affairs (caches, counters) are not the function's
        return [name_of(function), function.__code__, wrapped]
    named = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    own = [
        value
        for value in named
        if isinstance(value, int | float | complex | str | tuple | np.ndarray | jax.Array)
        or (isinstance(value, types.FunctionType) and value.__module__ == function.__module__)
    ]
    return [name_of(function), function.__code__, cells, own, function.__defaults__, function.__kwdefaults__]


def _contents(cell: Any) -> Any:
    """What a function closes over; of lists and dicts, which may change from call to call, only that they are such."""
    try:
        value = cell.cell_contents
    except ValueError:  # not yet assigned
        return None
    return str(type(value)) if isinstance(value, list | dict | set) else value
