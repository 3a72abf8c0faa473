"""Folders of root that another user could change are refused, and no link below one is followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import ConfigError
from coldstart_cli.own_folders import (
    files_beneath,
    open_folder_beneath,
    open_own_beneath,
    require_own_folder,
)

OTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused other people's folders")


@as_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_root_refuses_a_folder_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chown(folder, 0, OTHER)
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=r"`cache_dir`.*may be written to") as caught:
        require_own_folder(folder, "cache_dir")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("chmod ")
    folder.chmod(0o755)
    assert require_own_folder(folder, "cache_dir") == folder


@as_root
@pytest.mark.parametrize("below", ["", "new", "new/newer"])
def test_root_refuses_a_folder_of_another_user_and_what_lies_below_it(tmp_path: Path, below: str) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o755)
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(ConfigError, match=f"belongs to uid {OTHER}"):
        require_own_folder(folder / below, "run_dir")


@as_root
def test_a_link_is_refused_where_another_user_could_change_it_or_where_it_leads(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    (theirs / "link").symlink_to(ours)
    (tmp_path / "there").symlink_to("theirs/link")
    assert require_own_folder(tmp_path / "there", "run_dir") == tmp_path / "there"
    theirs.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{theirs} may be written to by every user"):
        require_own_folder(tmp_path / "there", "run_dir")
    theirs.chmod(0o1777)
    require_own_folder(tmp_path / "there", "run_dir")
    os.lchown(theirs / "link", OTHER, OTHER)
    with pytest.raises(ConfigError, match=f"{theirs / 'link'} belongs to uid {OTHER}"):
        require_own_folder(tmp_path / "there", "run_dir")


@as_root
def test_a_folder_of_our_own_below_a_sticky_one_is_fine_and_so_is_a_new_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "ours").mkdir()
    require_own_folder(tmp_path / "ours", "cache_dir")
    require_own_folder(tmp_path / "new" / "newer", "cache_dir")


@as_root
def test_other_users_than_root_use_what_they_can(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    folder.chmod(0o777)
    os.seteuid(OTHER)
    try:
        require_own_folder(folder, "cache_dir")
    finally:
        os.seteuid(0)


@as_root
@pytest.mark.parametrize("key", ["state_dir", "cache_dir", "run_dir"])
def test_the_folders_of_the_configuration_are_looked_at_when_they_are_used(tmp_path: Path, key: str) -> None:
    tmp_path.chmod(0o777)
    config = load({key: str(tmp_path)})
    with pytest.raises(ConfigError, match=f"choose another|{key}"):
        _ = getattr(config, key.replace("_dir", "_folder"))


def test_no_link_is_followed_below_a_folder(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    (elsewhere / "sub").mkdir(parents=True)
    (elsewhere / "file").write_text("content")
    folder.mkdir()
    (folder / "sub").symlink_to(elsewhere)
    (folder / "file").symlink_to(elsewhere / "file")
    for relative in (Path("sub/file"), Path("file"), Path("sub/new"), Path("sub/sub/new")):
        with pytest.raises(OSError, match="a link, which is not followed"):
            open_own_beneath(folder, relative, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    with pytest.raises(OSError, match="a link, which is not followed"):
        open_folder_beneath(folder, Path("sub/sub/new"), create=True)
    assert files_beneath(folder, "*/file") == files_beneath(folder, "file") == []
    assert (elsewhere / "file").read_text() == "content"
    assert sorted(os.listdir(elsewhere)) == ["file", "sub"]
    assert os.listdir(elsewhere / "sub") == []


def test_what_is_ours_is_opened_and_made_for_us_alone(tmp_path: Path) -> None:
    os.close(open_folder_beneath(tmp_path, Path("one/two"), create=True))
    os.close(open_own_beneath(tmp_path, Path("one/two/file"), os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "one/two/file").stat().st_mode & 0o777 == 0o600
    assert files_beneath(tmp_path, "*/*/file") == [tmp_path / "one/two/file"]
