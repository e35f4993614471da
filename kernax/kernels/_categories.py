"""Kernels of labels and of sets: categories, sequences of labels, fingerprints."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernax._arrays import is_concrete, matmul, whole_number
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._markov import of_features
from kernax.parameters import Parameter, interval, positive, real
from kernax.rows import is_label


class Categorical(AbstractKernel):
    """A kernel of categories. Rows hold them as integers: `{"x": x, "city": codes}`.

    With `rank=None` it is 1 for equal categories and one `correlation` between 0 and 1 for different ones. With a rank it is
    the entry of `B Bᵀ + diag(v)` for the two categories, where B has a row of loadings for each. Some categories can then be
    more similar than others. Positive definite. Multiply it by a kernel of the numbers:
    `Categorical("city", 3) * Select(RBF(), key="x")`.

    **Arguments:**

    - `key`: the key of the rows (a dict) under which the category stands.
    - `levels`: how many categories there are, or their names. With names, [`codes`][kernax.kernels.Categorical.codes] turns
      a column of names into integers.
    - `rank`: how many columns the loadings have; `None` for one correlation.
    - `correlation`: the correlation of different categories, from which a fit starts.
    """

    key: str = eqx.field(static=True)
    levels: tuple[Any, ...] = eqx.field(static=True)
    # `None` where the other form is used.
    correlation: Any = interval(0.0, 1.0, default=None)
    loadings: Any = real(default=None, unit="y")
    variances: Any = positive(default=None, unit="y²")

    def __init__(self, key: str, levels: Any, *, rank: int | None = None, correlation: Any = 0.5):
        named = isinstance(levels, Sequence | np.ndarray) and not isinstance(levels, str)
        names = tuple(np.asarray(levels).tolist()) if named else tuple(range(whole_number(levels, "Categorical.levels")))
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"Categorical({key!r}) needs different levels, got {levels!r}.")
        self.key, self.levels = key, names
        self.correlation = self.loadings = self.variances = None
        if rank is None:
            self.correlation = jnp.asarray(correlation, float)
            return
        rank = whole_number(rank, "Categorical.rank")
        # Columns that are all different: those that start alike would stay alike. Every category has variance 1.
        start = np.sqrt(0.5 / rank) * np.cos(np.arange(rank) * (2.0 * np.arange(len(names))[:, None] + 1.0))
        self.loadings = jnp.asarray(start, float)
        self.variances = jnp.asarray(1.0 - np.sum(start**2, axis=1), float)

    def codes(self, values: Any) -> Int[np.ndarray, " n"]:
        """Categories by name as integers.

        **Arguments:**

        - `values`: the names, one for each row.

        **Returns:**

        The place of each name among the `levels`. Raises `ValueError` for a name that is not among them.
        """
        places = {name: i for i, name in enumerate(self.levels)}
        names = np.asarray(values).tolist()
        found = [places.get(name, -1) for name in names]
        if -1 in found:
            row = found.index(-1)
            raise ValueError(
                f"Categorical({self.key!r}) does not know the category {names[row]!r} of row {row}: its "
                f"levels are {self._shown()}. Leave out the row, or fit with this level among the levels."
            )
        return np.array(found)

    def matrix(self) -> Float[Array, "levels levels"]:
        """The kernel of all pairs of categories.

        **Returns:**

        A matrix of shape `(levels, levels)`.
        """
        if self.correlation is not None:
            return jnp.where(jnp.eye(len(self.levels), dtype=bool), 1.0, self.correlation)
        return matmul(self.loadings, self.loadings.T) + jnp.diag(self.variances)

    def check(self, x: Any, counts: Any = None) -> None:
        """Raise `ValueError` if a row has a category that is not among the levels, as far as that can be seen."""
        del counts
        codes = self._codes(x)
        if not is_concrete(codes):
            return
        wrong = (np.asarray(codes) < 0) | (np.asarray(codes) >= len(self.levels))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"Categorical({self.key!r}) has {len(self.levels)} levels ({self._shown()}), but row {row} has the category "
                f"{int(np.asarray(codes).ravel()[row])}: categories are numbered from 0 to {len(self.levels) - 1}. Leave "
                "out the row, or fit with this level among the levels."
            )

    def pair(self, a, b):
        (s, s_known), (t, t_known) = self._found(a), self._found(b)
        return jnp.where(s_known & t_known, self.matrix()[s, t], jnp.nan)

    def gram(self, x, z):
        # By products with 0 and 1, which are exact: derivatives of an entry that is looked up n² times are a slow sum.
        left, known = self._indicators(x)
        right, z_known = (left, known) if z is None else self._indicators(z)
        return jnp.where(known[:, None] & z_known, matmul(matmul(left, self.matrix()), right.T), jnp.nan)

    def diag(self, x):
        codes, known = self._found(x)
        return jnp.where(known, jnp.diagonal(self.matrix())[codes], jnp.nan)

    def state_space(self):
        return of_features(self.features)

    def features(self, x):
        codes, known = self._found(x)
        if self.correlation is not None:
            levels = jnp.eye(len(self.levels), dtype=self.correlation.dtype)
            common = jnp.ones((len(self.levels), 1), levels.dtype)
            root = jnp.concatenate([_root(self.correlation) * common, _root(1.0 - self.correlation) * levels], axis=1)
        else:
            root = jnp.concatenate([self.loadings, jnp.diag(jnp.sqrt(self.variances))], axis=1)
        return jnp.where(known[:, None], root[codes], jnp.nan)

    def coordinates(self, x):
        # Rows of other categories are not far away: `Vecchia` finds neighbours by the numbers in the rows.
        return None

    def axes(self) -> dict[int | str, AbstractKernel]:
        return {self.key: _OfLabels(self)}

    def initialised(self, x, mask, variance):
        if self.correlation is not None:
            return self
        share = variance / jnp.mean(jnp.diagonal(self.matrix()))
        values = (jnp.sqrt(share) * self.loadings, share * self.variances)
        return eqx.tree_at(lambda k: (k.loadings, k.variances), self, values)

    def _codes(self, x: Any) -> Any:
        if not isinstance(x, dict) or self.key not in x:
            raise ValueError(
                f"Categorical({self.key!r}) needs rows with a category: write kx.Data({{'x': x, {self.key!r}: codes}}, y)."
            )
        if not is_label(x[self.key]):
            raise ValueError(
                f"Categorical({self.key!r}) needs integers in {self.key!r}, got {x[self.key].dtype}: write "
                "kernel.codes(names), or .astype(int)."
            )
        return x[self.key].astype(int)

    def _found(self, x: Any) -> tuple[Array, Array]:
        """Codes, and which are known. A category that nobody has seen has the kernel NaN, not that of another one."""
        codes = self._codes(x)
        known = (codes >= 0) & (codes < len(self.levels))
        return jnp.where(known, codes, 0), known

    def _indicators(self, x: Any) -> tuple[Float[Array, "n levels"], Bool[Array, " n"]]:
        codes, known = self._found(x)
        return (codes[:, None] == jnp.arange(len(self.levels))).astype(self.matrix().dtype), known

    def _shown(self) -> str:
        shown = ", ".join(repr(level) for level in self.levels[:8])
        return shown + (", …" if len(self.levels) > 8 else "")


def _root(value: Float[Array, ""]) -> Float[Array, ""]:
    """The root of a number that is not negative. At 0 its slope is taken for 0."""
    return jnp.where(value > 0, jnp.sqrt(jnp.where(value > 0, value, 1.0)), 0.0)


class _OfLabels(AbstractKernel):
    """A `Categorical` whose rows are the categories themselves: what it is along an axis of a grid."""

    kernel: Categorical

    def pair(self, a, b):
        return self.kernel.pair({self.kernel.key: a}, {self.kernel.key: b})

    def gram(self, x, z):
        return self.kernel.gram({self.kernel.key: x}, None if z is None else {self.kernel.key: z})

    def diag(self, x):
        return self.kernel.diag({self.kernel.key: x})


class Hamming(AbstractKernel):
    """Hamming kernel, `exp(-Σ_k [a_k ≠ b_k]/ℓ_k)`: each column in which two rows differ multiplies it by `exp(-1/ℓ_k)`.

    For rows of labels of any kind, such as sequences or many categorical columns: `Select(Hamming(), key="codes")`. It is a
    product of kernels that are 1 for equal labels and one correlation for different ones, so it is positive definite. Its
    derivatives in the rows are 0.

    **Arguments:**

    - `lengthscale`: ℓ, one number or one for each column: after about so many differing columns two rows are little
      correlated.
    """

    lengthscale: Float[Parameter, "*d"] = positive(default=1.0)

    def pair(self, a, b):
        self._check(a.shape[-1])
        return jnp.exp(-jnp.sum(jnp.where(a != b, 1.0 / self.lengthscale, 0.0)))

    def gram(self, x, z):
        self._check(x.shape[1])
        z = x if z is None else z
        rates = jnp.broadcast_to(1.0 / self.lengthscale, (x.shape[1],))
        distance = jnp.zeros((x.shape[0], z.shape[0]), rates.dtype)
        for k, rate in enumerate(rates):
            distance = distance + jnp.where(x[:, k, None] != z[None, :, k], rate, 0.0)
        return jnp.exp(-distance)

    def diag(self, x):
        return jnp.ones(x.shape[0], self.lengthscale.dtype)

    def _check(self, width: int) -> None:
        if self.lengthscale.ndim and self.lengthscale.shape[-1] != width:
            raise ValueError(
                f"Hamming.lengthscale has shape {self.lengthscale.shape}, but the inputs have {width} columns: give one "
                "number, or one per column."
            )


class Tanimoto(AbstractKernel):
    """Tanimoto kernel, `a·b/(a·a + b·b - a·b)`: the intersection of two sets divided by their union.

    Also called the Jaccard kernel. For fingerprints of 0 and 1, and for counts: rows without negative numbers, for which it
    is positive definite (Ralaivola, Swamidass, Saigo and Baldi, 2005). Two empty rows have the kernel 1. It has no
    parameters: write `1.0 * Tanimoto()` for a variance.
    """

    def check(self, x: Any, counts: Any = None) -> None:
        """Raise `ValueError` if a row has a negative number, as far as that can be seen before tracing."""
        del counts
        if not hasattr(x, "ndim") or x.ndim != 2 or not is_concrete(x):
            return
        wrong = np.any(np.asarray(x) < 0, axis=1)
        if wrong.any():
            raise ValueError(
                f"Tanimoto takes rows without negative numbers, such as counts, but row {int(np.argmax(wrong))} has one: "
                "for such rows it is not positive definite."
            )

    def pair(self, a, b):
        a, b = _numbers(a), _numbers(b)
        return _share(jnp.sum(a * b), jnp.sum(a * a), jnp.sum(b * b))

    def gram(self, x, z):
        x = _numbers(x)
        z = x if z is None else _numbers(z)
        return _share(matmul(x, z.T), jnp.sum(x * x, axis=1)[:, None], jnp.sum(z * z, axis=1))

    def diag(self, x):
        return jnp.ones(x.shape[0], _numbers(x).dtype)


def _numbers(x: Array) -> Array:
    return x.astype(jnp.result_type(float)) if is_label(x) else x


def _share(common: Array, first: Array, second: Array) -> Array:
    total = first + second - common
    return jnp.where(total > 0, common / jnp.where(total > 0, total, 1.0), 1.0)
