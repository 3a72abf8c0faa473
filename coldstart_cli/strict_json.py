"""State files read strictly: what has another shape than it should is damage, not a surprise later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

T = TypeVar("T")


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

    def inner(self, key: str) -> Self:
        return type(self)(self._document[key])

    def counters(self, key: str) -> dict[str, int]:
        fields = self.inner(key)
        return {name: fields.integer(name) for name in fields.names()}
