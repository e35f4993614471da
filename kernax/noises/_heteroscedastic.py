"""Noise that varies smoothly with the inputs: its logarithm is a function of the row."""

import dataclasses
import hashlib
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kernax._arrays import is_concrete, matmul
from kernax._forms import form_of, try_one_row
from kernax.kernels import AbstractKernel, Matern52, Select
from kernax.noises._sums import AbstractNoise
from kernax.parameters import Parameter, Parametrised, as_dtype, as_function, positive, real
from kernax.parameters._fields import Setting
from kernax.priors import Normal
from kernax.rows import as_rows, check_same_columns, functionals_in, num_rows, take

_ROUNDING = 1e-6
"""Added to the diagonal of the anchors' kernel matrix, relative to its mean: anchors may be close to each other."""


class Heteroscedastic(AbstractNoise):
    """Noise whose size depends on the inputs: `variance · exp(f(row))`, kept within bounds.

    The formula is `variance · (floor + 1/(floor + exp(-f)))`. The noise is at least `variance · floor`, so it cannot
    collapse to 0 where the mean passes through a few targets by chance. It is at most slightly more than `variance / floor`.

    **Arguments:**

    - `function`: f, the logarithm of the noise variance in units of `variance`, as a function of one row: an Equinox module,
      such as [`kernax.noises.Interpolant`][] or a network that returns one number (`eqx.nn.MLP(…, out_size="scalar")`).
      Its parameters are fitted with the rest.
    - `variance`: the noise variance where f is 0. It is fitted, too; [`kernax.initialise`][] sets it.
    - `floor`: the bound, between 0 and 1. With 0.01 the standard deviation can be 10 times smaller or larger.
    """

    function: Any = eqx.field(converter=as_function)
    variance: Float[Parameter, ""] = positive(default=0.1, scalar=True, unit="y²")
    floor: float = eqx.field(static=True, default=0.01)

    def __check_init__(self):
        if isinstance(self.function, AbstractKernel):
            raise TypeError(
                "Heteroscedastic takes a function of one row, and a kernel is a function of two: write "
                f"noises.Heteroscedastic(noises.Interpolant(anchors, {self.function!r})), with rows for anchors."
            )
        if not isinstance(self.floor, float) or not 0 < self.floor < 1:
            raise ValueError(f"Heteroscedastic.floor must be a number between 0 and 1, got {self.floor!r}.")

    def __call__(self, row: Any) -> Float[Array, ""]:
        logarithm = jnp.asarray(self.function(row))
        if logarithm.shape != ():
            raise ValueError(
                f"Heteroscedastic.function must return one number for a row, got shape {logarithm.shape}: write "
                'out_size="scalar" for a network of Equinox, or take the number out, such as values[0].'
            )
        # 1/(floor + exp(-f)) without overflow.
        return self.variance * (self.floor + jax.nn.sigmoid(logarithm + math.log(self.floor)) / self.floor)

    def check(self, x: Any) -> None:
        """Raise `ValueError` if the function does not take such rows, or does not return one number for each."""
        if functionals_in(x):
            raise ValueError("Heteroscedastic needs plain rows: for rows of kx.observe, write kx.observe.Noise.")
        if hasattr(self.function, "check"):
            self.function.check(x)
        try_one_row(Heteroscedastic.__call__, self, x)

    def initialised(self, variance):
        return eqx.tree_at(lambda noise: noise.variance, self, variance)


