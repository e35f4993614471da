"""Kernels on a view of the inputs: chosen columns, a learned map, an explicit feature map."""

import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kernax._arrays import matmul
from kernax.kernels._kernel import AbstractKernel
from kernax.parameters import as_function


class Select(AbstractKernel):
    """A kernel that sees only some columns: `Select(RBF(), columns=(0, 2))`."""

    kernel: AbstractKernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: AbstractKernel, columns: Any):
        self.kernel = kernel
        several = columns if isinstance(columns, Sequence | np.ndarray) else (columns,)
        if any(isinstance(c, bool | np.bool_) or not hasattr(c, "__index__") for c in several):
            raise ValueError(f"Select wants column numbers, got {columns!r}.")
        self.columns = tuple(operator.index(c) for c in several)
        if not self.columns or min(self.columns) < 0:
            raise ValueError(f"Select wants column numbers counted from 0, got {self.columns}.")

    def pair(self, a, b):
        return self.kernel.pair(self._view(a), self._view(b))

    def gram(self, x, z):
        return self.kernel.gram(self._view(x), None if z is None else self._view(z))

    def diag(self, x):
        return self.kernel.diag(self._view(x))

    @property
    def is_conditional(self):
        return self.kernel.is_conditional

    def free_part(self, x, known, mask):
        return self.kernel.free_part(self._view(x), self._view(known), mask)

    def initialised(self, x, mask, variance):
        inner = self.kernel.initialised(self._view(x), mask, variance)
        return eqx.tree_at(lambda k: k.kernel, self, inner)

    def _view(self, x: Array) -> Array:
        if max(self.columns) >= x.shape[-1]:
            raise ValueError(f"Select asks for columns {self.columns}, but the inputs have {x.shape[-1]} columns.")
        return x[..., jnp.asarray(self.columns)]


class Warp(AbstractKernel):
    """`k(g(a), g(b))` for any function or Equinox module `g` of one point: a deep kernel if `g` is a network."""

    kernel: AbstractKernel
    transform: Any = eqx.field(converter=as_function)

    def pair(self, a, b):
        return self.kernel.pair(self.transform(a), self.transform(b))

    def gram(self, x, z):
        return self.kernel.gram(self._view(x), None if z is None else self._view(z))

    def diag(self, x):
        return self.kernel.diag(self._view(x))

    @property
    def is_conditional(self):
        return self.kernel.is_conditional

    def free_part(self, x, known, mask):
        return self.kernel.free_part(self._view(x), self._view(known), mask)

    def initialised(self, x, mask, variance):
        inner = self.kernel.initialised(self._view(x), mask, variance)
        return eqx.tree_at(lambda k: k.kernel, self, inner)

    def _view(self, x: Any) -> Any:
        return jax.vmap(self.transform)(x)


class FeatureMap(AbstractKernel):
    """`φ(a)·φ(b)` for an explicit feature map `φ`: any function or Equinox module from a point to a vector."""

    features: Any = eqx.field(converter=as_function)

    def pair(self, a, b):
        return jnp.sum(self.features(a) * self.features(b))

    def gram(self, x, z):
        u = jax.vmap(self.features)(x)
        return matmul(u, (u if z is None else jax.vmap(self.features)(z)).T)

    def diag(self, x):
        return jnp.sum(jax.vmap(self.features)(x) ** 2, axis=1)
