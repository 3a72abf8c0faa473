"""Files of weights, read while the replica is restored or started, so that its engine finds them in memory.

Several readers at once take stretches of the files in the order of their bytes, which for safetensors is that
of its header: on a lazily served root each stretch is a parallel fetch, on an array of disks a deep queue.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from coldstart_cli.regular import open_regular
from coldstart_launch.waterfall import Waterfall

_SUFFIXES = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth", ".npz", ".onnx"})
_STRETCH_BYTES = 16 << 20
_READ_BYTES = 4 << 20
_MOST_READERS = 8
_MOST_LINKS = 40
# what is read must not push the server that is being restored out of memory
_MEMORY_SHARE = 0.5
_END_SECONDS = 2.0


@dataclass
class Streamed:
    """What was read so far."""

    files: int = 0
    size_bytes: int = 0
    read_bytes: int = 0
    hot_bytes: int = 0
    """What was in memory already."""
    problems: list[str] = field(default_factory=list)


@contextmanager
def streaming(
    paths: Sequence[str], root: Path, mounts: Mapping[str, Path], waterfall: Waterfall
) -> Iterator[Streamed]:
    """Read these files and folders of a container beside the block; what is left at its end stays unread.

    `mounts` are folders of the host by the places where the container sees them. Nothing that goes wrong here
    keeps a replica from coming up: the server reads for itself then.
    """
    streamed = Streamed()
    if not paths:
        yield streamed
        return
    stopping = threading.Event()
    worker = threading.Thread(
        target=_stream, args=(paths, root, mounts, waterfall, streamed, stopping), name="weights", daemon=True
    )
    worker.start()
    try:
        yield streamed
    finally:
        stopping.set()
        worker.join(_END_SECONDS)


def _stream(
    paths: Sequence[str],
    root: Path,
    mounts: Mapping[str, Path],
    waterfall: Waterfall,
    streamed: Streamed,
    stopping: threading.Event,
) -> None:
    began = time.monotonic()
    try:
        files = list(_weights_files(paths, root, mounts, streamed))
        budget_bytes = int(_available_bytes() * _MEMORY_SHARE)
        stretches: deque[tuple[Path, int, int]] = deque()
        for path, size_bytes in files:
            if streamed.size_bytes + size_bytes > budget_bytes:
                streamed.problems.append(f"not read ahead, memory is short: {path}")
                continue
            streamed.files += 1
            streamed.size_bytes += size_bytes
            for offset in range(0, size_bytes, _STRETCH_BYTES):
                stretches.append((path, offset, min(_STRETCH_BYTES, size_bytes - offset)))
        count = min(_MOST_READERS, max(1, (os.cpu_count() or 2) // 2), max(1, len(stretches)))
        lock = threading.Lock()
        readers = [
            threading.Thread(target=_read, args=(stretches, streamed, lock, stopping), daemon=True)
            for _ in range(count)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    except OSError as error:
        streamed.problems.append(f"weights are not read ahead: {error}")
    finally:
        waterfall.add("weights", began, time.monotonic())


def _read(
    stretches: deque[tuple[Path, int, int]],
    streamed: Streamed,
    lock: threading.Lock,
    stopping: threading.Event,
) -> None:
    buffer = memoryview(bytearray(_READ_BYTES))
    while not stopping.is_set():
        try:
            path, offset, left = stretches.popleft()
        except IndexError:
            return
        from coldstart_snapshot.restoring.page_cache import resident_bytes

        try:
            descriptor = open_regular(path)
        except OSError as error:
            streamed.problems.append(f"weights cannot be read: {path}: {error.strerror}")
            continue
        try:
            if resident_bytes(descriptor, offset, left) == left:
                with lock:
                    streamed.hot_bytes += left
                continue
            while left > 0 and not stopping.is_set():
                count = os.preadv(descriptor, [buffer[: min(left, _READ_BYTES)]], offset)
                if count == 0:
                    break
                offset, left = offset + count, left - count
                with lock:
                    streamed.read_bytes += count
        except OSError as error:
            streamed.problems.append(f"weights cannot be read: {path}: {error.strerror}")
        finally:
            os.close(descriptor)


def _weights_files(
    paths: Iterable[str], root: Path, mounts: Mapping[str, Path], streamed: Streamed
) -> Iterator[tuple[Path, int]]:
    seen: set[tuple[int, int]] = set()
    for given in paths:
        place = host_path(given, root, mounts)
        if place is None:
            streamed.problems.append(f"weights do not exist: {given}")
            continue
        names = [given]
        if place.is_dir():
            found = sorted(entry.name for entry in os.scandir(place))
            names = [f"{given.rstrip('/')}/{name}" for name in found if Path(name).suffix in _SUFFIXES]
        for name in names:
            path = host_path(name, root, mounts)
            if path is None:
                continue
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield path, status.st_size


def host_path(path: str, root: Path, mounts: Mapping[str, Path]) -> Path | None:
    """Where a path of the container lies on the host, links followed as in the container; None: nowhere."""
    waiting = deque(PurePosixPath(path).parts[1:])
    inside = PurePosixPath("/")
    links = 0
    while waiting:
        part = waiting.popleft()
        if part == "..":
            inside = inside.parent
            continue
        inside /= part
        place = _place(inside, root, mounts)
        try:
            target = os.readlink(place)
        except OSError:
            if not os.path.lexists(place):
                return None
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        inside = PurePosixPath("/") if target.startswith("/") else inside.parent
        waiting.extendleft(reversed([part for part in PurePosixPath(target).parts if part != "/"]))
    return _place(inside, root, mounts)


def _place(inside: PurePosixPath, root: Path, mounts: Mapping[str, Path]) -> Path:
    for destination in sorted(mounts, key=len, reverse=True):
        if inside.is_relative_to(destination):
            return mounts[destination] / inside.relative_to(destination)
    return root / inside.relative_to("/")


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
