"""Structures: sums of products of base kernels, by their numbers, and the structures one change away from another."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

Structure = tuple[tuple[int, ...], ...]
"""Products, each of them the sorted numbers of its base kernels: `((0,), (1, 2))` is `k_0 + k_1 * k_2`."""


class Change(NamedTuple):
    """A structure, and which of its parts were already in the structure that it was made of."""

    structure: Structure
    factors: tuple[int, ...]
    """For each factor its place in the earlier structure, -1 if it is new."""
    products: tuple[int, ...]
    """For each product its place in the earlier structure, -1 if it is new."""


def first_structures(number: int) -> Iterator[Change]:
    """Each base kernel alone."""
    for base in range(number):
        yield Change(((base,),), (-1,), (-1,))


def changes(structure: Structure, has_parameters: Sequence[bool], depth: int) -> Iterator[Change]:
    """All structures with one base kernel more or less than this one, or with another one in the place of one.

    **Arguments:**

    - `structure`: where to start.
    - `has_parameters`: for each base kernel, whether it has parameters that are fitted.
    - `depth`: how many factors a structure may have.

    **Returns:**

    An iterator of the changes. Structures that say the same as a smaller one are left out: see `is_redundant`.
    """
    places = iter(range(size(structure)))
    parts = [([(base, next(places)) for base in product], at) for at, product in enumerate(structure)]
    bases = range(len(has_parameters))
    made = []
    if size(structure) < depth:
        made += [[*parts, ([(base, -1)], -1)] for base in bases]
        for at, (factors, product) in enumerate(parts):
            made += [[*parts[:at], ([*factors, (base, -1)], product), *parts[at + 1 :]] for base in bases]
    for at, (factors, product) in enumerate(parts):
        for i in range(len(factors)):
            rest = factors[:i] + factors[i + 1 :]
            made += [[*parts[:at], ([*rest, (base, -1)], product), *parts[at + 1 :]] for base in bases]
            if size(structure) > 1:
                made.append([*parts[:at], *([(rest, product)] if rest else []), *parts[at + 1 :]])
    for products in made:
        ordered = [(sorted(factors), product) for factors, product in products]
        ordered.sort(key=lambda part: [base for base, _ in part[0]])
        change = Change(
            structure=tuple(tuple(base for base, _ in factors) for factors, _ in ordered),
            factors=tuple(place for factors, _ in ordered for _, place in factors),
            products=tuple(product for _, product in ordered),
        )
        if change.structure != structure and not is_redundant(change.structure, has_parameters):
            yield change


def is_redundant(structure: Structure, has_parameters: Sequence[bool]) -> bool:
    """Whether a factor or a summand repeats what another one says already.

    A kernel with parameters is a factor of a product only once (the product of two RBFs is an RBF). A product of kernels
    without parameters is a summand only once (the sum of two linear kernels is a linear kernel).
    """
    for product in structure:
        fitted = [base for base in product if has_parameters[base]]
        if len(set(fitted)) < len(fitted) or (not fitted and structure.count(product) > 1):
            return True
    return False


def size(structure: Structure) -> int:
    """How many factors there are in all."""
    return sum(map(len, structure))


def text(structure: Structure, names: Sequence[str]) -> str:
    """The structure as an expression, such as `linear + rbf * periodic`."""
    return " + ".join(" * ".join(names[base] for base in product) for product in structure)


def begins(structure: Structure) -> np.ndarray:
    """The places of the factors at which a product begins."""
    return np.cumsum([0, *map(len, structure)])[:-1]
