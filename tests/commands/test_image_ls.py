"""`coldstart image ls` as it is typed."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.index import DIRENT, HEADER, Index
from coldstart_fs.format.names import digest_text
from conftest import Coldstart, Result
from image_builder import Layer, write_layout


def make_images(coldstart: Coldstart, tmp_path: Path) -> None:
    for name in ("beta", "alpha/one"):
        root = tmp_path / name.replace("/", "-")
        root.mkdir()
        (root / name[0]).write_text(name)
        assert coldstart("image", "index", f"dir:{root}", "--name", name).status == 0


def test_names_are_listed_in_order(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    result = coldstart("image", "ls")
    assert result.status == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["NAME", "IMAGE", "ENTRIES", "CONTENT", "CREATED"]
    assert [line.split()[0] for line in lines[1:]] == ["alpha/one", "beta"]


def test_json_has_whole_digests(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    document = json.loads(coldstart("image", "ls", "--json").stdout)
    assert (document["schema"], document["version"]) == ("coldstart.image.ls", 1)
    first = document["images"][0]
    assert (first["name"], first["entries"], first["content_bytes"]) == ("alpha/one", 2, 9)
    assert len(first["digest"]) == len("blake3:") + 64


def test_a_damaged_image_does_not_hide_the_others(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    store = tmp_path / "coldstart/state/store"
    (store / "refs/beta").write_text("damaged")
    result = coldstart("image", "ls")
    assert result.status == 0
    assert "alpha/one" in result.stdout
    assert "image `beta` cannot be read" in result.stderr


def test_an_absent_store_is_said(coldstart: Coldstart) -> None:
    result = coldstart("image", "ls")
    assert result.status == 66
    assert "there is no image store" in result.stderr


@pytest.fixture
def image(coldstart: Coldstart, tmp_path: Path) -> Coldstart:
    """The image `web` with one of everything that a listing shows."""
    layer = Layer()
    layer.folder("srv", mtime=86400.25).file("srv/app.py", b"x" * 300, mode=0o640, uid=7, gid=8)
    layer.link("srv/same.py", "srv/app.py").symlink("srv/absolute", "/usr/bin").symlink("srv/up", "../srv")
    layer.symlink("srv/dangling", "/nowhere").symlink("srv/loop", "loop")
    layer.folder("usr").folder("usr/bin").file("usr/bin/tool", b"t", mode=0o4755)
    layer.add("srv/zero", tarfile.CHRTYPE, devmajor=1, devminor=5)
    layer.file("usr/bin/cap", xattrs={"user.note": b"\x00\xff"})
    layer.file(b"srv/odd/\xff\\name\n", b"1").symlink("srv/link to odd", b"odd/\xfe")
    write_layout(tmp_path / "layout", [layer])
    assert coldstart("image", "index", f"oci:{tmp_path / 'layout'}", "--name", "web").status == 0
    return coldstart


def names(result: Result) -> list[str]:
    return [line.split(maxsplit=7)[7] for line in result.stdout.splitlines()[1:]]


def test_a_folder_of_an_image_is_listed_as_ls_does(image: Coldstart) -> None:
    result = image("image", "ls", "web", "/srv")
    assert result.status == 0
    lines = {line.split(maxsplit=7)[7]: line.split()[:7] for line in result.stdout.splitlines()[1:]}
    assert lines["app.py"] == ["-rw-r-----", "2", "7", "8", "300", "1970-01-01", "00:00:00"]
    assert lines["absolute -> /usr/bin"][0] == "lrwxrwxrwx"
    assert "zero" in result.stdout
    assert "1, 5" in result.stdout
    assert lines["odd"][0] == "drwxr-xr-x"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/absolute", ["cap", "tool"]),  # a symlink to a folder is followed, inside the image
        ("srv/up/absolute/", ["cap", "tool"]),
        ("/../../usr/bin", ["cap", "tool"]),
        ("/srv/up/app.py", ["/srv/app.py"]),
        ("/srv/dangling", ["/srv/dangling -> /nowhere"]),
        ("/srv/loop", ["/srv/loop -> loop"]),
        ("/srv/absolute/tool", ["/usr/bin/tool"]),
    ],
)
def test_symlinks_are_resolved_inside_the_image(image: Coldstart, path: str, expected: list[str]) -> None:
    result = image("image", "ls", "web", path)
    assert (result.status, names(result)) == (0, expected)


def test_modes_beyond_permissions_and_xattrs_are_visible(image: Coldstart) -> None:
    result = image("image", "ls", "web", "/usr/bin")
    assert "-rwsr-xr-x" in result.stdout
    assert "-rw-r--r--+" in result.stdout


def test_recursive_lists_every_name_by_its_path(image: Coldstart) -> None:
    result = image("image", "ls", "web", "/usr", "--recursive")
    assert names(result) == ["/usr/bin", "/usr/bin/cap", "/usr/bin/tool"]
    assert len(names(image("image", "ls", "web", "-R"))) == 15


def test_a_terminal_sees_no_raw_bytes_and_json_loses_none(image: Coldstart) -> None:
    shown = image("image", "ls", "web", "/srv/odd").stdout
    assert shown.splitlines()[1].endswith(r"\xff\\name\n")
    document = json.loads(image("image", "ls", "web", "/srv", "--recursive", "--json").stdout)
    assert (document["schema"], document["version"]) == ("coldstart.image.ls.entries", 1)
    entries = {entry["path"]: entry for entry in document["entries"]}
    odd = entries["/srv/odd/\\xff\\\\name\n"]
    assert odd["escaped"] == ["path"]
    assert entries["/srv/link to odd"]["target"] == "odd/\\xfe"
    assert entries["/srv/link to odd"]["escaped"] == ["target"]
    assert "escaped" not in entries["/srv/app.py"]
    assert entries["/srv/app.py"] | {"inode": 0} == {
        "path": "/srv/app.py",
        "type": "file",
        "mode": "0640",
        "links": 2,
        "uid": 7,
        "gid": 8,
        "size_bytes": 300,
        "modified": "1970-01-01T00:00:00Z",
        "inode": 0,
    }
    assert entries["/srv/same.py"]["inode"] == entries["/srv/app.py"]["inode"]
    assert entries["/srv/zero"]["device"] == [1, 5]


def test_json_gives_nanoseconds_and_names_of_xattrs(image: Coldstart) -> None:
    document = json.loads(image("image", "ls", "web", "/", "--json").stdout)
    assert {entry["path"]: entry["modified"] for entry in document["entries"]}["/srv"] == (
        "1970-01-02T00:00:00.250000000Z"
    )
    document = json.loads(image("image", "ls", "web", "/usr/bin", "--json").stdout)
    assert document["entries"][0]["xattrs"] == [{"name": "user.note"}]


def test_a_file_named_by_its_bytes_is_found(image: Coldstart) -> None:
    result = image("image", "ls", "web", os.fsdecode(b"/srv/odd/\xff\\name\n"))
    assert (result.status, names(result)) == (0, [r"/srv/odd/\xff\\name\n"])


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("/srv/ap.py", "path is not in image web: /srv/ap.py", "did you mean `/srv/app.py`"),
        ("/srv/xxxxxx", "path is not in image web: /srv/xxxxxx", " web /srv"),
        ("/srv/app.py/x", "not a directory in image web: /srv/app.py", ""),
        ("/srv/app.py/", "not a directory in image web: /srv/app.py", ""),
        ("/srv/dangling/", "path is not in image web: /nowhere", " web /"),
        ("/srv/loop/", "symlinks go in circles in image web: /srv/loop", ""),
    ],
)
def test_a_path_that_is_not_there_is_said_with_what_is_near(
    image: Coldstart, path: str, message: str, hint: str
) -> None:
    result = image("image", "ls", "web", path)
    assert result.status == 66
    assert f"coldstart: error: {message}\n" in result.stderr
    assert hint in result.stderr
    assert result.stdout == ""


def test_what_is_below_an_unnamed_image_cannot_be_listed(coldstart: Coldstart) -> None:
    result = coldstart("image", "ls", "--recursive")
    assert result.status == 2
    assert "needs the name of an image" in result.stderr


def test_an_image_without_its_locator_is_still_listed(image: Coldstart, tmp_path: Path) -> None:
    for path in (tmp_path / "coldstart/state/store/locators").iterdir():
        path.unlink()
    assert image("image", "ls", "web", "/usr/bin/tool").status == 0


def test_a_directory_that_contains_itself_is_refused(image: Coldstart, tmp_path: Path) -> None:
    store = tmp_path / "coldstart/state/store"
    (path,) = (store / "images").iterdir()
    content = bytearray(path.read_bytes())
    with Index.open(path) as index:
        root = list(index.entries(0))
        first = index.inode(0).first
        dirents = HEADER.unpack_from(content)[12]
    position = dirents + (first + len(root) - 1) * DIRENT.size
    offset, length, kind, _ = DIRENT.unpack_from(content, position)
    DIRENT.pack_into(content, position, offset, length, kind, 0)
    digest = chunk_digest(content)
    (store / f"images/{digest.hex()}.index").write_bytes(content)
    result = image("image", "ls", digest_text(digest), "--recursive", timeout_seconds=30)
    assert result.status == 65
    assert "is not below directory" in result.stderr


def test_a_backslash_in_a_name_is_told_from_an_escaped_byte(coldstart: Coldstart, tmp_path: Path) -> None:
    layer = Layer().file(b"a\\x41").file(b"b\xff").symlink("c", b"\\x41\x1b[31m")
    write_layout(tmp_path / "layout", [layer])
    assert coldstart("image", "index", f"oci:{tmp_path / 'layout'}", "--name", "web").status == 0
    assert names(coldstart("image", "ls", "web")) == [r"a\\x41", r"b\xff", r"c -> \\x41\x1b[31m"]


def test_the_command_line_cannot_speak_to_the_terminal(coldstart: Coldstart) -> None:
    result = coldstart("image", "ls", "--color", "always", "--store", "\x1b[31mred\nline", "name")
    assert result.status == 66
    assert r"\x1b[31mred\nline" in result.stderr
    assert "\x1b[31mred" not in result.stderr


def test_who_else_can_change_the_store_is_told(coldstart: Coldstart, tmp_path: Path) -> None:
    make_images(coldstart, tmp_path)
    store = tmp_path / "coldstart/state/store"
    store.chmod(0o777)
    for command in (
        ["ls"],
        ["ls", "beta"],
        ["show", "beta"],
        ["index", f"dir:{tmp_path}/beta", "--name", "beta"],
    ):
        result = coldstart("image", *command)
        assert result.status == 0
        assert f"every user of this host can change the image store: {store}" in result.stderr
