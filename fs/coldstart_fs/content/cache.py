"""The local cache of packs: sparse files that mirror what was fetched of each pack, at the same offsets."""

from __future__ import annotations

import errno
import os
import resource
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from coldstart_cli.errors import ColdstartError
from coldstart_cli.files import atomic_write, make_directory
from coldstart_cli.own_folders import open_folder_beneath
from coldstart_cli.regular import NotRegularError, open_own
from coldstart_fs.content.chunks import PlacedChunk
from coldstart_fs.content.pack_file import PackFile
from coldstart_fs.content.room import PACKS, CacheLimits, CacheRoom
from coldstart_fs.content.sweep import QUARANTINE
from coldstart_fs.format.names import digest_text
from coldstart_fs.mounts.kernel_mounts import file_system_of

_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# written by coldstart, see https://bford.info/cachedir/\n"
)
_MOST_OPEN_PACKS = 4096
_FEWEST_OPEN_PACKS = 16
_MOST_QUARANTINED = 64
# damaged chunks that are told one by one; of more than these, how many there are
_DAMAGE_TOLD = 5
_DAMAGE_COUNTED = frozenset(10**power for power in range(1, 12))
_NETWORK = ("nfs", "cifs", "smb", "ceph", "fuse.", "afs", "lustre", "gluster", "beegfs")
Log = Callable[[str], None]


