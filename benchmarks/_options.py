"""What the command line asks of every benchmark."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """`sizes` is None where each benchmark is to use its own."""

    sizes: list[int] | None = None
    data: Path | None = None
    turns: int = 5
    wait: float = 0.0
    cores: int = 2
    slow_peers_too: bool = False

    def sizes_or(self, *default: int) -> tuple[int, ...]:
        return tuple(self.sizes) if self.sizes else default
