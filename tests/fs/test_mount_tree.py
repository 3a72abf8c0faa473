"""A mounted image against the folder it was made from, entry by entry, as the kernel shows both."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import socket
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart_fs.mount import MountRecord
from fs.mounts import CHUNK_BYTES, Lab, laboratory
from image_builder import folder_facts

_MANY = 10_000


def _fill(tree: Path) -> None:
    """One of everything that a root file system may hold."""
    make = random.Random(7).randbytes
    (tree / "etc").mkdir(mode=0o750)
    os.chown(tree / "etc", 12, 34)
    (tree / "etc" / "shadow").write_bytes(b"secret")
    (tree / "etc" / "shadow").chmod(0o600)
    (tree / "empty").touch()
    (tree / "one-chunk").write_bytes(make(CHUNK_BYTES))
    (tree / "odd").write_bytes(make(3 * CHUNK_BYTES + 4097))
    with (tree / "sparse").open("wb") as stream:
        stream.seek(3 * CHUNK_BYTES + 10)
        stream.write(b"end")
    (tree / "setuid").write_bytes(b"#!/bin/sh\n")
    os.chown(tree / "setuid", 1000, 1001)
    (tree / "setuid").chmod(0o6755)
    (tree / "sticky").mkdir()
    (tree / "sticky").chmod(0o1777)
    (tree / "link").symlink_to("etc/shadow")
    (tree / "dangling").symlink_to("/no/such/thing")
    os.symlink(b"\xff\xfe", os.fsencode(tree) + b"/link-to-bytes")
    os.lchown(tree / "link", 5, 6)
    Path(os.fsdecode(os.fsencode(tree) + b"/not utf-8 \xff\n name")).write_bytes(b"bytes")
    (tree / ("n" * 255)).write_bytes(b"long")
    (tree / "first").write_bytes(make(1000))
    (tree / "etc" / "second").hardlink_to(tree / "first")
    (tree / "third").hardlink_to(tree / "first")
    os.mkfifo(tree / "fifo", 0o640)
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tree / "block", stat.S_IFBLK | 0o660, os.makedev(259, 70000))
    os.setxattr(tree / "odd", "user.empty", b"")
    os.setxattr(tree / "odd", "user.bytes", bytes(range(256)))
    os.setxattr(tree / "etc", "trusted.note", b"for root")
    (tree / "listed").write_bytes(b"listed")
    os.chown(tree / "listed", 1000, 1001)
    # user rw, user 1234 r, group nothing, mask r, others nothing
    entries = [(1, 6, -1), (2, 4, 1234), (4, 0, -1), (16, 4, -1), (32, 0, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(tree / "listed", "system.posix_acl_access", acl)
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    os.setxattr(tree / "one-chunk", "security.capability", capability)
    deep = tree / "deep"
    for _ in range(40):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "leaf").write_bytes(b"leaf")
    many = tree / "many"
    many.mkdir()
    for number in range(_MANY):
        (many / f"entry-{number:05}").touch()
    for path, when in ((tree / "empty", -1_000_000_001), (tree / "odd", 1_700_000_000_123_456_789)):
        os.utime(path, ns=(when, when))
    os.utime(tree / "link", ns=(0, 987_654_321), follow_symlinks=False)
    os.utime(tree, ns=(0, 1_234_567_890_000_000_001))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with laboratory(tmp_path_factory.mktemp("tree")) as lab:
        yield lab


@pytest.fixture(scope="module")
def source(lab: Lab) -> Path:
    tree = lab.tree()
    _fill(tree)
    lab.index(tree)
    return tree


@pytest.fixture(scope="module")
def mounted(lab: Lab, source: Path) -> MountRecord:
    return lab.mount()


@pytest.fixture
def root(mounted: MountRecord) -> Path:
    return mounted.mountpoint


def test_every_entry_is_as_in_the_source(source: Path, root: Path) -> None:
    expected, found = folder_facts(source), folder_facts(root)
    assert found.keys() == expected.keys()
    assert len(found) > _MANY
    for path in expected:
        assert found[path] == expected[path], path


def test_names_of_one_file_have_one_inode_number(root: Path) -> None:
    statuses = [os.lstat(root / name) for name in ("first", "etc/second", "third")]
    assert len({status.st_ino for status in statuses}) == 1
    assert {status.st_nlink for status in statuses} == {3}


def test_a_file_takes_the_blocks_of_its_size(root: Path) -> None:
    status = os.stat(root / "odd")
    assert status.st_blocks * 512 >= status.st_size
    done = subprocess.run(
        ["du", "-sk", str(root / "odd")], capture_output=True, text=True, timeout=30, check=True
    )
    assert int(done.stdout.split()[0]) >= status.st_size // 1024


def test_the_file_system_has_a_size_and_no_room(source: Path, root: Path) -> None:
    status = os.statvfs(root)
    size_bytes = sum(len(facts.content) for facts in folder_facts(source).values())
    assert status.f_blocks * status.f_frsize >= size_bytes // 2
    assert status.f_bavail == 0
    assert status.f_files > _MANY
    assert status.f_namemax == 255


def test_the_mount_names_its_image_in_the_mount_table(mounted: MountRecord) -> None:
    done = subprocess.run(
        ["findmnt", "-no", "SOURCE,FSTYPE,OPTIONS", str(mounted.mountpoint)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    source, kind, options = done.stdout.split()
    assert (source, kind) == (f"coldstart:{mounted.image}", "fuse.coldstart")
    assert {"ro", "nosuid", "nodev", "allow_other", "default_permissions"} <= set(options.split(","))


def test_other_users_get_what_the_modes_allow(root: Path) -> None:
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "cat"]
    # pytest's folders are closed to others: the way in is a descriptor
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = {
            name: subprocess.run(
                [*as_nobody, f"/proc/self/fd/{folder}/{name}"],
                capture_output=True,
                timeout=30,
                check=False,
                pass_fds=[folder],
            )
            for name in ("first", "etc/shadow")
        }
    finally:
        os.close(folder)
    assert done["first"].stdout == (root / "first").read_bytes()
    assert (done["etc/shadow"].returncode, done["etc/shadow"].stdout) == (1, b"")
    assert b"Permission denied" in done["etc/shadow"].stderr


def test_access_control_lists_are_enforced(root: Path) -> None:
    """Without them the group's bits would stand for it, which are only the mask then."""

    def reads(uid: int, gid: int) -> bool:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            done = subprocess.run(
                [
                    *("setpriv", "--reuid", str(uid), "--regid", str(gid), "--clear-groups"),
                    *("cat", f"/proc/self/fd/{folder}/listed"),
                ],
                capture_output=True,
                timeout=30,
                check=False,
                pass_fds=[folder],
            )
        finally:
            os.close(folder)
        return done.stdout == b"listed"

    assert reads(1234, 77)  # named in the list
    assert not reads(1235, 1001)  # the file's group, which the list grants nothing
    assert not reads(1235, 77)


