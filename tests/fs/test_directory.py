"""A root folder as a source: exact metadata, bytes throughout, changes under us noticed."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, UsageError
from coldstart_fs.format.entry import Entry
from coldstart_fs.indexing.build import IndexReport, index_image
from coldstart_fs.indexing.sources.directory import Directory
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from image_builder import Steps, folder_facts, image_facts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and foreign owners")


def make_store(tmp_path: Path, name: str = "store") -> Store:
    return open_store(str(tmp_path / name), create=True)


def index(folder: Path, store: Store, name: str = "image") -> IndexReport:
    return index_image(f"dir:{folder}", store=store, name=name, chunk_bytes=4096)


def read_tree(folder: Path) -> Entry:
    return Directory.open(str(folder)).read_tree(lambda _: None)


def make_rich_tree(root: Path, *, reverse: bool = False) -> None:
    """Every kind of file; `reverse` makes them in the opposite order."""
    root.mkdir()
    top = os.fsencode(root)
    steps = [
        lambda: (root / "plain").write_bytes(os.urandom(0) + b"plain\n"),
        (root / "empty").touch,
        lambda: (root / "big").write_bytes(b"".join(b"%09d\n" % number for number in range(3000))),
        lambda: Path(os.fsdecode(top + b"/\xff\xfe\n name")).write_bytes(b"bytes"),
        lambda: os.symlink(b"/nowhere/\x80", top + b"/dangling"),
        lambda: (root / "deep/er/and").mkdir(parents=True),
        lambda: os.mkfifo(root / "fifo"),
        lambda: os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
        lambda: os.mknod(root / "disk", stat.S_IFBLK | 0o660, os.makedev(259, 70_000)),
        lambda: (root / "zeros").write_bytes(bytes(10_000)),
    ]
    for step in reversed(steps) if reverse else steps:
        step()
    with (root / "sparse").open("wb") as stream:
        stream.seek(5_000)
        stream.write(b"island")
        stream.truncate(3_000_001)
    (root / "deep/one").write_bytes(b"linked")
    os.link(root / "deep/one", root / "deep/er/two")
    os.link(root / "deep/one", root / "another")
    os.link(root / "dangling", root / "deep/same symlink", follow_symlinks=False)
    os.setxattr(root / "plain", "user.binary", bytes(range(256)))
    os.setxattr(root / "deep", "user.folder", b"")
    # version 2 of the structure: cap_net_raw, effective
    os.setxattr(
        root / "plain", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000")
    )
    os.setxattr(root / "dangling", "trusted.note", b"on a symlink", follow_symlinks=False)
    os.chown(root / "plain", 1234, 4_000_000_000)
    os.chmod(root / "big", 0o6755)
    os.chmod(root / "deep/er", 0o1777)
    os.utime(root / "plain", ns=(0, -1_500_000_001))
    os.utime(root / "dangling", ns=(0, 1_234_567_890_123_456_789), follow_symlinks=False)
    for folder in ("deep/er/and", "deep/er", "deep", "."):
        os.utime(root / folder, ns=(0, 1_600_000_000_987_654_321))
    for name in os.listdir(top):
        path = top + b"/" + name
        if name not in {b"plain", b"dangling", b"deep"}:
            os.utime(path, ns=(0, 1_700_000_000_000_000_007), follow_symlinks=False)
    os.utime(root / "deep", ns=(0, 1_600_000_000_987_654_321))


@needs_root
def test_every_kind_of_file_comes_back_exactly(tmp_path: Path) -> None:
    make_rich_tree(tmp_path / "root")
    store = make_store(tmp_path)
    report = index(tmp_path / "root", store)
    assert report.notes == ()
    expected = folder_facts(tmp_path / "root")
    assert image_facts(store, "image") == expected
    assert expected[b"another"].links == 3
    assert expected[b"deep/er/two"].group == b"another"


@needs_root
def test_the_same_tree_gives_the_same_bytes_whatever_the_order_and_the_store(tmp_path: Path) -> None:
    make_rich_tree(tmp_path / "one")
    make_rich_tree(tmp_path / "two", reverse=True)
    first, second = make_store(tmp_path, "a"), make_store(tmp_path, "b")
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise/x").write_bytes((tmp_path / "one/big").read_bytes())
    index(tmp_path / "noise", second, "noise")
    one, two = index(tmp_path / "one", first), index(tmp_path / "two", second)
    assert one.digest == two.digest
    assert two.reused_bytes > 0
    assert image_facts(first, "image") == image_facts(second, "image")


def test_a_symlink_may_name_the_folder_and_its_own_metadata_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a").write_text("a")
    (tmp_path / "link").symlink_to("root")
    assert set(read_tree(tmp_path / "link").children) == {b"a"}


def test_sockets_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for name in ("a", "b"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "root" / name))
    (tmp_path / "root/c").touch()
    store = make_store(tmp_path)
    assert index(tmp_path / "root", store).notes == ("left out: 2 sockets",)
    assert set(image_facts(store, "image")) == {b"", b"c"}


@needs_root
def test_other_mounts_are_not_entered(tmp_path: Path) -> None:
    (tmp_path / "root/mnt").mkdir(parents=True)
    (tmp_path / "root/mnt/below").touch()
    (tmp_path / "root/resolv.conf").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/secret").write_text("secret")
    for source, target in (("other", "root/mnt"), ("other/secret", "root/resolv.conf")):
        subprocess.run(["mount", "--bind", tmp_path / source, tmp_path / target], check=True, timeout=60)
    try:
        store = make_store(tmp_path)
        report = index(tmp_path / "root", store)
    finally:
        for target in ("root/mnt", "root/resolv.conf"):
            subprocess.run(["umount", tmp_path / target], check=True, timeout=60)
    facts = image_facts(store, "image")
    assert set(facts) == {b"", b"mnt", b"resolv.conf"}
    assert facts[b"resolv.conf"].content == b""
    assert report.notes == ("left out: 2 contents of mount points",)


def test_a_huge_sparse_file_costs_no_reading(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with (tmp_path / "root/lastlog").open("wb") as stream:
        stream.truncate(40 << 30)
        stream.seek(20 << 30)
        stream.write(b"x")
    store = make_store(tmp_path)
    report = index_image(f"dir:{tmp_path}/root", store=store, name="image")
    assert report.content_bytes == 40 << 30
    assert report.new_bytes == 131072
    assert report.zero_bytes == (40 << 30) - 131072


@pytest.mark.parametrize("change", ["longer", "shorter", "same size", "gone", "another file", "a symlink"])
def test_a_file_that_changes_under_us_is_an_error_and_publishes_nothing(tmp_path: Path, change: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    victim = root / "victim"
    victim.write_bytes(b"x" * 10_000)
    (root / "a").write_bytes(b"first")

    def disturb(step: str) -> None:
        if step != "reading the files":
            return
        if change == "longer":
            victim.write_bytes(b"x" * 10_001)
        elif change == "shorter":
            victim.write_bytes(b"x" * 9_999)
        elif change == "same size":
            victim.write_bytes(b"y" * 10_000)
        else:
            victim.unlink()
            if change == "another file":
                victim.write_bytes(b"x" * 10_000)
            elif change == "a symlink":
                victim.symlink_to("/etc/passwd")

    store = make_store(tmp_path)
    with pytest.raises(DataError, match=r"file changed while it was read: .*victim") as caught:
        index_image(f"dir:{root}", store=store, name="image", progress=Steps(disturb))
    assert caught.value.hint
    assert store.list("") == ["coldstart-store.json"]
    assert not list((tmp_path / "store").glob(".writing-*"))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match=re.escape(f"folder does not exist: {tmp_path}/none")):
        index(tmp_path / "none", make_store(tmp_path))
    with pytest.raises(UsageError, match="not a folder"):
        index(tmp_path / "file", make_store(tmp_path))


def test_a_store_inside_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(UsageError, match="the store lies inside of the folder"):
        index(tmp_path, make_store(tmp_path))
    assert not (tmp_path / "store").exists()


def make_hole(path: Path, size_bytes: int) -> None:
    with path.open("wb") as stream:
        stream.truncate(size_bytes)


def test_a_file_that_no_archive_could_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root/var").mkdir(parents=True)
    make_hole(tmp_path / "root/var/lastlog", 3 << 40)
    refusal = re.escape(f"{tmp_path}/root/var/lastlog: its size is 3298534883328, the most is 2199023255552")
    with pytest.raises(DataError, match=refusal) as caught:
        index(tmp_path / "root", make_store(tmp_path))
    assert caught.value.hint == "move it out of the folder, or make it smaller"


def test_holes_are_limited_for_the_whole_image(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for number in range(2):
        make_hole(tmp_path / f"root/{number}", (1 << 40) + 1)
    with pytest.raises(DataError, match="it brings the image's holes to 2199023255554 bytes, the most is"):
        read_tree(tmp_path / "root")
    (tmp_path / "root/1").unlink()
    os.link(tmp_path / "root/0", tmp_path / "root/1")  # counted once
    assert len(read_tree(tmp_path / "root").children) == 2


@needs_root
def test_a_file_that_is_mounted_over_another_is_left_out_and_stays_what_it_is_elsewhere(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(b"content")
    os.link(root / "a", root / "b")
    make_hole(tmp_path / "huge", 3 << 40)
    points = {root / "c": root / "a", root / "d": tmp_path / "huge"}
    try:
        for point, mounted in points.items():
            point.touch()
            subprocess.run(["mount", "--bind", mounted, point], check=True, timeout=60)
        sizes = {name: entry.size for name, entry in read_tree(root).children.items()}
    finally:
        for point in points:
            subprocess.run(["umount", point], check=False, timeout=60)
    assert sizes == {b"a": 7, b"b": 7, b"c": 0, b"d": 0}


def test_a_path_that_is_longer_than_the_kernel_takes_is_shown_by_its_ends(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    name = "d" * 250
    at = os.open(tree, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with pytest.raises(IoFailure, match="File name too long") as caught:
        index_image(f"dir:{tree}", store=open_store(str(tmp_path / "store"), create=True), name="x")
    assert len(caught.value.message) < 500
    assert str(tree) in caught.value.message
    subprocess.run(["rm", "-rf", tree], check=True, timeout=60)
