"""A System for each output: one kernel and one noise, but every output is observed in its own rows.

Outputs with the same rows share a System. All of them lie in one batch and are asked together, under `vmap`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kernax.data import Gaps, needs_same_rows
from kernax.grams import AbstractGram
from kernax.solvers._system import AbstractSystem, Evidence, Solution, worst


class PerOutput(AbstractSystem):
    """One System for each group of outputs, prepared by any solver. See the docstring of the module.

    Column j of a right-hand side is solved by the System of output j. If one of them fails, all answers are NaN.

    **Arguments:**

    - `gram`: K over the rows in which any output is observed.
    - `noise`: the noise variance, one number or one for each row.
    - `systems`: the Systems, with a leading axis over groups.
    - `gaps`: which rows each output is observed in.
    - `jitter`: the largest jitter of all Systems.
    - `result`: the worst status of all Systems.
    """

    gram: AbstractGram
    noise: Float[Array, "*n"]
    systems: AbstractSystem
    gaps: Gaps
    jitter: Float[Array, ""]
    result: Any

    @property
    def ridge(self):
        """Noise and jitter, one for each row and output: outputs may need different jitter."""
        rows = self.gaps.masks.shape[1:]
        return self._each(lambda system: jnp.broadcast_to(system.ridge, rows))[self.gaps.group].T

    @property
    def num_free(self):
        return self._shapes.num_free

    @property
    def _numbers_per_row(self):
        return self.gaps.masks.shape[0] * self._shapes._numbers_per_row

    def _solve(self, columns):
        if columns.shape[1] != self.gaps.places.shape[0]:
            raise TypeError(needs_same_rows("a right-hand side without one column for each output"))
        parts = self._each(lambda system, b: system.solve(b), self.gaps.grouped(columns))
        value = self.gaps.joined(parts.value)
        return Solution(value, worst(parts.result), jnp.max(parts.steps), parts)

    def _logdet(self) -> Float[Array, " p"]:
        return self._each(lambda system: system.logdet())[self.gaps.group]

    def _evidence(self, columns):
        parts = self._each(lambda system, b: system.evidence(b), self.gaps.grouped(columns))
        group, width = self.gaps.group, self.gaps.members.shape[1]
        # A group's correction is that of `width` columns, some of which only fill it up.
        correction = jnp.sum(parts.correction[group]) / width
        quadratic, error = self.gaps.joined(parts.quadratic), jnp.asarray(parts.logdet_error)[group]
        return Evidence(quadratic, parts.logdet[group], correction, worst(parts.result), error)

    def _mean(self, x, solution):
        return self.gaps.joined(self._each(lambda system, part: system.mean(x, part), solution.kept))

    def _variance(self, x):
        parts = self._each(lambda system: system.variance(x))
        return Solution(parts.value[self.gaps.group].T, worst(parts.result))

    def inverse_diagonal(self):
        entries = self._each(lambda system: system.inverse_diagonal())
        return None if entries is None else self._or_nan(entries[self.gaps.group].T)

    def shifted(self, noise):
        systems = self._each(lambda system: system.shifted(noise))
        return None if systems is None else _together(systems, self.gaps, self.gram, noise)

    # What a caller expects for all outputs together.

    @property
    def shift(self):
        raise TypeError(needs_same_rows("the matrix K + noise·I"))

    def _covariance(self, x, z):
        raise TypeError(needs_same_rows("a covariance"))

    def inverse_blocks(self, rows):
        raise TypeError(needs_same_rows("k-fold cross-validation"))

    def appended(self, gram, noise):
        raise TypeError(needs_same_rows("kx.extend"))

    def draw(self, key, number):
        raise TypeError(needs_same_rows("a draw at the training rows"))

    def expansion(self, solution):
        raise TypeError(needs_same_rows("a prediction of the form k(x, X) alpha"))

    @property
    def _shapes(self) -> AbstractSystem:
        """The first System, without its numbers."""
        return eqx.filter_eval_shape(
            lambda systems: jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, systems), self.systems
        )

    def _each(self, ask: Callable[..., Any], *of_groups: Any) -> Any:
        return _for_groups(ask)(self.systems, *of_groups)


def per_output(
    prepared: Callable[[Bool[Array, " n"]], AbstractSystem], gaps: Gaps, gram: AbstractGram, noise: Float[Array, "*n"]
) -> PerOutput:
    """The Systems of all outputs.

    **Arguments:**

    - `prepared`: a function that prepares a System for the rows that count.
    - `gaps`: which rows each output is observed in.
    - `gram`, `noise`: those of all rows in which any output is observed.

    **Returns:**

    A `PerOutput`.
    """
    return _together(_for_groups(prepared)(gaps.masks), gaps, gram, noise)


def _together(systems: AbstractSystem, gaps: Gaps, gram: AbstractGram, noise: Float[Array, "*n"]) -> PerOutput:
    jitter, result = jnp.max(systems.jitter), worst(systems.result)
    return PerOutput(gram=gram, noise=noise, systems=systems, gaps=gaps, jitter=jitter, result=result)


def _for_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one group, mapped over all."""

    def with_arrays(*of_group: Any) -> Any:
        # A direct solver's steps are a Python 0, which `jax.jit` would make an array without an axis over groups.
        return jax.tree.map(lambda leaf: jnp.asarray(leaf) if type(leaf) in (int, float) else leaf, function(*of_group))

    return eqx.filter_vmap(with_arrays)
