"""Vecchia's approximation as a solver: each row is conditioned on a few earlier ones, so the inverse has a sparse factor."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from kernax._arrays import matmul, whole_number
from kernax.grams import AbstractGram
from kernax.kernels import AbstractKernel
from kernax.rows import Rows, as_rows, is_on_disk, map_rows, num_rows, rows_at_once, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._cholesky import RawCholesky
from kernax.solvers._conditionals import Conditionals, Entries, Health, evidence, factor, factored
from kernax.solvers._neighbours import coarse_to_fine, compact_order, nearest, nearest_by, nearest_in_blocks
from kernax.solvers._result import Result
from kernax.solvers._system import AbstractSolver, AbstractSystem, Evidence, Solution

_JOINT = 1024
"""The most rows from which covariances between new rows are predicted."""


class Near(eqx.Module):
    """New rows, and the numbers of the rows nearest to each; -1 stands for no row."""

    rows: Rows
    numbers: Int[Array, "k m"]


class VecchiaSystem(AbstractSystem):
    """The blocks and their neighbours, and the sparse factor of the inverse. See `solvers/_conditionals.py`.

    What a failed block leaves undefined is NaN, and the result of the answer says so. The result of the System itself does
    not depend on the blocks: so a fit, which asks for the evidence alone, factorises each block once.
    """

    gram: AbstractGram
    noise: Float[Array, "*n"]
    plan: Conditionals
    root: Float[Array, "k q b"]
    """`Gᵀ` of every block."""
    log_determinant: Float[Array, ""]
    health: Health
    result: Any
    solver: "Vecchia"

    @property
    def needs_targets(self) -> bool:
        """True: new rows are predicted from the targets of their neighbours."""
        return True

    @property
    def jitter(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """0: jitter is added to single blocks only. `Solution.jitter` is the largest of them."""
        return jnp.zeros((), self.noise.dtype)

    @property
    def _is_part(self) -> bool:
        """Whether the conditionals are those of a part of the rows."""
        return self.plan.rows.size < self.gram.n

    def _solve(self, columns):
        if self._is_part:
            value = jnp.full_like(columns, jnp.nan)
            return Solution(value, self._ended(self.health), kept=columns, jitter=self.health.jitter)
        seen = matmul(jnp.swapaxes(self.root, 1, 2), self._of_blocks(columns))
        value = self._added_up(matmul(self.root, seen))
        value = jnp.where(self.health.ok, value, jnp.nan)
        return Solution(value, self._ended(self.health), kept=columns, jitter=self.health.jitter)

    def _logdet(self):
        return jnp.where(self.health.ok, self.plan.weight * self.log_determinant, jnp.nan)

    def _evidence(self, columns):
        entries = Entries(self.gram.kernel, self.gram.x, self.noise, columns)
        quadratic, logdet, health = evidence(entries, self.plan, self.solver.mesh)
        quadratic, logdet = (jnp.where(health.ok, term, jnp.nan) for term in (quadratic, logdet))
        return Evidence(quadratic, logdet, jnp.zeros_like(logdet), self._ended(health))

    def _located(self, x):
        number = min(self.solver.prediction_neighbours, self.gram.n)
        return Near(x, self.solver.nearest_rows(self.gram, x, number))

    def _mean(self, x, solution):
        return map_rows(lambda block: self._predicted(block, solution.kept)[0], x, self._numbers_per_row)

    def _variance(self, x):
        nothing = jnp.zeros((self.gram.n, 0), self.noise.dtype)
        return Solution(self._predicted(x, nothing)[1], self.result)

    def _mean_and_variance(self, x, solution):
        mean, variance = map_rows(lambda block: self._predicted(block, solution.kept), x, self._numbers_per_row)
        return mean, Solution(self._or_nan(variance), self.result)

    def _covariance(self, x, z):
        # One set of rows for all: those that are nearest to any of the new ones.
        new = x if z is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), x, z)
        places = self.solver.rows_near_any(self.gram, new, min(self.gram.n, _JOINT))
        matrix, upper, sets = self._known_rows(places[None])
        known = jax.tree.map(lambda leaf: leaf[0], sets)
        cross = jnp.where((places >= 0)[:, None], self.gram.kernel.gram(known, x), 0.0)
        other = cross if z is None else jnp.where((places >= 0)[:, None], self.gram.kernel.gram(known, z), 0.0)
        solved = derivatives.solve_matrix(matrix[0], RawCholesky(upper[0]), other)
        return Solution(self.gram.kernel.gram(x, z) - matmul(cross.T, solved), self.result)

    @property
    def _numbers_per_row(self):
        return 4 * min(self.solver.prediction_neighbours, self.gram.n) ** 2

    def inverse_diagonal(self):
        """`None` if only a part of the rows has conditionals."""
        if self._is_part:
            return None
        entries = self._added_up(jnp.sum(self.root**2, axis=2)[:, :, None])[:, 0]
        entries = jnp.where(self.gram.mask, entries, 1.0)
        return self._or_nan(jnp.where(self.health.ok, entries, jnp.nan))

    def draw(self, key, number):
        """One block after another, each given the rows that it is conditioned on; `None` if only a part has conditionals."""
        if self._is_part:
            return None
        block, n = self.plan.rows.shape[1], self.gram.n
        shocks = jax.random.normal(key, (*self.plan.rows.shape, number), self.noise.dtype)

        def step(drawn: Array, given: tuple[Array, Array, Array, Array]) -> tuple[Array, None]:
            rows, neighbours, root, shock = given
            earlier = jnp.where((neighbours >= 0)[:, None], drawn[neighbours], 0.0)
            left = shock - matmul(root[:-block].T, earlier)
            # The rows of G that belong to the block are lower triangular, so their transpose is upper triangular.
            own = derivatives.half_solve(root[-block:].T, left)
            return drawn.at[jnp.where(rows >= 0, rows, n)].set(own, mode="drop"), None

        start = jnp.zeros((n, number), self.noise.dtype)
        drawn = jax.lax.scan(step, start, (self.plan.rows, self.plan.neighbours, self.root, shocks))[0]
        return self._columns(drawn)

    def expansion(self, solution):
        """`None`: each new row is predicted from its own neighbours."""
        del solution
        return None

    def _ended(self, health: Health) -> Any:
        noise_free = jnp.any(jnp.where(self.gram.mask, self.noise, 1.0) == 0)
        good = Result.where(noise_free & (health.jitter > 0), Result.singular, Result.successful)
        return Result.where(health.ok, good, Result.not_positive_definite)

    def _of_blocks(self, columns: Float[Array, "n p"]) -> Float[Array, "k q p"]:
        """The rows of each block, 0 where there is none."""
        places = self.plan.places
        return jnp.where((places >= 0)[:, :, None], columns[places], 0.0)

    def _added_up(self, values: Float[Array, "k q p"]) -> Float[Array, "n p"]:
        """For each row, the sum of what the blocks have in its places."""
        places = jnp.where(self.plan.places >= 0, self.plan.places, self.gram.n)
        return jnp.zeros((self.gram.n, values.shape[2]), values.dtype).at[places].add(values, mode="drop")

    def _known_rows(self, places: Int[Array, "k m"]) -> tuple[Float[Array, "k m m"], Float[Array, "k m m"], Rows]:
        """The matrices A of several sets of rows, their upper factors, and the rows of each set."""
        entries = Entries(self.gram.kernel, self.gram.x, self.noise, jnp.zeros((self.gram.n, 0), self.noise.dtype))
        matrices, uppers, _ = factored(entries.of(places)[0], places >= 0)
        return matrices, uppers, take(self.gram.x, jnp.maximum(places, 0))

    def _predicted(self, x: Near, columns: Float[Array, "n p"]) -> tuple[Float[Array, "k p"], Float[Array, " k"]]:
        """Mean and variance of each new row, given its neighbours."""
        places = x.numbers
        matrices, uppers, sets = self._known_rows(places)
        rows = jax.tree.map(lambda leaf: leaf[:, None], x.rows)
        cross = jnp.where(places >= 0, jax.vmap(self.gram.kernel.gram)(sets, rows)[:, :, 0], 0.0)

        def weights(matrix: Array, upper: Array, cross: Array) -> Array:
            return derivatives.solve_matrix(matrix, RawCholesky(upper), cross)

        weight = jax.vmap(weights)(matrices, uppers, cross)
        mean = jnp.sum(weight[:, :, None] * jnp.where((places >= 0)[:, :, None], columns[places], 0.0), axis=1)
        return mean, self.gram.kernel.diag(x.rows) - jnp.sum(cross * weight, axis=1)


class Vecchia(AbstractSolver):
    """Each row is conditioned on a few earlier rows close to it: O(n m³) time and O(n m) memory for m neighbours.

    For ten thousand to millions of rows. The likelihood is that of a proper Gaussian distribution close to the exact one;
    with as many neighbours as rows it is the exact one. New rows are predicted from the rows nearest to them.

    The approximation is best for rough kernels (Matérn), noisy data and few relevant columns. If the noise is small and the
    kernel smooth, or lengthscales are long in many columns, it needs more neighbours: check by doubling them, or compare
    the likelihood of some thousand rows with that of `kx.Cholesky()`. Larger blocks help where columns are many.

    Which rows are close is decided by the kernel's lengthscales. `fit` decides it anew a few times (`Fit.num_refreshes`). In
    between, the neighbours stay, so the objective is smooth. Early rounds use a random part of the rows.

    Rows in a file (see `kx.Data`) are read when they are needed, about 8 MB at a time, and about 100 bytes for
    each row are in memory, whatever the number of columns. The file is read once for each search of neighbours: for each
    round of a fit and for each call that predicts. The neighbours and their factor are `2 m` numbers for each row, which may
    be more than the file; `part` bounds them. Blocks of several rows, `ordering="maxmin"` and kernels without coordinates
    need the coordinates of all rows in memory.

    **Arguments:**

    - `neighbours`: how many earlier rows each block is conditioned on.
    - `block`: how many rows make a block. Those of a block are conditioned on the same rows.
    - `ordering`: `"random"`, or `"maxmin"` for an order from coarse to fine, in which each next row is far from the earlier
      ones.
    - `prediction_neighbours`: how many rows each new row is predicted from.
    - `coordinates`: a function from rows to an `(n, q)` array, in which close rows are to be taken as neighbours. If not
      given, the kernel's own coordinates (columns divided by lengthscales); for a kernel that has none, the correlation is
      computed for all pairs of rows, which takes O(n²) time.
    - `seed`: the seed of the random order.
    - `part`: at most about this many random rows have their conditionals computed, and the likelihood of all rows is
      estimated from them; all rows if not given. Predictions still use all rows. `alpha` is NaN then, and leave-one-out and
      a trend are not offered. For data whose n × neighbours numbers do not fit into memory.
    - `mesh`: a `jax.sharding.Mesh` with one axis, over whose devices the blocks of the likelihood are spread.
    """

    neighbours: int = eqx.field(static=True, default=30, converter=lambda m: whole_number(m, "Vecchia.neighbours"))
    block: int = eqx.field(static=True, default=1, converter=lambda b: whole_number(b, "Vecchia.block"))
    ordering: Literal["random", "maxmin"] = eqx.field(static=True, default="random")
    prediction_neighbours: int = eqx.field(
        static=True, default=128, converter=lambda m: whole_number(m, "Vecchia.prediction_neighbours")
    )
    coordinates: Callable[[Any], Any] | None = eqx.field(static=True, default=None)
    seed: int = eqx.field(static=True, default=0)
    part: int | None = eqx.field(
        static=True, default=None, converter=lambda k: None if k is None else whole_number(k, "Vecchia.part")
    )
    mesh: Mesh | None = eqx.field(static=True, default=None)
    plan: Conditionals | None = None
    """The blocks and their neighbours, if they have been chosen."""

    num_refreshes: ClassVar[int] = 2

    @property
    def solves(self):
        return self.part is None

    def __check_init__(self):
        if self.ordering not in ("random", "maxmin"):
            raise ValueError(f'Vecchia.ordering must be "random" or "maxmin", got {self.ordering!r}.')
        if self.mesh is not None and len(self.mesh.axis_names) != 1:
            raise ValueError(f"Vecchia.mesh must have one axis, got {self.mesh.axis_names}: blocks are spread over one.")

    def settled(self, gram, part=None):
        """This solver with blocks and neighbours that stay; with `part`, those of a random part of about that many rows."""
        gram = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, gram)
        part = min([k for k in (part, self.part) if k is not None], default=None)
        return eqx.tree_at(lambda s: s.plan, self, self._chosen(gram, part), is_leaf=lambda leaf: leaf is None)

    def prepare(self, gram, noise):
        if gram.kernel is None:
            raise TypeError("Vecchia needs a kernel, and this is a matrix without one: use kx.Cholesky() or kx.Eigh().")
        plan = self.settled(gram).plan if self.plan is None else self.plan
        assert plan is not None
        if plan.num_rows != gram.n:
            raise ValueError(
                f"the neighbours of this Vecchia solver were chosen for {plan.num_rows} rows, and the data has {gram.n}: "
                "make a new one, kx.Vecchia(…)."
            )
        entries = Entries(gram.kernel, gram.x, noise, jnp.zeros((gram.n, 0), noise.dtype))
        root, logdet, health = factor(entries, plan)
        return VecchiaSystem(  # pyright: ignore[reportCallIssue]
            gram=gram,
            noise=noise,
            plan=plan,
            root=root,
            log_determinant=logdet,
            health=health,
            result=Result.where(jnp.any(gram.mask), Result.successful, Result.empty),
            solver=eqx.tree_at(lambda s: s.plan, self, None, is_leaf=lambda leaf: leaf is None),
        )

    def _chosen(self, gram: AbstractGram, part: int | None) -> Conditionals:
        """The blocks in their order, and the neighbours of each."""
        n, block = gram.n, min(self.block, gram.n)
        blocks = -(-n // block)
        order, key = self._order(gram, block, blocks), jax.random.key(self.seed)
        chosen = jnp.arange(blocks)
        if part is not None and part < n:
            chosen = jnp.sort(jax.random.permutation(jax.random.fold_in(key, 1), blocks)[: -(-part // block)])
        rows = jnp.pad(order, (0, blocks * block - n), constant_values=-1).reshape(blocks, block)[chosen]
        live = gram.mask[order]
        found = self._earlier(gram, order, live, rows, chosen * block, min(self.neighbours, (blocks - 1) * block))
        neighbours = jnp.where(found >= 0, order[found], -1)
        rows = jnp.where((rows >= 0) & gram.mask[rows], rows, -1)
        weight = jnp.asarray(blocks / len(chosen), jax.eval_shape(gram.diagonal).dtype)
        return Conditionals(rows.astype(jnp.int32), neighbours.astype(jnp.int32), weight, n)

    def _order(self, gram: AbstractGram, block: int, blocks: int) -> Int[Array, " n"]:
        """All rows in order, block after block; rows that do not count are last within their block."""
        n, key = gram.n, jax.random.key(self.seed)
        if block == 1 and self.ordering == "random":
            return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))
        if not self._has_coordinates(gram):
            raise TypeError(
                f"Vecchia(block={self.block}, ordering={self.ordering!r}) needs coordinates of the rows, which "
                f"{type(gram.kernel).__name__} does not have: give coordinates=…, or use block=1 and the random order."
            )
        points = map_rows(lambda rows: self._coordinates(gram.kernel, rows), gram.x, 1)
        compact = compact_order(points, gram.mask, block)
        whole = n // block
        turn = coarse_to_fine(whole) if self.ordering == "maxmin" else jax.random.permutation(key, whole)
        # The last block may be shorter. It stays at the end, so that all others keep their size.
        return jnp.concatenate([compact[: whole * block].reshape(whole, block)[turn].reshape(-1), compact[whole * block :]])

    def _earlier(
        self, gram: AbstractGram, order: Array, live: Array, rows: Array, before: Array, number: int
    ) -> Int[Array, "k m"]:
        """The places in the order of the rows nearest to each block, among those before it."""
        if number == 0:
            return jnp.zeros((rows.shape[0], 0), jnp.int32)
        if not self._has_coordinates(gram):
            every, firsts = take(gram.x, order), take(gram.x, rows[:, 0])
            return nearest_by(lambda some: _dissimilarity(gram.kernel, some, every), live, firsts, before, number)
        counts = (rows >= 0) & gram.mask[rows]
        members = self._points(gram, jnp.maximum(rows, 0).reshape(-1))
        centres = jnp.mean(members.reshape(*rows.shape, -1), axis=1, where=counts[:, :, None])
        centres = jnp.where(jnp.isfinite(centres), centres, 0.0)
        if is_on_disk(gram.x):
            places = jnp.zeros(gram.n, jnp.int32).at[order].set(jnp.arange(gram.n, dtype=jnp.int32))
            return self._found_in_file(gram, places, centres, before, number)
        return nearest(self._points(gram, order), live, centres, before, number)

    def nearest_rows(self, gram: AbstractGram, x: Rows, number: int) -> Int[Array, "m k"]:
        """The numbers of the rows that are nearest to each new row; -1 where there are fewer rows that count."""
        before, new = jnp.full(num_rows(x), gram.n), self._coordinates(gram.kernel, x)
        if new is None:
            known = take(gram.x)
            return nearest_by(lambda some: _dissimilarity(gram.kernel, some, known), gram.mask, x, before, number)
        if is_on_disk(gram.x):
            return self._found_in_file(gram, jnp.arange(gram.n, dtype=jnp.int32), new, before, number)
        return nearest(self._points(gram), gram.mask, new, before, number)

    def _found_in_file(self, gram: AbstractGram, places: Array, queries: Array, before: Array, number: int) -> Array:
        """What `nearest` finds among all rows, which are in a file, in the order given by their places."""
        return nearest_in_blocks(
            lambda rows: self._points(gram, rows),
            rows_at_once(gram.x),
            gram.mask,
            places,
            queries,
            before,
            number,
        )

    def rows_near_any(self, gram: AbstractGram, x: Rows, number: int) -> Int[Array, " k"]:
        """The numbers of the rows that are nearest to any of the new rows; -1 where there are fewer rows that count."""
        m, new = num_rows(x), self._coordinates(gram.kernel, x)

        def distance(some: Rows) -> Array:
            """The distance of some rows from the closest of the new ones."""
            points = self._coordinates(gram.kernel, some)
            if points is None or new is None:
                return jnp.min(_dissimilarity(gram.kernel, some, x), axis=1)
            closest = nearest(new, jnp.ones(m, bool), points, jnp.full(num_rows(some), m), 1)[:, 0]
            return jnp.sum((points - new[closest]) ** 2, axis=1)

        far = map_rows(distance, gram.x, m if new is None else new.shape[1])
        found, places = jax.lax.top_k(-jnp.where(gram.mask, jax.lax.stop_gradient(far), jnp.inf), number)
        return jnp.where(jnp.isfinite(found), places, -1)

    def _has_coordinates(self, gram: AbstractGram) -> bool:
        return self._coordinates(gram.kernel, take(gram.x, slice(0, 1))) is not None

    def _points(self, gram: AbstractGram, rows: Any = None) -> Float[Array, "n q"]:
        """The coordinates of some rows, or of all, where there are coordinates."""
        points = self._coordinates(gram.kernel, take(gram.x, rows))
        assert points is not None
        return points

    def _coordinates(self, kernel: AbstractKernel, x: Rows) -> Float[Array, "n q"] | None:
        found = kernel.coordinates(x) if self.coordinates is None else as_rows(self.coordinates(x), "coordinates")
        return None if found is None else jax.lax.stop_gradient(found)


def _dissimilarity(kernel: AbstractKernel, x: Rows, z: Rows) -> Float[Array, "n m"]:
    """One less the squared correlation of each pair of rows."""
    size = kernel.diag(x)[:, None] * kernel.diag(z)[None, :]
    return 1.0 - kernel.gram(x, z) ** 2 / jnp.where(size > 0, size, 1.0)
