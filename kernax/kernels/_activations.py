"""Expectations of an activation function over two Gaussian numbers, which determine an infinitely wide layer.

The preactivations of two inputs are a zero-mean Gaussian pair `(u, v)` with variances `q_a`, `q_b` and covariance `q_ab`; a
layer needs `E[φ(u)φ(v)]`, and its tangent kernel `E[φ'(u)φ'(v)]`. Activations with a kink are computed from the angle
`θ` of the pair, `cos θ = q_ab/√(q_a q_b)`. The cosine of a small angle has lost half of its digits, and `arccos` has an
infinite slope there, so

- `1 - cos θ` and `1 + cos θ` are kept as separate numbers, computed from differences and never by subtraction from 1, and
  `θ = 2 arctan √((1 - cos θ)/(1 + cos θ))` is right to rounding at both ends;
- derivatives are given explicitly. With `J_0 = π - θ`, `J_1 = sin θ + (π - θ) cos θ` and
  `J_2 = 3 sin θ cos θ + (π - θ)(1 + 2cos² θ)` we have `dJ_2/d cos θ = 4 J_1` and `dJ_1/d cos θ = J_0`: only `J_0` has a
  kink, at equal and at opposite directions. Its slope is defined as 0 there: the mean of both sides in the inputs, and exact
  in a hyperparameter, which leaves equal inputs equal.
"""

import abc
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax.parameters import Parametrised

Numbers = Float[Array, "..."]


class GaussianPair(NamedTuple):
    """Arrays of normally distributed pairs, `(u, v) ~ N(0, [[q_a, q_ab], [q_ab, q_b]])`. Shapes broadcast.

    **Arguments:**

    - `variance_a`, `variance_b`: `q_a` and `q_b`.
    - `covariance`: `q_ab`.
    - `versine`: `1 - cos θ` with `cos θ = q_ab/√(q_a q_b)`, accurate also where it is small.
    - `vercosine`: `1 + cos θ`, accurate also where it is small.
    """

    variance_a: Numbers
    variance_b: Numbers
    covariance: Numbers
    versine: Numbers
    vercosine: Numbers

    @staticmethod
    def twins(variance: Numbers) -> "GaussianPair":
        """Pairs with `u = v`, as on the diagonal of a kernel matrix.

        **Arguments:**

        - `variance`: the variance of u, any shape.

        **Returns:**

        A `GaussianPair`.
        """
        zero = jnp.zeros_like(variance)
        return GaussianPair(variance, variance, variance, zero, zero + 2.0)


class AbstractActivation(Parametrised):
    """Base class of activation functions `φ` of a network. Define two expectations, for example:

    ```python
    class Sine(kx.kernels.AbstractActivation):
        def moment(self, pair):
            return jnp.exp(-0.5 * (pair.variance_a + pair.variance_b)) * jnp.sinh(pair.covariance)

        def slope_moment(self, pair):
            return jnp.exp(-0.5 * (pair.variance_a + pair.variance_b)) * jnp.cosh(pair.covariance)
    ```
    """

    is_rough: ClassVar[bool] = False
    """Whether `φ` has jumps, so that `E[φφ]` has a kink where two inputs are equal."""

    @abc.abstractmethod
    def moment(self, pair: GaussianPair) -> Numbers:
        """`E[φ(u)φ(v)]`.

        **Arguments:**

        - `pair`: the distribution of u and v.

        **Returns:**

        An array in the common shape of the pair.
        """

    @abc.abstractmethod
    def slope_moment(self, pair: GaussianPair) -> Numbers:
        """`E[φ'(u)φ'(v)]`.

        **Arguments:**

        - `pair`: the distribution of u and v.

        **Returns:**

        An array in the common shape of the pair.
        """

    def second_moment(self, variance: Numbers) -> Numbers:
        """`E[φ(u)²]`.

        **Arguments:**

        - `variance`: the variance of u.

        **Returns:**

        An array in the shape of `variance`.
        """
        return self.moment(GaussianPair.twins(variance))

    def gap(self, pair: GaussianPair) -> Numbers:
        """`1 - E[φ(u)φ(v)]/√(E[φ(u)²] E[φ(v)²])`: the `1 - cos θ` of the next layer if its bias is 0.

        By default it is computed by this subtraction, which is accurate enough for a smooth φ. For a φ with a kink,
        override it by a formula that keeps small values accurate.

        **Arguments:**

        - `pair`: the distribution of u and v.

        **Returns:**

        An array in the common shape of the pair.
        """
        norm = geometric_mean(self.second_moment(pair.variance_a), self.second_moment(pair.variance_b))
        alive = norm > 0
        return jnp.where(alive, jnp.maximum(1.0 - self.moment(pair) / jnp.where(alive, norm, 1.0), 0.0), 0.0)


class ReLU(AbstractActivation):
    """ReLU, `φ(u) = max(0, u)`: `E[φφ] = √(q_a q_b) J_1(θ)/2π` and `E[φ'φ'] = J_0(θ)/2π`."""

    def moment(self, pair):
        return 0.5 * arc_cosine_1(*pair)

    def slope_moment(self, pair):
        return 0.5 * arc_cosine_0(pair)

    def second_moment(self, variance):
        return 0.5 * variance

    def gap(self, pair):
        return _gap_1(pair.versine, pair.vercosine)


