"""A full grid, a product kernel and one noise: `A = K_1 ⊗ K_2 ⊗ … + shift·I`, by an eigendecomposition for each axis.

With `K_a = V_a Λ_a V_aᵀ`, A has the eigenvectors `V_1 ⊗ V_2 ⊗ …` and the eigenvalues `λ_1 λ_2 … + shift`. Derivatives are in
`_kronecker_derivatives.py`; missing cells are for `kx.CG(kx.Kronecker())`, see `_missing_cells.py`.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kernax._arrays import is_concrete
from kernax.grams import AbstractGram, ScaledGram, along_axes
from kernax.rows import Grid, Rows
from kernax.solvers import _derivatives as derivatives
from kernax.solvers import _kronecker_derivatives as kronecker
from kernax.solvers import _raw
from kernax.solvers import _spectral as spectral
from kernax.solvers._cholesky import draw_root
from kernax.solvers._eigh import Outlook
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._system import AbstractSystem, Solution, is_usable


class KroneckerSystem(AbstractSystem):
    """A system solved by the eigenvectors of each axis. Another noise costs O(n).

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number.
    - `vectors`: the eigenvectors of each axis.
    - `values`: the eigenvalues of each axis.
    - `outlook`: which jitter other noises would need.
    - `jitter`: the jitter that was added to the diagonal.
    - `result`: how the preparation ended.
    - `max_jitter`: as in [`kernax.Kronecker`][].
    """

    gram: AbstractGram
    noise: Float[Array, ""]
    vectors: tuple[Float[Array, "_ _"], ...]
    values: tuple[Float[Array, " _"], ...]
    outlook: Outlook
    jitter: Float[Array, ""]
    result: Any
    max_jitter: float | None = eqx.field(static=True)

    def _solve(self, columns):
        axes = self._axes
        return Solution(derivatives.solve(self.operator, lambda b: (axes.solve(b), None), columns)[0], self.result)

    def _logdet(self):
        return kronecker.logdet(self._parameters, self._axes)

    def _variance(self, x):
        value = kronecker.explained(self.operator, self._axes, self.gram.cross_factors(x))
        return Solution(self.gram.kernel.diag(x) - value, self.result)

    def inverse_diagonal(self):
        return self._or_nan(kronecker.inverse_diagonal(self._parameters, self._axes))

    def shifted(self, noise):
        return _assembled(self.gram, noise, self.vectors, self.values, self.outlook, self.max_jitter)

    def eigenvalues(self):
        known = zip(self._parameters[0], self.vectors, self.values, strict=True)
        values = kronecker.outer(tuple(spectral.eigenvalues(*axis) for axis in known)).reshape(-1)
        return jnp.where(jnp.all(self.gram.mask), values, jnp.nan)

    def prior_draws(self, x, key, number):
        return grid_draws(self.gram, x, key, number)

    def draw(self, key, number):
        axes = self._axes
        shocks = jax.random.normal(key, (self.gram.n, number), self.noise.dtype)
        return along_axes(axes.vectors, jnp.sqrt(axes.spectrum.reshape(-1, 1)) * shocks)

    @property
    def _parameters(self) -> kronecker.Parameters:
        factors = self.gram.factors()
        assert factors is not None
        return tuple(factors), self.noise + self.jitter

    @property
    def _axes(self) -> kronecker.Axes:
        # What failed answers as the identity, behind a NaN that is chosen last.
        good = is_usable(self.result)
        values = tuple(jnp.where(good, values, 1.0) for values in self.values)
        return kronecker.Axes(self.vectors, values, jnp.where(good, jax.lax.stop_gradient(self.noise) + self.jitter, 0.0))


class WhitenedSystem(AbstractSystem):
    """A noise that depends on one axis, `A = K + D`: with `W = √D`, `A = W (W⁻¹ K W⁻¹ + I) W`.

    W scales the matrix of one axis, so that what is in brackets is a Kronecker product plus the identity.
    """

    gram: AbstractGram
    noise: Float[Array, " n"]
    inner: KroneckerSystem
    """`W⁻¹ K W⁻¹ + I`."""
    jitter: Float[Array, ""]
    result: Any

    def _solve(self, columns):
        solution = self.inner._solve(columns / self._roots)
        return solution._replace(value=solution.value / self._roots)

    def _logdet(self):
        return self.inner._logdet() + jnp.sum(jnp.log(self.noise))

    def _evidence(self, columns):
        terms = self.inner._evidence(columns / self._roots)
        return terms._replace(logdet=terms.logdet + jnp.sum(jnp.log(self.noise)))

    def _variance(self, x):
        return self.inner._variance(x)

    def inverse_diagonal(self):
        return self.inner.inverse_diagonal() / self.noise

    def prior_draws(self, x, key, number):
        return grid_draws(self.gram, x, key, number)

    def draw(self, key, number):
        return self._roots * self.inner.draw(key, number)

    @property
    def _roots(self) -> Float[Array, "n 1"]:
        return jnp.sqrt(self.noise)[:, None]


class Kronecker(AbstractSolver):
    """Exact solver for a full `kx.Grid`, a product kernel over its axes, and one noise, or one for each row of an axis.

    A noise that depends on one axis, such as the noise of each task, is a function of the row that reads that axis only:
    `kx.noises.PerGroup("task", variances)` over `kx.Grid({"x": x, "task": tasks})`. It must be positive.

    It costs O(n Σ n_i + Σ n_i³) for axes of n_i rows.

    The grid may have any number of axes, and each axis any kernel. An axis of labels, such as tasks, is possible too. The
    matrix of every axis is decomposed densely, even if its kernel has a state space or features, so an axis should not have
    more than a few thousand rows. Any other noise then costs O(n). First derivatives cost about as much as the values. Those
    of leave-one-out cost O(n Σ n_i²), and its second derivatives O(n² Σ n_i).

    Every cell must count. A grid with missing cells is solved by `kx.CG(kx.Kronecker())`.

    **Arguments:**

    - `max_jitter`: the largest jitter allowed, relative to the mean diagonal; 1e-6 in float64 and 1e-2 in float32 if
      `None`.
    """

    max_jitter: float | None = eqx.field(static=True, default=None)
    needs_every_row: ClassVar[bool] = True
    matrix_of_each_axis: ClassVar[bool] = True

    def bytes_needed(self, n, itemsize, *, gradient=False):
        # The matrix of an axis, its eigenvectors and LAPACK's workspace of twice its size; for the gradient one more.
        return (5 if gradient else 4) * n * n * itemsize

    def check(self, x, mask):
        if isinstance(x, Grid):
            _check_no_value_twice(x)
        missing = int(np.sum(~np.asarray(mask))) if is_concrete(mask) else 0
        if missing:
            raise ValueError(
                f"kx.Kronecker() needs every cell of the grid, but the mask leaves out {missing} of {mask.size}: use "
                "kx.CG(kx.Kronecker()), which solves a grid with missing cells."
            )

    def prepare(self, gram, noise):
        factors = gram.factors()
        if factors is None:
            raise TypeError(
                "kx.Kronecker() needs rows that are a kx.Grid and a kernel that is a product over all its axes, such as "
                "kx.Select(kx.RBF(), axis=0) * kx.Select(kx.Matern32(), axis=1): write them so (with "
                "key= if the axes have names), or use kx.Cholesky() or kx.CG()."
            )
        if noise.ndim:
            raise TypeError(
                "kx.Kronecker() needs one noise for all rows, or a function of one axis, such as kx.noises.PerGroup over a "
                "kx.Grid whose axes have names, and this model has a noise for each row: use kx.CG(), whose products keep "
                "the grid."
            )
        self.check(gram.x, gram.mask)
        return self._prepared(gram, factors, noise)

    def prepare_along(self, gram, noise, axis):
        if gram.factors() is None:
            return self.prepare(gram, noise)  # which refuses it
        self.check(gram.x, gram.mask)
        sizes = gram.x.shape
        places = [slice(None) if number == axis else 0 for number in range(len(sizes))]
        known = noise.reshape(sizes)[tuple(places)]
        known = jnp.where(known > 0, known, jnp.nan)
        scaled = ScaledGram(gram.kernel, gram.x, gram.mask, 1.0 / jnp.sqrt(known), axis)
        inner = self._prepared(scaled, scaled.factors(), jnp.ones((), noise.dtype))
        jitter = inner.jitter * jax.lax.stop_gradient(jnp.max(noise))
        return WhitenedSystem(gram=gram, noise=noise, inner=inner, jitter=jitter, result=inner.result)

    def _prepared(self, gram: AbstractGram, factors: list[Float[Array, "_ _"]], noise: Float[Array, ""]) -> KroneckerSystem:
        constants = [jax.lax.stop_gradient(factor) for factor in factors]
        pairs = [_decomposed(factor) for factor in constants]
        vectors, values = (tuple(part) for part in zip(*pairs, strict=True))
        outlook = _outlook(constants, values, gram.mask)
        return _assembled(gram, noise, vectors, values, outlook, self.max_jitter)


def grid_draws(
    gram: AbstractGram, x: Rows, key: Key[Array, ""], number: int
) -> tuple[Float[Array, "n s"], Float[Array, "m s"]] | None:
    """Functions drawn from the prior of a product kernel, at the cells of a grid and of another one; `None` if x is none.

    Each axis gets a root of the matrix of its known and new rows together: O(Σ (n_i + m_i)³), and no larger matrix. The
    draws are computed for the grid of all of these, which has `Π (n_i + m_i)` cells.
    """
    if not isinstance(x, Grid):
        return None
    kernels, known = gram.kernel.axes(), gram.x
    rows = [jax.tree.map(lambda *parts: jnp.concatenate(parts), *axes) for axes in zip(known.axes, x.axes, strict=True)]
    roots = [draw_root(kernels[key].gram(axis, None)) for key, axis in zip(known.keys, rows, strict=True)]
    sizes = tuple(root.shape[0] for root in roots)
    shocks = jax.random.normal(key, (math.prod(sizes), number), roots[0].dtype)
    drawn = along_axes(roots, shocks).reshape(*sizes, number)
    first, second = (tuple(map(cut, known.shape)) for cut in (lambda n: slice(0, n), lambda n: slice(n, None)))
    return drawn[first].reshape(-1, number), drawn[second].reshape(-1, number)


def _check_no_value_twice(grid: Grid) -> None:
    """Raise `ValueError` if an axis has a row twice, as far as that can be seen before tracing."""
    for number, axis in enumerate(grid.axes):
        leaves = jax.tree.leaves(axis)
        if not all(map(is_concrete, leaves)):
            continue
        rows = np.concatenate([np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
        _, groups, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        if np.any(counts > 1):
            same = np.flatnonzero(groups.reshape(-1) == np.argmax(counts > 1))
            raise ValueError(
                f"axis {number} of the grid repeats the value {', '.join(map(str, rows[same[0]]))} (rows {same[0]} and "
                f"{same[1]}), so that cells are observed twice: give every value once, with the mean of its cells, or write "
                "each observation as a row of its own, kx.Data(kx.rows.take(grid), y), for another solver."
            )


def _decomposed(factor: Float[Array, "k k"]) -> tuple[Float[Array, "k k"], Float[Array, " k"]]:
    vectors, values = _raw.eigh(factor)
    # A matrix with NaN has no eigenvectors: those of the identity stand in, and the eigenvalues say that it failed.
    sound = jnp.all(jnp.isfinite(values))
    return jnp.where(sound, vectors, jnp.eye(factor.shape[0], dtype=factor.dtype)), jnp.where(sound, values, jnp.nan)


def _outlook(factors: list[Float[Array, "_ _"]], values: tuple[Float[Array, " _"], ...], mask: Bool[Array, " n"]) -> Outlook:
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(factor)) for factor in factors]))
    diagonals = [jnp.diagonal(factor) for factor in factors]
    return Outlook(
        lowest=jnp.min(kronecker.outer(values)),
        mean_diagonal=kronecker.outer(tuple(jnp.mean(diagonal)[None] for diagonal in diagonals)).reshape(()),
        largest_diagonal=kronecker.outer(tuple(jnp.max(diagonal)[None] for diagonal in diagonals)).reshape(()),
        count=jnp.sum(mask).astype(factors[0].dtype),
        failure=Result.where(finite, Result.not_positive_definite, Result.nonfinite),
    )


def _assembled(
    gram: AbstractGram,
    noise: Float[Array, ""],
    vectors: tuple[Float[Array, "_ _"], ...],
    values: tuple[Float[Array, " _"], ...],
    outlook: Outlook,
    max_jitter: float | None,
) -> KroneckerSystem:
    constant = jax.lax.stop_gradient(noise)
    jitter, result = outlook.at(constant, constant == 0, max_jitter)
    # A mask that is traced can be reported only.
    complete = jnp.all(gram.mask) | (result == Result.empty)
    result = Result.where(complete, result, Result.too_few_rows)
    return KroneckerSystem(
        gram=gram,
        noise=noise,
        vectors=vectors,
        values=values,
        outlook=outlook,
        jitter=jitter,
        result=result,
        max_jitter=max_jitter,
    )
