"""What a Python source imports when it is itself imported, without running or compiling it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

READ_BYTES = 128 << 10
"""Imports stand at the beginning; what comes later in a very long source is generated, mostly."""
MOST_PARTS = 32
"""Of a dotted name; a longer one is none that somebody imports."""
_MOST_NAMES = 4096
# a line that imports, or one that begins a block at the left edge; a search for its newline skips all others
_LINE = re.compile(
    rb"\n(?:"
    rb"(?P<indent>[ \t]*+)(?:"
    # none stands in another: what is never closed ends at the next one, not with the source
    rb"from[ \t]+(?P<module>[.\w]++)[ \t]+import\b[ \t]*+"
    rb"(?P<names>\((?:[^()#]++|#[^\n]*+)*+\)|[^\n#;\\]*+(?:\\\r?\n[^\n#;\\]*+)*+)"
    rb"|import[ \t]+(?P<modules>[^\n#;\\]++))"
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
        elif match["module"].count(b".") < MOST_PARTS:
            yield Statement(match["module"], tuple(_names(_COMMENT.sub(b"", match["names"]))))


def _names(text: bytes) -> Iterator[bytes]:
    """The names before `as` of a list with commas, each once."""
    seen: set[bytes] = set()
    for part in text.split(b",", _MOST_NAMES)[:_MOST_NAMES]:
        match = _NAME.match(part)
        if match is not None and match[1] not in seen and match[1].count(b".") < MOST_PARTS:
            seen.add(match[1])
            yield match[1]
