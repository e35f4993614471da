"""Kernels from text: `rbf + 2.5 * periodic(period=1) * matern32`, in the units of a table."""

# Parameters are declared as the arrays they become; type checkers do not see that numbers are converted.
# pyright: reportArgumentType=false

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from kernax._spelling import nearest
from kernax.expressions._atoms import ALIASES, ATOMS, CATEGORICAL, Atom, atom_options, categorical_options
from kernax.expressions._categories import call_name, flat, with_categories
from kernax.expressions._columns import AbstractColumn, PlainColumn, numbers_key
from kernax.expressions._syntax import KernelExpressionError, Source, Term, read_expression
from kernax.kernels import AbstractKernel, Categorical, Constant, Power, Product, Scale, Select, Sum


class Built(NamedTuple):
    """A kernel, and for each of its leaves whether its value was written, and whether it is held fixed."""

    kernel: AbstractKernel
    given: list[bool]
    held: list[bool]

    def tree(self, flags: list[bool]) -> Any:
        """The flags in the shape of the kernel."""
        return jax.tree.unflatten(jax.tree.structure(self.kernel), flags)


class _Context(NamedTuple):
    source: Source
    columns: tuple[AbstractColumn, ...]
    """The columns of numbers that a kernel sees."""
    variance: float
    """The square of the target's scale; 1 inside products, where it has been divided by already."""
    categories: tuple[AbstractColumn, ...] = ()
    key: str | None = None
    """Where the rows have the numbers, if they are a dict."""

    def of_numbers(self, kernel: AbstractKernel) -> AbstractKernel:
        """A kernel of the numbers as one of the rows."""
        return kernel if self.key is None else Select(kernel, key=self.key)


def parse_kernel(text: str, columns: int | Sequence[AbstractColumn] = 1, *, target_scale: float = 1.0) -> AbstractKernel:
    """Make the kernel that an expression describes.

    Names are those of kernax's kernels, in upper or lower case. They are combined by `+`, `*`, `**`, numbers and brackets. A
    kernel of several columns has a lengthscale for each, unless it says `ard=False`. `select(kernel, "t")` and
    `rbf(columns=["t", 1])` use some columns only, by name or number. A kernel or a number inside `fixed(…)` is not fitted.
    Each term of a sum has its own variance. Parameters that are not written start at values that suit the data.
    Lengthscales, periods and variances are in the units of the columns: they are divided by `Column.scale`.

    `categorical("site")` is the kernel of a column of categories. It takes `rank=` and `correlation=` as
    [`Categorical`][kernax.kernels.Categorical] does. Categories that the expression does not name multiply each term that
    does not choose columns.

    **Arguments:**

    - `text`: the expression, such as `"rbf + linear"`.
    - `columns`: the number of columns, or the columns of a table.
    - `target_scale`: the number by which the target was divided. Variances are divided by its square.

    **Returns:**

    A kernel. Raises `KernelExpressionError`, which shows the place, if the expression cannot be read.
    """
    return build_kernel(text, columns, target_scale=target_scale).kernel


def build_kernel(text: str, columns: int | Sequence[AbstractColumn] = 1, *, target_scale: float = 1.0) -> Built:
    """`parse_kernel`, with what was written and what is held."""
    if isinstance(columns, int):
        columns = [PlainColumn(f"column {i}") for i in range(columns)]
    tree, source = read_expression(text)
    if tree.kind == "number":
        source.fail("a number is not a kernel: name one, such as rbf", tree.at)
    numbers = tuple(column for column in columns if not column.is_category)
    categories = tuple(column for column in columns if column.is_category)
    key = numbers_key(columns) if categories else None
    context = _Context(source, numbers, target_scale**2, categories, key)
    try:
        return _sum(with_categories(tree, source, len(numbers), categories), context, 1.0, False)
    except RecursionError:
        source.fail("this is nested too deeply", 0)


def _sum(term: Term, context: _Context, factor: float, is_written: bool) -> Built:
    """A sum in which each term has a variance of its own; `factor` multiplies them all."""
    built = [_scaled_term(part, context, factor, is_written) for part in flat(term, "sum")]
    if len(built) == 1:
        return built[0]
    # Sums within sums (`2 * (a + b) + c`) have been multiplied out.
    kernels = [k for b in built for k in (b.kernel.kernels if isinstance(b.kernel, Sum) else (b.kernel,))]
    return _joined(Sum(tuple(kernels)), built)


