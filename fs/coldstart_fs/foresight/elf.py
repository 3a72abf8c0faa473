"""What a dynamic linker reads of an ELF file: tables, what it relocates, constructors, other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct, error

SMALLEST_FILE_BYTES = 128 << 10
HEAD_BYTES = 4096
"""What of a file says where its segments are, whoever linked it."""
Read = Callable[[int, int], bytes]
"""Reads so many bytes from an offset on, fewer at the file's end; may raise."""
# beyond that, loading takes its time whatever we bring
_MOST_BYTES = 64 << 20
_LARGEST_UNSIZED_BYTES = 16 << 20
_MOST_LIBRARIES = 128
_MOST_FOLDERS = 32
_MOST_SEGMENTS = 64
_MOST_CONSTRUCTORS = 4096
_LONGEST_NAME_BYTES = 1024
_LARGEST_DYNAMIC_BYTES = 64 << 10
_IDENTITY = b"\x7fELF\x02\x01"  # of 64 bits, little endian
_X86_64 = b"\x3e\x00"
_MACHINE = slice(18, 20)
_HEADER = Struct("<16x16xQ14xHH")  # where program headers are, how long each is, and how many
_PROGRAM = Struct("<IIQQQQ")  # kind, flags, offset, two addresses, size in the file
_PROGRAM_BYTES = 56
_ENTRY = Struct("<QQ")  # of the dynamic section: tag and value
_RELOCATION = Struct("<QQq")  # where, what, addend
_ADDRESS = Struct("<Q")
_LOAD, _DYNAMIC = 1, 2
_EXECUTE, _WRITE = 1, 2
_END, _NEEDED, _RPATH, _RUNPATH = 0, 1, 15, 29
_PLT_BYTES, _HASH, _STRINGS, _SYMBOLS, _RELOCATIONS, _RELOCATIONS_BYTES, _STRINGS_BYTES = 2, 4, 5, 6, 7, 8, 10
_INIT, _FINI, _PLT, _INIT_ARRAY, _INIT_ARRAY_BYTES, _PACKED_BYTES, _PACKED = 12, 13, 23, 25, 27, 35, 36
_GNU_HASH, _VERSIONS, _RELATIVE_COUNT, _DEFINED, _REQUIRED = (
    *(0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFF9, 0x6FFFFFFC, 0x6FFFFFFE),
)
# tables, and where their size is said; of the others one begins where another ends
_TABLES = {
    _RELOCATIONS: _RELOCATIONS_BYTES,
    _PLT: _PLT_BYTES,
    _SYMBOLS: None,
    _STRINGS: _STRINGS_BYTES,
    _GNU_HASH: None,
    _HASH: None,
    _VERSIONS: None,
    _DEFINED: None,
    _REQUIRED: None,
    _PACKED: _PACKED_BYTES,
}
_RELATIVE = {8, 1027}  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE


@dataclass(frozen=True)
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    size_bytes: int


def loader_ranges(head: bytes, file_bytes: int) -> list[tuple[int, int]]:
    """Offset and length of what loading reads whole, as far as the file's head says; of other files none.

    All that relocations change is in the writable segments. Symbols and relocations stand in the first one
    where the linker keeps them apart from code.
    """
    found: list[tuple[int, int]] = []
    left = _MOST_BYTES
    for segment in _segments(head):
        is_data = segment.flags & _WRITE or (not segment.offset and not segment.flags & _EXECUTE)
        length = min(segment.size_bytes, file_bytes - segment.offset, left)
        if segment.kind == _LOAD and is_data and length > 0:
            found.append((segment.offset, length))
            left -= length
    return found


