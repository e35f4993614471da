"""The base class of kernels: functions of two points, their matrices, and the structure that solvers can use."""

import abc
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import Array, Bool, Float, PyTree

from kernax._forms import try_one_row
from kernax._functionals import functionals_in
from kernax.parameters import Parametrised, as_dtype
from kernax.rows import Functionals, Grid, Rows, as_rows, check_same_columns, row_dtype, take

if TYPE_CHECKING:
    from kernax.kernels._markov import MarkovProcess
    from kernax.kernels._trends import AbstractTrend


class AbstractKernel(Parametrised):
    """Base class of kernels: symmetric, positive semi-definite functions of two points.

    A kernel of your own needs to define `pair` only. `gram` and `diag` follow from it; override them if there is a faster
    way to the same numbers. The methods `state_space`, `features`, `waves`, `axes` and `trend` describe structure that
    solvers can use, and return `None` for a kernel without it. (Splines are definite only together with their `trend`.)
    """

    if TYPE_CHECKING:
        # What a sum or a deep kernel is made of is known only when it is there: `model.kernel.kernels[0].variance`.
        def __getattr__(self, name: str) -> Any: ...

    # NumPy would otherwise take `array * kernel` apart, entry by entry.
    __array_ufunc__ = None

    @abc.abstractmethod
    def pair(self, a: PyTree[Array], b: PyTree[Array]) -> Float[Array, ""]:
        """The kernel of two points, `k(a, b)`.

        **Arguments:**

        - `a`, `b`: two points: vectors, or structures of arrays.

        **Returns:**

        One number.
        """

    def gram(self, x: Rows, z: Rows | None) -> Float[Array, "n m"]:
        """The kernel of all pairs of rows, `k(x_i, z_j)`.

        **Arguments:**

        - `x`: rows.
        - `z`: other rows. `None` means `x` itself; the diagonal is then exact.

        **Returns:**

        A matrix of shape `(n, m)`.
        """
        other = x if z is None else z
        return jax.vmap(lambda a: jax.vmap(lambda b: self.pair(a, b))(other))(x)

    def diag(self, x: Rows) -> Float[Array, " n"]:
        """The kernel of each row with itself, `k(x_i, x_i)`, in O(n).

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array of shape `(n,)`.
        """
        return jax.vmap(self.pair)(x, x)

    def gram_of_functionals(self, x: Functionals, z: Functionals) -> Float[Array, "n m"]:
        """The covariances of observed values, slopes and averages: the matrix of all points, and its derivatives.

        **Arguments:**

        - `x`, `z`: rows from `kx.observe`.

        **Returns:**

        A matrix of shape `(n, m)`.
        """
        return x.of(lambda points: z.of(lambda others: self.gram(points, others).T).T)

    def state_space(self) -> "MarkovProcess | None":
        """The kernel as a Markov process of one column, for `kx.StateSpace()`.

        **Returns:**

        A `MarkovProcess`; `None` if the kernel is not a Markov process.
        """
        return None

    def features(self, x: Rows) -> Float[Array, "n r"] | None:
        """A finite number of features φ with `k(a, b) = φ(a)·φ(b)`.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        The features of every row, `(n, r)`; `None` if the kernel has no such features.
        """
        del x
        return None

    def waves(self, x: Rows, number: int, seed: tuple[int, ...]) -> tuple[Float[Array, "n m"], Float[Array, " m"]] | None:
        """Random waves whose mean is the kernel, for `kx.RandomFeatures`.

        **Arguments:**

        - `x`: rows.
        - `number`: how many waves, for each summand.
        - `seed`: whole numbers that determine what is drawn.

        **Returns:**

        Angles `θ_j(x_i)` and variances v, such that `Σ_j v_j cos(θ_j(a) - θ_j(b))` is `k(a, b)` in the mean over seeds and
        exactly `k(a, a)` for `b = a`. `None` if the kernel is not a mean of waves.
        """
        del x, number, seed
        return None

    def coordinates(self, x: Rows) -> Float[Array, "n q"] | None:
        """Coordinates of every row such that rows close to each other are strongly correlated, for `kx.Vecchia()`.

        By default these are the features, whose distances are those of the functions `k(a, ·)`.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        An array of shape `(n, q)`; `None` if the kernel has no coordinates.
        """
        return self.features(x)

    def axes(self) -> "dict[int | str, AbstractKernel] | None":
        """The factors of a kernel that is a product over the axes of a `kx.Grid`.

        **Returns:**

        A dict with a kernel for each axis; `None` if the kernel is not such a product.
        """
        return None

    def check(self, x: Any, counts: Any = None) -> None:
        """Raise `ValueError` if the kernel does not accept some rows, as far as that can be checked before tracing.

        By default all rows are accepted. A kernel of labels refuses labels that are out of range; without this check, JAX
        would silently use other labels.

        **Arguments:**

        - `x`: rows, as arrays of JAX or NumPy.
        - `counts`: for training rows, which of them count (the mask): each label must then occur in one of them.
        """
        del x, counts

    def summands(self) -> "tuple[AbstractKernel, ...]":
        """The kernels whose sum this kernel is.

        **Returns:**

        A tuple of kernels; the kernel itself if it is not a sum.
        """
        return (self,)

    def trend(self) -> "AbstractTrend | None":
        """The functions that the kernel leaves free: their coefficients have no prior.

        **Returns:**

        A trend; `None` unless the kernel is conditionally definite (a spline).
        """
        return None

    def definite(self, x: Rows, mask: Bool[Array, " n"]) -> "AbstractKernel":
        """A positive definite kernel that differs from this one only by functions of its `trend`.

        **Arguments:**

        - `x`: rows.
        - `mask`: which rows count.

        **Returns:**

        A kernel; the kernel itself unless it is a spline.
        """
        del x, mask
        return self

    def initialised(self, x: Rows, mask: Bool[Array, " n"], variance: Float[Array, ""]) -> "AbstractKernel":
        """This kernel with starting values that suit the data, for `kx.initialise`. By default it is unchanged.

        **Arguments:**

        - `x`: rows.
        - `mask`: which rows count.
        - `variance`: the variance that the functions should have, one number.

        **Returns:**

        A kernel of the same structure.
        """
        del x, mask, variance
        return self

    def __call__(self, x: Any, z: Any = None) -> Float[Array, "n m"]:
        """The kernel matrix of `x`, or of `x` and `z`, in their floating type.

        **Arguments:**

        - `x`: rows, `(n, d)`.
        - `z`: other rows, `(m, d)`; `x` itself if not given.

        **Returns:**

        A matrix of shape `(n, n)` or `(n, m)`.
        """
        x = take(as_rows(x, "x"))
        check_rows(self, x)
        if z is None:
            return as_dtype(self, row_dtype(x)).gram(x, None)
        z = take(as_rows(z, "z"))
        check_same_columns(z, x, "z", "x")
        check_rows(self, z)
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


