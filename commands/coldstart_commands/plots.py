"""Small pictures in lines of text: bars and sparklines, in ASCII where a terminal has no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer

_LEVELS, _PLAIN_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_EIGHTHS, _PLAIN_EIGHTHS = " ▏▎▍▌▋▊▉", "    ####"


class Plots:
    """Draws with the characters that this printer's stdout can show."""

    def __init__(self, printer: Printer) -> None:
        blocks = printer.can_show(_LEVELS + _EIGHTHS)
        self._levels = _LEVELS if blocks else _PLAIN_LEVELS
        self._full = "█" if blocks else "#"
        self._parts = _EIGHTHS if blocks else _PLAIN_EIGHTHS

    def bar(self, value: float, most: float, width: int) -> str:
        """As long as its share of the longest, which has `width` characters; what is not nothing is seen."""
        if most <= 0 or value <= 0:
            return ""
        whole, part = divmod(max(1, round(8 * width * value / most)), 8)
        return (self._full * whole + self._parts[part]).rstrip() or self._full

    def sparkline(
        self, values: Sequence[int], width: int, chosen: Callable[[Sequence[int]], int] = max
    ) -> str:
        """One character for each stretch of values, of which `chosen` is shown; blank only where it is 0."""
        width = min(width, len(values))
        edges = [len(values) * number // width for number in range(width + 1)] if width else []
        shown = [chosen(values[first:end]) for first, end in pairwise(edges)]
        most, finest = max(shown, default=0), len(self._levels) - 1
        return "".join(
            self._levels[max(1, round(finest * value / most)) if value > 0 else 0] for value in shown
        )
