"""A page of pictures and tables: one HTML file that asks for nothing else, the same for the same values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import UnavailableError, UsageError
from coldstart_cli.files import atomic_write
from coldstart_cli.plain import plain
from coldstart_cli.regular import require_output
from coldstart_cli.version import __version__

if TYPE_CHECKING:
    from coldstart_pool.report.drawing import Drawing

_INSTALL = "pip install 'coldstart[report]'"


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; `right` names columns of numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()


@dataclass(frozen=True)
class Section:
    """One subject: sentences, pictures, then the numbers they were drawn from."""

    title: str
    sentences: tuple[str, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Page:
    """`good` says whether the answer is the one that was hoped for; None where there is none to hope for."""

    title: str
    answer: str
    good: bool | None
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


def require_page(path: Path) -> None:
    """Refuse before the work begins: a name that is no page, a place that takes none, missing libraries."""
    if path.suffix not in {".html", ".htm"}:
        raise UsageError(f"a report is a page, `.html`: {path}", hint=f"pass `--report {path.stem}.html`")
    require_output(path)
    try:
        # 0.7 s and optional
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise UnavailableError(f"{error.name or 'matplotlib'} is not installed", hint=_INSTALL) from error


def write_page(page: Page, path: Path) -> None:
    """The page, replaced whole."""
    atomic_write(path, page_html(page).encode())


def page_html(page: Page) -> str:
    """Every text is escaped, whoever wrote it; what no screen shows is shown escaped too."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # an optional dependency

    environment = Environment(
        loader=PackageLoader("coldstart_pool.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    text = environment.get_template("page.html.jinja").render(page=page, version=__version__)
    return text.rstrip("\n") + "\n"


def _shown(value: Any) -> Any:
    # markup, a kind of text, is our own
    return plain(value) if type(value) is str else value
