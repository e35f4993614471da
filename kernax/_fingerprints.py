"""Digests of arrays, models, objectives and optimisers, so that a checkpoint is never used for another fit.

Values count by their content, and functions and classes of the user by their code and by all that they use. Of a module of
the user count the parts that are used, if functions name them (`helpers.scale`), else all parts. Functions, classes and
modules of installed packages count by their names, and by the version of the package. Anything else is refused.
"""

import contextlib
import copyreg
import functools
import hashlib
import pickle
import re
import sys
import types
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernax._uses import has_installed_name, is_installed, used, version_of, without_type_checks

DIGEST_BYTES = 16
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
_BY_NAME_ONLY = {"kernax", "jax", "jaxlib", "numpy"}
"""Packages whose versions are not part of a digest: that of kernax is recorded beside it, and the others change rounding."""
_CODE = (property, classmethod, staticmethod)
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def fingerprint(thing: Any, name: str = "it", seen: dict[str, Any] | None = None) -> str:
    """A digest of a value, a tree or a function that is the same in every process.

    **Arguments:**

    - `thing`: what to digest.
    - `name`: what to call it in an error.
    - `seen`: a dictionary that receives the digests of the parts and the versions of packages, to say later what differs.

    **Returns:**

    A string of hexadecimal digits. Raises `ValueError` if the content of a part cannot be read.
    """
    return _Walk(name, {} if seen is None else seen).digest(thing)


