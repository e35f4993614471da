"""A model seen as a tree of parameters: constrained, unconstrained, frozen, flattened, weighed by its priors."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from kernax._arrays import is_concrete
from kernax.parameters._bijectors import AbstractBijector
from kernax.parameters._fields import Parametrised, Setting

M = TypeVar("M")
Path = tuple[Any, ...]


def unconstrain(model: M) -> M:
    """Every parameter mapped to the unbounded space that optimisers and samplers walk in."""
    return _map_parameters(lambda known, value: _bijector(known).inverse(value), model)


def constrain(model: M) -> M:
    """The inverse of `unconstrain`."""
    return _map_parameters(lambda known, value: _bijector(known).forward(value), model)


def at_bound(model: M) -> M:
    """A tree of booleans: which parameters sit at an end of their range."""
    return _map_parameters(lambda known, value: _bijector(known).at_bound(value), model)


def log_prior(model: PyTree) -> Float[Array, ""]:
    """The sum of the log-densities attached by `with_prior`; 0 if there are none. Densities of constrained values."""
    total = jnp.zeros((), dtype=_float_dtype(model))
    for path, value in parameters(model):
        prior = setting(model, path).prior
        if prior is not None:
            total = total + jnp.sum(prior(value)).astype(total.dtype)
    return total


def log_jacobian(unconstrained: PyTree) -> Float[Array, ""]:
    """`log |d constrain(u) / du|`: add it to a log-density of the values to sample in the unconstrained space."""
    total = jnp.zeros((), dtype=_float_dtype(unconstrained))
    for path, value in parameters(unconstrained):
        total = total + jnp.sum(_bijector(setting(unconstrained, path)).log_jacobian(value)).astype(total.dtype)
    return total


def with_bijector(model: M, where: Callable[[M], Any], bijector: Any) -> M:
    """A copy in which the parameters named by `where` are constrained by `bijector` instead."""
    if not isinstance(bijector, AbstractBijector):
        raise TypeError(f"bijector must be an instance, such as kx.Interval(0.1, 10.0), got {bijector!r}.")
    for path, value in _named(model, where):
        fault = bijector.fault(np.asarray(value)) if is_concrete(value) else None
        if fault is not None:
            raise ValueError(f"{parameter_name(path)} must be {fault} to be constrained so, got {np.asarray(value)}.")
    return _with_setting(model, where, bijector=bijector)


def with_prior(model: M, where: Callable[[M], Any], prior: Any) -> M:
    """A copy in which the parameters named by `where` have a prior: any log-density of the value. None takes it away."""
    if prior is not None and not callable(prior):
        raise TypeError(f"prior must be a log-density: kx.LogNormal(0.0, 1.0) or a function of the value, got {prior!r}.")
    return _with_setting(model, where, prior=prior)


def trainable(model: M) -> M:
    """The boolean tree in which every parameter is free."""
    return _free_unless(None, model)


def freeze(model: M, where: Callable[[M], Any], *, trainable: M | None = None) -> M:
    """The boolean tree in which what `where` names is held and the rest is free.

    `where` may name one parameter, a whole part (`lambda m: m.kernel`), or a sequence of those. Pass the answer to
    `fit(..., trainable=...)`; pass an earlier answer as `trainable` to hold more.
    """
    tree = _free_unless(trainable, model)
    held = {path for path, _ in _named(model, where)}
    return jax.tree_util.tree_map_with_path(lambda path, free: free and path not in held, tree)


def ravel(model: M, *, trainable: M | None = None) -> tuple[Float[Array, " k"], Callable[[Float[Array, " k"]], M]]:
    """The free parameters as one vector in the unconstrained space, and the way back to a model.

    For optimisers and samplers that want a vector. Held parameters keep their values to the bit.
    """
    free, held = split(model, trainable)
    vector, unravel = jax.flatten_util.ravel_pytree(free)

    def rebuild(vector: Float[Array, " k"]) -> M:
        return join(unravel(vector), held)

    return vector, rebuild


def split(model: M, trainable: M | None) -> tuple[M, M]:
    """The free parameters, unconstrained, and all the rest untouched: `join` undoes it."""
    tree = _free_unless(trainable, model)
    free, held = eqx.partition(model, tree)
    return unconstrain(free), held


def join(free: M, held: M) -> M:
    """The model whose parts `split` had taken apart."""
    return eqx.combine(constrain(free), held)


def parameters(model: PyTree) -> list[tuple[Path, Any]]:
    """Every parameter with its path: an array of JAX, or of NumPy if the model is kept on the host."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model)
    return [(path, leaf) for path, leaf in leaves if eqx.is_inexact_array(leaf)]


