"""Blocks in other processes: what happens if workers die, cannot read, or raise."""

import contextlib
import importlib
import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from typing import Any, NoReturn

from kernax._arrays import levels_to_the_caller
from kernax._threads import cores
from kernax.data._places import UnreadableError
from kernax.fitting._blocks import Block, Part, Spec, read
from kernax.fitting._sealed import Failure, run_sealed, sealed, versions
from kernax.solvers import Result

_IN_FLIGHT = 2
"""Blocks for each worker of a process pool that are handed over before they are needed. If a worker dies, its pool is lost,
and all of these have to be repeated."""
_UNABLE = (ImportError, AttributeError, TypeError, pickle.PickleError, CancelledError)
"""Errors of an executor that say that its workers cannot do the work, rather than that one of them has died."""
_SHOWN = 8
"""How many datasets an error names at most."""


class Elsewhere:
    """One run of blocks through an executor of other processes: `run_blocks`, see there.

    A block whose worker dies is tried once more, alone, so that it is known whose worker dies. A block that a worker cannot
    read is read here instead, and sent to it.
    """

    def __init__(self, spec: Spec, blocks: Sequence[Block], take: Callable[[Part], None], executor: Executor):
        self._spec, self._take, self._executor = sealed(spec), take, executor
        workers = getattr(executor, "_max_workers", None)
        self._limit = len(blocks) if workers is None else _IN_FLIGHT * workers
        self._left, self._again = list(reversed(blocks)), []
        self._running: dict[Future, Block] = {}
        self._missing: dict[int, Any] = {}
        self._has_answered = False

    def run(self) -> dict[int, Any]:
        """Why datasets have no results, by their numbers."""
        with contextlib.ExitStack() as stack:
            try:
                while self._left or self._running or self._again:
                    is_last = not self._left and not self._running
                    while self._left and len(self._running) < self._limit:
                        self._submit(self._left.pop(), stack)
                    if is_last and self._again:
                        self._submit(self._again.pop(), stack)
                    # With a time limit, again and again: a wait without one may sleep through Ctrl-C.
                    for future in wait(self._running, timeout=0.2, return_when=FIRST_COMPLETED).done:
                        self._settle(self._running.pop(future), _answer(future), is_last=is_last)
            except BaseException:
                for future in self._running:
                    answer = None if future.cancel() or not future.done() else _answer(future)
                    if isinstance(answer, Part):
                        self._take(answer)
                raise
        return self._missing

    def _submit(self, block: Block, stack: contextlib.ExitStack) -> None:
        call = run_sealed, versions(), self._spec, sealed(block)
        try:
            future = self._executor.submit(*call)
        except BrokenExecutor as error:
            another = _another(self._executor, stack)
            if another is None:
                self._give_up([block, *self._left, *self._again], error)
                return
            self._executor = another
            if not self._has_answered:
                self._check_that_workers_start()
            future = self._executor.submit(*call)
        self._running[future] = block

    def _settle(self, block: Block, answer: Part | Failure | BaseException, *, is_last: bool) -> None:
        self._has_answered |= not isinstance(answer, BaseException)
        if isinstance(answer, Part):
            self._take(answer)
        elif isinstance(answer, BaseException) and not is_last:
            self._again.append(block)
        elif isinstance(answer, BaseException):
            if not self._has_answered and isinstance(answer, _UNABLE):
                remedy = "Install the same kernax where its workers run, and check that it still runs."
                self._refuse("no worker of {} gave an answer", answer, remedy)
            self._lose([block], answer)
        elif isinstance(answer.error, UnreadableError):
            here, unreadable = read(block)
            self._left.extend([here] if len(here.numbers) else [])
            self._missing.update({number: Result.unreadable for number, _ in unreadable})
        else:
            answer.error.add_note(f"Raised in a worker process, over {_named(block.numbers.tolist())}:\n{answer.traceback}")
            raise answer.error

    def _lose(self, blocks: Iterable[Block], error: BaseException) -> None:
        """Datasets without answers."""
        numbers = [number for block in blocks for number in block.numbers.tolist()]
        if not any(why is Result.lost for why in self._missing.values()):
            warnings.warn(
                f"workers gave no answer for {len(numbers)} or more datasets, which are lost "
                f"({type(error).__name__}: {error}).",
                stacklevel=levels_to_the_caller(),
            )
        self._missing.update(dict.fromkeys(numbers, Result.lost))

    def _give_up(self, blocks: list[Block], error: BrokenExecutor) -> None:
        """The executor takes no more blocks, and kernax cannot make another one like it."""
        if not self._has_answered and not self._running:
            self._refuse("{} is broken and takes no work", error, "Make a new executor, and call again.")
        self._left, self._again = [], []
        self._lose(blocks, error)

    def _check_that_workers_start(self) -> None:
        """Whether anything at all can be asked of a pool that has taken the place of a broken one."""
        asked = self._executor.submit(versions)
        while not wait([asked], timeout=0.2).done:
            pass
        if (error := asked.exception()) is not None:
            remedy = "Check the pool's initializer and the memory of the machine; the workers' own errors are printed above."
            self._refuse("the workers of {} die when they start", error, remedy)

    def _refuse(self, what: str, error: BaseException, remedy: str) -> NoReturn:
        name = type(self._executor).__name__
        raise RuntimeError(f"{what.format(name)} ({type(error).__name__}: {error}). {remedy}") from error


def _named(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"dataset{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_SHOWN]))}{more}"


def _answer(future: Future) -> Part | Failure | BaseException:
    """What a worker has sent, or why there is no answer. (What the computation itself raises comes as a `Failure`.)"""
    try:
        return pickle.loads(future.result())
    except (Exception, CancelledError) as error:
        return error


def _another(executor: Executor, stack: contextlib.ExitStack) -> Executor | None:
    """A pool in place of one that ended because one of its workers died, with the same workers and the same set-up. `None`
    for an executor that is neither of Python's own process pools nor of loky's."""
    kept: dict[str, Any] = {name: getattr(executor, f"_{name}", None) for name in ("max_workers", "initializer", "initargs")}
    kept |= {"max_workers": kept["max_workers"] or cores(), "initargs": kept["initargs"] or ()}
    if type(executor).__module__.partition(".")[0] == "loky":
        more = {name: getattr(executor, f"_{name}", None) for name in ("context", "timeout", "env")}
        return importlib.import_module("loky").get_reusable_executor(**kept, **more)
    if type(executor) is not ProcessPoolExecutor:
        return None
    context = getattr(executor, "_mp_context", None) or multiprocessing.get_context("spawn")
    return stack.enter_context(ProcessPoolExecutor(mp_context=context, **kept))
