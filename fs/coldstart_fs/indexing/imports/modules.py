"""Which files of a tree are Python modules, and which of them a name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from coldstart_fs.format.entry import Entry
from coldstart_fs.looking.python_folders import INSTALLATION, PACKAGES

_PACKAGES = re.compile(PACKAGES)
_INSTALLATION = re.compile(rb"/(?:" + INSTALLATION + rb")\Z")
_INIT = b"__init__"
_CACHE = b"__pycache__"
_MOST_DOTS = 64
_MOST_SEARCHED = 16


@dataclass(eq=False, slots=True)
class Folder:
    """A directory of the tree, with the way to it."""

    entry: Entry
    path: bytes
    parent: Folder | None
    _folders: dict[bytes, Folder] = field(default_factory=dict)
    _modules: dict[bytes, Module] = field(default_factory=dict)

    def folder(self, name: bytes) -> Folder | None:
        """The folder of that name in this one."""
        if (found := self._folders.get(name)) is not None:
            return found
        entry = self.entry.children.get(name)
        if entry is None or not entry.is_directory:
            return None
        return self._folders.setdefault(name, Folder(entry, self.path + b"/" + name, self))

    def module(self, name: bytes) -> Module | None:
        """The source of that name in this folder, without its ending."""
        if (found := self._modules.get(name)) is not None:
            return found
        entry = self.entry.children.get(name + b".py")
        if entry is None or not entry.is_file:
            return None
        return self._modules.setdefault(name, Module(entry, self, name))

    def submodule(self, name: bytes) -> Module | None:
        """What importing that name from here loads: a package, or a module."""
        inner = self.folder(name)
        package = inner.module(_INIT) if inner is not None else None
        return package if package is not None else self.module(name)

    def below(self, path: bytes) -> Folder | None:
        """The folder that a path leads to from here, without symlinks."""
        here: Folder | None = self
        for part in path.split(b"/"):
            if part and part != b"." and here is not None:
                here = here.folder(part)
        return here


@dataclass(eq=False, slots=True)
class Module:
    """One source."""

    source: Entry
    folder: Folder
    name: bytes
    """Of its file, without the ending."""

    def read_at_import(self) -> list[Entry]:
        """The files that importing it reads: byte code, of each Python; the source where there is none."""
        cache = self.folder.entry.children.get(_CACHE)
        children = {} if cache is None else cache.children
        compiled = [
            entry
            for name, entry in sorted(children.items())
            if name.startswith(self.name + b".") and name.endswith(b".pyc") and b".opt-" not in name
        ]
        return [entry for entry in compiled if entry.is_file] or [self.source]


class Modules:
    """Finds modules by name, from where they are imported."""

    def __init__(self, root: Entry) -> None:
        self.root = Folder(root, b"", None)
        self.installed = list(_installed(self.root))
        """The folders that modules are installed in."""
        self._searched: dict[bytes, list[Folder]] = {}

    def named(self, module: Module, name: bytes) -> tuple[list[Module], Folder | None]:
        """What importing a name in a module loads, packages on the way first, and the folder of that name."""
        stripped = name.lstrip(b".")
        parts = [part for part in stripped.split(b".") if part]
        if stripped == name:
            return self.absolute(module.folder, parts)
        folder: Folder | None = module.folder
        for _ in range(min(len(name) - len(stripped), _MOST_DOTS) - 1):
            folder = folder and folder.parent
        return ([], None) if folder is None else _chain(folder, parts)

    def absolute(self, folder: Folder, parts: list[bytes]) -> tuple[list[Module], Folder | None]:
        """The same of a name without dots before it, imported by a module of that folder."""
        if not parts:
            return [], None
        for base in self._search(folder):
            if base.folder(parts[0]) is not None or base.module(parts[0]) is not None:
                return _chain(base, parts)
        return [], None

    def tops(self) -> Iterator[tuple[Folder, Module]]:
        """Each installed package and module that can be imported by one name, and its folder."""
        for base in self.installed:
            for name in sorted(base.entry.children):
                inner = base.folder(name)
                found = inner.module(_INIT) if inner is not None else None
                if inner is not None and found is not None:
                    yield inner, found
                elif name.endswith(b".py") and (found := base.module(name.removesuffix(b".py"))) is not None:
                    yield base, found

    def _search(self, folder: Folder) -> list[Folder]:
        """Where to look for a first name: beside a script, then in what is installed, the nearest first."""
        top = folder
        while top.parent is not None and _INIT + b".py" in top.entry.children:
            top = top.parent
        if top.path not in self._searched:
            near = sorted(self.installed, key=lambda base: -_parts_in_common(base.path, top.path))
            self._searched[top.path] = [top, *(base for base in near if base is not top)][:_MOST_SEARCHED]
        return self._searched[top.path]


def _chain(folder: Folder, parts: list[bytes]) -> tuple[list[Module], Folder | None]:
    """What `import a.b.c` loads from a folder, and that of c; of no parts the package that the folder is."""
    if not parts:
        own = folder.module(_INIT)
        return ([own] if own is not None else []), folder
    here: Folder | None = folder
    loaded: list[Module] = []
    for part in parts:
        if here is None:
            break
        found = here.submodule(part)
        if found is not None:
            loaded.append(found)
        here = here.folder(part)
    return loaded, here


def _parts_in_common(first: bytes, second: bytes) -> int:
    pairs = zip(first.split(b"/"), second.split(b"/"), strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), 1 << 16)


def _installed(root: Folder) -> Iterator[Folder]:
    """Depth first, by name, without recursion: a tree may be deep, and very large."""
    pending = [(b"", root.entry)]
    while pending:
        path, folder = pending.pop()
        if _INSTALLATION.search(path) and (found := root.below(path)) is not None:
            yield found
        name = path.rpartition(b"/")[2]
        for child in sorted(folder.children, reverse=True):
            entry = folder.children[child]
            # site-packages may stand in the standard library, and nothing in them
            if entry.is_directory and not _PACKAGES.fullmatch(name):
                pending.append((path + b"/" + child, entry))
