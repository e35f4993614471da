"""The same fits on eight devices and on one: they must agree, and no device may be idle.

400 datasets of 20 to 40 points (`fit_many.sets`), in a fresh process in which XLA takes the host's CPU for eight devices:
`fit_many` on all of them, and again on the first alone. `difference` is the largest one in any value (the negative log
marginal likelihood) and in any parameter, absolute. `lanes` and `evaluations` are the least and the largest share that a
device had of all; an eighth would be even. The eight share the same cores, so the ratio of the times is for information:
it says what the sharing out costs, not what it gains. `--sizes` gives another number of datasets.

What was learned: the answers are equal to the last bit, of 300 sets and of 400.
"""

import os
import threading
import time

from benchmarks import _fresh, _quiet
from benchmarks._options import Options
from benchmarks._table import Table

DEVICES = 8
SETS, MOST_ROWS = 400, 40
DIFFERENCE_GOAL = 1e-10


def run(options: Options) -> Table:
    _quiet.wait(options.wait)
    count = options.sizes_or(SETS)[0]
    answer = _fresh.call("benchmarks.devices:both", count)
    table = Table("sets", "what", "least", "most", "goal", "verdict", widths=[6, 26, 11, 11, 11, 9])
    for what, difference in answer["differences"].items():
        # Two sides that differ do not agree, whatever the speed.
        verdict = "met" if difference <= DIFFERENCE_GOAL else "DISAGREE"
        table.line(count, f"difference of {what}", "–", f"{difference:.1e}", f"≤ {DIFFERENCE_GOAL:.0e}", verdict)
    for what, shares in answer["shares"].items():
        verdict = "met" if min(shares) > 0 else "missed"
        table.line(count, f"share of {what}", f"{min(shares):.3f}", f"{max(shares):.3f}", "> 0", verdict)
    for what, (eight, one) in answer["seconds"].items():
        table.line(count, f"time, {what}: {DEVICES} / 1", "–", f"{eight / one:.2f}", "–", "–")
    return table


def both(count: int) -> dict:
    """In a process of its own."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"

    import jax
    import numpy as np
    import scipy.linalg  # noqa: F401  (imports are not timed)

    import kernax as kx
    from benchmarks import fit_many
    from kernax.fitting import _engine

    devices = jax.devices()
    assert len(devices) == DEVICES
    sets = list(fit_many.sets(count, most_rows=MOST_ROWS))
    lanes, evaluations = np.zeros(DEVICES, int), np.zeros(DEVICES, int)
    run, lock = _engine.run_block, threading.Lock()

    def counted(spec, block, site):
        part = run(spec, block, site)
        with lock:
            lanes[site.device.id] += len(part.numbers)
            evaluations[site.device.id] += part.results.num_steps.sum()
        return part

    def timed(some: list) -> tuple[kx.fitting.Fits, float]:
        begun = time.perf_counter()
        fits = jax.block_until_ready(kx.fit_many(fit_many.start(), sets, devices=some))
        return fits, time.perf_counter() - begun

    _engine.run_block = counted
    eight, cold_eight = timed(devices)
    _engine.run_block = run
    one, cold_one = timed(devices[:1])
    warm = [timed(some)[1] for some in (devices, devices[:1])]

    def largest(a: object, b: object) -> float:
        return max(float(np.max(np.abs(np.asarray(i) - np.asarray(j)))) for i, j in zip(a, b, strict=True))

    return {
        "differences": {
            "values": largest([eight.value], [one.value]),
            "parameters": largest(fit_many.parameters_of(eight), fit_many.parameters_of(one)),
        },
        "shares": {
            "lanes": (lanes / lanes.sum()).tolist(),
            "evaluations": (evaluations / evaluations.sum()).tolist(),
        },
        "seconds": {"cold": (cold_eight, cold_one), "warm": warm},
    }
