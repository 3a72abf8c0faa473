"""What lint finds, in images that a real Python and hand-made layers give."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from coldstart_fs.indexing.build import index_image
from coldstart_fs.looking.findings import RULES, Finding
from coldstart_fs.looking.lint import LintReport, lint_image
from coldstart_fs.looking.opened import opened_image
from coldstart_fs.stores.store_url import open_store
from image_builder import Layer, write_layout

TAG = sys.implementation.cache_tag
SITE = f"usr/lib/python3.{sys.version_info.minor}/site-packages"
MAGIC = importlib.util.MAGIC_NUMBER


class Bench:
    """Images made of one layer or of a folder, and what lint says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()

    def lint(self, source: Layer | None = None, *, large_bytes: int = 1 << 30) -> LintReport:
        if source is not None:
            where = f"oci:{write_layout(self.folder / 'layout', [source]).folder}"
        else:
            where = f"dir:{self.root}"
        index_image(where, store=open_store(str(self.folder / "store"), create=True), name="image")
        with opened_image(
            "image", store_url=str(self.folder / "store"), cache=self.folder / "cache", tell=print
        ) as image:
            return lint_image(image.index, image.contents, large_bytes=large_bytes)

    def write(self, path: str, content: str = "A = 1\n", mtime_ns: int = 1_700_000_000_900_000_000) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        os.utime(file, ns=(mtime_ns, mtime_ns))
        return file


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def found(report: LintReport, code: str) -> list[str]:
    return [finding.path.decode() for finding in report.findings if finding.code == code]


def only(report: LintReport, code: str) -> Finding:
    (finding,) = (finding for finding in report.findings if finding.code == code)
    return finding


# --- byte code ---


def test_byte_code_that_python_just_made_is_in_order(bench: Bench) -> None:
    for number, mtime_ns in enumerate(
        (0, 1_700_000_000_999_999_999, 1_700_000_001_000_000_001, 5_000_000_000 * 10**9)
    ):
        py_compile.compile(str(bench.write(f"{SITE}/pack/m{number}.py", mtime_ns=mtime_ns)), doraise=True)
    bench.write(f"{SITE}/pack/empty.py", "")
    py_compile.compile(str(bench.root / SITE / "pack/empty.py"), doraise=True)
    assert bench.lint().findings == ()


def test_a_source_of_another_second_makes_its_byte_code_stale(bench: Bench) -> None:
    source = bench.write(f"{SITE}/pack/mod.py")
    py_compile.compile(str(source), doraise=True)
    os.utime(source, (1_700_000_001, 1_700_000_001))
    finding = only(bench.lint(), "stale-bytecode")
    assert finding.path.decode() == f"{SITE}/pack/__pycache__/mod.{TAG}.pyc"
    assert finding.detail == "made for a source of 2023-11-14T22:13:20Z, which is of 2023-11-14T22:13:21Z"
    assert finding.size_bytes == (bench.root / finding.path.decode()).stat().st_size


def test_what_lint_calls_stale_is_what_python_compiles_again(bench: Bench) -> None:
    fresh, stale = bench.write("app/fresh.py"), bench.write("app/stale.py")
    for source in (fresh, stale):
        py_compile.compile(str(source), doraise=True)
    os.utime(stale, (1_700_000_005, 1_700_000_005))
    said = subprocess.run(
        [sys.executable, "-B", "-v", "-c", "import fresh, stale"],
        env={"PYTHONPATH": str(bench.root / "app")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stderr
    assert f"matches {fresh}" in said
    assert "bytecode is stale for 'stale'" in said
    assert found(bench.lint(), "stale-bytecode") == [f"app/__pycache__/stale.{TAG}.pyc"]


def test_a_source_of_another_size_makes_its_byte_code_stale(bench: Bench) -> None:
    source = bench.write("app/mod.py", "A = 1\n")
    py_compile.compile(str(source), doraise=True)
    bench.write("app/mod.py", "A = 11\n")
    assert only(bench.lint(), "stale-bytecode").detail == "made for a source of 6 bytes, which has 7"


def test_a_source_behind_a_symlink_is_the_one_that_counts(bench: Bench) -> None:
    source = bench.write("usr/share/pack/mod.py")
    (bench.root / "app").mkdir()
    (bench.root / "app/mod.py").symlink_to("/usr/share/pack/mod.py")
    py_compile.compile(str(source), str(bench.root / f"app/__pycache__/mod.{TAG}.pyc"), doraise=True)
    assert bench.lint().findings == ()
    os.utime(source, (1, 1))
    assert found(bench.lint(), "stale-bytecode") == [f"app/__pycache__/mod.{TAG}.pyc"]


def test_byte_code_checked_by_hash_costs_a_hash_and_unchecked_is_never_stale(bench: Bench) -> None:
    mode = py_compile.PycInvalidationMode
    for name, how in (
        ("checked", mode.CHECKED_HASH),
        ("unchecked", mode.UNCHECKED_HASH),
        ("old", mode.CHECKED_HASH),
    ):
        py_compile.compile(str(bench.write(f"app/{name}.py")), doraise=True, invalidation_mode=how)
    bench.write("app/old.py", "A = 2\n")
    bench.write("app/unchecked.py", "A = 3\n")
    report = bench.lint()
    assert found(report, "hashed-bytecode") == [f"app/__pycache__/checked.{TAG}.pyc"]
    assert only(report, "stale-bytecode").path.decode() == f"app/__pycache__/old.{TAG}.pyc"
    assert only(report, "stale-bytecode").detail == "made for another source, by its hash"


def pyc(*fields: int, magic: bytes = MAGIC) -> bytes:
    return magic + struct.pack(f"<{len(fields)}I", *fields) + b"code"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (pyc(0, 100, 3), None),
        (pyc(0, 101, 3), "stale-bytecode"),
        (pyc(0, 100, 4), "stale-bytecode"),
        (pyc(8, 100, 3), "stale-bytecode"),
        (b"", "stale-bytecode"),
        (b"text\n" * 9, "stale-bytecode"),
        (MAGIC + b"\0" * 5, "stale-bytecode"),
        (pyc(100, 3, magic=b"\x17\x0d\r\n"), None),  # Python 3.5: no flags yet
        (pyc(100, 4, magic=b"\x17\x0d\r\n"), "stale-bytecode"),
        (pyc(100, magic=b"\x03\xf3\r\n"), None),  # Python 2.7: time alone
        (pyc(99, magic=b"\x03\xf3\r\n"), "stale-bytecode"),
    ],
)
def test_headers_of_all_kinds_are_told_apart(bench: Bench, content: bytes, code: str | None) -> None:
    layer = Layer().file("app/m.py", b"x\n\n", mtime=100).file("app/__pycache__/m.cpython-311.pyc", content)
    assert [finding.code for finding in bench.lint(layer).findings] == ([code] if code else [])


