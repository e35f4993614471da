"""Noise that depends on data in the row: the group that it belongs to, or a measured variance."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete
from kernax._labels import check_labels, check_one_each, known_labels, labels_at
from kernax._stored import is_stored
from kernax.noises._sums import AbstractNoise
from kernax.parameters import Parameter, positive


class PerGroup(AbstractNoise):
    """One noise variance for each group of rows, fitted like any other parameter.

    **Arguments:**

    - `key`: the key of the group in a row `{key: …}`. Groups are integers, numbered from 0.
    - `variances`: one positive number for each group.
    """

    key: str = eqx.field(static=True)
    variances: Float[Parameter, " groups"] = positive(unit="y²")

    def __check_init__(self):
        check_one_each(self.variances, "noises.PerGroup", "variance")

    def __call__(self, row: Any) -> Float[Array, ""]:
        group, known = known_labels(self._labels(row), self.variances.shape[-1])
        return jnp.where(known, self.variances[group], jnp.nan)

    def check(self, x: Any) -> None:
        """Raise `ValueError` if a row belongs to a group without a variance."""
        check_labels(self._labels(x), self.variances.shape[-1], self._name, "group", has="variances")

    def _labels(self, x: Any) -> Any:
        return labels_at(x, self.key, self._name, "group")

    @property
    def _name(self) -> str:
        return f"noises.PerGroup({self.key!r})"


class Known(AbstractNoise):
    """A measured noise variance, stored in every row, including new rows. It is not fitted.

    Error bars are usually standard deviations: write their squares into the rows. `kx.noises.Known("variance") + 0.1` adds
    one variance for all rows, which is fitted, for noise that the error bars do not explain.

    **Arguments:**

    - `key`: the key of the variance in a row `{key: …}`. Variances are 0 or more. Or
    - `column`: the column of an array that contains it, counted from 0. The kernel should not use that column: see
      [`kernax.Select`][].
    """

    key: str | None = eqx.field(static=True, default=None)
    column: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if (self.key is None) == (self.column is None):
            raise ValueError('noises.Known needs either a key or a column: write noises.Known("variance").')
        if self.key is not None and not isinstance(self.key, str):
            raise ValueError(f"noises.Known needs the key of a dict as text, got {self.key!r}: for a column write column=.")
        if self.column is not None and (
            isinstance(self.column, bool) or not isinstance(self.column, int) or self.column < 0
        ):
            raise ValueError(f"noises.Known needs a column number counted from 0, got {self.column!r}.")

    def __call__(self, row: Any) -> Float[Array, ""]:
        variance = 1.0 * self._variances(row)
        # Nobody can refuse what is traced: then the result is `nonfinite`.
        return jnp.where(variance >= 0, variance, jnp.nan)

    def check(self, x: Any) -> None:
        """Raise `ValueError` if rows have no variance, or a negative one, as far as that can be seen before tracing."""
        if is_stored(x):
            self._check_column(x.shape[-1])
            values = np.concatenate([block[:, self.column] for block in x.blocks()]) if is_concrete(x.token) else None
            counts = x.mask
        else:
            values, counts = self._variances(x), None
            if values.ndim != 1:
                raise ValueError(f"{self._name} needs one variance for each row, got shape {values.shape}.")
        if values is None or not is_concrete(values) or not is_concrete(counts):
            return
        wrong = ~(np.asarray(values) >= 0) & (True if counts is None else np.asarray(counts))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"{self._name} needs variances of 0 or more, but row {row} has {float(values[row]):g}: square "
                "error bars, or leave the row out."
            )

    def _variances(self, x: Any) -> Any:
        if self.column is not None:
            if not hasattr(x, "ndim"):
                raise ValueError(f'{self._name} needs rows that are one array: for a dict write noises.Known("variance").')
            self._check_column(x.shape[-1])
            return x[..., self.column]
        if not isinstance(x, dict) or self.key not in x:
            found = f"the keys {sorted(x)}" if isinstance(x, dict) else "no keys"
            raise ValueError(
                f"{self._name} needs the noise variance of each row, but the rows have {found}: write "
                f"kx.Data({{'x': x, {self.key!r}: variances}}, y), and the same for new rows."
            )
        return x[self.key]

    def _check_column(self, width: int) -> None:
        if self.column is None or self.column >= width:
            raise ValueError(f"{self._name} uses column {self.column}, but the rows have {width} columns.")

    @property
    def _name(self) -> str:
        return f"noises.Known({self.key!r})" if self.column is None else f"noises.Known(column={self.column})"
