"""What every solver is: it prepares a System, and says what it needs and what it can answer."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Bool, Float

from kernax.grams import AbstractGram
from kernax.rows import Rows
from kernax.solvers._system import AbstractSystem


class AbstractSolver(eqx.Module):
    """Base class of solvers for `A = K + noise·I`. Pass a configured instance, such as `kx.Eigh()`.

    A solver of your own defines `prepare`.
    """

    suits_machines: ClassVar[bool] = False
    """Whether kernel machines accept it. They factorise matrices of their own, with its `max_jitter`."""

    @abc.abstractmethod
    def prepare(self, gram: AbstractGram, noise: Float[Array, "*n"]) -> AbstractSystem:
        """Prepare the System of a kernel matrix and a noise.

        **Arguments:**

        - `gram`: K over rows, not evaluated, from `kernax.grams.gram_of`.
        - `noise`: one number, or one for each row. It is finite.

        **Returns:**

        A System. Its `result` is the status of the preparation: no error is raised because of numerical values.
        """

    def prepare_again(self, system: Any, noise: Float[Array, "*n"]) -> AbstractSystem:
        """Prepare the System of the same kernel matrix for another noise, reusing what does not depend on the noise.

        Likelihoods that are not normal need it in every step.

        **Arguments:**

        - `system`: a System that this solver has prepared.
        - `noise`: another noise, in the shape of that System's noise.

        **Returns:**

        A System.
        """
        again = system.shifted(noise)
        return self.prepare(system.gram, noise) if again is None else again

    def check(self, x: Rows, mask: Bool[Array, " n"]) -> None:
        """Raise an error if rows with this mask cannot be solved, as far as that can be checked before tracing.

        **Arguments:**

        - `x`: rows.
        - `mask`: which of them count.
        """
        del x, mask

    def check_equal_rows(self, number: int, noise: Any, num_free: int) -> None:
        """Raise if data that consist of equal rows cannot be solved.

        **Arguments:**

        - `number`: rows that count; at least 2.
        - `noise`: the noise, as one number or an array; `None` if it is a function, or traced.
        - `num_free`: how many functions the model leaves free.
        """
        del number, noise, num_free

    def bytes_needed(self, n: int, itemsize: int, *, gradient: bool = False) -> int | None:
        """The least memory that conditioning on n rows takes, in bytes, if it grows with n²; `None` for other solvers.

        **Arguments:**

        - `n`: rows, masked ones included.
        - `itemsize`: bytes of a number: 8 in float64.
        - `gradient`: whether the likelihood is computed with its gradient, as in a fit.

        **Returns:**

        A number of bytes, or `None`. `condition` and `fit` raise `MemoryError` if so much memory is not available.
        """
        del n, itemsize, gradient
        return None

    def largest_matrix(self, n: int) -> int:
        """The size of the largest matrix that the solver factorises. Small matrices get one BLAS thread.

        **Arguments:**

        - `n`: the number of rows of data.

        **Returns:**

        The number of rows of that matrix.
        """
        return n

    @property
    def solves(self) -> bool:
        """Whether its Systems solve for right-hand sides; false if they only estimate the likelihood and predict."""
        return True

    needs_every_row: ClassVar[bool] = False
    """Whether it needs all rows to count. As a preconditioner it then uses the System of all rows."""

    matrix_of_each_axis: ClassVar[bool] = False
    """Whether its matrices are those of the axes of a grid. `bytes_needed` is then asked for the longest axis."""

    @property
    def needs_grid(self) -> bool:
        """Whether the rows must be a `kx.Grid`. Batches pad datasets with rows, and so turn grids into rows."""
        return self.needs_every_row

    num_refreshes: ClassVar[int] = 0
    """How many times `fit` repeats the data-dependent choices, with the parameters reached by then."""

    def prepare_along(self, gram: AbstractGram, noise: Float[Array, " n"], axis: int) -> AbstractSystem:
        """`prepare`, for rows that are a grid and a noise that depends on this axis alone."""
        del axis
        return self.prepare(gram, noise)

    def settled(self, gram: AbstractGram, part: int | None = None) -> "AbstractSolver":
        """This solver with its data-dependent choices (inducing rows, neighbours) made, so that they do not change in a fit.

        **Arguments:**

        - `gram`: K over the rows, with the current parameters.
        - `part`: if given, the likelihood may be estimated from about this many random rows, if the solver supports it.
          Early rounds of a fit use this.

        **Returns:**

        A solver.
        """
        del gram, part
        return self


_OFFERS = {
    "the diagonal of the inverse": "kx.Cholesky() (or Eigh, LowRank, StateSpace, Kronecker, Vecchia)",
    "another noise from the same factorisation": "kx.Eigh() (or LowRank, StateSpace, Kronecker) and one noise for all rows",
    "the eigenvalues of the kernel matrix": "kx.Eigh() (or LowRank, Kronecker) and one noise for all rows",
    "predictions of the form k(x, X) alpha": "kx.Cholesky() (or Eigh, StateSpace, Kronecker)",
    "new rows from the same factorisation": "kx.Cholesky() (or StateSpace), or condition on all rows again",
}


def offered(answer: Any, solver: Any, quantity: str, what: str) -> Any:
    """Return an optional result of a System, or raise an error that names the remedy.

    **Arguments:**

    - `answer`: the result; `None` if the System cannot compute it.
    - `solver`: the solver that prepared the System.
    - `quantity`: what the user called, for the message.
    - `what`: which result it needs, one of a few phrases.

    **Returns:**

    The result. Raises `TypeError` if it is `None`.
    """
    if answer is None:
        remedy = _OFFERS[what].replace("Kronecker", "Kronecker if every cell counts") if solver.needs_grid else _OFFERS[what]
        raise TypeError(
            f"{quantity} needs {what}, which {type(solver).__name__} does not offer here: condition with {remedy}."
        )
    return answer
