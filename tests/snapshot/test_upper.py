"""The writable layer survives its archive, and an archive cannot reach outside the layer."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, IoFailure
from coldstart_snapshot.containers.upper import archive_upper, unpack_upper
from snapshot.servers import Overlay, require_root

_TIME_NS = 1_700_000_000_123_456_789


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    require_root()
    upper = tmp_path / "upper"
    upper.mkdir()
    return upper


def _describe(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that must come back, by relative name."""
    described: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in sorted([*folders, *files, b"."]):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            xattrs = {
                one: os.getxattr(path, one, follow_symlinks=False)
                for one in os.listxattr(path, follow_symlinks=False)
            }
            key = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
            link = first.setdefault(status.st_ino, key)
            described[key] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_mtime_ns,
                status.st_rdev,
                content,
                sorted(xattrs.items()),
                link,
            )
    return described


def test_all_kinds_of_entries_come_back_to_the_nanosecond(upper: Path, tmp_path: Path) -> None:
    folder = upper / "folder"
    folder.mkdir(mode=0o2750)
    (folder / "file").write_bytes(os.urandom(3 << 20) + bytes(2 << 20) + b"end")
    os.chown(folder / "file", 1234, 5678)
    (folder / "file").chmod(0o4755)
    os.link(folder / "file", upper / "again")
    os.symlink("/etc/passwd", folder / "link")
    os.lchown(folder / "link", 7, 8)
    os.mkfifo(upper / "fifo", 0o640)
    os.mknod(upper / "whiteout", stat.S_IFCHR, os.makedev(0, 0))
    os.mknod(upper / "device", stat.S_IFBLK | 0o600, os.makedev(7, 3))
    (upper / ("x" * 200)).write_text("a long name")
    Path(os.fsdecode(os.fsencode(upper) + b"/not \xff utf-8 \n")).write_text("a strange name")
    (upper / "日本").write_text("")
    os.setxattr(folder, "trusted.overlay.opaque", b"y")
    os.setxattr(folder / "file", "user.binary", bytes(range(256)))
    os.setxattr(
        folder / "file", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000")
    )
    os.utime(folder / "file", ns=(_TIME_NS, _TIME_NS))
    os.utime(folder / "link", ns=(_TIME_NS + 1, _TIME_NS + 1), follow_symlinks=False)
    os.utime(upper / "fifo", ns=(-1_500_000_001, -1_500_000_001))
    os.utime(folder, ns=(_TIME_NS + 2, _TIME_NS + 2))
    os.utime(upper, ns=(5, 5))
    archived = archive_upper(upper, tmp_path / "upper.tar")
    assert archived.skipped_sockets == 0
    target = tmp_path / "target"
    assert unpack_upper(tmp_path / "upper.tar", target, device_nodes=True) == archived.entries
    assert _describe(target) == _describe(upper)
    assert (target / "folder" / "file").stat().st_blocks * 512 < 4 << 20  # zeros became a hole
    assert stat.S_IMODE((tmp_path / "upper.tar").stat().st_mode) == 0o600


def test_an_overlay_over_the_unpacked_layer_shows_what_the_old_one_showed(tmp_path: Path) -> None:
    require_root()
    lower = tmp_path / "lower"
    (lower / "replaced").mkdir(parents=True)
    (lower / "replaced" / "old").write_text("old")
    (lower / "deleted").write_text("deleted")
    (lower / "changed").write_text("before")
    first = Overlay(tmp_path / "first", str(lower)).mount()
    second = Overlay(tmp_path / "second", str(lower))
    try:
        subprocess.run(["rm", "-r", str(first.root / "replaced")], check=True, timeout=60)
        (first.root / "replaced").mkdir()
        (first.root / "replaced" / "new").write_text("new")
        (first.root / "deleted").unlink()
        (first.root / "changed").write_text("after")
        archive_upper(first.upper, tmp_path / "upper.tar")
        first.destroy()
        unpack_upper(tmp_path / "upper.tar", second.upper)
        second.mount()
        assert sorted(os.listdir(second.root)) == ["changed", "replaced"]
        assert os.listdir(second.root / "replaced") == ["new"]
        assert (second.root / "changed").read_text() == "after"
    finally:
        first.destroy()
        second.destroy()


def test_what_ties_a_layer_to_its_file_systems_stays_behind(upper: Path, tmp_path: Path) -> None:
    (upper / "file").write_text("")
    os.setxattr(upper / "file", "trusted.overlay.origin", b"\0\xfb!")
    os.setxattr(upper, "trusted.overlay.impure", b"y")
    archive_upper(upper, tmp_path / "upper.tar")
    unpack_upper(tmp_path / "upper.tar", tmp_path / "target")
    assert os.listxattr(tmp_path / "target" / "file") == []
    assert os.listxattr(tmp_path / "target") == []


def _archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = 1 if kind == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a//b", "./a"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    archive = _archive(tmp_path / "evil.tar", _member(name))
    with pytest.raises(DataError, match="unsafe name"):
        unpack_upper(archive, tmp_path / "layer" / "upper")
    assert not (tmp_path / "outside").exists()


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    link = _member("link", tarfile.SYMTYPE, linkname=str(outside))
    with pytest.raises(IoFailure):
        unpack_upper(_archive(tmp_path / "one.tar", link, _member("link/file")), tmp_path / "one")
    stolen = _member("stolen", tarfile.LNKTYPE, linkname="link/secret")
    with pytest.raises(IoFailure):
        unpack_upper(_archive(tmp_path / "two.tar", link, stolen), tmp_path / "two")
    assert os.listdir(outside) == ["secret"]


def test_a_damaged_archive_and_a_folder_in_use_are_refused(upper: Path, tmp_path: Path) -> None:
    (upper / "file").write_bytes(os.urandom(1 << 20))
    archive = tmp_path / "upper.tar"
    archive_upper(upper, archive)
    os.truncate(archive, 1 << 19)
    with pytest.raises(DataError, match=r"damaged|cut short"):
        unpack_upper(archive, tmp_path / "target")
    with pytest.raises(IoFailure, match="not empty"):
        unpack_upper(archive, upper)
    assert unpack_upper(None, tmp_path / "nothing") == 0
