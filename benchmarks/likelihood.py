"""The log marginal likelihood and its gradient with respect to all hyperparameters.

ARD RBF, scaled, with noise, d = 8: ten hyperparameters. This is what one step of a fit costs. `LAPACK alone` is the floor:
one factorisation and one inverse of a ready matrix, which every exact method needs; the ratio to it says what the Gram
matrix, the pull-back and all administration add. GPJax and scikit-learn are timed up to n = 2000 unless `--all` is given.
"""

import kernax as kx
from benchmarks import _ours, _peers
from benchmarks._options import Options
from benchmarks._problem import problem, same
from benchmarks._table import RatioTable
from benchmarks._timing import compare

PEERS = {
    "gpytorch": _peers.gpytorch_likelihood,
    "tinygp": _peers.tinygp_likelihood,
    "gpjax": _peers.gpjax_likelihood,
    "sklearn": _peers.sklearn_likelihood,
}
GOALS = {"gpytorch": 0.5, "tinygp": 0.35, "gpjax": 0.35, "sklearn": 0.3}
LARGE = 2000
"""From here on the goals above hold; below, being ahead is the goal."""
SLOW, SLOW_UP_TO = ("gpjax", "sklearn"), 2000
FLOOR, FLOOR_GOAL, FLOOR_FROM = "LAPACK alone", 2.0, 4000


def run(options: Options) -> RatioTable:
    peers = _peers.installed(PEERS)
    table = RatioTable("n")
    for n in options.sizes_or(500, 1000, 2000, 4000):
        given = problem(n)
        sides = {"ours": _ours.value_and_gradient(kx.log_marginal_likelihood, given)}
        for name, peer in peers.items():
            if name not in SLOW or n <= SLOW_UP_TO or options.slow_peers_too:
                sides[name] = peer(given)
        sides[FLOOR] = _peers.lapack_floor(given)
        timed = compare(sides, options)
        ours = timed.pop("ours")
        for name, theirs in timed.items():
            agree = name == FLOOR or same(ours.answer, theirs.answer)
            table.compare(n, peer=name, ours=ours.seconds, theirs=theirs.seconds, goal=_goal(name, n), agree=agree)
    return table


def _goal(peer: str, n: int) -> float | None:
    if peer == FLOOR:
        return FLOOR_GOAL if n >= FLOOR_FROM else None
    return GOALS[peer] if n >= LARGE else 1.0
