"""Work beside the main thread that may hang in a driver or a file system, and is left behind then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
_UNWIND_SECONDS = 5.0


class Beside:
    """Threads whose end a launch that goes well has seen; one that unwinds does not wait for them for long.

    A `ThreadPoolExecutor` waits for ever, and once more when the interpreter ends.
    """

    def __init__(self, unwind_seconds: float = _UNWIND_SECONDS) -> None:
        self._unwind_seconds = unwind_seconds
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], T]) -> Future[T]:
        # brings `logging` along, and a restore needs it only once criu works
        from concurrent.futures import Future

        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again by who asks for the result
                future.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return future

    def later(self, work: Callable[[], T]) -> Callable[[], Future[T]]:
        """Work that begins when what is returned is called first; each call gives its future."""
        begun: list[Future[T]] = []

        def begin() -> Future[T]:
            if not begun:
                begun.append(self.submit(work))
            return begun[0]

        return begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + self._unwind_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
