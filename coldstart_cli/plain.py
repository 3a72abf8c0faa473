"""Text that says nothing to a terminal, a log or a protocol of lines, whatever names it holds."""

from __future__ import annotations


def plain(text: str, *, keep: str = "") -> str:
    """Names may hold any byte: what is no printable character, nor one of `keep`, is shown escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python carries a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()
