"""What a mount is asked becomes a trace: first access, each once, by the names that were used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.format.trace import Kind, Lookup, Read, Trace
from coldstart_fs.traces.coverage import Coverage
from coldstart_fs.traces.inode_paths import InodePaths, find_path
from coldstart_fs.traces.kept import KeptTraces
from coldstart_fs.traces.recorder import Recorder
from coldstart_fs.traces.recording import read_recording, trace_of
from conftest import wait_until
from fs.traces.conftest import PAGE, Small


def record(small: Small, path: Path, *, limit_seconds: float = 60) -> Recorder:
    return Recorder(path, image=small.digest, workload="start", limit_seconds=limit_seconds)


def made(small: Small, recorder: Recorder) -> Trace:
    recorder.close()
    trace = trace_of(read_recording(recorder.path), small.index)
    assert trace is not None
    return trace


def test_every_inode_has_a_path_that_leads_back_to_it(small: Small) -> None:
    paths = InodePaths(small.index)
    found = {number: paths.path(number) for number in range(small.index.inode_count)}
    assert {find_path(small.index, path): path for path in found.values()} == found
    assert found[small.number("lib/python")] == b"bin/alias"  # the first of its names
    with pytest.raises(DataError, match="no inode 999"):
        paths.path(999)


def test_reads_are_ranges_with_their_first_access_and_each_counts_once(small: Small, tmp_path: Path) -> None:
    recorder = record(small, tmp_path / "r")
    number = small.number("lib/python")
    for offset in (0, PAGE, 2 * PAGE, 0, PAGE):
        recorder.read(number, offset, PAGE)
    recorder.read(small.number("bin/run"), PAGE, PAGE)
    trace = made(small, recorder)
    # no name was looked up: the first of the tree stands for a file with several
    assert [(read.path, read.offset, read.length) for read in trace.reads] == [
        (b"bin/alias", 0, 3 * PAGE),
        (b"bin/run", PAGE, PAGE),
    ]
    assert trace.reads[0].seconds == 0.0
    assert (trace.runs, trace.partial_runs) == (1, 0)


def test_names_are_those_that_were_used_and_absent_ones_are_kept(small: Small, tmp_path: Path) -> None:
    recorder = record(small, tmp_path / "r")
    library, root = small.number("lib"), 0
    for directory, name in ((root, b"lib"), (library, b"python"), (root, b"\xff\n")):
        recorder.looked_up(directory, name)
    recorder.looked_up(library, b"absent.so")
    recorder.looked_up(library, b"absent.so")
    recorder.listed(small.number("lib/deep"))
    recorder.listed(root)
    recorder.link_read(small.number("lib/link"))
    recorder.read(small.number("lib/python"), 0, PAGE)
    trace = made(small, recorder)
    assert [read.path for read in trace.reads] == [b"lib/python"]
    assert {(lookup.path, lookup.kind) for lookup in trace.lookups} == {
        (b"lib", Kind.FOUND),
        (b"lib/python", Kind.FOUND),
        (b"lib/absent.so", Kind.MISSING),
        (b"\xff\n", Kind.MISSING),
        (b"lib/deep", Kind.LISTED),
        (b"/", Kind.LISTED),
        (b"lib/link", Kind.LINK),
    }


def test_the_questions_of_our_own_process_are_not_the_workloads(small: Small, tmp_path: Path) -> None:
    recorder = record(small, tmp_path / "r")
    recorder.ignore(77)
    recorder.looked_up(0, b"lib", pid=77)
    recorder.listed(0, pid=77)
    recorder.looked_up(0, b"bin", pid=78)
    recorder.ignore(-1)
    assert [lookup.path for lookup in made(small, recorder).lookups] == [b"bin"]


def test_after_its_time_nothing_is_recorded_any_more(small: Small, tmp_path: Path) -> None:
    recorder = record(small, tmp_path / "r", limit_seconds=0)
    recorder.read(small.number("bin/run"), 0, PAGE)
    wait_until(lambda: not recorder.is_open, "the end of the recording")
    recorder.read(small.number("lib/python"), 0, PAGE)
    assert [read.path for read in made(small, recorder).reads] == [b"bin/run"]


def test_a_recording_that_was_cut_off_gives_what_is_whole(small: Small, tmp_path: Path) -> None:
    recorder = record(small, tmp_path / "r")
    recorder.read(small.number("bin/run"), 0, PAGE)
    recorder.looked_up(0, b"a name that is cut")
    recorder.close()
    os.truncate(recorder.path, os.path.getsize(recorder.path) - 3)
    trace = trace_of(read_recording(recorder.path), small.index)
    assert trace is not None
    assert ([read.path for read in trace.reads], trace.lookups) == ([b"bin/run"], ())


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"no header", b'{"schema": "coldstart.recording"}\n', b"[]\n"]
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(DataError, match="not a recording"):
        read_recording(tmp_path / "r")


def test_a_recording_of_nothing_is_no_trace(small: Small, tmp_path: Path) -> None:
    recorder = record(small, tmp_path / "r")
    recorder.close()
    assert trace_of(read_recording(recorder.path), small.index) is None


def test_a_place_that_takes_no_recording_costs_nothing_else(small: Small, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    said: list[str] = []
    recorder = Recorder(
        tmp_path / "file" / "r", image=small.digest, workload="w", limit_seconds=9, log=said.append
    )
    recorder.read(1, 0, PAGE)
    recorder.close()
    assert "reads are not recorded" in said[0]


def test_what_a_killed_server_recorded_is_merged_by_the_next(small: Small, tmp_path: Path) -> None:
    kept = KeptTraces(tmp_path)
    recorder = record(small, kept.new_recording(small.digest))
    recorder.read(small.number("bin/run"), 0, PAGE)
    recorder.flush()
    said: list[str] = []
    assert kept.absorb_orphans(small.index, small.digest, said.append) == 0  # it still records
    recorder.close()
    kept.new_recording(small.digest).write_bytes(b"damaged")
    assert kept.absorb_orphans(small.index, small.digest, said.append) == 1
    assert [read.path for read in kept.load(small.digest, "start").reads] == [b"bin/run"]
    assert list((tmp_path / "traces" / "recordings").iterdir()) == []
    assert len(said) == 1
    assert "cannot be used and is removed" in said[0]


def test_a_successor_goes_on_in_the_same_recording(small: Small, tmp_path: Path) -> None:
    first = record(small, tmp_path / "r")
    first.read(small.number("bin/run"), 0, PAGE)
    first.close()
    second = record(small, tmp_path / "r")
    second.mark_partial()
    second.read(small.number("bin/run"), 0, 2 * PAGE)
    trace = made(small, second)
    assert sum(read.length for read in trace.reads) == 2 * PAGE
    assert (trace.runs, trace.partial_runs) == (0, 1)


def test_local_traces_are_listed_removed_and_a_damaged_one_is_named(small: Small, tmp_path: Path) -> None:
    kept = KeptTraces(tmp_path)
    assert kept.all() == []
    first = Trace(small.digest, "a", (Read(b"x", 0, 1, 0.0),), (Lookup(b"y", Kind.MISSING, 0.0),))
    kept.add(first)
    kept.add(first)
    kept.path(small.digest, "b").write_bytes(b"no trace")
    good, bad = kept.all()
    assert good.trace is not None
    assert (good.workload, good.trace.runs, good.problem) == ("a", 2, None)
    assert (bad.workload, bad.trace) == ("b", None)
    assert bad.problem is not None
    assert "not JSON" in bad.problem
    kept.remove(small.digest, "a")
    kept.remove(small.digest, "b")
    assert kept.all() == []


def test_coverage_tells_what_it_sees_and_none_where_the_kernel_hides_it() -> None:
    seen = Coverage(cache_only=True, replays=True)
    seen.prefetched(1, 0, 100)
    seen.demanded(1, 50, 150)
    seen.demanded(1, 50, 150)
    seen.demanded(2, 0, 10)
    report = seen.report()
    assert (report["prefetched_bytes"], report["used_bytes"], report["in_vain_bytes"]) == (100, 50, 50)
    assert (report["missed_bytes"], report["demanded_reads"]) == (60, 3)
    hidden = Coverage(replays=True)
    hidden.prefetched(1, 0, 100)
    hidden.demanded(1, 50, 150)
    report = hidden.report()
    assert (report["used_bytes"], report["in_vain_bytes"]) == (None, None)
    assert (report["missed_bytes"], report["asked_again_bytes"]) == (50, 50)


def test_recordings_of_images_that_nobody_mounts_any_more_go_in_the_end(small: Small, tmp_path: Path) -> None:
    kept = KeptTraces(tmp_path)
    old, new = (kept.new_recording(b"\x55" * 32) for _ in range(2))
    live = record(small, kept.new_recording(b"\x66" * 32))
    for path in (old, new, live.path):
        path.touch()
    for path in (old, live.path):
        os.utime(path, (0, 0))
    assert kept.absorb_orphans(small.index, small.digest, print) == 0
    assert {path.name for path in old.parent.iterdir()} == {new.name, live.path.name}
    live.close()
