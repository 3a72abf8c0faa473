"""Reading a report as a browser would: what it shows, what it names, and what it would ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

_VOID = {"meta", "link", "br", "img", "input", "hr"}
_ASKING = {"src", "href", "srcset", "action", "data", "poster", "formaction", "background", "ping"}


@dataclass
class ReadPage(HTMLParser):
    """The elements of a page; reading fails where one is left open or closed twice."""

    text: str
    tags: Counter[str] = field(default_factory=Counter)
    ids: Counter[str] = field(default_factory=Counter)
    links: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.text)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"closed out of turn: {tag}"

    def handle_data(self, data: str) -> None:
        if "style" not in self._open and data.strip():
            self.shown.append(data.strip())

    def _element(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids[value or ""] += 1
            if name.rpartition(":")[2] in _ASKING:
                self.links.append(value or "")

    @property
    def words(self) -> str:
        """Everything that is shown, one piece a line."""
        return "\n".join(self.shown)


def read_page(path: Path) -> ReadPage:
    """The page, after checks that hold for every one: it is whole, runs nothing and asks for nothing."""
    page = ReadPage(path.read_text("utf-8"))
    assert page.text.startswith('<!DOCTYPE html>\n<html lang="en">\n')
    assert not {"script", "iframe", "object", "embed", "img", "foreignobject", "base", "form"} & set(
        page.tags
    )
    assert [name for _, name, _ in page.attributes if name.startswith("on")] == []
    assert [link for link in page.links if not link.startswith("#") and link != "data:,"] == []
    for text in ("://", "@import", "@font-face", "<?xml", "<!ENTITY"):
        assert text not in page.text.replace("&#39;", "'"), text
    style = page.text + "".join(value for _, name, value in page.attributes if name == "style")
    assert "url(" not in style.replace("url(#", "")
    assert [name for name, times in page.ids.items() if times > 1] == []
    targets = {link.removeprefix("#") for link in page.links if link.startswith("#")}
    assert targets <= set(page.ids)
    assert page.tags["svg"] == page.tags["figure"] == page.tags["figcaption"] > 0
    pictures = [(name, value) for tag, name, value in page.attributes if tag == "svg"]
    assert [value for name, value in pictures if name == "role"] == ["img"] * page.tags["svg"]
    alternatives = [value for name, value in pictures if name == "aria-label"]
    assert len(alternatives) == page.tags["svg"]
    assert all(len(text) > 20 for text in alternatives)
    return page
