"""What a kernel is: a similarity of two points, the matrices made of it, and the structure that it knows about itself."""

import abc
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import Array, Bool, Float, PyTree

from kernax.parameters import Parametrised, as_dtype
from kernax.rows import Functionals, Grid, Rows, as_rows, check_same_columns, row_dtype, take

if TYPE_CHECKING:
    from kernax.kernels._markov import MarkovProcess
    from kernax.kernels._trends import AbstractTrend


class AbstractKernel(Parametrised):
    """Base class of kernels: symmetric, positive semi-definite functions of two points.

    Splines are definite only up to their `trend`. A kernel of your own needs to define `pair` only. `gram` and `diag` follow
    from it; a kernel overrides them if there is a faster way to the same numbers. The methods `state_space`, `features`,
    `waves`, `axes` and `trend` say what structure a kernel has, and return `None` if it has none; solvers ask for the
    structure that they need.
    """

    if TYPE_CHECKING:
        # What a sum or a deep kernel is made of is known only when it is there: `model.kernel.kernels[0].variance`.
        def __getattr__(self, name: str) -> Any: ...

    # NumPy would otherwise take `array * kernel` apart, entry by entry.
    __array_ufunc__ = None

    @abc.abstractmethod
    def pair(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, ""]:
        """`k(a, b)` for two points."""

    def gram(self, x: Rows, z: Rows | None) -> Float[Array, "n m"]:
        """`k(x_i, z_j)` for all rows; `z = None` means `x` itself, and then the diagonal is exact."""
        other = x if z is None else z
        return jax.vmap(lambda a: jax.vmap(lambda b: self.pair(a, b))(other))(x)

    def diag(self, x: Rows) -> Float[Array, " n"]:
        """`k(x_i, x_i)` for all rows, in O(n)."""
        return jax.vmap(self.pair)(x, x)

    def gram_of_functionals(self, x: Functionals, z: Functionals) -> Float[Array, "n m"]:
        """The covariances of what rows observe: the matrix of all points, and its derivatives along the slopes."""
        return x.of(lambda points: z.of(lambda others: self.gram(points, others).T).T)

    def state_space(self) -> "MarkovProcess | None":
        """The kernel as a Markov process of one column, for `kx.StateSpace()`; `None` if it is not one."""
        return None

    def features(self, x: Rows) -> Float[Array, "n r"] | None:
        """Finitely many features with `k(a, b) = φ(a)·φ(b)`, at every row; `None` if there are none."""
        del x
        return None

    def waves(self, x: Rows, number: int, seed: tuple[int, ...]) -> tuple[Float[Array, "n m"], Float[Array, " m"]] | None:
        """Random waves of which the kernel is the mean, for `kx.RandomFeatures`; `None` if it is not one.

        **Arguments:**

        - `x`: rows.
        - `number`: how many waves, for each summand.
        - `seed`: whole numbers that determine what is drawn.

        **Returns:**

        Angles `θ_j(x_i)` and variances v, such that `Σ_j v_j cos(θ_j(a) - θ_j(b))` is `k(a, b)` in the mean over seeds and
        exactly `k(a, a)` for `b = a`.
        """
        del x, number, seed
        return None

    def coordinates(self, x: Rows) -> Float[Array, "n q"] | None:
        """Numbers for every row such that close rows are strongly correlated, for `kx.Vecchia()`; `None` if there are none.

        By default the features, whose distances are those of the functions `k(a, ·)`.
        """
        return self.features(x)

    def axes(self) -> "dict[int | str, AbstractKernel] | None":
        """The factors of a product over the axes of a `kx.Grid`, by axis; `None` if it is not such a product."""
        return None

    def check(self, x: Any, counts: Any = None) -> None:
        """Raise `ValueError` if the kernel does not know some rows, as far as that can be seen before tracing.

        By default all rows are known. A kernel of labels refuses those out of range; without it, JAX would take others.

        **Arguments:**

        - `x`: rows, as arrays of JAX or NumPy.
        - `counts`: if these are rows to learn from, which of them count: each label must be in one of them.
        """
        del x, counts

    def summands(self) -> "tuple[AbstractKernel, ...]":
        """The kernels of which this one is the sum; itself if it is not a sum."""
        return (self,)

    def trend(self) -> "AbstractTrend | None":
        """The functions that the kernel leaves free; `None` unless the kernel is conditionally definite (a spline)."""
        return None

    def definite(self, x: Rows, mask: Bool[Array, " n"]) -> "AbstractKernel":
        """A definite kernel that differs from this one only by what its `trend` explains: itself, unless it is a spline."""
        del x, mask
        return self

    def initialised(self, x: Rows, mask: Bool[Array, " n"], variance: Float[Array, ""]) -> "AbstractKernel":
        """This kernel with starting values that suit the data, for `kx.initialise`; by default unchanged."""
        del x, mask, variance
        return self

    def __call__(self, x: Any, z: Any = None) -> Float[Array, "n m"]:
        """The Gram matrix of `x`, or the cross-Gram matrix of `x` and `z`, in their floating type."""
        x = take(as_rows(x, "x"))
        self.check(x)
        if z is None:
            return as_dtype(self, row_dtype(x)).gram(x, None)
        z = take(as_rows(z, "z"))
        check_same_columns(z, x, "z", "x")
        self.check(z)
        return as_dtype(self, row_dtype(x, z)).gram(x, z)

    def __add__(self, other: Any) -> "AbstractKernel":
        from kernax.kernels._algebra import added

        return added(self, other)

    def __mul__(self, other: Any) -> "AbstractKernel":
        from kernax.kernels._algebra import multiplied

        return multiplied(self, other)

    def __pow__(self, exponent: Any) -> "AbstractKernel":
        from kernax.kernels._algebra import Power

        return Power(self, exponent)

    __radd__ = __add__
    __rmul__ = __mul__


def check_rows(kernel: AbstractKernel, x: Any, counts: Any = None) -> None:
    """`kernel.check` of rows that may be a `kx.Grid`."""
    if type(kernel).check is not AbstractKernel.check:
        kernel.check(x.with_labels() if isinstance(x, Grid) else x, counts)
