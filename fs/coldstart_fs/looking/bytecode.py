"""Python byte code in an image: does it match its source, and is it there at all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from coldstart_cli.errors import ColdstartError
from coldstart_fs.format.index import NANOSECONDS, Index, Inode
from coldstart_fs.looking.contents import Contents
from coldstart_fs.looking.findings import Finding
from coldstart_fs.looking.python_folders import INSTALLATION
from coldstart_fs.looking.tree import Node, children, resolve

_HEADER_BYTES = 16
_CACHED = re.compile(rb"(?P<module>[^.]+)\.(?P<tag>[^.]+)(?P<level>\.opt-[^.]+)?\.pyc")
# the innermost folder that modules are installed in, and what stands below it
_INSTALLED = re.compile(rb"(?P<library>(?:.*/)?(?:" + INSTALLATION + rb"))(?:/(?P<below>.*))?")
_VERSION = re.compile(rb"(?:^|/)python(\d+)\.(\d+)(?:/|$)")
_TESTS = {b"test", b"tests"}
# layouts of the header by magic number: 3.3 put the size behind the time, 3.7 (PEP 552) flags before both
_FIRST_WITH_SIZE = 3200
_FIRST_WITH_FLAGS = 3392
_FIRST_OF_PYTHON_2 = 20000
# _imp.source_hash is SipHash-1-3 since 3.11, as in the Python that runs this
_FIRST_WITH_OUR_HASH = 3495
_HASHED = 1
_CHECKED = 2


@dataclass(frozen=True)
class _Pair:
    compiled: Node
    source: Inode
    is_cached: bool


class BytecodeCheck:
    """Visits every directory, then reads the headers of all byte code that has a source."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pairs: dict[int, list[_Pair]] = defaultdict(list)
        self._unused: list[Finding] = []
        # by package: modules without byte code, bytes of their sources, all modules
        self._missing: dict[bytes, list[int]] = defaultdict(lambda: [0, 0, 0])

    def visit(self, directory: Node, entries: list[Node]) -> None:
        sources = {
            node.name.removesuffix(b".py"): node
            for node in entries
            if node.name.endswith(b".py") and not node.inode.is_directory
        }
        cached: set[tuple[bytes, bytes]] = set()
        beside: set[bytes] = set()
        for node in entries:
            if node.name == b"__pycache__" and node.inode.is_directory:
                cached = self._visit_cache(node, sources)
            elif node.name.endswith(b".pyc") and node.inode.is_file:
                module = node.name.removesuffix(b".pyc")
                beside.add(module)
                source = self._source(sources.get(module))
                if source is not None:  # without a source it is what Python imports
                    self._pairs[node.inode.number].append(_Pair(node, source, is_cached=False))
        if sources:
            self._look_for_missing(directory, sources, cached, beside)

    def _visit_cache(self, folder: Node, sources: dict[bytes, Node]) -> set[tuple[bytes, bytes]]:
        """Pair byte code with sources; answers the modules and tags that are there, unoptimised."""
        found = set()
        for node in children(self._index, folder):
            match = _CACHED.fullmatch(node.name)
            if match is None or not node.inode.is_file:
                continue
            source = self._source(sources.get(match["module"]))
            if source is None:
                detail = "its source is not there"
                self._unused.append(Finding("unused-bytecode", node.path, detail, node.inode.size))
                continue
            self._pairs[node.inode.number].append(_Pair(node, source, is_cached=True))
            if not match["level"]:
                found.add((match["module"], match["tag"]))
        return found

    def _source(self, node: Node | None) -> Inode | None:
        if node is not None and node.inode.is_symlink:
            node = resolve(self._index, node.path)
        return node.inode if node is not None and node.inode.is_file else None

    def _look_for_missing(
        self,
        directory: Node,
        sources: dict[bytes, Node],
        cached: set[tuple[bytes, bytes]],
        beside: set[bytes],
    ) -> None:
        place = _INSTALLED.fullmatch(directory.path)
        if place is None:
            return
        below = place["below"] or b""
        parts = below.split(b"/") if below else []
        if not all(part.isidentifier() for part in map(_text, parts)) or not _TESTS.isdisjoint(parts):
            return
        version = _VERSION.search(place["library"])
        if version is not None and version[1] == b"2":
            compiled = beside
        else:
            tag = b"cpython-%s%s" % version.groups() if version else None
            compiled = {module for module, its_tag in cached if tag in {None, its_tag}}
        for module, node in sources.items():
            if not _text(module).isidentifier() or (source := self._source(node)) is None:
                continue
            package = place["library"] + b"/" + (parts[0] if parts else node.name)
            counts = self._missing[package]
            counts[2] += 1
            if module not in compiled:
                counts[0] += 1
                counts[1] += source.size

    def findings(self, contents: Contents) -> tuple[list[Finding], list[str]]:
        """All findings, and a sentence when some byte code could not be read."""
        found = list(self._unused)
        unread: list[ColdstartError] = []
        compiled = [pairs[0].compiled.inode for pairs in self._pairs.values()]
        for inode, header in contents.beginnings(compiled, _HEADER_BYTES):
            if isinstance(header, ColdstartError):
                unread.append(header)
                continue
            for pair in self._pairs[inode.number]:
                found += _judge(pair, header, contents)
        for package, (files, size_bytes, modules) in self._missing.items():
            if files:
                detail = f"{files} of {modules} modules" if modules > 1 else ""
                found.append(Finding("missing-bytecode", package, detail, size_bytes, files=files))
        problems = []
        if unread:
            problems.append(
                f"byte code was not checked, {len(unread)} files cannot be read: {unread[0].message}"
            )
        return found, problems


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _judge(pair: _Pair, header: bytes, contents: Contents) -> Iterator[Finding]:
    path, size_bytes = pair.compiled.path, pair.compiled.inode.size
    reason = _staleness(pair, header, contents)
    if reason is not None:
        yield Finding("stale-bytecode", path, reason, size_bytes)
    elif _magic(header) >= _FIRST_OF_PYTHON_2:
        return
    elif not pair.is_cached:
        yield Finding("unused-bytecode", path, "its source stands beside it", size_bytes)
    elif _flags(header) == _HASHED | _CHECKED:
        yield Finding("hashed-bytecode", path, "", pair.source.size)


