"""New kernels from old ones: sums, products, multiples and powers are kernels again."""

import numbers
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import whole_number
from kernax.kernels import _markov as markov
from kernax.kernels._kernel import AbstractKernel, check_is_kernel
from kernax.kernels._trends import joined_trends
from kernax.parameters import Parameter, positive
from kernax.rows import num_rows, row_dtype


class Sum(AbstractKernel):
    """A sum of kernels, `k_1 + k_2 + …`, written with `+`: functions that are sums of independent functions.

    [`kernax.components`][] predicts each summand.

    **Arguments:**

    - `kernels`: the summands, a tuple.
    """

    kernels: tuple[AbstractKernel, ...]

    def __check_init__(self):
        for kernel in self.kernels:
            check_is_kernel(kernel, "each kernel of a sum")

    def pair(self, a, b):
        return sum((k.pair(a, b) for k in self.kernels[1:]), self.kernels[0].pair(a, b))

    def gram(self, x, z):
        return sum((k.gram(x, z) for k in self.kernels[1:]), self.kernels[0].gram(x, z))

    def gram_of_functionals(self, x, z):
        return sum((k.gram_of_functionals(x, z) for k in self.kernels[1:]), self.kernels[0].gram_of_functionals(x, z))

    def diag(self, x):
        return sum((k.diag(x) for k in self.kernels[1:]), self.kernels[0].diag(x))

    def state_space(self):
        return markov.summed([k.state_space() for k in self.kernels])

    def features(self, x):
        parts = _all([k.features(x) for k in self.kernels])
        return None if parts is None else jnp.concatenate(parts, axis=1)

    def waves(self, x, number, seed):
        parts = _all([k.waves(x, number, (*seed, i)) for i, k in enumerate(self.kernels)])
        if parts is None:
            return None
        angles, variances = zip(*parts, strict=True)
        return jnp.concatenate(angles, axis=1), jnp.concatenate(variances)

    def coordinates(self, x):
        return _joined([k.coordinates(x) for k in self.kernels])

    def summands(self):
        return tuple(part for k in self.kernels for part in k.summands())

    def trend(self):
        return joined_trends(*(k.trend() for k in self.kernels))

    def definite(self, x, mask):
        return Sum(tuple(k.definite(x, mask) for k in self.kernels))

    def check(self, x, counts=None):
        for kernel in self.kernels:
            kernel.check(x, counts)

    def initialised(self, x, mask, variance):
        started = [k.initialised(x, mask, variance / len(self.kernels)) for k in self.kernels]
        return Sum(tuple(_in_given_ratios(k, own, self.kernels) for k, own in zip(started, self.kernels, strict=True)))

    def __repr__(self):
        return " + ".join(repr(k) for k in self.kernels)


def _in_given_ratios(started: AbstractKernel, own: AbstractKernel, given: tuple[AbstractKernel, ...]) -> AbstractKernel:
    """A summand with its lengthscales in the given ratio to those of its like: started alike, they would stay alike."""
    alike = [k for k in given if jax.tree.structure(k) == jax.tree.structure(own)]
    if len(alike) == 1:
        return started

    def scaled(path: tuple, leaf: Any, own: Any, *others: Any) -> Any:
        if getattr(path[-1], "name", None) != "lengthscale" or any(jnp.shape(other) != jnp.shape(own) for other in others):
            return leaf
        return leaf * own / jnp.exp(jnp.mean(jnp.log(jnp.stack(others)), axis=0))

    return jax.tree_util.tree_map_with_path(scaled, started, own, *alike)


