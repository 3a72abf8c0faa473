"""An image of one file behind a server, and readers of it: in this process, or in others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.reader import ImageReader, open_reader
from coldstart_fs.format.chunk import Compression
from coldstart_fs.format.names import pack_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store_url import open_store
from fs.servers import FaultyServer, faulty_server

CHUNK = 131072
_OTHER = """
import json, sys
from pathlib import Path
from coldstart_fs.content.reader import open_reader
from coldstart_fs.stores.store_url import open_store
url, digest, cache = sys.argv[1:4]
reader = open_reader(open_store(url), bytes.fromhex(digest), Path(cache))
print("ready", flush=True)
for line in sys.stdin:
    number, offset, length = json.loads(line)
    try:
        print(json.dumps(bytes(reader.read(number, offset, length)).hex()), flush=True)
    except Exception as error:
        print(json.dumps({"error": str(error)}), flush=True)
print(json.dumps(reader.counters()), flush=True)
"""


@dataclass
class Desk:
    """One file, whose chunks a server has; `url` is the folder itself where nothing is to be cached."""

    folder: Path
    content: bytes
    digest: bytes
    server: FaultyServer
    said: list[str] = field(default_factory=list)
    opened: list[ImageReader] = field(default_factory=list)
    number: int = 0
    chunks: dict[int, PlacedChunk] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def reader(self, *, url: str | None = None, cache: Path | None = None, **settings: Any) -> ImageReader:
        reader = open_reader(
            open_store(url or self.server.url),
            self.digest,
            cache or self.cache,
            log=self.said.append,
            tell=self.said.append,
            **settings,
        )
        number = reader.index.lookup(0, b"file")
        assert number is not None
        self.number = number
        self.opened.append(reader)
        if not self.chunks:
            file = reader.chunks.file(number)
            self.chunks = {place: chunk for place in range(len(file)) if (chunk := file[place]) is not None}
        self.server.requests.clear()
        return reader

    @contextmanager
    def process(self) -> Iterator[Other]:
        """A reader in a process of its own, with the same cache."""
        self.reader().close()
        command = [sys.executable, "-c", _OTHER, self.server.url, self.digest.hex(), str(self.cache)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            other = Other(process, self.number)
            try:
                assert other.line() == b"ready\n"
                yield other
            finally:
                process.kill()
                process.wait(60)

    def chunk(self, place: int) -> PlacedChunk:
        return self.chunks[place]

    def copy(self, place: int = 0) -> Path:
        """The cache's copy of the pack that holds this chunk."""
        text = self.chunk(place).pack.hex()
        return self.cache / "packs-v2" / text[:2] / f"{text}.pack"

    def pack(self, place: int = 0) -> Path:
        return self.folder / "store" / pack_key(self.chunk(place).pack)

    def part(self, place: int, chunks: int = 1) -> bytes:
        return self.content[place * CHUNK : (place + chunks) * CHUNK]

    def ranges(self) -> list[tuple[int, int]]:
        """First and last byte of each range of a pack that the server was asked for."""
        asked = [span for _, path, span in self.server.requests if "/packs/" in path and span]
        found = [span.removeprefix("bytes=").split("-") for span in asked]
        return [(int(first), int(last)) for first, last in found]

    @property
    def fetched_bytes(self) -> int:
        return sum(last + 1 - first for first, last in self.ranges())


@dataclass
class Other:
    process: subprocess.Popen[bytes]
    number: int

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, offset: int, length: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([self.number, offset, length]).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> bytes:
        found = json.loads(self.line())
        assert isinstance(found, str), found
        return bytes.fromhex(found)

    def counters(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        found: dict[str, Any] = json.loads(self.line())
        return found


@contextmanager
def reader_desk(
    folder: Path, content: bytes, *, compression: Compression | None = None, **others: bytes
) -> Iterator[Desk]:
    """An image of `file` with this content, and of other files, served over HTTP."""
    tree = folder / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(content)
    for name, data in others.items():
        (tree / name).write_bytes(data)
    store = open_store(str(folder / "store"), create=True)
    digest = index_image(f"dir:{tree}", store=store, name="image", compression=compression).digest
    with faulty_server(folder / "store") as server:
        desk = Desk(folder, content, digest, server)
        try:
            yield desk
        finally:
            for reader in desk.opened:
                reader.close()
