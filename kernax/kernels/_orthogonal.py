"""Sums over sets of columns whose parts are orthogonal to each other, so that each part is identifiable."""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import as_floats, matmul, whole_number
from kernax.kernels._additive import check_columns, elementary_sums
from kernax.kernels._algebra import refuse_spline
from kernax.kernels._input_distributions import (
    Inputs,
    NormalInputs,
    as_inputs,
    closed_form,
    covariance_over,
    mean_over,
    rbf_product,
)
from kernax.kernels._inputs import Select
from kernax.kernels._kernel import AbstractKernel
from kernax.parameters import Parameter, positive

_NO_MEAN = 100.0
"""If the variance of the functions' mean is below this many units of rounding, they have mean 0 already."""


class ZeroMean(AbstractKernel):
    """The functions of a kernel whose mean over a distribution of inputs is 0: `k(a, b) - m(a) m(b) / V`.

    With `m(a) = E k(a, s)` and `V = E k(s, s')` for s and s' distributed like the inputs, this is the covariance of the
    process given `E f(s) = 0`. Positive definite. For an `RBF` and `NormalInputs` it is computed in closed form without
    cancellation; otherwise it is a sum over weighted points (128 evenly spaced points for `NormalInputs`).

    **Arguments:**

    - `kernel`: a kernel of one column. It must not have functions that are all multiples of one function whose mean is not
      0, such as `Linear()` where the column's mean is not 0: write `kx.Linear() + 1.0`.
    - `inputs`: a [`kernax.kernels.NormalInputs`][] or a [`kernax.kernels.PointInputs`][].
    """

    kernel: AbstractKernel
    inputs: Inputs = eqx.field(static=True)

    def __check_init__(self):
        refuse_spline(self.kernel, "the part with mean 0")
        if not isinstance(self.inputs, Inputs):
            raise TypeError(f"ZeroMean.inputs must be NormalInputs or PointInputs, got {self.inputs!r}.")

    def pair(self, a, b):
        _check_one_column(a.shape[-1])
        value = self.kernel.pair(a, b)
        normal = closed_form(self.kernel, self.inputs)
        if normal is not None:
            return self._closed(value, a[0] - normal.mean, b[0] - normal.mean, normal.scale)
        return value - self._mean(a[None])[0] * self._mean(b[None])[0] / self._variance(a.dtype)

    def gram(self, x, z):
        _check_one_column(x.shape[1])
        value = self.kernel.gram(x, z)
        normal = closed_form(self.kernel, self.inputs)
        if normal is not None:
            u, v = (rows[:, 0] - normal.mean for rows in (x, x if z is None else z))
            return self._closed(value, u[:, None], v, normal.scale)
        left = self._mean(x)
        right = left if z is None else self._mean(z)
        return value - left[:, None] * right / self._variance(x.dtype)

    def diag(self, x):
        _check_one_column(x.shape[1])
        value = self.kernel.diag(x)
        normal = closed_form(self.kernel, self.inputs)
        if normal is not None:
            u = x[:, 0] - normal.mean
            return self._closed(value, u, u, normal.scale)
        return value - self._mean(x) ** 2 / self._variance(x.dtype)

    def coordinates(self, x):
        return self.kernel.coordinates(x)

    def initialised(self, x, mask, variance):
        return eqx.tree_at(lambda k: k.kernel, self, self.kernel.initialised(x, mask, variance))

    def covariance_over(self, x: Float[Array, "n 1"], z: Float[Array, "m 1"]) -> Float[Array, "n m"]:
        """`E k(x_i, s) k(z_j, s)` of this kernel, with s distributed like the inputs.

        **Arguments:**

        - `x`, `z`: rows of one column.

        **Returns:**

        A matrix of shape `(n, m)`.
        """
        by_nodes = covariance_over(self, self, self.inputs, x, z)
        inputs = closed_form(self.kernel, self.inputs)
        if inputs is None:
            return by_nodes
        # By nodes only where they are close enough together: there the closed form cancels.
        square = self.kernel.lengthscale.reshape(()) ** 2
        spread = square + inputs.scale**2
        share, middle = square / spread, jnp.full((1, 1), inputs.mean, x.dtype)
        left, right = (mean_over(self.kernel, inputs, rows) for rows in (x, z))
        with_mean = [jnp.sqrt(share) * rbf_product(rows, square, middle, spread, inputs)[:, 0] for rows in (x, z)]
        of_mean = share * rbf_product(middle, spread, middle, spread, inputs)
        whole = jnp.sqrt(square / (square + 2.0 * inputs.scale**2))
        closed = rbf_product(x, square, z, square, inputs) + left[:, None] * right * of_mean / whole**2
        closed = closed - (left[:, None] * with_mean[1] + with_mean[0][:, None] * right) / whole
        return jnp.where(square > inputs.scale**2, by_nodes, closed)

    def _mean(self, x: Float[Array, "n 1"]) -> Float[Array, " n"]:
        return mean_over(self.kernel, self.inputs, x)

    def _variance(self, dtype: Any) -> Float[Array, ""]:
        """V; infinite if the functions have mean 0 already, up to rounding."""
        points, weights = (jnp.asarray(value, dtype) for value in self.inputs.nodes())
        points = points[:, None]
        value = matmul(weights, matmul(self.kernel.gram(points, None), weights))
        has_mean = value > _NO_MEAN * jnp.finfo(value.dtype).eps * jnp.sum(weights * self.kernel.diag(points))
        return jnp.where(has_mean, value, jnp.inf)

    def _closed(self, value: Array, u: Array, v: Array, scale: float) -> Array:
        """`k - m m / V` for an RBF and normal inputs with their mean at 0, given k.

        It is `B (e^t - 1)` with `B = m(u) m(v) / V` and a t that is small where k and B nearly cancel: no digit is lost for
        a lengthscale that is long beside the inputs' scale.
        """
        square, spread = self.kernel.lengthscale.reshape(()) ** 2, scale**2
        share = spread / (square + spread)
        # log(1 - share²), where share may be 0 or 1 up to rounding.
        is_long = share < 0.5
        log_rest = jnp.where(
            is_long,
            jnp.log1p(-(jnp.where(is_long, share, 0.5) ** 2)),
            jnp.log(square / (square + spread)) + jnp.log1p(share),
        )
        t = (u * v - 0.5 * share * (u**2 + v**2)) / square - 0.5 * log_rest
        product = jnp.exp(0.5 * log_rest - 0.5 * (u**2 + v**2) / (square + spread))
        return jnp.where(t < 1.0, product * jnp.expm1(jnp.minimum(t, 1.0)), value - product)