def test_byte_code_beside_its_source_is_read_by_python_2_only(bench: Bench) -> None:
    layer = Layer().file("app/three.py", b"x\n\n", mtime=100).file("app/three.pyc", pyc(0, 100, 3))
    layer.file("app/two.py", b"x\n\n", mtime=100).file("app/two.pyc", pyc(100, magic=b"\x03\xf3\r\n"))
    layer.file("app/old.py", b"x\n\n", mtime=100).file("app/old.pyc", pyc(0, 7, 3))
    layer.file("app/alone.pyc", pyc(0, 7, 3))  # without a source it is what Python imports
    report = bench.lint(layer)
    assert found(report, "unused-bytecode") == ["app/three.pyc"]
    assert found(report, "stale-bytecode") == ["app/old.pyc"]


def test_byte_code_whose_source_is_gone_is_unused(bench: Bench) -> None:
    report = bench.lint(Layer().file("app/__pycache__/gone.cpython-311.pyc", pyc(0, 1, 1)))
    assert only(report, "unused-bytecode").detail == "its source is not there"


def test_missing_byte_code_is_counted_by_package(bench: Bench) -> None:
    layer = Layer()
    for name in ("__init__", "a", "b"):
        layer.file(f"usr/lib/python3.11/site-packages/pack/{name}.py", b"12345", mtime=1)
    cache = "usr/lib/python3.11/site-packages/pack/__pycache__"
    layer.file(f"{cache}/a.cpython-311.pyc", pyc(0, 1, 5)).file(f"{cache}/b.cpython-310.pyc", pyc(0, 1, 5))
    layer.file("usr/lib/python3.11/site-packages/pack/sub/c.py", b"1")
    layer.file("usr/lib/python3.11/site-packages/pack/tests/d.py", b"1")
    layer.file("usr/lib/python3.11/site-packages/pack/not-a-module.py", b"1")
    layer.file("usr/lib/python3/dist-packages/single.py", b"1")
    layer.file("usr/lib/python3.11/json/decoder.py", b"12")
    layer.file("srv/app/script.py", b"1")
    missing = [finding for finding in bench.lint(layer).findings if finding.code == "missing-bytecode"]
    assert [
        (finding.path.decode(), finding.files, finding.size_bytes, finding.detail) for finding in missing
    ] == [
        ("usr/lib/python3.11/site-packages/pack", 3, 11, "3 of 4 modules"),
        ("usr/lib/python3.11/json", 1, 2, ""),
        ("usr/lib/python3/dist-packages/single.py", 1, 1, ""),
    ]


def test_python_2_keeps_byte_code_beside_its_source(bench: Bench) -> None:
    layer = Layer()
    for version in ("2.7", "3.11"):
        layer.file(f"usr/lib/python{version}/m.py", b"1", mtime=7)
    layer.file("usr/lib/python2.7/m.pyc", pyc(7, magic=b"\x03\xf3\r\n"))
    layer.file("usr/lib/python3.11/m.pyc", pyc(0, 7, 1))
    assert found(bench.lint(layer), "missing-bytecode") == ["usr/lib/python3.11/m.py"]


