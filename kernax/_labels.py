"""Labels in rows: integers counted from 0 that say which task, group or category a row belongs to."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from kernax._arrays import is_concrete


def labels_at(x: Any, key: str, owner: str, what: str) -> Any:
    """The labels in rows, or one row, `{key: …}`.

    **Arguments:**

    - `x`: rows, as arrays of JAX or NumPy.
    - `key`: where the labels are.
    - `owner`: who asks, for the error.
    - `what`: what a label names, such as "group", for the error.

    **Returns:**

    The labels. Raises `ValueError` if there are none, or if they are not integers.
    """
    if not isinstance(x, dict) or key not in x:
        raise ValueError(f"{owner} needs rows with a {what}: write kx.Data({{'x': x, {key!r}: {what}s}}, y).")
    return as_labels(x[key], f"{owner} needs integers in {key!r}")


def as_labels(labels: Any, needs: str) -> Any:
    """The labels; raises `ValueError` if they are not integers."""
    if not hasattr(labels, "dtype") or jnp.issubdtype(labels.dtype, jnp.inexact):
        raise ValueError(f"{needs}, got {getattr(labels, 'dtype', type(labels).__name__)}.")
    return labels


def known_labels(labels: Any, number: int) -> tuple[Any, Any]:
    """Labels as places from 0 to `number - 1`, and which are in that range: others would be taken for one of them."""
    labels = jnp.asarray(labels).astype(int)  # as an index, a boolean would be a mask
    known = (labels >= 0) & (labels < number)
    return jnp.where(known, labels, 0), known


def check_labels(
    labels: Any,
    number: int,
    owner: str,
    what: str,
    *,
    has: str,
    counts: Any = None,
    names: str = "",
    belongs: str = "belongs to",
    remedy: str = "",
) -> None:
    """Raise `ValueError` if a label is out of range, as far as that can be seen before tracing.

    **Arguments:**

    - `labels`: one for each row.
    - `number`: how many labels there are.
    - `owner`: who asks, for the error.
    - `what`: what a label names, such as "group", for the error.
    - `has`: what there are `number` of, such as "variances", for the error.
    - `counts`: which rows count. If it is given, each label must be in one of them.
    - `names`: the plural of `what`, if it is not formed with an s.
    - `belongs`: how the error connects a row and its label.
    - `remedy`: what to do, as the last sentence of the error.
    """
    if labels.ndim != 1:
        raise ValueError(f"{owner} needs one integer for each row, its {what}, got shape {labels.shape}.")
    if not is_concrete(labels) or (counts is not None and not is_concrete(counts)):
        return
    labels = np.asarray(labels).astype(int)
    wrong = (labels < 0) | (labels >= number)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{owner} has {number} {has}, but row {row} {belongs} {what} {labels[row]}: {names or what + 's'} are numbered "
            f"from 0 to {number - 1}.{remedy}"
        )
    if counts is None:
        return
    missing = np.setdiff1d(np.arange(number), labels[np.asarray(counts)])
    if missing.size:
        raise ValueError(
            f"{owner} has {number} {has}, but no row that counts belongs to {what} {missing[0]}: add such a "
            f"row, or leave out the {what} and number the others from 0 to {number - 2}."
        )


def check_one_each(values: Any, owner: str, what: str) -> None:
    """Raise `ValueError` unless values are a vector, with one entry for each label."""
    if values.ndim != 1:
        raise ValueError(f"{owner} needs a vector with one {what} for each group, got shape {values.shape}.")
