"""Where a restored server writes: its output files are replaced by logs that the caller names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import DataError
from coldstart_snapshot.containers.container import open_log
from coldstart_snapshot.criu.images import OutputFile, output_files_of

_PIPE = "pipe:"
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True)
class Outputs:
    """Descriptors for standard output and error of criu, and which key of the images each one answers."""

    stdout: int
    stderr: int
    inherit: tuple[tuple[int, str], ...]


def check_outputs(images: Path) -> None:
    """Refuse at the capture what a restore could not hand in."""
    _sort(output_files_of(images))


@contextmanager
def open_outputs(images: Path, keys: Sequence[str], log: Path) -> Iterator[Outputs]:
    """Open `log`, and `LOG.2` where the server had a second file that criu wants to find at its old size.

    A file that was not appended to continues where it was: what was before is a hole in the new one.
    """
    appended, sized = _sort(output_files_of(images))
    pairs = [(_STDOUT, key) for key in (*appended, *(key for key in keys if key.startswith(_PIPE)))]
    with ExitStack() as stack:
        if not sized:
            stdout = stack.enter_context(open_log(log))
            yield Outputs(stdout, stdout, tuple(pairs))
            return
        rest = list(sized)
        if pairs:
            stdout = stack.enter_context(open_log(log))
        else:
            first = rest.pop(0)
            stdout = stack.enter_context(_open_sized(log, first))
            pairs.append((_STDOUT, first.key))
        stderr = stdout
        if rest:
            stderr = stack.enter_context(_open_sized(log.with_name(f"{log.name}.2"), rest[0]))
            pairs.append((_STDERR, rest[0].key))
        yield Outputs(stdout, stderr, tuple(pairs))


def _sort(files: Sequence[OutputFile]) -> tuple[list[str], list[OutputFile]]:
    appended = [file.key for file in files if file.size_bytes is None]
    sized = [file for file in files if file.size_bytes is not None]
    if len(sized) > (1 if appended else 2):
        raise DataError(
            "the server writes its output to more files than a restore can replace",
            hint="start it with both streams appended to one file: `COMMAND >>LOG 2>&1`",
        )
    return appended, sized


@contextmanager
def _open_sized(path: Path, file: OutputFile) -> Iterator[int]:
    """A log of exactly the recorded size; an older one is kept as `LOG.old`."""
    assert file.size_bytes is not None
    if path.exists() and path.stat().st_size:
        os.replace(path, path.with_name(f"{path.name}.old"))
    with open_log(path) as descriptor:
        os.ftruncate(descriptor, file.size_bytes)
        yield descriptor
