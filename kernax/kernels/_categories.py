"""Kernels of labels and of sets: categories, sequences of labels, fingerprints."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kernax._arrays import is_concrete, matmul, whole_number
from kernax._labels import check_labels
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._of_labels import AbstractOfLabels, first_loadings, of_loadings, root_of_loadings, with_variance
from kernax.parameters import Parameter, interval, positive, real
from kernax.rows import is_label


class Categorical(AbstractOfLabels):
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
    correlation: Any = interval(0.0, 1.0, default=None, scalar=True)
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
        self.loadings, self.variances = first_loadings(len(names), rank)

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
        return of_loadings(self.loadings, self.variances)

    def check(self, x: Any, counts: Any = None) -> None:
        """Raise `ValueError` if a row has a category that is not among the levels, as far as that can be seen."""
        del counts
        check_labels(
            self._labels(x),
            self._size,
            f"Categorical({self.key!r})",
            "category",
            has=f"levels ({self._shown()})",
            names="categories",
            belongs="has the",
            remedy=" Leave out the row, or fit with this level among the levels.",
        )

    def coordinates(self, x):
        # Rows of other categories are not far away: `Vecchia` finds neighbours by the numbers in the rows.
        return None

    def axes(self) -> dict[int | str, AbstractKernel]:
        return {self.key: _OfLabels(self)}

    def initialised(self, x, mask, variance):
        if self.correlation is not None:
            return self
        return with_variance(self, variance)

    def _root(self):
        if self.correlation is None:
            return root_of_loadings(self.loadings, self.variances)
        levels = jnp.eye(self._size, dtype=self.correlation.dtype)
        common = jnp.ones((self._size, 1), levels.dtype)
        return jnp.concatenate([_root(self.correlation) * common, _root(1.0 - self.correlation) * levels], axis=1)

    @property
    def _size(self):
        return len(self.levels)

    def _labels(self, x: Any) -> Any:
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
