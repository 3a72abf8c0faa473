"""Pictures by matplotlib, as SVG that takes its colours and its type from the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from coldstart_cli.plain import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# stand for the page's colours, which differ between light, dark and paper; black itself would be left unsaid
INK, MUTED, GRID, PAPER = "#000004", "#000001", "#000002", "#000003"
# after Okabe and Ito: told apart by who sees few colours, and never the only difference
BLUE, ORANGE, GREEN, RED = "#000010", "#000011", "#000012", "#000013"
PINK, SKY, GREY = "#000014", "#000015", "#000016"
_VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper",
    BLUE: "blue", ORANGE: "orange", GREEN: "green", RED: "red", PINK: "pink", SKY: "sky", GREY: "grey",
}  # fmt: skip
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "coldstart",
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "font.size": 10.0,
    "axes.titlesize": 12.0,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "hatch.linewidth": 0.8,
}
_WIDTH_INCHES = 9.6
_LONGEST_LABEL = 44


@dataclass(frozen=True)
class Drawing:
    """`svg` is our own markup, made to be put into a page."""

    svg: str
    caption: str


@contextmanager
def drawn(name: str, height_inches: float) -> Iterator[tuple[Figure, Callable[[str, str], Drawing]]]:
    """A figure to draw on, and what turns it into a picture with a caption and a text in its place.

    `name` is the picture's own in its page. The user's settings of matplotlib do not reach it.
    """
    import matplotlib as mpl  # 0.7 s and an optional dependency
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        # letters that the measuring font lacks are shown in the reader's own
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches))

        def finish(caption: str, instead: str) -> Drawing:
            stream = io.BytesIO()
            figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
            return Drawing(_inline(stream.getvalue(), name, instead), caption)

        yield figure, finish


def label(text: str) -> str:
    """A name as a label: printable, and short enough to leave room; both its ends tell it from others."""
    shown, half = plain(text), _LONGEST_LABEL // 2
    return shown if len(shown) <= _LONGEST_LABEL else f"{shown[: half - 1]}…{shown[-half:]}"


def name_rows(axes: Axes, names: list[str]) -> None:
    """Rows from the top down, each with its name."""
    axes.set_yticks(range(len(names)), labels=[label(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def legend_above(axes: Axes) -> None:
    """Above the whole picture, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    if handles and figure is not None:
        figure.legend(handles, names, loc="outside upper right", ncols=len(names), borderaxespad=0.2)


def _inline(document: bytes, name: str, instead: str) -> str:
    """Without its own head, colours, fonts and links out; its ids are its own in a page of many."""
    root = ET.fromstring(document)  # noqa: S314 - written a moment ago
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in {"metadata", "style"}:
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = {_local(key): value for key, value in element.attrib.items()}
        element.attrib.clear()
        for key, value in attributes.items():
            element.set(key, _attribute(key, value, name))
        element.tail = (element.tail or "").strip() and element.tail
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", plain(instead))
    return ET.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return f"#{name}-{value.removeprefix('#')}"
    if key == "d":
        return " ".join(value.split())
    if key == "style":
        value = re.sub(r"font-family:[^;]*;?\s*", "", value)
        value = re.sub(r"#0000[01][0-6]", lambda found: f"var(--{_VARIABLES[found[0]]})", value)
    return re.sub(r"url\(#", f"url(#{name}-", value)