def check_is_kernel(value: Any, name: str) -> None:
    """Raise `TypeError` if the value of this name is not a kernel."""
    if not isinstance(value, AbstractKernel):
        hint = " (write it with parentheses: an instance, not the class)" if isinstance(value, type) else ""
        raise TypeError(f"{name} must be a kernax kernel, got {value!r}{hint}.")


def check_rows(kernel: AbstractKernel, x: Any, counts: Any = None) -> None:
    """`kernel.check` of rows that may be a `kx.Grid`. Raise `ValueError` if rows are a structure and the kernel takes only
    an array."""
    if type(kernel).check is not AbstractKernel.check:
        kernel.check(x.with_labels() if isinstance(x, Grid) else x, counts)
    parts = x
    if isinstance(x, Grid):
        parts = x.axes if x.names is None else dict(zip(x.names, x.axes, strict=True))
    if not isinstance(parts, dict | tuple | list) or functionals_in(parts):
        return  # what rows of kx.observe need is said where a model is checked
    try:
        try_one_row(_of_one_row, kernel, parts)
    except (AttributeError, IndexError, TypeError) as error:
        shown, place = f"a tuple of {len(parts)} parts", "axis=0"
        if isinstance(parts, dict):
            key = "x" if "x" in parts else next(iter(parts))
            shown, place = f"a dict with the keys {sorted(parts)}", f"key={key!r}"
        raise ValueError(
            f"a row is {shown}, and {kernel!r} does not take such rows: choose the part that each kernel uses, such as "
            f"kx.Select(kernel, {place})."
        ) from error


def _of_one_row(kernel: AbstractKernel, row: Any) -> Any:
    return kernel.pair(row, row)
