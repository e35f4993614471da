"""What functions use by name, and what belongs to an installed package instead of the user."""

import contextlib
import dis
import functools
import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Any


def used(function: types.FunctionType, closed: dict[str, Any]) -> dict[str, Any]:
    """The closed-over values, global variables and imports of a function, and the parts of the user's modules it names."""
    found, attributes, codes = dict(closed), set(), [function.__code__]
    for code in codes:  # the list grows meanwhile: functions within functions
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for number, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, names = (steps[number - back].argval for back in (2, 1))
                with contextlib.suppress(ImportError):
                    found[f"import {step.argval}"] = __import__(step.argval, function.__globals__, None, names, level)
            elif step.opname.endswith(("_ATTR", "_METHOD", "IMPORT_FROM")):
                attributes.add(step.argval)
            elif step.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS")) and step.argval in function.__globals__:
                found[step.argval] = function.__globals__[step.argval]
    modules = [value for value in found.values() if isinstance(value, types.ModuleType)]
    for module in modules:  # the list grows meanwhile: modules within packages
        for name in sorted(attributes) if not is_installed(module.__name__) else ():
            if hasattr(module, name):
                value = found[f"{module.__name__}.{name}"] = getattr(module, name)
                modules += [value] if isinstance(value, types.ModuleType) and value not in modules else []
    return found


def without_type_checks(function: Any) -> Any:
    """The function inside the wrappers of jaxtyping and beartype, which do not change what it computes."""
    while hasattr(function, "__wrapped__") and (
        function.__globals__.get("__name__") == "jaxtyping._decorator"
        or function.__code__.co_filename.startswith("<@beartype")
    ):
        function = function.__wrapped__
    return function


def has_installed_name(thing: Any) -> bool:
    """Whether an installed package has it under its own name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_installed(module):
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing or isinstance(thing, type)


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module belongs to kernax, to Python or to an installed package, rather than to the user."""
    package = module.partition(".")[0]
    if package == "kernax" or package in sys.stdlib_module_names:
        return True
    if package == "__main__":  # what is typed in, whichever program has been started
        return False
    found = sys.modules.get(package)
    paths = [getattr(found, "__file__", None), *getattr(found, "__path__", ())]
    return any({"site-packages", "dist-packages"} & set(Path(path).parts) for path in paths if path)


@functools.cache
def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))
