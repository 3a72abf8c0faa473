"""Applying image layers to a tree: whiteouts, opaque directories, replacement, hard links.

Members are applied as they come, and every inode notes the layer that brought it: a layer's whiteouts
hide what lower layers brought and never its own files, whatever their order in the tar.
"""

from __future__ import annotations

import stat
from collections import Counter
from dataclasses import dataclass

from coldstart_cli.errors import DataError
from coldstart_fs.format.entry import Entry, made_directory
from coldstart_fs.format.index import LONGEST_NAME_BYTES
from coldstart_fs.indexing.sources import Keep, tar
from coldstart_fs.indexing.sources.layer_xattrs import carried

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = b".wh..wh."
_AUFS_LEFTOVERS = "AUFS leftovers (.wh..wh.*)"
_MOST_SYMLINKS = 255  # as runtimes have it when they resolve a path below a root
_MOST_STEPS = 4096
_MOST_HOLE_BYTES = tar.LARGEST_FILE_BYTES  # every chunk of a hole takes 32 bytes of memory and of the index
_LONGEST_PATH_BYTES = 4095

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
        self._left_out: Counter[str] = Counter()
        self._count = 0
        self._hole_bytes = 0

    @property
    def left_out(self) -> dict[str, int]:
        """What the tree has not got, and how often it was met."""
        return dict(self._left_out)

    def apply(self, layer: tar.TarReader, keep: Keep, what: str) -> None:
        """Put one layer on top, in one pass over its tar; `what` names it in errors."""
        self._count += 1
        applied = _Layer(self.root, self._count, self._left_out, what, self._hole_bytes)
        applied.apply(layer, keep)
        self._hole_bytes = applied.hole_bytes


@dataclass(slots=True, eq=False)
class _Awaited:
    """A hard link whose target has not come yet; `stand_in` keeps its place in the folder."""

    folder: Entry
    path: Path
    target: Path
    stand_in: Entry

    @property
    def waits(self) -> bool:
        return self.folder.children.get(self.path[-1]) is self.stand_in