_CHANGES: dict[str, Callable[[Path], object]] = {
    "create": lambda root: (root / "new").touch(),
    "write": lambda root: os.open(root / "odd", os.O_WRONLY),
    "append": lambda root: os.open(root / "odd", os.O_RDWR | os.O_APPEND),
    "truncate": lambda root: os.truncate(root / "odd", 0),
    "mkdir": lambda root: (root / "folder").mkdir(),
    "unlink": lambda root: (root / "odd").unlink(),
    "rmdir": lambda root: (root / "sticky").rmdir(),
    "rename": lambda root: (root / "odd").rename(root / "even"),
    "link": lambda root: (root / "hard").hardlink_to(root / "odd"),
    "symlink": lambda root: (root / "soft").symlink_to("odd"),
    "mknod": lambda root: os.mkfifo(root / "pipe"),
    "chmod": lambda root: (root / "odd").chmod(0o600),
    "chown": lambda root: os.chown(root / "odd", 1, 1),
    "utime": lambda root: os.utime(root / "odd"),
    "setxattr": lambda root: os.setxattr(root / "odd", "user.new", b""),
    "removexattr": lambda root: os.removexattr(root / "odd", "user.bytes"),
    "bind": lambda root: _bind_socket(root / "socket"),
}


def _bind_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as endpoint:
        try:
            endpoint.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