class Product(AbstractKernel):
    """A product of kernels, `k_1 · k_2 · …`, written with `*`: rows are similar only if they are similar in every factor.

    **Arguments:**

    - `kernels`: the factors, a tuple. A spline cannot be a factor.
    """

    kernels: tuple[AbstractKernel, ...]

    def __check_init__(self):
        for kernel in self.kernels:
            refuse_spline(kernel, "a product")

    def pair(self, a, b):
        return _product([k.pair(a, b) for k in self.kernels])

    def gram(self, x, z):
        return _product([k.gram(x, z) for k in self.kernels])

    def diag(self, x):
        return _product([k.diag(x) for k in self.kernels])

    def state_space(self):
        return markov.multiplied([k.state_space() for k in self.kernels])

    def features(self, x):
        parts = _all([k.features(x) for k in self.kernels])
        if parts is None:
            return None
        joint = parts[0]
        for part in parts[1:]:
            joint = (joint[:, :, None] * part[:, None, :]).reshape(joint.shape[0], -1)
        return joint

    def waves(self, x, number, seed):
        parts = _all([k.waves(x, number, (*seed, i)) for i, k in enumerate(self.kernels)])
        # Independent frequencies add up. A sum inside has more waves than its neighbours.
        if parts is None or any(variances.shape != (number,) for _, variances in parts):
            return None
        angles, variances = zip(*parts, strict=True)
        return sum(angles[1:], start=jnp.asarray(angles[0])), _product([number * v for v in variances]) / number

    def coordinates(self, x):
        return _joined([k.coordinates(x) for k in self.kernels])

    def axes(self):
        parts = _all([k.axes() for k in self.kernels])
        if parts is None:
            return None
        merged: dict[int | str, AbstractKernel] = {}
        for part in parts:
            for axis, kernel in part.items():
                merged[axis] = kernel if axis not in merged else merged[axis] * kernel
        return merged

    def check(self, x, counts=None):
        for kernel in self.kernels:
            kernel.check(x, counts)

    def initialised(self, x, mask, variance):
        shares = [variance] + [jnp.ones_like(variance)] * (len(self.kernels) - 1)
        return Product(tuple(k.initialised(x, mask, v) for k, v in zip(self.kernels, shares, strict=True)))

    def __repr__(self):
        return " * ".join(f"({k!r})" if isinstance(k, Sum) else repr(k) for k in self.kernels)


class Scale(AbstractKernel):
    """A multiple of a kernel, `variance · k`, written `2.0 * kernel`. The number becomes a parameter that is fitted.

    **Arguments:**

    - `kernel`: the kernel.
    - `variance`: the factor, one positive number.
    """

    kernel: AbstractKernel
    variance: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="y²")

    def __check_init__(self):
        check_is_kernel(self.kernel, "Scale.kernel")

    def pair(self, a, b):
        return self.variance * self.kernel.pair(a, b)

    def gram(self, x, z):
        return self.variance * self.kernel.gram(x, z)

    def gram_of_functionals(self, x, z):
        return self.variance * self.kernel.gram_of_functionals(x, z)

    def diag(self, x):
        return self.variance * self.kernel.diag(x)

    def state_space(self):
        return markov.scaled(self.kernel.state_space(), self.variance)

    def features(self, x):
        inner = self.kernel.features(x)
        return None if inner is None else jnp.sqrt(self.variance) * inner

    def waves(self, x, number, seed):
        inner = self.kernel.waves(x, number, seed)
        return None if inner is None else (inner[0], self.variance * inner[1])

    def coordinates(self, x):
        # In a sum, the summand with the larger variance has the larger say.
        inner = self.kernel.coordinates(x)
        return None if inner is None else jnp.sqrt(self.variance) * inner

    def axes(self):
        inner = self.kernel.axes()
        if inner is None:
            return None
        first = next(iter(inner))
        return inner | {first: Scale(inner[first], self.variance)}

    def summands(self):
        return tuple(Scale(part, self.variance) for part in self.kernel.summands())

    def trend(self):
        return self.kernel.trend()

    def definite(self, x, mask):
        return Scale(self.kernel.definite(x, mask), self.variance)

    def check(self, x, counts=None):
        self.kernel.check(x, counts)

    def initialised(self, x, mask, variance):
        inner = self.kernel.initialised(x, mask, jnp.ones_like(variance))
        return eqx.tree_at(lambda k: (k.kernel, k.variance), self, (inner, variance))

    def __repr__(self):
        inner = f"({self.kernel!r})" if isinstance(self.kernel, Sum) else repr(self.kernel)
        return f"{format_number(self.variance)} * {inner}"


