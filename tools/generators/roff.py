"""Man page source (man macros of groff and mandoc): escaping and the few shapes that the pages use."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable


def escape(text: str) -> str:
    """Plain text: no character of it is a command, and a hyphen can be copied as one."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    escaped = escaped.replace("`", "\\(ga").replace('"', "\\(dq")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)


def prose(text: str) -> str:
    """Text with `code` in bold; each paragraph of the source is one of the page."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n.PP\n".join(_marked(" ".join(paragraph.split())) for paragraph in paragraphs)


def _marked(paragraph: str) -> str:
    pieces = re.split(r"`([^`]+)`", paragraph)
    marked = "".join(
        f"\\fB{escape(piece)}\\fR" if number % 2 else escape(piece) for number, piece in enumerate(pieces)
    )
    lines = textwrap.wrap(marked, 100, break_long_words=False, break_on_hyphens=False)
    return "\n".join(re.sub(r"^(?=[.'])", r"\\&", line) for line in lines)


def bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    return f"\\fI{escape(text)}\\fR"


def heading(title: str, section: int, subject: str) -> str:
    """No date and no version: the page changes when a command does, and only then.

    The macros of groff 1.23 take the adjustment of each paragraph from a string.
    """
    return f'.TH "{escape(title.upper())}" "{section}" "" "coldstart" "{subject}"\n.nh\n.ds AD l\n.ad l'


def section(title: str, *blocks: str) -> str:
    return "\n".join([f'.SH "{title}"', *blocks])


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """Tagged paragraphs; the terms are roff already, the texts are prose."""
    return "\n".join(f".TP\n{term}\n{prose(text)}" for term, text in pairs)


def literal(lines: str) -> str:
    return f".PP\n.in +4n\n.EX\n{escape(lines.rstrip())}\n.EE\n.in"