def parameter_name(path: Path) -> str:
    """A path as one would write it: `kernel.kernels[0].lengthscale`."""
    return jax.tree_util.keystr(path).lstrip(".")


def as_dtype(model: M, dtype: Any) -> M:
    """The model with every parameter in another precision."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, model)


def _free_unless(trainable: M | None, model: M) -> M:
    return jax.tree.map(eqx.is_inexact_array, model) if trainable is None else trainable


def _map_parameters(function: Callable[[Setting, Array], Array], model: M) -> M:
    def mapped(path: Path, leaf: Any) -> Any:
        return function(setting(model, path), leaf) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree_util.tree_map_with_path(mapped, model)


def _bijector(known: Setting) -> AbstractBijector:
    assert known.bijector is not None
    return known.bijector


def setting(model: PyTree, path: Path) -> Setting:
    """Bijector and prior of the parameter at `path`."""
    owner, name = owner_and_field(model, path)
    if isinstance(owner, Parametrised) and name is not None:
        return owner.setting(name)
    return Parametrised().setting("")


def unit(model: PyTree, path: Path) -> str:
    """What the parameter at `path` is measured in, as its field declares it; empty if it has no unit."""
    owner, name = owner_and_field(model, path)
    fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    return next((field.metadata.get("unit", "") for field in fields if field.name == name), "")


def has_own_range(model: PyTree, path: Path) -> bool:
    """Whether the parameter at `path` was given another range (`with_bijector`) than its field declares."""
    owner, name = owner_and_field(model, path)
    fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    declared = next((field.metadata.get("bijector") for field in fields if field.name == name), None)
    return declared is not None and setting(model, path).bijector != declared


def owner_and_field(model: PyTree, path: Path) -> tuple[Any, str | None]:
    """The innermost object that holds the leaf, and the name of its field."""
    for key in path[:-1]:
        if isinstance(key, jax.tree_util.GetAttrKey):
            model = getattr(model, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            model = model[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            model = model[key.key]
        else:
            return None, None
    name = path[-1].name if path and isinstance(path[-1], jax.tree_util.GetAttrKey) else None
    return model, name


def _named(model: PyTree, where: Callable[[Any], Any]) -> Sequence[tuple[Path, Array]]:
    """The parameters that `where` picks, found by running it on the same tree with paths for leaves."""
    labelled = jax.tree_util.tree_map_with_path(lambda path, leaf: _Label(path, leaf), model)
    labels = [leaf for leaf in jax.tree.leaves(where(labelled)) if isinstance(leaf, _Label)]
    found = [(label.path, label.leaf) for label in labels if eqx.is_inexact_array(label.leaf)]
    if not found:
        raise ValueError("`where` names no parameter of this model: it should return a parameter, or a part with some.")
    return found


class _Label:
    def __init__(self, path: Path, leaf: Any):
        self.path = path
        self.leaf = leaf


def _with_setting(model: Any, where: Callable[[Any], Any], **changes: Any) -> Any:
    for path, _ in _named(model, where):
        owner, name = owner_and_field(model, path)
        if not isinstance(owner, Parametrised) or name is None:
            raise TypeError(
                f"{parameter_name(path)} belongs to no kernax module, and a bijector or prior is kept by its owner: "
                "declare it with kx.positive(), kx.real() or kx.interval() in a class derived from kx.Parametrised."
            )
        changed = owner.with_setting(name, **changes)
        at_root = len(path) == 1  # which tree_at cannot replace
        model = changed if at_root else eqx.tree_at(lambda m, path=path: owner_and_field(m, path)[0], model, changed)
    return model


def _float_dtype(model: PyTree) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(model) if eqx.is_inexact_array(leaf)]
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)
