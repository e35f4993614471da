"""Columns of categories that an expression does not name multiply its terms."""

from collections.abc import Sequence

from kernax.expressions._atoms import ALIASES, ATOMS, CATEGORICAL
from kernax.expressions._columns import AbstractColumn
from kernax.expressions._syntax import Source, Term


def with_categories(tree: Term, source: Source, numbers: int, categories: Sequence[AbstractColumn]) -> Term:
    """The expression with a factor for each column of categories that it does not name.

    `numbers` is how many columns of numbers there are.
    """
    named = _named_categories(tree, categories)
    factors = [
        Term("call", tree.at, value=CATEGORICAL, options=(("columns", column.name),))
        for column in categories
        if column.name not in named and len(column.levels) > 1
    ]
    if not factors:
        return tree
    if not numbers and tree.kind == "call" and call_name(tree) in ATOMS and not tree.options:
        return _times(factors[0], factors[1:])  # without numbers, every kernel of them is 1
    terms = [_times(term, factors) if _sees_all(term) else term for term in flat(tree, "sum")]
    for term in terms:
        spline = _spline_in(term) if term.kind == "product" and term.parts[-1] is factors[-1] else None
        if spline is not None:
            name = categories[0].name
            source.fail(
                f"{spline.value} cannot be multiplied by a kernel of categories: add one, {spline.value} + "
                f'categorical("{name}"), or leave the column out (--drop {name})',
                spline.at,
            )
    return terms[0] if len(terms) == 1 else Term("sum", tree.at, tuple(terms))


def _times(term: Term, factors: list[Term]) -> Term:
    return Term("product", term.at, (term, *factors)) if factors else term


def _named_categories(term: Term, categories: Sequence[AbstractColumn]) -> set[str]:
    own = set()
    if call_name(term) == CATEGORICAL:
        chosen = dict(term.options).get("columns")
        own = {chosen} if isinstance(chosen, str) else {column.name for column in categories[:1]}
    return own.union(*(_named_categories(part, categories) for part in term.parts))


def _sees_all(term: Term) -> bool:
    """Whether a term has a kernel of all columns: one that does not choose some."""
    name = call_name(term)
    if name == "select":
        return False
    is_chosen = "columns" in dict(term.options) or name in ("constant", CATEGORICAL)
    return (name in ATOMS and not is_chosen) or any(map(_sees_all, term.parts))


def _spline_in(term: Term) -> Term | None:
    if call_name(term) in ("cubicspline", "thinplate"):
        return term
    return next((found for part in term.parts if (found := _spline_in(part)) is not None), None)


def flat(term: Term, kind: str) -> list[Term]:
    """The terms of a sum or the factors of a product, those of inner sums or products included."""
    return [inner for part in term.parts for inner in flat(part, kind)] if term.kind == kind else [term]


def call_name(term: Term) -> str:
    """The kernel that a call names, in small letters and without aliases; nothing for other terms."""
    if term.kind != "call":
        return ""
    name = str(term.value).lower().replace("_", "")
    return ALIASES.get(name, name)
