"""Programs and libraries as they are loaded: what their loading will read is brought when they are opened.

A dynamic linker goes from library to library, and within each from table to table, and waits each time; what
it will ask for is written in the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from threading import Lock

from coldstart_fs.content.companions import Kind
from coldstart_fs.content.fetch import Content
from coldstart_fs.content.prefetch import Hand
from coldstart_fs.content.reader import ImageReader
from coldstart_fs.content.workers import Workers
from coldstart_fs.foresight import code, elf
from coldstart_fs.looking.tree import resolve
from coldstart_fs.traces.inode_paths import InodePaths

_THREADS = 8
_MOST_FILES = 4096
# what the kernel reads before a fault in a mapped file, and as much after it
_AROUND_BYTES = 64 << 10
# of constructors, and as many of what they refer to: 48 MiB each at most
_MOST_PLACES = 256
_MOST_CODE_BYTES = 1 << 20
# what is remembered of folders that libraries may stand in
_MOST_FOLDERS = 1024
_LONGEST_PATH_BYTES = 1024
# of programs and libraries up to that size 85 % of the chunks and more are read
_LARGEST_WHOLE_BYTES = 8 << 20
# who waits for a chunk on its way waits for all of its request
_REQUEST_BYTES = 1 << 20
_WHOLE = Kind("whole library", beginning_bytes=4 << 20)
# where libraries are looked for, whatever /etc/ld.so.conf says; of those that exist
_FOLDERS = (
    *(b"usr/lib/x86_64-linux-gnu", b"lib/x86_64-linux-gnu", b"usr/lib/aarch64-linux-gnu", b"usr/lib64"),
    *(b"lib64", b"usr/lib", b"lib", b"usr/local/lib"),
)


class Libraries:
    """`opened` is for the request loop; the rest happens in threads. What fails costs speed only."""

    def __init__(self, reader: ImageReader, into: Hand) -> None:
        """`into` gets what was brought, in threads that must not wait."""
        self.foreseen_bytes = 0
        self._reader = reader
        self._into = into
        self._index = reader.index
        self._paths = InodePaths(reader.index)
        self._workers = Workers("libraries", _THREADS)
        self._begun: set[int] = set()
        self._folders: dict[bytes, tuple[int, bytes] | None] = {}
        self._lock = Lock()

    def opened(self, number: int, file_bytes: int) -> None:
        """Hear that the beginning of a file is read."""
        if file_bytes >= elf.SMALLEST_FILE_BYTES and number not in self._begun:
            self._begin(number)

    def _begin(self, number: int) -> None:
        with self._lock:
            if number in self._begun or len(self._begun) >= _MOST_FILES:
                return
            self._begun.add(number)
        self._workers.attempt(partial(self._look_into, number))

    def _look_into(self, number: int) -> None:
        if self._reader.is_in_place(number):
            return
        head = self._read(number, 0, elf.HEAD_BYTES)
        size_bytes = self._index.inode(number).size
        ranges = elf.loader_ranges(head, size_bytes)
        if not ranges:
            return
        whole = self._whole(number, size_bytes) if size_bytes <= _LARGEST_WHOLE_BYTES else None
        self._workers.attempt(partial(self._look_further, number, head, is_whole=whole is not None))
        if whole is not None:
            self._reader.prefetch_all(whole, into=self._into, most_bytes=_REQUEST_BYTES)
        else:
            self._bring(number, ranges)

    def _whole(self, number: int, size_bytes: int) -> list[tuple[int, int, int]] | None:
        """What is missing of a file; None where not all of it may come, since not all of it will be read."""
        file = self._reader.chunks.file(number)
        missing = list(self._reader.unseen(number, [(0, size_bytes)]))
        chunks = [
            chunk for _, offset, _ in missing if (chunk := file[offset // file.chunk_bytes]) is not None
        ]
        companions = self._reader.bringer.companions
        if sum(chunk.end - chunk.offset for chunk in chunks) > companions.room_bytes(_WHOLE):
            return None
        companions.brought(chunks, _WHOLE)
        with self._lock:
            self.foreseen_bytes += sum(chunk.size_bytes for chunk in chunks)
        return missing

    def _bring(self, number: int, ranges: Iterable[tuple[int, int]]) -> None:
        missing = list(dict.fromkeys(self._reader.unseen(number, ranges)))
        with self._lock:
            self.foreseen_bytes += sum(length for _, _, length in missing)
        self._reader.prefetch_all(missing, into=self._into)

    def _look_further(self, number: int, head: bytes, *, is_whole: bool) -> None:
        linking = elf.Linking(head, partial(self._read, number))
        if not is_whole:
            self._workers.attempt(partial(self._bring, number, linking.table_ranges()))
            self._workers.attempt(partial(self._bring_constructors, number, linking))
        names, folders = linking.needed_libraries()
        if not names:
            return
        with self._lock:
            origin = b"/" + self._paths.path(number).rpartition(b"/")[0]
        own = [folder.replace(b"${ORIGIN}", b"$ORIGIN").replace(b"$ORIGIN", origin) for folder in folders]
        own = [folder for folder in own if len(folder) <= _LONGEST_PATH_BYTES]
        for name in names:
            if (found := self._find(name, own)) is not None:
                self._begin(found)

    def _bring_constructors(self, number: int, linking: elf.Linking) -> None:
        places = linking.constructors()
        self._bring_around(number, places)
        if not linking.is_x86_64:
            return
        # they run as soon as the file is loaded: what they register and read is next
        taken: set[int] = set()
        for begin, length in code.function_ranges(places, _MOST_CODE_BYTES):
            first, end = linking.segment_around(begin)
            found = code.addresses_taken(self._read(number, begin, length), begin)
            taken.update(place for place in found if first <= place < end)
        self._bring_around(number, sorted(taken))

    def _bring_around(self, number: int, places: Iterable[int]) -> None:
        """Bring what the kernel will read around faults in these places, of so many of them at most."""
        steps = dict.fromkeys(place // _AROUND_BYTES for place in places)
        size_bytes = self._index.inode(number).size
        begins = [max(0, step - 1) * _AROUND_BYTES for step in steps]
        self._bring(
            number, [(begin, min(3 * _AROUND_BYTES, size_bytes - begin)) for begin in begins[:_MOST_PLACES]]
        )

    def _find(self, name: bytes, own: list[bytes]) -> int | None:
        """The library of that name that a linker would take, as far as folders tell."""
        for folder in (*own, *_FOLDERS):
            if (directory := self._folder(folder)) is None:
                continue
            number, path = directory
            if self._index.lookup(number, name) is not None:
                node = resolve(self._index, path + b"/" + name)
                return None if node is None or not node.inode.is_file else node.inode.number
        return None

    def _folder(self, path: bytes) -> tuple[int, bytes] | None:
        if path in self._folders:
            return self._folders[path]
        node = resolve(self._index, path)
        found = None if node is None or not node.inode.is_directory else (node.inode.number, node.path)
        if len(self._folders) < _MOST_FOLDERS:
            self._folders[path] = found
        return found

    def _read(self, number: int, offset: int, length: int) -> bytes:
        """Bytes of a file that nobody waits for, and no trace tells of."""
        length = max(0, min(length, self._index.inode(number).size - offset))
        if (here := self._reader.peek(number, offset, length)) is not None:
            return bytes(here)
        found = bytearray(length)

        def take(place: int, data: Content) -> None:
            found[place - offset : place - offset + len(data)] = data

        done = self._reader.prefetch(number, offset, length, into=take)
        if done.failure is not None:
            raise done.failure
        return bytes(found)
