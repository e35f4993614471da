"""The text of a kernel expression as a small tree: read by Python's parser, compared with what is allowed, never run."""

import ast
import math
import warnings
from typing import Any, NamedTuple, NoReturn

MAX_LENGTH, MAX_DEPTH, MAX_NODES = 2000, 40, 400


class KernelExpressionError(ValueError):
    """A kernel expression that cannot be read: what is wrong, and where."""


class Term(NamedTuple):
    """`kind` is sum, product, power, call or number; `parts` are terms, `value` a number, a name or an exponent.

    The arguments of a call are `options`: numbers (floats), lists of them, text, or another `Term`. `at` is its place.
    """

    kind: str
    at: int
    parts: tuple["Term", ...] = ()
    value: Any = None
    options: tuple[tuple[str, Any], ...] = ()


class Source:
    """The text, for messages that point into it."""

    def __init__(self, text: str):
        self.text = text

    def fail(self, message: str, at: int) -> NoReturn:
        """Raise, with a caret under the place that is meant."""
        start = max(0, at - 60)
        line = self.text[start : start + 120]
        raise KernelExpressionError(f"{message}\n  {line}\n  {' ' * (at - start)}^")


def read_expression(text: str) -> tuple[Term, Source]:
    """The tree of a text. Raises `KernelExpressionError` that shows what is wrong."""
    if not isinstance(text, str):
        raise TypeError(f"a kernel expression is text, such as 'rbf + linear', got {type(text).__name__}.")
    if len(text) > MAX_LENGTH:
        raise KernelExpressionError(f"a kernel expression has at most {MAX_LENGTH} characters, this one has {len(text)}.")
    text = "".join(" " if c.isspace() else c for c in text).strip()
    source = Source(text)
    if not text:
        raise KernelExpressionError("the kernel expression is empty: write one such as 'rbf + linear'.")
    _check_nesting(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        at = error.offset - 1 if error.offset and error.offset <= len(text) else len(text)
        source.fail(f"this is not a kernel expression ({error.msg})", at)
    except (ValueError, RecursionError, MemoryError):
        source.fail("this is not a kernel expression", 0)
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise KernelExpressionError(f"this kernel expression has more than {MAX_NODES} parts: write a shorter one.")
    return _Reader(source).kernel(tree.body, 0), source


def _check_nesting(source: Source) -> None:
    depth = 0
    for at, character in enumerate(source.text):
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_DEPTH:
            source.fail(f"brackets are nested more than {MAX_DEPTH} deep", at)


class _Reader:
    """Converts Python's tree to ours, and refuses everything that is not listed here."""

    def __init__(self, source: Source):
        self.source = source

    def kernel(self, node: ast.expr, depth: int) -> Term:
        at = self._at(node)
        if depth > MAX_DEPTH:
            self.source.fail(f"this is nested more than {MAX_DEPTH} deep", at)
        number = self._number(node, depth)
        if number is not None:
            return Term("number", at, value=number)
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return Term("sum", at, (self.kernel(left, depth + 1), self.kernel(right, depth + 1)))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return Term("product", at, (self.kernel(left, depth + 1), self.kernel(right, depth + 1)))
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                exponent = self._number(right, depth + 1)
                if exponent is None or exponent not in range(1, 21):
                    self.source.fail("a kernel's power is a whole number from 1 to 20", self._at(right))
                return Term("power", at, (self.kernel(left, depth + 1),), int(exponent))
            case ast.Name(id=name):
                return Term("call", at, value=name)
            case ast.Call(func=ast.Name(id=name)):
                return self._call(node, name, depth)
            case ast.BinOp(op=ast.Sub() | ast.Div()):
                self.source.fail(
                    "kernels are added, multiplied and raised to powers; a difference or quotient is not a kernel", at
                )
        self.source.fail("only kernels, numbers, +, *, ** and brackets are allowed here", at)

    def _call(self, node: ast.Call, name: str, depth: int) -> Term:
        parts, options = [], []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.source.fail("a star has no meaning here", self._at(argument))
        if name.lower() == "categorical" and len(node.args) == 1:
            options.append(("columns", self._value(node.args[0], depth + 1)))
        elif name.lower() in ("select", "fixed") and node.args:
            if name.lower() == "fixed" and (len(node.args) > 1 or node.keywords):
                self.source.fail("fixed holds one kernel or number: fixed(rbf)", self._at(node))
            parts.append(self.kernel(node.args[0], depth + 1))
            for argument in node.args[1:]:
                options.append(("columns", self._value(argument, depth + 1)))
        elif node.args:
            self.source.fail("name this: rbf(lengthscale=2), periodic(period=1)", self._at(node.args[0]))
        for keyword in node.keywords:
            if keyword.arg is None:
                self.source.fail("stars have no meaning here", self._at(keyword.value))
            options.append((keyword.arg.lower(), self._value(keyword.value, depth + 1)))
        names = [key for key, _ in options]
        for key in names:
            if names.count(key) > 1:
                self.source.fail(f"{key} is given twice", self._at(node))
        return Term("call", self._at(node), tuple(parts), name, tuple(options))

    def _value(self, node: ast.expr, depth: int) -> Any:
        """A number, a list, text, or `fixed(…)` of a number or list as a term."""
        number = self._number(node, depth)
        if number is not None:
            return number
        match node:
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                return [self._entry(entry, depth) for entry in entries]
            case ast.Call(func=ast.Name(id=name), args=[value], keywords=[]) if name.lower() == "fixed":
                return Term("fixed", self._at(node), value=self._value(value, depth + 1))
        return self._entry(node, depth)

    def _entry(self, node: ast.expr, depth: int) -> Any:
        number = self._number(node, depth)
        if number is not None:
            return number
        match node:
            case ast.Constant(value=str() | bool() as value):
                return value
            case ast.Name(id=name):
                return {"true": True, "false": False}.get(name.lower(), name)
        self.source.fail("write a number, a list of numbers or a name here", self._at(node))

    def _number(self, node: ast.expr, depth: int) -> float | None:
        """The value of a number or of plain arithmetic with numbers; None of anything else."""
        if depth > 2 * MAX_DEPTH:
            return None
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as value):
                return self._checked(lambda: float(value), node)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                value = self._number(operand, depth + 1)
                return None if value is None else (-value if isinstance(sign, ast.USub) else value)
            case ast.BinOp(left=left, op=op, right=right):
                a = self._number(left, depth + 1)
                b = None if a is None else self._number(right, depth + 1)
                operation = _ARITHMETIC.get(type(op))
                if a is None or b is None or operation is None:
                    return None
                return self._checked(lambda: operation(a, b), node)
        return None

    def _checked(self, compute: Any, node: ast.expr) -> float:
        try:
            value = compute()
        except (OverflowError, ZeroDivisionError, ValueError):
            value = math.nan
        if isinstance(value, complex) or not math.isfinite(value):
            self.source.fail("this number is not finite", self._at(node))
        return value

    def _at(self, node: ast.expr) -> int:
        # Python counts bytes.
        return len(self.source.text.encode()[: node.col_offset].decode(errors="ignore"))


_ARITHMETIC: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}
