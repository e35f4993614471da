"""What a report is: entries, parameters and advice, as text, as HTML and as plain data."""

import dataclasses
import html
import math
from collections.abc import Callable
from typing import Any

from kernax.reports._page import Picture, Table, page


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of a report."""

    name: str
    """What the line is about."""
    text: str
    """The text of the line."""
    value: Any = None
    """The number or text as data."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter, or one entry of a vector: its name, value and unit, and which end of its range it sits at, if any."""

    name: str
    """The name."""
    value: float | str
    """The value."""
    unit: str = ""
    """The unit."""
    bound: str = ""
    """`"lower"` or `"upper"` if it is at an end of its range, else the empty text."""
    has_own_range: bool = False
    """Whether its range differs from the one that the kernel declares."""

    @property
    def text(self) -> str:
        shown = self.value if isinstance(self.value, str) else f"{self.value:.4g}"
        words = [shown, f"[{self.unit}]" if self.unit else "", f"(at its {self.bound} bound)" if self.bound else ""]
        return " ".join(word for word in words if word)


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """A report, from `kx.report`. Print it, or leave it at the end of a notebook cell. Programs use `as_dict()`."""

    title: str
    """The title."""
    entries: tuple[Entry, ...]
    """The lines of the report."""
    parameters: tuple[Parameter, ...] = ()
    """The parameters of the model."""
    advice: tuple[str, ...] = ()
    """What looks wrong and what to do about it, as sentences."""
    about: str = ""
    """A line below the title of the page."""
    tables: tuple[Table, ...] = ()
    """Tables of the page, such as one with a row for each of many fits."""
    draw: Callable[[], list[Picture]] | None = dataclasses.field(default=None, compare=False)
    """Draws the pictures of the page."""

    def __str__(self):
        lines = [(entry.name, entry.text) for entry in self.entries]
        parameters = [(parameter.name, parameter.text) for parameter in self.parameters]
        width = max((len(name) for name, _ in lines + parameters), default=0)
        shown = [self.title, *(f"  {name:<{width}}  {text}" for name, text in lines)]
        if parameters:
            shown += ["parameters", *(f"  {name:<{width}}  {text}" for name, text in parameters)]
        if self.advice:
            shown += ["advice", *(f"  - {sentence}" for sentence in self.advice)]
        return "\n".join(shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(_row(entry.name, html.escape(entry.text)) for entry in self.entries)
        if self.parameters:
            rows += '<tr><th colspan="2" style="text-align:left;padding-top:0.6em">parameters</th></tr>'
            rows += "".join(_row(parameter.name, _marked(parameter)) for parameter in self.parameters)
        advice = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.advice)
        return (
            f'<div class="kernax-report"><b>{html.escape(self.title)}</b>'
            f'<table style="border-collapse:collapse">{rows}</table>'
            + (f'<p style="margin-bottom:0"><b>advice</b></p><ul class="kernax-advice">{advice}</ul>' if advice else "")
            + "</div>"
        )

    def to_html(self, *, pictures: bool = True) -> str:
        """The report as one HTML page that loads nothing from the network.

        It contains the pictures of the model as vector graphics, follows the light or dark mode of the reader's device, and
        suits small screens, too. A table of many fits can be sorted and searched. Needs `jinja2`, and `matplotlib` for the
        pictures.

        **Arguments:**

        - `pictures`: whether to draw the pictures.

        **Returns:**

        The page, as text. Write it to a file in UTF-8.
        """
        return page(self, self.draw() if pictures and self.draw is not None else [])

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: no NaN, no arrays."""
        return {
            "title": self.title,
            "entries": {entry.name: _plain(entry.text if entry.value is None else entry.value) for entry in self.entries},
            "parameters": [
                {"name": p.name, "value": _plain(p.value), "unit": p.unit, "at_bound": p.bound or None}
                for p in self.parameters
            ],
            "advice": list(self.advice),
        }


def _row(name: str, cell: str) -> str:
    style = "text-align:left;padding:0.1em 1em 0.1em 0"
    return f'<tr><td style="{style}">{html.escape(name)}</td><td style="{style}">{cell}</td></tr>'


def _marked(parameter: Parameter) -> str:
    text = html.escape(parameter.text)
    return f"<b>{text}</b>" if parameter.bound else text


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
