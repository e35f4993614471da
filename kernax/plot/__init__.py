"""Pictures, with matplotlib: `from kernax import plot`.

Every function draws into `ax=` (or a new figure) and returns it; pictures with several panels take and return a list. Most
take a `Conditioned` or a `Fit`.
"""

try:
    import matplotlib  # noqa: F401  (optional: said before the files below fail to find it)
except ImportError as error:
    raise ImportError("kernax.plot draws with matplotlib: pip install matplotlib.") from error

from typing import TYPE_CHECKING

from kernax._moved import moved
from kernax.plot._calibration import calibration
from kernax.plot._components import components
from kernax.plot._fits import fits
from kernax.plot._gram import gram
from kernax.plot._kernel import kernel
from kernax.plot._l_curve import l_curve
from kernax.plot._landscape import landscape
from kernax.plot._partial_dependence import partial_dependence
from kernax.plot._posterior import posterior
from kernax.plot._predicted_observed import predicted_observed
from kernax.plot._residuals import residuals
from kernax.plot._ridge_choice import ridge_choice, ridge_choices
from kernax.plot._sensitivity import sensitivity
from kernax.plot._surface import surface
from kernax.plot._tasks import tasks
from kernax.plot._trace import trace

__all__ = [
    "calibration",
    "components",
    "fits",
    "gram",
    "kernel",
    "l_curve",
    "landscape",
    "partial_dependence",
    "posterior",
    "predicted_observed",
    "residuals",
    "ridge_choice",
    "ridge_choices",
    "sensitivity",
    "surface",
    "tasks",
    "trace",
]

if not TYPE_CHECKING:  # type checkers would otherwise accept every misspelt name
    __getattr__ = moved(__name__, "kx.plot", {"plot": "loo_residuals=residuals"})
