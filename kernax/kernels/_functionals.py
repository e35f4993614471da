"""The kernel of observed functionals: of values, slopes and averages of a function."""

from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kernax._arrays import is_concrete
from kernax.kernels._coregion import coregion_in
from kernax.kernels._kernel import AbstractKernel, check_is_kernel
from kernax.kernels._matern import Matern
from kernax.kernels._stationary import Matern52
from kernax.rows import Functionals, Rows, functionals_in, values_at


class OfFunctionals(AbstractKernel):
    """Covariance of observed values, slopes and averages of a function with a given kernel.

    A row of `kx.observe` observes a functional `L f = Σ_q (w_q f(x_q) + v_q · ∇f(x_q))`, and the covariance of two of them
    is `L_a L_b k(x_a, x_b)`. Slopes are directional derivatives of the kernel's own matrix, in forward mode, once for
    each side. Kernels `k = f(s)` of a scaled squared distance, and their sums and multiples, have a closed form:
    `∂_v k = 2f' v·Λ(a-b)` and the mixed derivative `-4f'' (v·Λ(a-b))(w·Λ(a-b)) - 2f' v·Λw`, with `Λ = 1/ℓ²`.

    Rows that are a plain array observe values. Raises `ValueError` if rows observe slopes and the kernel is not twice
    differentiable where its two points coincide, as `Matern12` is not.

    **Arguments:**

    - `kernel`: the kernel of the function. Its points are vectors.
    """

    kernel: AbstractKernel

    def __check_init__(self):
        check_is_kernel(self.kernel, "OfFunctionals.kernel")
        tasks = coregion_in(self.kernel)
        if tasks is not None:
            raise ValueError(
                "OfFunctionals takes a kernel of points, and this one also has tasks: write "
                f'kx.kernels.Coregion({tasks.number}) * kx.Select(kx.kernels.OfFunctionals(kernel), key="x").'
            )
        if self.kernel.trend() is not None:
            raise ValueError(
                f"{self.kernel!r} is only conditionally definite, so OfFunctionals does not take it: use kx.Matern52(), or "
                "another kernel without a trend."
            )

    def pair(self, a, b):
        one = [jax.tree.map(lambda leaf: leaf[None], point) for point in (a, b)]
        x, z = self._functionals(*one)

        def values(points: Array, others: Array) -> Array:
            return jax.vmap(lambda p: jax.vmap(lambda q: self.kernel.pair(p, q))(others))(points)

        return self._or_nan(x.of(lambda points: z.of(lambda others: values(points, others).T).T)[0, 0], x, z)

    def gram(self, x, z):
        if z is not None:
            return self._or_nan(self.kernel.gram_of_functionals(*self._functionals(x, z)), x, z)
        entries = self._or_nan(self.kernel.gram_of_functionals(*self._functionals(x, x)), x)
        return jnp.where(jnp.eye(entries.shape[0], dtype=bool), self.diag(x)[:, None], entries)

    def diag(self, x):
        return jax.vmap(self.pair)(x, x)

    def features(self, x):
        inner = self.kernel.features
        if not isinstance(x, Functionals):
            return inner(x)
        return None if jax.eval_shape(inner, x.x[:, 0]) is None else x.of(inner)  # pyright: ignore[reportArgumentType]

    def summands(self):
        return tuple(OfFunctionals(part) for part in self.kernel.summands())

    def initialised(self, x, mask, variance):
        middle = jnp.mean(x.x, axis=1) if isinstance(x, Functionals) else x
        return OfFunctionals(self.kernel.initialised(middle, mask, variance))

    def _or_nan(self, entries: Array, *sides: Rows) -> Array:
        """The entries; NaN if rows observe slopes and a fit has moved the ν of a `Matern` to where there are none."""
        if not any(part.has_slopes for part in functionals_in(sides)):
            return entries
        for part in _materns(self.kernel):
            entries = jnp.where(part.nu > 1.0, entries, jnp.nan)
        return entries

    def _functionals(self, *sides: Rows) -> tuple[Functionals, ...]:
        """Rows as functionals; raises if they observe slopes that functions of the kernel do not have."""
        if any(isinstance(x, dict | tuple | list) for x in sides):
            raise ValueError(
                "OfFunctionals needs rows that are points or rows of kx.observe, got a structure of several parts: apply it "
                'to the part that holds them, kx.Select(kx.kernels.OfFunctionals(kernel), key="x").'
            )
        rows = tuple(x if isinstance(x, Functionals) else values_at(x) for x in sides)
        if any(x.has_slopes for x in rows):
            refuse_rough(self.kernel, rows[0].x.shape[-1])
        return rows


