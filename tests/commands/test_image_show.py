"""`coldstart image show` and `coldstart image index --lint` as they are typed."""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.names import digest_text
from coldstart_fs.stores.references import read_ref
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart, Result
from fs.servers import nginx
from image_builder import Layer, write_layout

STORE = "coldstart/state/store"
CONFIGURATION = {
    "Entrypoint": ["/usr/bin/python3", "a b.py"],
    "Cmd": ["--port", "1"],
    "Env": ["PATH=/bin", "TWO=x\ny"],
    "User": "app",
    "WorkingDir": "/srv",
}


def noise(seed: int, size_bytes: int = 200_000) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def index(coldstart: Coldstart, name: str, layer: Layer, *options: str, **layout: Any) -> Result:
    folder = coldstart.folder / f"layout-{name}"
    if not folder.exists():
        write_layout(folder, [layer], **layout)
    result = coldstart("image", "index", f"oci:{folder}", "--name", name, *options)
    assert result.status == 0, result.stderr
    return result


def show(coldstart: Coldstart, name: str, *options: str | Path) -> dict[str, Any]:
    result = coldstart("image", "show", name, "--json", *options)
    assert result.status == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def rows(result: Result) -> dict[str, str]:
    """Labelled lines of the answer; a label goes before its value, which begins at column 16."""
    lines = [line for line in result.stdout.splitlines() if line[:16].strip()]
    return {line[:16].strip(): line[16:] for line in lines}


def test_identity_configuration_and_sizes_are_shown(coldstart: Coldstart, tmp_path: Path) -> None:
    layer = Layer().folder("srv").file("srv/a", noise(1)).file("srv/b", noise(1)).link("srv/c", "srv/a")
    layer.file("usr/zeros", bytes(300_000)).symlink("usr/s", "zeros").add("null", tarfile.CHRTYPE)
    index(coldstart, "web", layer, config=CONFIGURATION)
    result = coldstart("image", "show", "web")
    assert (result.status, result.stderr) == (0, "")
    shown = rows(result)
    digest = read_ref(open_store(str(tmp_path / STORE)), "web").digest
    assert shown["image"] == f"web@{digest_text(digest)}"
    assert shown["platform"] == "linux/amd64"
    assert shown["entrypoint"] == "/usr/bin/python3 'a b.py'"
    assert shown["command"] == "--port 1"
    assert shown["environment"] == "PATH=/bin"
    assert "                TWO=x\\ny\n" in result.stdout
    assert (shown["user"], shown["working folder"]) == ("app", "/srv")
    assert shown["entries"] == (
        "8: 3 directories, 3 files, 1 symlink, 1 character device, 1 further hard link"
    )
    assert (shown["content"], shown["unique"], shown["repeated"], shown["zeros"]) == (
        *("700.0 kB", "200.0 kB", "200.0 kB", "300.0 kB"),
    )
    assert shown["stored"].startswith("200.0 kB in 1 pack; chunks: 2 ")
    assert shown["shared"] == "0 B"
    assert shown["only here"] == "200.0 kB; removing it frees 200.0 kB of the store"
    assert shown["largest files"].split() == ["300.0", "kB", "/usr/zeros"]
    assert shown["largest folders"].split() == ["400.0", "kB", "/srv"]


def test_json_has_the_same_and_every_byte_is_counted_once(coldstart: Coldstart, tmp_path: Path) -> None:
    layer = Layer().file("a", noise(1)).file("zeros", bytes(131_072 + 5)).file(b"\xff", b"x" * 7)
    index(coldstart, "web", layer, config=CONFIGURATION)
    document = show(coldstart, "web", "--top", "2")
    assert (document["schema"], document["version"]) == ("coldstart.image.show", 1)
    assert document["configuration"]["environment"] == CONFIGURATION["Env"]
    assert document["entries"] == {"directories": 1, "files": 3}
    assert document["content_bytes"] == 200_000 + 131_077 + 7
    assert document["zero_bytes"] == 131_077
    assert document["unique_bytes"] == 200_007
    assert document["repeated_bytes"] == 0
    assert document["stored_bytes"] == 200_007
    assert sum(document["chunks"].values()) == 3
    assert document["index_bytes"] == next((tmp_path / STORE / "images").iterdir()).stat().st_size
    assert document["largest_files"] == [
        {"path": "/a", "size_bytes": 200_000},
        {"path": "/zeros", "size_bytes": 131_077},
    ]
    assert show(coldstart, "web")["largest_files"][2] == {
        "path": "/\\xff",
        "escaped": ["path"],
        "size_bytes": 7,
    }
    assert show(coldstart, "web", "--top", "0")["largest_files"] == []