class PackCache:
    """Packs of any image, shared by all mounts of a host. Thread-safe; its own failures are never raised.

    `local_path` names the file of this host that is a pack, where the store is a folder: it is read in place.
    """

    def __init__(
        self,
        folder: Path,
        log: Log = lambda _: None,
        local_path: Callable[[bytes], Path | None] = lambda _: None,
        limits: CacheLimits | None = None,
    ) -> None:
        self.folder = folder
        self.failure: str | None = None
        """Why nothing can be kept now."""
        self.remedy: str | None = None
        """A command against that, where it is not room that lacks."""
        self.damaged_chunks = 0
        self._damaged_packs: set[bytes] = set()
        self._log = log
        self._room = CacheRoom(folder, limits or CacheLimits(), log)
        self._local_path = local_path
        self._files: dict[bytes, PackFile] = {}
        self._local: dict[int, bool] = {}
        self._lock = Lock()
        self._in_memory = False
        self._locking = True
        self._most_open = _most_open_packs()

    def prepare(self) -> None:
        """Make the folder, marked so that backup programs leave it out."""
        make_directory(self.folder, mode=0o700)
        tag = self.folder / "CACHEDIR.TAG"
        if not tag.exists():
            with suppress(OSError), os.fdopen(open_own(tag, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as stream:
                stream.write(_TAG)
        kind = file_system_of(self.folder) or ""
        # a tmpfs knows no reading without waiting (Linux 6.18), and never waits for a disk
        self._in_memory = kind == "tmpfs"
        # where flock is one of the range locks, a lease would be in the way of every fill
        self._locking = not kind.startswith(_NETWORK)

    def path(self, pack: bytes) -> Path:
        text = pack.hex()
        return self.folder / PACKS / text[:2] / f"{text}.pack"

    def opened(self, pack: bytes) -> PackFile | None:
        """The pack, if it is open: no call of the system is made."""
        return self._files.get(pack)

    def open(self, pack: bytes) -> PackFile | None:
        """The pack, if this host has anything of it. May wait for a disk."""
        found = self._files.get(pack)
        if found is not None and found.current():
            return found
        with suppress(OSError):
            if (local := self._original(pack)) is not None:
                return self._opened(pack, PackFile(local, original=True))
        with suppress(OSError):
            return self._opened(pack, self._cached(pack, create=False))
        if found is not None:
            self.close(pack)
        return None

    def open_for_filling(self, pack: bytes) -> PackFile | None:
        """The pack's copy, made if need be; None where it is read in place, or the cache takes nothing."""
        found = self.open(pack)
        if found is not None and (found.original or found.writable):
            return None if found.original else found
        if self._original(pack) is not None:
            return None
        try:
            try:
                return self._opened(pack, self._cached(pack, create=True))
            except FileNotFoundError:  # nobody has needed the folder yet, or somebody cleared the cache
                make_directory(self.folder, mode=0o700)
                parent = self.path(pack).parent.relative_to(self.folder)
                os.close(open_folder_beneath(self.folder, parent, create=True))
                return self._opened(pack, self._cached(pack, create=True))
        except OSError as error:
            self.failed(error)
        except ColdstartError as error:
            self._failed(error.message)
        return None

    def lease(self, packs: Iterable[bytes]) -> None:
        """Open what this host has of these packs: until they are closed nobody removes it."""
        for pack in packs:
            if len(self._files) >= self._most_open:
                break
            self.open(pack)

    def close(self, pack: bytes) -> None:
        """Forget an open pack; who reads it goes on."""
        with self._lock:
            self._files.pop(pack, None)

    def close_all(self) -> None:
        for pack, file in list(self._files.items()):
            file.touch()
            self.close(pack)
        if self.damaged_chunks > _DAMAGE_TOLD:
            self._log(f"cached chunks were damaged: {self.damaged_chunks}, {self._damaged_place()}")

    def failed(self, error: OSError) -> None:
        """Remember that the cache takes nothing, and say so once."""
        if error.errno == errno.ENOSPC:
            self._room.measure_again()
        if isinstance(error, NotRegularError):
            self._failed(f"{error.strerror}: {error.filename}", f"rm {shlex.quote(error.filename)}")
        else:
            self._failed(f"{error.strerror}: {self.folder}")

    def _failed(self, text: str, remedy: str | None = None) -> None:
        if self.failure is None:
            self._log(f"cache cannot keep chunks, serving through it: {text}")
        self.failure, self.remedy = text, remedy

    def keeps_again(self) -> None:
        if self.failure is not None:
            self.failure = None
            self._log("cache keeps chunks again")

    def spare_bytes(self) -> int:
        """What may be written without removing anything."""
        try:
            return self._room.spare_bytes()
        except OSError:  # writing says what is wrong
            return 0

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether so much may be written; what was used longest ago makes room for it."""
        try:
            refusal = self._room.take(size_bytes)
        except OSError:  # writing says what is wrong
            return True
        if refusal is not None:
            self._failed(refusal)
        return refusal is None

    def put_aside(self, chunk: PlacedChunk, stored: bytes) -> None:
        """Keep a copy of damaged bytes for who wants to know how; their place gets the right ones."""
        with self._lock:
            self.damaged_chunks += 1
            count = self.damaged_chunks
            self._damaged_packs.add(chunk.pack)
        if count <= _DAMAGE_TOLD:
            self._log(
                f"cached chunk is damaged, fetching it again: {digest_text(chunk.digest)}, "
                f"offset {chunk.offset} of pack {digest_text(chunk.pack)}"
            )
        elif count in _DAMAGE_COUNTED:
            self._log(
                f"cached chunks are damaged, fetching them again: {count} so far, {self._damaged_place()}"
            )
        folder = self.folder / QUARANTINE
        with suppress(OSError, ColdstartError):
            os.close(open_folder_beneath(self.folder, Path(QUARANTINE), create=True))
            if len(os.listdir(folder)) < _MOST_QUARANTINED:
                atomic_write(folder / chunk.digest.hex(), stored, mode=0o600)

    def _damaged_place(self) -> str:
        return f"in {len(self._damaged_packs)} of the packs of {self.folder}"

    def _original(self, pack: bytes) -> Path | None:
        """The store's own file, unless a network lies between it and us."""
        path = self._local_path(pack)
        if path is None:
            return None
        try:
            device = os.stat(path).st_dev
        except OSError:  # the store says what is wrong with it
            return path
        here = self._local.get(device)
        if here is None:
            here = self._local[device] = not (file_system_of(path) or "").startswith(_NETWORK)
        return path if here else None

    def _cached(self, pack: bytes, *, create: bool) -> PackFile:
        """Open for filling where that can be done: a copy that this host has may lack something."""
        path = self.path(pack)
        if not create and not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        try:
            file = PackFile(path, original=False, create=True, in_memory=self._in_memory, cache=self.folder)
        except OSError as error:
            if create or error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
                raise
            file = PackFile(path, original=False, in_memory=self._in_memory, cache=self.folder)
        file.locking = file.locking and self._locking
        return file

    def _opened(self, pack: bytes, file: PackFile) -> PackFile:
        with self._lock:
            other = self._files.get(pack)
            if other is not None and other.current() and (other.writable or not file.writable):
                return other  # another thread was faster
            while len(self._files) >= self._most_open:
                self._files.pop(next(iter(self._files)))
            self._files[pack] = file
        file.touch()
        return file


def _most_open_packs() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    half = _MOST_OPEN_PACKS if soft == resource.RLIM_INFINITY else soft // 2
    return max(_FEWEST_OPEN_PACKS, min(half, _MOST_OPEN_PACKS))
