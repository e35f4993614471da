"""What functions use by name, and what belongs to an installed package instead of the user."""

import contextlib
import dis
import functools
import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Any

_REFLECTIVE = {"globals", "eval", "exec"}
"""Built-in functions that reach global variables which the code does not name."""
_IMPORTING = {"__import__", "import_module", "modules"}
"""Functions, and `sys.modules`, that reach modules which the code names in text."""


def used(function: types.FunctionType, closed: dict[str, Any]) -> dict[str, Any]:
    """The closed-over values, global variables and imports of a function, and the parts of the user's modules it names.

    A module is among them as itself if the function may use parts of it that it does not name, because it does something
    else with it than name an attribute: `getattr(helpers, "scale")`, but not `helpers.scale`. Otherwise as its name only.
    """
    found, attributes, passed_on, aliases, codes = dict(closed), set(), set(), {}, [function.__code__]
    for code in codes:  # the list grows meanwhile: functions within functions
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for number, (step, after) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
            if step.opname == "IMPORT_NAME":
                level, names = (steps[number - back].argval for back in (2, 1))
                with contextlib.suppress(ImportError):
                    found[f"import {step.argval}"] = __import__(step.argval, function.__globals__, None, names, level)
            elif _names_attribute(step):
                attributes.add(step.argval)
            elif step.opname.endswith(("_GLOBAL", "_NAME", "_GLOBALS")):
                if step.argval in function.__globals__:
                    found[step.argval] = function.__globals__[step.argval]
                elif step.argval in _REFLECTIVE:
                    found["all global variables"] = _module_of(function)
            if step.opname.startswith("IMPORT_") and after is not None and after.opname.startswith("STORE_"):
                aliases.setdefault(_names(after)[0], set()).add(step.argval)
            loaded = _loaded(step, code)
            is_named = after is not None and _names_attribute(after) and after.argval != "__dict__"
            passed_on.update(loaded[:-1] if is_named else loaded)
        if _IMPORTING & {*code.co_names}:
            texts = [text for text in code.co_consts if isinstance(text, str) and text in sys.modules]
            found |= {f"module {text}": sys.modules[text] for text in texts}
    passed_on.update(name for alias in passed_on & {*aliases} for name in aliases[alias])
    return found | _parts_of_modules(found, attributes - {"__dict__"}, passed_on)


def _parts_of_modules(found: dict[str, Any], attributes: set[str], passed_on: set[str]) -> dict[str, Any]:
    """Of the user's modules that were found: their attributes of these names, and instead of a module, unless the function
    passes on something that it knows by the same name, the module's name."""
    parts, known = {}, set()
    modules = [
        (key, key.removeprefix("import "), value) for key, value in found.items() if isinstance(value, types.ModuleType)
    ]
    for key, name, module in modules:  # the list grows meanwhile: modules within packages
        if is_installed(module.__name__):
            continue
        if name not in passed_on and not key.startswith(("module ", "all ")):
            parts[key] = f"the module {module.__name__}"
        for attribute in sorted(attributes) if module.__name__ not in known else ():
            if hasattr(module, attribute):
                part = f"{module.__name__}.{attribute}"
                parts[part] = value = getattr(module, attribute)
                modules += [(part, attribute, value)] if isinstance(value, types.ModuleType) else []
        known.add(module.__name__)
    return parts


def _names_attribute(step: dis.Instruction) -> bool:
    return step.opname.endswith(("_ATTR", "_METHOD", "IMPORT_FROM"))


def _names(step: dis.Instruction) -> list[str]:
    """The variables of a step: since Python 3.13 it may have two."""
    return [step.argval] if isinstance(step.argval, str) else list(step.argval)


def _loaded(step: dis.Instruction, code: types.CodeType) -> list[str]:
    """The names of what a step puts on the stack, the last one on top."""
    if step.opname == "STORE_FAST_LOAD_FAST":
        return _names(step)[1:]
    if not step.opname.startswith("LOAD_") or step.opname in ("LOAD_CLOSURE", "LOAD_FAST_AND_CLEAR"):
        return []
    is_text = step.opname.endswith("_CONST") or not isinstance(step.argval, str | tuple)
    is_for_inner = step.opname == "LOAD_FAST" and step.argval in (*code.co_cellvars, *code.co_freevars)
    return [] if is_text or is_for_inner else _names(step)


def _module_of(function: types.FunctionType) -> Any:
    """The module whose global variables a function sees."""
    found = sys.modules.get(str(function.__globals__.get("__name__")))
    if getattr(found, "__dict__", None) is function.__globals__:
        return found
    return {name: value for name, value in function.__globals__.items() if not name.startswith("__")}


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
