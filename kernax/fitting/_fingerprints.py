"""What tells one model, objective or optimiser from another, so that a checkpoint is not taken for somebody else's."""

import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


def fingerprint(tree: PyTree) -> str:
    """A digest of a tree's structure and numbers; functions in it count by what they do."""
    hasher = hashlib.blake2b(digest_size=16)
    _add(hasher, tree, set())
    return hasher.hexdigest()


def fingerprint_of_function(function: Callable[..., Any]) -> str:
    """A digest of a function's code, constants and what it closes over: `optax.adam(1e-2)` is not `optax.adam(1e-3)`."""
    return fingerprint(function)


def name_of(function: Callable[..., Any]) -> str:
    """A function by its name."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _add(hasher: Any, thing: Any, seen: set[int]) -> None:
    """Feed the hasher with whatever distinguishes `thing`; what cannot be looked into counts by its type."""
    if isinstance(thing, types.FunctionType | types.MethodType | types.CodeType | functools.partial) and id(thing) in seen:
        return
    seen.add(id(thing))
    hasher.update(str(type(thing)).encode())
    if isinstance(thing, types.FunctionType):
        hasher.update(name_of(thing).encode())
        _add(hasher, thing.__code__, seen)
        cells = [_contents(cell) for cell in thing.__closure__ or ()]
        _add(hasher, [cells, thing.__defaults__, thing.__kwdefaults__], seen)
    elif isinstance(thing, types.MethodType):
        _add(hasher, [thing.__func__, thing.__self__], seen)
    elif isinstance(thing, functools.partial):
        _add(hasher, [thing.func, thing.args, thing.keywords], seen)
    elif isinstance(thing, types.CodeType):
        hasher.update(thing.co_code)
        _add(hasher, [thing.co_names, thing.co_consts], seen)
    elif isinstance(thing, str | bytes | int | float | complex | bool | None | type(Ellipsis)):
        hasher.update(repr(thing).encode())
    elif isinstance(thing, list | tuple):
        for part in thing:
            _add(hasher, part, seen)
    elif isinstance(thing, np.ndarray | np.generic | jax.Array) and thing.dtype != object:
        array = np.asarray(thing)
        hasher.update(f"{array.dtype}{array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    else:
        leaves, structure = jax.tree.flatten(thing)
        if not (len(leaves) == 1 and leaves[0] is thing):
            hasher.update(str(structure).encode())
            _add(hasher, leaves, seen)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None
