"""A store in a folder of this host: one writer at a time, files replaced whole."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart_cli.errors import (
    CannotCreateError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
)
from coldstart_cli.files import atomic_write, atomic_writer, exclusive_lock, fsync_directory, make_directory
from coldstart_fs.indexing.regular import SMALL_DOCUMENT_BYTES, open_regular, read_regular
from coldstart_fs.stores.store import (
    MARKER,
    MARKER_CONTENT,
    SNAPSHOTS,
    Fetched,
    PutReport,
    StoredObject,
    check_document,
)

_LOCK = ".lock"
_SCRATCH = ".writing-"
_COMPARE_BYTES = 4 << 20


def open_folder(path: Path, *, create: bool, tell: Callable[[str], None] = lambda _: None) -> FolderStore:
    """The store in a folder; with `create`, one that is not there yet is made at the first writing."""
    marker = path / MARKER
    try:
        content = json.loads(read_regular(marker, most_bytes=SMALL_DOCUMENT_BYTES))
    except FileNotFoundError:
        if not create:
            raise NotFoundError(
                f"there is no image store: {path}",
                hint="`coldstart image index` makes one, or pass `--store`",
            ) from None
        if _holds_other_things(path):
            if marker.exists():  # another writer has begun in between
                return open_folder(path, create=create, tell=tell)
            raise CannotCreateError(
                f"not an image store, and not an empty folder: {path}", hint="choose another `--store`"
            ) from None
        _tell_readers(path, tell)
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read image store: {path}", hint="run as root") from error
    except OSError as error:
        raise IoFailure(f"cannot read image store: {marker}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"image store is damaged: {marker} is not JSON") from error
    else:
        check_document(content, "coldstart.store", str(marker))
        for doubt in _doubts(path):
            tell(doubt)
    return FolderStore(path)


class FolderStore:
    """A store in a folder of this host; `.lock` and `.writing-*` are its own, never objects."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        return str(self.path)

    def get(self, key: str) -> bytes:
        with self._reading(key):
            small = key == MARKER or key.startswith("refs/")
            return read_regular(self._place(key), most_bytes=SMALL_DOCUMENT_BYTES if small else None)

    def hasty(self) -> FolderStore:
        return self

    def get_if_changed(self, key: str, tag: str | None) -> Fetched:
        del tag  # a file of this host is read where it is
        return Fetched(self.get(key), None)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._reading(key):
            descriptor = open_regular(self._place(key))
            try:
                return self._read_fully(key, descriptor, offset, length)
            finally:
                os.close(descriptor)

    def read_range(self, key: str, offset: int, length: int, heard: Callable[[], None]) -> bytes:
        data = self.get_range(key, offset, length)
        heard()
        return data

    def _read_fully(self, key: str, descriptor: int, offset: int, length: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        while len(data) < length:
            more = os.pread(descriptor, length - len(data), offset + len(data))
            if not more:
                raise DataError(
                    f"object is cut short: {self._place(key)}: "
                    f"it ends before byte {offset + length}, at {offset + len(data)}"
                )
            data += more
        return data

    def put_file(self, key: str, path: Path) -> None:
        place = self._place(key)
        self._make_parent(key, place)
        with _writing(place):
            _sync(path)
            _move(path, place)
            fsync_directory(place.parent)

    def put_files(
        self, items: Iterable[tuple[str, Path]], *, on_put: Callable[[int], None] | None = None
    ) -> PutReport:
        report = PutReport()
        written: list[tuple[Path, Path, Future[None]]] = []
        # the disk takes what is there while the next file is made; none is to be seen before all are there
        with ThreadPoolExecutor(1, "sync") as pool:
            for key, path in items:
                size_bytes = path.stat().st_size
                if self.size(key) == size_bytes and _same(path, self._place(key)):
                    path.unlink(missing_ok=True)
                    report = report.with_held(size_bytes)
                else:
                    place = self._place(key)
                    self._make_parent(key, place)
                    written.append((path, place, pool.submit(_sync, path)))
                    report = report.with_sent(size_bytes)
                if on_put is not None:
                    on_put(size_bytes)
            for _, place, synced in written:
                with _writing(place):
                    synced.result()
        for path, place, _ in written:
            with _writing(place):
                _move(path, place)
        for folder in sorted({place.parent for _, place, _ in written}):
            with _writing(folder):
                fsync_directory(folder)
        return report

    def put_bytes(self, key: str, content: bytes) -> None:
        place = self._place(key)
        self._make_parent(key, place)
        if place.is_dir():
            raise CannotCreateError(f"names collide in the store: {place} is a folder of other names")
        atomic_write(place, content)

    def exists(self, key: str) -> bool:
        return self._place(key).is_file()

    def size(self, key: str) -> int | None:
        try:
            status = self._place(key).stat()
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def local_path(self, key: str) -> Path | None:
        return self._place(key)

    def list(self, prefix: str) -> list[str]:
        folder, _, _ = prefix.rpartition("/")
        keys = []
        for parent, folders, files in os.walk(self.path / folder, onerror=_refuse_folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            relative = os.path.relpath(parent, self.path)
            base = "" if relative == "." else relative + "/"
            keys += [base + name for name in files if not name.startswith(".")]
        return sorted(key for key in keys if key.startswith(prefix))

    def inventory(self, prefix: str) -> tuple[StoredObject, ...]:
        found = []
        for key in self.list(prefix):
            with suppress(FileNotFoundError):
                status = self._place(key).lstat()
                found.append(StoredObject(key, status.st_size, status.st_mtime))
        return tuple(found)

    def delete(self, key: str) -> None:
        place = self._place(key)
        with _writing(place):
            place.unlink(missing_ok=True)
            # folders that were made for the key go with the last that they hold
            parents = len(Path(key).parts) - 2  # the first part is the store's own
            with suppress(OSError):
                for parent in list(place.parents)[: max(0, parents)]:
                    parent.rmdir()

    def confirm(self) -> None:
        """Nothing: opening a folder has looked already."""

    @contextmanager
    def writing(self, *, wait_seconds: float = 0.0) -> Iterator[Path]:
        # image contents may be secret to users of this host; whoever shares a store opens its folder
        make_directory(self.path, mode=0o700)
        if not os.access(self.path, os.W_OK | os.X_OK):
            if os.statvfs(self.path).f_flag & os.ST_RDONLY:
                raise CannotCreateError(
                    f"cannot write to image store: {self.path}: its file system is read-only",
                    hint="choose another `--store`",
                )
            raise PermissionNeededError(
                f"cannot write to image store: {self.path}", hint="run as root, or choose another `--store`"
            )
        with exclusive_lock(self.path / _LOCK, wait_seconds=wait_seconds):
            self._sweep()
            if not (self.path / MARKER).exists():
                atomic_write(self.path / MARKER, MARKER_CONTENT)
            # named before it is made: a signal may come at any moment
            scratch = self.path / f"{_SCRATCH}{os.getpid()}-{secrets.token_hex(4)}"
            try:
                try:
                    scratch.mkdir(mode=0o700)
                except OSError as error:
                    raise IoFailure(f"cannot write to image store: {self.path}: {error.strerror}") from error
                yield scratch
            finally:
                _remove(scratch)

    def _sweep(self) -> None:
        """Remove what a writer left that was killed: we hold the lock, so nobody uses it."""
        for scratch in self.path.glob(f"{_SCRATCH}*"):
            shutil.rmtree(scratch, ignore_errors=True)
        # of files that are replaced whole
        patterns = (
            ".*.tmp",
            "refs/**/.*.tmp",
            "images/.*.tmp",
            "locators/.*.tmp",
            "packs/*/.*.tmp",
            "traces/*/.*.tmp",
            "documents/.*.tmp",
            "maps/.*.tmp",
            "signatures/.*.tmp",
            "versions/.*.tmp",
        )
        for temporary in (found for pattern in patterns for found in self.path.glob(pattern)):
            temporary.unlink(missing_ok=True)

    def _place(self, key: str) -> Path:
        return self.path / key

    def _make_parent(self, key: str, place: Path) -> None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise CannotCreateError(
                f"names collide in the store: a part of {key} is a name of its own",
                hint="choose another name",
            ) from error
        except OSError as error:
            raise IoFailure(f"cannot create folder: {place.parent}: {error.strerror}") from error

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = self._place(key)
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
                raise NotFoundError(f"object is not in the store: {place}") from error
            if error.errno in {errno.EACCES, errno.EPERM}:
                raise PermissionNeededError(f"cannot read `{place}`", hint="run as root") from error
            raise IoFailure(f"cannot read `{place}`: {error.strerror}") from error


def _doubts(path: Path) -> Iterator[str]:
    """Who else can change what is in the store, and so what containers of this host run."""
    for folder in (path, *(path / part for part in ("images", "locators", "packs", "refs"))):
        try:
            status = folder.stat()
        except OSError:
            continue
        if status.st_mode & stat.S_IWOTH:
            yield f"every user of this host can change the image store: {folder}"
            return
        if os.geteuid() == 0 != status.st_uid:
            yield f"image store belongs to uid {status.st_uid}, who can change what root mounts: {folder}"
            return


def _tell_readers(path: Path, tell: Callable[[str], None]) -> None:
    """A folder that is there keeps its mode when it becomes a store, so who can read it is said."""
    if path.is_dir() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o055:
        tell(
            f"other users of this host can read the new store, also what images keep from them: {path} "
            f"has mode {mode:04o}; `chmod 700 {path}` unless that is wanted"
        )


def _holds_other_things(path: Path) -> bool:
    if not path.is_dir():
        return path.exists()
    try:
        return any(not _is_ours(name) for name in os.listdir(path))
    except OSError as error:
        _refuse_folder(error)
        return False


def _refuse_folder(error: OSError) -> None:
    """A folder that is not there holds nothing; what of one cannot be read is never passed over."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return
    if error.errno in {errno.EACCES, errno.EPERM}:
        raise PermissionNeededError(
            f"cannot read image store: {error.filename}", hint="run as root"
        ) from error
    raise IoFailure(f"cannot read image store: {error.filename}: {error.strerror}") from error


def _is_ours(name: str) -> bool:
    """What a writer makes before the marker, and snapshots, which have a store of their own in here."""
    return name in {_LOCK, SNAPSHOTS} or name.startswith((_SCRATCH, f".{MARKER}."))


def _remove(scratch: Path) -> None:
    try:
        shutil.rmtree(scratch, ignore_errors=True)
    except BaseException:  # the signal that ends us; another one would end us at once
        shutil.rmtree(scratch, ignore_errors=True)
        raise


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IoFailure(f"cannot write `{place}`: {error.strerror}") from error


def _move(path: Path, place: Path) -> None:
    try:
        os.replace(path, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # a part of the store that is a link to another file system: whole there before it has its name
        with path.open("rb") as source, atomic_writer(place) as copy:
            shutil.copyfileobj(source, copy, _COMPARE_BYTES)
        path.unlink()


def _same(one: Path, other: Path) -> bool:
    """Whether two files of one size have the same bytes: the store's may have changed on its disk."""
    with one.open("rb") as left, other.open("rb") as right:
        while block := left.read(_COMPARE_BYTES):
            if right.read(_COMPARE_BYTES) != block:
                return False
    return True


def _sync(path: Path) -> None:
    """Open to readers and on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
