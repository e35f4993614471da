"""Functions of a model as a tree of parameters: constrain, freeze, flatten, priors."""

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
from kernax.bijectors import AbstractBijector
from kernax.parameters._fields import Parametrised, Setting

M = TypeVar("M")
Path = tuple[Any, ...]


def unconstrain(model: M) -> M:
    """Map every parameter to the unconstrained space in which optimisers and samplers work.

    **Arguments:**

    - `model`: any tree of kernax modules.

    **Returns:**

    The same tree with unconstrained numbers in place of the parameters.
    """
    return _map_parameters(lambda known, value: _bijector(known).inverse(value), model)


def constrain(model: M) -> M:
    """The inverse of [`kernax.parameters.unconstrain`][].

    **Arguments:**

    - `model`: a tree of unconstrained numbers.

    **Returns:**

    The tree with the values of the parameters.
    """
    return _map_parameters(lambda known, value: _bijector(known).forward(value), model)


def at_bound(model: M) -> M:
    """Which parameters are at an end of their range.

    **Arguments:**

    - `model`: any tree of kernax modules.

    **Returns:**

    The same tree with an array of booleans in place of every parameter.
    """
    return _map_parameters(lambda known, value: jnp.asarray(_bijector(known).at_bound(value)), model)


def log_prior(model: PyTree) -> Float[Array, ""]:
    """The sum of the log-densities of all priors of a model, at the constrained values.

    **Arguments:**

    - `model`: a model with priors from [`kernax.with_prior`][].

    **Returns:**

    One number; 0 without priors.
    """
    total = jnp.zeros((), dtype=_float_dtype(model))
    for path, value in parameters(model):
        prior = setting(model, path).prior
        if prior is not None:
            total = total + jnp.sum(prior(value)).astype(total.dtype)
    return total


def log_jacobian(unconstrained: PyTree) -> Float[Array, ""]:
    """`log |d constrain(u) / du|`, for sampling in the unconstrained space. Add it to a log-density of the values.

    **Arguments:**

    - `unconstrained`: a tree from [`kernax.parameters.unconstrain`][].

    **Returns:**

    One number.
    """
    total = jnp.zeros((), dtype=_float_dtype(unconstrained))
    for path, value in parameters(unconstrained):
        total = total + jnp.sum(_bijector(setting(unconstrained, path)).log_jacobian(value)).astype(total.dtype)
    return total


def with_bijector(model: M, where: Callable[[M], Any], bijector: Any) -> M:
    """Give some parameters of a model another constraint.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `where`: a function that picks parameters of the model: `lambda m: m.noise`, a whole part (`lambda m: m.kernel`), or a
        sequence of those.
    - `bijector`: an instance of a class of `kernax.bijectors`, for example `kx.bijectors.Interval(0.1, 10.0)`.

    **Returns:**

    A copy of the model. Raises `ValueError` if a current value violates the new constraint.
    """
    if not isinstance(bijector, AbstractBijector):
        raise TypeError(f"bijector must be an instance, for example kx.bijectors.Interval(0.1, 10.0), got {bijector!r}.")
    for path, value in _named(model, where):
        fault = bijector.fault(np.asarray(value)) if is_concrete(value) else None
        if fault is not None:
            raise ValueError(f"{parameter_name(path)} must be {fault} for this bijector, got {np.asarray(value)}.")
    return _with_setting(model, where, bijector=bijector)


def with_prior(model: M, where: Callable[[M], Any], prior: Any) -> M:
    """Give some parameters of a model a prior. `fit` then maximises the posterior instead of the likelihood.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `where`: a function that picks parameters of the model: `lambda m: m.noise`, a whole part (`lambda m: m.kernel`), or a
        sequence of those.
    - `prior`: a log-density of the value: an instance of a class of `kernax.priors`, for example
        `kx.priors.LogNormal(0.0, 1.0)`, or a function of the value. `None` removes the prior.

    **Returns:**

    A copy of the model.
    """
    if prior is not None and not callable(prior):
        raise TypeError(f"prior must be a log-density: kx.priors.LogNormal() or a function of the value, got {prior!r}.")
    return _with_setting(model, where, prior=prior)


def trainable(model: M) -> M:
    """The boolean tree in which every parameter is free, for `fit(..., trainable=...)`.

    **Arguments:**

    - `model`: any tree of kernax modules.

    **Returns:**

    The same tree with `True` in place of every parameter.
    """
    return _free_unless(None, model)


def freeze(model: M, where: Callable[[M], Any], *, trainable: M | None = None) -> M:
    """Hold some parameters fixed while the others are fitted: `fit(model, data, trainable=freeze(model, where))`.

    **Arguments:**

    - `model`: the model that will be fitted.
    - `where`: a function that picks parameters of the model: `lambda m: m.noise`, a whole part (`lambda m: m.kernel`), or a
        sequence of those.
    - `trainable`: the result of an earlier call, to freeze more parameters.

    **Returns:**

    A boolean tree like the model: `False` for frozen parameters, `True` for free ones.
    """
    tree = _free_unless(trainable, model)
    held = {path for path, _ in _named(model, where)}
    return jax.tree_util.tree_map_with_path(lambda path, free: free and path not in held, tree)