def _scaled_term(term: Term, context: _Context, factor: float, is_written: bool) -> Built:
    """One term of a sum, with its variance."""
    parts = flat(term, "product")
    held_numbers = [part.parts[0] for part in parts if _is_held_number(part)]
    numbers = [part for part in parts if part.kind == "number"] + held_numbers
    factors = [part for part in parts if part.kind != "number" and not _is_held_number(part)]
    is_held = bool(held_numbers)
    for number in numbers:
        if not number.value > 0:
            context.source.fail("a variance is a positive number", number.at)
        factor, is_written = factor * number.value, True
    if not math.isfinite(factor):
        context.source.fail("this number is not finite", term.at)
    if not factors:
        return Built(_made(context, term.at, lambda: Constant(factor / context.variance)), [True], [is_held])
    sums = [part for part in factors if part.kind == "sum" or call_name(part) == "fixed" or _holds_sum(part)]
    if is_held and (sums or call_name(factors[0]) == "select"):
        context.source.fail("a fixed number can only multiply plain kernels: write it before each term", held_numbers[0].at)
    if len(factors) == 1 and (sums or call_name(factors[0]) == "select"):
        return _wrapped(factors[0], context, factor, is_written)
    if len(factors) == 1 and call_name(factors[0]) in ("linear", "constant"):
        return _own_variance(factors[0], context, factor, is_written, is_held)
    if not sums:
        inner = _product(term, [_factor(part, context) for part in factors], context)
        # A variance that is written, here or inside, is in the target's units squared; the other is a place to start.
        is_written = is_written or any(map(_writes_variance, factors))
        variance = factor / context.variance if is_written else 1.0
        kernel = _made(context, term.at, lambda: Scale(inner.kernel, variance))
        return Built(kernel, [*inner.given, is_written], [*inner.held, is_held])
    first = sums[0]
    built = [_wrapped(part, context, factor, is_written) if part is first else _factor(part, context) for part in factors]
    return _product(term, built, context)


def _product(term: Term, built: list[Built], context: _Context) -> Built:
    if len(built) == 1:
        return built[0]
    kernels = [k for b in built for k in (b.kernel.kernels if isinstance(b.kernel, Product) else (b.kernel,))]
    return _joined(_made(context, term.at, lambda: Product(tuple(kernels))), built)


def _wrapped(term: Term, context: _Context, factor: float, is_written: bool) -> Built:
    """A sum, or what stands around one, whose terms have variances."""
    match call_name(term):
        case "fixed":
            inner = _sum(_only_part(term, context), context, factor, is_written)
            return inner._replace(held=[True] * len(inner.held))
        case "select":
            columns = _columns_of(term, context)
            inner = _sum(_only_part(term, context), _narrowed(context, columns), factor, is_written)
            return inner._replace(kernel=context.of_numbers(Select(inner.kernel, columns)))
    return _sum(term, context, factor, is_written)


def _factor(term: Term, context: _Context) -> Built:
    """A kernel without a variance of its own, unless it is a sum: a factor of a product."""
    inside = context._replace(variance=1.0)
    if term.kind == "power":
        inner = _factor(term.parts[0], inside)
        return inner._replace(kernel=_made(context, term.at, lambda: Power(inner.kernel, term.value)))
    if term.kind in ("sum", "number"):
        return _sum(term, inside, 1.0, False)
    if term.kind == "product":
        return _scaled_term(term, inside, 1.0, False)
    match call_name(term):
        case "fixed":
            inner = _factor(_only_part(term, context), inside)
            return inner._replace(held=[True] * len(inner.held))
        case "select":
            columns = _columns_of(term, context)
            inner = _factor(_only_part(term, context), _narrowed(inside, columns))
            return inner._replace(kernel=context.of_numbers(Select(inner.kernel, columns)))
    return _atom(term, inside)


def _own_variance(term: Term, context: _Context, factor: float, is_written: bool, is_held: bool) -> Built:
    """`linear` or `constant`, whose variance takes the number in front of it."""
    options = dict(term.options)
    if "variance" in options and is_written:
        context.source.fail("the variance is given twice: in front and as an argument", term.at)
    if is_written:
        variance = Term("fixed", term.at, value=factor) if is_held else factor
        term = term._replace(options=(*term.options, ("variance", variance)))
    return _atom(term, context)


def _atom(term: Term, context: _Context) -> Built:
    name = call_name(term)
    if name == CATEGORICAL:
        return _categorical(term, context)
    atom = ATOMS.get(name)
    if atom is None:
        known = [*ATOMS, *ALIASES, CATEGORICAL, "select", "fixed"]
        hint = nearest(str(term.value), known).strip() or f"The kernels are {', '.join(ATOMS)}."
        context.source.fail(f"there is no kernel {term.value!r}. {hint}", term.at)
    if term.parts:
        context.source.fail(f"{term.value} takes named values: {', '.join(atom.parameters)}", term.at)
    _check_known(term, atom, context)
    columns = _columns_of(term, context)
    inside = context if columns is None else _narrowed(context, columns)
    if not inside.columns and name != "constant":
        context.source.fail(
            f"{term.value} is for columns of numbers, but the table has none: write {CATEGORICAL}"
            f'("{context.categories[0].name}")',
            term.at,
        )
    values, given, held = atom_options(atom, dict(term.options), inside.columns, inside.variance, context.source, term.at)
    kernel = _made(context, term.at, lambda: atom.make(**values))
    paths = [path[0].name for path, _ in jax.tree_util.tree_flatten_with_path(kernel)[0]]
    if columns is not None:
        kernel = Select(kernel, columns)
    kernel = kernel if name == "constant" else context.of_numbers(kernel)
    return Built(kernel, [path in given for path in paths], [path in held for path in paths])