def check_observable(kernel: AbstractKernel, x: Rows) -> None:
    """Raise `TypeError` if rows observe functionals and no part of the kernel takes such rows; `ValueError` if they observe
    slopes and a `Matern` has a ν for which there are none."""
    parts = jax.tree.leaves(kernel, is_leaf=lambda node: isinstance(node, OfFunctionals))
    if functionals_in(x) and not any(isinstance(part, OfFunctionals) for part in parts):
        shown = f"kx.kernels.OfFunctionals({kernel!r})"
        if not isinstance(x, Functionals):
            shown = "for the part that holds them kx.Select(kx.kernels.OfFunctionals(kernel), key=…)"
        raise TypeError(f"rows of kx.observe need a kernel for what they observe: write {shown}.")
    if any(part.has_slopes for part in functionals_in(x)):
        for part in parts:
            if isinstance(part, OfFunctionals):
                _refuse_rough_matern(part.kernel)


def refuse_rough(kernel: AbstractKernel, width: int) -> None:
    """Raise `ValueError` if the function of a kernel has no slope, or JAX cannot compute its covariance.

    The mixed derivative where two points coincide is compared with a difference quotient, which grows without bound if the
    function has no slope. That is a property of the formula: parameters are replaced by 1. Of `Matern` it depends on ν,
    which is looked at unless it is traced.
    """
    _refuse_rough_matern(kernel)
    kernel = jax.tree.map(_smooth_enough, kernel, is_leaf=_is_matern)
    leaves, structure = jax.tree.flatten(kernel)
    # Numbers by their shapes, so that traced ones serve, too; everything else, such as functions, as it is.
    parts = tuple((leaf.shape, leaf.dtype.name) if eqx.is_array(leaf) else leaf for leaf in leaves)
    try:
        with jax.ensure_compile_time_eval():
            rough = _is_rough(structure, parts, width)
    except (TypeError, jax.errors.JAXTypeError):
        return  # a function inside the kernel holds traced numbers of its own
    if rough:
        raise ValueError(
            f"rows observe slopes, but {kernel!r} is not twice differentiable where two points coincide, so its functions "
            "have no slope: use a smoother kernel, such as kx.Matern32, kx.Matern52 or kx.RBF."
        )


def _is_matern(part: Any) -> bool:
    return isinstance(part, Matern)


def _materns(kernel: AbstractKernel) -> list[Matern]:
    return [part for part in jax.tree.leaves(kernel, is_leaf=_is_matern) if _is_matern(part)]


def _refuse_rough_matern(kernel: AbstractKernel) -> None:
    for part in _materns(kernel):
        if is_concrete(part.nu) and not np.all(np.asarray(part.nu) > 1.0):
            raise ValueError(
                f"rows observe slopes, but the functions of {part!r} have a slope only for nu above 1: start with a larger "
                "nu, and hold it with kx.freeze or give it a bound above 1."
            )


def _smooth_enough(part: Any) -> Any:
    """A smooth Matérn kernel in the place of one with any ν."""
    return Matern52(part.lengthscale) if _is_matern(part) else part


_STEP = 0.02
_FAR = 0.3
"""By what share quotient and derivative may differ. For Matern32 they differ by 4 %, for a rough kernel by all."""


@lru_cache(maxsize=256)
def _is_rough(structure: Any, parts: tuple, width: int) -> bool:
    numbers = [jnp.ones(*part) if isinstance(part, tuple) else None for part in parts]

    @jax.jit
    def compared(numbers: list[Any]) -> tuple[Array, Array, Array]:
        leaves = [part if number is None else number for part, number in zip(parts, numbers, strict=True)]
        pair = jax.tree.unflatten(structure, leaves).pair
        point = 0.4 + 0.3 * jnp.cos(1.0 + jnp.arange(width))
        along = jnp.cos(2.0 * jnp.arange(width)) + 0.1

        def slope(b: Any) -> Any:
            return jax.jvp(lambda a: pair(a, b), (point,), (along,))[1]

        up, down = point + _STEP * along, point - _STEP * along
        own, other = pair(up, up) + pair(down, down), 2.0 * pair(up, down)
        return jax.jvp(slope, (point,), (along,))[1], (own - other) / (2.0 * _STEP) ** 2, own

    derivative, quotient, scale = (float(number) for number in compared(numbers))
    if not np.isfinite(quotient):
        return False  # the stand-ins for the parameters are out of their range: nothing is known
    return not abs(quotient - derivative) <= _FAR * (abs(quotient) + abs(derivative)) + 1e-3 * abs(scale)
