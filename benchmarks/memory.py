"""The peak memory of the likelihood and its gradient, in n × n matrices.

Each line is measured in a fresh process, in two ways for kernax: as XLA planned it (`planned`: the compiled program's own
analysis, arguments and answers included) and as the system saw it (`resident`: the process's peak less what it held before
the call, once everything is compiled). Peers, for comparison, only as the system saw them.
"""

import importlib.util
import resource
import sys
from pathlib import Path

from benchmarks import _fresh, likelihood
from benchmarks._options import Options
from benchmarks._problem import problem
from benchmarks._table import Table, verdict

GOAL = 6.0
PEERS = ("gpytorch", "tinygp")


def run(options: Options) -> Table:
    table = Table("n", "whose", "how measured", "matrices", "goal", "verdict")
    for n in options.sizes_or(4000):
        for how, matrices in _fresh.call("benchmarks.memory:ours", n).items():
            table.line(n, "kernax", how, f"{matrices:.2f}", f"≤ {GOAL:g}", verdict(matrices, GOAL))
        for peer in PEERS:
            if importlib.util.find_spec(peer) is None:
                print(f"skipped, not installed: {peer}.")
                continue
            table.line(n, peer, "resident", f"{_fresh.call('benchmarks.memory:theirs', peer, n):.2f}", "–", "–")
    return table


def ours(n: int) -> dict[str, float]:
    """In a process of its own."""
    import jax

    import kernax as kx
    from benchmarks import _ours

    compiled, arguments = _ours.program(kx.log_marginal_likelihood, problem(n))
    ready = compiled.lower(*arguments).compile()
    plan = ready.memory_analysis()
    planned = plan.temp_size_in_bytes + plan.output_size_in_bytes + plan.argument_size_in_bytes - plan.alias_size_in_bytes
    resident = _growth(lambda: jax.block_until_ready(ready(*arguments)))
    return {"planned": planned / _matrix(n), "resident": resident / _matrix(n)}


def theirs(peer: str, n: int) -> float:
    """In a process of its own. A peer that compiles does so within the measurement, which at this size is a small part."""
    side = likelihood.PEERS[peer](problem(n))
    return _growth(lambda: side.call(side.prepare())) / _matrix(n)


def _growth(call) -> int:
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    """Bytes held now (VmRSS) or at the most so far (VmHWM). Elsewhere than on Linux the most so far stands for both.

    Not `getrusage` on Linux: its peak starts at that of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _matrix(n: int) -> int:
    return 8 * n * n
