"""Pictures as SVG in an HTML page: text stays text, and black lines get the colour of the text of the page."""

import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kernax.plot._canvas import BLUE

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    # Black becomes the colour of the page's text, whatever style sheet is in use.
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), "black"),
}
_FAMILY = re.compile(r"'DejaVu Sans'[^\";]*sans-serif")
_ALIKE = re.compile(r"<g(?P<own>[^>]*)>(?P<parts>(?:<(?:use|path) [^>]*/>){2,})</g>")
_LOOKS = re.compile(r'( clip-path="[^"]*")?( style="[^"]*")/>')
_NUMBERS = re.compile(r'\s(?:d|x|y|transform)="[^"]*"')
_UNUSED = {"Date": None, "Creator": None, "Format": None, "Type": None}


def inline_svg(draw: Callable[[Figure], Any], name: str, label: str, size: tuple[float, float] = (5.6, 3.7)) -> str:
    """The `<svg>` element of a picture.

    **Arguments:**

    - `draw`: a function that draws into a matplotlib figure.
    - `name`: what the identifiers inside of the picture begin with; no other picture of the page may have it.
    - `label`: what the picture shows, for screen readers.
    - `size`: width and height in inches.

    **Returns:**

    Text. Everything that stands in the picture is escaped.
    """
    file = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # Letters that matplotlib's font lacks are drawn as boxes; here the page's font draws them.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(file, format="svg", transparent=True, metadata=_UNUSED)
    text = file.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, count=1, flags=re.DOTALL)
    text = text.replace("xlink:href=", "href=").replace("stroke: #000000", "stroke: currentColor")
    # The page has a brighter blue in dark mode.
    text = text.replace(BLUE.lower(), f"var(--blue, {BLUE})")
    text = _FAMILY.sub("sans-serif", text)
    text = _NUMBERS.sub(lambda found: _shorter(found[0]), text)
    text = _ALIKE.sub(_with_common_style, re.sub(r">\s+<", "><", text))
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', text))
    text = re.sub(r' id="([\w.-]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    start = f'<svg class="picture" role="img" aria-label="{html.escape(label, quote=True)}" fill="currentColor"'
    opening = re.search(r'viewBox="[^"]*"', text)
    assert opening is not None
    return f"{start} {opening[0]}>{text[text.index('>') + 1 :]}"


def _with_common_style(group: re.Match) -> str:
    """A group whose parts all look alike, such as the dots of a picture, says so once."""
    looks = set(_LOOKS.findall(group["parts"]))
    if len(looks) != 1 or "style=" in group["own"] or group["parts"].count("style=") != group["parts"].count("/>"):
        return group[0]
    clip, style = looks.pop()
    return f"<g{group['own']}{clip}{style}>{_LOOKS.sub('/>', group['parts'])}</g>"


def _shorter(attribute: str) -> str:
    """Coordinates to a hundredth of a point."""
    return " " + " ".join(re.sub(r"(\.\d\d)\d+", r"\1", attribute).split())
