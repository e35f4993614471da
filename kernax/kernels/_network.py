"""Kernels of infinitely wide networks: of a random network, and of its training by gradient descent.

`ArcCosine` is one layer, `NNGP` the covariance of a whole random network (Neal 1996; Williams 1997; Lee et al. 2018) and
`NTK` the kernel under which gradient descent trains it (Jacot et al. 2018). One recursion over `GaussianPair` serves both
and every activation; `_activations.py` says how it stays accurate where two inputs meet.
"""

import abc
import math
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import matmul
from kernax.kernels._activations import (
    AbstractActivation,
    GaussianPair,
    ReLU,
    arc_cosine_0,
    arc_cosine_1,
    arc_cosine_2,
    geometric_mean,
    inverse_root,
)
from kernax.kernels._distances import _DIFFERENCES_UP_TO, _ROUGH_DIFFERENCES_UP_TO, centred, squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._stationary import check_width
from kernax.parameters import Parameter, non_negative, positive


def _as_order(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) not in (0, 1, 2):
        raise ValueError(f"ArcCosine.order must be 0, 1 or 2, got {value!r}.")
    return operator.index(value)


class ArcCosine(AbstractKernel):
    """Arc-cosine kernel, `(1/π) ‖a‖ⁿ ‖b‖ⁿ J_n(θ)`: one infinitely wide layer of units `Θ(s) sⁿ` (Cho & Saul 2009).

    Norms and the angle θ are those of the inner product `bias_variance + Σ_k v_k a_k b_k`. Weights 1 and bias 0 give the
    kernel of the paper. A zero vector (bias 0 and a = 0) has no direction; its angle to all other vectors is taken as 90°.

    **Arguments:**

    - `order`: n: 0 for steps (rough functions), 1 for ReLU (differentiable once) or 2 (twice).
    - `weight_variance`: v, one number or one for each column (ARD).
    - `bias_variance`: the variance of the biases, one number, 0 or more.
    """

    order: int = eqx.field(static=True, default=1, converter=_as_order)
    weight_variance: Float[Parameter, "*d"] = positive(default=1.0)
    bias_variance: Float[Parameter, ""] = non_negative(default=1.0, scalar=True)

    def pair(self, a, b):
        check_width(self, "weight_variance", self.weight_variance, a.shape[-1])
        return self._of(_layer_of_points(a, b, self.weight_variance, self.bias_variance))

    def gram(self, x, z):
        check_width(self, "weight_variance", self.weight_variance, x.shape[1])
        return self._of(_layer_of_rows(x, z, self.weight_variance, self.bias_variance, rough=self.order == 0))

    def diag(self, x):
        return self._of(GaussianPair.twins(self.bias_variance + jnp.sum(self.weight_variance * x * x, axis=1)))

    def initialised(self, x, mask, variance):
        # k(a, a) = ‖a‖², 3‖a‖⁴, or 1 whatever the norm: half of the norm for the bias, half for all columns together.
        norm = {0: jnp.ones_like(variance), 1: variance, 2: jnp.sqrt(variance / 3.0)}[self.order]
        has_bias = self.bias_variance > 0
        bias = jnp.where(has_bias, 0.5 * norm, 0.0)
        square = jnp.mean(jnp.sum(x * x, axis=1), where=mask)
        weight = (norm - bias) / jnp.where(square > 0, square, 1.0)
        weights = jnp.broadcast_to(weight, self.weight_variance.shape).astype(self.weight_variance.dtype)
        bias = bias.astype(self.bias_variance.dtype)
        return eqx.tree_at(lambda k: (k.weight_variance, k.bias_variance), self, (weights, bias))

    def _of(self, pair: GaussianPair) -> Float[Array, "..."]:
        return arc_cosine_0(pair) if self.order == 0 else (arc_cosine_1 if self.order == 1 else arc_cosine_2)(*pair)


