"""A store, a cache and a run folder of a test's own, and everything that was mounted from them ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import ColdstartError
from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.locator import ChunkLocation
from coldstart_fs.format.names import pack_key
from coldstart_fs.indexing.build import index_image
from coldstart_fs.mounts.mount import MountRecord, MountRequest, mount_detached, unmount
from coldstart_fs.mounts.records import all_records
from coldstart_fs.mounts.server_end import end_server
from coldstart_fs.mounts.server_records import log_path, read_counters, read_server, server_folders
from coldstart_fs.stores.images import open_image
from coldstart_fs.stores.store_url import open_store
from conftest import umount, wait_until

CHUNK_BYTES = 131072


def require_fuse() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this host has no FUSE")


@dataclass
class Lab:
    """Images and mounts of one test, or of one file of tests."""

    folder: Path
    digests: dict[str, bytes] = field(default_factory=dict)
    url: str | None = None
    """Where mounts read the store, when not in its folder."""

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def tree(self, name: str = "image", **files: bytes) -> Path:
        """A folder with these files, to be indexed."""
        tree = self.folder / "trees" / name
        tree.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (tree / file).write_bytes(content)
        return tree

    def index(self, tree: Path, name: str = "image") -> bytes:
        store = open_store(str(self.store), create=True)
        self.digests[name] = index_image(f"dir:{tree}", store=store, name=name).digest
        return self.digests[name]

    def image(self, name: str = "image", **files: bytes) -> bytes:
        """An image of these files."""
        return self.index(self.tree(name, **files), name)

    def request(self, mountpoint: Path | str = "mnt", *, name: str = "image", **changes: Any) -> MountRequest:
        point = self.folder / mountpoint
        point.mkdir(exist_ok=True)
        values: dict[str, Any] = {
            "name": name,
            "mountpoint": point,
            "store": self.url or str(self.store),
            "cache": self.cache,
            "run_folder": self.run,
        }
        return MountRequest(**(values | changes))

    def mount(self, mountpoint: Path | str = "mnt", **changes: Any) -> MountRecord:
        return self.mount_request(self.request(mountpoint, **changes))

    def mount_request(self, request: MountRequest) -> MountRecord:
        return mount_detached(request)

    def unmount(self, record: MountRecord) -> None:
        unmount(record.mountpoint, run_folder=self.run, lazy=False)

    def log(self, record: MountRecord) -> str:
        return log_path(record.server_folder).read_text()

    def counters(self, record: MountRecord, **wanted: int) -> dict[str, Any]:
        """What the server counted, once it has written and counted at least what is wanted."""
        folder = record.server_folder

        def counted() -> bool:
            found = read_counters(folder)  # empty until the server's first second is over
            return bool(found) and all(found.get(key, -1) >= value for key, value in wanted.items())

        wait_until(counted, f"counters {wanted}, they are {read_counters(folder)}")
        return read_counters(folder)

    @contextmanager
    def first_page(self, record: MountRecord, path: str) -> Iterator[FileIO]:
        """A file of which a page was read and no more, as when a program is loaded."""
        with (record.mountpoint / path).open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            stream.read(4096)
            yield stream

    def wait_until_brought(
        self, record: MountRecord, has: Callable[[dict[str, Any]], object], what: str
    ) -> None:
        """Until the counters say so, and nothing is on its way from the store."""
        wait_until(
            lambda: has(counters := self.counters(record)) and not counters["tiers"][0]["in_flight"], what
        )

    def places(self, file: str, name: str = "image") -> list[tuple[bytes, ChunkLocation]]:
        """The chunks of a file in the root of an image, and where the store keeps them."""
        index, locator = open_image(open_store(str(self.store)), self.digests[name], self.cache)
        with index, locator:
            number = index.lookup(0, os.fsencode(file))
            assert number is not None
            digests = list(index.chunk_digests(number))
            places = [locator.find(digest) for digest in digests]
        assert None not in places
        return list(zip(digests, places, strict=True))  # type: ignore[arg-type]

    def pack(self, location: ChunkLocation) -> Path:
        return self.store / pack_key(location.pack)

    def cached(self, place: ChunkLocation) -> Path:
        """The cache's copy of a pack."""
        text = place.pack.hex()
        return self.cache / "packs-v2" / text[:2] / f"{text}.pack"

    def is_cached(self, digest: bytes, place: ChunkLocation) -> bool:
        """Whether the cache has this chunk, and has it right."""
        try:
            with self.cached(place).open("rb") as stream:
                stored = os.pread(stream.fileno(), place.stored_bytes, place.offset)
        except OSError:
            return False
        return chunk_digest(stored) == digest

    def close(self) -> None:
        for _, record in all_records(self.run):
            with suppress(ColdstartError):
                unmount(record.mountpoint, run_folder=self.run)
        for folder in server_folders(self.run):
            if (server := read_server(folder)) is not None:
                end_server(server, force=True)
        shutil.rmtree(self.folder / "trees", ignore_errors=True)


@contextmanager
def laboratory(folder: Path) -> Iterator[Lab]:
    require_fuse()
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.close()


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file, as a dying disk does."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 0x10]))


def forget_pages(path: Path) -> None:
    """Let the kernel forget a file's pages: the next read asks the server again."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def kill_all(record: MountRecord) -> None:
    """Kill keeper and server at once, as when the host runs out of memory, and wait for their end."""
    server = record.server()
    assert server is not None
    for process in (server.keeper, server.server):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not record.server_lives(), "the end of keeper and server")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system that is soon full."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=False, timeout=20
    )
    if made.returncode:
        pytest.skip("cannot mount a small tmpfs")
    try:
        yield folder
    finally:
        umount(folder)
