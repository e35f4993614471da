"""Likelihoods for 0 and 1, counts, grades, classes, and targets with outliers."""

import math
import numbers
import operator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, gammaln
from jaxtyping import Array, Bool, Float

from kernax.learners._losses import AbstractLoss, is_count, log_rising, softplus
from kernax.parameters import Parameter, positive, real


class Bernoulli(AbstractLoss):
    """Bernoulli likelihood, `log(1 + e^f) - yf` for y = 0 or 1, with `P(y = 1) = 1/(1 + e^{-f})`.

    `Logistic` is the same for labels -1 and +1.
    """

    whole: ClassVar[bool] = True

    @property
    def num_classes(self):
        return 2

    def value(self, y, f):
        # Without a difference of large numbers, however certain the class is.
        return softplus((1.0 - 2.0 * y) * f)

    def log_normaliser(self):
        return jnp.zeros(())

    def probability(self, f):
        return jax.nn.sigmoid(f)

    def mean(self, f):
        return jax.nn.sigmoid(f)

    def cumulative(self, y, f):
        return jnp.where(y < 0, 0.0, jnp.where(y < 1, jax.nn.sigmoid(-f), 1.0))

    def allows(self, y):
        return (y == 0) | (y == 1)

    def has_minimum(self, y, counts):
        return jnp.any(counts & (y > 0.5)) & jnp.any(counts & (y < 0.5))

    def spread(self, y, counts):
        return jnp.ones((), y.dtype)


class NegativeBinomial(AbstractLoss):
    """Negative binomial likelihood for counts y with mean `μ = e^f` and variance `μ + dispersion·μ²`, larger than Poisson's.

    `-log p = (y + r) log(1 + e^{f - log r}) - y(f - log r) + log(Γ(r) Γ(y + 1) / Γ(y + r))` with `r = 1/dispersion`.

    **Arguments:**

    - `dispersion`: one positive number. Towards 0 the distribution becomes Poisson's.
    """

    dispersion: Float[Parameter, ""] = positive(default=0.5, scalar=True)
    whole: ClassVar[bool] = True

    def value(self, y, f):
        size = 1.0 / self.dispersion
        logit = f + jnp.log(self.dispersion)
        # For counts of millions, `(y + r) log(1 + e^logit)` and `y·logit` would cancel, and so do the two parts of the
        # constant: added to the rest one by one, they would round off what depends on f.
        return size * softplus(logit) + y * softplus(-logit) + (gammaln(y + 1.0) - log_rising(size, y))

    def log_normaliser(self):
        return jnp.zeros(())

    def mean(self, f):
        return jnp.exp(f)

    def cumulative(self, y, f):
        size = 1.0 / self.dispersion
        # Of the two probabilities the one that may be small.
        share = jax.nn.sigmoid(f + jnp.log(self.dispersion))
        return jnp.where(y < 0, 0.0, 1.0 - betainc(jnp.maximum(y, 0.0) + 1.0, size, share))

    def allows(self, y):
        return is_count(y)

    def has_minimum(self, y, counts):
        return jnp.any(counts & (y > 0))

    def spread(self, y, counts):
        return jnp.ones((), y.dtype)


class Ordinal(AbstractLoss):
    """Ordinal likelihood for ordered grades y = 0, …, k - 1.

    `P(y ≤ j) = 1/(1 + e^{f - t_j})` with increasing thresholds `t_0 < … < t_{k-2}`.

    The thresholds are parameters that `kx.fit` fits: the first one and the gaps between them.

    **Arguments:**

    - `thresholds`: the number of grades k, 3 or more, for thresholds 1 apart around 0, or the k - 1 thresholds.
    """

    first: Float[Parameter, ""] = real()
    """The first threshold."""
    gaps: Float[Parameter, " q"] = positive()
    """The gaps between the thresholds."""
    whole: ClassVar[bool] = True

    def __init__(self, thresholds: Any):
        thresholds = _count(thresholds)
        if isinstance(thresholds, int):
            thresholds = np.arange(thresholds - 1.0) - 0.5 * (thresholds - 2)
        levels = np.asarray(thresholds, float)
        if levels.ndim != 1 or len(levels) < 2 or not (np.diff(levels) > 0).all():
            raise ValueError(
                f"Ordinal takes the number of grades, 3 or more, or increasing thresholds, got {thresholds!r}: for two "
                "grades use learners.Bernoulli()."
            )
        self.first = levels[0]
        self.gaps = np.diff(levels)

    @property
    def num_classes(self):
        return self.grades

    @property
    def grades(self) -> int:
        """How many grades there are."""
        return self.gaps.shape[0] + 2

    @property
    def thresholds(self) -> Float[Array, " q"]:
        """`t_0 < … < t_{k-2}`."""
        return self.first + jnp.concatenate([jnp.zeros_like(self.gaps[:1]), jnp.cumsum(self.gaps)])

    def value(self, y, f):
        # σ(a) - σ(b) = σ(a) σ(-b) (1 - e^{b-a}), so that f is in no difference.
        grade = jnp.clip(y, 0, self.grades - 1).astype(int)
        last, ends = self.grades - 1, self.thresholds
        above = jnp.where(grade < last, softplus(f - ends[jnp.minimum(grade, last - 1)]), 0.0)
        below = jnp.where(grade > 0, softplus(ends[jnp.maximum(grade - 1, 0)] - f), 0.0)
        between = (grade > 0) & (grade < last)
        gap = self.gaps[jnp.clip(grade - 1, 0, last - 2)]
        return above + below - jnp.where(between, jnp.log(-jnp.expm1(-gap)), 0.0)

    def log_normaliser(self):
        return jnp.zeros(())

    def probability(self, f):
        """The probability of each grade, on a last axis."""
        grades = jnp.arange(self.grades, dtype=f.dtype)
        return jnp.exp(-jax.vmap(self.value, (0, None), -1)(grades, f))

    def mean(self, f):
        return jnp.sum(jax.nn.sigmoid(f[..., None] - self.thresholds), axis=-1)

    def cumulative(self, y, f):
        at = jnp.floor(y)
        ends = self.thresholds[jnp.clip(at, 0, self.grades - 2).astype(int)]
        return jnp.where(at < 0, 0.0, jnp.where(at >= self.grades - 1, 1.0, jax.nn.sigmoid(ends - f)))

    def allows(self, y):
        return is_count(y) & (y < self.grades)

    def has_minimum(self, y, counts):
        return _several(y, counts)

    def spread(self, y, counts):
        return jnp.ones((), y.dtype)