class Erf(AbstractActivation):
    """The error function, `φ(u) = erf(u)`, which is smooth: `E[φφ] = 2/π arcsin(2 q_ab/√((1 + 2q_a)(1 + 2q_b)))`."""

    def moment(self, pair):
        # As an arctangent, whose slope stays bounded when saturated units bring the sine close to 1.
        return 2.0 / jnp.pi * jnp.arctan2(2.0 * pair.covariance, jnp.sqrt(self._determinant(pair)))

    def slope_moment(self, pair):
        return 4.0 / jnp.pi / jnp.sqrt(self._determinant(pair))

    def _determinant(self, pair: GaussianPair) -> Numbers:
        """`(1 + 2q_a)(1 + 2q_b) - 4q_ab²`, of which at least 1 + 2q_a + 2q_b is left."""
        least = 1.0 + 2.0 * (pair.variance_a + pair.variance_b)
        return least + 4.0 * jnp.maximum(pair.variance_a * pair.variance_b - pair.covariance**2, 0.0)


def arc_cosine_0(pair: GaussianPair) -> Numbers:
    """`J_0(θ)/π = 1 - θ/π`."""
    return 1.0 - _angle(pair.versine, pair.vercosine) / jnp.pi


@jax.custom_jvp
def arc_cosine_1(q_a: Numbers, q_b: Numbers, q_ab: Numbers, versine: Numbers, vercosine: Numbers) -> Numbers:
    """`√(q_a q_b) J_1(θ)/π`. The value reads the angle and not `q_ab`; for the derivative it is the other way round."""
    return geometric_mean(q_a, q_b) * (1.0 - _gap_1(versine, vercosine))


@arc_cosine_1.defjvp
def _arc_cosine_1_jvp(primals, tangents):
    # (sin θ d√(q_a q_b) + J_0 dq_ab)/π has no slope of the angle in it, which for a vector of length 0 does not exist; the
    # mean over all directions of the right one is left there.
    pair, (dq_a, dq_b, dq_ab, _, _) = GaussianPair(*primals), tangents
    norm = geometric_mean(pair.variance_a, pair.variance_b)
    spread = _divided(0.5 * _sine(pair.versine, pair.vercosine) / jnp.pi, norm)
    slope = spread * (pair.variance_b * dq_a + pair.variance_a * dq_b) + arc_cosine_0(pair) * dq_ab
    return arc_cosine_1(*primals), slope


@jax.custom_jvp
def arc_cosine_2(q_a: Numbers, q_b: Numbers, q_ab: Numbers, versine: Numbers, vercosine: Numbers) -> Numbers:
    """`q_a q_b J_2(θ)/π`."""
    cosine, open_angle = 1.0 - versine, 1.0 - _angle(versine, vercosine) / jnp.pi
    return q_a * q_b * (3.0 / jnp.pi * _sine(versine, vercosine) * cosine + open_angle * (1.0 + 2.0 * cosine**2))


@arc_cosine_2.defjvp
def _arc_cosine_2_jvp(primals, tangents):
    pair, (dq_a, dq_b, dq_ab, _, _) = GaussianPair(*primals), tangents
    spread = arc_cosine_0(pair) + _sine(pair.versine, pair.vercosine) * (1.0 - pair.versine) / jnp.pi
    slope = spread * (pair.variance_b * dq_a + pair.variance_a * dq_b) + 4.0 * arc_cosine_1(*primals) * dq_ab
    return arc_cosine_2(*primals), slope


@jax.custom_jvp
def _angle(versine: Numbers, vercosine: Numbers) -> Numbers:
    return 2.0 * jnp.arctan(jnp.sqrt(versine / vercosine))


@_angle.defjvp
def _angle_jvp(primals, tangents):
    # Both tangents, of which each is exact at one end. An angle that rounding may have made has no slope.
    (versine, vercosine), (dversine, dvercosine) = primals, tangents
    sine = _sine(versine, vercosine)
    slope = _divided(0.5 * (vercosine * dversine - versine * dvercosine), sine, sine > 4.0 * jnp.finfo(sine.dtype).eps)
    return _angle(versine, vercosine), slope


@jax.custom_jvp
def _sine(versine: Numbers, vercosine: Numbers) -> Numbers:
    return jnp.sqrt(versine * vercosine)


@_sine.defjvp
def _sine_jvp(primals, tangents):
    _, dangle = jax.jvp(_angle, primals, tangents)
    return _sine(*primals), (1.0 - primals[0]) * dangle


@jax.custom_jvp
def _gap_1(versine: Numbers, vercosine: Numbers) -> Numbers:
    """`1 - J_1/π = 1 - cos θ - (sin θ - θ cos θ)/π`, where the second part is of third order in the angle."""
    angle, sine = _angle(versine, vercosine), _sine(versine, vercosine)
    # Below angles of 1e-16 rounding may go under 0, of which the next layer would take the root.
    return jnp.maximum(versine - (sine - angle * (1.0 - versine)) / jnp.pi, 0.0)


@_gap_1.defjvp
def _gap_1_jvp(primals, tangents):
    return _gap_1(*primals), (1.0 - _angle(*primals) / jnp.pi) * tangents[0]


@jax.custom_jvp
def geometric_mean(a: Numbers, b: Numbers) -> Numbers:
    """`√(ab)`, exactly `a` if both are equal; its slope at 0 is defined as 0."""
    return jnp.sqrt(a * b)


@geometric_mean.defjvp
def _geometric_mean_jvp(primals, tangents):
    (a, b), (da, db) = primals, tangents
    return geometric_mean(a, b), _divided(0.5 * (b * da + a * db), geometric_mean(a, b))


def inverse_root(q: Numbers) -> Numbers:
    """`1/√q`, and 0 (with slope 0) for `q = 0`."""
    return _divided(jnp.ones_like(q), jnp.sqrt(jnp.where(q > 0, q, 1.0)), q > 0)


def _divided(a: Numbers, b: Numbers, safe: Array | None = None) -> Numbers:
    """`a/b`, and 0 where b is 0 or not `safe`, with derivatives to match."""
    safe = b > 0 if safe is None else safe
    return jnp.where(safe, a / jnp.where(safe, b, 1.0), 0.0)