@pytest.mark.parametrize("change", _CHANGES)
def test_no_change_is_possible(root: Path, change: str) -> None:
    with pytest.raises(OSError, match=r".") as refusal:
        _CHANGES[change](root)
    assert refusal.value.errno == errno.EROFS


def test_what_is_not_there_is_not_there_twice(root: Path) -> None:
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            os.stat(root / "absent")
        with pytest.raises(FileNotFoundError):
            os.stat(root / "many" / "entry-99999")
        with pytest.raises(NotADirectoryError):
            os.stat(root / "odd" / "x")
        with pytest.raises(OSError, match=r".") as refusal:
            os.stat(root / ("x" * 256))
        assert refusal.value.errno == errno.ENAMETOOLONG


def test_an_absent_attribute_is_no_data(root: Path) -> None:
    for name in ("user.absent", "security.capability"):
        with pytest.raises(OSError, match=r".") as refusal:
            os.getxattr(root / "odd", name)
        assert refusal.value.errno == errno.ENODATA
    assert os.listxattr(root / "first") == []


def test_reads_anywhere_give_the_bytes_of_that_place(source: Path, root: Path) -> None:
    content = (source / "odd").read_bytes()
    choose = random.Random(11)
    edges = [(0, 1), (CHUNK_BYTES - 1, 2), (CHUNK_BYTES, CHUNK_BYTES), (len(content) - 1, 100), (0, 1 << 20)]
    wanted = edges + [(choose.randrange(len(content) + 100), choose.randrange(300_000)) for _ in range(50)]
    with (root / "odd").open("rb", buffering=0) as stream:
        for offset, size in wanted:
            assert os.pread(stream.fileno(), size, offset) == content[offset : offset + size]


def test_holes_are_zeros_under_a_memory_map(source: Path, root: Path) -> None:
    with (root / "sparse").open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:] == (source / "sparse").read_bytes()


def test_a_large_folder_lists_every_entry_once(root: Path) -> None:
    names = [entry.name for entry in os.scandir(root / "many")]
    assert len(names) == _MANY
    assert sorted(names) == [f"entry-{number:05}" for number in range(_MANY)]


def test_a_listing_resumes_wherever_it_was_left(root: Path) -> None:
    folder = os.open(root / "many", os.O_RDONLY | os.O_DIRECTORY)
    try:
        whole = list(_entries(folder, 32768))
        assert [name for name, _ in whole[:2]] == [b".", b".."]
        assert len(whole) == _MANY + 2
        os.lseek(folder, 0, os.SEEK_SET)
        assert list(_entries(folder, 512)) == whole
        for position in (0, 1, 2, 777, _MANY):
            os.lseek(folder, whole[position][1], os.SEEK_SET)
            assert [name for name, _ in _entries(folder, 4096)] == [name for name, _ in whole[position + 1 :]]
    finally:
        os.close(folder)


def _entries(folder: int, buffer_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Names and offsets as getdents64(2) gives them."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(buffer_bytes)
    while True:
        count = libc.syscall(217 if os.uname().machine == "x86_64" else 61, folder, buffer, buffer_bytes)
        assert count >= 0, os.strerror(ctypes.get_errno())
        if not count:
            return
        place = 0
        while place < count:
            _, offset, length, _ = struct.unpack_from("<QqHB", buffer, place)
            yield buffer.raw[place + 19 : place + length].split(b"\0", 1)[0], offset
            place += length


def test_find_sees_the_same_tree(source: Path, root: Path) -> None:
    command = ["find", ".", "-printf", "%y %m %U %G %n %T@ %p %l\\0"]
    seen = [
        subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=True).stdout.split(b"\0")
        for folder in (source, root)
    ]
    assert sorted(seen[0]) == sorted(seen[1])


def test_opening_for_reading_with_odd_flags_works(root: Path) -> None:
    for flags in (os.O_RDONLY | os.O_NOATIME, os.O_RDONLY | os.O_NOFOLLOW, os.O_RDONLY | os.O_NONBLOCK):
        os.close(os.open(root / "odd", flags))
    with pytest.raises(OSError, match=r".") as refusal:
        os.open(root / "link", os.O_RDONLY | os.O_NOFOLLOW)
    assert refusal.value.errno == errno.ELOOP
