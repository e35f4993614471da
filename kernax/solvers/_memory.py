"""How much memory is available on the device that computes."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from kernax._arrays import is_concrete

_CGROUPS = Path("/sys/fs/cgroup")
# The limit of a control group, what it uses, and what of that could be given back: version 2, then version 1.
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory(like: Any = None) -> int | None:
    """Bytes that a program may still allocate where an array lives.

    On CPU this is the memory that Linux calls available and the free swap, or less if a container limits it. On other
    systems all memory of the machine counts as available. The environment variable `KERNAX_MEMORY` overrides it, as a number
    of GiB (`inf` for no limit).

    **Arguments:**

    - `like`: an array, whose devices are considered; all local devices if it is not given or being traced.

    **Returns:**

    A number of bytes; `None` if it is not known.
    """
    given = os.environ.get("KERNAX_MEMORY")
    if given is not None:
        return _given(given)
    # What is traced may later be spread over all devices, and so may the matrices made from it.
    devices = list(like.devices()) if isinstance(like, jax.Array) and is_concrete(like) else jax.local_devices()
    if devices[0].platform == "cpu":
        return _on_host()
    known = [device.memory_stats() or {} for device in devices]
    if not all("bytes_limit" in stats for stats in known):
        return None
    return sum(stats["bytes_limit"] - stats.get("bytes_in_use", 0) for stats in known)


def in_gib(size: float) -> str:
    """A number of bytes as text: `0.03 GiB`, `4.2 GiB`, `7,451 GiB`."""
    gib = size / 2**30
    return f"{gib:,.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB" if gib >= 1 else f"{gib:.2g} GiB"


def _given(text: str) -> int | None:
    try:
        gib = float(text)
    except ValueError:
        gib = math.nan
    if not gib > 0:
        raise ValueError(f"KERNAX_MEMORY is the available memory in GiB, such as 16, or inf for no limit; got {text!r}.")
    return None if math.isinf(gib) else int(gib * 2**30)


def _on_host() -> int | None:
    found = _numbers(_text(Path("/proc/meminfo")).replace(":", ""), 1024)
    if "MemAvailable" not in found:
        return _of_machine()
    return min([found["MemAvailable"] + found.get("SwapFree", 0), *_in_groups()])


def _of_machine() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not known by these names, as on Windows
        return None


def _in_groups() -> Iterator[int]:
    """What is left in each control group (container) that this process belongs to, and in those around it."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUPS / controllers
        own = root / place.lstrip("/")
        # Inside a container its own group is mounted as the root, and the path does not exist.
        for folder in (own, *(above for above in own.parents if root in (above, *above.parents))):
            for limit, usage, spare in _LIMITS:
                most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
                if most.isdigit() and used.isdigit():
                    yield int(most) - int(used) + _numbers(_text(folder / "memory.stat"), 1).get(spare, 0)


def _numbers(text: str, unit: int) -> dict[str, int]:
    """Lines of a name and a number, as the kernel writes them."""
    parts = [line.split() for line in text.splitlines()]
    return {part[0]: unit * int(part[1]) for part in parts if len(part) > 1 and part[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
