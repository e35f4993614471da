"""Functions drawn from the posterior, to be called anywhere.

By Matheron's rule (see `kernax/solvers/_pathwise.py`): with a function f drawn from the prior and noise ε,

    mean(x) + f(x) + k(x, X) A⁻¹ (y - mean(X) - f(X) - ε)

is a draw of the posterior. The prior's f is a sum of random waves, or of the kernel's own features, and so a function of x.
With a state space it is a path of the Markov process, which is drawn wherever somebody asks (`solvers/_bisection.py`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kernax._arrays import whole_number
from kernax._programs import compiled
from kernax.means import mean_values
from kernax.model import Conditioned
from kernax.model._checks import check_conditioned
from kernax.posterior._new_rows import new_rows
from kernax.rows import Rows, map_rows, take
from kernax.solvers import Solution, throw_unless
from kernax.solvers._pathwise import prior_draws

_NUMBERS_PER_ROW = 2**13
"""Features of one function at a row, by which blocks of new rows are bounded."""


class SamplePaths(eqx.Module):
    """Functions drawn from a posterior. Made by [`kernax.sample_paths`][]; call it with rows."""

    c: Conditioned
    """The conditioned model."""
    key: Key[Array, ""]
    """The random key."""
    number: int = eqx.field(static=True)
    """The number of functions."""
    update: Solution
    """`A⁻¹ (y - mean(X) - f(X) - ε)` for every function."""

    def __call__(self, x: Any) -> Float[Array, "m s *p"]:
        """The values of all functions at rows: the same functions at every call. Differentiable in x.

        **Arguments:**

        - `x`: inputs, `(m, d)`.

        **Returns:**

        An array of shape `(m, number)`, or `(m, number, p)` for p outputs.
        """
        return _values(self, new_rows(self.c, x))

    @property
    def result(self) -> Any:
        """How the computation ended."""
        return self.update.result

    def __repr__(self):
        return f"SamplePaths({self.number} functions, {self.c.model!r})"


def sample_paths(c: Any, key: Key[Array, ""], number: int = 1) -> SamplePaths:
    """Draw functions from the posterior that can be called anywhere, any number of times.

    Each is a sum of 512 random waves (or of the kernel's own features), corrected at the data by one solve for all
    functions. Over many draws their mean and covariance are those of the posterior; one draw alone is Gaussian up to the
    number of waves. O(n) a row and function. For exact joint draws at given rows see [`kernax.sample`][].

    With `kx.StateSpace()` each is an exact path of the Markov process, for every kernel that has a state space, such as
    `Periodic`, `kx.kernels.SHO` and `CubicSpline`: O(log n) a row and function. Such a path is NaN
    farther from the data than a million times their range (15 times for a spline). Its slope is NaN where it has none
    (`Matern12`).

    **Arguments:**

    - `c`: a model conditioned on data with `kx.Cholesky()`, `kx.Eigh()`, `kx.CG()`, `kx.Kronecker()` or `kx.StateSpace()`,
      or with `kx.LowRank()` for a kernel with features. Without a state space, the kernel is made of `RBF`, `Matern`,
      `Matern12`, `Matern32`, `Matern52`, `RationalQuadratic`, `SpectralMixture` and of kernels with features, such as
      `Linear` and `Categorical`, in sums, products, `Additive`, `Select` and `Warp`.
    - `key`: a JAX random key.
    - `number`: how many functions.

    **Returns:**

    A `SamplePaths`: `paths(x)` has the shape `(m, number)`, or `(m, number, p)` for p outputs. Raises `TypeError` if the
    kernel has neither waves nor features, or if the solver's posterior is an approximation.
    """
    check_conditioned(c)
    if c.data.gaps is not None:
        raise TypeError("sample_paths needs outputs that are observed in the same rows: condition on one output at a time.")
    if not c.system.is_exact:
        raise TypeError(
            f"sample_paths needs a solver whose posterior is exact, and that of {type(c.solver).__name__} is an "
            "approximation here: condition with kx.Cholesky(), kx.CG() or kx.StateSpace()."
        )
    paths = _sample_paths(c, key, whole_number(number, "number"))
    throw_unless((), paths.result, "drawing functions")
    return paths


@compiled
def _sample_paths(c: Conditioned, key: Key[Array, ""], number: int) -> SamplePaths:
    x, outputs = take(c.data.x), c.residual.shape[1:]
    values = _prior(c, key, number)(x)
    noise = jax.random.normal(jax.random.fold_in(key, 1), values.shape, values.dtype)
    drawn = (values + jnp.sqrt(c.system.shift)[:, None] * noise).reshape(c.data.n, number, *outputs)
    wanted = jnp.where(c.data.mask.reshape(-1, *[1] * (drawn.ndim - 1)), c.residual[:, None] - drawn, 0.0)
    return SamplePaths(c, key, number, c.system.solve(wanted.reshape(c.data.n, -1)))


@compiled
def _values(paths: SamplePaths, x: Rows) -> Array:
    c = paths.c
    outputs = c.residual.shape[1:]
    drawn = map_rows(_prior(c, paths.key, paths.number), x, _NUMBERS_PER_ROW)
    values = (drawn + c.system.mean(x, paths.update)).reshape(-1, paths.number, *outputs)
    level = mean_values(c.model.mean, x, values[:, 0])
    return values + level[:, None]


def _prior(c: Conditioned, key: Key[Array, ""], number: int) -> Any:
    """Functions drawn from the prior, one for each path and output."""
    number = number * (c.residual.shape[1] if c.residual.ndim > 1 else 1)
    exact = c.system.gram.prior_paths(key, number)
    if exact is not None:
        return exact
    remedy = "use kx.sample(c, x), or condition with kx.StateSpace() if the kernel has a state space"
    return prior_draws(c.system.gram.kernel, c.data.x, key, number, remedy)