def ravel(model: M, *, trainable: M | None = None) -> tuple[Float[Array, " k"], Callable[[Float[Array, " k"]], M]]:
    """The free parameters as one vector in the unconstrained space, for optimisers and samplers that need a vector.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `trainable`: a boolean tree from [`kernax.freeze`][]. Frozen parameters keep their exact values.

    **Returns:**

    The vector, and a function that turns such a vector into a model.
    """
    free, held = split(model, trainable)
    vector, unravel = jax.flatten_util.ravel_pytree(free)

    def rebuild(vector: Float[Array, " k"]) -> M:
        return join(unravel(vector), held)

    return vector, rebuild


def split(model: M, trainable: M | None) -> tuple[M, M]:
    """Split a model into its free parameters, unconstrained, and the rest.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `trainable`: a boolean tree from [`kernax.freeze`][], or None if all parameters are free.

    **Returns:**

    Two trees, for [`kernax.parameters.join`][].
    """
    tree = _free_unless(trainable, model)
    free, held = eqx.partition(model, tree)
    return unconstrain(free), held


def join(free: M, held: M) -> M:
    """The inverse of [`kernax.parameters.split`][].

    **Arguments:**

    - `free`: the unconstrained free parameters.
    - `held`: the rest.

    **Returns:**

    The model.
    """
    return eqx.combine(constrain(free), held)


def parameters(model: PyTree) -> list[tuple[Path, Any]]:
    """Every parameter with its path in the tree.

    **Arguments:**

    - `model`: any tree of kernax modules.

    **Returns:**

    Pairs of a path and an array (a JAX array, or a NumPy array if the model is on the host).
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(model)
    return [(path, leaf) for path, leaf in leaves if eqx.is_inexact_array(leaf)]


def parameter_name(path: Path) -> str:
    """A path as text.

    **Arguments:**

    - `path`: a path from [`kernax.parameters.parameters`][].

    **Returns:**

    For example `"kernel.kernels[0].lengthscale"`.
    """
    return jax.tree_util.keystr(path).lstrip(".")


def as_dtype(model: M, dtype: Any) -> M:
    """Convert every parameter to another precision.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `dtype`: `float32` or `float64`.

    **Returns:**

    A copy of the model.
    """
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
    """Bijector and prior of one parameter.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `path`: a path from [`kernax.parameters.parameters`][].

    **Returns:**

    An object with the attributes `bijector` and `prior` (None without a prior).
    """
    owner, name = owner_and_field(model, path)
    if isinstance(owner, Parametrised) and name is not None:
        return owner.setting(name)
    return Parametrised().setting("")


def unit(model: PyTree, path: Path) -> str:
    """The unit of measurement of one parameter, as its field declares it.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `path`: a path from [`kernax.parameters.parameters`][].

    **Returns:**

    The unit as text; empty without a unit.
    """
    owner, name = owner_and_field(model, path)
    fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    return next((field.metadata.get("unit", "") for field in fields if field.name == name), "")


def has_own_range(model: PyTree, path: Path) -> bool:
    """Whether the parameter at `path` has another range (from `with_bijector`) than its field declares."""
    owner, name = owner_and_field(model, path)
    fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    declared = next((field.metadata.get("bijector") for field in fields if field.name == name), None)
    return declared is not None and setting(model, path).bijector != declared


def owner_and_field(model: PyTree, path: Path) -> tuple[Any, str | None]:
    """The innermost object that holds a parameter, and the name of its field.

    **Arguments:**

    - `model`: any tree of kernax modules.
    - `path`: a path from [`kernax.parameters.parameters`][].

    **Returns:**

    The object and the name. The name is None if the parameter is not a field, and both are None if the path cannot be
    followed.
    """
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
    """The parameters that `where` picks, found by calling it on the same tree with labels in place of the leaves."""
    labelled = jax.tree_util.tree_map_with_path(lambda path, leaf: _Label(path, leaf), model)
    labels = [leaf for leaf in jax.tree.leaves(where(labelled)) if isinstance(leaf, _Label)]
    found = [(label.path, label.leaf) for label in labels if eqx.is_inexact_array(label.leaf)]
    if not found:
        raise ValueError(
            "`where` picks no parameter of this model: it must return a parameter, or a part that contains parameters."
        )
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
                f"{parameter_name(path)} is not a field of a kernax module, so it cannot be given a bijector or a prior: "
                "declare it with kx.positive() or kx.parameters.real() in a class derived from kx.parameters.Parametrised."
            )
        changed = owner.with_setting(name, **changes)
        at_root = len(path) == 1  # tree_at cannot replace the root
        model = changed if at_root else eqx.tree_at(lambda m, path=path: owner_and_field(m, path)[0], model, changed)
    return model


def _float_dtype(model: PyTree) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(model) if eqx.is_inexact_array(leaf)]
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)
