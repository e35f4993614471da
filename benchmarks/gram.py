"""The Gram matrix of n points, jitted.

Nothing is differentiated: this is the cost of a kernel's numbers, with the writing of n² of them in the time of both sides.
"""

import numpy as np

from benchmarks import _ours, _peers
from benchmarks._options import Options
from benchmarks._problem import problem
from benchmarks._table import RatioTable
from benchmarks._timing import compare

PEERS = {"gpytorch": _peers.gpytorch_gram, "gpjax": _peers.gpjax_gram}
GOAL = 0.5
TOLERANCE = 1e-8


def run(options: Options) -> RatioTable:
    peers = _peers.installed(PEERS)
    table = RatioTable("kernel", "n", "d")
    for n in options.sizes_or(5000):
        for d in (1, 8):
            for kernel in ("RBF", "Matern52"):
                given = problem(n, d)
                sides = {"ours": _ours.gram(kernel, given)} | {name: peer(kernel, given) for name, peer in peers.items()}
                timed = compare(sides, options)
                ours = timed.pop("ours")
                for name, theirs in timed.items():
                    agree = bool(np.max(np.abs(np.asarray(ours.answer) - theirs.answer)) <= TOLERANCE)
                    case = (kernel, n, d)
                    table.compare(*case, peer=name, ours=ours.seconds, theirs=theirs.seconds, goal=GOAL, agree=agree)
    return table
