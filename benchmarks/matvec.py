"""Products `K v` with a kernel matrix that is never stored, against KeOps on CPU.

n = 20,000 rows in nine columns, ARD; one right-hand side and sixteen; float32 and float64. The answers are compared first.
`peak memory` is what a fresh process grows by while it multiplies, at n and at 2n: it does not grow with n².
"""

import importlib.util
import shutil

import numpy as np

from benchmarks import _fresh
from benchmarks._options import Options
from benchmarks._table import RatioTable
from benchmarks._timing import Side, compare

GOAL = 0.1
COLUMNS = 9
KERNELS = ("RBF", "Matern32")


def run(options: Options) -> RatioTable:
    table = RatioTable("kernel", "n", "columns of v", "type")
    peer = _keops()
    for n in options.sizes_or(20_000):
        for dtype in ("float32", "float64"):
            for width, goal in ((1, GOAL), (16, None)):
                for kernel in KERNELS:
                    sides = {"ours": _ours(kernel, n, width, dtype)}
                    sides |= {} if peer is None else {"KeOps": peer(kernel, n, width, dtype)}
                    timed = compare(sides, options)
                    ours, theirs = timed["ours"], timed.get("KeOps")
                    case = (kernel, n, width, dtype)
                    if theirs is None:
                        table.line(*case, "–", ours.seconds, "–", "–", "–", "–")
                        continue
                    error = np.max(np.abs(np.asarray(ours.answer) - theirs.answer)) / np.max(np.abs(theirs.answer))
                    agree = bool(error <= (1e-10 if dtype == "float64" else 1e-3))
                    table.compare(*case, peer="KeOps", ours=ours.seconds, theirs=theirs.seconds, goal=goal, agree=agree)
        for size in (n, 2 * n):
            megabytes = _fresh.call("benchmarks.matvec:grown", size)
            print(f"peak memory of a product, n = {size}: {megabytes:.0f} MB (K would take {8e-6 * size**2:.0f} MB)")
    return table


def grown(n: int) -> float:
    """Megabytes by which the process grows while it compiles and multiplies. In a process of its own."""
    from benchmarks.memory import _resident

    side = _ours("RBF", n, 16, "float64")
    before = _resident("VmRSS")
    side.call(None).block_until_ready()
    return (_resident("VmHWM") - before) / 1e6


def _problem(n: int, width: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    lengthscales = np.linspace(1.0, 3.0, COLUMNS).astype(dtype)
    return rng.normal(size=(n, COLUMNS)).astype(dtype), rng.normal(size=(n, width)).astype(dtype), lengthscales


def _ours(name: str, n: int, width: int, dtype: str) -> Side:
    import jax
    import jax.numpy as jnp

    import kernax as kx
    from kernax.grams import gram_of

    x, v, lengthscales = (jnp.asarray(value) for value in _problem(n, width, dtype))
    kernel = getattr(kx, name)(lengthscales)
    product = jax.jit(lambda kernel, x, v: gram_of(kernel, x, jnp.ones(n, bool)).mv(v))
    return Side(lambda _: product(kernel, x, v))


def _keops():
    """KeOps' side, or `None` and a message if it is not installed or cannot compile."""
    if importlib.util.find_spec("pykeops") is None or importlib.util.find_spec("torch") is None:
        print("skipped, not installed: pykeops (with torch).")
        return None
    if shutil.which("g++") is None and shutil.which("c++") is None:
        print("skipped: KeOps needs a C++ compiler, and there is none.")
        return None

    def side(name: str, n: int, width: int, dtype: str) -> Side:
        import torch
        from pykeops.torch import LazyTensor

        x, v, lengthscales = _problem(n, width, dtype)
        rows, v = torch.as_tensor(x / lengthscales), torch.as_tensor(v)
        squares = ((LazyTensor(rows[:, None, :]) - LazyTensor(rows[None, :, :])) ** 2).sum(-1)
        root = (3.0 * squares).sqrt()
        kernel = {"RBF": (-0.5 * squares).exp(), "Matern32": (1.0 + root) * (-root).exp()}[name]
        return Side(lambda _: (kernel @ v).numpy())

    return side
