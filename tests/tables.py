"""What the laws are tested over: every kernel, solver and floating type."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx


class Tent(kx.AbstractKernel):
    """A kernel of a user's own: `max(0, 1 - |a_0 - b_0|/width)`."""

    width: jax.Array = kx.positive(default=2.0)

    def pair(self, a, b):
        return jnp.maximum(0.0, 1.0 - jnp.abs(a[0] - b[0]) / self.width)


def _side(a):
    """A label."""
    return (a[0] > 0).astype(int)


def _features(a):
    return jnp.stack([a[0], a[1], a[0] * a[1]])


KERNELS = {
    "rbf": kx.RBF(lengthscale=0.8),
    "rbf_ard": kx.RBF(lengthscale=[0.7, 1.9]),
    "matern12": kx.Matern12(lengthscale=1.2),
    "matern32": kx.Matern32(lengthscale=[0.9, 1.4]),
    "matern52": kx.Matern52(lengthscale=1.1),
    "matern": kx.Matern(lengthscale=[0.9, 1.4], nu=1.7),
    "rational_quadratic": kx.RationalQuadratic(lengthscale=0.9, alpha=0.6),
    "periodic": kx.Periodic(lengthscale=[0.8, 1.3], period=[1.7, 2.3]),
    "cosine": kx.Cosine(period=1.9),
    "sho": kx.Select(kx.kernels.SHO(period=1.7, quality=0.8), columns=1),
    "linear": kx.Linear(variance=[0.5, 2.0]),
    "polynomial": kx.Polynomial(degree=3, scale=0.4, offset=0.7),
    "constant": kx.Constant(variance=1.6),
    "sum": 1.5 * kx.RBF() + kx.Linear() + 0.3,
    "product": kx.Matern52() * kx.Periodic(period=3.0),
    "power": (0.6 * kx.RBF() + 0.2) ** 2,
    "select": kx.Select(kx.RBF(lengthscale=0.5), columns=1),
    "warp": kx.Warp(kx.RBF(), eqx.nn.MLP(2, 3, 4, 1, activation=jnp.tanh, key=jax.random.key(1))),
    "feature_map": kx.FeatureMap(_features),
    "coregion": kx.Warp(kx.kernels.Coregion(2, key=None), _side),
    "random_features": kx.RandomFeatures(1.4 * kx.Matern32(lengthscale=[0.9, 1.4]), 5),
    "arc_cosine_0": kx.ArcCosine(order=0, weight_variance=[0.7, 1.6], bias_variance=0.4),
    "arc_cosine_1": kx.ArcCosine(order=1, weight_variance=0.8, bias_variance=0.0),
    "arc_cosine_2": kx.ArcCosine(order=2, weight_variance=[0.3, 0.2], bias_variance=0.2),
    "nngp_relu": kx.NNGP(depth=2, weight_variance=1.7, bias_variance=[0.2, 0.1, 0.3]),
    "ntk_relu": kx.NTK(depth=1, weight_variance=[1.5, 1.9], bias_variance=0.3),
    "ntk_erf": kx.NTK(depth=1, activation=kx.kernels.Erf(), weight_variance=1.4, bias_variance=0.5),
    "white": kx.kernels.White(variance=0.7),
    "wendland": kx.kernels.Wendland(lengthscale=[1.4, 2.5], smoothness=2, columns=2),
    "change_point": kx.kernels.ChangePoint(kx.RBF(), 0.7 * kx.Matern52(), location=0.2, width=0.4, column=1),
    "gibbs": kx.kernels.Gibbs(eqx.nn.MLP(2, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(2))),
    "spectral_mixture": kx.kernels.SpectralMixture([0.7, 0.4], [[0.3, 0.1], [0.9, 0.5]], [[0.2, 0.1], [0.1, 0.3]]),
    "additive": kx.kernels.Additive([kx.RBF(0.8), kx.Matern52()], 2, variance=[0.6, 0.9]),
    "orthogonal_additive": kx.kernels.OrthogonalAdditive(
        [kx.RBF(0.8), kx.Matern52()], 2, inputs=[kx.kernels.NormalInputs(0.2, 1.1), kx.kernels.PointInputs([-1.0, 0.3, 1.0])]
    ),
    "zero_mean": kx.Select(kx.kernels.ZeroMean(kx.RBF(0.8), kx.kernels.NormalInputs()), columns=1),
    "sphere": kx.kernels.Sphere(kx.RBF(0.01)),
    "own": Tent(),
}
SOLVERS = {"cholesky": kx.Cholesky(), "eigh": kx.Eigh()}
TOLERANCES = {np.float32: 2e-4, np.float64: 1e-10}


