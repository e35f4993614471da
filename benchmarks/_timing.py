"""Timing two or more sides of a comparison fairly on a noisy machine.

The sides take turns, so that a busy minute hits all of them, and the *minimum* counts, since noise only ever adds. Within a
turn a quick side is called several times; before it there is a pause, in which the threads that the side before left
spinning (OpenMP's and OpenBLAS's do so for some ten milliseconds) go to sleep.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks import _quiet
from benchmarks._options import Options

PAUSE = 0.05
TURN = 0.2
"""Seconds: a side is called again within its turn until this has passed."""
BUDGET = 60.0
"""Seconds: no further round of turns is begun after this, once there were two."""


@dataclass(frozen=True)
class Side:
    """What is timed: `call(prepare())`, of which only the call counts."""

    call: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Timed:
    """The answer of the first, untimed call, and the least number of seconds that a later one took."""

    answer: Any
    seconds: float


def compare(sides: dict[str, Side], options: Options) -> dict[str, Timed]:
    """Every side once to compile and to get its answer, then all of them in turns."""
    answers = {name: jax.block_until_ready(side.call(side.prepare())) for name, side in sides.items()}
    least = dict.fromkeys(sides, float("inf"))
    spent, rounds, quiet_rounds = 0.0, 0, 0
    while rounds < options.turns and (rounds < 2 or spent < BUDGET):
        quiet_rounds += _quiet.wait(options.wait)
        begun = time.monotonic()
        for name, side in sides.items():
            least[name] = min(least[name], _turn(side))
        rounds, spent = rounds + 1, spent + time.monotonic() - begun
    if quiet_rounds == 0:
        print("(next lines: the machine was busy with other work in every round; no reliable ratio)")
    return {name: Timed(answers[name], least[name]) for name in sides}


def _turn(side: Side) -> float:
    time.sleep(PAUSE)
    least, spent = float("inf"), 0.0
    while spent < TURN:
        prepared = side.prepare()
        begun = time.perf_counter()
        jax.block_until_ready(side.call(prepared))
        seconds = time.perf_counter() - begun
        least, spent = min(least, seconds), spent + seconds
    return least