def _categorical(term: Term, context: _Context) -> Built:
    """The kernel of a column of categories."""
    names = [column.name for column in context.categories]
    options = dict(term.options)
    chosen = options.pop("columns", names[0] if len(names) == 1 else None)
    if not isinstance(chosen, str) or chosen not in names:
        known = f"The categories here are {', '.join(names)}" if names else "There are no columns of categories here"
        if any(column.name == chosen for column in context.columns):
            known = f"{chosen} is read as numbers: write --categories {chosen} to read it as categories"
        elif chosen is None:
            known = f'name the column, {CATEGORICAL}("{names[0]}"). {known}' if names else known
        context.source.fail(f"{CATEGORICAL} is for one column of categories. {known}", term.at)
    column = context.categories[names.index(chosen)]
    values, held = categorical_options(options, column, context.source, term.at)
    kernel = _made(context, term.at, lambda: Categorical(column.name, column.levels, **values))
    paths = [path[0].name for path, _ in jax.tree_util.tree_flatten_with_path(kernel)[0]]
    return Built(kernel, [path in values for path in paths], [path in held for path in paths])


def _check_known(term: Term, atom: Atom, context: _Context) -> None:
    known = [*atom.parameters, *(["ard"] if atom.has_ard else []), "columns"]
    for option, _ in term.options:
        if option not in known:
            hint = nearest(option, known) or ""
            takes = f"{term.value} takes {', '.join(known)}"
            context.source.fail(f"{term.value} has no {option!r}.{hint} {takes}.", term.at)


def _columns_of(term: Term, context: _Context) -> tuple[int, ...] | None:
    """The places of the columns that a call names, among those that it sees; None if it names none."""
    chosen = dict(term.options).get("columns")
    if chosen is None:
        if call_name(term) == "select":
            context.source.fail('select needs a kernel and columns: select(rbf, "t") or select(rbf, [0, 1])', term.at)
        return None
    names = [column.name for column in context.columns]
    places = []
    for one in chosen if isinstance(chosen, list) else [chosen]:
        if isinstance(one, str):
            if one in [column.name for column in context.categories]:
                context.source.fail(f'{one} is a column of categories: multiply or add {CATEGORICAL}("{one}")', term.at)
            if one not in names:
                context.source.fail(
                    f"there is no column {one!r} here.{nearest(one, names)} They are {', '.join(names)}", term.at
                )
            places.append(names.index(one))
        elif isinstance(one, float) and one in range(len(names)):
            places.append(int(one))
        else:
            context.source.fail(f"columns are named, or numbered from 0 to {len(names) - 1}", term.at)
    if not places or len(set(places)) < len(places):
        context.source.fail("name at least one column, and each once", term.at)
    return tuple(places)


def _narrowed(context: _Context, columns: tuple[int, ...] | None) -> _Context:
    return context._replace(columns=tuple(context.columns[i] for i in columns or ()), categories=(), key=None)


def _only_part(term: Term, context: _Context) -> Term:
    if not term.parts:
        context.source.fail(
            f"{term.value} needs a kernel: {term.value}(rbf{', …' if call_name(term) == 'select' else ''})", term.at
        )
    unknown = [option for option, _ in term.options if option != "columns"]
    if unknown:
        context.source.fail(f"{term.value} has no {unknown[0]!r}", term.at)
    if term.parts[0].kind == "number":
        context.source.fail("a number is not a kernel: name one, such as rbf", term.parts[0].at)
    return term.parts[0]


def _holds_sum(term: Term) -> bool:
    return call_name(term) == "select" and any(flat(part, "sum") != [part] or _holds_sum(part) for part in term.parts)


def _is_held_number(term: Term) -> bool:
    return call_name(term) == "fixed" and len(term.parts) == 1 and term.parts[0].kind == "number"


def _writes_variance(term: Term) -> bool:
    """Whether a number inside says how large the kernel is."""
    return term.kind == "number" or "variance" in dict(term.options) or any(map(_writes_variance, term.parts))


def _joined(kernel: AbstractKernel, built: list[Built]) -> Built:
    return Built(kernel, [flag for b in built for flag in b.given], [flag for b in built for flag in b.held])


def _made(context: _Context, at: int, make: Any) -> Any:
    """What `make` makes; an error of the kernel itself is reported with its place."""
    try:
        return make()
    except KernelExpressionError:
        raise
    except (ValueError, TypeError) as error:
        context.source.fail(str(error).rstrip("."), at)
    except (OverflowError, FloatingPointError):
        context.source.fail("a number is out of range", at)


def written_values(built: Built, start: AbstractKernel) -> AbstractKernel:
    """`start` with the values that were written in place of its own."""
    return jax.tree.map(
        lambda mine, other, given: np.asarray(mine, np.asarray(other).dtype) if given else other,
        built.kernel,
        start,
        built.tree(built.given),
    )


def has_level(kernel: AbstractKernel) -> bool:
    """Whether a kernel has a constant as one of its terms, so that functions drawn from it have a level of their own."""
    match kernel:
        case Constant():
            return True
        case Sum():
            return any(map(has_level, kernel.kernels))
        case Product():
            return all(map(has_level, kernel.kernels))
        case Scale() | Select() | Power():
            return has_level(kernel.kernel)
    return False
