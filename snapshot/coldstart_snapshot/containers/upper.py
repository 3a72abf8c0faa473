"""The writable layer of a container's overlay as a PAX tar: whiteouts, opaque folders, xattrs and all."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coldstart_cli.errors import DataError, IoFailure
from coldstart_cli.files import make_directory

_XATTR_PREFIX = "SCHILY.xattr."
# these tie a layer to the very file systems it was written on; overlayfs makes them anew where it needs them
_TIED_XATTRS = frozenset(
    f"{namespace}.overlay.{name}"
    for namespace in ("trusted", "user")
    for name in ("impure", "nlink", "origin", "upper", "uuid")
)
_COPY_BYTES = 1 << 20
_ZEROS = bytes(_COPY_BYTES)
_NANOSECONDS = 10**9


@dataclass(frozen=True)
class ArchivedUpper:
    """What went into an archive; sockets cannot, and criu makes bound ones anew."""

    entries: int
    size_bytes: int
    skipped_sockets: int


def archive_upper(upper: Path, archive: Path) -> ArchivedUpper:
    """Write the layer to `archive`; nothing may change it meanwhile."""
    try:
        descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            writer = _Writer(stream)
            writer.add_tree(os.fsencode(upper))
            writer.close()
            stream.flush()
            os.fsync(stream.fileno())
            size_bytes = stream.tell()
    except OSError as error:
        raise IoFailure(
            f"cannot archive the writable layer: {error.filename or upper}: {error.strerror}"
        ) from error
    return ArchivedUpper(writer.entries, size_bytes, writer.skipped_sockets)


class _Writer:
    def __init__(self, stream: IO[bytes]) -> None:
        self._tar = tarfile.open(  # noqa: SIM115 - closed by close()
            fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
        )
        self._first_names: dict[tuple[int, int], str] = {}
        self.entries = 0
        self.skipped_sockets = 0

    def add_tree(self, root: bytes) -> None:
        self._add(root, ".")
        waiting: list[tuple[bytes, str]] = [(root, "")]
        while waiting:
            folder, prefix = waiting.pop()
            for name in sorted(os.listdir(folder)):
                path, inside = os.path.join(folder, name), prefix + os.fsdecode(name)
                if self._add(path, inside):
                    waiting.append((path, inside + "/"))

    def _add(self, path: bytes, name: str) -> bool:
        """Add one entry; true for a folder."""
        status = os.lstat(path)
        if stat.S_ISSOCK(status.st_mode):
            self.skipped_sockets += 1
            return False
        info = tarfile.TarInfo(name)
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = status.st_uid, status.st_gid
        info.pax_headers = {"mtime": _time_text(status.st_mtime_ns), **_xattrs(path)}
        self.entries += 1
        if stat.S_ISREG(status.st_mode):
            self._add_file(path, name, info, status)
            return False
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = os.fsdecode(os.readlink(path))
        elif stat.S_ISFIFO(status.st_mode):
            info.type = tarfile.FIFOTYPE
        else:
            info.type = tarfile.CHRTYPE if stat.S_ISCHR(status.st_mode) else tarfile.BLKTYPE
            info.devmajor, info.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
        self._tar.addfile(info)
        return info.type == tarfile.DIRTYPE

    def _add_file(self, path: bytes, name: str, info: tarfile.TarInfo, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            first = self._first_names.setdefault((status.st_dev, status.st_ino), name)
            if first != name:
                info.type, info.linkname, info.pax_headers = tarfile.LNKTYPE, first, {}
                self._tar.addfile(info)
                return
        info.size = status.st_size
        with open(path, "rb") as content:
            self._tar.addfile(info, content)

    def close(self) -> None:
        self._tar.close()


def unpack_upper(archive: Path | None, upper: Path, *, device_nodes: bool = False) -> int:
    """Unpack an archive of ours into an empty folder and return the number of entries; none is no entries.

    Devices but for overlayfs's own whiteouts are refused, unless `device_nodes` says that there may be some.
    Nothing outside `upper` is touched whatever the archive holds: no link is followed.
    """
    make_directory(upper)
    if os.listdir(upper):
        raise IoFailure(f"folder for the writable layer is not empty: {upper}")
    if archive is None:
        return 0
    reader = _Reader(upper, device_nodes=device_nodes)
    try:
        with tarfile.open(archive, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                reader.add(member, tar)
        reader.finish()
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise DataError(f"archive of the writable layer is damaged: {archive}: {error}") from error
    except OSError as error:
        raise IoFailure(f"cannot unpack the writable layer into {upper}: {error.strerror}") from error
    return reader.entries


class _Reader:
    def __init__(self, upper: Path, *, device_nodes: bool) -> None:
        self._upper = upper
        self._device_nodes = device_nodes
        # folders get their times last, when nothing is put into them any more
        self._folder_times: list[tuple[str, int]] = []
        self.entries = 0

    def add(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
        self.entries += 1
        parts = _parts(member.name)
        if not parts:
            with _folder(self._upper, ()) as descriptor:
                self._dress(member, f"/proc/self/fd/{descriptor}", follow=True)
            self._folder_times.append((".", _time(member)))
            return
        with _folder(self._upper, parts[:-1]) as parent:
            self._make(member, tar, parent, parts[-1])

    def _make(self, member: tarfile.TarInfo, tar: tarfile.TarFile, parent: int, name: str) -> None:
        if member.islnk():
            target = _parts(member.linkname)
            with _folder(self._upper, target[:-1]) as source:
                os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            return
        if member.isdir():
            os.mkdir(name, 0o700, dir_fd=parent)
            self._folder_times.append((member.name, _time(member)))
        elif member.isreg():
            self._make_file(member, tar, parent, name)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
        elif member.ischr() or member.isblk():
            kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
            device = os.makedev(member.devmajor, member.devminor)
            if (member.isblk() or device) and not self._device_nodes:
                raise DataError(
                    "archive of the writable layer has a device that its container could not have made:"
                    f" {member.name}"
                )
            os.mknod(name, kind | 0o600, device, dir_fd=parent)
        else:
            raise DataError(f"archive of the writable layer has an entry of unknown type: {member.name}")
        # setxattr knows no folder descriptors
        self._dress(member, f"/proc/self/fd/{parent}/{name}", follow=False)

    def _make_file(self, member: tarfile.TarInfo, tar: tarfile.TarFile, parent: int, name: str) -> None:
        content = tar.extractfile(member)
        assert content is not None
        descriptor = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent
        )
        with os.fdopen(descriptor, "wb", buffering=0) as target:
            left = member.size
            while left:
                block = content.read(min(left, _COPY_BYTES))
                if not block:
                    raise DataError(f"archive of the writable layer is cut short: {member.name}")
                left -= len(block)
                if block == _ZEROS[: len(block)]:
                    target.seek(len(block), os.SEEK_CUR)  # a hole costs nothing
                else:
                    target.write(block)
            target.truncate(member.size)

    def _dress(self, member: tarfile.TarInfo, path: str, *, follow: bool) -> None:
        os.chown(path, member.uid, member.gid, follow_symlinks=follow)
        if not member.issym():
            os.chmod(path, member.mode)  # after chown, which takes setuid bits away
        for key, value in member.pax_headers.items():
            if key.startswith(_XATTR_PREFIX):
                name = key.removeprefix(_XATTR_PREFIX)
                os.setxattr(path, name, value.encode("utf-8", "surrogateescape"), follow_symlinks=follow)
        if not member.isdir():
            time_ns = _time(member)
            os.utime(path, ns=(time_ns, time_ns), follow_symlinks=follow)

    def finish(self) -> None:
        for name, time_ns in reversed(self._folder_times):
            with _folder(self._upper, _parts(name)) as descriptor:
                os.utime(descriptor, ns=(time_ns, time_ns))


def _parts(name: str) -> tuple[str, ...]:
    """A member's path below the layer; refused when it leads elsewhere."""
    if name == ".":
        return ()
    parts = tuple(name.split("/"))
    if any(part in {"", ".", ".."} for part in parts) or "\0" in name:
        raise DataError(f"archive of the writable layer has an unsafe name: {name!r}")
    return parts


@contextmanager
def _folder(upper: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Descriptor of a folder below the layer, reached without following a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(upper, flags)
    try:
        for part in parts:
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _xattrs(path: bytes) -> dict[str, str]:
    found = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name not in _TIED_XATTRS:
            value = os.getxattr(path, name, follow_symlinks=False)
            found[_XATTR_PREFIX + name] = value.decode("utf-8", "surrogateescape")
    return found


def _time_text(time_ns: int) -> str:
    seconds, nanoseconds = divmod(abs(time_ns), _NANOSECONDS)
    return f"{'-' if time_ns < 0 else ''}{seconds}.{nanoseconds:09d}"


def _time(member: tarfile.TarInfo) -> int:
    """The time to the nanosecond; TarInfo.mtime is a float."""
    text = member.pax_headers.get("mtime")
    if text is None:
        return int(member.mtime) * _NANOSECONDS
    seconds, _, fraction = text.lstrip("-").partition(".")
    time_ns = int(seconds) * _NANOSECONDS + int(fraction[:9].ljust(9, "0") or 0)
    return -time_ns if text.startswith("-") else time_ns