def test_what_other_images_have_too_is_shown_best_sharers_first(coldstart: Coldstart) -> None:
    parts = {number: noise(number, 100_000 * number) for number in (1, 2, 3, 4)}

    def made(*numbers: int) -> Layer:
        layer = Layer()
        for number in numbers:
            layer.file(f"f{number}", parts[number])
        return layer

    index(coldstart, "all", made(1, 2, 3))
    index(coldstart, "little", made(1, 4))
    index(coldstart, "much", made(1, 2))
    index(coldstart, "nothing", made(4))
    sharing = show(coldstart, "all")["sharing"]
    assert [(item["names"], item["size_bytes"]) for item in sharing["sharers"]] == [
        (["much"], 300_000),
        (["little"], 100_000),
    ]
    assert (sharing["images"], sharing["shared_bytes"]) == (3, 300_000)
    assert (sharing["only_here_bytes"], sharing["only_here_stored_bytes"]) == (300_000, 300_000)
    # its chunks came first, so they share a pack with those that others use
    assert sharing["whole_packs_bytes"] == 0
    shown = coldstart("image", "show", "all")
    assert rows(shown)["shared"] == "300.0 kB with the 3 other images of the store"
    assert rows(shown)["only here"] == (
        "300.0 kB; removing it frees 300.0 kB of the store, 0 B of it in packs of its own"
    )
    assert "and 1 image more" in coldstart("image", "show", "all", "--top", "1").stdout


def test_another_name_of_the_same_image_keeps_its_bytes(coldstart: Coldstart) -> None:
    index(coldstart, "web", Layer().file("a", noise(1)))
    folder = coldstart.folder / "layout-web"
    assert coldstart("image", "index", f"oci:{folder}", "--name", "copy").status == 0
    shown = rows(coldstart("image", "show", "web"))
    assert shown["also named"] == "copy"
    assert shown["only here"] == "200.0 kB; removing this name frees nothing: the image has others"
    assert show(coldstart, "web")["sharing"]["aliases"] == ["copy"]


