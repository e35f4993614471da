"""A damped oscillator that is driven by noise: the kernel, and its state space.

In units of the undamped oscillation, `x = ω|δ|`, with the damping `a = 1/(2·quality)` and `ρ = 1 - a²`, everything is made
of the functions

    φ_k(x, a) = e^(-ax) F_k(ρx²),   F_0(u) = cos √u,   F_1(u) = sin √u/√u,   F_(k+1) = -2 dF_k/du.

They are smooth in u, also where u changes its sign: at critical damping, a = 1. The kernel is `φ_0 + a x φ_1`, its slope in
x is `-x φ_1`, and its slope in a is `x³ φ_2`. The slopes of φ_k contain φ_k and φ_(k+1) only, so derivatives of every order
are exact.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from kernax.kernels._distances import squared_distances
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import Coordinate, MarkovProcess, Part, capped, times_each
from kernax.parameters import Parameter, positive

_TERMS = 18
"""Terms of the series of F_k: exact to rounding as long as the series is used."""
_NEAR, _SHOCK_TERMS = 1.0, 12
"""Steps of less than so much, times a if that is more than 1, have shocks by a series of so many terms."""
_OVERDAMPED = 1.5
"""From this damping on, shocks are a sum over a slow and a fast decay."""
_FAR = 1600.0
"""After so many times `a + 1/a` everything is forgotten in float64. Powers of longer steps may overflow."""


class SHO(AbstractKernel):
    """Damped harmonic oscillator driven by noise: waves whose phase and amplitude change slowly.

    With `x = 2π|δ|/period`, `a = 1/(2·quality)` and `β = √(1 - a²)` it is `e^(-ax) (cos βx + a sin(βx)/β)`. Where a > 1, it
    is the same with cosh and sinh. Paths can be differentiated once. It is a kernel of one column.

    Use it for oscillations that are not exactly periodic, such as those of stars or of machines.

    **Arguments:**

    - `period`: the period of the oscillation without damping. With damping it is `1/β` times as long.
    - `quality`: how slowly the oscillation changes: after `quality/π` periods its correlation is 1/e. At 1/2 (critical
      damping) the kernel is `Matern32(√3·period/2π)`. Below 1/2 it does not oscillate.
    """

    period: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="x")
    quality: Float[Parameter, ""] = positive(default=1.0, scalar=True)

    def pair(self, a, b):
        self._check(a.shape[-1])
        return _correlation(jnp.sum(((a - b) / self._unit) ** 2), self._damping)

    def gram(self, x, z):
        self._check(x.shape[1])
        return _correlation(squared_distances(x, z, self._unit), self._damping)

    def diag(self, x):
        self._check(x.shape[1])
        return jnp.ones(x.shape[0], x.dtype)

    def coordinates(self, x):
        return x / self._unit

    def state_space(self):
        start, steps = Partial(_start, self.period), Partial(_steps, self._unit, self._damping)
        return MarkovProcess(Coordinate(), (Part(np.eye(2)[:1], start, steps),))

    @property
    def _unit(self) -> Float[Array, ""]:
        """1/ω."""
        return self.period / (2.0 * math.pi)

    @property
    def _damping(self) -> Float[Array, ""]:
        return 0.5 / self.quality

    def _check(self, width: int) -> None:
        if width != 1:
            raise ValueError(f"SHO is a kernel of one column, got {width}: choose one with kx.Select(kernel, columns=0).")


@jax.custom_jvp
def _correlation(t: Float[Array, "..."], a: Float[Array, ""]) -> Float[Array, "..."]:
    """The kernel as a function of `t = x²`, in which it has a slope where two points coincide."""
    x = _root(t)
    return _of_square(0, t, a) + a * x * _of_square(1, t, a)


@_correlation.defjvp
def _correlation_jvp(primals, tangents):
    (t, a), (dt, da) = primals, tangents
    return _correlation(t, a), -0.5 * _of_square(1, t, a) * dt + t * _root(t) * _of_square(2, t, a) * da


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _of_square(k: int, t: Float[Array, "..."], a: Float[Array, ""]) -> Float[Array, "..."]:
    """φ_k as a function of `t = x²`."""
    return _phi(k, _root(t), a)


@_of_square.defjvp
def _of_square_jvp(k, primals, tangents):
    (t, a), (dt, da) = primals, tangents
    x, own, following = _root(t), _of_square(k, t, a), _of_square(k + 1, t, a)
    # At t = 0 the slope is that of a kink, -∞. It is multiplied by 0 in all slopes of the kernel up to the second.
    apart = t > 0
    kink = jnp.where(apart, a * own / jnp.where(apart, x, 1.0), 0.0)
    slope = -0.5 * (kink + (1.0 - a) * (1.0 + a) * following)
    return own, slope * dt + (a * t * following - x * own) * da


def _root(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """`√t`, with slope 0 at 0."""
    apart = t > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, t, 1.0)), 0.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _phi(k: int, x: Float[Array, "..."], a: Float[Array, "..."]) -> Float[Array, "..."]:
    """`φ_k(x, a) = e^(-ax) F_k((1 - a²)x²)` for `x ≥ 0`."""
    u = (1.0 - a) * (1.0 + a) * x**2
    close = jnp.abs(u) < (k + 1.0) ** 2
    small, large = jnp.where(close, u, 0.0), jnp.where(close, 1.0, u)
    series = jnp.zeros_like(u)
    for j in range(_TERMS + 2 * k, -1, -1):
        series = series * -small + 1.0 / (_double_factorial(2 * j) * _double_factorial(2 * (j + k) - 1))
    # Waves, or for u < 0 a slow decay (with the rate `1/(a + √(a² - 1))`) and a fast one.
    angle = jnp.sqrt(jnp.abs(large))
    slow = jnp.exp(-x / (a + jnp.sqrt(jnp.maximum((a - 1.0) * (a + 1.0), 0.0))))
    fade = jnp.exp(-a * x)
    before = jnp.where(large > 0, fade * jnp.cos(angle), 0.5 * slow * (1.0 + jnp.exp(-2.0 * angle)))
    now = jnp.where(large > 0, fade * jnp.sin(angle), -0.5 * slow * jnp.expm1(-2.0 * angle)) / angle
    values = [before, now]
    for i in range(1, k):
        values.append(((2 * i - 1) * values[i] - values[i - 1]) / large)
    return jnp.where(close, fade * series, values[k])


@_phi.defjvp
def _phi_jvp(k, primals, tangents):
    (x, a), (dx, da) = primals, tangents
    own, following = _phi(k, x, a), _phi(k + 1, x, a)
    by_x = -a * own - (1.0 - a) * (1.0 + a) * x * following
    return own, by_x * dx + (a * x**2 * following - x * own) * da


def _double_factorial(n: int) -> int:
    return math.prod(range(n, 0, -2))


def _start(period: Array) -> Float[Array, "1 2 2"]:
    """f and its derivative in x: both have variance 1, and they are independent."""
    return jnp.eye(2, dtype=period.dtype)[None]


def _steps(
    unit: Array, damping: Array, steps: Float[Array, "*n"]
) -> tuple[Float[Array, "*n 1 2 2"], Float[Array, "*n 1 2 2"]]:
    x = capped(steps / unit, _FAR * (damping + 1.0 / damping))
    return _transition(x, jnp.broadcast_to(damping, x.shape))


@jax.custom_jvp
def _transition(x: Float[Array, "*n"], a: Float[Array, "*n"]) -> tuple[Float[Array, "*n 1 2 2"], Float[Array, "*n 1 2 2"]]:
    """`A` and `Q` after steps of x: the state is f and its derivative in x."""
    p, q = _phi(0, x, a), x * _phi(1, x, a)
    level, both = _shock(x, a, p, q), 2.0 * a * q**2
    return _matrix(p + a * q, q, -q, p - a * q), _matrix(level, both, both, _shock_of_slope(x, a, p, q))


@_transition.defjvp
def _transition_jvp(primals, tangents):
    # As one number for each step times a matrix: reverse mode through all the formulas takes several times as long.
    (x, a), (dx, da) = primals, tangents
    p, q, cubed = _phi(0, x, a), x * _phi(1, x, a), x**3 * _phi(2, x, a)
    kept, slope = p + a * q, p - a * q
    q_by_a = a * cubed - x * q
    slope_by_a = 2.0 * a * x * q - x * p - q - a**2 * cubed
    both_by_a = 2.0 * q**2 + 4.0 * a * q * q_by_a
    both_by_x = 4.0 * a * q * slope
    moves = (_matrix(-q, slope, -slope, -2.0 * a * slope - q), _matrix(cubed, q_by_a, -q_by_a, slope_by_a))
    shocks = (
        _matrix(4.0 * a * q**2, both_by_x, both_by_x, 4.0 * a * slope**2),
        _matrix(-2.0 * (kept * cubed + q * q_by_a), both_by_a, both_by_a, -2.0 * (q * q_by_a + slope * slope_by_a)),
    )
    move, shock = (times_each(by_x, dx) + times_each(by_a, da) for by_x, by_a in (moves, shocks))
    return _transition(x, a), (move, shock)


def _matrix(*entries: Float[Array, "*n"]) -> Float[Array, "*n 1 2 2"]:
    return jnp.stack(entries, axis=-1).reshape(*entries[0].shape, 1, 2, 2)


def _shock(x: Array, a: Array, p: Array, q: Array) -> Float[Array, "*n"]:
    """The variance of what is new in f: `4a ∫₀ˣ q²`, without the difference `1 - (p + aq)² - q²`."""
    near = jnp.maximum(a, 1.0) * x < _NEAR
    # Σ_j (-4ρ)ʲ⁻¹ 2x²ʲ/(2j)! is q² e²ᵃˣ. Each power is integrated with e⁻²ᵃˣ: `z⁻ᵏ⁻¹ γ_k(z)` for z = 2ax.
    short = jnp.where(near, x, 0.0)
    z, square = 2.0 * a * short, -4.0 * (1.0 - a) * (1.0 + a) * short**2
    fade, integral, series = jnp.exp(-z), jnp.zeros_like(x), jnp.zeros_like(x)
    for k in range(4 * _SHOCK_TERMS, 1, -1):
        if k % 2 == 0 and k <= 2 * _SHOCK_TERMS:
            series = series * square + integral
        integral = fade * (1.0 / math.factorial(k)) + z * integral
    by_series = 8.0 * a * short**3 * series
    mild = -jnp.expm1(-2.0 * a * x) - 2.0 * a * q * (p + a * q)
    return jnp.where(near, by_series, jnp.where(a < _OVERDAMPED, mild, _two_decays(x, a)))


def _shock_of_slope(x: Array, a: Array, p: Array, q: Array) -> Float[Array, "*n"]:
    """The variance of what is new in the derivative: `4a ∫₀ˣ (p - aq)²`."""
    return -jnp.expm1(-2.0 * a * x) + 2.0 * a * q * (p - a * q)


def _two_decays(x: Array, a: Array) -> Float[Array, "*n"]:
    """The variance of what is new in f where damping is strong: `q = (e^(-x/fast) - e^(-fast x))/2γ`."""
    a = jnp.maximum(a, _OVERDAMPED)
    gamma = jnp.sqrt((a - 1.0) * (a + 1.0))
    fast = a + gamma
    parts = -0.5 * fast * jnp.expm1(-2.0 * x / fast) + jnp.expm1(-2.0 * a * x) / a - 0.5 * jnp.expm1(-2.0 * fast * x) / fast
    return a / gamma**2 * parts
