"""A mounted image against the folder it was made from, entry by entry, as the kernel shows both."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import socket
import stat
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart_fs.mounts.mount import MountRecord
from conftest import umount, wait_until
from fs.mounts import CHUNK_BYTES, Lab, laboratory
from image_builder import folder_facts

_MANY = 10_000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every machine


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
        ["du", "-sk", str(root / "odd")], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout.split()[0]) >= status.st_size // 1024


def test_holes_take_no_blocks(root: Path) -> None:
    assert os.stat(root / "sparse").st_size == 3 * CHUNK_BYTES + 13
    assert os.stat(root / "sparse").st_blocks == 1
    assert os.stat(root / "empty").st_blocks == 0


def test_holes_and_data_are_found_by_seeking(root: Path) -> None:
    data = 3 * CHUNK_BYTES
    with (root / "sparse").open("rb", buffering=0) as stream:
        assert stream.seek(0, os.SEEK_DATA) == data
        assert stream.seek(0, os.SEEK_HOLE) == 0
        assert stream.seek(CHUNK_BYTES + 5, os.SEEK_HOLE) == CHUNK_BYTES + 5
        assert stream.seek(data + 2, os.SEEK_DATA) == data + 2
        assert stream.seek(data + 2, os.SEEK_HOLE) == data + 13
        with pytest.raises(OSError, match=r".") as refusal:
            stream.seek(data + 13, os.SEEK_DATA)
        assert refusal.value.errno == errno.ENXIO
    with (root / "odd").open("rb", buffering=0) as stream:
        assert stream.seek(0, os.SEEK_HOLE) == os.stat(root / "odd").st_size


def test_a_copy_keeps_the_holes(root: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "--sparse=auto", root / "sparse", tmp_path / "copy"], check=True, timeout=60)
    assert (tmp_path / "copy").read_bytes() == (root / "sparse").read_bytes()
    assert os.stat(tmp_path / "copy").st_blocks * 512 < CHUNK_BYTES


def test_the_sizes_of_attributes_can_be_asked_for(root: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    path, name = os.fsencode(root / "odd"), b"user.bytes"
    assert libc.getxattr(path, name, None, 0) == 256
    buffer = ctypes.create_string_buffer(10)
    assert libc.getxattr(path, name, buffer, 10) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert libc.listxattr(path, None, 0) == len(b"user.bytes\0user.empty\0")


def test_a_file_is_no_terminal(root: Path) -> None:
    with (root / "odd").open("rb") as stream:
        assert not stream.isatty()
        with pytest.raises(OSError, match=r".") as refusal:
            fcntl.ioctl(stream, termios.TCGETS, bytes(64))
        assert refusal.value.errno == errno.ENOTTY


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
        timeout=60,
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
                timeout=60,
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
                timeout=60,
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


def test_a_container_in_a_user_namespace_gets_the_image_with_its_own_owners(
    mounted: MountRecord, tmp_path: Path
) -> None:
    """An idmapped mount, as runc makes it of a root file system: owner 0 of the image is 100000 there."""
    server = mounted.server()
    if server is None or "allow_idmap" not in server.fuse_flags:
        pytest.skip("this kernel maps no owners on FUSE: Linux 6.12")
    holder = subprocess.Popen(["unshare", "--user", "sleep", "60"])
    libc = ctypes.CDLL(None, use_errno=True)
    point = tmp_path / "mapped"
    point.mkdir()
    try:
        namespaces = Path(f"/proc/{holder.pid}/ns/user")
        wait_until(lambda: os.readlink(namespaces) != os.readlink("/proc/self/ns/user"), "the namespace")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{name}").write_text("0 100000 65536")
        tree = libc.syscall(_OPEN_TREE, -100, os.fsencode(mounted.mountpoint), 1)
        owners = os.open(namespaces, os.O_RDONLY)
        attributes = struct.pack("<QQQQ", 0x100000, 0, 0, owners)  # MOUNT_ATTR_IDMAP
        set_ = libc.syscall(_MOUNT_SETATTR, tree, b"", 0x1000, attributes, len(attributes))
        assert set_ == 0, os.strerror(ctypes.get_errno())
        assert libc.syscall(_MOVE_MOUNT, tree, b"", -100, os.fsencode(point), 4) == 0
        os.close(owners)
        os.close(tree)
        try:
            status = os.lstat(point / "setuid")
            assert (status.st_uid, status.st_gid) == (101000, 101001)
            assert (point / "first").read_bytes() == (mounted.mountpoint / "first").read_bytes()
        finally:
            umount(point)
    finally:
        holder.kill()
        holder.wait(60)


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
