"""Non-stationary kernels: a switch between two kernels, and a lengthscale that is a function of the row."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.kernels._algebra import refuse_spline
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import summed, weighted
from kernax.parameters import Parameter, as_function, positive, real


class ChangePoint(AbstractKernel):
    """One kernel before a point and another one after it: `(1 - σ_a)(1 - σ_b) k_1(a, b) + σ_a σ_b k_2(a, b)`.

    `σ_a = 1/(1 + e^(-(a_c - location)/width))` is a switch in column c. Positive definite, since it is the covariance of
    `(1 - σ)f_1 + σ f_2` with independent functions. Use it if the behaviour changes at some time or place. It has a state
    space, for `kx.StateSpace()`, if both kernels have one.

    **Arguments:**

    - `before`, `after`: the kernels.
    - `location`: where the switch is at 1/2. A fit starts from this value, so give one that is close.
    - `width`: how wide the switch is, in the units of the column.
    - `column`: c, counted from 0.
    """

    before: AbstractKernel
    after: AbstractKernel
    location: Float[Parameter, ""] = real(default=0.0, unit="x")
    width: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="x")
    column: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        for kernel in (self.before, self.after):
            refuse_spline(kernel, "a switch")
        if self.location.ndim:
            raise ValueError(f"ChangePoint.location must be one number, got shape {self.location.shape}.")
        if isinstance(self.column, bool) or not isinstance(self.column, int) or self.column < 0:
            raise ValueError(f"ChangePoint.column must be a column number counted from 0, got {self.column!r}.")

    def pair(self, a, b):
        (off_a, on_a), (off_b, on_b) = self._switch(a), self._switch(b)
        return off_a * off_b * self.before.pair(a, b) + on_a * on_b * self.after.pair(a, b)

    def gram(self, x, z):
        off, on = self._switch(x)
        off_z, on_z = (off, on) if z is None else self._switch(z)
        return off[:, None] * off_z * self.before.gram(x, z) + on[:, None] * on_z * self.after.gram(x, z)

    def diag(self, x):
        off, on = self._switch(x)
        return off**2 * self.before.diag(x) + on**2 * self.after.diag(x)

    def state_space(self):
        parts = (self.before.state_space(), self.after.state_space())
        return summed([weighted(part, lambda x, i=i: self._switch(x)[i]) for i, part in enumerate(parts)])

    def features(self, x):
        before, after = self.before.features(x), self.after.features(x)
        if before is None or after is None:
            return None
        off, on = self._switch(x)
        return jnp.concatenate([off[:, None] * before, on[:, None] * after], axis=1)

    def coordinates(self, x):
        known = [part for part in (self.before.coordinates(x), self.after.coordinates(x)) if part is not None]
        return jnp.concatenate(known, axis=1) if known else None

    def check(self, x, counts=None):
        self.before.check(x, counts)
        self.after.check(x, counts)

    def initialised(self, x, mask, variance):
        started = (self.before.initialised(x, mask, variance), self.after.initialised(x, mask, variance))
        return eqx.tree_at(lambda k: (k.before, k.after), self, started)

    def _switch(self, x: Float[Array, "*n d"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
        if self.column >= x.shape[-1]:
            raise ValueError(f"ChangePoint uses column {self.column}, but the inputs have {x.shape[-1]} columns.")
        t = (x[..., self.column] - self.location) / self.width
        return jax.nn.sigmoid(-t), jax.nn.sigmoid(t)


class Gibbs(AbstractKernel):
    """An RBF whose lengthscale is a function of the row: smooth in some places and rough in others.

    `Π_k √(2ℓ_k(a)ℓ_k(b)/(ℓ_k(a)² + ℓ_k(b)²)) · exp(-(a_k - b_k)²/(ℓ_k(a)² + ℓ_k(b)²))`, with
    `ℓ = exp(log_lengthscale(row))`.
    Positive definite for every function (Gibbs, 1997), and an `RBF` if it is constant.

    **Arguments:**

    - `log_lengthscale`: a function or Equinox module of one row that returns the logarithm of ℓ: one number, or one for each
      column. The parameters of a module are fitted with the rest.
    """

    log_lengthscale: Any = eqx.field(converter=as_function)

    def pair(self, a, b):
        u, v = (self._of_row(point) for point in (a, b))
        # 2ℓℓ'/(ℓ² + ℓ'²) is 1/cosh(u - v).
        log_cosh = jnp.logaddexp(u - v, v - u) - jnp.log(2.0)
        squares = (a - b) ** 2 * jnp.exp(-jnp.logaddexp(2.0 * u, 2.0 * v))
        return jnp.exp(-jnp.sum(0.5 * log_cosh + squares))

    def diag(self, x):
        return jnp.ones(x.shape[0], x.dtype)

    def _of_row(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        value = jnp.asarray(self.log_lengthscale(point))
        if value.shape not in ((), (1,), point.shape):
            raise ValueError(
                f"Gibbs.log_lengthscale must return one number for a row, or one for each of its {point.shape[0]} columns, "
                f"got shape {value.shape}."
            )
        return jnp.broadcast_to(value, point.shape)
