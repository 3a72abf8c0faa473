"""Generated images of any size: layers that take little disk, and the peak memory of indexing them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from image_builder import TAR, write_blob, write_index

BLOCK = 512
_CHILD = """
import json, sys
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store_url import open_store
report = index_image(sys.argv[1], store=open_store(sys.argv[2], create=True), name="large")
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps([peak * 1024, report.entries, report.content_bytes, report.new_bytes, report.index_bytes]))
"""


@dataclass(frozen=True)
class Indexed:
    """What indexing in a process of its own came to."""

    peak_bytes: int
    entries: int
    content_bytes: int
    new_bytes: int
    index_bytes: int


def index_in_child(source: str, store: Path, *, timeout_seconds: float) -> Indexed:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, source, store],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Indexed(*json.loads(done.stdout))


def many_files(count: int, *, folder_files: int = 1000) -> Iterator[bytes]:
    """A tar of `count` files, no two alike, in folders of their own."""
    for number in range(count):
        if number % folder_files == 0:
            yield header(b"srv/%04d/" % (number // folder_files), 0, kind=b"5")
        body = b"%d\n" % number
        yield header(b"srv/%04d/module-%d.py" % (number // folder_files, number), len(body), number)
        yield body.ljust(BLOCK, b"\0")
    yield bytes(2 * BLOCK)


def gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(content) + packer.flush()


def large_files(count: int, size_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """A tar of large files as plain and compressed parts: half zeros, half repeats of a few kilobytes."""
    pattern = random.Random(1).randbytes(16 << 10)
    plain = bytes(size_bytes // 2) + pattern * (size_bytes // 2 // len(pattern))
    assert len(plain) == size_bytes
    packed = gzip(plain)
    for number in range(count):
        start = header(b"weights-%02d.bin" % number, size_bytes)
        yield start, gzip(start)
        yield plain, packed
    yield bytes(2 * BLOCK), gzip(bytes(2 * BLOCK))


def layout_of(folder: Path, parts: Iterable[tuple[bytes, bytes]]) -> Path:
    """An OCI layout of one gzip layer from plain and compressed parts, none of them kept."""
    folder.mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    plain_digest, digest, size = hashlib.sha256(), hashlib.sha256(), 0
    with (folder / "layer").open("wb") as stream:
        for plain, packed in parts:
            plain_digest.update(plain)
            digest.update(packed)
            size += stream.write(packed)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    os.rename(folder / "layer", blobs / digest.hexdigest())
    layer = {"mediaType": TAR + "+gzip", "digest": f"sha256:{digest.hexdigest()}", "size": size}
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain_digest.hexdigest()}"]},
    }
    config = write_blob(
        folder, json.dumps(configuration).encode(), "application/vnd.oci.image.config.v1+json"
    )
    manifest = {"schemaVersion": 2, "config": config, "layers": [layer]}
    write_index(
        folder,
        [write_blob(folder, json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")],
    )
    return folder


def many_files_layout(folder: Path, count: int) -> Path:
    def parts() -> Iterator[tuple[bytes, bytes]]:
        held = bytearray()
        for part in many_files(count):
            held += part
            if len(held) >= 8 << 20:
                yield bytes(held), gzip(bytes(held))
                held.clear()
        yield bytes(held), gzip(bytes(held))

    return layout_of(folder, parts())


def header(name: bytes, size: int, mtime: int = 0, *, kind: bytes = b"0") -> bytes:
    """A ustar header."""
    fields = b"".join(
        (
            name.ljust(100, b"\0"),
            b"0000755\0" if kind == b"5" else b"0000644\0",
            b"0000000\0" * 2,
            b"%011o\0" % size,
            b"%011o\0" % (1_700_000_000 + mtime),
            b" " * 8,
            kind,
            bytes(100),
            b"ustar\x0000",
        )
    ).ljust(BLOCK, b"\0")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]