def _magic(header: bytes) -> int:
    return int.from_bytes(header[:2], "little")


def _flags(header: bytes) -> int:
    return int.from_bytes(header[4:8], "little") if _magic(header) >= _FIRST_WITH_FLAGS else 0


def _staleness(pair: _Pair, header: bytes, contents: Contents) -> str | None:
    """Why Python would not use this byte code for its source; None when it would."""
    magic = _magic(header)
    if header[2:4] != b"\r\n":
        return "it is not byte code"
    if magic >= _FIRST_OF_PYTHON_2 or magic < _FIRST_WITH_SIZE:
        return _difference(pair.source, header[4:8], b"")
    if magic < _FIRST_WITH_FLAGS:
        return _difference(pair.source, header[4:8], header[8:12])
    flags = _flags(header)
    if len(header) < _HEADER_BYTES or flags & ~(_HASHED | _CHECKED):
        return "its header is damaged"
    if not flags & _HASHED:
        return _difference(pair.source, header[8:12], header[12:16])
    return _hash_difference(pair, header, contents) if flags & _CHECKED else None


def _difference(source: Inode, mtime: bytes, size: bytes) -> str | None:
    """How a source differs from the time and the size that its byte code was made for."""
    # as Python gets it: a float of seconds, cut, of which the lower 32 bits are kept
    seconds, nanoseconds = divmod(source.mtime_ns, NANOSECONDS)
    found = int(seconds + 1e-9 * nanoseconds) & 0xFFFFFFFF
    if found != (recorded := int.from_bytes(mtime, "little")):
        return f"made for a source of {_utc(recorded)}, which is of {_utc(found)}"
    if size and source.size & 0xFFFFFFFF != (recorded := int.from_bytes(size, "little")):
        return f"made for a source of {recorded} bytes, which has {source.size}"
    return None


def _utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _hash_difference(pair: _Pair, header: bytes, contents: Contents) -> str | None:
    if _magic(header) < _FIRST_WITH_OUR_HASH:
        return None
    import _imp

    try:
        source = b"".join(contents.blocks(pair.source))
    except ColdstartError:
        return None  # what cannot be read is no reason to call it stale
    if _imp.source_hash(int.from_bytes(header[:4], "little"), source) != header[8:16]:
        return "made for another source, by its hash"
    return None