def points(n: int, seed: int = 0, d: int = 2) -> np.ndarray:
    """Random rows, two of them equal."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    x[-1] = x[0]
    return x


def targets(x: np.ndarray, seed: int = 1) -> np.ndarray:
    """A smooth function of the rows with noise."""
    return np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.2 * np.random.default_rng(seed).normal(size=len(x))


def gradient_by_differences(function, vector: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function of a vector."""
    answer = np.zeros_like(vector)
    for i in range(len(vector)):
        move = np.zeros_like(vector)
        move[i] = step
        answer[i] = (float(function(vector + move)) - float(function(vector - move))) / (2 * step)
    return answer


# The Systems of every solver, on data that suits each: a line of times, or a grid.

TIMES = np.random.default_rng(5).permutation(np.linspace(0.0, 5.0, 12))[:, None]
VALUES = np.sin(TIMES[:, 0]) + 0.2 * np.random.default_rng(6).normal(size=12)
AXES = (np.array([[0.0], [0.7], [1.9], [2.4]]), np.array([[0.2], [0.9], [1.5]]))
CELLS = np.random.default_rng(7).normal(size=12)


@dataclasses.dataclass(frozen=True)
class SystemCase:
    """A solver, a kernel that it takes, and the data."""

    solver: Any
    kernel: Any
    x: Any
    y: np.ndarray
    new: Any
    trend: Any = 1
    is_exact: bool = True
    """Whether second derivatives are those of the dense matrix."""
    has_inverse: bool = True
    can_shift: bool = True
    tolerance: float = 1e-9

    @property
    def is_grid(self) -> bool:
        return isinstance(self.x, kx.Grid)

    def model(self, noise=None, trend=None) -> kx.Model:
        return kx.Model(self.kernel, noise=0.2 if noise is None else noise, trend=trend)

    def data(self, y=None, dtype=None) -> kx.Data:
        x, y = self.x, self.y if y is None else y
        if dtype is not None:
            x, y = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), x), np.asarray(y, dtype)
        return kx.Data(x, y)

    def scalar(self, c) -> jax.Array:
        """One number that depends on evidence, mean, variance and leave-one-out."""
        value = (
            kx.log_marginal_likelihood(c) + jnp.sum(jnp.sin(kx.mean(c, self.new))) + jnp.sum(kx.variance(c, self.new) ** 2)
        )
        return value + kx.loo_mse(c) if self.has_inverse else value

    def dense_scalar(self, model) -> jax.Array:
        """The same by a dense inverse, which JAX differentiates by itself."""
        x, new = (kx.rows.take(kx.rows.as_rows(rows, "x")) for rows in (self.x, self.new))
        y, n = jnp.asarray(self.y), self.y.shape[0]
        inverse = jnp.linalg.inv(pairs(model.kernel, x, x) + model.noise * jnp.eye(n))
        cross, alpha = pairs(model.kernel, x, new), inverse @ y
        sign_and_log = jnp.linalg.slogdet(inverse)
        value = -0.5 * y @ alpha + 0.5 * sign_and_log[1] - 0.5 * n * jnp.log(2 * jnp.pi)
        prior = jax.vmap(model.kernel.pair)(new, new)
        value = (
            value + jnp.sum(jnp.sin(cross.T @ alpha)) + jnp.sum((prior - jnp.sum(cross * (inverse @ cross), axis=0)) ** 2)
        )
        return value + jnp.mean((alpha / jnp.diagonal(inverse)) ** 2) if self.has_inverse else value


def pairs(kernel, x, z) -> jax.Array:
    """The Gram matrix by its definition, pair by pair."""
    return jax.vmap(lambda a: jax.vmap(lambda b: kernel.pair(a, b))(z))(x)


