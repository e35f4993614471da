"""Pictures, with matplotlib: `from kernax import plot`.

Every function draws into `ax=` (or a new figure) and returns it; `ridge_choices` draws several pictures into `axes=`.
"""

try:
    import matplotlib  # noqa: F401  (optional: said before the files below fail to find it)
except ImportError as error:
    raise ImportError("kernax.plot draws with matplotlib: pip install matplotlib.") from error

from kernax.plot._components import components
from kernax.plot._gram import gram
from kernax.plot._l_curve import l_curve
from kernax.plot._leave_one_out import loo_residuals
from kernax.plot._posterior import posterior
from kernax.plot._ridge_choice import ridge_choice, ridge_choices
from kernax.plot._tasks import tasks

__all__ = ["components", "gram", "l_curve", "loo_residuals", "posterior", "ridge_choice", "ridge_choices", "tasks"]
