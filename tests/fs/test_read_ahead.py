"""Streams and random reads of a mounted image whose store is behind a web server."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_fs.mounts.records import MountRecord
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab
from fs.servers import FaultyServer

MIB = 1 << 20
CONTENT = random.Random(9).randbytes(24 * MIB + 1000)


@dataclass
class Remote:
    """An image of one large file, mounted from a web server; nothing is cached yet."""

    lab: Lab
    server: FaultyServer
    record: MountRecord

    @property
    def path(self) -> Path:
        return self.record.mountpoint / "large"

    def ranges(self) -> list[int]:
        """The lengths of all requests for parts of packs."""
        found = []
        for _, path, wanted in self.server.requests:
            if path.endswith(".pack") and wanted is not None:
                first, last = wanted.removeprefix("bytes=").split("-")
                found.append(int(last) - int(first) + 1)
        return found


@pytest.fixture
def remote(lab: Lab, faulty: FaultyServer) -> Remote:
    lab.image(large=CONTENT)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url)
    return Remote(lab, faulty, record)


def test_a_stream_is_brought_in_few_large_requests(remote: Remote) -> None:
    assert remote.path.read_bytes() == CONTENT
    ranges = remote.ranges()
    assert sum(ranges) < len(CONTENT) * 1.05
    assert len(ranges) < len(CONTENT) // CHUNK_BYTES // 3
    assert max(ranges) >= 2 * MIB


def mapped(path: Path, expression: str) -> bytes:
    """What an expression makes of a mapped file; elsewhere, since a fault holds every thread."""
    code = (
        "import mmap, random, sys\n"
        "with open(sys.argv[1], 'rb') as stream:\n"
        "    view = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)\n"
        f"sys.stdout.buffer.write({expression})"
    )
    return subprocess.run(
        [sys.executable, "-c", code, path], stdout=subprocess.PIPE, timeout=60, check=True
    ).stdout


def test_a_mapped_file_that_is_read_in_order_is_a_stream_too(remote: Remote) -> None:
    assert mapped(remote.path, "view[:]") == CONTENT
    assert sum(remote.ranges()) < len(CONTENT) * 1.05
    assert max(remote.ranges()) >= 2 * MIB


def test_random_faults_fetch_no_megabytes(remote: Remote) -> None:
    choose = random.Random(4)
    places = [choose.randrange(len(CONTENT)) for _ in range(20)]
    assert mapped(remote.path, f"bytes(view[place] for place in {places})") == bytes(
        CONTENT[place] for place in places
    )
    # a fault reads 64 KiB to both sides of its page, which touch two chunks
    assert sum(remote.ranges()) <= len(places) * 2 * CHUNK_BYTES
    assert max(remote.ranges()) <= 2 * CHUNK_BYTES


def test_the_first_page_of_a_tensor_brings_the_tensor(lab: Lab, faulty: FaultyServer) -> None:
    tensors = {f"t{n}": {"data_offsets": [n * 4 * MIB, (n + 1) * 4 * MIB]} for n in range(5)}
    header = json.dumps(tensors).encode()
    content = len(header).to_bytes(8, "little") + header + CONTENT[: 20 * MIB]
    lab.image(large=content)
    faulty.root = lab.store
    remote = Remote(lab, faulty, lab.mount(store=faulty.url))
    assert mapped(remote.path, "view[:9]") == content[:9]
    for begin, _ in (tensor["data_offsets"] for tensor in tensors.values()):
        place = 8 + len(header) + begin
        assert mapped(remote.path, f"view[{place}:{place + 1}]") == content[place : place + 1]
    # the order is made behind the answer; the header was known by the second tensor at the latest
    wait_until(lambda: sum(remote.ranges()) >= 15 * MIB, "whole tensors, of which one page was asked for")


def test_several_readers_of_one_file_are_several_streams(remote: Remote) -> None:
    def part(number: int) -> bool:
        begin, end = number * 6 * MIB, (number + 1) * 6 * MIB
        with remote.path.open("rb", buffering=0) as stream:
            stream.seek(begin)
            got = b"".join(iter(lambda: stream.read(min(64 << 10, end - stream.tell())), b""))
        return got == CONTENT[begin:end]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(part, range(4)))
    assert sum(remote.ranges()) < len(CONTENT) * 1.2
    assert max(remote.ranges()) >= MIB


def test_what_a_stream_was_given_ahead_is_in_its_counters(remote: Remote) -> None:
    assert remote.path.read_bytes() == CONTENT
    assert remote.path.read_bytes() == CONTENT
    counters = remote.lab.counters(remote.record, store_chunks=len(CONTENT) // CHUNK_BYTES)
    assert counters["read_ahead"]["orders"] > 0
    assert counters["read_ahead"]["pushed_bytes"] + counters["read_ahead"]["overtaken_bytes"] > 10 * MIB
