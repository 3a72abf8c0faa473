"""What a Python source imports when it is itself imported, without running or compiling it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

READ_BYTES = 128 << 10
"""Imports stand at the beginning; what comes later in a very long source is generated, mostly."""
# a line that imports, or one that begins a block at the left edge; a search for its newline skips all others
_LINE = re.compile(
    rb"\n(?:"
    rb"(?P<indent>[ \t]*)(?:"
    rb"from[ \t]+(?P<module>[.\w]+)[ \t]+import\b[ \t]*(?P<names>\([^)]*\)|[^\n#;\\]*(?:\\\r?\n[^\n#;\\]*)*)"
    rb"|import[ \t]+(?P<modules>[^\n#;\\]+))"
    rb"|(?P<deferred>def |class |async |@|if (?:typing\.)?TYPE_CHECKING\b)"
    rb"|(?:if |try:|else:|elif |except|finally:|with |for |while ))"
)
_COMMENT = re.compile(rb"#[^\n]*")
_NAME = re.compile(rb"[ \t\r\n\\()]*([\w.]+)")


class Statement(NamedTuple):
    """`from module import names`, or `import module`; leading dots of `module` are relative."""

    module: bytes
    names: tuple[bytes, ...]


def imported(source: bytes) -> Iterator[Statement]:
    """Its imports in order, but for those in functions and classes, and for type checkers only."""
    is_deferred = False
    for match in _LINE.finditer(b"\n" + source):
        indent = match["indent"]
        if indent is None:
            is_deferred = match["deferred"] is not None
            continue
        if not indent:
            is_deferred = False
        elif is_deferred:
            continue
        if (modules := match["modules"]) is not None:
            for name in _names(modules):
                yield Statement(name, ())
        else:
            yield Statement(match["module"], tuple(_names(_COMMENT.sub(b"", match["names"]))))


def _names(text: bytes) -> Iterator[bytes]:
    """The names before `as` of a list with commas."""
    for part in text.split(b","):
        if (match := _NAME.match(part)) is not None:
            yield match[1]
