"""`coldstart image trace` and traced mounts, as people and scripts meet them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coldstart_fs.format.names import parse_digest
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace, encode_trace, load_trace
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.traces.kept import KeptTraces
from conftest import Coldstart, Result, wait_until
from image_desk import Desk

OTHER = b"\x44" * 32


@pytest.fixture
def images(coldstart: Coldstart, tmp_path: Path) -> bytes:
    """A configured store with two builds of an image, `app` and `app:2`; the digest of the first."""
    tree = tmp_path / "tree"
    (tree / "lib").mkdir(parents=True)
    (tree / "lib" / "code").write_bytes(b"c" * 300_000)
    (tree / "lib" / "data").write_bytes(b"d" * 100_000)
    store = open_store(str(tmp_path / "store"), create=True)
    digest = index_image(f"dir:{tree}", store=store, name="app").digest
    (tree / "lib" / "data").unlink()
    (tree / "lib" / "absent").write_bytes(b"")
    index_image(f"dir:{tree}", store=store, name="app:2")
    coldstart.environment["COLDSTART_STORE"] = str(tmp_path / "store")
    return digest


def known(image: bytes, workload: str = "default") -> Trace:
    reads = (Read(b"lib/code", 0, 300_000, 0.1, 2), Read(b"lib/data", 0, 100_000, 1.5, 1))
    lookups = (Lookup(b"lib/absent", Kind.MISSING, 0.05, 2), Lookup(b"lib", Kind.LISTED, 0.02, 1))
    return Trace(image, workload, reads, lookups, runs=2, partial_runs=3)


@pytest.fixture
def trace(images: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "t.trace"
    path.write_bytes(encode_trace(known(images)))
    return path


def kept() -> KeptTraces:
    return KeptTraces(Path(os.environ["COLDSTART_STATE_DIR"]))


def document(result: Result, schema: str) -> dict[str, Any]:
    assert result.status == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["schema"], found["version"]) == (f"coldstart.image.trace.{schema}", 1)
    return found


def test_show_tells_totals_timeline_and_biggest_files(
    coldstart: Coldstart, trace: Path, images: bytes
) -> None:
    done = coldstart("image", "trace", "show", trace, "--top", "1")
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"image           blake3:{images.hex()}",
        "workload        default",
        f"from            {trace}",
        "recordings      2 + 3 partial",
        "reads           400.0 kB in 2 ranges of 2 files",
        "lookups         0 found, 1 missing, 1 listed, 0 link",
        "time            1.50 s from the first request to the last new one",
        "timeline           0.00 s        0 B       2 lookups",
        "                   0.10 s   300.0 kB       0 lookups  ########################################",
        "                   1.50 s   100.0 kB       0 lookups  #############",
        "biggest files    300.0 kB     0.10 s  /lib/code",
    ]
    found = document(coldstart("image", "trace", "show", trace, "--json"), "show")
    assert (found["size_bytes"], found["runs"], found["partial_runs"]) == (400_000, 2, 3)
    assert found["biggest"][0] == {
        "path": "lib/code",
        "size_bytes": 300_000,
        "ranges": 1,
        "seconds": 0.1,
        "runs": 2,
    }
    assert found["lookups"] == {"found": 0, "missing": 1, "listed": 1, "link": 0}


def test_an_image_without_a_trace_is_told_how_to_get_one(coldstart: Coldstart, images: bytes) -> None:
    del images
    done = coldstart("image", "trace", "show", "app", "--workload", "ocr")
    assert done.status == 66
    assert "no trace of image app, workload `ocr`" in done.stderr
    assert "--workload ocr" in done.stderr.splitlines()[-1]
    assert coldstart("image", "trace", "show", "app", "--workload", "a/b").status == 2
    assert coldstart("image", "trace", "show", "./absent.trace").status == 66
    assert coldstart("image", "trace", "show", "nowhere").status == 66


def test_merge_writes_the_union_plain_or_compressed(
    coldstart: Coldstart, images: bytes, trace: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(encode_trace(Trace(images, "x", (Read(b"lib/code", 0, 300_000, 0.05),))))
    output = tmp_path / "merged.gz"
    rehearsed = coldstart("image", "trace", "merge", trace, other, "-o", output, "--dry-run")
    assert rehearsed.status == 0, rehearsed.stderr
    assert not output.exists()
    found = document(coldstart("image", "trace", "merge", trace, other, "-o", output, "--json"), "merge")
    assert (found["runs"], found["size_bytes"]) == (3, 400_000)
    assert gzip.decompress(output.read_bytes()).startswith(b'{"schema":"coldstart.trace","version":2')
    assert load_trace(output).reads[0] == Read(b"lib/code", 0, 300_000, 0.05, 3)
    assert coldstart("image", "trace", "merge", trace, trace, "-o", output).status == 2


def test_traces_of_two_images_merge_only_for_an_image(
    coldstart: Coldstart, trace: Path, tmp_path: Path
) -> None:
    other, output = tmp_path / "other", tmp_path / "out"
    other.write_bytes(encode_trace(known(OTHER)))
    refused = coldstart("image", "trace", "merge", trace, other, "-o", output)
    assert refused.status == 2
    assert "traces are of different images" in refused.stderr
    assert not output.exists()
    done = coldstart("image", "trace", "merge", trace, other, "-o", output, "--image", "app:2")
    assert done.status == 0, done.stderr
    assert "200,000 traced bytes are not in the image" in done.stderr
    merged = load_trace(output)
    # what was absent then is there now, and what was there is gone
    assert merged.reads == (Read(b"lib/code", 0, 300_000, 0.1, 4),)
    assert [lookup.kind for lookup in merged.lookups] == [Kind.LISTED]
    assert coldstart("image", "trace", "push", "app:2", "--trace", output).status == 0


def test_check_answers_no_with_what_is_gone(coldstart: Coldstart, trace: Path) -> None:
    fits = document(coldstart("image", "trace", "check", "app", trace, "--json"), "check")
    assert (fits["fits"], fits["same_image"], fits["coverage"]) == (True, True, 1.0)
    stale = coldstart("image", "trace", "check", "app:2", trace)
    assert stale.status == 3
    assert "gone             100.0 kB  /lib/data" in stale.stdout
    assert "trace does not fit app:2: 75.0% of its bytes are there, not 90%" in stale.stderr
    enough = coldstart("image", "trace", "check", "app:2", trace, "--least", "75")
    assert enough.status == 0, enough.stderr
    assert "--image app:2" in enough.stderr
    assert coldstart("image", "trace", "check", "app:2", trace, "--json").status == 3


def test_traces_are_pushed_listed_copied_and_removed(
    coldstart: Coldstart, images: bytes, trace: Path, tmp_path: Path
) -> None:
    nothing = coldstart("image", "trace", "push", "app")
    assert nothing.status == 66
    assert "nothing was recorded of image app" in nothing.stderr
    kept().add(known(images))
    for arguments in (("app",), ("app",), ("app", "--workload", "other", "--trace", trace)):
        done = coldstart("image", "trace", "push", *arguments)
        assert done.status == 0, done.stderr
    listed = document(coldstart("image", "trace", "list", "--json"), "list")["traces"]
    assert [(item["name"], item["workload"], item["place"]) for item in listed] == [
        ("app", "default", "host"),
        ("app", "default", "store"),
        ("app", "other", "store"),
    ]
    assert listed[0]["trace"] == listed[1]["trace"]  # pushed twice, counted once
    table = coldstart("image", "trace", "list", "app").stdout.splitlines()
    assert table[1].split()[:4] == ["app", f"blake3:{images.hex()[:12]}", "default", "host"]
    wrong = coldstart("image", "trace", "push", "app:2", "--trace", trace)
    assert wrong.status == 65
    assert "trace merge" in wrong.stderr
    copied = coldstart("image", "copy", "app", tmp_path / "copy")
    assert "traces          2\n" in copied.stdout
    there = document(coldstart("image", "trace", "list", "--store", tmp_path / "copy", "--json"), "list")
    assert [item["place"] for item in there["traces"]] == ["host", "store", "store"]
    assert coldstart("image", "trace", "remove", "app", "--dry-run").status == 0
    for arguments in (("app",), (f"blake3:{images.hex()}", "--published"), ("app", "--workload", "other")):
        removed = coldstart("image", "trace", "remove", *arguments)
        assert removed.status == (66 if "other" in arguments else 0), removed.stderr
    left = document(coldstart("image", "trace", "list", "--json"), "list")["traces"]
    assert [(item["workload"], item["place"]) for item in left] == [("other", "store")]


def test_a_damaged_trace_is_named_and_hides_no_other(
    coldstart: Coldstart, images: bytes, tmp_path: Path
) -> None:
    kept().add(known(images))
    kept().path(images, "bad").write_bytes(b"{}")
    done = coldstart("image", "trace", "list")
    assert done.status == 0
    assert "not a coldstart.trace document" in done.stderr
    assert len(done.stdout.splitlines()) == 3
    (tmp_path / "f").write_bytes(b"{}")
    assert coldstart("image", "trace", "show", tmp_path / "f").status == 65


def test_a_traced_mount_says_at_status_and_at_its_end_what_it_replayed(desk: Desk) -> None:
    assert desk.mount("--detach", "--workload", "start").status == 0
    (desk.point / "large").read_bytes()
    assert desk.unmount().status == 0
    image = parse_digest(desk.digest)
    assert kept().load(image, "start").size_bytes == 700_000
    assert desk.mount("--detach", "--workload", "start").status == 0
    line = "trace `start` replayed: 700.0 kB of 700.0 kB into the page cache, 0 B missed"
    wait_until(
        lambda: f"{desk.point}: {line}" in desk.run("image", "status").stdout, "the replay in the status"
    )
    ended = desk.unmount()
    assert line in ended.stderr


def test_a_trace_of_another_image_is_no_reason_not_to_mount(desk: Desk) -> None:
    foreign = desk.folder / "foreign"
    foreign.write_bytes(encode_trace(known(OTHER)))
    assert desk.mount("--detach", "--trace", foreign).status == 0
    assert (desk.point / "hello").read_bytes() == b"hello world\n"
    wait_until(
        lambda: "trace is not replayed: trace is of another image" in desk.run("image", "status").stdout,
        "the reason in the status",
    )


def test_wrong_settings_are_refused_before_anything_is_mounted(desk: Desk) -> None:
    assert desk.mount("--detach", "--trace", "x", "--no-trace").status == 2
    assert desk.mount("--detach", "--workload", "../x").status == 2
    refused = desk.mount("--detach", "--replay", "everywhere")
    assert refused.status == 78
    assert "image.trace_replay" in refused.stderr
    assert "pages, cache, off" in refused.stderr


def test_record_runs_a_program_on_a_mount_of_its_own(desk: Desk) -> None:
    record = ("image", "trace", "record", "app/server", "--store", desk.store, "--workload", "ci")
    assert desk.run(*record, "--dry-run", "--", "cat", "{}/large").status == 0
    done = desk.run(*record, "--json", "--", "cat", "{}/hello", "{}/large")
    found = document(done, "record")
    assert (found["size_bytes"], found["files"], found["runs"]) == (700_012, 2, 1)
    assert done.stderr.startswith("hello world")
    again = desk.run(*record, "--writable", "--", "sh", "-c", "cat {}/hello; echo new > {}/file")
    assert again.status == 0, again.stderr
    assert "recordings: 2" in again.stdout
    failed = desk.run(*record, "--", "cat", "{}/large", "{}/absent")
    assert failed.status == 1
    assert "cat failed (status 1)" in failed.stderr
    nothing = desk.run(*record, "--", "true")
    assert nothing.status == 1
    assert "nothing of the image was read by: true" in nothing.stderr
    assert kept().load(parse_digest(desk.digest), "ci").runs == 2
    assert desk.run("image", "status").stdout == "no image is mounted\n"
