"""`kernax fit` at n = 300: the second command on a table of the same shape against the first.

Fresh processes and a fresh cache folder in each turn, the minimum of each; imports and start of the interpreter included.
Python's bytecode is on disk, as it is after an installation. The two tables have different numbers.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import _quiet
from benchmarks._options import Options
from benchmarks._table import Table, verdict

RATIO, SECONDS = 0.5, 2.5


def run(options: Options) -> Table:
    table = Table("n", "first, s", "second, s", "CPU, s", "ratio", "goal", "verdict", "second", "goal", "verdict")
    for n in options.sizes_or(300):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for seed in (0, 1):
                _write_table(folder / f"{seed}.csv", n, seed)
            alone = _fit(folder, "unused", 1, "--no-cache")
            firsts, seconds = [], []
            for turn in range(options.turns):
                _quiet.wait(options.wait)
                firsts.append(_fit(folder, f"cache{turn}", 0))
                seconds.append(_fit(folder, f"cache{turn}", 1))
            agree = all(answer == alone[2] for _, _, answer in seconds)
        first, second, cpu = min(f[0] for f in firsts), min(s[0] for s in seconds), min(s[1] for s in seconds)
        ratio = second / first
        judged = verdict(ratio, RATIO) if agree else "DISAGREE"
        table.line(
            n, first, second, cpu, f"{ratio:.2f}", f"≤ {RATIO}", judged, second, f"≤ {SECONDS} s", verdict(second, SECONDS)
        )
    return table


def _write_table(path: Path, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, size=(n, 3))
    y = np.sin(2 * x[:, 0]) + np.cos(x[:, 1]) * x[:, 2] + 0.2 * rng.normal(size=n)
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,c,y", comments="")


def _fit(folder: Path, cache: str, seed: int, *words: str) -> tuple[float, float, float]:
    """Seconds, seconds of CPU, and the objective of one command. Its programs and Python's bytecode go into the folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / cache), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    for name in ("PYTHONDONTWRITEBYTECODE", "JAX_COMPILATION_CACHE_DIR"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "kernax", "fit", str(folder / f"{seed}.csv"), "-t", "y", "--json", *words]
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run([*command, "-o", str(folder / "m.kx")], env=environment, stdout=subprocess.PIPE, check=True)
    took, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return took, cpu, json.loads(done.stdout)["value"]
