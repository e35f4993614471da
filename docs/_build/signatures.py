"""Signatures as a reader wants them: those of classes made of fields, types as they are written, no private names."""

import ast
import importlib
import inspect
import re
from typing import Any

import griffe

HIDDEN = {"settings", "self"}
_PRIVATE = re.compile(r"(?<![\w.])_[A-Z][A-Z0-9_]*\b")
_TYPE_NAME = re.compile(r"(?<![\w.])[A-Z]\w*\b")


class Signatures(griffe.Extension):
    """Give every class without an `__init__` in its text the parameters that it has when imported, and mend types.

    Griffe takes a text within a type for one more expression: of `Float[Array, "n *p"]` it would show `n * p`.
    """

    def on_function_instance(self, *, node: Any, func: griffe.Function, **_: Any) -> None:
        """A function has been read: its parameters and what it returns."""
        if not isinstance(node, ast.FunctionDef):
            return
        arguments = node.args
        written = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in written:
            if argument is not None:
                func.parameters[argument.arg].annotation = _as_written(
                    argument.annotation, func.parameters[argument.arg].annotation
                )
        func.returns = _as_written(node.returns, func.returns)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """A field or a property has been read."""
        written = node.returns if isinstance(node, ast.FunctionDef) else getattr(node, "annotation", None)
        attr.annotation = _as_written(written, attr.annotation)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """After the whole package has been read."""
        self._visit(pkg)

    def _visit(self, of: griffe.Module | griffe.Class) -> None:
        for member in of.members.values():
            if member.is_alias:
                continue
            if member.is_function:
                for parameter in member.parameters:
                    parameter.annotation = _without_type_variables(parameter.annotation, member.module)
                    parameter.default = _plain_default(parameter.default, member.module)
                member.returns = _without_type_variables(member.returns, member.module)
            if member.is_attribute:
                member.annotation = _without_type_variables(member.annotation, member.module)
            if member.docstring:
                member.docstring.value = _with_values(member.docstring.value, member.module)
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
    default = (
        None if p.default is p.empty else "..." if "<" in repr(p.default) else _plain_default(repr(p.default), of.module)
    )
    field = of.members.get(p.name)
    annotation = field.annotation if isinstance(field, griffe.Attribute) else None
    return griffe.Parameter(p.name, annotation=annotation, kind=griffe.ParameterKind[p.kind.name.lower()], default=default)


def _as_written(node: ast.expr | None, read: Any) -> Any:
    """A type that names the axes of an array, as its text (but classes without quotes); others as they were read."""
    if node is None or not any(_names_axes(part) for part in ast.walk(node)):
        return read
    return re.sub(r"'([A-Z]\w*)'", r"\1", ast.unparse(node)).replace("'", '"')


def _names_axes(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
        return False
    last = node.slice.elts[-1]
    return isinstance(last, ast.Constant) and isinstance(last.value, str)


def _without_type_variables(annotation: Any, module: griffe.Module) -> Any:
    """`M` is the class that binds it, else any tree."""
    if annotation is None:
        return None

    def meaning(name: re.Match) -> str:
        value = _value(name[0], module)
        if not value.startswith("TypeVar("):
            return name[0]
        bound = re.search(r"bound=([\w.]+)", value)
        return bound[1] if bound else "PyTree"

    text = str(annotation)
    changed = _TYPE_NAME.sub(meaning, text)
    return annotation if changed == text else changed


def _plain_default(default: Any, module: griffe.Module) -> Any:
    """Private constants as their value, or as `...` if that is no plain one; large numbers as powers of ten."""
    if default is None:
        return None
    text = re.sub(r"\b10{6,}\.0\b", lambda number: f"1e{len(number[0]) - 3}", str(default))
    text = _PRIVATE.sub(lambda name: _plain_value(name[0], module) or "...", text)
    return default if text == str(default) else text


def _with_values(docstring: str, module: griffe.Module) -> str:
    """Numbers in place of the private constants that a docstring names."""
    return _PRIVATE.sub(lambda name: _plain_value(name[0], module) or name[0], docstring)


def _plain_value(name: str, module: griffe.Module) -> str:
    value = _value(name, module)
    return value if re.fullmatch(r"[\d.e*+ -]+", value) else ""


def _value(name: str, module: griffe.Module) -> str:
    """What a name of a module stands for, as text."""
    try:
        found = module[name]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return ""
    return str(found.value) if found.is_attribute and found.value is not None else ""
