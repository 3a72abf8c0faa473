"""State files read strictly: what has another shape than it should is damage, not a surprise later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from coldstart_health.moment import Moment
from coldstart_health.verdict import Verdict

T = TypeVar("T")


def moment_json(moment: Moment) -> dict[str, Any]:
    return dict(vars(moment))


def moment_from_json(document: object) -> Moment:
    fields = StrictObject(document)
    utc = fields.text("utc")
    if datetime.fromisoformat(utc).tzinfo is None:
        raise ValueError(f"a time without a zone: {utc}")
    return Moment(fields.text("boot_id"), fields.number("boottime_seconds"), utc)


class StrictObject:
    """An object whose every value has its type; raises KeyError, TypeError or ValueError."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict):
            raise TypeError(f"not an object: {document!r:.40}")
        self._document: dict[str, Any] = document

    def _get(self, key: str, kind: type[T]) -> T:
        value = self._document[key]
        # a bool is an int to isinstance
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{key}: {value!r:.40}")
        return value

    def text(self, key: str) -> str:
        return self._get(key, str)

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        return None if self._document[key] is None else read(key)

    def integer(self, key: str) -> int:
        value = self._get(key, int)
        if value < 0:
            raise ValueError(f"{key}: {value}")
        return value

    def flag(self, key: str) -> bool:
        return self._get(key, bool)

    def number(self, key: str) -> float:
        value = self._document[key]
        number = self.integer(key) if isinstance(value, int) else self._get(key, float)
        if not -(2.0**1000) < number < 2.0**1000:  # neither nan, nor what no float can hold
            raise ValueError(f"{key}: {value!r:.40}")
        return float(number)

    def items(self, key: str) -> list[Any]:
        return self._get(key, list)

    def texts(self, key: str) -> tuple[str, ...]:
        if not all(isinstance(item, str) for item in self.items(key)):
            raise TypeError(key)
        return tuple(self.items(key))

    def value(self, key: str) -> Any:
        return self._document[key]

    def names(self) -> list[str]:
        return list(self._document)

    def inner(self, key: str) -> StrictObject:
        return StrictObject(self._document[key])

    def verdict(self, key: str) -> Verdict:
        return Verdict[self.text(key).upper()]

    def moment(self, key: str) -> Moment:
        return moment_from_json(self._document[key])

    def counters(self, key: str) -> dict[str, int]:
        fields = self.inner(key)
        return {name: fields.integer(name) for name in fields.names()}
