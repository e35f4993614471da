"""Names of the parameters of a model, such as `rbf.lengthscale`."""

from collections import Counter
from typing import Any

import jax
from jaxtyping import PyTree

from kernax.kernels._algebra import Power, Product, Scale, Sum
from kernax.kernels._inputs import Select
from kernax.kernels._kernel import AbstractKernel
from kernax.parameters import owner_and_field, parameter_name, parameters

Path = tuple[Any, ...]

_MOST_PARTS = 3
"""Terms or factors that a name lists."""


def parameter_names(model: PyTree) -> dict[Path, str]:
    """The name of every parameter, as reports and tables of fits show it.

    The parameter of a kernel is named after the kernel: `rbf.lengthscale`. The variance of `2.0 * rbf * periodic` is
    `(rbf * periodic).variance`. Several kernels of one class are numbered, `rbf_1.lengthscale` and `rbf_2.lengthscale`; if
    they have keys, such as kernels of categories, they are called `categorical_city` and `categorical_year`. Any other
    parameter is named by its path: `noise`, `mean.value`.

    **Arguments:**

    - `model`: a model, or any tree of kernax modules.

    **Returns:**

    A dict from the paths of [`kernax.parameters.parameters`][] to the names, in the same order. All names are different.
    """
    labels = kernel_labels(model)
    names = {path: _name(model, path, labels) for path, _ in parameters(model)}
    counts = Counter(names.values())
    return {path: parameter_name(path) if counts[name] > 1 else name for path, name in names.items()}


def _name(model: PyTree, path: Path, labels: dict[Path, str]) -> str:
    inside = [depth for depth in range(len(path)) if path[:depth] in labels]
    if not inside:
        return parameter_name(path)
    kernel, field = path[: inside[-1]], parameter_name(path[inside[-1] :])
    owner = owner_and_field(model, path)[0]
    if isinstance(owner, Scale) and _has_variance(owner.kernel):
        field = "scale"
    return f"{_place(path[: inside[0]])}{labels[kernel]}.{field}"


def _has_variance(kernel: AbstractKernel) -> bool:
    """Whether a kernel that is one for itself, such as `linear`, has a variance of its own."""
    while isinstance(kernel, Select):
        kernel = kernel.kernel
    return isinstance(kernel, Scale) or any(parameter_name(path) == "variance" for path, _ in parameters(kernel))


def _place(path: Path) -> str:
    """Where in the model a kernel stands, if it is not the model's kernel."""
    where = parameter_name(path)
    return "" if where in ("", "kernel") else f"{where.removesuffix('.kernel')}."


def kernel_labels(model: PyTree) -> dict[Path, str]:
    """The name of every kernel in a model, by its path: `rbf`, or `(rbf * periodic)` for a product."""
    kernels = _kernels(model, ())
    alike: dict[tuple[str, str], list[Path]] = {}
    for path, kernel in kernels.items():
        if not isinstance(kernel, _JOINED):
            outermost = next(path[:depth] for depth in range(len(path) + 1) if path[:depth] in kernels)
            alike.setdefault((_place(outermost), type(kernel).__name__.lower()), []).append(path)
    labels: dict[Path, str] = {}
    for (_, name), paths in alike.items():
        keys = [getattr(kernels[path], "key", None) for path in paths]
        if None in keys or len(set(keys)) < len(keys):
            keys = range(1, len(paths) + 1)
        labels |= {path: name if len(paths) == 1 else f"{name}_{key}" for path, key in zip(paths, keys, strict=True)}
    for path, kernel in reversed(kernels.items()):  # inner ones first
        if path not in labels:
            inside = [labels[other] for other in kernels if other != path and _is_directly_in(other, path, kernels)]
            labels[path] = _joined(kernel, inside)
    return labels


_JOINED = (Scale, Select, Sum, Product, Power)
"""Kernels that are called by what they are made of."""


def _joined(kernel: Any, inside: list[str]) -> str:
    if isinstance(kernel, Power):
        return f"{inside[0]}**{kernel.exponent}"
    if len(inside) == 1:
        return inside[0]
    shown = inside if len(inside) <= _MOST_PARTS else [*inside[: _MOST_PARTS - 1], "…"]
    return f"({(' + ' if isinstance(kernel, Sum) else ' * ').join(shown)})"


def _kernels(node: Any, path: Path) -> dict[Path, AbstractKernel]:
    """Every kernel in a tree by its path, outer ones first."""
    found = {path: node} if isinstance(node, AbstractKernel) else {}
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda part: part is not node and isinstance(part, AbstractKernel)
    )
    for below, leaf in leaves:
        if below and isinstance(leaf, AbstractKernel):
            found |= _kernels(leaf, path + tuple(below))
    return found


def _is_directly_in(path: Path, outer: Path, kernels: dict[Path, AbstractKernel]) -> bool:
    if path[: len(outer)] != outer:
        return False
    return not any(path[:depth] in kernels for depth in range(len(outer) + 1, len(path)))
