"""Reading one index in place: records are unpacked when asked for, every offset is checked first."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, overload

from coldstart_cli.errors import DataError
from coldstart_fs.format.mapped import HeldFile, Mapped, check_version
from coldstart_fs.format.names import DIGEST_BYTES, digest_text

MAGIC = b"CSINDEX\0"
VERSION = 1
HEADER_BYTES = 192
HEADER = Struct("<8sIIQII14QQ40x")
INODE = Struct("<IIqIIQQ")
ATTRIBUTES = Struct("<IIIIII")
XATTR = Struct("<QQHHI")
DIRENT = Struct("<IHHI")
SECTIONS = ("inodes", "attributes", "xattrs", "dirents", "chunks", "heap", "configuration")
RECORD_BYTES = (INODE.size, ATTRIBUTES.size, XATTR.size, DIRENT.size, DIGEST_BYTES, 1, 1)
SMALLEST_CHUNK_BYTES = 4096
LARGEST_CHUNK_BYTES = 16 << 20
LONGEST_NAME_BYTES = 255
HOLE = bytes(DIGEST_BYTES)
NANOSECONDS = 1_000_000_000
_DIRENT_BYTES = DIRENT.size
_DIRECTORY = stat.S_IFDIR
_MASK = 0o170000


class Inode(NamedTuple):
    """One inode as the index has it; a tuple, because a mount makes millions of them."""

    number: int
    mode: int
    uid: int
    gid: int
    links: int
    mtime_ns: int
    size: int
    first: int
    parent: int
    xattr_first: int
    xattr_count: int

    @property
    def is_directory(self) -> bool:
        return self.mode & _MASK == _DIRECTORY

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_device(self) -> bool:
        return stat.S_ISCHR(self.mode) or stat.S_ISBLK(self.mode)

    @property
    def device(self) -> tuple[int, int]:
        """Major and minor number; (0, 0) for everything that is not a device."""
        return (self.first >> 32, self.first & 0xFFFFFFFF) if self.is_device else (0, 0)


class IndexCounts(NamedTuple):
    """What the header alone tells of an index."""

    index_bytes: int
    entries: int
    content_bytes: int

    @classmethod
    def parse(cls, header: bytes, place: str) -> IndexCounts:
        """From the first bytes of an index at `place`, for those who do not have it on this host."""
        magic, version, header_bytes, file_bytes, *rest = HEADER.unpack(header)
        if magic != MAGIC or header_bytes != HEADER_BYTES:
            raise DataError(f"index is damaged: {place}: it does not begin as an index")
        check_version(place, "index", version, VERSION)
        return cls(file_bytes, rest[3], rest[16])


class Index(HeldFile):
    """One `.index` file. Any damage met while reading is a `DataError` that names the file."""

    _what = "index"
    _magic = MAGIC
    _version = VERSION
    _header_bytes = HEADER_BYTES

    @classmethod
    def open(cls, path: Path, *, expected_digest: bytes | None = None) -> Index:
        """Check header and sections; with `expected_digest` all bytes too, in memory of our own.

        Without it the file is mapped: for a look that is over at once.
        """
        if expected_digest is None:
            return cls(Mapped.file(path, "index", header_bytes=HEADER_BYTES), path)
        return cls._proven(Mapped.copy(path, "index", header_bytes=HEADER_BYTES), path, expected_digest)

    @classmethod
    def of(cls, content: bytes | bytearray, place: Path | str, *, expected_digest: bytes) -> Index:
        """An index that came from `place`, verified."""
        mapped = Mapped.of(content, place, "index", header_bytes=HEADER_BYTES)
        return cls._proven(mapped, place, expected_digest)

    @classmethod
    def _proven(cls, mapped: Mapped, place: Path | str, expected_digest: bytes) -> Index:
        index = cls(mapped, place)
        if (found := index.digest()) != expected_digest:
            index.close()
            raise DataError(
                f"index is damaged: {place}: its digest is {digest_text(found)}, "
                f"expected {digest_text(expected_digest)}",
                hint="index the image again",
            )
        return index

    def _read_header(self) -> None:
        magic, version, header_bytes, file_bytes, chunk_bytes, _, *rest = HEADER.unpack_from(self._map)
        self._check_frame(magic, version, header_bytes, file_bytes)
        if chunk_bytes & (chunk_bytes - 1) or not SMALLEST_CHUNK_BYTES <= chunk_bytes <= LARGEST_CHUNK_BYTES:
            self._damaged(f"chunk size {chunk_bytes}")
        end = HEADER_BYTES
        for name, record_bytes, offset, count in zip(
            SECTIONS, RECORD_BYTES, rest[0:14:2], rest[1:14:2], strict=True
        ):
            if offset != (end + 7) & ~7 or count > (file_bytes - offset) // record_bytes:
                self._damaged(f"section {name} lies outside of the file")
            end = offset + count * record_bytes
        if end != file_bytes:
            self._damaged("bytes follow the last section")
        self._inodes, self.inode_count = rest[0:2]
        self._attributes, self._attribute_count = rest[2:4]
        self._xattrs, self._xattr_count = rest[4:6]
        self._dirents, self._dirent_count = rest[6:8]
        self._chunks, self._chunk_count = rest[8:10]
        self._heap, self._heap_bytes = rest[10:12]
        self._configuration = rest[12], rest[12] + rest[13]
        self.chunk_bytes: int = chunk_bytes
        self.content_bytes: int = rest[14]
        self.has_xattrs = bool(self._xattr_count)
        if not self.inode_count or not self.inode(0).is_directory:
            self._damaged("it has no root directory")

    @property
    def has_acls(self) -> bool:
        """Whether any file has a POSIX ACL."""
        for position in range(self._xattr_count):
            name, _, length, _, _ = XATTR.unpack_from(self._map, self._xattrs + position * XATTR.size)
            if self._text(name, length, "xattr").startswith(b"system.posix_acl_"):
                return True
        return False

    @property
    def configuration(self) -> dict[str, Any]:
        """The image's runtime configuration: command, environment, user and so on."""
        try:
            content = json.loads(self._map[slice(*self._configuration)])
        except ValueError:
            self._damaged("configuration is not JSON")
        if not isinstance(content, dict):
            self._damaged("configuration is not an object")
        return content

    def digest(self) -> bytes:
        """BLAKE3 of the whole file: the image's identity."""
        from blake3 import blake3

        return blake3(self._map).digest()

    def inode(self, number: int) -> Inode:
        if not 0 <= number < self.inode_count:
            self._damaged(f"no inode {number}")
        attributes, links, seconds, nanoseconds, parent, size, first = INODE.unpack_from(
            self._map, self._inodes + number * INODE.size
        )
        if attributes >= self._attribute_count:
            self._damaged(f"inode {number}: no attributes {attributes}")
        mode, uid, gid, xattr_first, xattr_count, _ = ATTRIBUTES.unpack_from(
            self._map, self._attributes + attributes * ATTRIBUTES.size
        )
        return Inode(
            number,
            mode,
            uid,
            gid,
            links,
            seconds * NANOSECONDS + nanoseconds,
            size,
            first,
            parent,
            xattr_first,
            xattr_count,
        )

    def lookup(self, directory: int, name: bytes) -> int | None:
        """The inode that `name` stands for in a directory; None when there is no such name."""
        first, end = self._dirent_range(directory)
        low, high, unpack, content = first, end, DIRENT.unpack_from, self._map
        while low < high:  # written out, since a mount does this for every name that anybody asks for
            middle = (low + high) >> 1
            offset, length, _, _ = unpack(content, self._dirents + middle * _DIRENT_BYTES)
            if offset + length > self._heap_bytes:
                self._damaged(f"name of directory entry {middle} lies outside of the heap")
            begin = self._heap + offset
            if content[begin : begin + length] < name:
                low = middle + 1
            else:
                high = middle
        if low == end:
            return None
        found, number, _ = self._dirent(low)
        return number if found == name else None

    def entries(self, directory: int, start: int = 0) -> Iterator[tuple[int, bytes, int, int]]:
        """Position, name, inode and file type (`mode >> 12`) of a directory's entries from `start` on."""
        first, end = self._dirent_range(directory)
        for position in range(max(start, 0), end - first):
            name, number, file_type = self._dirent(first + position)
            yield position, name, number, file_type

    def symlink_target(self, number: int) -> bytes:
        inode = self.inode(number)
        if not inode.is_symlink:
            self._damaged(f"inode {number} is not a symlink")
        return self._text(inode.first, inode.size, f"target of inode {number}")

    def xattrs(self, number: int) -> dict[bytes, bytes]:
        inode = self.inode(number)
        end = inode.xattr_first + inode.xattr_count
        if end > self._xattr_count:
            self._damaged(f"inode {number}: xattrs lie outside of their section")
        found = {}
        for position in range(inode.xattr_first, end):
            name, value, name_bytes, _, value_bytes = XATTR.unpack_from(
                self._map, self._xattrs + position * XATTR.size
            )
            key = self._text(name, name_bytes, f"xattr of inode {number}")
            found[key] = self._text(value, value_bytes, f"xattr of inode {number}")
        return found

    def chunk_digests(self, number: int) -> ChunkDigests:
        """All chunk digests of a file, sliced out of the map when asked for."""
        inode = self.inode(number)
        if not inode.is_file:
            self._damaged(f"inode {number} is not a file")
        count = -(-inode.size // self.chunk_bytes)
        if inode.first + count > self._chunk_count:
            self._damaged(f"inode {number}: chunks lie outside of their section")
        return ChunkDigests(self._map, self._chunks + inode.first * DIGEST_BYTES, count)

    def data_bytes(self, inode: Inode) -> int:
        """How much of a file is not in holes."""
        count = -(-inode.size // self.chunk_bytes)
        if inode.first + count > self._chunk_count:
            self._damaged(f"inode {inode.number}: chunks lie outside of their section")
        begin = self._chunks + inode.first * DIGEST_BYTES
        digests = self._map[begin : begin + count * DIGEST_BYTES]
        if HOLE not in digests:  # they are looked at one by one only where there may be zeros among them
            return inode.size
        holes = [place for place in range(count) if digests.startswith(HOLE, place * DIGEST_BYTES)]
        last_bytes = inode.size - (count - 1) * self.chunk_bytes
        hole_bytes = len(holes) * self.chunk_bytes
        if holes and holes[-1] == count - 1:
            hole_bytes -= self.chunk_bytes - last_bytes
        return inode.size - hole_bytes

    def chunk_digest(self, number: int, position: int) -> bytes:
        """One chunk's digest; 32 zero bytes stand for a hole."""
        digests = self.chunk_digests(number)
        if not 0 <= position < len(digests):
            self._damaged(f"inode {number}: no chunk {position}")
        return digests[position]

    def _dirent_range(self, directory: int) -> tuple[int, int]:
        inode = self.inode(directory)
        if not inode.is_directory:
            self._damaged(f"inode {directory} is not a directory")
        end = inode.first + inode.size
        if end > self._dirent_count:
            self._damaged(f"inode {directory}: entries lie outside of their section")
        return inode.first, end

    def _dirent(self, position: int) -> tuple[bytes, int, int]:
        offset, length, file_type, number = DIRENT.unpack_from(
            self._map, self._dirents + position * _DIRENT_BYTES
        )
        if number >= self.inode_count:
            self._damaged(f"directory entry {position}: no inode {number}")
        if offset + length > self._heap_bytes:
            self._damaged(f"name of directory entry {position} lies outside of the heap")
        begin = self._heap + offset
        name = self._map[begin : begin + length]
        if not 1 <= length <= LONGEST_NAME_BYTES or b"/" in name:
            self._damaged(f"directory entry {position}: not a name")
        return name, number, file_type

    def _text(self, offset: int, length: int, what: str) -> bytes:
        if offset + length > self._heap_bytes:
            self._damaged(f"{what} lies outside of the heap")
        begin = self._heap + offset
        return self._map[begin : begin + length]


class ChunkDigests(Sequence[bytes]):
    """A file's chunk digests, in order."""

    def __init__(self, content: Any, offset: int, count: int) -> None:
        self._content = content
        self._offset = offset
        self._count = count

    def __len__(self) -> int:
        return self._count

    def joined(self) -> bytes:
        """All of them back to back: equal for equal contents cut alike."""
        content: bytes = self._content[self._offset : self._offset + self._count * DIGEST_BYTES]
        return content

    @overload
    def __getitem__(self, position: int) -> bytes: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes]:
        if isinstance(position, slice):
            return [self[number] for number in range(*position.indices(self._count))]
        if position < 0:
            position += self._count
        if not 0 <= position < self._count:
            raise IndexError(position)
        begin = self._offset + position * DIGEST_BYTES
        digest: bytes = self._content[begin : begin + DIGEST_BYTES]
        return digest
