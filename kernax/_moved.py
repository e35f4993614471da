"""Names that have moved to another module: the old ones work for one release, with a warning."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from kernax._arrays import levels_to_the_caller


def moved(module: str, shown: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module that some names have left.

    **Arguments:**

    - `module`: the name of the module, `__name__`.
    - `shown`: how users write the module, for example `"kx"`.
    - `places`: for each module of kernax, the names that are there now, separated by spaces. A name that has also changed
      is written `old=new`.

    **Returns:**

    A function to be assigned to `__getattr__` of the module. For an old name it warns at the line that uses the name, and
    returns what the name stands for; for any other name it raises `AttributeError`.
    """
    new_place = {}
    for place, names in places.items():
        for name in names.split():
            old, _, new = name.partition("=")
            new_place[old] = (place, new or old)

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in new_place:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, new = new_place[name]
        warnings.warn(
            f"{shown}.{name} is deprecated: write kx.{place}.{new}. It will be removed in kernax 0.3.",
            DeprecationWarning,
            stacklevel=levels_to_the_caller(),
        )
        return getattr(importlib.import_module(f"kernax.{place}"), new)

    return __getattr__
