"""What a replay does, in order: questions for the primer, then ranges of files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from coldstart_cli.errors import DataError
from coldstart_fs.format.index import Index
from coldstart_fs.format.names import digest_text
from coldstart_fs.format.trace import Kind, Trace, own_path
from coldstart_fs.traces.fit import fitting
from coldstart_fs.traces.inode_paths import find_path
from coldstart_fs.traces.spans import Span, of_one_recording

# within it what is biggest comes first: a start opens many files at once, and the large one takes longest
WINDOW_SECONDS = 0.15
PAGE_BYTES = 4096
# an entry of a listing costs a fraction of a question: a directory is listed for a few of its names
_ENTRIES_A_QUESTION = 12


class Range(NamedTuple):
    """A part of a file to bring, by inode number of the index."""

    number: int
    offset: int
    length: int
    seconds: float


@dataclass(frozen=True)
class Primer:
    """Paths in the mount: directories to list, paths to look up (there or not), symlinks to read."""

    list: tuple[bytes, ...] = ()
    look_up: tuple[bytes, ...] = ()
    read_link: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class ReplayPlan:
    """`skipped_paths` are not in the image, or are no files there."""

    ranges: tuple[Range, ...]
    primer: Primer
    skipped_paths: int

    @property
    def size_bytes(self) -> int:
        return sum(item.length for item in self.ranges)


def plan_replay(trace: Trace, index: Index, image: bytes) -> ReplayPlan:
    """The plan; a trace of another image is refused, a path that the image does not have is passed over."""
    if trace.image != image:
        raise DataError(
            f"trace is of another image: {digest_text(trace.image)}, not of {digest_text(image)}",
            hint="`coldstart image trace merge FILE --image NAME -o NEW` takes what this image has of it",
        )
    directories: dict[bytes, int | None] = {}
    files: dict[bytes, list[Span]] = defaultdict(list)
    for read in trace.reads:
        files[read.path].append(Span(read.offset, read.offset + read.length, read.seconds, read.runs))
    spans: dict[int, list[Span]] = defaultdict(list)
    skipped = 0
    for path, wanted in files.items():
        number = find_path(index, path, known=directories)
        if number is None or not (inode := index.inode(number)).is_file:
            skipped += number is not None  # a path that is absent is counted below
            continue
        spans[number] += (_in_pages(span, inode.size) for span in wanted)
    ranges = (
        Range(number, span.start, span.length, span.seconds)
        for number, found in spans.items()
        for span in of_one_recording(found)
    )
    primer, passed_over = _primer(trace, index, directories)
    return ReplayPlan(tuple(in_windows(ranges)), primer, skipped + passed_over)


def _in_pages(span: Span, size_bytes: int) -> Span:
    """Whole pages, and none beyond the file's end: the kernel keeps nothing smaller."""
    start = span.start // PAGE_BYTES * PAGE_BYTES
    end = min(-(-span.end // PAGE_BYTES) * PAGE_BYTES, size_bytes)
    return Span(start, max(start, end), span.seconds, 1)


def in_windows(ranges: Iterable[Range]) -> Iterator[Range]:
    """By first access; within a short window the biggest first."""
    window: list[Range] = []
    for item in sorted(ranges, key=lambda item: (item.seconds, item.number, item.offset)):
        if window and item.seconds - window[0].seconds > WINDOW_SECONDS:
            yield from sorted(window, key=lambda item: -item.length)
            window = []
        window.append(item)
    yield from sorted(window, key=lambda item: -item.length)


def _primer(trace: Trace, index: Index, directories: dict[bytes, int | None]) -> tuple[Primer, int]:
    """Listings where they answer several questions at once, the rest one by one, by first access.

    Nothing is asked that the index does not say the same of: a primer follows no symlink and leaves no mount.
    """
    times: dict[Kind, dict[bytes, float]] = {kind: {} for kind in Kind}
    for lookup in trace.lookups:
        times[lookup.kind].setdefault(own_path(lookup.path), lookup.seconds)
    for read in trace.reads:
        # a page can be pushed only to a file that the kernel knows
        times[Kind.FOUND].setdefault(own_path(read.path), read.seconds)
    skipped = 0
    for kind, paths in times.items():
        fits = fitting(kind, paths, index, directories)
        skipped += len(paths) - len(fits)
        times[kind] = {path: seconds for path, seconds in paths.items() if path in fits}
    listed, found = times[Kind.LISTED], times[Kind.FOUND]
    for directory, questions in Counter(_above(path) for path in found).items():
        number = find_path(index, directory, known=directories)
        if number is None or not (inode := index.inode(number)).is_directory:
            continue
        if questions > 1 and inode.size <= questions * _ENTRIES_A_QUESTION:
            listed.setdefault(directory, 0.0)
    alone = {path: seconds for path, seconds in found.items() if _above(path) not in listed}
    look_up = _in_time(alone) + _in_time(times[Kind.MISSING])
    return Primer(_in_time(listed), look_up, _in_time(times[Kind.LINK])), skipped


def _above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0] or b"/"


def _in_time(paths: dict[bytes, float]) -> tuple[bytes, ...]:
    return tuple(sorted(paths, key=paths.__getitem__))
