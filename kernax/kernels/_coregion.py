"""Correlated outputs: a kernel of task labels, and its products with kernels of the inputs."""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernax._arrays import as_floats, whole_number
from kernax._labels import as_labels, check_labels, labels_at
from kernax.kernels._inputs import Select
from kernax.kernels._kernel import AbstractKernel
from kernax.kernels._of_labels import AbstractOfLabels, first_loadings, of_loadings, root_of_loadings, with_variance
from kernax.parameters import Parameter, positive, real


class Coregion(AbstractOfLabels):
    """Covariance of tasks, `k(s, t) = [B Bᵀ + diag(v)]_st`, for tasks that are numbered from 0.

    Multiplied by a kernel of the inputs it makes correlated outputs; see [`kernax.kernels.ICM`][]. B has a row of loadings
    for each task, and v has one variance for each task.

    **Arguments:**

    - `number`: the number of tasks.
    - `rank`: the number of columns of B. With 1, all correlations come from one common function.
    - `key`: the key of the task in rows `{"x": x, "task": tasks}`; `None` if a row is only the task, an integer.
    - `loadings`: B, `(number, rank)`, from which a fit starts. By default every task has variance 1, half of it from B, and
      the first column of B is constant.
    - `variances`: v, one positive number for each task.
    """

    key: str | None = eqx.field(static=True)
    loadings: Float[Parameter, "tasks rank"] = real(unit="y")
    variances: Float[Parameter, " tasks"] = positive(unit="y²")

    def __init__(self, number: Any, rank: Any = 1, key: str | None = "task", *, loadings: Any = None, variances: Any = None):
        number, rank = whole_number(number, "Coregion.number"), whole_number(rank, "Coregion.rank")
        shared, own = first_loadings(number, rank)
        self.key = key
        self.loadings = shared if loadings is None else as_floats(loadings, "Coregion.loadings")
        self.variances = own if variances is None else as_floats(variances, "Coregion.variances")
        if self.loadings.shape != (number, rank) or self.variances.shape != (number,):
            raise ValueError(
                f"Coregion({number}, {rank}) needs loadings of shape {(number, rank)} and {number} variances, got shapes "
                f"{self.loadings.shape} and {self.variances.shape}."
            )

    @property
    def number(self) -> int:
        """The number of tasks."""
        return self.variances.shape[-1]

    def matrix(self) -> Float[Array, "tasks tasks"]:
        """The covariance of the tasks, `B Bᵀ + diag(v)`.

        **Returns:**

        A matrix of shape `(number, number)`.
        """
        return of_loadings(self.loadings, self.variances)

    def correlation(self) -> Float[Array, "tasks tasks"]:
        """The correlation of the tasks.

        **Returns:**

        A matrix of shape `(number, number)`.
        """
        matrix = self.matrix()
        scale = jnp.sqrt(jnp.diagonal(matrix))
        return matrix / (scale[:, None] * scale)

    def axes(self) -> dict[int | str, AbstractKernel] | None:
        if self.key is None:
            return None
        rank = self.loadings.shape[-1]
        return {self.key: Coregion(self.number, rank, None, loadings=self.loadings, variances=self.variances)}

    def check(self, x, counts=None):
        check_labels(self._labels(x), self.number, self._name, "task", has="tasks", counts=counts)

    def initialised(self, x, mask, variance):
        return with_variance(self, variance)

    def _root(self):
        return root_of_loadings(self.loadings, self.variances)

    @property
    def _size(self):
        return self.number

    def _labels(self, x: Any) -> Any:
        if self.key is None:
            return as_labels(x, f"{self._name} needs integers").astype(int)
        return labels_at(x, self.key, self._name, "task").astype(int)

    @property
    def _name(self) -> str:
        return f"Coregion(key={self.key!r})"


def ICM(  # noqa: N802  (a product of kernels, by the name that it has in the literature)
    kernel: AbstractKernel, number: int, rank: int = 1, *, key: str = "task", inputs: str = "x"
) -> AbstractKernel:
    """The intrinsic coregionalisation model: outputs that are correlated, all with the same kernel of the inputs.

    `k((a, s), (b, t)) = [B Bᵀ + diag(v)]_st · kernel(a, b)`: `Coregion(number, rank, key) * Select(kernel, key=inputs)`.
    Rows are `{"x": x, "task": tasks}`, one for each observed value; [`kernax.data.long`][] makes them.

    **Arguments:**

    - `kernel`: the kernel of the inputs. Leave out a variance in front of it: the tasks have variances of their own.
    - `number`: the number of tasks.
    - `rank`: how many common functions the tasks share.
    - `key`: the key of the task in a row.
    - `inputs`: the key of the inputs in a row.

    **Returns:**

    A `Product`. Over `kx.Grid({"x": x, "task": tasks})`, with all outputs observed, it makes a Kronecker product. It has a
    state space if `kernel` has one.
    """
    return Coregion(number, rank, key) * Select(kernel, key=inputs)


def LCM(  # noqa: N802
    kernels: Any, number: int, rank: int = 1, *, key: str = "task", inputs: str = "x"
) -> AbstractKernel:
    """The linear model of coregionalisation: a sum of [`kernax.kernels.ICM`][], one for each kernel.

    Outputs may then be correlated in one way over short distances and in another over long ones.

    **Arguments:**

    - `kernels`: a list of kernels of the inputs. Give those of one class different lengthscales: equal ones stay equal.
    - `number`: the number of tasks.
    - `rank`: how many common functions the tasks share, in each summand.
    - `key`: the key of the task in a row.
    - `inputs`: the key of the inputs in a row.

    **Returns:**

    A `Sum`; a `Product` if there is one kernel.
    """
    if isinstance(kernels, AbstractKernel) or not kernels:
        raise ValueError("LCM needs a list of kernels: for a single one, use ICM.")
    return functools.reduce(operator.add, [ICM(kernel, number, rank, key=key, inputs=inputs) for kernel in kernels])


def coregion_in(kernel: AbstractKernel) -> Coregion | None:
    """The first `Coregion` with a key in a kernel; `None` if there is none."""
    parts = jax.tree.leaves(kernel, is_leaf=lambda part: isinstance(part, Coregion))
    return next((part for part in parts if isinstance(part, Coregion) and part.key is not None), None)
