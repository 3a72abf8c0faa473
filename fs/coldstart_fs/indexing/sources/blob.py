"""Bytes in files, to be verified: a blob is a range of a file that must have a size and a digest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, UsageError

LARGEST_DOCUMENT_BYTES = 8 << 20
_READ_BYTES = 256 << 10
_DIGEST = re.compile(r"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})")
_COPY_AGAIN = "copy the image again"


@dataclass(frozen=True)
class Place:
    """A range of a file; `shown` names it in messages."""

    path: Path
    offset: int
    size_bytes: int
    shown: str

    def blocks(self) -> Iterator[bytes]:
        """The bytes of the range, as many as it has or a `DataError`."""
        with reading(self.path) as descriptor:
            position, end = self.offset, self.offset + self.size_bytes
            while position < end:
                block = os.pread(descriptor, min(_READ_BYTES, end - position), position)
                if not block:
                    raise DataError(f"file was cut short while it was read: {self.shown}", hint=_COPY_AGAIN)
                position += len(block)
                yield block


class Files(Protocol):
    """Where the files of an image lie: a folder or an archive."""

    shown: str

    def find(self, name: str) -> Place | None:
        """The file of this name."""
        ...

    def find_only(self, name: str) -> Place | None:
        """The same for files that nothing verifies: several of one name are refused."""
        ...


class Folder:
    """Files by their names below a folder."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self._path = path

    def find(self, name: str) -> Place | None:
        path = self._path / name
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _cannot_read(path, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"not a regular file: {path}")
        return Place(path, 0, status.st_size, str(path))

    find_only = find


@dataclass(frozen=True)
class Blob:
    """Bytes that must have this size and this digest (`sha256:HEX`); `None` where nothing promises them."""

    place: Place
    digest: str | None
    size_bytes: int

    @property
    def shown(self) -> str:
        return self.place.shown

    def read(self, limit_bytes: int) -> bytes:
        """The whole blob, verified; for documents, which are small."""
        if self.size_bytes > limit_bytes:
            raise DataError(f"blob has {self.size_bytes} bytes, at most {limit_bytes} expected: {self.shown}")
        return b"".join(self.blocks())

    def blocks(self) -> Iterator[bytes]:
        """The blob's bytes; ends with a `DataError` when size or digest are not as promised."""
        if self.place.size_bytes != self.size_bytes:
            raise DataError(
                f"blob has {self.place.size_bytes} bytes instead of {self.size_bytes}: {self.shown}",
                hint=_COPY_AGAIN,
            )
        if self.digest is None:
            yield from self.place.blocks()
            return
        yield from verified(self.place.blocks(), self.digest, f"blob is damaged: {self.shown}", _COPY_AGAIN)


def verified(
    blocks: Iterator[bytes], digest: str, complaint: str, hint: str | None = None
) -> Iterator[bytes]:
    """Pass blocks on; end with a `DataError`, `complaint` first, when they are not those of `digest`."""
    algorithm, _, expected = digest.partition(":")
    hasher = hashlib.new(algorithm)
    for block in blocks:
        hasher.update(block)
        yield block
    if hasher.hexdigest() != expected:
        raise DataError(f"{complaint}: its {algorithm} is {hasher.hexdigest()}", hint=hint)


def is_digest(text: str) -> bool:
    return bool(_DIGEST.fullmatch(text))


def check_digest(digest: str) -> str:
    if not is_digest(digest):
        raise DataError(f"not a digest that can be checked: {digest}")
    return digest


def digest_and_size(descriptor: Any, what: str, shown: str) -> tuple[str, int]:
    """What a descriptor promises of a blob."""
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    size_bytes = descriptor.get("size") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or type(size_bytes) is not int or size_bytes < 0:
        raise DataError(f"{what} has no digest and size in the image: {shown}")
    return check_digest(digest), size_bytes


def blob_of(files: Files, descriptor: Any, what: str) -> Blob | None:
    """The blob that a descriptor names, or `None` when it is not there."""
    digest, size_bytes = digest_and_size(descriptor, what, files.shown)
    place = files.find("blobs/" + digest.replace(":", "/"))
    return Blob(place, digest, size_bytes) if place else None


def missing_blob(files: Files, descriptor: dict[str, Any], what: str) -> NotFoundError:
    name = str(descriptor["digest"]).replace(":", "/")
    return NotFoundError(f"blob is missing: {what}: {files.shown}: blobs/{name}", hint=_COPY_AGAIN)


def blob_document(files: Files, descriptor: Any, what: str) -> dict[str, Any]:
    """A small JSON blob, verified."""
    blob = blob_of(files, descriptor, what)
    if blob is None:
        raise missing_blob(files, descriptor, what)
    return parse(blob.read(LARGEST_DOCUMENT_BYTES), blob.shown)


def plain_document(files: Files, name: str, what: str) -> Any:
    """A JSON file that nothing verifies."""
    place = files.find_only(name)
    if place is None:
        raise DataError(f"{what} is damaged, file is missing: {files.shown}: {name}")
    if place.size_bytes > LARGEST_DOCUMENT_BYTES:
        raise DataError(f"document is larger than {LARGEST_DOCUMENT_BYTES} bytes: {place.shown}")
    return parse_any(b"".join(place.blocks()), place.shown)


def parse(content: bytes, shown: str) -> dict[str, Any]:
    document = parse_any(content, shown)
    if not isinstance(document, dict):
        raise DataError(f"not a JSON object: {shown}")
    return document


def parse_any(content: bytes, shown: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise DataError(f"JSON is nested too deeply: {shown}") from error
    except ValueError as error:  # also numbers of more digits than Python converts
        raise DataError(f"not JSON: {shown}") from error


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; whatever the system says about it becomes one of our errors."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold us
    except OSError as error:
        raise _cannot_read(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"not a regular file: {path}")
        yield descriptor
    except OSError as error:
        raise IoFailure(f"cannot read `{path}`: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _cannot_read(path: Path, error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"file does not exist: {path}")
    if isinstance(error, PermissionError):
        return PermissionNeededError(f"cannot read `{path}`", hint="run as root")
    return IoFailure(f"cannot read `{path}`: {error.strerror}")
