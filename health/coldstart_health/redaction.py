"""What leaves the host in a collection: no names of hosts, people and programs, no addresses, no serials."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Any

# free text; names, codes and numbers that are judged are left as they are
_FREE_TEXT = frozenset(
    {
        *("text", "evidence", "action", "message", "hint", "words", "versions", "problem", "summary"),
        *("source", "path", "point", "device", "gap", "earlier_gap", "record_damaged"),
    }
)
_SHORTEST_NAME = 4
_NO_NAMES = frozenset({"localhost", "localdomain", "nvidia", "host", "kernel"})
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_GROUP = r"[0-9a-fA-F]{1,4}"
_IPV4 = rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?![\w.])"
# shortened ones have an empty group; PCI addresses have two colons and none
_IPV6 = rf"(?<![\w:])(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{1,6}}(?::{_GROUP}){{1,6}})(?![\w:])"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # `name=python3, Ch 01`: up to 15 characters that a program chose, until the driver's own words
    (re.compile(r"\bname=.*?(?=, [A-Z0-9]|$)", re.MULTILINE), "name=<program>"),
    (re.compile(r"(Kill(?:ed)? process \d+) \(.*", re.MULTILINE), r"\1 (<program>)"),
    (re.compile(r"(INFO: task )(?!nvidia).{1,40}?:(\d+ blocked)"), r"\1<program>:\2"),
    (re.compile(r"\b(Comm|comm)[:=]\s*\S+"), r"\1: <program>"),
    (re.compile(r"(Board Serial Number:).*"), r"\1 <serial>"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<address>"),
    (re.compile(_IPV4), "<ip>"),
    (re.compile(_IPV6), "<ip>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"), "<mac>"),
    (re.compile(r"/(home|Users)/[^/\s\"']+"), r"/\1/<user>"),
)
_SERIAL_KEYS = re.compile(r"(\"serial(?:_num)?\":\s*\")([^\"]+)(\")")
_SERIAL = re.compile(r"(?<![\w.])\d{13}(?![\w.])")  # NVIDIA's have thirteen digits


class Redaction:
    """Replaces the same by the same, so that what belongs together stays so."""

    def __init__(self, *, keep_serials: bool = False, names: Iterable[str] | None = None) -> None:
        self._keep_serials = keep_serials
        self._serials: dict[str, str] = {}
        words = sorted(_host_names() if names is None else names, key=len, reverse=True)
        escaped = [re.escape(word) for word in words if len(word) >= _SHORTEST_NAME and word not in _NO_NAMES]
        self._names = re.compile(rf"(?<![\w-])(?:{'|'.join(escaped)})(?![\w-])") if escaped else None

    def tree(self, value: Any, key: str = "") -> Any:
        """JSON values with their free texts and serial numbers redacted."""
        if isinstance(value, dict):
            return {name: self.tree(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if key == "serial":
            return self._serial(value)
        return self.text(value) if key in _FREE_TEXT else value

    def text(self, text: str) -> str:
        """Any text, such as lines of the kernel log or what dcgmi printed."""
        text = _SERIAL_KEYS.sub(lambda match: f"{match[1]}{self._serial(match[2])}{match[3]}", text)
        for serial, name in self._serials.items():
            text = text.replace(serial, name)
        if not self._keep_serials:
            text = _SERIAL.sub(lambda match: self._serial(match[0]), text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return self._names.sub("<host>", text) if self._names else text

    def _serial(self, serial: str) -> str:
        if self._keep_serials or serial.startswith(("serial-", "<")):
            return serial
        return self._serials.setdefault(serial, f"serial-{len(self._serials) + 1}")


def _host_names() -> set[str]:
    """This host's name, whole and without its domain."""
    name = socket.gethostname()
    return {name, name.partition(".")[0]}
