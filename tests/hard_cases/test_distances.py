"""Distances and their derivatives where the inputs span many lengthscales."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernax as kx
from kernax.kernels import _distances

RNG = np.random.default_rng(45)


def matern12_slope(s):
    r = np.sqrt(s)
    return np.where(s > 0, -0.5 * np.exp(-r) / np.where(s > 0, r, 1.0), 0.0)


# For each kernel: its value and its slope as functions of the scaled squared distance.
KERNELS = {
    kx.RBF: (lambda s: np.exp(-s / 2), lambda s: -0.5 * np.exp(-s / 2)),
    kx.Matern12: (lambda s: np.exp(-np.sqrt(s)), matern12_slope),
    kx.Matern32: (lambda s: (1 + np.sqrt(3 * s)) * np.exp(-np.sqrt(3 * s)), lambda s: -1.5 * np.exp(-np.sqrt(3 * s))),
    kx.Matern52: (
        lambda s: (1 + np.sqrt(5 * s) + 5 * s / 3) * np.exp(-np.sqrt(5 * s)),
        lambda s: -5 / 6 * (1 + np.sqrt(5 * s)) * np.exp(-np.sqrt(5 * s)),
    ),
    kx.RationalQuadratic: (lambda s: 1 / (1 + s / 2), lambda s: -0.5 / (1 + s / 2) ** 2),
}


def name(value):
    return getattr(value, "__name__", "")


def differences(x, z):
    """All differences of rows, in float64."""
    return np.asarray(x, np.float64)[:, None] - np.asarray(z, np.float64)[None]


def likelihood_slope(kind, x, y, lengthscale, noise):
    """The derivative of the log marginal likelihood in the lengthscale, in closed form and float64."""
    value, slope = KERNELS[kind]
    s = (differences(x, x) ** 2).sum(-1) / lengthscale**2
    inverse = np.linalg.inv(value(s) + noise * np.eye(len(y)))
    alpha = inverse @ y
    return 0.5 * np.sum((np.outer(alpha, alpha) - inverse) * slope(s) * s * (-2 / lengthscale))


@jax.jit
def our_likelihood_slope(model, data):
    def likelihood(lengthscale):
        return kx.log_marginal_likelihood(
            kx.condition(eqx.tree_at(lambda m: m.kernel.lengthscale, model, lengthscale), data)
        )

    return jax.grad(likelihood)(model.kernel.lengthscale)


def clusters(n, d, width, rng=RNG):
    """Rows in sorted groups of five, some lengthscales wide each, over a range of `width` lengthscales of 1."""
    centres = np.sort(rng.uniform(0.0, width, size=(-(-n // 5), d)), axis=0)
    return np.repeat(centres, 5, axis=0)[:n] + 0.5 * rng.normal(size=(n, d))


@pytest.mark.parametrize("kind", [kx.RBF, kx.Matern52], ids=name)
def test_h45_likelihood_slope_in_float32(kind):
    """Off by 0.5 to 7 % at 1e3 lengthscales, and of the wrong size or sign at 1e4, if large terms cancel."""
    for width in (1e3, 1e4):
        x = np.sort(clusters(80, 1, width), axis=0).astype(np.float32)
        y = RNG.normal(size=80).astype(np.float32)
        model = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), kx.Model(kind(1.0), 0.1))
        want = likelihood_slope(kind, x, y.astype(np.float64), 1.0, np.float64(np.float32(0.1)))
        np.testing.assert_allclose(our_likelihood_slope(model, kx.Data(x, y)), want, rtol=2e-5)


@pytest.mark.parametrize("kind", [kx.RBF, kx.Matern52], ids=name)
def test_h45_twins_far_from_all_other_rows(kind):
    """Equal rows at any lengthscale that separates them from all others: nothing depends on it."""
    x = np.repeat(RNG.uniform(size=(20, 1)), 2, axis=0)
    data = kx.Data(x, RNG.normal(size=40))
    for lengthscale in (1e-8, 1e-10):
        assert our_likelihood_slope(kx.Model(kind(lengthscale), 0.1), data) == 0.0


@jax.jit
def slopes(kernel, x, z, weights):
    """Derivatives of a weighted sum of the Gram and the cross-Gram matrix: in the lengthscale, x and z."""

    def total(kernel, x, z):
        return jnp.sum(weights[0] * kernel(x)) + jnp.sum(weights[1] * kernel(x, z))

    in_kernel, in_x, in_z = jax.grad(total, argnums=(0, 1, 2))(kernel, x, z)
    return in_kernel.lengthscale, in_x, in_z


def true_slopes(slope, x, z, lengthscale, weights):
    """The same by the formulas, each with the size of the terms that truly contribute.

    A relative error of s is one of about s in the slope of the kernel.
    """
    u = differences(x, z)
    s = ((u / lengthscale) ** 2).sum(-1)
    inner = (weights * slope(s))[:, :, None]
    size = np.abs(inner) * (1.0 + s[:, :, None])

    def in_lengthscale(terms):
        total = (terms * u**2).sum((0, 1))
        return -2.0 * (total / lengthscale**3 if np.ndim(lengthscale) else total.sum() / lengthscale**3)

    step = 2.0 * u / lengthscale**2
    return [
        np.array([in_lengthscale(inner), -in_lengthscale(size)]),
        np.array([(inner * step).sum(1), (size * np.abs(step)).sum(1)]),
        np.array([-(inner * step).sum(0), (size * np.abs(step)).sum(0)]),
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=name)
@pytest.mark.parametrize("d", [1, 3, 8, 12])
def test_h45_slopes_in_lengthscales_and_rows(d, dtype):
    """One lengthscale and many, to the digits of the terms that truly contribute: not of those that cancel."""
    rng = np.random.default_rng(d)
    n, m = 40, 27
    weights = rng.normal(size=(n, n)), rng.normal(size=(n, m))
    ours = [jnp.asarray(w, dtype) for w in weights]
    for width in (1.0, 1e2, 1e4):
        z = clusters(n, d, width, rng).astype(dtype)
        x = z + (0.3 * rng.normal(size=(n, d))).astype(dtype)
        x[7] = x[3]
        x, z = jnp.asarray(x), jnp.asarray(z[:m])
        for lengthscale in (jnp.asarray(0.7, dtype), jnp.asarray(rng.uniform(0.5, 2.0, size=d), dtype)):
            # All distances go the same ways: for most widths, the smoothest and the roughest kernel are enough.
            for kind in KERNELS if d == 3 else (kx.RBF, kx.Matern12):
                slope = KERNELS[kind][1]
                exact = np.float64(lengthscale)
                ell, first, second = true_slopes(slope, x, x, exact, np.float64(ours[0]))
                cross = true_slopes(slope, x, z, exact, np.float64(ours[1]))
                want = ell + cross[0], first + second + cross[1], cross[2]
                for got, (true, size) in zip(slopes(kind(lengthscale), x, z, ours), want, strict=True):
                    error = np.abs(np.float64(got) - true)
                    assert (error <= 20 * np.finfo(dtype).eps * (size + 1e-12 * size.max())).all(), (kind, width)


def plain(x, z, lengthscale):
    """What autodiff is to make of: all differences at once."""
    return jnp.sum(((x[:, None] - (x if z is None else z)[None]) / lengthscale) ** 2, axis=-1)


def second_derivatives(distances, parts, directions):
    """Of a smooth function of all distances, in every nesting of forward and reverse mode, and one third derivative."""
    one, two = directions

    def value(parts):
        s = distances(parts["x"], parts.get("z"), parts["lengthscale"])
        return jnp.sum(jnp.sin(jnp.arange(s.size, dtype=s.dtype)).reshape(s.shape) * jnp.exp(-0.3 * s))

    def product(left, right):
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))

    def forward(parts):
        return jax.jvp(value, (parts,), (one,))[1]

    def reverse(parts):
        return product(jax.grad(value)(parts), one)

    def batched(parts):
        return jnp.sum(jax.vmap(value)(jax.tree.map(lambda part, way: jnp.stack([part, part + 0.1 * way]), parts, one)))

    return {
        "forward over reverse": jax.jvp(reverse, (parts,), (two,))[1],
        "reverse over reverse": jax.grad(reverse)(parts),
        "forward over forward": jax.jvp(forward, (parts,), (two,))[1],
        "reverse over forward": jax.grad(forward)(parts),
        "forward over reverse over forward": jax.jvp(jax.grad(forward), (parts,), (two,))[1],
        "reverse over batches": jax.grad(batched)(parts),
    }


@pytest.mark.parametrize(
    ("n", "d", "width", "of_itself"),
    # Few and many columns, near and far apart; 7 rows are summed plainly, 40 in blocks.
    [(7, 3, 1.0, True), (7, 12, 1.0, True), (7, 12, 40.0, False), (40, 3, 1.0, True), (40, 12, 1.0, False)],
)
def test_h45_derivatives_of_second_order(n, d, width, of_itself):
    """Against plain autodiff of all differences, with coinciding points."""
    rng = np.random.default_rng(d)
    x, z = width * rng.integers(2, size=(2, n, 1)) + rng.normal(size=(2, n, d))
    x[4], z[2] = x[1], x[1]
    parts = {"x": x, "lengthscale": rng.uniform(1.0, 2.0, size=d) if of_itself else np.asarray(1.5)}
    parts = jax.tree.map(jnp.asarray, parts if of_itself else parts | {"z": z})
    directions = [jax.tree.map(lambda part: jnp.asarray(rng.normal(size=part.shape)), parts) for _ in range(2)]
    ours, theirs = (
        jax.jit(second_derivatives, static_argnums=0)(distances, parts, directions)
        for distances in (_distances.squared_distances, plain)
    )
    for nesting, want in theirs.items():
        for got, true in zip(jax.tree.leaves(ours[nesting]), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(got, true, atol=1e-11 * np.abs(true).max(), err_msg=nesting)


def test_h45_the_diagonal_has_no_derivative():
    """Whatever slope a kernel of one's own has where two points coincide."""
    x = jnp.asarray(RNG.normal(size=(5, 2)))
    value, pull = jax.vjp(lambda x, lengthscale: _distances.squared_distances(x, None, lengthscale), x, jnp.asarray(0.3))
    assert (jnp.diagonal(value) == 0.0).all()
    assert all((slope == 0.0).all() for slope in pull(jnp.diag(jnp.full(5, jnp.inf))))


