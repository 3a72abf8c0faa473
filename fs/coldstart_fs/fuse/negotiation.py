"""INIT: what kernel and server agree on, once for the life of a mount."""

from __future__ import annotations

import errno
import os
import select
import time
from dataclasses import asdict, dataclass
from typing import Any, Self

from coldstart_cli.errors import BusyError, DataError, IoFailure, UnavailableError
from coldstart_fs.fuse.protocol import (
    IN_HEADER,
    INIT_IN,
    INIT_IN_SHORT,
    INIT_OUT,
    MAJOR,
    MINOR,
    OLDEST_MINOR,
    OUT_HEADER,
    REQUEST_BUFFER_BYTES,
    SMALLEST_WRITE_BYTES,
    Init,
    Opcode,
)

MAX_BACKGROUND = 256
CONGESTION_THRESHOLD = 192
MAX_PAGES = 256
MAX_READ_AHEAD_BYTES = 32 << 20
_ALWAYS = (
    Init.ASYNC_READ
    | Init.DO_READDIRPLUS
    | Init.ASYNC_DIO
    | Init.NO_OPEN_SUPPORT
    | Init.PARALLEL_DIROPS
    | Init.ABORT_ERROR
    | Init.MAX_PAGES
    | Init.CACHE_SYMLINKS
    | Init.NO_OPENDIR_SUPPORT
    | Init.EXPLICIT_INVAL_DATA
    | Init.HAS_RESEND
    | Init.ALLOW_IDMAP
)


@dataclass(frozen=True)
class Negotiated:
    """What holds for a connection; a successor on the same descriptor needs it, as JSON."""

    minor: int
    flags: int
    max_readahead_bytes: int
    max_background: int
    congestion_threshold: int
    max_pages: int

    @property
    def no_open(self) -> bool:
        """Whether files need no open requests: the answer ENOSYS ends them."""
        return Init.NO_OPEN_SUPPORT in Init(self.flags)

    @property
    def no_opendir(self) -> bool:
        """The same for folders, whose listings are cached then."""
        return Init.NO_OPENDIR_SUPPORT in Init(self.flags)

    @property
    def has_resend(self) -> bool:
        """Whether a successor can ask for what its predecessor left unanswered (Linux 6.9)."""
        return Init.HAS_RESEND in Init(self.flags)

    @property
    def flag_names(self) -> list[str]:
        return [str(flag.name).lower() for flag in Init if flag in Init(self.flags)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        return cls(**content)


def negotiate(descriptor: int, *, posix_acls: bool, deadline: float) -> Negotiated:
    """Read INIT and answer it."""
    unique, body = _read_init(descriptor, deadline)
    major, minor, max_readahead_bytes, low = INIT_IN_SHORT.unpack_from(body)
    if major < MAJOR or (major == MAJOR and minor < OLDEST_MINOR):
        _answer(descriptor, unique, b"", -errno.EPROTO)
        raise UnavailableError(
            f"kernel speaks FUSE {major}.{minor}, needed is {MAJOR}.{OLDEST_MINOR}",
            hint="boot Linux 5.1 or newer",
        )
    if major > MAJOR:  # it asks again, in words of ours
        _answer(descriptor, unique, INIT_OUT.pack(MAJOR, MINOR, *(0,) * 9))
        return negotiate(descriptor, posix_acls=posix_acls, deadline=deadline)
    offered = Init(low & 0xFFFFFFFF)
    if Init.INIT_EXT in offered and len(body) >= INIT_IN.size:
        offered |= Init(INIT_IN.unpack_from(body)[4] << 32)
    wanted = _ALWAYS | Init.INIT_EXT | (Init.POSIX_ACL if posix_acls else Init(0))
    agreed = Negotiated(
        minor=min(minor, MINOR),
        flags=int(offered & wanted),
        max_readahead_bytes=min(max_readahead_bytes, MAX_READ_AHEAD_BYTES),
        max_background=MAX_BACKGROUND,
        congestion_threshold=CONGESTION_THRESHOLD,
        max_pages=MAX_PAGES,
    )
    reply = INIT_OUT.pack(
        MAJOR,
        MINOR,
        agreed.max_readahead_bytes,
        agreed.flags & 0xFFFFFFFF,
        agreed.max_background,
        agreed.congestion_threshold,
        SMALLEST_WRITE_BYTES,
        1,
        agreed.max_pages,
        0,
        agreed.flags >> 32,
    )
    _answer(descriptor, unique, reply)
    return agreed


def _read_init(descriptor: int, deadline: float) -> tuple[int, bytes]:
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise BusyError("kernel sent no FUSE request in time")
        try:
            data = os.read(descriptor, REQUEST_BUFFER_BYTES)
        except BlockingIOError:
            continue
        except OSError as error:
            raise IoFailure(f"cannot read from the FUSE device: {error.strerror}") from error
        break
    if len(data) < IN_HEADER.size + INIT_IN_SHORT.size:
        raise DataError(f"FUSE request is too short: {len(data)} bytes")
    _, opcode, unique, *_ = IN_HEADER.unpack_from(data)
    if opcode != Opcode.INIT:
        raise DataError(f"first FUSE request is not INIT: {opcode}")
    return unique, data[IN_HEADER.size :]


def _answer(descriptor: int, unique: int, body: bytes, error: int = 0) -> None:
    try:
        os.write(descriptor, OUT_HEADER.pack(OUT_HEADER.size + len(body), error, unique) + body)
    except OSError as failure:
        raise IoFailure(f"kernel refused the answer to INIT: {failure.strerror}") from failure