class StudentT(AbstractLoss):
    """Student's t likelihood, `y = f + scale·t` with `freedom` degrees of freedom: outliers have little influence.

    `-log p = ½(ν + 1) log(1 + r²/(ν scale²)) + …` with `r = y - f` and ν = `freedom` is not convex: its curvature is
    negative beyond `|r| = √ν scale`, so there may be several modes. `condition` searches from two starts. If these lead to
    different modes, it keeps the better one, and the result is `several_modes`. Laplace's approximation treats a negative
    curvature as 0.

    **Arguments:**

    - `scale`: the scale, in the unit of y; one positive number.
    - `freedom`: the degrees of freedom, one number of at least 0.1. The fewer there are, the heavier are the tails.
    """

    scale: Float[Parameter, ""] = positive(default=1.0, scalar=True, unit="y")
    freedom: Float[Parameter, ""] = positive(default=4.0, scalar=True, floor=0.1, ceiling=1e6)

    @property
    def surrogate(self):
        return _Normal(self.scale)

    def value(self, y, f):
        r = (y - f) / self.scale
        return 0.5 * (self.freedom + 1.0) * jnp.log1p(r**2 / self.freedom)

    def held_out(self, y, f):
        return (y - f) ** 2

    def log_normaliser(self):
        half = 0.5 * self.freedom
        return jnp.log(self.scale) + 0.5 * jnp.log(math.pi * self.freedom) - log_rising(half, jnp.full_like(half, 0.5))

    def mean(self, f):
        """f, which is the median and, with more than one degree of freedom, the mean."""
        return f

    def cumulative(self, y, f):
        r = (y - f) / self.scale
        # Of ν/(ν + r²), which is near 1 where r is small, the complement has the digits.
        inside = betainc(0.5, 0.5 * self.freedom, r**2 / (self.freedom + r**2))
        return 0.5 * (1.0 + jnp.sign(r) * inside)


class _Normal(AbstractLoss):
    """`½ (y - f)²/scale²`."""

    scale: Float[Array, ""]

    def value(self, y, f):
        return 0.5 * ((y - f) / self.scale) ** 2


class Softmax(AbstractLoss):
    """Softmax likelihood, `log Σ_c e^{f_c} - f_y`, for classes y = 0, …, k - 1 with `P(y = c) = e^{f_c} / Σ e^f`.

    Each class has its own latent function. All have the kernel of the model. `LatentGP` with this likelihood takes
    `kx.Cholesky()` only.

    **Arguments:**

    - `classes`: the number of classes k, 2 or more.
    """

    classes: int = eqx.field(static=True, converter=lambda classes: _count(classes))
    whole: ClassVar[bool] = True

    def __check_init__(self):
        if not isinstance(self.classes, int) or isinstance(self.classes, bool) or self.classes < 2:
            raise ValueError(f"Softmax takes the number of classes, 2 or more, got {self.classes!r}.")

    @property
    def num_classes(self):
        return self.classes

    @property
    def num_functions(self):
        return self.classes

    def value(self, y, f):
        chosen = jnp.arange(self.classes, dtype=f.dtype) == y
        return jax.nn.logsumexp(f) - jnp.sum(jnp.where(chosen, f, 0.0))

    def log_normaliser(self):
        return jnp.zeros(())

    def allows(self, y):
        return is_count(y) & (y < self.classes)

    def has_minimum(self, y, counts):
        return _several(y, counts)

    def spread(self, y, counts):
        return jnp.ones((), y.dtype)


def _count(value: Any) -> Any:
    """A whole number of any kind, such as `y.max() + 1` of NumPy, as an int; anything else as it is."""
    is_whole = isinstance(value, numbers.Integral) or (getattr(value, "ndim", None) == 0 and hasattr(value, "__index__"))
    try:
        return operator.index(value) if is_whole and not isinstance(value, bool) else value
    except TypeError:  # an array of one number that is not whole
        return value


def _several(y: Float[Array, " n"], counts: Bool[Array, " n"]) -> Bool[Array, ""]:
    """Whether the rows that count have several classes."""
    return jnp.max(jnp.where(counts, y, -jnp.inf)) > jnp.min(jnp.where(counts, y, jnp.inf))