def test_h45_no_rows_whole_numbers_and_extreme_units():
    empty = _distances.squared_distances(jnp.zeros((0, 20)), jnp.ones((3, 20)), jnp.asarray(2.0))
    assert empty.shape == (0, 3)
    assert jax.grad(lambda ell: kx.RBF(ell)(jnp.zeros((0, 2))).sum())(1.0) == 0.0
    whole = _distances.squared_distances(jnp.asarray([[1], [3]]), None, jnp.asarray(2.0, jnp.float32))
    np.testing.assert_array_equal(whole, [[0.0, 1.0], [1.0, 0.0]])
    for unit in (1e-30, 1e30):
        x = jnp.asarray([[0.0], [unit]], jnp.float32)
        slope = jax.grad(lambda ell, x=x: kx.RBF(ell)(x)[0, 1])(jnp.asarray(unit, jnp.float32))
        np.testing.assert_allclose(slope * unit, np.exp(-0.5), rtol=1e-6)


@pytest.mark.parametrize("d", [8, 20])
def test_h45_slopes_hold_few_matrices(d):
    """No array of all n × n × d differences, nor d matrices of n × n."""
    n = 256
    like = jax.ShapeDtypeStruct((n, n), np.float64), jax.ShapeDtypeStruct((n, d), np.float64)

    def total(x, lengthscale, weights):
        return jnp.sum(weights * kx.RBF(lengthscale)(x))

    program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(like[1], jax.ShapeDtypeStruct((d,), np.float64), like[0])
    memory = program.compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4 * 8 * n**2


def test_h45_periodic_slope_in_float32():
    """A lengthscale that is a small part of the circle."""
    x = np.sort(clusters(40, 1, 1e3), axis=0).astype(np.float32)
    lengthscale, period, weights = np.float32(1e-3), np.float32(3e3), RNG.normal(size=(40, 40)).astype(np.float32)
    got = jax.jit(jax.grad(lambda ell: jnp.sum(weights * kx.Periodic(ell, period)(x))))(jnp.asarray(lengthscale))
    s = (2.0 * np.sin(np.pi * differences(x, x)[:, :, 0] / np.float64(period)) / np.float64(lengthscale)) ** 2
    terms = weights * np.exp(-s / 2) * s / np.float64(lengthscale)
    np.testing.assert_allclose(got, terms.sum(), atol=2e-3 * np.abs(terms).sum())