class OrthogonalAdditive(AbstractKernel):
    """Effects of columns and their interactions up to an order, each orthogonal to the others:
    `v_0 + Σ_q v_q e_q(z_1, …, z_d)`, with a [`kernax.kernels.ZeroMean`][] kernel `z_k` for each column.

    `e_q` is the sum over all products of q different columns' kernels (Lu, Boukouvalas & Hensman, 2022). The mean of every
    effect along each of its columns is 0 over the distribution of the inputs. So an interaction does not contain effects of
    single columns, the components are identifiable, and their variances over independent inputs add up: they are the Sobol
    indices of `kx.sensitivity`. In an `Additive` kernel the same function can be divided in many ways. Positive definite.

    `e_q` is computed by the recursion `e_q ← e_q + z_k e_(q-1)` over columns. (The formulas of Newton and Girard subtract
    large numbers: with 20 columns in float32 they lose all digits.)

    `kx.components(c, x)` has one component for each set of columns, in the order of `subsets`.

    **Arguments:**

    - `kernels`: a kernel of one column for each column; or one kernel, which is copied for each of `columns` columns.
    - `order`: the highest order.
    - `columns`: the number of columns, if one kernel is given.
    - `inputs`: how each column is distributed: [`kernax.kernels.NormalInputs`][], [`kernax.kernels.PointInputs`][] or
      [`kernax.kernels.uniform_inputs`][], for all columns or one for each; or rows `(n, d)`, such as those of the data. By
      default standard normal, which suits standardised columns.
    - `variance`: v, one number for each order from 0 (the constant) on; by default 1 for the constant, and 1/order for the
      others.
    """

    kernels: tuple[AbstractKernel, ...]
    order: int = eqx.field(static=True)
    subset: tuple[int, ...] | None = eqx.field(static=True)
    """The columns of the only effect that it has; `None` for all of them."""
    variance: Float[Parameter, " orders"] = positive(unit="y²")

    def __init__(
        self, kernels: Any, order: int = 2, *, columns: int | None = None, inputs: Any = None, variance: Any = None
    ):
        own = check_columns(kernels, columns, "OrthogonalAdditive")
        order = whole_number(order, "OrthogonalAdditive.order")
        if order > len(own):
            raise ValueError(
                f"OrthogonalAdditive.order is {order}, but there are {len(own)} columns: give an order of at "
                f"most {len(own)}."
            )
        known = as_inputs(NormalInputs() if inputs is None else inputs, len(own))
        parts = [ZeroMean(kernel, part) for kernel, part in zip(own, known, strict=True)]
        self.kernels = tuple(Select(part, columns=k) for k, part in enumerate(parts))
        self.order, self.subset = order, None
        default = jnp.asarray([1.0] + [1.0 / order] * order)
        self.variance = default if variance is None else as_floats(variance, "OrthogonalAdditive.variance")
        if self.variance.shape != (order + 1,):
            raise ValueError(
                f"OrthogonalAdditive.variance needs {order + 1} numbers, one for each order from 0 on, got shape "
                f"{self.variance.shape}."
            )

    @property
    def subsets(self) -> tuple[tuple[int, ...], ...]:
        """The columns of each effect: none (the constant), single ones, pairs, …"""
        if self.subset is not None:
            return (self.subset,)
        columns, orders = range(len(self.kernels)), range(self.order + 1)
        return tuple(part for order in orders for part in itertools.combinations(columns, order))

    def component(self, *columns: int) -> "OrthogonalAdditive":
        """The kernel of one effect.

        **Arguments:**

        - `columns`: the columns of the effect: `component(0)` is that of one column, `component(0, 2)` an interaction, and
          `component()` the constant.

        **Returns:**

        A kernel.
        """
        subset = tuple(sorted(columns))
        if subset not in self.subsets:
            raise ValueError(
                f"the kernel has no effect of the columns {columns}: give at most {self.order} different columns of "
                f"{len(self.kernels)}."
            )
        part = object.__new__(OrthogonalAdditive)
        values = {
            "kernels": self.kernels,
            "settings": self.settings,
            "order": self.order,
            "subset": subset,
            "variance": self.variance,
        }
        for name, value in values.items():
            object.__setattr__(part, name, value)
        return part

    def pair(self, a, b):
        self._check(a.shape[-1])
        return self._sum([k.pair(a, b) for k in self._used()], jnp.ones((), a.dtype))

    def gram(self, x, z):
        self._check(x.shape[1])
        like = jnp.ones((x.shape[0], x.shape[0] if z is None else z.shape[0]), x.dtype)
        return self._sum([k.gram(x, z) for k in self._used()], like)

    def diag(self, x):
        self._check(x.shape[1])
        return self._sum([k.diag(x) for k in self._used()], jnp.ones(x.shape[0], x.dtype))

    def coordinates(self, x):
        known = [part for part in (k.coordinates(x) for k in self._used()) if part is not None]
        return jnp.concatenate(known, axis=1) if known else None

    def summands(self):
        return tuple(self.component(*subset) for subset in self.subsets)

    def initialised(self, x, mask, variance):
        # At first every order explains the same share of the variance; the constant may be as large as all of it.
        kernels = tuple(k.initialised(x, mask, jnp.ones_like(variance)) for k in self.kernels)
        sums = elementary_sums([k.diag(x) for k in kernels], jnp.ones_like(x[:, 0]), self.order)
        sizes = [jnp.mean(part, where=mask) for part in sums[1:]]
        shares = [jnp.where(size > 0, variance / (self.order * jnp.where(size > 0, size, 1.0)), variance) for size in sizes]
        started = jnp.stack([variance, *shares]).astype(self.variance.dtype)
        return eqx.tree_at(lambda k: (k.kernels, k.variance), self, (kernels, started))

    def __repr__(self):
        if self.subset is not None:
            return f"OrthogonalAdditive({_named(self.subset)})"
        return f"OrthogonalAdditive({', '.join(repr(k.kernel.kernel) for k in self.kernels)}; up to order {self.order})"

    def _used(self) -> Sequence[AbstractKernel]:
        return self.kernels if self.subset is None else [self.kernels[k] for k in self.subset]

    def _sum(self, values: list[Array], like: Array) -> Array:
        if self.subset is not None:
            product = like
            for value in values:
                product = product * value
            return self.variance[len(self.subset)] * product
        sums = elementary_sums(values, like, self.order)
        total = self.variance[0] * sums[0]
        for order in range(1, self.order + 1):
            total = total + self.variance[order] * sums[order]
        return total

    def _check(self, width: int) -> None:
        if width != len(self.kernels):
            raise ValueError(f"OrthogonalAdditive has kernels for {len(self.kernels)} columns, but the inputs have {width}.")


def _named(subset: tuple[int, ...]) -> str:
    if not subset:
        return "constant"
    return f"{'column' if len(subset) == 1 else 'columns'} {', '.join(map(str, subset))}"


def _check_one_column(width: int) -> None:
    if width != 1:
        raise ValueError(f"ZeroMean is a kernel of one column, but the inputs have {width}: write Select(…, columns=0).")