class Power(AbstractKernel):
    """A power of a kernel, `k^exponent`, written `kernel ** 2`.

    **Arguments:**

    - `kernel`: the kernel. It cannot be a spline.
    - `exponent`: a whole number of at least 1. It is not fitted.
    """

    kernel: AbstractKernel
    exponent: int = eqx.field(static=True)

    def __init__(self, kernel: AbstractKernel, exponent: Any):
        self.kernel = kernel
        self.exponent = whole_number(exponent, "a kernel's power")
        refuse_spline(kernel, "a power")

    def pair(self, a, b):
        return self.kernel.pair(a, b) ** self.exponent

    def gram(self, x, z):
        return self.kernel.gram(x, z) ** self.exponent

    def diag(self, x):
        return self.kernel.diag(x) ** self.exponent

    def state_space(self):
        return markov.multiplied([self.kernel.state_space()] * self.exponent)

    def coordinates(self, x):
        return self.kernel.coordinates(x)

    def check(self, x, counts=None):
        self.kernel.check(x, counts)

    def initialised(self, x, mask, variance):
        inner = self.kernel.initialised(x, mask, variance ** (1 / self.exponent))
        return eqx.tree_at(lambda k: k.kernel, self, inner)

    def __repr__(self):
        return f"({self.kernel!r}) ** {self.exponent}"


class Constant(AbstractKernel):
    """Constant kernel, `variance` for every pair of rows: functions that are one unknown number.

    `kernel + 2.0` adds it. Use it for a level (an intercept) that is not known.

    **Arguments:**

    - `variance`: the prior variance of the level, one positive number.
    """

    variance: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="y²")

    def pair(self, a, b):
        return self.variance

    def gram(self, x, z):
        return jnp.broadcast_to(self.variance, (num_rows(x), num_rows(x if z is None else z)))

    def diag(self, x):
        return jnp.broadcast_to(self.variance, (num_rows(x),))

    def state_space(self):
        return markov.constant(self.variance)

    def features(self, x):
        return jnp.sqrt(self.variance) * jnp.ones((num_rows(x), 1), row_dtype(x))

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.variance, self, variance)


def added(kernel: AbstractKernel, other: Any) -> AbstractKernel:
    if isinstance(other, AbstractKernel):
        return Sum(_parts(Sum, kernel) + _parts(Sum, other))
    if isinstance(other, int) and other == 0:  # where Python's own `sum` starts
        return kernel
    return added(kernel, Constant(other)) if _is_number(other) else NotImplemented  # pyright: ignore[reportArgumentType]


def multiplied(kernel: AbstractKernel, other: Any) -> AbstractKernel:
    if isinstance(other, AbstractKernel):
        return Product(_parts(Product, kernel) + _parts(Product, other))
    return Scale(kernel, other) if _is_number(other) else NotImplemented


def refuse_spline(kernel: AbstractKernel, what: str) -> None:
    """Raise `ValueError` for a spline: it is definite only beside its trend, and multiplication does not keep that.

    Raise `TypeError` for what is not a kernel."""
    check_is_kernel(kernel, f"the kernel of {what}")
    if kernel.trend() is not None:
        raise ValueError(
            f"{kernel!r} is only conditionally definite, so {what} of it is not a kernel: add to it, or scale it by a "
            f"number."
        )


def _all(parts: list[Any]) -> list[Any] | None:
    """The parts, or `None` if one of them is missing."""
    return None if any(part is None for part in parts) else parts


def _joined(parts: list[Any]) -> Array | None:
    """All columns of the parts that have some."""
    known = [part for part in parts if part is not None]
    return jnp.concatenate(known, axis=1) if known else None


def format_number(value: Any) -> str:
    """A scalar in four digits; only its type while it is traced or batched."""
    try:
        return f"{float(value):.4g}"
    except TypeError:
        return f"{getattr(value, 'dtype', '?')}{list(getattr(value, 'shape', ()))}"


def _parts(kind: type[Sum] | type[Product], kernel: AbstractKernel) -> tuple[AbstractKernel, ...]:
    return kernel.kernels if isinstance(kernel, kind) else (kernel,)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0


def _product(factors: list[Array]) -> Array:
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product
