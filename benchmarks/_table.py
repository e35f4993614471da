"""The printed table: one line per comparison, as soon as it is known."""

from collections.abc import Sequence


class Table:
    """Lines of cells under headings, aligned; remembers whether any line said DISAGREE."""

    def __init__(self, *headings: str, widths: Sequence[int] | None = None):
        self.agreed = True
        self._widths = [max(len(h), w) for h, w in zip(headings, widths or [11] * len(headings), strict=True)]
        print()
        self._print(headings)
        self._print(["-" * width for width in self._widths])

    def line(self, *cells: object) -> None:
        texts = [cell if isinstance(cell, str) else format_number(cell) for cell in cells]
        self.agreed &= "DISAGREE" not in texts
        self._print(texts)

    def _print(self, cells: Sequence[str]) -> None:
        print("| " + " | ".join(c.ljust(w) for c, w in zip(cells, self._widths, strict=True)) + " |", flush=True)


class RatioTable(Table):
    """`ours / peer` with the goal beside it."""

    def __init__(self, *headings: str, unit: str = "s"):
        super().__init__(*headings, "peer", f"ours, {unit}", f"peer's, {unit}", "ratio", "goal", "verdict")

    def compare(self, *case: object, peer: str, ours: float, theirs: float, goal: float | None, agree: bool = True) -> None:
        ratio = ours / theirs
        shown = "–" if goal is None else f"≤ {goal:g}"
        self.line(*case, peer, ours, theirs, f"{ratio:.2f}", shown, verdict(ratio, goal) if agree else "DISAGREE")


def verdict(value: float, goal: float | None) -> str:
    if goal is None:
        return "–"
    return "met" if value <= goal else "missed"


def format_number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
