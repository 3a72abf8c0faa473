"""coldstart image diff: what differs between two images, and how much of the second must be fetched."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands import image_entries, image_texts
from coldstart_commands.shell import Shell, coldstart_command
from coldstart_fs.looking.diff import Aspect

if TYPE_CHECKING:
    from coldstart_fs.format.index import Index, Inode
    from coldstart_fs.looking.diff import Change, ConfigurationChange, FetchBytes
    from coldstart_fs.looking.opened import OpenedImage

FirstArgument = Annotated[str, typer.Argument(metavar="NAME", help="Image name, or NAME@blake3:DIGEST.")]
SecondArgument = Annotated[str, typer.Argument(metavar="OTHER", help="The image to compare it with.")]
OtherStoreOption = Annotated[
    str | None,
    typer.Option("--other-store", metavar="URL", help="Store of the second image, where it is another one."),
]
IgnoreOption = Annotated[
    list[Aspect] | None,
    typer.Option("--ignore", help="Differences that do not count; may be given several times."),
]

_MARKS = {"added": "+", "removed": "-", "changed": "~"}
_STYLES = {"added": "ok", "removed": "error", "changed": "warning"}


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell,
    first: FirstArgument,
    second: SecondArgument,
    other_store: OtherStoreOption = None,
    ignore: IgnoreOption = None,
) -> None:
    """Compare two images name by name, with their runtime configurations.

    Says how much a host that has the first must still fetch for the second. Exit status 3 when they differ.
    """
    from coldstart_fs.looking.configuration import parse_configuration
    from coldstart_fs.looking.diff import Side, TreeDiff, bytes_to_fetch, configuration_changes
    from coldstart_fs.looking.opened import opened_image

    printer, config = shell.printer, shell.config
    with (
        opened_image(
            first, store_url=config.store, cache=config.cache_folder, tell=printer.warning
        ) as before,
        opened_image(
            second, store_url=other_store or config.store, cache=config.cache_folder, tell=printer.warning
        ) as after,
    ):
        tree = TreeDiff(
            Side(before.index, before.contents), Side(after.index, after.contents), frozenset(ignore or ())
        )
        if tree.contents_are_read:
            printer.note("chunk sizes differ: contents are read to be compared")
        changes = tree.changes() if before.digest != after.digest else []
        settings = configuration_changes(
            *(parse_configuration(image.index.configuration, image.name) for image in (before, after))
        )
        fetch = bytes_to_fetch(before.locator, after.locator, after.index)
        counts = Counter(change.kind for change in changes)
        for mark, style, text in _lines(changes, before.index, after.index):
            printer.answer(f"{printer.style(mark, style)} {text}")
        for setting in settings:
            one, other = (json.dumps(value) for value in (setting.before, setting.after))
            printer.answer(f"{printer.style('~', 'warning')} configuration {setting.key}: {one} -> {other}")
        summary = _summary(counts, settings)
        printer.answer(summary)
        printer.answer(_fetch_line(fetch))
        if printer.json_output:
            documents = [_document(change, before.index, after.index) for change in changes]
            printer.document(
                "image.diff",
                1,
                {
                    "before": _image_document(before),
                    "after": _image_document(after),
                    "same": not changes and not settings,
                    "ignored": sorted(set(ignore or ())),
                    **{kind: counts[kind] for kind in _MARKS},
                    "changes": documents,
                    "configuration_changes": [asdict(setting) for setting in settings],
                    "fetch": asdict(fetch),
                },
            )
    if changes or settings:
        raise NegativeAnswer(f"images differ: {summary}")


def _summary(counts: Counter[str], settings: tuple[ConfigurationChange, ...]) -> str:
    parts = [f"{counts[kind]:,} {kind}" for kind in _MARKS if counts[kind]]
    if settings:
        parts.append(image_texts.count(len(settings), "difference") + " of the configuration")
    return ", ".join(parts) or "no differences"


def _fetch_line(fetch: FetchBytes) -> str:
    size = image_texts.size
    return (
        f"to fetch for the second with the first at hand: {size(fetch.missing_bytes)} "
        f"of {size(fetch.unique_bytes)}, stored as {size(fetch.missing_stored_bytes)}; "
        f"index and locator {size(fetch.metadata_bytes)}"
    )


def _lines(changes: list[Change], before: Index, after: Index) -> Iterator[tuple[str, str, str]]:
    """Mark, style and text; a folder that came or went whole is one line."""
    position = 0
    while position < len(changes):
        change = changes[position]
        position += 1
        text = image_texts.path(change.path)
        inode = change.after or change.before
        assert inode is not None
        if change.kind == "changed":
            text += f": {', '.join(_aspect(change, aspect, before, after) for aspect in change.aspects)}"
        elif inode.is_directory:
            names, size_bytes = 1, 0
            prefix = change.path + b"/"
            while position < len(changes) and changes[position].path.startswith(prefix):
                below = changes[position].after or changes[position].before
                names += 1
                size_bytes += below.size if below is not None and below.is_file else 0
                position += 1
            text += f"/ ({image_texts.count(names, 'entry', 'entries')}, {image_texts.size(size_bytes)})"
        elif inode.is_file:
            text += f" ({image_texts.size(inode.size)})"
        yield _MARKS[change.kind], _STYLES[change.kind], text


def _aspect(change: Change, aspect: Aspect, before: Index, after: Index) -> str:
    one, other = change.before, change.after
    assert one is not None
    assert other is not None
    pair: tuple[str, str] | None = None
    if aspect is Aspect.TYPE:
        pair = image_entries.type_name(one), image_entries.type_name(other)
    elif aspect is Aspect.MODE:
        pair = f"{stat.S_IMODE(one.mode):04o}", f"{stat.S_IMODE(other.mode):04o}"
    elif aspect is Aspect.OWNER:
        pair = f"{one.uid}:{one.gid}", f"{other.uid}:{other.gid}"
    elif aspect is Aspect.SIZE:
        pair = str(one.size), str(other.size)
    elif aspect is Aspect.MTIME:
        pair = image_texts.utc(one.mtime_ns), image_texts.utc(other.mtime_ns)
    elif aspect is Aspect.LINKS:
        pair = str(one.links), str(other.links)
    elif aspect is Aspect.DEVICE:
        pair = "{}, {}".format(*one.device), "{}, {}".format(*other.device)
    elif aspect is Aspect.TARGET:
        targets = before.symlink_target(one.number), after.symlink_target(other.number)
        pair = image_texts.text(targets[0]), image_texts.text(targets[1])
    return f"{aspect} {pair[0]} -> {pair[1]}" if pair is not None else aspect


def _document(change: Change, before: Index, after: Index) -> dict[str, Any]:
    return image_texts.texts(path=b"/" + change.path) | {
        "kind": change.kind,
        "aspects": list(change.aspects),
        "before": _side(before, change.before),
        "after": _side(after, change.after),
    }


def _side(index: Index, inode: Inode | None) -> dict[str, Any] | None:
    return None if inode is None else image_entries.describe(index, inode)


def _image_document(image: OpenedImage) -> dict[str, Any]:
    from coldstart_fs.format.names import digest_text

    return {"name": image.name, "digest": digest_text(image.digest), "store": image.store.url}