def digest_of(arrays: Iterable[Any]) -> np.ndarray:
    """A digest of the types, shapes and numbers of arrays, in `DIGEST_BYTES` bytes. Those in a file are read once."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for array in arrays:
        hasher.update(f"{array.dtype}{array.shape}".encode())
        for block in array.blocks() if hasattr(array, "blocks") else [array]:
            hasher.update(np.ascontiguousarray(block).tobytes())
    return np.frombuffer(hasher.digest(), np.uint8)


def name_of(thing: Any) -> str:
    """The name of a function or class, with its module."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def described(thing: Any) -> str:
    """The representation of an object, without memory addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


class _Walk:
    """One walk through an object and its parts."""

    def __init__(self, name: str, seen: dict[str, Any]):
        self._trail, self._seen = [name], seen
        self._above: list[int] = []
        # Kept with the objects themselves: the id of an object that is gone may be used again.
        self._known: dict[int, tuple[Any, str]] = {}

    def digest(self, thing: Any) -> str:
        if type(thing) in _PLAIN:
            return _hash(type(thing).__name__, repr(thing))
        if isinstance(thing, jax.Array) and jnp.issubdtype(thing.dtype, jax.dtypes.prng_key):
            return _hash("key", str(jax.random.key_impl(thing)), self.digest(jax.random.key_data(thing)))
        if isinstance(thing, np.generic | jax.Array) or (type(thing) is np.ndarray and not thing.dtype.hasobject):
            array = np.asarray(thing)
            form = f"{array.dtype}{array.shape}{getattr(thing, 'weak_type', False)}"
            return _hash("array", form, hashlib.blake2b(array.tobytes()).hexdigest())
        if id(thing) in self._known:
            return self._known[id(thing)][1]
        if id(thing) in self._above:  # a function that calls itself, for example
            return _hash("above", str(len(self._above) - self._above.index(id(thing))))
        self._above.append(id(thing))
        found = _hash(*map(self.digest, self._parts(thing)))
        self._above.pop()
        self._known[id(thing)] = thing, found
        return found

    def _part(self, label: str, owner: str, thing: Any) -> str:
        """The digest of a part that has a name, which is noted."""
        self._trail.append(f"{label} of {owner}")
        found = self.digest(thing)
        self._seen.setdefault(self._trail.pop(), []).append(found)
        return found

    def _parts(self, thing: Any) -> list[Any]:
        kind = type(thing).__name__
        if has_installed_name(thing):
            return ["installed", name_of(thing), self._version(thing.__module__)]
        if isinstance(thing, types.FunctionType):
            return self._parts_of_function(thing)
        if isinstance(thing, type):
            return self._parts_of_class(thing)
        if isinstance(thing, types.MethodType):
            return [kind, thing.__func__, thing.__self__]
        if isinstance(thing, types.CodeType):
            signature = (thing.co_argcount, thing.co_posonlyargcount, thing.co_kwonlyargcount, thing.co_flags)
            names = (thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_cellvars)
            return [kind, signature, names, thing.co_code, thing.co_exceptiontable, thing.co_consts]
        if isinstance(thing, types.ModuleType):
            return self._parts_of_module(thing)
        if type(thing) in (list, tuple):
            return [kind, *thing]
        if type(thing) in (dict, types.MappingProxyType):
            return [kind, *(part for item in thing.items() for part in item)]
        if isinstance(thing, set | frozenset):
            # Their order differs from process to process: what is known from one member must not change the next.
            known, digests = self._known, []
            for member in thing:
                self._known = dict(known)
                digests.append(self.digest(member))
            self._known = known
            return [kind, *sorted(digests)]
        if isinstance(thing, property):
            return [kind, thing.fget, thing.fset, thing.fdel]
        if isinstance(thing, functools.cached_property):
            return [kind, thing.func]
        if isinstance(thing, np.dtype):
            return ["dtype", str(thing)]
        if isinstance(thing, jax.tree_util.PyTreeDef):
            return ["tree", thing.node_data(), thing.children()]
        # Compiled wrappers: of jax.jit, functools.lru_cache, classmethod and staticmethod.
        if type(thing).__module__.partition(".")[0] in ("jaxlib", "functools", "builtins") and hasattr(thing, "__wrapped__"):
            return [kind, thing.__wrapped__]
        if isinstance(thing, types.BuiltinFunctionType) and is_installed(thing.__module__ or "builtins"):
            return [kind, thing.__qualname__, thing.__self__]
        return self._parts_of_object(thing)

    def _parts_of_function(self, function: types.FunctionType) -> list[Any]:
        function, closed = without_type_checks(function), {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not yet assigned
                closed[name] = cell.cell_contents
        module, defaults = str(function.__globals__.get("__name__")), [function.__defaults__, function.__kwdefaults__]
        if is_installed(module):
            return ["installed", module, function.__code__.co_qualname, self._version(module), closed, defaults]
        owner = name_of(function)
        uses = {name: self._part(name, owner, value) for name, value in used(function, closed).items()}
        of_its_own = [self._part("code", owner, function.__code__), self._part("defaults", owner, defaults)]
        return ["function", owner, uses, *of_its_own, vars(function)]

    def _parts_of_class(self, kind: type) -> list[Any]:
        owner, parts = name_of(kind), ["class", name_of(kind), type(kind), *kind.__bases__]
        for name, value in sorted(vars(kind).items()):
            is_own = not re.fullmatch("__.*__|_abc_impl", name) and not isinstance(value, _SLOTS)
            if is_own or callable(value) or isinstance(value, _CODE) or name == "__dataclass_fields__":
                parts += [name, self._part(name, owner, value)]
        return parts

    def _parts_of_module(self, module: types.ModuleType) -> list[Any]:
        """Its content. (Functions that only name parts of it do not come here: see `used`.)"""
        name = module.__name__
        if is_installed(name):
            return ["module", name, self._version(name)]
        parts = []
        for part, value in sorted(vars(module).items()):
            if not re.fullmatch("__.*__", part):
                parts += [part, self._part(part, f"the module {name}", value)]
        return ["module", name, *parts]

    def _parts_of_object(self, thing: Any) -> list[Any]:
        """What pickle would take it apart into."""
        try:
            reduced = copyreg.dispatch_table.get(type(thing), lambda it: it.__reduce_ex__(4))(thing)
            if not isinstance(reduced, str):
                function, arguments, state, items, pairs, *_ = (*reduced, None, None, None)
                if isinstance(state, dict):  # attributes, in whatever order they were set, and with caches filled or not
                    names = sorted((name for name in state if not _is_cached(type(thing), name)), key=str)
                    state = [(name, state[name]) for name in names] or None
                return ["object", function, arguments, state, list(items or ()), list(pairs or ())]
            package = pickle.whichmodule(thing, reduced).partition(".")[0]  # pyright: ignore[reportAttributeAccessIssue]
            if is_installed(package) or type(thing).__module__ == "typing":  # type variables have a name and nothing else
                return ["global", package, reduced, self._version(package)]
            reason = f"only its name, {reduced}, is known"
        except Exception as error:
            reason = str(error)
        whole = [label.partition(" of the module ")[2] for label in self._trail if " of the module " in label]
        why = f"All of the module {whole[-1]} counts, since it is used otherwise than by naming its parts. " if whole else ""
        raise ValueError(
            f"the checkpoint cannot record {self._trail[-1]}: the content of a {type(thing).__module__}."
            f"{type(thing).__qualname__} cannot be read ({reason}), so a later run could not tell whether it is the same. "
            f"{why}Use numbers, arrays, functions and plain containers instead, or leave out checkpoint=."
        )

    def _version(self, module: str) -> str:
        package = module.partition(".")[0]
        if package in _BY_NAME_ONLY or package in sys.stdlib_module_names:
            return ""
        self._seen[package] = version_of(package)
        return self._seen[package]


def _is_cached(kind: type, name: Any) -> bool:
    return isinstance(getattr(kind, str(name), None), functools.cached_property)


def _hash(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=DIGEST_BYTES).hexdigest()
