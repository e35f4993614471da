"""Objects from JSON and arrays: the other half of `_encode.py`."""

import dataclasses
import datetime
import difflib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernax.fitting._fits import Unsaved, as_result
from kernax.io._allowed import is_named_tuple, named, names
from kernax.io._file import FileError
from kernax.solvers import Result, result_name

_PLAIN = (bool, int, float, str)
_MOST_OUTPUTS = 4096
BITS = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, np.complex64, np.complex128)
}
"""Kinds of numbers that safetensors does not have for NumPy, kept as their bytes."""


class Decoder:
    """Turns JSON into objects again. `dtype` is what floating-point arrays are cast to, None to leave them."""

    def __init__(self, arrays: dict[str, np.ndarray], dtype: Any):
        self._arrays = arrays
        self._dtype = dtype
        self._decoded: dict[tuple[Any, bool], Any] = {}
        """Arrays by name: one that is named many times is one array."""

    def decoded(self, node: Any) -> Any:
        """The object that was encoded."""
        if node is None or isinstance(node, _PLAIN):
            return node
        if isinstance(node, list):
            return [self.decoded(item) for item in node]
        return self._marked(node, next(iter(node)))

    def _marked(self, node: dict[str, Any], kind: str) -> Any:
        match kind:
            case "array":
                return self._array(node)
            case "class":
                return self._instance(node["class"], node["fields"])
            case "tuple":
                return tuple(self.decoded(item) for item in node["tuple"])
            case "dict":
                return {self.decoded(key): self.decoded(value) for key, value in node["dict"]}
            case "float":
                return float(node["float"])
            case "scalar":
                return self.decoded(node["scalar"])[()]
            case "bits":
                array = np.frombuffer(self._arrays[node["bits"]["array"]].tobytes(), BITS[node["type"]])
                array = array.reshape(node["shape"]).copy()
                return array if node.get("numpy") else jnp.asarray(array)
            case "result":
                return self._result(node)
            case "absent":
                return self._absent(node)
            case "date":
                return datetime.date.fromisoformat(node["date"])
            case "datetime":
                return datetime.datetime.fromisoformat(node["datetime"])
            case "times":
                units = np.dtype(node["units"])
                if units.kind not in "mM":
                    raise FileError(f"it holds times in {units}, which is not a unit of time")
                return self._arrays[node["times"]["array"]].view(units)
            case "objects":
                objects = np.empty(len(node["objects"]), object)
                objects[:] = [self.decoded(item) for item in node["objects"]]
                return objects.reshape(node["shape"])
            case "structure":
                return jax.tree.structure(self.decoded(node["structure"]))
            case "function":
                return _allowed(node["function"])
            case "partial":
                keywords = {name: self.decoded(value) for name, value in node["keywords"].items()}
                return functools.partial(self.decoded(node["partial"]), *self.decoded(node["args"]), **keywords)
            case "unsaved":
                return Unsaved(str(node["unsaved"]))
        raise FileError(f"it holds a {kind!r}, which this version does not know: upgrade kernax")

    def _array(self, node: dict[str, Any]) -> Any:
        if "key" in node:
            return jax.random.wrap_key_data(jnp.asarray(self._arrays[node["array"]]), impl=node["key"])
        name = node["array"], bool(node.get("numpy"))
        if name not in self._decoded:
            self._decoded[name] = self._cast(*name)
        return self._decoded[name]

    def _cast(self, name: str, is_numpy: bool) -> Any:
        array = self._arrays[name]
        if self._dtype is not None and jnp.issubdtype(array.dtype, jnp.floating):
            array = array.astype(self._dtype)
        if is_numpy:
            return array
        narrow = jax.dtypes.canonicalize_dtype(array.dtype)
        if narrow == array.dtype:
            return jnp.asarray(array)
        if jnp.issubdtype(array.dtype, jnp.inexact):
            raise FileError(
                f"it holds {array.dtype} numbers, but JAX is set to 32 bits: switch them on first with "
                'jax.config.update("jax_enable_x64", True), or cast explicitly with kx.load(path, dtype="float32")'
            )
        if not np.array_equal(array.astype(narrow), array):
            raise FileError(
                f'it holds {array.dtype} numbers that {narrow} cannot: jax.config.update("jax_enable_x64", True)'
            )
        return jnp.asarray(array.astype(narrow))

    def _absent(self, node: dict[str, Any]) -> Any:
        """NaN in the place of targets that were left out; as many rows as there are."""
        shape, mask = tuple(node["absent"]), self.decoded(node["like"])
        outputs = shape[mask.ndim :]
        if shape[: mask.ndim] != mask.shape or len(outputs) > 1 or not all(0 <= p <= _MOST_OUTPUTS for p in outputs):
            raise FileError(f"it holds a mask of shape {mask.shape} for targets of shape {shape}")
        return jnp.full(shape, jnp.nan, np.dtype(node["type"]) if self._dtype is None else self._dtype)

    def _result(self, node: dict[str, Any]) -> Any:
        written = self._arrays[node["result"]["array"]]
        codes = {result_name(as_result(np.asarray(code))): code for code in range(len(Result))}
        translated = np.zeros_like(written)
        for code, name in node["names"].items():
            if name not in codes:
                raise FileError(f"it holds the result {name!r}, which this version does not know: upgrade kernax")
            translated[written == int(code)] = codes[name]
        return as_result(translated if node["result"].get("numpy") else jnp.asarray(translated))

    def _instance(self, name: str, nodes: dict[str, Any]) -> Any:
        kind = _allowed(name)
        if not isinstance(kind, type):
            raise FileError(f"it says that {name!r} is a class, but here it is not one")
        values = {field: self.decoded(node) for field, node in nodes.items()}
        if is_named_tuple(kind):
            return kind(**values)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        unknown = [field for field in values if field not in fields]
        if unknown:
            raise FileError(f"its {name} has the field {unknown[0]!r}, but here that class has no such field")
        # Not by `__init__`: that may take other arguments, convert, and refuse a tree of booleans in place of numbers.
        instance = object.__new__(kind)
        for field in fields.values():
            object.__setattr__(instance, field.name, values[field.name] if field.name in values else _default(field, name))
        return instance


def _default(field: dataclasses.Field, name: str) -> Any:
    """The value of a field that a file of an older version, or of an older class of yours, does not have."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise FileError(f"its {name} lacks the field {field.name!r}")
    converter = field.metadata.get("converter")
    return field.default if converter is None else converter(field.default)


def _allowed(name: str) -> Any:
    thing = named(name)
    if thing is None:
        near = difflib.get_close_matches(name, names(), 1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise FileError(
            f"it names {name!r}, which is not an allowed class or function{hint}: if it is your own, call "
            "kx.io.register with it before loading; if it is kernax's, upgrade kernax"
        )
    return thing
