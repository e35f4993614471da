"""`import kernax` against the import of what it is built on.

Fresh processes in turns, the minimum of each; the interpreter's own start is not counted. What is above 1 is kernax itself.
"""

import time

from benchmarks import _fresh, _quiet
from benchmarks._options import Options
from benchmarks._table import RatioTable

OURS, BASE = ("kernax",), ("jax", "equinox", "optax")
GOAL = 1.3


def run(options: Options) -> RatioTable:
    least = dict.fromkeys((OURS, BASE), float("inf"))
    for names in least:  # so that every module's bytecode is on disk and in the file cache
        _fresh.call("benchmarks.import_time:seconds", *names)
    for _ in range(options.turns + 2):
        _quiet.wait(options.wait)
        for names in least:
            least[names] = min(least[names], _fresh.call("benchmarks.import_time:seconds", *names))
    table = RatioTable("import")
    table.compare("kernax", peer=", ".join(BASE), ours=least[OURS], theirs=least[BASE], goal=GOAL)
    return table


def seconds(*names: str) -> float:
    """In a process of its own, which must not have imported any of this before."""
    begun = time.perf_counter()
    for name in names:
        __import__(name)
    return time.perf_counter() - begun
