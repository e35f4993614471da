"""Signatures of classes whose `__init__` is made of their fields, which a reader of source text does not see."""

import importlib
import inspect
from typing import Any

import griffe

HIDDEN = {"settings", "self"}


class FieldSignatures(griffe.Extension):
    """Give every class without an `__init__` in its text the parameters that it has when imported."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """After the whole package has been read."""
        self._visit(pkg)

    def _visit(self, of: griffe.Module | griffe.Class) -> None:
        for member in of.members.values():
            if member.is_alias:
                continue
            if member.is_module or member.is_class:
                self._visit(member)  # pyright: ignore[reportArgumentType]
            if member.is_class and "__init__" not in member.members:
                self._add(member)  # pyright: ignore[reportArgumentType]

    def _add(self, of: griffe.Class) -> None:
        try:
            found = getattr(importlib.import_module(of.module.path), of.name)
            parameters = inspect.signature(found).parameters.values()
        # Rooms whose extra is not installed are shown without; classes within functions are not found.
        except (ImportError, AttributeError, TypeError, ValueError):
            return
        wanted = [p for p in parameters if p.name not in HIDDEN]
        if not wanted or {p.name for p in wanted} == {"args", "kwargs"} or inspect.isabstract(found):
            return
        parameters = griffe.Parameters(*(_parameter(p, of) for p in wanted))
        made = griffe.Function("__init__", parameters=parameters, parent=of, runtime=False)
        of.set_member("__init__", made)


def _parameter(p: inspect.Parameter, of: griffe.Class) -> griffe.Parameter:
    default = None if p.default is p.empty else "…" if "<" in repr(p.default) else repr(p.default)
    field = of.members.get(p.name)
    annotation = field.annotation if isinstance(field, griffe.Attribute) else None
    return griffe.Parameter(p.name, annotation=annotation, kind=griffe.ParameterKind[p.kind.name.lower()], default=default)
