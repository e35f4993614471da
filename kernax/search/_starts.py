"""Where the fits of a structure start: from the structure that it was made of, and from random changes of that."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kernax._programs import compiled
from kernax.data import Data, stack
from kernax.kernels import AbstractKernel, Product, Scale, Sum
from kernax.model import Model
from kernax.parameters import (
    as_dtype,
    constrain,
    parameters,
    trainable,
    unconstrain,
    unit,
)
from kernax.search._expression import Expression
from kernax.search._structures import Change, Structure, begins, size

_AT_ONCE = 64
"""Starts that are made by one call of a program: every call has the same shapes."""
_NEW, _OLD = 1.0, 0.3
"""By how many units a start differs in the unconstrained space, in parameters that are new and in those that are not."""


class Bases(NamedTuple):
    """The base kernels, and what structures made of them have in common."""

    kernels: tuple[AbstractKernel, ...]
    names: tuple[str, ...]
    mean: Any
    depth: int

    def model(self) -> Model:
        """A model of every structure, as far as its shapes go."""
        kernels = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.depth) if eqx.is_array(leaf) else leaf, self.kernels)
        absent = jnp.full(self.depth, len(self.kernels), jnp.int32)
        kernel = Expression(kernels, absent, absent > 0, jnp.ones(self.depth))
        return Model(kernel, noise=0.1, mean=self.mean)

    def trainable(self) -> Any:
        """Which parameters of that model are fitted: each product has a variance, so that of a base kernel is held."""
        held = self._amplitudes()
        return jax.tree_util.tree_map_with_path(
            lambda path, is_free: is_free and path[2:] not in held, trainable(self.model())
        )

    def num_free(self) -> list[int]:
        """How many parameters of each base kernel are fitted."""
        held, counts = self._amplitudes(), [0] * len(self.kernels)
        for path, leaf in parameters(self.kernels):
            counts[path[0].idx] += 0 if path in held else leaf.size
        return counts

    def _amplitudes(self) -> set[tuple]:
        """The paths of variances of a whole base kernel: single numbers in units of the target."""
        known = parameters(self.kernels)
        return {path for path, leaf in known if leaf.size == 1 and unit(self.kernels, path).startswith("y²")}

    def plain(self, model: Model, structure: Structure) -> Model:
        """The model of a structure, written with sums and products of the base kernels."""
        kernel: Any = model.kernel
        products, place = [], 0
        for product in structure:
            factors = []
            for at in range(place, place + len(product)):
                factors.append(jax.device_put(lane_of(kernel.kernels[kernel.which[at]], at)))
            inner = factors[0] if len(factors) == 1 else Product(tuple(factors))
            products.append(Scale(inner, jnp.asarray(kernel.variance[place])))
            place += len(product)
        whole = products[0] if len(products) == 1 else Sum(tuple(products))
        return Model(whole, noise=jnp.asarray(model.noise), mean=jax.device_put(model.mean))


def initial_values(bases: Bases, datasets: Sequence[Any]) -> Model:
    """For every dataset a model with values that suit it, whose kernel is the sum of the base kernels with variance 1.

    **Arguments:**

    - `bases`: the base kernels.
    - `datasets`: `(x, y, mask)` of NumPy.

    **Returns:**

    A model whose arrays are NumPy's and have a leading axis for the datasets.
    """
    return _on_host(_initial_values(bases, stack(datasets)))


@compiled
def _initial_values(bases: Bases, data: Data) -> Any:
    kernel = Sum(bases.kernels)

    def of_one(one: Data) -> Model:
        start = Model(kernel, noise=0.1, mean=bases.mean).initialised(one)
        number = jnp.asarray(float(len(bases.kernels)), one.dtype)
        return eqx.tree_at(lambda m: m.kernel, start, kernel.initialised(one.x, one.mask, number))

    return eqx.filter_vmap(of_one)(data)


class Lane(NamedTuple):
    """One fit to be made."""

    change: Change
    parent: Model | None
    """The fitted model of the structure that was changed."""
    own: Model
    """The initial values of this dataset."""
    period: float | None
    """The period of new periodic kernels; as it is if `None`."""
    seed: tuple[int, ...] | None
    """Of the random change; no such change if `None`."""


def starting_models(bases: Bases, lanes: Sequence[Lane], dtype: Any) -> list[Model]:
    """The models from which fits start, in the same order. All have the same structure, that of `bases.model()`."""
    template = as_dtype(bases.model(), dtype)
    template, free = _on_host(template), bases.trainable()
    started: list[Model] = []
    for begin in range(0, len(lanes), _AT_ONCE):
        some = lanes[begin : begin + _AT_ONCE]
        missing = _AT_ONCE - len(some)
        models = [_start(template, lane) for lane in some]
        steps = [_step(template, free, lane) for lane in some]
        moved = _on_host(_moved(_stacked(models + models[-1:] * missing), _stacked(steps + steps[-1:] * missing)))
        started += [lane_of(moved, place) for place in range(len(some))]
    return started


@compiled
def _moved(models: Model, steps: Model) -> Model:
    """The models after a step in the unconstrained space. Values out of bounds first become the nearest allowed ones."""
    free = unconstrain(models)
    return constrain(
        jax.tree.map(lambda leaf, step: leaf + step.astype(leaf.dtype) if _is_float(leaf) else leaf, free, steps)
    )


def _start(template: Model, lane: Lane) -> Model:
    """The parameters of the earlier structure where there are some, else the initial values."""
    structure, factors, products = lane.change
    kernel: Any = template.kernel
    number, begin = size(structure), begins(structure)
    which, begun = kernel.which.copy(), np.ones_like(kernel.begins)
    which[:number] = [base for product in structure for base in product]
    begun[:number] = np.isin(np.arange(number), begin)

    own: Any = lane.own
    parent: Any = lane.parent
    earlier = own.kernel.kernels if parent is None else parent.kernel.kernels

    def filled(path: tuple, leaf: Any, initial: Any, before: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        leaf = np.array(np.broadcast_to(initial, leaf.shape), leaf.dtype)
        if lane.period is not None and _name(path[-1]) == "period":
            leaf[...] = lane.period
        for place, origin in enumerate(factors):
            if origin >= 0:
                leaf[place] = before[origin]
        return leaf

    kernels = jax.tree_util.tree_map_with_path(filled, kernel.kernels, own.kernel.kernels, earlier)
    spread = 10.0 * own.noise  # initial noise is a tenth of the target's variance
    variance = np.full(kernel.variance.shape, spread / len(structure), kernel.variance.dtype)
    if parent is not None:
        was = np.flatnonzero(parent.kernel.begins)
        for place, origin in zip(begin, products, strict=True):
            if origin >= 0:
                variance[place] = parent.kernel.variance[was[origin]]
    source = own if parent is None else parent
    return eqx.tree_at(
        lambda m: (m.kernel.kernels, m.kernel.which, m.kernel.begins, m.kernel.variance, m.noise, m.mean),
        template,
        (kernels, which, begun, variance, np.asarray(source.noise, kernel.variance.dtype), source.mean),
    )


def _step(template: Model, free: Any, lane: Lane) -> Any:
    """A random step for every parameter that is fitted: larger where it is new, none for periods and for the mean.

    Without a seed all steps are 0.
    """
    rng = np.random.default_rng(lane.seed)
    sizes = np.zeros(len(template.kernel.which))
    sizes[: len(lane.change.factors)] = [_OLD if origin >= 0 else _NEW for origin in lane.change.factors]

    def step(path: tuple, leaf: Any, is_free: Any) -> Any:
        if not _is_float(leaf):
            return leaf
        if lane.seed is None or not is_free or _name(path[0]) == "mean" or _name(path[-1]) == "period":
            return np.zeros(leaf.shape)
        size = sizes.reshape(-1, *[1] * (leaf.ndim - 1)) if _name(path[0]) == "kernel" else _OLD
        return size * rng.normal(size=leaf.shape)

    return jax.tree_util.tree_map_with_path(step, template, free)


def lane_of(models: Any, places: Any) -> Any:
    """One of stacked models, or some of them."""
    return jax.tree.map(lambda leaf: leaf[places] if eqx.is_array(leaf) else leaf, models)


def _stacked(models: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models)


def _on_host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def _is_float(leaf: Any) -> bool:
    return eqx.is_inexact_array(leaf)


def _name(part: Any) -> Any:
    return getattr(part, "name", None)
