"""What image layers mean: whiteouts, opaque folders, replacement, links, and names that must be refused."""

from __future__ import annotations

import stat
import tarfile

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.indexing.sources.layer import LayeredTree
from coldstart_fs.indexing.sources.stream import ByteStream
from coldstart_fs.indexing.sources.tar import TarReader
from image_builder import Layer, apply_layers


def names(tree: dict[bytes, object]) -> set[bytes]:
    return set(tree) - {b""}


def test_a_whiteout_hides_a_file_of_a_lower_layer() -> None:
    tree = apply_layers(Layer().file("a/b", b"1").file("a/c", b"2"), Layer().file("a/.wh.b"))
    assert names(tree) == {b"a", b"a/c"}


def test_a_whiteout_hides_a_whole_folder() -> None:
    tree = apply_layers(Layer().folder("a").file("a/b/c", b"1"), Layer().file(".wh.a"))
    assert names(tree) == set()


def test_a_whiteout_of_what_is_not_there_is_fine() -> None:
    assert names(apply_layers(Layer().file("a"), Layer().file("x/.wh.y").file(".wh.z"))) == {b"a"}


@pytest.mark.parametrize("whiteout_first", [True, False])
def test_a_whiteout_never_hides_a_file_of_its_own_layer(whiteout_first: bool) -> None:
    upper = Layer()
    if whiteout_first:
        upper.file(".wh.a").file("a", b"new")
    else:
        upper.file("a", b"new").file(".wh.a")
    tree = apply_layers(Layer().file("a", b"older"), upper)
    assert tree[b"a"].size == 3


@pytest.mark.parametrize("marker_first", [True, False])
def test_an_opaque_folder_hides_lower_layers_only_whatever_the_order(marker_first: bool) -> None:
    upper = Layer().folder("d", mode=0o700)
    if marker_first:
        upper.file("d/.wh..wh..opq").file("d/new").file("d/sub/new")
    else:
        upper.file("d/new").file("d/sub/new").file("d/.wh..wh..opq")
    tree = apply_layers(Layer().file("d/old").file("d/sub/old").file("e"), upper)
    assert names(tree) == {b"d", b"d/new", b"d/sub", b"d/sub/new", b"e"}
    assert tree[b"d"].mode == stat.S_IFDIR | 0o700


def test_an_opaque_root_hides_everything_below() -> None:
    assert names(apply_layers(Layer().file("a/b"), Layer().file(".wh..wh..opq").file("c"))) == {b"c"}


def test_whiteouts_work_through_symlinked_parents() -> None:
    lower = Layer().file("usr/lib/x").file("usr/lib/y").symlink("lib", "usr/lib")
    assert names(apply_layers(lower, Layer().file("lib/.wh.x"))) == {b"usr", b"usr/lib", b"usr/lib/y", b"lib"}


def test_the_last_of_two_entries_with_one_name_wins() -> None:
    tree = apply_layers(Layer().file("a", b"1").file("./a", b"22").file("/a", b"333"))
    assert names(tree) == {b"a"}
    assert tree[b"a"].size == 3


def test_any_type_replaces_any_type() -> None:
    makers = {
        stat.S_IFREG: lambda layer: layer.file("x"),
        stat.S_IFDIR: lambda layer: layer.folder("x"),
        stat.S_IFLNK: lambda layer: layer.symlink("x", "t"),
        stat.S_IFIFO: lambda layer: layer.add("x", tarfile.FIFOTYPE),
        stat.S_IFCHR: lambda layer: layer.add("x", tarfile.CHRTYPE, devmajor=1, devminor=3),
    }
    for first, make_first in makers.items():
        for second, make_second in makers.items():
            lower = make_first(Layer()).file("x/child") if first == stat.S_IFDIR else make_first(Layer())
            tree = apply_layers(lower, make_second(Layer()))
            assert stat.S_IFMT(tree[b"x"].mode) == second
            assert (b"x/child" in tree) == (first == second == stat.S_IFDIR)


def test_a_folder_met_again_keeps_its_children_and_takes_the_new_metadata() -> None:
    tree = apply_layers(
        Layer().folder("d", mode=0o755, uid=1).file("d/f"), Layer().folder("d", mode=0o711, uid=2, mtime=9)
    )
    folder = tree[b"d"]
    assert (folder.mode & 0o7777, folder.uid, folder.mtime_ns) == (0o711, 2, 9_000_000_000)
    assert b"d/f" in tree


def test_missing_parents_are_made_the_same_every_time() -> None:
    folder = apply_layers(Layer().file("a/b/c"))[b"a/b"]
    assert (folder.mode, folder.uid, folder.gid, folder.mtime_ns) == (stat.S_IFDIR | 0o755, 0, 0, 0)


def test_the_root_entry_sets_the_metadata_of_the_root() -> None:
    for name in ("./", "/", "."):
        assert apply_layers(Layer().folder(name, mode=0o700, mtime=5))[b""].mode & 0o7777 == 0o700


def test_hard_links_are_one_inode() -> None:
    tree = apply_layers(
        Layer().file("a", b"x").link("b", "a").link("d/c", "./b").symlink("s", "a").link("t", "s")
    )
    assert tree[b"a"] is tree[b"b"] is tree[b"d/c"]
    assert tree[b"t"] is tree[b"s"]


def test_a_hard_link_keeps_what_it_was_made_to_when_the_name_is_replaced_later() -> None:
    tree = apply_layers(
        Layer().file("a", b"old!").link("b", "a"), Layer().file("a", b"new"), Layer().file(".wh.a")
    )
    assert b"a" not in tree
    assert tree[b"b"].size == 4


