"""Frozen dataclasses as JSON values and back: what was recorded on one host is judged on another one."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from coldstart_cli import errors
from coldstart_cli.errors import ColdstartError

T = TypeVar("T")


class MisfitError(ValueError):
    """JSON that is not what the class holds; `where` is the path to it."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")


def to_plain(value: object) -> Any:
    """Enumerations by value, errors by their kind, paths as texts."""
    if isinstance(value, ColdstartError):
        return {"error": type(value).__name__, "message": value.message, "hint": value.hint}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], document: object, names: Mapping[str, type[Any]] | None = None) -> T:
    """The value that `to_plain` wrote. `names`: classes that annotations name without importing them.

    Unknown keys are passed over, absent ones get their default; all else raises MisfitError.
    """
    return cast("T", _Reader(names or {}).read(kind, document, "$"))


class _Reader:
    def __init__(self, names: Mapping[str, type[Any]]) -> None:
        self._names = dict(names)
        self._hints = functools.cache(
            lambda kind: typing.get_type_hints(kind, localns=self._names)  # types are few, values many
        )

    def read(self, kind: Any, value: Any, where: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in {types.UnionType, typing.Union}:
            return self._union(arguments, value, where)
        if origin is tuple:
            inner = arguments[0]
            items = _of(list, value, where)
            return tuple(self.read(inner, item, f"{where}[{index}]") for index, item in enumerate(items))
        if origin is typing.Literal:
            if value not in arguments:
                raise MisfitError(where, f"{value!r:.40} is none of {arguments}")
            return value
        if origin is not None and issubclass(origin, Mapping):
            items = _of(dict, value, where)
            return {key: self.read(arguments[1], item, f"{where}.{key}") for key, item in items.items()}
        return self._plain(kind, value, where)

    def _union(self, kinds: tuple[Any, ...], value: Any, where: str) -> Any:
        if value is None and type(None) in kinds:
            return None
        problem = MisfitError(where, "empty union")
        for kind in kinds:
            if kind is not type(None):
                try:
                    return self.read(kind, value, where)
                except MisfitError as error:
                    problem = error
        raise problem

    def _plain(self, kind: Any, value: Any, where: str) -> Any:
        if is_dataclass(kind):
            return self._object(kind, _of(dict, value, where), where)
        if isinstance(kind, type) and issubclass(kind, Enum):
            try:
                return kind(value)
            except ValueError as error:
                raise MisfitError(where, f"{value!r:.40} is no {kind.__name__}") from error
        if isinstance(kind, type) and issubclass(kind, ColdstartError):
            return _error(_of(dict, value, where))
        if kind is Path:
            return Path(_of(str, value, where))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**1000 else math.inf
        if isinstance(value, float) and not math.isfinite(value):
            raise MisfitError(where, "no finite number")
        return _of(kind, value, where)

    def _object(self, kind: Any, document: dict[str, Any], where: str) -> Any:
        hints = self._hints(kind)
        values = {}
        for item in fields(kind):
            if item.name in document:
                values[item.name] = self.read(hints[item.name], document[item.name], f"{where}.{item.name}")
            elif item.default is MISSING and item.default_factory is MISSING:
                raise MisfitError(where, f"no `{item.name}`")
        return kind(**values)


def _of(kind: Any, value: Any, where: str) -> Any:
    # a bool is an int to isinstance
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise MisfitError(where, f"{value!r:.40} is no {getattr(kind, '__name__', kind)}")
    return value


def _error(document: dict[str, Any]) -> ColdstartError:
    """An error of the kind that was recorded, where this release still has it."""
    kind = getattr(errors, str(document.get("error")), ColdstartError)
    if not (isinstance(kind, type) and issubclass(kind, ColdstartError)):
        kind = ColdstartError
    hint = document.get("hint")
    return kind(str(document.get("message")), hint=None if hint is None else str(hint))
