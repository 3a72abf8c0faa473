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
from coldstart_fs.traces.kept import KeptTraces
from coldstart_fs.traces.options import TraceOptions
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab
from fs.servers import FaultyServer

MIB = 1 << 20
CONTENT = random.Random(9).randbytes(24 * MIB + 1000)
# page by page, since one copy of everything goes in whichever direction the C library thinks best; it looks
# at the first page in either
PAGES = "view[place:place + 4096] for place in range(0, len(view), 4096)"
FORWARDS = f"b''.join({PAGES})"
BACKWARDS = f"view[:1][:0] + b''.join([{PAGES}[::-1]][::-1])"


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


@pytest.mark.parametrize(
    "expression", [FORWARDS, BACKWARDS, "view[:]"], ids=["forwards", "backwards", "copied"]
)
def test_a_mapped_file_that_is_read_in_either_direction_is_a_stream_too(
    remote: Remote, expression: str
) -> None:
    assert mapped(remote.path, expression) == CONTENT
    assert sum(remote.ranges()) < len(CONTENT) * 1.05
    assert max(remote.ranges()) >= 2 * MIB


@pytest.mark.parametrize("expression", [FORWARDS, BACKWARDS], ids=["forwards", "backwards"])
def test_what_a_mapped_stream_was_given_ahead_is_in_the_trace(
    lab: Lab, faulty: FaultyServer, expression: str
) -> None:
    digest = lab.image(large=CONTENT)
    faulty.root = lab.store
    state = lab.folder / "state"
    record = lab.mount(store=faulty.url, traces=TraceOptions(state_folder=str(state), workload="start"))
    assert mapped(record.mountpoint / "large", expression) == CONTENT
    lab.unmount(record)
    reads = [read for read in KeptTraces(state).load(digest, "start").reads if read.path == b"large"]
    assert sum(read.length for read in reads) == len(CONTENT)


def test_random_faults_fetch_no_megabytes(remote: Remote) -> None:
    choose = random.Random(4)
    places = [choose.randrange(len(CONTENT)) for _ in range(20)]
    assert mapped(remote.path, f"bytes(view[place] for place in {places})") == bytes(
        CONTENT[place] for place in places
    )
    # a fault reads 64 KiB to both sides of its page, which touch two chunks
    assert sum(remote.ranges()) <= len(places) * 2 * CHUNK_BYTES
    assert max(remote.ranges()) <= 2 * CHUNK_BYTES


def weights(lab: Lab, faulty: FaultyServer) -> tuple[Remote, bytes, list[int]]:
    """Five tensors of 4 MiB in a safetensors file, and where each of them begins and the last one ends."""
    tensors = {f"t{n}": {"data_offsets": [n * 4 * MIB, (n + 1) * 4 * MIB]} for n in range(5)}
    header = json.dumps(tensors).encode()
    content = len(header).to_bytes(8, "little") + header + CONTENT[: 20 * MIB]
    lab.image(large=content)
    faulty.root = lab.store
    remote = Remote(lab, faulty, lab.mount(store=faulty.url))
    assert mapped(remote.path, "view[:9]") == content[:9]
    return remote, content, [8 + len(header) + n * 4 * MIB for n in range(6)]


def test_the_first_page_of_a_tensor_brings_the_tensor(lab: Lab, faulty: FaultyServer) -> None:
    remote, content, places = weights(lab, faulty)
    for place in places[:-1]:
        assert mapped(remote.path, f"view[{place}:{place + 1}]") == content[place : place + 1]
    # the order is made behind the answer; the header was known by the second tensor at the latest
    wait_until(lambda: sum(remote.ranges()) >= 15 * MIB, "whole tensors, of which one page was asked for")


def test_a_tensor_that_is_entered_backwards_at_its_last_page_is_brought(
    lab: Lab, faulty: FaultyServer
) -> None:
    remote, content, places = weights(lab, faulty)
    # the last one first: on the last page of each other one the next begins, and is brought for that
    for end in places[:0:-1]:
        last, before = end - 1, end - 1 - (68 << 10)
        expression = f"bytes((view[{last}], view[{before}]))"
        assert mapped(remote.path, expression) == bytes((content[last], content[before]))
    chunks = lab.places("large")[1 : places[1] // CHUNK_BYTES]
    wait_until(
        lambda: all(lab.is_cached(*chunk) for chunk in chunks),
        "the first tensor, of which two pages were read",
    )


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