def test_a_damaged_image_beside_it_is_a_warning_and_an_upper_bound(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    index(coldstart, "web", Layer().file("a", noise(1)))
    index(coldstart, "cut", Layer().file("b", noise(2)))
    index(coldstart, "ruined", Layer().file("c", noise(3)))
    store = open_store(str(tmp_path / STORE))
    cut = read_ref(store, "cut").digest.hex()
    (tmp_path / STORE / f"locators/{cut}.locator").write_bytes(b"damaged")
    (tmp_path / STORE / "refs/ruined").write_text("damaged")
    result = coldstart("image", "show", "web")
    assert result.status == 0
    assert "image `cut` cannot be compared: " in result.stderr
    assert "image `ruined` cannot be compared: image name is damaged" in result.stderr
    assert rows(result)["only here"].startswith("at most 200.0 kB; removing it frees at most 200.0 kB")
    assert len(show(coldstart, "web")["sharing"]["problems"]) == 2


def test_an_image_asked_for_by_digest_has_no_date(coldstart: Coldstart, tmp_path: Path) -> None:
    index(coldstart, "web", Layer().file("a", b"1"))
    digest = digest_text(read_ref(open_store(str(tmp_path / STORE)), "web").digest)
    document = show(coldstart, digest)
    assert (document["created"], document["sharing"]["aliases"]) == (None, ["web"])
    assert "removing this name frees nothing" in coldstart("image", "show", digest).stdout


def test_a_store_that_cannot_be_listed_is_looked_at_all_the_same(
    coldstart: Coldstart, tmp_path: Path
) -> None:
    index(coldstart, "web", ugly())
    index(coldstart, "other", Layer().file("a", b"1"))
    with nginx(tmp_path / "nginx", tmp_path / STORE) as server:
        result = coldstart("image", "show", "web", "--store", server.url, "--lint")
        assert (result.status, result.stderr) == (0, "")
        assert rows(result)["shared"].startswith("unknown: store cannot be listed over HTTP")
        assert "    /app/__pycache__/m.cpython-311.pyc (it is not byte code" in result.stdout
        document = show(coldstart, "web", "--store", server.url)
        assert document["sharing"] is None
        assert "cannot be listed" in document["sharing_unknown"]
        listed = coldstart("image", "ls", "web", "/bin", "--store", server.url)
        assert (listed.status, listed.stdout.split()[-1]) == (0, "su")
        assert coldstart("image", "diff", "web", "web", "--other-store", server.url).status == 0


@pytest.mark.parametrize("folder", ["images", "locators"])
def test_a_damaged_image_is_said(coldstart: Coldstart, tmp_path: Path, folder: str) -> None:
    index(coldstart, "web", Layer().file("a", b"1"))
    (path,) = (tmp_path / STORE / folder).iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    result = coldstart("image", "show", "web")
    assert (result.status, result.stdout) == (65, "")
    assert "is damaged" in result.stderr


def test_a_configuration_of_wrong_types_is_said(coldstart: Coldstart, tmp_path: Path) -> None:
    index(coldstart, "web", Layer().file("a", b"1"), config={"Cmd": ["abcdefgh"]})
    (path,) = (tmp_path / STORE / "images").iterdir()
    content = path.read_bytes().replace(b'["abcdefgh"]', b'{"abcdef":1}')
    digest = chunk_digest(content)
    (path.parent / f"{digest.hex()}.index").write_bytes(content)
    (locator,) = (tmp_path / STORE / "locators").iterdir()
    locator.rename(locator.parent / f"{digest.hex()}.locator")
    result = coldstart("image", "show", digest_text(digest))
    assert result.status == 65
    assert "`command` is not a list of texts" in result.stderr


# --- lint ---


def ugly() -> Layer:
    layer = Layer().file("bin/su", b"12", mode=0o4777).file("big", noise(1))
    for number in range(8):
        layer.file(f"usr/lib/python3.11/m{number}.py", b"x")
    return layer.file("app/m.py", b"x", mtime=9).file("app/__pycache__/m.cpython-311.pyc", b"?")


def test_lint_is_in_the_report_of_an_indexing_and_fails_nothing(coldstart: Coldstart) -> None:
    result = index(coldstart, "web", ugly(), "--lint", "--large-bytes", "150000")
    paragraphs = [line.split(" (")[0] for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert paragraphs[-4:] == [
        "writable-setuid: set-user-ID or set-group-ID programs that everybody may write to",
        "stale-bytecode: byte code that does not match its source",
        "missing-bytecode: modules of installed packages without byte code",
        "large-file: very large files",
    ]
    assert "    /bin/su (mode 4777, 2 B)\n" in result.stdout
    assert "    and 3 places more\n" in result.stdout
    assert "  remedy: " in result.stdout


def test_lint_of_an_image_in_the_store_lists_everything_in_json(coldstart: Coldstart) -> None:
    index(coldstart, "web", ugly())
    document = show(coldstart, "web", "--lint")
    assert [(item["code"], item["path"]) for item in document["lint"]] == [
        ("writable-setuid", "/bin/su"),
        ("stale-bytecode", "/app/__pycache__/m.cpython-311.pyc"),
        *(("missing-bytecode", f"/usr/lib/python3.11/m{number}.py") for number in range(8)),
    ]
    assert document["lint_problems"] == []
    assert {"code", "path", "detail", "files", "size_bytes", "cost", "remedy"} == set(document["lint"][0])
    assert "lint" not in show(coldstart, "web")
    folder = coldstart.folder / "layout-web"
    again = coldstart("image", "index", f"oci:{folder}", "--name", "web", "--lint", "--json")
    assert json.loads(again.stdout)["lint"] == document["lint"]


def test_a_clean_image_says_so(coldstart: Coldstart) -> None:
    result = index(coldstart, "web", Layer().file("a", b"1"), "--lint")
    assert rows(result)["lint"] == "nothing found"


def test_lint_without_writing_is_refused_with_a_way(coldstart: Coldstart) -> None:
    write_layout(coldstart.folder / "layout", [Layer().file("a", b"1")])
    result = coldstart("image", "index", "oci:layout", "--name", "web", "--lint", "--dry-run")
    assert result.status == 2
    assert "`coldstart image show NAME --lint`" in result.stderr


def test_a_file_of_the_root_is_no_folder(coldstart: Coldstart, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [Layer().file("su", b"x" * 9000).file("usr/bin/a", b"a" * 10)])
    assert coldstart("image", "index", "oci:layout", "--name", "web").status == 0
    document = json.loads(coldstart("image", "show", "web", "--json").stdout)
    assert document["largest_directories"] == [{"path": "/usr", "size_bytes": 10}]