def test_a_hard_link_means_the_file_of_that_moment_in_the_layer() -> None:
    tree = apply_layers(Layer().file("a", b"1").link("b", "a").file("a", b"22"))
    assert (tree[b"b"].size, tree[b"a"].size) == (1, 2)


def test_a_hard_link_may_reach_into_a_lower_layer() -> None:
    tree = apply_layers(Layer().file("a", b"1"), Layer().link("b", "a"))
    assert tree[b"a"] is tree[b"b"]


@pytest.mark.parametrize("target", ["nowhere", "folder", "nowhere/below", "."])
def test_a_hard_link_to_nothing_or_to_a_folder_is_refused_by_name(target: str) -> None:
    with pytest.raises(DataError, match="`l` is a hard link"):
        apply_layers(Layer().folder("folder").link("l", target))


def test_entries_below_a_symlink_land_where_it_points_to_inside_the_root() -> None:
    tree = apply_layers(
        Layer().folder("usr/lib").symlink("lib", "usr/lib").symlink("abs", "/usr/../../../usr/lib"),
        Layer().file("lib/x").file("abs/y").file("lib/deep/z"),
    )
    assert {b"usr/lib/x", b"usr/lib/y", b"usr/lib/deep/z"} <= names(tree)
    assert tree[b"lib"].is_symlink


def test_a_symlink_out_of_the_root_leads_nowhere_else() -> None:
    tree = apply_layers(Layer().symlink("x", "../../../../etc").file("x/passwd", b"p"))
    assert names(tree) == {b"x", b"etc", b"etc/passwd"}


def test_a_loop_of_symlinks_is_refused() -> None:
    with pytest.raises(DataError, match="`a` leads through a loop"):
        apply_layers(Layer().symlink("a", "b").symlink("b", "a").file("a/f"))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/../x", "./../x"])
def test_names_that_leave_the_root_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"layer 0: `.*x` leaves the root"):
        apply_layers(Layer().file(name))


def test_hard_links_out_of_the_root_are_refused() -> None:
    with pytest.raises(DataError, match="leaves the root"):
        apply_layers(Layer().link("x", "../../etc/shadow"))


@pytest.mark.parametrize("name", [".wh.", "a/.wh.", ".wh..", ".wh..."])
def test_whiteouts_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="whiteout"):
        apply_layers(Layer().file(name))


def test_a_folder_may_have_the_name_of_a_whiteout_when_files_lie_in_it() -> None:
    assert names(apply_layers(Layer().file("d"), Layer().file(".wh.d/x"))) == {b"d", b".wh.d", b".wh.d/x"}


def test_aufs_leftovers_are_left_out_and_counted() -> None:
    content = Layer().folder(".wh..wh.plnk").file(".wh..wh.plnk/1.2").file(".wh..wh.aufs").file("a").content()
    tree = LayeredTree()
    tree.apply(TarReader(ByteStream(iter([content])), "x"), lambda *_: None, "x")
    assert set(tree.root.children) == {b"a"}
    assert tree.left_out == {"AUFS leftovers (.wh..wh.*)": 3}


def test_components_longer_than_a_file_system_takes_are_refused() -> None:
    assert b"n" * 255 in apply_layers(Layer().file(b"n" * 255))
    with pytest.raises(DataError, match="more than 255 bytes"):
        apply_layers(Layer().file(b"n" * 256))


def test_runtime_folders_stay_as_the_empty_folders_they_are() -> None:
    assert names(apply_layers(Layer().folder("proc").folder("sys").folder("dev"))) == {
        b"proc",
        b"sys",
        b"dev",
    }


def test_what_is_left_out_is_counted_by_kind() -> None:
    layer = (
        Layer()
        .file("acl", pax={"SCHILY.acl.access": "user::rw-"})
        .folder("default", pax={"SCHILY.acl.default": "user::rwx", "SCHILY.acl.access": "user::rwx"})
        .file("bsdtar", pax={"LIBARCHIVE.xattr.user.a": "AP8B"})
        .file("both", pax={"LIBARCHIVE.xattr.user.a": "MQ=="}, xattrs={"user.a": b"1"})
        .file("label", pax={"RHT.security.selinux": "system_u:object_r:bin_t:s0"})
        .symlink("s", "t", xattrs={"user.a": b"1", "trusted.a": b"2"})
        .folder("overlay", xattrs={"trusted.overlay.opaque": b"y"})
        .file("odd", xattrs={"nonsense": b"1", "system.posix_acl_default": b"x"})
    )
    tree = LayeredTree()
    tree.apply(TarReader(ByteStream(iter([layer.content()])), "x"), lambda *_: None, "x")
    assert tree.left_out == {
        "access control lists as text": 2,
        "xattrs in libarchive's form": 1,
        "SELinux labels in GNU tar's form": 1,
        "user xattrs of symlinks, devices and FIFOs": 1,
        "xattrs of overlayfs (trusted.overlay.*)": 1,
        "xattrs in no namespace that Linux has": 1,
        "access control lists of files that cannot have them": 1,
    }
    assert tree.root.children[b"s"].xattrs == ((b"trusted.a", b"2"),)


@pytest.mark.parametrize("value", [b"", b"\x02\0\0", b"\x01\0\0\0", b"\x02\0\0\0" + b"x" * 7])
def test_access_control_lists_that_cannot_be_read_are_refused(value: bytes) -> None:
    with pytest.raises(DataError, match="`f` has an access control list that cannot be read"):
        apply_layers(Layer().file("f", xattrs={"system.posix_acl_access": value}))