@eqx.filter_jit
def _matrices(kernel, x, new) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The Gram matrices of rows, of rows with new ones, and of new ones, in one program."""
    return pairs(kernel, x, x), pairs(kernel, x, new), pairs(kernel, new, new)


def _wave(point):
    """A function that no kernel of the table has among its features."""
    return jnp.stack([jnp.sin(3.0 * point[0])])


_LINE = {
    "kernel": 1.3 * kx.Matern32(lengthscale=0.8),
    "x": TIMES,
    "y": VALUES,
    "new": np.array([[-0.5], [1.1], [2.5], [6.0]]),
}
_GRID = {
    "kernel": 1.3 * kx.Select(kx.RBF(lengthscale=0.8), axis=0) * kx.Select(kx.Matern32(lengthscale=1.1), axis=1),
    "x": kx.Grid(AXES),
    "y": CELLS,
    "new": (np.array([[0.1], [1.2], [3.0]]), np.array([[0.3], [1.0], [0.2]])),
    "trend": lambda point: jnp.stack([jnp.ones(()), point[0][0], point[1][0]]),
}
SYSTEMS = {
    "cholesky": SystemCase(kx.Cholesky(), **_LINE, can_shift=False),
    "eigh": SystemCase(kx.Eigh(), **_LINE),
    "state_space": SystemCase(kx.StateSpace(), **_LINE),
    "kronecker": SystemCase(kx.Kronecker(), **_GRID),
    "low_rank": SystemCase(kx.LowRank(12), **_LINE, tolerance=1e-7),
    "features": SystemCase(kx.LowRank(), **(_LINE | {"kernel": 0.7 * kx.Linear() + 0.4 * kx.Constant()}), trend=_wave),
    "vecchia": SystemCase(kx.Vecchia(20), **_LINE, can_shift=False),
    "vecchia_blocks": SystemCase(kx.Vecchia(20, block=5, ordering="maxmin"), **_LINE, can_shift=False),
    "cg": SystemCase(kx.CG(), **_LINE, has_inverse=False, can_shift=False, is_exact=False, tolerance=1e-5),
}


class Oracle(NamedTuple):
    evidence: Any
    mean: Any
    variance: Any
    covariance: Any
    loo: Any


def dense_oracle(kernel, noise, x, y, new, trend=None) -> Oracle:
    """Plain NumPy, by the inverse of the whole (bordered) matrix."""
    x, new = (kx.rows.take(kx.rows.as_rows(rows, "x")) for rows in (x, new))
    own, cross, prior = map(np.asarray, _matrices(kernel, x, new))
    n, matrix = len(y), own + noise * np.eye(len(y))
    contrasts, whole, right = np.eye(n), matrix, y
    if trend is not None:
        p, q = (_functions(trend, rows) for rows in (x, new))
        free = p.shape[1]
        whole = np.block([[matrix, p], [p.T, np.zeros((free, free))]])
        right, cross = np.append(y, np.zeros(free)), np.concatenate([cross, q.T])
        contrasts = np.linalg.qr(p, mode="complete")[0][:, free:]
    inverse = np.linalg.inv(whole)
    solved, seen = inverse @ right, contrasts.T @ y
    projected = contrasts.T @ matrix @ contrasts
    evidence = -0.5 * (seen @ np.linalg.solve(projected, seen) + np.linalg.slogdet(projected)[1])
    evidence -= 0.5 * len(seen) * np.log(2 * np.pi)
    covariance = prior - cross.T @ inverse @ cross
    return Oracle(evidence, cross.T @ solved, np.diag(covariance), covariance, solved[:n] / np.diag(inverse)[:n])


def _functions(trend, x) -> np.ndarray:
    if callable(trend):
        return np.asarray(jax.vmap(trend)(x))
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


def garbage(x, y) -> kx.Data:
    """The rows with others between and behind them, NaN among these, that do not count."""
    where = np.array([0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 13, 15])[: len(y)]
    rows, values, mask = np.full((17, x.shape[1]), np.nan), np.full(17, 1e30), np.zeros(17, bool)
    rows[where], values[where], mask[where] = x, y, True
    rows[16] = -1e8
    return kx.Data(rows, values, mask)


def second_derivatives(ours, plain, vector, rtol=1e-9, *, first_only=False) -> None:
    """Compare value, slope and curvature along a direction: forward over reverse, reverse twice, and forward alone."""
    direction = jnp.cos(jnp.arange(vector.size, dtype=vector.dtype))

    def along(function):
        return lambda v: jax.jvp(function, (v,), (direction,))[1]

    def by_reverse(function):
        return lambda v: jnp.vdot(jax.grad(function)(v), direction)

    def values_and_slopes(function):
        return lambda v: jax.jvp(jax.value_and_grad(function), (v,), (direction,))

    @jax.jit
    def program(v):
        # The value that comes out of a gradient is differentiable, too.
        (value, gradient), (of_value, forward_of_reverse) = values_and_slopes(ours)(v)
        slopes = jnp.stack([along(ours)(v), of_value])
        if first_only:
            return value, gradient, slopes, jnp.zeros(0)
        return value, gradient, slopes, jnp.stack([forward_of_reverse @ direction, by_reverse(by_reverse(ours))(v)])

    value, gradient, forward, curvatures = program(vector)
    (expected, slope), (_, bent) = jax.jit(values_and_slopes(plain))(vector)
    curvature = jnp.vdot(bent, direction)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(forward, jnp.broadcast_to(jnp.vdot(slope, direction), 2), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(curvatures, jnp.broadcast_to(curvature, curvatures.shape), rtol=10 * rtol, atol=10 * rtol)
