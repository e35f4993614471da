"""Series with `kx.StateSpace()`, in O(n): likelihood and gradient against tinygp, then all else that is asked of a series.

The first table compares with tinygp's quasiseparable solver: Matérn-3/2, Matérn-5/2 and a sum of ten Matérn-3/2, whose state
has 20 numbers. tinygp needs sorted times, so both sides get the same sorted times; values and gradients must agree to 1e-8.
Data are arguments of the compiled functions: XLA would compute with constants while it compiles.

The second table has no peer. Each line is a process of its own, and shows the peak of its memory, Python and JAX included.
"first call" compiles; all other lines show the least of three calls of which none compiles. Conditioning is part of them.
The slope is that of the logarithms of seconds and rows between the smallest and the largest number of rows: 1 is linear.

The last table shows the largest errors: against a dense inverse by NumPy at 2000 rows, relative to the largest entry of each
answer, and without noise against a determinant with 50 digits by mpmath, for 60 rows at steps of 1e-5 lengthscales.

All lines are run by default, up to ten million rows, which takes a few minutes. `--sizes` replaces the rows of every line;
goals are shown for the rows that they were set for.
"""

import functools
import math
import operator
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kernax as kx
from benchmarks import _fresh, _peers, _quiet
from benchmarks._options import Options
from benchmarks._problem import same
from benchmarks._table import RatioTable, Table, verdict
from benchmarks._timing import Side, compare

ROWS = 100_000
TOLERANCE = 1e-8
FIRST_CALL = 3.0
GROWTH, SLOPE = (10_000, 100_000, 1_000_000, 10_000_000), 1.05
NOISE = 0.13
DENSE_ROWS, PRECISE_ROWS, DIGITS, ERROR = 2000, 60, 50, 1e-12


class Case(NamedTuple):
    """A sum of Matérn kernels with these variances and lengthscales, and its goal against tinygp."""

    kernel: str
    variances: np.ndarray
    lengthscales: np.ndarray
    goal: float

    def flat(self) -> np.ndarray:
        """Variances, lengthscales and noise."""
        return np.concatenate([self.variances, self.lengthscales, [NOISE]])

    def model(self, p: jax.Array) -> kx.Model:
        return kx.Model(self.summed(getattr(kx, self.kernel), p), p[-1])

    def summed(self, kernel: Callable[[Any], Any], p: jax.Array) -> Any:
        """The sum of one library's kernels."""
        count = len(self.variances)
        return functools.reduce(operator.add, [p[i] * kernel(p[count + i]) for i in range(count)])


CASES = {
    "Matern32": Case("Matern32", np.array([1.1]), np.array([1.2]), 0.1),
    "Matern52": Case("Matern52", np.array([1.1]), np.array([1.2]), 0.25),
    "ten Matern32": Case("Matern32", np.linspace(0.05, 0.2, 10), np.geomspace(0.2, 20.0, 10), 0.25),
}


class Task(NamedTuple):
    """Lines of the second table: what is called, its rows, and the goals in seconds and gigabytes at the last of them."""

    call: Callable[[int], Callable[[], Any]]
    rows: tuple[int, ...]
    seconds: float
    gigabytes: float | None = None
    is_first: bool = False
    """Whether the first call counts, which compiles."""


def run(options: Options) -> Table:
    compared = _against_tinygp(options)
    table = Table("what", "rows", "s", "goal", "µs a row", "GB", "goal", "verdict", widths=[28, 10, 8, 6, 8, 6, 6, 8])
    table.agreed = compared.agreed
    for name, task in TASKS.items():
        sizes = options.sizes_or(*task.rows)
        seconds = [_line(table, options, name, n) for n in sizes]
        if len(task.rows) > 1 and len(sizes) > 1:
            slope = math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0])
            table.line(name, "slope", f"{slope:.3f}", f"≤ {SLOPE:g}", "–", "–", "–", verdict(slope, SLOPE))
    _errors()
    return table


def _errors() -> None:
    table = Table("what", "rows", "error", "goal", "verdict", widths=[37, 6, 8, 8, 8])

    def line(what: str, rows: int, error: float) -> None:
        table.line(what, rows, f"{error:.1g}", f"≤ {ERROR:g}", verdict(error, ERROR))

    t, y = _series(DENSE_ROWS)
    for name, case in CASES.items():
        theirs = _dense(case, t, y)
        for what, ours in _answers(case, t, y).items():
            line(f"{name}, {what}", DENSE_ROWS, float(np.max(np.abs(ours - theirs[what])) / np.max(np.abs(theirs[what]))))
    t = 1e-5 * np.arange(PRECISE_ROWS)
    for name in PROFILES:
        c = kx.condition(kx.Model(getattr(kx, name)(), 0.0), kx.Data(t[:, None], np.zeros(len(t))), kx.StateSpace())
        theirs = _precise_logdet(name, t)
        line(f"{name}, determinant without noise", PRECISE_ROWS, abs(float(c.system.logdet()) / theirs - 1.0))


