"""A bounded number of threads for work that waits for networks and disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread, main_thread
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_parallel(function: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[R]:
    """Results as they come; an item is asked for when a thread is free for it.

    After a failure no item is begun, and the failure is raised when those at work have ended. A signal
    that unwinds through here waits for nobody: the threads end with the process.
    """
    answers: SimpleQueue[_Answer[R]] = SimpleQueue()
    source = iter(items)
    failure: BaseException | None = None
    running, more = 0, True
    while True:
        while more and failure is None and running < workers:
            try:
                item = next(source)
            except StopIteration:
                more = False
            except Exception as error:  # noqa: BLE001 - raised below, when nobody is at work any more
                failure = error
            else:
                _begin(partial(function, item), answers)
                running += 1
        if not running:
            break
        answer = answers.get()
        running -= 1
        if answer.error is not None:
            failure = failure or answer.error
        elif failure is None:
            yield answer.result
    if failure is not None:
        raise failure


def interruptible(function: Callable[[], R]) -> R:
    """The function's result; in the main thread, signals are heard while a native library waits."""
    if current_thread() is not main_thread():
        return function()
    answers: SimpleQueue[_Answer[R]] = SimpleQueue()
    _begin(function, answers)
    answer = answers.get()
    if answer.error is not None:
        raise answer.error
    return answer.result


class _Answer(Generic[R]):
    result: R
    error: BaseException | None = None


def _begin(function: Callable[[], R], answers: SimpleQueue[_Answer[R]]) -> None:
    def work() -> None:
        answer = _Answer[R]()
        try:
            answer.result = function()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            answer.error = error
        answers.put(answer)

    Thread(target=work, daemon=True).start()