class Interpolant(Parametrised):
    """A smooth function of the row: values at a few anchors, interpolated by a kernel.

    `f(row) = k(row, A) L⁻ᵀ w` with `L Lᵀ = k(A, A)` and independent standard normal weights w. So the prior of the values at
    the anchors A, which are `L w`, is the Gaussian process with this kernel. The prior of w is part of the model: `kx.fit`
    finds the mode of the posterior. Far from all anchors, f is 0.

    **Arguments:**

    - `anchors`: rows at which the values are given, `(m, d)`. More anchors allow a function with more bends.
    - `kernel`: the prior covariance of the function. Its parameters are not fitted. By default `4.0 * kx.Matern52(…)` with a
      lengthscale that suits the anchors. For the logarithm of a noise variance this means that the standard deviation of the
      noise varies by a factor of about e.
    - `key`, `columns`: which part of each row the function uses; all of it if not given. See [`kernax.Select`][]. The
      anchors have that part only.
    """

    anchors: "Anchors" = eqx.field(static=True)
    weights: Float[Parameter, " m"] = real()
    """w, which is fitted."""

    def __init__(self, anchors: Any, kernel: AbstractKernel | None = None, *, key: str | None = None, columns: Any = None):
        self.anchors = _anchors(anchors, kernel, key, columns)
        self.weights = jnp.zeros(len(self.anchors.whitening))
        self.settings = (("weights", Setting(prior=Normal())),)

    def __call__(self, row: Any) -> Float[Array, ""]:
        """The value of the function at one row.

        **Arguments:**

        - `row`: one row.

        **Returns:**

        One number.
        """
        known, part = self.anchors, self.anchors.seen(row)
        kernel, rows, whitening = as_dtype(
            jax.tree.map(jnp.asarray, (known.kernel, known.rows, known.whitening)), self.weights.dtype
        )
        similarities = jax.vmap(lambda anchor: kernel.pair(part, anchor))(rows)
        return jnp.sum(similarities * matmul(whitening, self.weights))

    def check(self, x: Any) -> None:
        """Raise `ValueError` if the rows have other columns than the anchors.

        **Arguments:**

        - `x`: rows.

        **Returns:**

        `None`.
        """
        check_same_columns(
            jax.eval_shape(self.anchors.seen, form_of(x)), self.anchors.rows, "x", "the anchors of noises.Interpolant"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Anchors:
    """The fixed part of a [`kernax.noises.Interpolant`][], which creates it. It has no parameters.

    **Arguments:**

    - `rows`: the anchors, `(m, d)`.
    - `kernel`: the kernel that interpolates between them.
    - `view`: which part of a row the kernel sees; all of it if `None`.
    - `whitening`: the matrix `L⁻ᵀ` with `L Lᵀ = k(A, A)`.
    - `digest`: a hash of the numbers above, by which two of these objects are compared.
    """

    rows: Any
    kernel: AbstractKernel
    view: Select | None
    whitening: np.ndarray
    digest: str

    def seen(self, row: Any) -> Any:
        """The part of each row that is compared with the anchors.

        **Arguments:**

        - `row`: one row, or several.

        **Returns:**

        That part, in the same structure.
        """
        return row if self.view is None else self.view.view(row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Anchors) or self.digest != other.digest:
            return False
        return jax.tree.structure((self.kernel, self.view)) == jax.tree.structure((other.kernel, other.view))

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self):
        return f"{num_rows(self.rows)} rows"


def _anchors(rows: Any, kernel: AbstractKernel | None, key: str | None, columns: Any) -> Anchors:
    rows = take(as_rows(rows, "noises.Interpolant.anchors"))
    if kernel is None:
        kernel = _kernel_for(rows)
    if not isinstance(kernel, AbstractKernel) or kernel.trend() is not None:
        raise TypeError(f"noises.Interpolant needs a kernel that is not a spline, got {kernel!r}.")
    if not all(is_concrete(leaf) for leaf in jax.tree.leaves((rows, kernel))):
        raise TypeError(
            "noises.Interpolant factorises the kernel matrix of its anchors when it is made, so it must be made outside of "
            "jit, vmap and grad."
        )
    matrix = np.asarray(kernel(rows), np.float64)
    rounding = _ROUNDING * np.mean(np.diag(matrix)) * np.eye(len(matrix))
    try:
        whitening = np.linalg.inv(np.linalg.cholesky(matrix + rounding)).T
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"the matrix of {kernel!r} at the anchors is not positive definite: give another kernel."
        ) from error
    view = None if key is None and columns is None else Select(kernel, columns, key=key)
    # As NumPy arrays: what is part of the structure of a compiled program must not be on a device.
    held_rows, held_kernel, held_view = jax.tree.map(np.asarray, (rows, kernel, view))
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((held_rows, held_kernel)):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
    return Anchors(held_rows, held_kernel, held_view, whitening, digest.hexdigest())


def _kernel_for(rows: Any) -> AbstractKernel:
    if not eqx.is_array(rows):
        raise ValueError("noises.Interpolant needs a kernel for anchors that are not one (m, d) array: give kernel=.")
    one = jnp.ones(())
    kernel = Matern52(one if rows.shape[1] == 1 else jnp.ones(rows.shape[1]))
    return 4.0 * kernel.initialised(rows, jnp.ones(len(rows), bool), one)
