"""What x86-64 code refers to: the places whose addresses it takes, which is what it calls or reads soon."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# lea register, [rip + 32 bits]: REX.W with or without REX.R, any register
_TAKES_ADDRESS = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](....)", re.DOTALL)
# functions are seldom longer; what follows belongs to others
_LONGEST_FUNCTION_BYTES = 4096


def addresses_taken(code: bytes, begin: int) -> Iterator[int]:
    """The places that code at `begin` takes addresses of, counted as `begin` is."""
    for match in _TAKES_ADDRESS.finditer(code):
        yield begin + match.end() + int.from_bytes(match[1], "little", signed=True)


def function_ranges(begins: Iterable[int], most_bytes: int) -> list[tuple[int, int]]:
    """Where functions stand, as offset and length: each up to the next one, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    ordered = sorted(set(begins))
    for place, begin in enumerate(ordered):
        following = ordered[place + 1] if place + 1 < len(ordered) else begin + _LONGEST_FUNCTION_BYTES
        length = min(following - begin, _LONGEST_FUNCTION_BYTES, most_bytes)
        if not length:
            break
        most_bytes -= length
        if ranges and sum(ranges[-1]) == begin:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + length
        else:
            ranges.append((begin, length))
    return ranges