def test_optimised_byte_code_alone_is_none(bench: Bench) -> None:
    layer = Layer().file("opt/lib/python3.11/m.py", b"1", mtime=1)
    layer.file("opt/lib/python3.11/__pycache__/m.cpython-311.opt-1.pyc", pyc(0, 1, 1))
    assert found(bench.lint(layer), "missing-bytecode") == ["opt/lib/python3.11/m.py"]


def test_byte_code_that_cannot_be_read_is_said_and_hides_nothing_else(bench: Bench) -> None:
    layer = (
        Layer().file("app/m.py", b"x\n\n", mtime=100).file("app/__pycache__/m.cpython-311.pyc", pyc(0, 9, 3))
    )
    layer.file("bin/su", b"", mode=0o4777)
    bench.lint(layer)
    for pack in (bench.folder / "store/packs").rglob("*.pack"):
        pack.write_bytes(bytes(pack.stat().st_size))
    with opened_image(
        "image", store_url=str(bench.folder / "store"), cache=bench.folder, tell=print
    ) as image:
        report = lint_image(image.index, image.contents)
    assert [finding.code for finding in report.findings] == ["writable-setuid"]
    assert "1 files cannot be read: chunk cannot be used: blake3:" in report.problems[0]


# --- the rest ---


def test_programs_and_folders_that_anybody_may_write_to_are_found(bench: Bench) -> None:
    layer = (
        Layer().file("bin/su", b"12", mode=0o4757).file("bin/mail", mode=0o2777).file("bin/ok", mode=0o4755)
    )
    layer.file("bin/open", mode=0o777).folder("tmp", mode=0o1777).folder("data", mode=0o777)
    report = bench.lint(layer)
    assert found(report, "writable-setuid") == ["bin/su", "bin/mail"]
    assert only(report, "writable-directory").path == b"data"


def test_large_files_count_what_is_in_them_not_their_holes(bench: Bench) -> None:
    with (bench.root / "lastlog").open("wb") as stream:
        stream.truncate(300 << 30)
        stream.write(b"x")
    (bench.root / "weights").write_bytes(os.urandom(400_000))
    report = bench.lint(large_bytes=300_000)
    assert [(finding.path, finding.size_bytes) for finding in report.findings] == [(b"weights", 400_000)]


def test_equal_trees_are_found_once_at_their_top_whatever_their_modes(bench: Bench) -> None:
    layer = Layer()
    content = os.urandom(700_000)
    for top in ("opt/a", "srv/b", "srv/other"):
        mode = 0o600 if top == "opt/a" else 0o644
        layer.file(f"{top}/lib/x", content, mode=mode).file(f"{top}/lib/deep/y", content[:600_000], mode=mode)
        layer.symlink(f"{top}/lib/z", "x")
    layer.file("srv/other/lib/more", b"1")
    finding = only(bench.lint(layer), "duplicate-tree")
    # srv/other differs at its top, and not in lib/deep: that is below the size that counts
    assert (finding.path, finding.other_paths) == (b"opt/a", (b"srv/b",))
    assert (finding.size_bytes, finding.files, finding.detail) == (1_300_000, 2, "2 times")


def test_trees_of_hard_links_are_no_duplicates(bench: Bench) -> None:
    layer = Layer().file("a/x", os.urandom(1_100_000)).link("b/x", "a/x")
    assert bench.lint(layer).findings == ()


def test_a_tree_within_a_repeated_tree_is_reported_where_it_stands_alone_too(bench: Bench) -> None:
    layer = Layer()
    content = os.urandom(1_100_000)
    for top in ("one/lib", "two/lib", "three/more/lib"):
        layer.file(f"{top}/x", content)
    layer.file("three/more/other", b"1")
    report = bench.lint(layer)
    assert sorted(found(report, "duplicate-tree")) == ["one", "one/lib"]


def test_absolute_symlinks_to_nothing_are_found_and_those_filled_at_the_start_are_not(bench: Bench) -> None:
    layer = Layer().symlink("a", "/nowhere/x").symlink("b", "/proc/self/mounts").symlink("c", "nowhere")
    layer.symlink("d", "/run/x").symlink("e", "/etc").folder("etc").symlink("f", "/f")
    report = bench.lint(layer)
    assert [(finding.path, finding.other_paths) for finding in report.findings] == [
        (b"a", (b"nowhere/x",)),
        (b"f", (b"f",)),
    ]


def test_every_rule_says_what_it_costs_and_what_helps() -> None:
    for code, rule in RULES.items():
        assert code == code.lower()
        assert rule.meaning
        assert rule.cost
        assert rule.remedy


def test_devices_and_odd_names_disturb_nothing(bench: Bench) -> None:
    layer = Layer().add("dev/null", tarfile.CHRTYPE).file(b"usr/lib/python3.11/\xff.py", b"1")
    layer.file(b"usr/lib/python3.11/__pycache__/\xff.cpython-311.pyc", pyc(0, 5, 1))
    report = bench.lint(layer)
    assert [finding.code for finding in report.findings] == ["stale-bytecode"]