def _as_depth(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 0:
        raise ValueError(f"depth, the number of hidden layers, must be a whole number of at least 0, got {value!r}.")
    return operator.index(value)


def _as_activation(value: Any) -> AbstractActivation:
    if not isinstance(value, AbstractActivation):
        raise TypeError(f"activation must be an instance, such as kx.kernels.ReLU() or kx.kernels.Erf(), got {value!r}.")
    return value


class AbstractNetwork(AbstractKernel):
    """Base class of kernels of fully connected networks of infinite width with `depth` hidden layers.

    A weight of a layer with m inputs has variance `σ_w²/m`, and a bias has variance `σ_b²`. So the first preactivations
    have the covariance `σ_b² + σ_w² a·b/d`, and those after a hidden layer have `σ_b² + σ_w² E[φ(u)φ(v)]`. The last ones
    are the output of the network. The variances are one number for all layers, or one for each of the `depth + 1` layers of
    weights.
    """

    depth: eqx.AbstractVar[int]
    activation: eqx.AbstractVar[AbstractActivation]
    weight_variance: eqx.AbstractVar[Float[Parameter, "*l"]]
    bias_variance: eqx.AbstractVar[Float[Parameter, "*l"]]

    def __check_init__(self):
        for name in ("weight_variance", "bias_variance"):
            shape = getattr(self, name).shape
            if shape not in ((), (self.depth + 1,)):
                raise ValueError(
                    f"{type(self).__name__}.{name} has shape {shape}, but a network of depth {self.depth} has "
                    f"{self.depth + 1} layers of weights: give one number, or one per layer."
                )

    @abc.abstractmethod
    def of_first_layer(self, pair: GaussianPair) -> Float[Array, "..."]:
        """The kernel as a function of the first preactivations.

        **Arguments:**

        - `pair`: the first preactivations of both inputs.

        **Returns:**

        The values of the kernel.
        """

    @property
    @abc.abstractmethod
    def is_rough(self) -> bool:
        """Whether the kernel has a kink where two inputs meet."""

    def pair(self, a, b):
        weight, bias = self.layers()[0]
        return self.of_first_layer(_layer_of_points(a, b, weight / a.shape[-1], bias))

    def gram(self, x, z):
        weight, bias = self.layers()[0]
        return self.of_first_layer(_layer_of_rows(x, z, weight / x.shape[1], bias, rough=self.is_rough))

    def diag(self, x):
        weight, bias = self.layers()[0]
        return self.of_first_layer(GaussianPair.twins(bias + weight / x.shape[1] * jnp.sum(x * x, axis=1)))

    def initialised(self, x, mask, variance):
        """All variances times the one factor that makes the mean of `k(x_i, x_i)` the target's variance.

        The mean grows with the factor from 0 to ∞, whatever the activation, so it is found by halving an interval.
        """

        def scaled(logarithm: Array) -> AbstractNetwork:
            factor = jnp.exp(logarithm).astype(self.weight_variance.dtype)
            both = (self.weight_variance * factor, self.bias_variance * factor)
            return eqx.tree_at(lambda k: (k.weight_variance, k.bias_variance), self, both)

        def halved(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            enough = jnp.mean(scaled(middle).diag(x), where=mask) >= variance
            return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

        start = (jnp.full_like(variance, -14.0), jnp.full_like(variance, 14.0))
        low, high = jax.lax.fori_loop(0, 30, halved, start)
        return scaled(0.5 * (low + high))

    def layers(self) -> list[tuple[Float[Array, ""], Float[Array, ""]]]:
        """Weight and bias variance of every layer, starting with the first.

        **Returns:**

        A list of pairs.
        """
        count = self.depth + 1
        weights, biases = (jnp.broadcast_to(v, (count,)) for v in (self.weight_variance, self.bias_variance))
        return [(weights[i], biases[i]) for i in range(count)]


class NNGP(AbstractNetwork):
    """Kernel of a random neural network of infinite width (neural network Gaussian process).

    `K⁰ = σ_b² + σ_w² a·b/d` and `Kˡ⁺¹ = σ_b² + σ_w² E[φ(u)φ(v)]` with `(u, v) ~ N(0, Kˡ)`. A weight of a layer with m inputs
    has variance `σ_w²/m`, and a bias has variance `σ_b²`.

    **Arguments:**

    - `depth`: the number of hidden layers. With 0 the network is linear, whatever the activation.
    - `activation`: the activation function φ, such as `kx.kernels.ReLU()` or `kx.kernels.Erf()`.
    - `weight_variance`: σ_w², one number or one for each of the `depth + 1` layers of weights. For ReLU networks 2 keeps the
      scale from layer to layer.
    - `bias_variance`: σ_b², one number or one for each of these layers, 0 or more.
    """

    depth: int = eqx.field(static=True, default=1, converter=_as_depth)
    activation: AbstractActivation = eqx.field(default=ReLU(), converter=_as_activation)
    weight_variance: Float[Parameter, "*l"] = positive(default=2.0)
    bias_variance: Float[Parameter, "*l"] = non_negative(default=0.1)

    @property
    def is_rough(self):
        return self.activation.is_rough

    def of_first_layer(self, pair):
        for weight, bias in self.layers()[1:]:
            pair = _next_layer(self.activation, pair, weight, bias)
        return pair.covariance


class NTK(AbstractNetwork):
    """Neural tangent kernel, `∇f(a)·∇f(b)`, of the networks of [`kernax.NNGP`][].

    Gradient descent with a small step trains an infinitely wide network as regression with this kernel. The gradient is with
    respect to all weights `σ_w w/√m` and biases `σ_b β`, where w and β are standard normal and trained. With K as in `NNGP`:
    `Θ⁰ = K⁰` and `Θˡ⁺¹ = Kˡ⁺¹ + σ_w² Θˡ E[φ'(u)φ'(v)]`.

    **Arguments:**

    - `depth`: the number of hidden layers.
    - `activation`: the activation function φ, such as `kx.kernels.ReLU()` or `kx.kernels.Erf()`.
    - `weight_variance`: σ_w², one number or one for each of the `depth + 1` layers of weights.
    - `bias_variance`: σ_b², one number or one for each of these layers, 0 or more.
    """

    depth: int = eqx.field(static=True, default=1, converter=_as_depth)
    activation: AbstractActivation = eqx.field(default=ReLU(), converter=_as_activation)
    weight_variance: Float[Parameter, "*l"] = positive(default=2.0)
    bias_variance: Float[Parameter, "*l"] = non_negative(default=0.1)

    @property
    def is_rough(self):
        return True

    def of_first_layer(self, pair):
        tangent = pair.covariance
        for weight, bias in self.layers()[1:]:
            slopes = self.activation.slope_moment(pair)
            pair = _next_layer(self.activation, pair, weight, bias)
            tangent = pair.covariance + weight * tangent * slopes
        return tangent


def _next_layer(activation: AbstractActivation, pair: GaussianPair, weight: Array, bias: Array) -> GaussianPair:
    """The preactivations after a layer, with their `1 - cos` as a sum of numbers that are not negative:

    `ρ'(1 - cos θ') = σ_b²σ_w²(√m_a - √m_b)²/(ρ' + σ_b² + σ_w²ρ) + σ_w²ρ·gap`, where `m = E[φ²]`, `ρ = √(m_a m_b)` and
    `ρ' = √(q'_a q'_b)`; and `(√m_a - √m_b)² = (m_a - m_b)²/(m_a + m_b + 2ρ)`.
    """
    m_a, m_b = activation.second_moment(pair.variance_a), activation.second_moment(pair.variance_b)
    q_a, q_b = bias + weight * m_a, bias + weight * m_b
    before, after = geometric_mean(m_a, m_b), geometric_mean(q_a, q_b)
    # Without a variance there is no angle, either: any finite one will do.
    alive = (after > 0) & (m_a + m_b > 0)
    after, both = jnp.where(alive, after, 1.0), jnp.where(alive, m_a + m_b + 2.0 * before, 1.0)
    apart = bias * (m_a - m_b) ** 2 / (both * (after + bias + weight * before))
    versine = jnp.where(alive, weight * (apart + before * activation.gap(pair)) / after, 0.0)
    return GaussianPair(q_a, q_b, bias + weight * activation.moment(pair), versine, 2.0 - versine)


def _layer_of_points(a: Array, b: Array, weight: Array, bias: Array) -> GaussianPair:
    """The first preactivations of two points. How far their cosine is from 1 and -1, normalised points tell (Kahan)."""
    (q_a, u, s_a, zero_a), (q_b, v, s_b, zero_b) = _normalised(a, weight, bias), _normalised(b, weight, bias)
    versine = 0.5 * (bias * (s_a - s_b) ** 2 + (zero_a - zero_b) ** 2 + jnp.sum((u - v) ** 2))
    vercosine = 0.5 * (bias * (s_a + s_b) ** 2 + (zero_a + zero_b) ** 2 + jnp.sum((u + v) ** 2))
    return GaussianPair(q_a, q_b, bias + jnp.sum(weight * a * b), versine, vercosine)


def _layer_of_rows(x: Array, z: Array | None, weight: Array, bias: Array, *, rough: bool) -> GaussianPair:
    """The first preactivations of all pairs of rows; with `rough`, small angles as accurate as their kink needs it."""
    q_a, u, s_a, zero_a = (t if t.ndim == 2 else t[:, None] for t in _normalised(x, weight, bias))
    q_b, v, s_b, zero_b = (t if t.ndim == 2 else t[:, None] for t in _normalised(x if z is None else z, weight, bias))
    q_b, s_b, zero_b = q_b.T, s_b.T, zero_b.T
    root = jnp.sqrt(weight)
    covariance = bias + matmul(root * x, (root * (x if z is None else z)).T)
    if z is None:
        covariance = jnp.where(jnp.eye(x.shape[0], dtype=bool), q_a, covariance)
    versine = bias * (s_a - s_b) ** 2 + (zero_a - zero_b) ** 2 + _distances(u, None if z is None else v, rough=rough)
    if not rough:
        return GaussianPair(q_a, q_b, covariance, 0.5 * versine, jnp.maximum(2.0 - 0.5 * versine, 0.0))
    vercosine = bias * (s_a + s_b) ** 2 + (zero_a + zero_b) ** 2 + _distances(u, -v, rough=False)
    return GaussianPair(q_a, q_b, covariance, 0.5 * versine, 0.5 * vercosine)


def _normalised(x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array, Array]:
    """`q = σ_b² + Σ w x²`, `√w x/√q`, `1/√q`, and 1 where `q = 0`: an axis of its own for what has no direction."""
    q = bias + jnp.sum(weight * x * x, axis=-1)
    inverse = inverse_root(q)
    return q, jnp.sqrt(weight) * x * inverse[..., None], inverse, (q <= 0).astype(q.dtype)


def _distances(u: Array, v: Array | None, *, rough: bool) -> Array:
    """Squared distances of normalised rows.

    By a matrix product, those of equal rows are 0 to rounding only, and a kink would show the root of that: what rounding
    may have made is taken for 0.
    """
    u, v = centred(u, v)
    distances = squared_distances(u, v, rough=rough)
    if u.shape[1] <= (_ROUGH_DIFFERENCES_UP_TO if rough else _DIFFERENCES_UP_TO):
        return distances
    norms = jnp.sum(u * u, axis=1)[:, None] + jnp.sum((u if v is None else v) ** 2, axis=1)[None, :]
    rounding = math.sqrt(u.shape[1]) * jnp.finfo(u.dtype).eps * jax.lax.stop_gradient(norms)
    return jnp.where(distances > rounding, distances, 0.0)
