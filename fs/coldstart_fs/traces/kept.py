"""Traces of this host: what its mounts recorded, merged, under the state folder."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import ColdstartError, DataError, IoFailure, NotFoundError
from coldstart_cli.files import atomic_write, exclusive_lock, make_private
from coldstart_fs.format.index import Index
from coldstart_fs.format.trace import Trace, encode_trace, load_trace
from coldstart_fs.traces.merge import aged, merge_traces
from coldstart_fs.traces.names import SUFFIX, check_workload, workload_of
from coldstart_fs.traces.recording import read_recording, trace_of

_RECORDING = ".recording"
_LOCK_SECONDS = 10.0
_FORGOTTEN_SECONDS = 30 * 86400.0


@dataclass(frozen=True)
class KeptTrace:
    """One trace of this host, or why it cannot be read."""

    image: bytes
    workload: str
    path: Path
    trace: Trace | None
    problem: str | None = None


class KeptTraces:
    """`STATE/traces`: a folder for each image, and one for recordings that are not merged yet."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder / "traces"

    def path(self, image: bytes, workload: str) -> Path:
        return self.folder / image.hex() / (check_workload(workload) + SUFFIX)

    def new_recording(self, image: bytes) -> Path:
        """A name for the recording of one mount; a successor of its server goes on under the same."""
        return self.folder / "recordings" / f"{image.hex()}-{secrets.token_hex(6)}{_RECORDING}"

    def load(self, image: bytes, workload: str) -> Trace:
        """The trace of a workload; `NotFoundError` when nothing was recorded."""
        trace = load_trace(self.path(image, workload))
        if trace.image != image:
            raise DataError(f"trace is damaged: {self.path(image, workload)}: it is of another image")
        return trace

    def absorb(self, index: Index, recording: Path) -> Trace | None:
        """Merge a recording that nobody writes any more, and remove it; None when it holds nothing."""
        content = read_recording(recording)
        trace = trace_of(content, index)
        merged = None if trace is None else self.add(trace)
        recording.unlink(missing_ok=True)
        return merged

    def absorb_orphans(self, index: Index, image: bytes, tell: Callable[[str], None]) -> int:
        """Merge what servers of this image left that were killed; how many there were."""
        absorbed = 0
        for path in sorted(self.folder.glob(f"recordings/{image.hex()}-*{_RECORDING}")):
            with _orphan(path) as is_orphan:
                if not is_orphan:
                    continue
                try:
                    self.absorb(index, path)
                    absorbed += 1
                except (ColdstartError, OSError) as error:
                    tell(f"recording cannot be used and is removed: {path}: {error}")
                    path.unlink(missing_ok=True)
        self._sweep()
        return absorbed

    def _sweep(self) -> None:
        """Recordings of images that are not mounted any more would stay for ever."""
        oldest = time.time() - _FORGOTTEN_SECONDS
        for path in self.folder.glob(f"recordings/*{_RECORDING}"):
            with suppress(OSError), _orphan(path) as is_orphan:
                if is_orphan and path.stat().st_mtime < oldest:
                    path.unlink()

    def add(self, trace: Trace) -> Trace:
        """Merge a trace into what is known of its workload; what was damaged is replaced."""
        path = self.path(trace.image, trace.workload)
        with self._writing():
            known: list[Trace] = []
            with suppress(NotFoundError, DataError):
                known = [self.load(trace.image, trace.workload)]
            merged = aged(merge_traces([*known, trace]))
            atomic_write(path, encode_trace(merged, compressed=True), mode=0o600)
        return merged

    def replace(self, trace: Trace) -> Path:
        """Keep a trace in the place of what is known of its workload."""
        path = self.path(trace.image, trace.workload)
        with self._writing():
            atomic_write(path, encode_trace(trace, compressed=True), mode=0o600)
        return path

    def remove(self, image: bytes, workload: str) -> None:
        path = self.path(image, workload)
        with self._writing():
            try:
                path.unlink()
            except FileNotFoundError as error:
                raise NotFoundError(f"trace does not exist: {path}") from error
            except OSError as error:
                raise IoFailure(f"cannot remove trace: {path}: {error.strerror}") from error
            with suppress(OSError):
                path.parent.rmdir()

    def all(self) -> list[KeptTrace]:
        """Every trace of this host; a damaged one does not hide the others."""
        return [kept for image in self._images() for kept in self.of(image)]

    def newest(self, workload: str) -> list[bytes]:
        """The images of which there is a trace of this workload, the one that was changed last first."""
        changed: dict[bytes, float] = {}
        for image in self._images():
            with suppress(OSError):
                changed[image] = self.path(image, workload).stat().st_mtime
        return sorted(changed, key=lambda image: (-changed[image], image))

    def of(self, image: bytes) -> list[KeptTrace]:
        """The traces of one image, by workload."""
        found = []
        for path in sorted((self.folder / image.hex()).glob(f"*{SUFFIX}")):
            workload = workload_of(path.name)
            if workload is None:
                continue
            try:
                found.append(KeptTrace(image, workload, path, self.load(image, workload)))
            except ColdstartError as error:
                found.append(KeptTrace(image, workload, path, None, error.message))
        return found

    def _images(self) -> list[bytes]:
        found = []
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder)):
                with suppress(ValueError):
                    image = bytes.fromhex(name)
                    if len(image) == 32:
                        found.append(image)
        return found

    @contextmanager
    def _writing(self) -> Iterator[None]:
        make_private(self.folder)
        with exclusive_lock(self.folder / ".lock", wait_seconds=_LOCK_SECONDS):
            yield


@contextmanager
def _orphan(path: Path) -> Iterator[bool]:
    """Whether nobody records into a file; while the block runs, nobody else may take it for an orphan."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield path.exists()
    finally:
        os.close(descriptor)
