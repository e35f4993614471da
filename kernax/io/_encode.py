"""Objects as JSON and arrays.

Plain JSON stands for itself. Everything else is an object of one entry that says what it is: `array`, `class`, `tuple`, ….
"""

import dataclasses
import datetime
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax._arrays import is_concrete
from kernax._stored import Stored
from kernax.data import Data
from kernax.fitting._fits import Settings, Unsaved, as_result
from kernax.io._allowed import is_named_tuple, name_of
from kernax.io._decode import BITS
from kernax.model import Conditioned
from kernax.solvers import Result, result_name

_Item = type(Result.successful)
_SMALLEST_INTEGER, _LARGEST_INTEGER = -(2**63), 2**63


class Encoder:
    """Turns objects into JSON, and keeps the arrays that it meets, each once."""

    def __init__(self, targets: bool):
        self.arrays: dict[str, np.ndarray] = {}
        self._targets = targets
        self._seen: dict[int, tuple[str, Any]] = {}

    def encoded(self, value: Any, where: str) -> Any:
        """`value` as JSON; `where` is how a reader would write the way to it."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value), where)}
        if isinstance(value, int):
            if not _SMALLEST_INTEGER <= value < _LARGEST_INTEGER:
                raise TypeError(f"{where} is an integer of more than 64 bits, which cannot be saved.")
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if eqx.is_array(value) or isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, _Item):
            return self._result(value, where)
        if isinstance(value, list):
            return self._items(value, where)
        if isinstance(value, dict):
            pairs = [[self.encoded(k, f"a key of {where}"), self.encoded(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, datetime.date):  # pandas' own are datetimes, too
            if value != value:
                raise TypeError(f"{where} is NaT (not a time), which cannot be saved.")
            return {"datetime" if isinstance(value, datetime.datetime) else "date": value.isoformat()}
        if isinstance(value, jax.tree_util.PyTreeDef):
            return {"structure": self.encoded(jax.tree.unflatten(value, [0] * value.num_leaves), where)}
        if type(value) is tuple:
            return {"tuple": self._items(value, where)}
        return self._object(value, where)

    def _items(self, values: Any, where: str) -> list[Any]:
        return [self.encoded(value, f"{where}[{i}]") for i, value in enumerate(values)]

    def _array(self, value: Any, where: str) -> dict[str, Any]:
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise TypeError(f"{where} is a masked NumPy array, which cannot be saved: fill in the masked entries.")
        if not is_concrete(value):
            raise TypeError(f"{where} is being traced: save finished numbers, outside jit, grad and vmap.")
        is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        known = self._seen.get(id(value))
        if known is None:
            array = np.asarray(jax.random.key_data(value) if is_key else value)
            if array.dtype.kind in "mM":
                array, units = array.astype("int64"), str(array.dtype)
                return {"times": self._array(array, where), "units": units}
            if array.dtype.name in BITS:
                bits = np.frombuffer(array.tobytes(), np.uint8)
                host = {} if isinstance(value, jax.Array) else {"numpy": True}
                return {"bits": self._array(bits, where), "type": array.dtype.name, "shape": list(array.shape), **host}
            if array.dtype.kind not in "biufUOS" or (array.dtype.itemsize > 8 and array.dtype.kind == "f"):
                raise TypeError(f"{where} is an array of {array.dtype}, which cannot be saved.")
            if array.dtype.kind in "UOS":
                return {"objects": self._items(array.ravel().tolist(), where), "shape": list(array.shape)}
            # The value is kept, so that its identity stays its own; NumPy's memory order is not saved.
            known = (str(len(self.arrays)), value)
            self.arrays[known[0]] = np.ascontiguousarray(array).reshape(array.shape)
            self._seen[id(value)] = known
        node: dict[str, Any] = {"array": known[0]}
        if is_key:
            node["key"] = str(jax.random.key_impl(value))
        elif not isinstance(value, jax.Array):
            node["numpy"] = True
        return node

    def _result(self, value: Any, where: str) -> dict[str, Any]:
        # By their names: the numbers may be others in the next version.
        names = {str(code): result_name(as_result(np.asarray(code))) for code in np.unique(value._value)}
        return {"result": self._array(value._value, where), "names": names}

    def _object(self, value: Any, where: str) -> Any:
        kind = type(value)
        name = name_of(kind)
        if isinstance(value, Stored):
            raise TypeError(
                f"{where} is stored in its own file ({value.source}), so it cannot be saved: save the model, and condition "
                'it again after loading, on kx.Data(np.load("x.npy", mmap_mode="r"), y).'
            )
        if name is not None:
            fields = value._asdict() if is_named_tuple(kind) else _fields(value)
            without = {}
            if not self._targets and getattr(value, "needs_targets", False):
                raise TypeError(
                    f"{where} needs its targets to predict, so it cannot be saved without them: save a model that is "
                    "conditioned by another solver, such as kx.condition(fit.model, fit.data)."
                )
            if isinstance(value, Data | Conditioned) and not self._targets:
                field, data = ("y", value) if isinstance(value, Data) else ("residual", value.data)
                y, mask = fields.pop(field), self.encoded(data.mask, f"{where}.mask")
                without[field] = {"absent": list(y.shape), "like": mask, "type": str(y.dtype)}
            encode = self._or_text if isinstance(value, Settings) else self.encoded
            parts = {field: encode(part, f"{where}.{field}") for field, part in fields.items()} | without
            return {"class": name, "fields": parts}
        if isinstance(value, functools.partial):
            return {
                "partial": self.encoded(value.func, f"{where}.func"),
                "args": self._items(value.args, f"{where}.args"),
                "keywords": {k: self.encoded(v, f"{where}, {k}=") for k, v in value.keywords.items()},
            }
        if isinstance(value, type):
            raise TypeError(f"{where} is the class {value.__qualname__}: save an instance of it.")
        name = name_of(value)
        if name is not None:
            return {"function": name}
        if dataclasses.is_dataclass(value) or is_named_tuple(kind):
            remedy = f"call kx.io.register({kind.__qualname__}) first, here and where the file is loaded"
        elif callable(value):
            remedy = "a function is saved by its name: kx.io.register(f, name='…') first, here and where the file is loaded"
        else:
            remedy = "only arrays, numbers, text, tuples, lists, dicts and registered classes can be"
        raise TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved: {remedy}.")

    def _or_text(self, value: Any, where: str) -> Any:
        """What cannot be saved of the settings of a fit (an optax chain, a lambda) is not worth losing the fit."""
        seen, arrays = dict(self._seen), dict(self.arrays)
        try:
            return self.encoded(value, where)
        except TypeError:
            if isinstance(value, Unsaved):
                return {"unsaved": value.what}
            self._seen, self.arrays = seen, arrays
            return {"unsaved": f"{where.rsplit('.', 1)[-1]} {getattr(value, '__name__', type(value).__name__)}"}


def _fields(value: Any) -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(value) if field.metadata.get("saved", True)]
    return {field.name: getattr(value, field.name) for field in fields if hasattr(value, field.name)}
