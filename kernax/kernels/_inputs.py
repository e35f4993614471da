"""Kernels of a part of the inputs, of transformed inputs, and of an explicit feature map."""

import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax._arrays import matmul
from kernax._stored import is_stored
from kernax.kernels._kernel import AbstractKernel, check_is_kernel
from kernax.kernels._markov import of_features, selected, viewed
from kernax.kernels._trends import ViewedTrend
from kernax.parameters import as_function


class Select(AbstractKernel):
    """A kernel that uses only a part of each row, such as some columns.

    **Arguments:**

    - `kernel`: the kernel of that part.
    - `columns`: column numbers of an array, such as `(0, 2)`. Give exactly one of `columns`, `key` and `axis`.
    - `key`: the key of a dict, or of an axis of a `kx.Grid` whose axes have names.
    - `axis`: the place in a tuple, or of an axis of a `kx.Grid`.
    """

    kernel: AbstractKernel
    columns: tuple[int, ...] | None = eqx.field(static=True)
    key: str | None = eqx.field(static=True)
    axis: int | None = eqx.field(static=True)

    def __init__(self, kernel: AbstractKernel, columns: Any = None, *, key: str | None = None, axis: int | None = None):
        self.kernel, self.key, self.axis, self.columns = kernel, key, axis, None
        check_is_kernel(kernel, "Select.kernel")
        if sum(part is not None for part in (columns, key, axis)) != 1:
            raise ValueError("Select needs exactly one of columns=, key= and axis=.")
        if key is not None and not isinstance(key, str):
            raise ValueError(f"Select needs the key of a dict as text, got {key!r}.")
        if columns is not None:
            several = columns if isinstance(columns, Sequence | np.ndarray) else (columns,)
            self.columns = tuple(_place(c, "column numbers", columns) for c in several)
            if not self.columns:
                raise ValueError(f"Select needs column numbers counted from 0, got {self.columns}.")
        if axis is not None:
            self.axis = _place(axis, "the number of an axis", axis)

    def pair(self, a, b):
        return self.kernel.pair(self.view(a), self.view(b))

    def gram(self, x, z):
        return self.kernel.gram(self.view(x), None if z is None else self.view(z))

    def diag(self, x):
        return self.kernel.diag(self.view(x))

    def state_space(self):
        place = self.axis if self.key is None else self.key
        return selected(self.kernel.state_space(), self.columns, place, self.view)

    def features(self, x):
        return self.kernel.features(self.view(x))

    def waves(self, x, number, seed):
        return self.kernel.waves(self.view(x), number, seed)

    def coordinates(self, x):
        return self.kernel.coordinates(self.view(x))

    def axes(self):
        place = self.axis if self.key is None else self.key
        return None if place is None else {place: self.kernel}

    def check(self, x, counts=None):
        if type(self.kernel).check is AbstractKernel.check:
            return
        if self.columns is None:
            self.kernel.check(self.view(x), counts)
        elif hasattr(x, "dtype") and not is_stored(x):
            self.kernel.check(x[..., np.asarray(self.columns)], counts)

    def summands(self):
        return tuple(eqx.tree_at(lambda k: k.kernel, self, part) for part in self.kernel.summands())

    def trend(self):
        inner = self.kernel.trend()
        return None if inner is None else ViewedTrend(inner, self)

    def definite(self, x, mask):
        return eqx.tree_at(lambda k: k.kernel, self, self.kernel.definite(self.view(x), mask))

    def initialised(self, x, mask, variance):
        inner = self.kernel.initialised(self.view(x), mask, variance)
        return eqx.tree_at(lambda k: k.kernel, self, inner)

    def view(self, x: Any) -> Any:
        """The part of the rows that the kernel uses.

        **Arguments:**

        - `x`: rows, or one row.

        **Returns:**

        That part, in the same kind of structure.
        """
        if self.columns is not None:
            if not eqx.is_array(x):
                raise ValueError("Select(columns=…) needs rows that are one array: name a part of the structure with key=.")
            if max(self.columns) >= x.shape[-1]:
                raise ValueError(f"Select uses columns {self.columns}, but the inputs have {x.shape[-1]} columns.")
            return x[..., jnp.asarray(self.columns)]
        if self.key is not None:
            if not isinstance(x, dict) or self.key not in x:
                known = f"the keys {sorted(x)}" if isinstance(x, dict) else "no keys"
                raise ValueError(f"Select uses the key {self.key!r}, but the rows have {known}.")
            return x[self.key]
        if self.axis is None or not isinstance(x, tuple | list) or self.axis >= len(x):
            raise ValueError(f"Select uses axis {self.axis}: give rows as a tuple with that many parts, or a kx.Grid.")
        return x[self.axis]


def _place(value: Any, what: str, given: Any) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise ValueError(f"Select needs {what}, got {given!r}.")
    if operator.index(value) < 0:
        raise ValueError(f"Select needs {what} counted from 0, got {given!r}.")
    return operator.index(value)


class Warp(AbstractKernel):
    """A kernel of transformed inputs, `k(g(a), g(b))`. A deep kernel if `g` is a network.

    **Arguments:**

    - `kernel`: the kernel of the images.
    - `transform`: the map `g` from one point to an array. The parameters of a module are fitted with the kernel's.
    """

    kernel: AbstractKernel
    transform: Any = eqx.field(converter=as_function)

    def __check_init__(self):
        check_is_kernel(self.kernel, "Warp.kernel")

    def pair(self, a, b):
        return self.kernel.pair(self.transform(a), self.transform(b))

    def gram(self, x, z):
        return self.kernel.gram(self.view(x), None if z is None else self.view(z))

    def diag(self, x):
        return self.kernel.diag(self.view(x))

    def state_space(self):
        return viewed(self.kernel.state_space(), self.view)

    def features(self, x):
        return self.kernel.features(self.view(x))

    def waves(self, x, number, seed):
        return self.kernel.waves(self.view(x), number, seed)

    def coordinates(self, x):
        return self.kernel.coordinates(self.view(x))

    def summands(self):
        return tuple(eqx.tree_at(lambda k: k.kernel, self, part) for part in self.kernel.summands())

    def trend(self):
        inner = self.kernel.trend()
        return None if inner is None else ViewedTrend(inner, self)

    def definite(self, x, mask):
        return eqx.tree_at(lambda k: k.kernel, self, self.kernel.definite(self.view(x), mask))

    def initialised(self, x, mask, variance):
        inner = self.kernel.initialised(self.view(x), mask, variance)
        return eqx.tree_at(lambda k: k.kernel, self, inner)

    def check(self, x, counts=None):
        # The images are not looked at: that would compute them once more.
        if hasattr(self.transform, "check"):
            self.transform.check(x)

    def view(self, x: Any) -> Any:
        """The transformed inputs.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        The images of the rows, `(n, q)`.
        """
        return jax.vmap(self.transform)(x)


class FeatureMap(AbstractKernel):
    """The kernel `φ(a)·φ(b)` of an explicit feature map.

    **Arguments:**

    - `function`: φ, a function or Equinox module from a point to a vector.
    """

    function: Any = eqx.field(converter=as_function)

    def pair(self, a, b):
        return jnp.sum(self.function(a) * self.function(b))

    def gram(self, x, z):
        u = self.features(x)
        return matmul(u, (u if z is None else self.features(z)).T)

    def diag(self, x):
        return jnp.sum(self.features(x) ** 2, axis=1)

    def state_space(self):
        return of_features(self.features)

    def features(self, x):
        return jax.vmap(self.function)(x)
