"""Applying image layers to a tree: whiteouts, opaque directories, replacement, hard links.

A layer's whiteouts hide what lower layers brought and never its own files, so they are applied before
the layer's entries, whatever their order in the tar.
"""

from __future__ import annotations

import stat
from collections import Counter

from coldstart_cli.errors import DataError
from coldstart_fs.entry import Entry, made_directory
from coldstart_fs.index import LONGEST_NAME_BYTES
from coldstart_fs.sources import Keep, tar

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = b".wh..wh."
_MOST_SYMLINKS = 255  # as runtimes have it when they resolve a path below a root
_LONGEST_TARGET_BYTES = 4095

_TYPES = {
    tar.REGULAR: stat.S_IFREG,
    tar.SYMLINK: stat.S_IFLNK,
    tar.CHARACTER: stat.S_IFCHR,
    tar.BLOCK_DEVICE: stat.S_IFBLK,
    tar.DIRECTORY: stat.S_IFDIR,
    tar.FIFO: stat.S_IFIFO,
}
Path = tuple[bytes, ...]


class LayeredTree:
    """A root file system growing from the lowest layer up."""

    def __init__(self) -> None:
        self.root = made_directory()
        self.left_out: Counter[str] = Counter()

    def apply(self, layer: tar.TarReader, keep: Keep, what: str) -> None:
        """Put one layer on top, in one pass over its tar; `what` names it in errors."""
        _Layer(self.root, self.left_out, what).apply(layer, keep)


class _Layer:
    def __init__(self, root: Entry, left_out: Counter[str], what: str) -> None:
        self._root = root
        self._left_out = left_out
        self._what = what

    def apply(self, layer: tar.TarReader, keep: Keep) -> None:
        additions: list[tuple[Path, Entry | Path]] = []
        whiteouts: list[Path] = []
        for member in layer:
            path = self._path(member.name)
            if any(part.startswith(_WHITEOUT) for part in path):
                if self._is_whiteout(path, member.name):
                    whiteouts.append(path)
                continue
            if member.kind == tar.LINK:
                additions.append((path, self._path(member.link)))
            else:
                entry = self._entry(member)
                if entry.is_file:
                    keep(entry, layer.content(member))
                additions.append((path, entry))
            if member.has_text_acl:
                self._left_out["entries with access control lists as text, which are not carried over"] += 1
        for path in whiteouts:
            self._hide(path)
        for path, addition in additions:
            self._put(path, addition if isinstance(addition, Entry) else self._link_target(path, addition))

    def _path(self, name: bytes) -> Path:
        """A name as components below the root: `./`, `/` and `a/..` mean what they always mean."""
        parts: list[bytes] = []
        for part in name.split(b"/"):
            if part == b"..":
                if not parts:
                    raise self._refusal(name, "leaves the root")
                parts.pop()
            elif part not in {b"", b"."}:
                if len(part) > LONGEST_NAME_BYTES:
                    raise self._refusal(name, f"has a component of more than {LONGEST_NAME_BYTES} bytes")
                parts.append(part)
        return tuple(parts)

    def _is_whiteout(self, path: Path, name: bytes) -> bool:
        if any(part.startswith(_AUFS) and part != _OPAQUE for part in path):
            self._left_out["AUFS leftovers (.wh..wh.*)"] += 1
            return False
        *parents, last = path
        if any(part.startswith(_WHITEOUT) for part in parents):
            raise self._refusal(name, "has a whiteout for a folder")
        if last in {_WHITEOUT, _WHITEOUT + b".", _WHITEOUT + b".."}:
            raise self._refusal(name, "is a whiteout of nothing")
        return True

    def _entry(self, member: tar.Member) -> Entry:
        entry = Entry(
            mode=_TYPES[member.kind] | member.mode,
            uid=member.uid,
            gid=member.gid,
            mtime_ns=member.mtime_ns,
            xattrs=member.xattrs,
            device=member.device,
        )
        if member.kind == tar.REGULAR:
            entry.size = member.size
        elif member.kind == tar.SYMLINK:
            if not 1 <= len(member.link) <= _LONGEST_TARGET_BYTES or b"\0" in member.link:
                raise self._refusal(member.name, "is a symlink without a usable target")
            entry.target = member.link
        return entry

    def _hide(self, path: Path) -> None:
        folder = self._folder(path[:-1], make=False)
        if folder is None:  # hiding what is not there is fine
            return
        if path[-1] == _OPAQUE:
            folder.children.clear()
        else:
            folder.children.pop(path[-1][len(_WHITEOUT) :], None)

    def _link_target(self, path: Path, target: Path) -> Entry:
        folder = self._folder(target[:-1], make=False) if target else None
        entry = folder.children.get(target[-1]) if folder is not None else None
        if entry is None:
            raise self._refusal(b"/".join(path), f"is a hard link to `{_shown(target)}`, which is not there")
        if entry.is_directory:
            raise self._refusal(b"/".join(path), f"is a hard link to the folder `{_shown(target)}`")
        return entry

    def _put(self, path: Path, entry: Entry) -> None:
        if not path:
            if not entry.is_directory:
                raise self._refusal(b"/", "is not a folder")
            self._root.take_metadata(entry)
            return
        folder = self._folder(path[:-1], make=True)
        assert folder is not None
        old = folder.children.get(path[-1])
        if old is not None and old.is_directory and entry.is_directory:
            old.take_metadata(entry)
        else:
            folder.children[path[-1]] = entry

    def _folder(self, path: Path, *, make: bool) -> Entry | None:
        """The directory at `path`, through symlinks that never leave the root; made where wanted."""
        trail = [self._root]
        pending = list(reversed(path))
        symlinks = 0
        while pending:
            part = pending.pop()
            if part in {b"", b"."}:
                continue
            if part == b"..":
                trail = trail[:-1] if len(trail) > 1 else trail
                continue
            child = trail[-1].children.get(part)
            if child is not None and child.is_symlink:
                symlinks += 1
                if symlinks > _MOST_SYMLINKS:
                    raise self._refusal(b"/".join(path), "leads through a loop of symlinks")
                if child.target.startswith(b"/"):
                    trail = [self._root]
                pending += reversed(child.target.split(b"/"))
                continue
            if child is None or not child.is_directory:
                if not make:
                    return None
                child = trail[-1].children[part] = made_directory()
            trail.append(child)
        return trail[-1]

    def _refusal(self, name: bytes, why: str) -> DataError:
        return DataError(f"{self._what}: `{name.decode('utf-8', 'surrogateescape')}` {why}")


def _shown(path: Path) -> str:
    return b"/".join(path).decode("utf-8", "surrogateescape")