class Linking:
    """What the dynamic section of a file tells; nothing where there is none, or none that makes sense."""

    def __init__(self, head: bytes, read: Read) -> None:
        """May raise what `read` does."""
        self.is_x86_64 = head[_MACHINE] == _X86_64
        self._segments = _segments(head)
        self._read = read
        self._entries = list(self._dynamic_section())
        self._values = dict(reversed(self._entries))  # of a tag that stands twice the first one

    def table_ranges(self) -> list[tuple[int, int]]:
        """Symbols, names and relocations, wherever the linker put them, as offset and length."""
        starts = sorted({value for tag, value in self._entries if tag in _TABLES or tag in {_INIT, _FINI}})
        found = []
        left = _MOST_BYTES
        for tag, sized in _TABLES.items():
            if (address := self._values.get(tag)) is None or (offset := self._offset(address)) is None:
                continue
            if sized is not None:
                length = self._values.get(sized, 0)
            else:
                end = next((start for start in starts if start > address), address)
                length = min(end - address, _LARGEST_UNSIZED_BYTES)
            length = min(length, left)
            if length > 0:
                found.append((offset, length))
                left -= length
        return found

    def constructors(self) -> list[int]:
        """Where the functions begin that run as soon as the file is loaded, as offsets in it."""
        array, array_bytes = self._values.get(_INIT_ARRAY), self._values.get(_INIT_ARRAY_BYTES, 0)
        if array is None or not 0 < array_bytes <= _MOST_CONSTRUCTORS * _ADDRESS.size:
            return []
        if _PACKED in self._values:  # then addresses stand in their places already
            addresses = self._addresses(array, array_bytes)
        else:
            addresses = list(self._relocated(array, array + array_bytes))
        return [offset for address in addresses if address and (offset := self._offset(address)) is not None]

    def segment_around(self, offset: int) -> tuple[int, int]:
        """From where to where the segment of a place reaches: there distances in memory are the file's."""
        for segment in self._segments:
            if segment.kind == _LOAD and segment.offset <= offset < segment.offset + segment.size_bytes:
                return segment.offset, segment.offset + segment.size_bytes
        return offset, offset

    def needed_libraries(self) -> tuple[list[bytes], list[bytes]]:
        """The names of libraries that the file needs, and its own folders to look for them in."""
        strings = self._values.get(_STRINGS)
        table = None if strings is None else self._offset(strings)
        if table is None:
            return [], []

        def names(*tags: int) -> list[bytes]:
            places = [value for tag, value in self._entries if tag in tags][:_MOST_LIBRARIES]
            return [self._read(table + place, _LONGEST_NAME_BYTES).split(b"\0", 1)[0] for place in places]

        folders = [folder for path in names(_RPATH, _RUNPATH) for folder in path.split(b":") if folder]
        return [name for name in names(_NEEDED) if name and b"/" not in name], folders[:_MOST_FOLDERS]

    def _dynamic_section(self) -> Iterator[tuple[int, int]]:
        dynamic = next((segment for segment in self._segments if segment.kind == _DYNAMIC), None)
        if dynamic is None:
            return
        section = self._read(dynamic.offset, min(dynamic.size_bytes, _LARGEST_DYNAMIC_BYTES))
        for tag, value in _unpacked(_ENTRY, section):
            if tag == _END:
                return
            yield tag, value

    def _offset(self, address: int) -> int | None:
        for segment in self._segments:
            if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size_bytes:
                return segment.offset + address - segment.address
        return None

    def _addresses(self, array: int, array_bytes: int) -> list[int]:
        offset = self._offset(array)
        content = b"" if offset is None else self._read(offset, array_bytes)
        return [address for (address,) in _unpacked(_ADDRESS, content)]

    def _relocated(self, begin: int, end: int) -> Iterator[int]:
        """What is put into a range of addresses: linkers sort relative relocations by their place."""
        table, count = self._values.get(_RELOCATIONS), self._values.get(_RELATIVE_COUNT, 0)
        offset = None if table is None else self._offset(table)
        count = min(count, self._values.get(_RELOCATIONS_BYTES, 0) // _RELOCATION.size)
        if offset is None:
            return
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            found = self._read(offset + middle * _RELOCATION.size, _RELOCATION.size)
            if len(found) < _RELOCATION.size:
                return
            if _RELOCATION.unpack(found)[0] < begin:
                low = middle + 1
            else:
                high = middle
        length = min((end - begin) // _ADDRESS.size, count - low) * _RELOCATION.size
        content = self._read(offset + low * _RELOCATION.size, length)
        for place, kind, addend in _unpacked(_RELOCATION, content):
            if begin <= place < end and kind & 0xFFFFFFFF in _RELATIVE:
                yield addend


def _unpacked(struct: Struct, content: bytes) -> Iterator[tuple[int, ...]]:
    """Those that are whole: a file may end before it should."""
    return struct.iter_unpack(content[: len(content) // struct.size * struct.size])


def _segments(head: bytes) -> list[_Segment]:
    """As the program headers say; none of a file that is cut short, or of no library."""
    if not head.startswith(_IDENTITY):
        return []
    found = []
    try:
        place, entry_bytes, count = _HEADER.unpack_from(head)
        if entry_bytes < _PROGRAM_BYTES:
            return []
        for number in range(min(count, _MOST_SEGMENTS)):
            kind, flags, offset, address, _, size_bytes = _PROGRAM.unpack_from(
                head, place + number * entry_bytes
            )
            found.append(_Segment(kind, flags, offset, address, size_bytes))
    except (error, OverflowError):
        return []
    return found