class _Layer:
    def __init__(self, root: Entry, number: int, left_out: Counter[str], what: str, hole_bytes: int) -> None:
        self.hole_bytes = hole_bytes
        self._root = root
        self._number = number  # what this layer brings has it in `place`
        self._left_out = left_out
        self._what = what
        self._links: dict[tuple[int, bytes], Entry] = {}  # folder and name of own links to lower inodes
        self._entered: dict[int, Entry] = {}  # folders in which this layer put something
        self._cleared: dict[int, Entry] = {}  # folders that hold nothing but this layer's own
        self._aufs_files: dict[Path, Entry] = {}
        self._awaited: list[_Awaited] = []
        self._last_parent: tuple[Path, Entry] | None = None

    def apply(self, layer: tar.TarReader, keep: Keep) -> None:
        for member in layer:
            entry = self._apply_member(member)
            if entry is not None and entry.is_file:
                keep(entry, layer.content(member))
        self._settle_links()

    def _apply_member(self, member: tar.Member) -> Entry | None:
        """Put a member into the tree; the new inode, if it brings one."""
        path = self._path(member.name)
        aufs = _WHITEOUT in member.name and self._is_aufs(path)
        if path and path[-1].startswith(_WHITEOUT) and not aufs:
            self._apply_whiteout(path, member.name)
            return None
        if not path and member.kind != tar.DIRECTORY:
            raise self._refusal(member.name, "is the root and no folder")
        for what in (*member.not_carried, _AUFS_LEFTOVERS) if aufs else member.not_carried:
            self._left_out[what] += 1
        if member.kind == tar.LINK:
            if not aufs:
                self._put_link(path, self._path(member.link))
            return None
        entry = self._entry(member)
        if not aufs:
            self._put(path, entry)
        elif entry.is_file:  # later hard links may lead to it
            self._aufs_files[path] = entry
        return entry

    def _path(self, name: bytes) -> Path:
        """A name as components below the root: `./`, `/` and `a/..` mean what they always mean."""
        if len(name) > _LONGEST_PATH_BYTES:
            raise self._refusal(name, f"has more than {_LONGEST_PATH_BYTES} bytes")
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

    @staticmethod
    def _is_aufs(path: Path) -> bool:
        return any(part.startswith(_AUFS) and part != _OPAQUE for part in path)

    def _entry(self, member: tar.Member) -> Entry:
        # Linux knows no other mode of symlinks
        mode = stat.S_IFLNK | 0o777 if member.kind == tar.SYMLINK else _TYPES[member.kind] | member.mode
        try:
            xattrs = carried(member.xattrs, mode, self._left_out) if member.xattrs else ()
        except ValueError as error:
            raise self._refusal(member.name, str(error)) from error
        entry = Entry(
            mode=mode,
            uid=member.uid,
            gid=member.gid,
            mtime_ns=member.mtime_ns,
            xattrs=xattrs,
            device=member.device,
            place=self._number,
        )
        if member.kind == tar.REGULAR:
            entry.size = member.size
            self.hole_bytes += max(member.size - member.stored_bytes, 0)
            if self.hole_bytes > _MOST_HOLE_BYTES:
                raise self._refusal(member.name, f"brings the image's holes to {self.hole_bytes} bytes")
        elif member.kind == tar.SYMLINK:
            if not 1 <= len(member.link) <= _LONGEST_PATH_BYTES or b"\0" in member.link:
                raise self._refusal(member.name, "is a symlink without a usable target")
            entry.target = member.link
        return entry

    # --- whiteouts ---

    def _apply_whiteout(self, path: Path, name: bytes) -> None:
        hidden = path[-1][len(_WHITEOUT) :]
        if path[-1] != _OPAQUE and hidden in {b"", b".", b".."}:
            raise self._refusal(name, "is a whiteout of nothing")
        folder = self._folder(path[:-1], make=False)
        if folder is None:  # hiding what is not there is fine
            return
        self._last_parent = None
        if path[-1] == _OPAQUE:
            self._hide_lower(folder)
        elif (child := folder.children.get(hidden)) is not None:
            self._hide(folder, hidden, child)

    def _hide(self, folder: Entry, name: bytes, child: Entry) -> None:
        if not self._keeps(folder, name, child):
            del folder.children[name]
        elif child.is_directory:
            self._hide_lower(child)

    def _keeps(self, folder: Entry, name: bytes, child: Entry) -> bool:
        """Whether a name is this layer's own; a folder that it only went through is made anew."""
        if child.place == self._number or (id(folder), name) in self._links:
            return True
        if id(child) in self._entered:
            child.take_metadata(made_directory())
            return True
        return False

    def _hide_lower(self, folder: Entry) -> None:
        """Take out of a folder and of those below all that lower layers brought."""
        pending = [folder]
        while pending:
            folder = pending.pop()
            if id(folder) in self._cleared:  # nothing of a lower layer comes back
                continue
            self._cleared[id(folder)] = folder
            for name, child in list(folder.children.items()):
                if not self._keeps(folder, name, child):
                    del folder.children[name]
                elif child.is_directory:
                    pending.append(child)

    # --- additions ---

    def _put(self, path: Path, entry: Entry) -> None:
        if not path:
            self._root.take_metadata(entry)
            return
        folder = self._parent(path)
        old = folder.children.get(path[-1])
        if old is None:
            folder.children[path[-1]] = entry
        elif old.is_directory and entry.is_directory:
            old.take_metadata(entry)
            old.place = self._number
        else:
            folder.children[path[-1]] = entry
            self._links.pop((id(folder), path[-1]), None)
            self._last_parent = None  # what led through the old one now leads elsewhere

    def _put_link(self, path: Path, target: Path) -> None:
        entry = self._find(target)
        if entry is None or entry.mode == 0:
            stand_in = Entry(mode=0, place=self._number)
            self._put(path, stand_in)
            self._awaited.append(_Awaited(self._parent(path), path, target, stand_in))
            return
        self._check_link(path, target, entry)
        self._put(path, entry)
        self._links[id(self._parent(path)), path[-1]] = self._parent(path)

    def _settle_links(self) -> None:
        """Bind the links that stood in front of their targets; chains of them in one go."""
        by_stand_in = {id(link.stand_in): link for link in self._awaited}
        for link in self._awaited:
            chain: dict[int, _Awaited] = {}
            entry: Entry | None = link.stand_in
            while entry is not None and (found := by_stand_in.get(id(entry))) and id(entry) not in chain:
                chain[id(entry)] = found
                entry = self._find(found.target)
            if not link.waits:
                continue
            if entry is None or entry.mode == 0:
                raise self._refusal(
                    b"/".join(link.path), f"is a hard link to `{_text(link.target)}`, which is not there"
                )
            for each in chain.values():
                self._check_link(each.path, each.target, entry)
                if each.waits:
                    each.folder.children[each.path[-1]] = entry

    def _find(self, path: Path) -> Entry | None:
        if path in self._aufs_files:
            return self._aufs_files[path]
        if not path:
            return self._root
        folder = self._folder(path[:-1], make=False)
        return None if folder is None else folder.children.get(path[-1])

    def _check_link(self, path: Path, target: Path, entry: Entry) -> None:
        if entry.is_directory:
            raise self._refusal(b"/".join(path), f"is a hard link to the folder `{_text(target) or '/'}`")

    def _parent(self, path: Path) -> Entry:
        """The folder that a name is put into; most members follow another one of the same folder."""
        parents = path[:-1]
        if self._last_parent is None or self._last_parent[0] != parents:
            folder = self._folder(parents, make=True)
            assert folder is not None
            self._last_parent = parents, folder
        return self._last_parent[1]

    def _folder(self, path: Path, *, make: bool) -> Entry | None:
        """The directory at `path`, through symlinks that never leave the root; made where wanted."""
        trail = [self._root]
        pending = list(reversed(path))
        symlinks = steps = 0
        while pending:
            part = pending.pop()
            steps += 1
            if part in {b"", b"."}:
                continue
            if part == b"..":
                trail = trail[:-1] if len(trail) > 1 else trail
                continue
            child = trail[-1].children.get(part)
            if child is not None and child.is_symlink:
                symlinks += 1
                if symlinks > _MOST_SYMLINKS or steps > _MOST_STEPS:
                    raise self._refusal(b"/".join(path), "leads through a loop of symlinks")
                if child.target.startswith(b"/"):
                    trail = [self._root]
                pending += reversed(child.target.split(b"/"))
                continue
            if child is None or not child.is_directory:
                if not make:
                    return None
                child = self._made_folder(trail[-1], part, child, path)
            trail.append(child)
        if make:
            self._entered.update((id(folder), folder) for folder in trail)
        return trail[-1]

    def _made_folder(self, parent: Entry, name: bytes, old: Entry | None, path: Path) -> Entry:
        if old is not None and (old.place == self._number or (id(parent), name) in self._links):
            raise self._refusal(b"/".join(path), "has something below it and is no folder")
        if len(name) > LONGEST_NAME_BYTES:
            raise self._refusal(b"/".join(path), "leads through a symlink to a name that is too long")
        folder = parent.children[name] = made_directory()
        return folder

    def _refusal(self, name: bytes, why: str) -> DataError:
        return DataError(f"{self._what}: `{tar.shown(name)}` {why}")


def _text(path: Path) -> str:
    return tar.shown(b"/".join(path))