def _answers(case: Case, t: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    value, gradient = _ours(case, t, y).call(None)
    c = kx.condition(case.model(jnp.asarray(case.flat())), kx.Data(t[:, None], y), kx.StateSpace())
    prediction = kx.predict(c, _between(t)[:, None])
    found = {
        "value": value,
        "gradient": gradient,
        "weights": c.alpha,
        "diagonal of the inverse": 1.0 / kx.loo_variance(c, noisy=True),
        "mean": prediction.mean,
        "variance": prediction.variance,
    }
    return {name: np.asarray(answer) for name, answer in found.items()}


def _dense(case: Case, t: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """The same by NumPy, from the inverse of the matrix."""

    def parts(a: np.ndarray, b: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return [PROFILES[case.kernel](np.abs(a[:, None] - b), scale) for scale in case.lengthscales]

    def summed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return sum(v * k for v, (k, _) in zip(case.variances, parts(a, b), strict=True))

    n, known, new = len(t), parts(t, t), _between(t)
    matrix = summed(t, t) + NOISE * np.eye(n)
    inverse = np.linalg.inv(matrix)
    alpha, cross = inverse @ y, summed(new, t)
    slopes = [k for k, _ in known] + [v * of for v, (_, of) in zip(case.variances, known, strict=True)] + [np.eye(n)]
    return {
        "value": np.asarray(-0.5 * (y @ alpha + np.linalg.slogdet(matrix)[1] + n * np.log(2 * np.pi))),
        "gradient": np.array([0.5 * (alpha @ slope @ alpha - np.sum(inverse * slope)) for slope in slopes]),
        "weights": alpha,
        "diagonal of the inverse": np.diag(inverse),
        "mean": cross @ alpha,
        "variance": np.sum(case.variances) - np.sum(cross * (cross @ inverse), axis=1),
    }


def _between(t: np.ndarray) -> np.ndarray:
    """New times between the rows, and beyond them."""
    return np.linspace(t[0] - 0.3, t[-1] + 0.3, 200)


def _matern32(r: np.ndarray, lengthscale: float) -> tuple[np.ndarray, np.ndarray]:
    """A Matérn kernel and its slope in the lengthscale."""
    x = math.sqrt(3.0) * r / lengthscale
    return (1.0 + x) * np.exp(-x), x**2 * np.exp(-x) / lengthscale


def _matern52(r: np.ndarray, lengthscale: float) -> tuple[np.ndarray, np.ndarray]:
    x = math.sqrt(5.0) * r / lengthscale
    return (1.0 + x + x**2 / 3.0) * np.exp(-x), x**2 * (1.0 + x) / 3.0 * np.exp(-x) / lengthscale


PROFILES = {"Matern32": _matern32, "Matern52": _matern52}


def _precise_logdet(name: str, t: np.ndarray) -> float:
    """The log determinant of the kernel with lengthscale 1, with many digits."""
    import mpmath

    def kernel(r: Any) -> Any:
        x = mpmath.sqrt(3 if name == "Matern32" else 5) * r
        return (1 + x if name == "Matern32" else 1 + x + x * x / 3) * mpmath.exp(-x)

    with mpmath.workdps(DIGITS):
        places = [mpmath.mpf(float(time)) for time in t]
        root = mpmath.cholesky(mpmath.matrix([[kernel(abs(a - b)) for b in places] for a in places]))
        return float(2 * sum(mpmath.log(root[i, i]) for i in range(len(places))))


def _line(table: Table, options: Options, name: str, n: int) -> float:
    """Measure and show one line; returns its seconds."""
    if not _quiet.wait(options.wait):
        print("(next line: the machine was busy with other work)")
    seconds, gigabytes, sound = _fresh.call("benchmarks.state_space:measured", name, n)
    task = TASKS[name]
    goals = (task.seconds, task.gigabytes) if n == task.rows[-1] else (None, None)
    within = [verdict(value, goal) for value, goal in zip((seconds, gigabytes), goals, strict=True) if goal is not None]
    ended = "missed" if "missed" in within else "met" if within else "–"
    shown = ["–" if goal is None else f"≤ {goal:g}" for goal in goals]
    per_row = f"{1e6 * seconds / n:.3g}"
    table.line(name, n, f"{seconds:.3g}", shown[0], per_row, f"{gigabytes:.2f}", shown[1], ended if sound else "DISAGREE")
    return seconds


def measured(name: str, n: int) -> tuple[float, float, bool]:
    """Seconds, gigabytes, and whether the answer is usable, in a process of its own."""
    task = TASKS[name]
    call = task.call(n)
    seconds, answer = _timed(call)
    if not task.is_first:
        seconds = min(_timed(call)[0] for _ in range(3))
    return seconds, _gigabytes(), _is_sound(answer)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    answer = jax.block_until_ready(call())
    return time.perf_counter() - begun, answer


def _gigabytes() -> float:
    from benchmarks.memory import _resident

    return _resident("VmHWM") / 1e9


def _is_sound(answer: Any) -> bool:
    """Whether all numbers are finite; for a fit or a mode, whether it ended well."""
    if hasattr(answer, "result"):
        return bool(answer.result == kx.Result.successful)
    return all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(answer))


def _series(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted times, a hundred in a unit, and a noisy wave."""
    rng = np.random.default_rng(n)
    t = np.sort(rng.uniform(0.0, n / 100, n))
    return t, np.sin(t) + 0.3 * rng.normal(size=n)


def _data(n: int) -> kx.Data:
    t, y = _series(n)
    return kx.Data(t[:, None], y)


def _value_and_gradient(case: str, n: int) -> Callable[[], Any]:
    side = _ours(CASES[case], *_series(n))
    return lambda: side.call(None)


def _conditioned(n: int) -> Callable[[], Any]:
    """Leave-one-out residuals, and mean and variance at as many new times as there are rows."""
    data, model = _data(n), CASES["Matern32"].model(jnp.asarray(CASES["Matern32"].flat()))
    new = jnp.asarray(np.linspace(0.0, n / 100, n)[:, None])

    def call() -> Any:
        c = kx.condition(model, data, kx.StateSpace())
        prediction = kx.predict(c, new)
        return kx.loo_residuals(c), prediction.mean, prediction.variance

    return call


def _fit(n: int) -> Callable[[], Any]:
    data, model = _data(n), kx.Model(1.0 * kx.Matern32(1.0), noise=0.1)
    return lambda: kx.fit(model, data, solver=kx.StateSpace())


def _counts(n: int) -> Callable[[], Any]:
    t, _ = _series(n)
    counts = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(t))).astype(float)
    gp, data = kx.learners.LatentGP(1.0 * kx.Matern32(1.0), kx.learners.Poisson()), kx.Data(t[:, None], counts)
    return lambda: kx.condition(gp, data, kx.StateSpace())


TASKS = {
    **{
        f"first call, {name}": Task(functools.partial(_value_and_gradient, name), (ROWS,), FIRST_CALL, is_first=True)
        for name in CASES
    },
    "LOO, mean and variance": Task(_conditioned, (1_000_000,), 1.0),
    "fit": Task(_fit, (ROWS,), 2.0),
    "Poisson counts by Laplace": Task(_counts, (ROWS,), 0.5),
    "value and gradient, Matern32": Task(functools.partial(_value_and_gradient, "Matern32"), GROWTH, 6.0, 4.0),
}


def _against_tinygp(options: Options) -> RatioTable:
    peers = _peers.installed({"tinygp": _tinygp})
    table = RatioTable("kernel", "n")
    for name, case in CASES.items():
        for n in options.sizes_or(10_000, ROWS):
            t, y = _series(n)
            timed = compare({"ours": _ours(case, t, y)} | {peer: side(case, t, y) for peer, side in peers.items()}, options)
            ours = timed.pop("ours")
            for peer, theirs in timed.items():
                agree, goal = same(ours.answer, theirs.answer, TOLERANCE), case.goal if n == ROWS else None
                table.compare(name, n, peer=peer, ours=ours.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
    return table


def _ours(case: Case, t: np.ndarray, y: np.ndarray) -> Side:
    def likelihood(p: jax.Array, data: kx.Data) -> jax.Array:
        return kx.log_marginal_likelihood(kx.condition(case.model(p), data, kx.StateSpace()))

    compiled, data, parameters = jax.jit(jax.value_and_grad(likelihood)), kx.Data(t[:, None], y), jnp.asarray(case.flat())
    return Side(lambda _: compiled(parameters, data))


def _tinygp(case: Case, t: np.ndarray, y: np.ndarray) -> Side:
    import tinygp

    def likelihood(p: jax.Array, t: jax.Array, y: jax.Array) -> jax.Array:
        kernel = case.summed(getattr(tinygp.kernels.quasisep, case.kernel), p)
        return tinygp.GaussianProcess(kernel, t, diag=p[-1]).log_probability(y)

    compiled, arguments = jax.jit(jax.value_and_grad(likelihood)), tuple(map(jnp.asarray, (case.flat(), t, y)))
    return Side(lambda _: compiled(*arguments))
