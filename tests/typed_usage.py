"""What type checkers are to say of code that uses kernax: nothing, but where a line is marked.

Not run: `pyright` checks it with the package, and complains of a mark where there is nothing to ignore.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false

import jax
import jax.numpy as jnp
import numpy as np
import optax

import kernax as kx
from kernax import learners

model = kx.Model(1.0 * kx.RBF(lengthscale=jnp.ones(2)) + kx.Linear(), noise=0.1)
data = kx.Data(np.zeros((5, 2)), [1.0, 2.0, 3.0, 4.0, 5.0])

# Parameters are given as numbers or anything like an array, and read as arrays.
kx.RBF(2), kx.RBF([1.0, 2.0]), kx.Matern32(np.ones(3)), kx.Periodic(lengthscale=0.5, period=1), kx.Polynomial(degree=3)
length: jax.Array = kx.RBF(2.0).lengthscale
noise: float = model.noise.item()
kx.RBF(lengthscale="long")  # pyright: ignore[reportArgumentType]
kx.RBF(length=1.0)  # pyright: ignore[reportCallIssue]
kx.Model(3.0, noise=0.1)  # pyright: ignore[reportArgumentType]

# A fit knows its model; parts of kernels may be named.
fit = kx.fit(model, data, objective=kx.loo_mse, optimiser=optax.adam(0.1), restarts=2, key=jax.random.key(0))
fitted: kx.Model = fit.model
kx.fit(model, data, trainable=kx.freeze(model, where=lambda m: m.kernel.kernels[0].variance))
kx.with_prior(model, lambda m: m.kernel.kernels[0].kernel.lengthscale, kx.priors.LogNormal())
print(fit.models)  # pyright: ignore[reportAttributeAccessIssue]
kx.fit(model, data, objektive=kx.gcv)  # pyright: ignore[reportCallIssue]

# Names that do not exist are found, and so are those that have moved (which still work for one release).
kx.RFB(1.0)  # pyright: ignore[reportAttributeAccessIssue]
kx.Interval(0.0, 1.0)  # pyright: ignore[reportAttributeAccessIssue]
kx.parameters.Interval(0.0, 1.0)  # pyright: ignore[reportAttributeAccessIssue]
narrow: kx.bijectors.Interval = kx.bijectors.Interval(0.0, 1.0)
axes = kx.plot.gram(np.eye(3))

c = kx.condition(fit.model, data)
mean: jax.Array = kx.mean(c, np.zeros((3, 2)))
probability = kx.condition(kx.fit(learners.GPClassifier(1.0 * kx.RBF()), data).model, data).probability(np.zeros((3, 2)))
fits = kx.fit_many(model, {"a": (np.zeros((5, 2)), np.zeros(5))})
one: kx.Model = fits["a"].model
some: kx.fitting.Fits = fits[fits.failed]
text: str = str(kx.report(fit, columns=["a", "b"]))
density, start, rebuild = kx.fitting.log_posterior(model, data)
kx.save("model.kx", c)


class Tent(kx.AbstractKernel):
    """A kernel of one's own."""

    width: kx.parameters.Parameter = kx.positive(default=1.0)

    def pair(self, a, b):
        return jnp.maximum(0.0, 1.0 - jnp.abs(a[0] - b[0]) / self.width)


Tent(width=2), Tent(2.0).width.shape
Tent(width="wide")  # pyright: ignore[reportArgumentType]
