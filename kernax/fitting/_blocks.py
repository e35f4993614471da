"""The unit of all work on many datasets: a block of datasets of one shape goes in, a part of the results comes out.

Both are NumPy arrays, so a block can be worked on in a thread, in another process or on another machine. What is done to
each dataset is a `Work`: a fit (`_fit_block.py`) or a question to a conditioned model (`_ask_block.py`).
"""

import abc
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from kernax.data._host import at_place
from kernax.data._many import Unread, stacked
from kernax.data._places import UnreadableError


class Block(NamedTuple):
    """Some datasets of one padded shape.

    Every block of a shape has as many datasets, so that one compiled program serves all: the last one repeats its last.
    """

    numbers: np.ndarray
    """The datasets' numbers, without those that only fill up the block."""
    data: Any
    """A `Data` of NumPy arrays with a leading dataset axis, as have the following; `Unread` if a worker is to read them."""
    own: Any
    """What each dataset's model has of its own; the arrays of a tree that are not there are `None`."""
    given: tuple[Any, ...]
    """What else belongs to each dataset, such as its new rows."""
    width: int
    """How many fits run at once under `vmap`."""
    digests: np.ndarray | None = None
    """Of the datasets, if they were read from a file."""


class Part(NamedTuple):
    """The results of a block: NumPy arrays with a leading dataset axis."""

    numbers: np.ndarray
    results: PyTree
    digests: np.ndarray | None = None
    """Of the datasets that the results are of, if they were read from a file for this; in a checkpoint always."""


class Site(NamedTuple):
    """Where a block is worked on."""

    device: Any = None
    """`None` for JAX's default."""
    together: bool | None = None
    """Whether its datasets are computed at once under `vmap`, and not one after another; by default not on CPU."""
    stop: threading.Event | None = None
    """Is set when results are wanted at once, finished or not."""
    compiled: dict[Any, threading.Event] | None = None
    """For each shape whether its program has been compiled: threads do not compile the same program twice."""

    @property
    def at_once(self) -> bool:
        """Whether datasets are computed under `vmap`."""
        platform = jax.default_backend() if self.device is None else self.device.platform
        return platform != "cpu" if self.together is None else self.together

    @property
    def is_stopped(self) -> bool:
        """Whether results are wanted at once."""
        return self.stop is not None and self.stop.is_set()


class Work(abc.ABC):
    """What is done to each dataset of a block. It can be pickled."""

    @abc.abstractmethod
    def __call__(self, block: Block, site: Site) -> PyTree:
        """Results of all datasets of the block, as NumPy arrays with a leading axis; fillers may be left in."""

    @abc.abstractmethod
    def named(self) -> dict[str, Any]:
        """What the user has given, by the names under which an error speaks of it."""


class Spec(NamedTuple):
    """A `Work` with what it needs to give the same numbers elsewhere."""

    work: Work
    together: bool | None
    is_float64: bool

    @classmethod
    def of(cls, work: Work, together: bool | None) -> "Spec":
        """The work, in the present settings of this process."""
        return cls(work, together, bool(jax.config.read("jax_enable_x64")))


def run_block(spec: Spec, block: Block, site: Site | None = None) -> Part:
    """The part of one block. Raises `UnreadableError` if a dataset is to be read and cannot be."""
    site = Site(together=spec.together) if site is None else site
    block, unreadable = read(block)
    if unreadable:
        raise unreadable[0][1]
    with jax.default_device(site.device):
        results = spec.work(block, site)
    return Part(block.numbers, jax.tree.map(lambda leaf: np.asarray(leaf)[: len(block.numbers)], results), block.digests)


def read(block: Block) -> tuple[Block, list[tuple[int, UnreadableError]]]:
    """The block with those of its datasets that can be read, and the numbers of the others, with what went wrong."""
    if not isinstance(block.data, Unread):
        return block, []
    places, found, unreadable = block.data.places, {}, []
    for lane, number in enumerate(block.numbers.tolist()):
        try:
            found[lane] = at_place(places[lane], number, number).read()
        except UnreadableError as error:
            unreadable.append((number, error))
    if not found:
        return block._replace(numbers=block.numbers[:0]), unreadable
    lanes = list(found)
    filled = lanes + lanes[-1:] * (len(places) - len(lanes))
    own, given = jax.tree.map(lambda leaf: leaf[filled], (block.own, block.given))
    data, digests = stacked([found[lane] for lane in filled], block.data.rows), np.stack([found[i].digest() for i in lanes])
    return Block(block.numbers[lanes], data, own, given, block.width, digests), unreadable


def compiled_once(site: Site, programs: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """Call each program that no other thread of this run has called, then wait until the others have, too. The longest comes
    first. So threads compile different programs at the same time, and no program twice.

    Returns what those programs have returned that were called here.
    """
    if site.compiled is None:
        return {}
    answers = {}
    # The first thread begins with the longest program, the others with the short ones: only one can trace at a time.
    for name in reversed(programs) if site.compiled else list(programs):
        own = threading.Event()
        if site.compiled.setdefault(name, own) is own:
            try:
                answers[name] = programs[name]()
            finally:
                own.set()
    for name in programs:
        site.compiled[name].wait()
    return answers
