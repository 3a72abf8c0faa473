"""One entry of an image, for JSON documents."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

from coldstart_commands import image_texts

if TYPE_CHECKING:
    from coldstart_fs.format.index import Index, Inode

_TYPES = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "character_device",
    stat.S_IFBLK: "block_device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


def type_name(inode: Inode) -> str:
    return _TYPES.get(stat.S_IFMT(inode.mode), "unknown")


def describe(index: Index, inode: Inode, **names: bytes) -> dict[str, Any]:
    """All about one inode, `names` first."""
    if inode.is_symlink:
        names["target"] = index.symlink_target(inode.number)
    document = {
        "type": type_name(inode),
        "mode": f"{stat.S_IMODE(inode.mode):04o}",
        "links": inode.links,
        "uid": inode.uid,
        "gid": inode.gid,
        "size_bytes": 0 if inode.is_directory else inode.size,
        "modified": image_texts.utc(inode.mtime_ns),
        "inode": inode.number + 1,
    }
    if inode.is_device:
        document["device"] = list(inode.device)
    if inode.xattr_count:
        document["xattrs"] = [image_texts.texts(name=key) for key in index.xattrs(inode.number)]
    return image_texts.texts(**names) | document
