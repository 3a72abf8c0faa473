"""coldstart image ls: the images of a store, or what is in one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands import image_entries, image_texts
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.format.index import Index
    from coldstart_fs.looking.tree import Node

NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Show what is in this image.", show_default=False)
]
PathArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH", help="A folder or file of the image; default its root.", show_default=False
    ),
]
RecursiveOption = Annotated[bool, typer.Option("--recursive", "-R", help="With all that is below, by path.")]


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell, name: NameArgument = None, path: PathArgument = None, recursive: RecursiveOption = False
) -> None:
    """List the images of a store, or files of one image, as `ls -l` does, without mounting it.

    Symlinks in PATH are resolved inside the image.
    """
    if name is not None:
        _list_path(shell, name, os.fsencode(path or "/"), recursive)
    elif recursive:
        raise UsageError("`--recursive` needs the name of an image")
    else:
        _list_images(shell)


def _list_images(shell: Shell) -> None:
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.stores.images import list_images
    from coldstart_fs.stores.store_url import open_store

    store = open_store(shell.config.store, tell=shell.printer.warning)
    inventory = list_images(store)
    for problem in inventory.problems:
        shell.printer.warning(problem)
    shell.printer.table(
        ("NAME", "IMAGE", "ENTRIES", "CONTENT", "CREATED"),
        [
            (
                image.name,
                image.digest.hex()[:12],
                str(image.entries),
                image_texts.size(image.content_bytes),
                image.created,
            )
            for image in inventory.images
        ],
        right=(2, 3),
    )
    documents = [
        {
            "name": image.name,
            "digest": digest_text(image.digest),
            "entries": image.entries,
            "content_bytes": image.content_bytes,
            "index_bytes": image.index_bytes,
            "created": image.created,
        }
        for image in inventory.images
    ]
    shell.printer.document("image.ls", 1, {"store": store.url, "images": documents})


def _list_path(shell: Shell, name: str, path: bytes, recursive: bool) -> None:
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.looking.opened import opened_image
    from coldstart_fs.looking.tree import children, find, walk

    with opened_image(
        name, store_url=shell.config.store, cache=shell.config.cache_folder, tell=shell.printer.warning
    ) as image:
        index = image.index
        node = find(index, path, image=name, store=image.store.url)

        def nodes() -> Iterator[Node]:
            if not node.inode.is_directory:
                yield node
            elif recursive:
                yield from (below for below in walk(index, node) if below.path != node.path)
            else:
                yield from children(index, node)

        if shell.printer.json_output:
            shell.printer.document(
                "image.ls.entries",
                1,
                {
                    "store": image.store.url,
                    "image": digest_text(image.digest),
                    **image_texts.texts(path=b"/" + node.path),
                    "entries": [
                        image_entries.describe(index, below.inode, path=b"/" + below.path)
                        for below in nodes()
                    ],
                },
            )
            return
        by_path = recursive or not node.inode.is_directory
        widths = _widths(nodes())
        rows = (
            _row(index, below, image_texts.path(below.path) if by_path else image_texts.text(below.name))
            for below in nodes()
        )
        shell.printer.table(
            ("MODE", "LINKS", "UID", "GID", "SIZE", "MODIFIED", "NAME"),
            rows,
            right=(1, 2, 3, 4),
            widths=widths,
        )


def _row(index: Index, node: Node, name: str) -> tuple[str, ...]:
    inode = node.inode
    if inode.is_symlink:
        name = f"{name} -> {image_texts.text(index.symlink_target(inode.number))}"
    mark = "+" if inode.xattr_count else ""
    return (
        stat.filemode(inode.mode) + mark,
        str(inode.links),
        str(inode.uid),
        str(inode.gid),
        _size(node),
        image_texts.utc(inode.mtime_ns).partition(".")[0].rstrip("Z").replace("T", " "),
        name,
    )


def _size(node: Node) -> str:
    major, minor = node.inode.device
    if node.inode.is_device:
        return f"{major}, {minor}"
    return "0" if node.inode.is_directory else str(node.inode.size)


def _widths(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Column widths, found beforehand: a million rows are then printed as they come."""
    links = uid = gid = size = mode = 0
    for node in nodes:
        inode = node.inode
        mode = max(mode, 11 if inode.xattr_count else 10)
        links, uid, gid = max(links, inode.links), max(uid, inode.uid), max(gid, inode.gid)
        size = max(size, len(_size(node)))
    return (
        mode,
        max(5, len(str(links))),
        max(3, len(str(uid))),
        max(3, len(str(gid))),
        max(4, size),
        19,
        4,
    )
