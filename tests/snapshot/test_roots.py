"""A root is told by the mount table: our image, an overlay, a folder."""

from __future__ import annotations

from pathlib import Path

from coldstart_snapshot.containers.roots import RootKind, RootSource, detect_root
from snapshot.made import IMAGE
from snapshot.servers import Overlay, require_root

_PREFIX = "36 35 0:50 / "


def _table(tmp_path: Path, *lines: str) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"{_PREFIX}{line}\n" for line in lines))
    return table


def test_a_real_overlay_is_told_with_its_layers(tmp_path: Path) -> None:
    require_root()
    lower = tmp_path / "lower with a blank"
    lower.mkdir()
    overlay = Overlay(tmp_path / "overlay", str(lower)).mount()
    try:
        assert detect_root(overlay.root) == RootSource(RootKind.OVERLAY, lower, upper=overlay.upper)
    finally:
        overlay.destroy()
    assert detect_root(overlay.folder.parent).kind is RootKind.FOLDER


def test_an_overlay_over_our_fuse_mount_is_the_image(tmp_path: Path) -> None:
    root, lower = tmp_path / "root", tmp_path / "lower"
    table = _table(
        tmp_path,
        f"{lower} ro - fuse.coldstart coldstart:{IMAGE} ro",
        f"{root} rw - overlay overlay rw,lowerdir={lower},upperdir=/up,workdir=/work",
    )
    assert detect_root(root, table) == RootSource(RootKind.IMAGE, lower, image=IMAGE, upper=Path("/up"))


def test_our_fuse_mount_itself_is_an_image_without_a_layer(tmp_path: Path) -> None:
    table = _table(tmp_path, f"{tmp_path} ro - fuse coldstart:{IMAGE} ro")
    assert detect_root(tmp_path, table) == RootSource(RootKind.IMAGE, tmp_path, image=IMAGE)


def test_escaped_separators_and_several_layers_are_read(tmp_path: Path) -> None:
    table = _table(
        tmp_path,
        f"{tmp_path} rw - overlay overlay rw,lowerdir=/top:/low\\134:er,upperdir=/u\\134\\054p,workdir=/w",
    )
    assert detect_root(tmp_path, table).path == Path("/low:er")


def test_the_last_mount_at_a_place_counts(tmp_path: Path) -> None:
    table = _table(
        tmp_path, f"{tmp_path} ro - fuse coldstart:{IMAGE} ro", f"{tmp_path} rw - tmpfs tmpfs rw,size=1k"
    )
    assert detect_root(tmp_path, table).kind is RootKind.FOLDER
