"""Vecchia's approximation as a solver: each row is conditioned on a few earlier ones, so the inverse has a sparse factor."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from kernax._arrays import matmul, whole_number
from kernax.grams import AbstractGram
from kernax.rows import is_on_disk, map_rows, take
from kernax.solvers import _derivatives as derivatives
from kernax.solvers._cholesky import RawCholesky
from kernax.solvers._conditionals import Conditionals, Entries, Health, evidence, factor
from kernax.solvers._local import (
    Coordinates,
    coordinates,
    dissimilarity,
    has_coordinates,
    known_rows,
    nearest_in_file,
    points_of,
    predicted,
    rows_near_any,
    with_nearest,
)
from kernax.solvers._neighbours import closest_of, coarse_to_fine, compact_order, nearest, nearest_by
from kernax.solvers._result import Result
from kernax.solvers._solver import AbstractSolver
from kernax.solvers._system import AbstractSystem, Evidence, Solution

_JOINT = 1024
"""The most rows from which covariances between new rows are predicted."""


class VecchiaSystem(AbstractSystem):
    """A system approximated by blocks and their neighbours, with a sparse factor of the inverse.

    The formulas are in `solvers/_conditionals.py`.

    If a block fails, the values that depend on it are NaN, and the `result` of the answer says so. The `result` of the
    System itself does not depend on the blocks, so a fit, which only needs the evidence, factorises each block once.

    **Arguments:**

    - `gram`: the kernel matrix.
    - `noise`: the noise variance, one number or one for each row.
    - `plan`: the blocks and their neighbours.
    - `root`: the matrix `Gᵀ` of every block.
    - `log_determinant`: `log det A`, over the rows that have conditionals.
    - `health`: which blocks failed or needed jitter.
    - `result`: how the preparation ended.
    - `solver`: the solver.
    """

    gram: AbstractGram
    noise: Float[Array, "*n"]
    plan: Conditionals
    root: Float[Array, "k q b"]
    log_determinant: Float[Array, ""]
    health: Health
    result: Any
    solver: "Vecchia"

    @property
    def needs_targets(self) -> bool:
        """True: new rows are predicted from the targets of their neighbours."""
        return True

    @property
    def is_exact(self):
        return False

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

    def _fitted(self, solution):
        # By what A is taken for: a product with K itself would take O(n²).
        return solution.kept - self.shift[:, None] * solution.value

    def _located(self, x):
        return with_nearest(self.gram, x, self.solver.prediction_neighbours, self.solver.coordinates)

    def _mean(self, x, solution):
        return map_rows(lambda block: predicted(self.gram, self.noise, block, solution.kept)[0], x, self._numbers_per_row)

    def _variance(self, x):
        nothing = jnp.zeros((self.gram.n, 0), self.noise.dtype)
        return Solution(predicted(self.gram, self.noise, x, nothing)[1], self.result)

    def _mean_and_variance(self, x, solution):
        mean, variance = map_rows(
            lambda block: predicted(self.gram, self.noise, block, solution.kept), x, self._numbers_per_row
        )
        return mean, Solution(self._or_nan(variance), self.result)

    def _covariance(self, x, z):
        # One set of rows for all: those that are nearest to any of the new ones.
        new = x if z is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), x, z)
        places = rows_near_any(self.gram, new, _JOINT, self.solver.coordinates)
        matrix, upper, sets = known_rows(self.gram, self.noise, places[None])
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


class Vecchia(AbstractSolver):
    """Vecchia approximation: each row is conditioned on m earlier rows close to it. O(n m³) time and O(n m) memory.

    Use it for ten thousand to millions of rows. The likelihood is that of a proper Gaussian distribution close to the exact
    one; with as many neighbours as rows it is the exact one. New rows are predicted from the rows nearest to them.

    The approximation is best for rough kernels (Matérn), noisy data and few relevant columns. If the noise is small and the
    kernel smooth, or lengthscales are long in many columns, it needs more neighbours: check by doubling them, or compare
    the likelihood of some thousand rows with that of `kx.Cholesky()`. Larger blocks help if there are many columns.

    The kernel's lengthscales decide which rows are close. `fit` chooses the neighbours again a few times
    (`Fit.num_refreshes`). In between they do not change, so the objective is smooth. Early rounds use a random part of the
    rows.

    Rows in a file (see `kx.Data`) are read when they are needed, about 8 MB at a time, and about 100 bytes for
    each row are in memory, whatever the number of columns. The file is read once for each search of neighbours: for each
    round of a fit and for each call that predicts. The neighbours and their factor take `2 m` numbers for each row, which
    may be more than the file; `part` limits them. Blocks of several rows, `ordering="maxmin"` and kernels without
    coordinates need the coordinates of all rows in memory.

    **Arguments:**

    - `neighbours`: how many earlier rows each block is conditioned on.
    - `block`: how many rows make a block. Those of a block are conditioned on the same rows.
    - `ordering`: `"random"`, or `"maxmin"` for an order from coarse to fine, in which each next row is far from the earlier
      ones.
    - `prediction_neighbours`: how many rows each new row is predicted from.
    - `coordinates`: a function from rows to an `(n, q)` array, in which neighbours are the closest rows. If not
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
    ordering: str = eqx.field(static=True, default="random")
    prediction_neighbours: int = eqx.field(
        static=True, default=128, converter=lambda m: whole_number(m, "Vecchia.prediction_neighbours")
    )
    coordinates: Coordinates = eqx.field(static=True, default=None)
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

    def largest_matrix(self, n):
        return min(n, max(self.neighbours + self.block, self.prediction_neighbours + 1))

    def settled(self, gram, part=None):
        """This solver with fixed blocks and neighbours; with `part`, those of about that many random rows."""
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

    def prepare_again(self, system, noise):
        """With the same neighbours; every block is factorised again."""
        solver = eqx.tree_at(lambda s: s.plan, self, system.plan, is_leaf=lambda leaf: leaf is None)
        return solver.prepare(system.gram, noise)

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
        if not has_coordinates(gram, self.coordinates):
            raise TypeError(
                f"Vecchia(block={self.block}, ordering={self.ordering!r}) needs coordinates of the rows, which "
                f"{type(gram.kernel).__name__} does not have: give coordinates=…, or use block=1 and the random order."
            )
        points = map_rows(lambda rows: coordinates(gram.kernel, rows, self.coordinates), gram.x, 1)
        compact = compact_order(points, gram.mask, block)
        whole = n // block
        turn = coarse_to_fine(whole) if self.ordering == "maxmin" else jax.random.permutation(key, whole)
        # The last block may be shorter. It stays at the end, so that all others keep their size.
        return jnp.concatenate([compact[: whole * block].reshape(whole, block)[turn].reshape(-1), compact[whole * block :]])

    def _earlier(
        self, gram: AbstractGram, order: Array, live: Array, rows: Array, before: Array, number: int
    ) -> Int[Array, "k m"]:
        """The places in the order of the rows that are nearest to any row of each block, among those before the block."""
        if number == 0:
            return jnp.zeros((rows.shape[0], 0), jnp.int32)
        if not has_coordinates(gram, self.coordinates):
            every, firsts = take(gram.x, order), take(gram.x, rows[:, 0])
            return nearest_by(lambda some: dissimilarity(gram.kernel, some, every), live, firsts, before, number)
        members = points_of(gram, self.coordinates, jnp.maximum(rows, 0).reshape(-1))
        blocks, size = rows.shape
        if is_on_disk(gram.x) and size == 1:
            places = jnp.zeros(gram.n, jnp.int32).at[order].set(jnp.arange(gram.n, dtype=jnp.int32))
            return nearest_in_file(gram, places, members, before, number, self.coordinates)
        points = points_of(gram, self.coordinates, order)
        # Rows near one member are often near others, too: three times the share of each leaves enough. If most rows are
        # neighbours, all are looked at.
        each = number if size == 1 or gram.n < 4 * number else min(number, -(-3 * number // size) + 8)
        counts = (rows >= 0) & gram.mask[rows]
        before = jnp.where(counts, before[:, None], 0).reshape(-1)
        found = nearest(points, live, members, before, each).reshape(blocks, -1)
        return found if size == 1 else closest_of(points, members.reshape(blocks, size, -1), found, number)
