"""One read that waits: told of chunks as they land, it answers with all of them, or with the first error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from coldstart_cli.errors import ColdstartError
from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.fetch import Content, Outcome

Done = Callable[[Outcome], None]


class Read:
    """Parts of chunks, in order; `done` is called once, in whichever thread brings the last."""

    __slots__ = ("_done", "_lock", "_missing", "_outcomes", "_parts", "deadline")

    def __init__(
        self, parts: Sequence[tuple[PlacedChunk | None, int, int]], done: Done, deadline: float
    ) -> None:
        self._parts = parts
        self._done: Done | None = done
        self._missing = {chunk.position for chunk, _, _ in parts if chunk is not None}
        self._outcomes: dict[int, Content] = {}
        self._lock = Lock()
        self.deadline = deadline

    def landed(self, outcomes: Mapping[int, Outcome]) -> None:
        failure: ColdstartError | None = None
        with self._lock:
            for position in self._missing & outcomes.keys():
                outcome = outcomes[position]
                if isinstance(outcome, ColdstartError):
                    failure = failure or outcome
                    continue
                self._outcomes[position] = outcome
                self._missing.discard(position)
            if failure is None and self._missing:
                return
        self.finish(failure)

    def finish(self, failure: ColdstartError | None = None) -> None:
        """Answer now; who was answered already is not answered again."""
        with self._lock:
            done, self._done = self._done, None
        if done is not None:
            done(self._content() if failure is None else failure)

    def _content(self) -> Content:
        parts = [
            bytes(end - begin)
            if chunk is None
            else _part(self._outcomes[chunk.position], begin, end, chunk.size_bytes)
            for chunk, begin, end in self._parts
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _part(data: Content, begin: int, end: int, size_bytes: int) -> Content:
    return data if end - begin == size_bytes else memoryview(data)[begin:end]
