"""Whether other work is on the machine.

BLAS threads that share their cores with others can take a hundred times as long, in every turn. So the benchmarks look
first, wait for a while if told to (`--wait`), and say so if it did not help.
"""

import time
from pathlib import Path

BUSY = 0.15
"""The share of the machine's time, while we sleep, above which it counts as busy."""


def wait(seconds: float) -> bool:
    """Wait until the machine is quiet, for at most so many seconds; whether it is."""
    end = time.monotonic() + seconds
    while (busy := _share_of_others() > BUSY) and time.monotonic() < end:
        time.sleep(1.0)
    return not busy


def _share_of_others(seconds: float = 0.3) -> float:
    """What others use of all cores while this process sleeps; 0 where the system does not tell."""
    if not Path("/proc/stat").is_file():
        return 0.0
    time.sleep(0.1)  # in which our own spinning threads go to sleep
    before = _ticks()
    time.sleep(seconds)
    idle, total = (after - b for after, b in zip(_ticks(), before, strict=True))
    return 1.0 - idle / max(total, 1)


def _ticks() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
