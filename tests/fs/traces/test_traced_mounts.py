"""Mounts that record what is read of them, and mounts that replay it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.files import mounts_below
from coldstart_fs.format.trace import Kind, Read, Trace, encode_trace
from coldstart_fs.mounts import prepared
from coldstart_fs.mounts.mount import replace_mount, unmount
from coldstart_fs.mounts.records import MountRecord
from coldstart_fs.mounts.server_records import read_counters
from coldstart_fs.stores.store_url import open_store
from coldstart_fs.traces.kept import KeptTraces
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.options import TraceOptions
from coldstart_fs.traces.published import publish_trace, published_trace
from conftest import wait_until
from fs.mounts import Lab
from fs.servers import FaultyServer

LARGE = 3 << 20


@pytest.fixture
def image(lab: Lab) -> bytes:
    tree = lab.tree(large=os.urandom(LARGE), small=b"small\n", unread=os.urandom(500_000))
    (tree / "package").mkdir()
    for number in range(20):
        (tree / "package" / f"m{number}").write_bytes(b"%d" % number * 100)
    (tree / "link").symlink_to("small")
    return lab.index(tree)


def options(lab: Lab, **changes: Any) -> TraceOptions:
    values: dict[str, Any] = {"state_folder": str(lab.folder / "state"), "workload": "start"}
    return TraceOptions(**(values | changes))


def traced(lab: Lab, **changes: Any) -> MountRecord:
    return lab.mount(traces=options(lab, **changes))


def start(record: MountRecord) -> None:
    """What a program does when it starts."""
    point = record.mountpoint
    for name in ("absent.so", "package/absent.py"):
        assert not (point / name).exists()
    assert os.readlink(point / "link") == "small"
    assert (point / "small").read_bytes() == b"small\n"
    for number in range(0, 20, 2):
        assert (point / "package" / f"m{number}").read_bytes() == b"%d" % number * 100
    with (point / "large").open("rb") as stream:
        assert len(stream.read()) == LARGE


def tracing(lab: Lab, record: MountRecord) -> dict[str, Any]:
    found: dict[str, Any] = read_counters(record.server_folder).get("trace", {})
    return found


def replayed(lab: Lab, record: MountRecord, state: str = "done") -> dict[str, Any]:
    """The counters once the replay has ended."""
    wait_until(
        lambda: ((tracing(lab, record)).get("replay") or {}).get("state") == state,
        f"the end of the replay: {tracing(lab, record)}",
    )
    return tracing(lab, record)


def kept(lab: Lab, image: bytes) -> Trace:
    return KeptTraces(lab.folder / "state").load(image, "start")


def test_a_mount_records_what_is_read_and_looked_up(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    trace = kept(lab, image)
    sizes: dict[bytes, int] = {}
    for read in trace.reads:
        sizes[read.path] = sizes.get(read.path, 0) + read.length
    assert sizes[b"large"] == LARGE
    assert {b"small", b"package/m0", b"package/m18"} < sizes.keys()
    assert not {b"unread", b"package/m1"} & sizes.keys()
    looked_up = {(lookup.path, lookup.kind) for lookup in trace.lookups}
    assert {
        (b"absent.so", Kind.MISSING),
        (b"package/absent.py", Kind.MISSING),
        (b"link", Kind.LINK),
    } <= looked_up
    assert (trace.runs, trace.partial_runs) == (1, 0)


def test_all_of_a_file_that_is_read_backwards_is_recorded(lab: Lab, faulty: FaultyServer) -> None:
    content = random.Random(3).randbytes(24 << 20)
    image = lab.image(large=content)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url, traces=options(lab))
    step = 128 << 10
    with (record.mountpoint / "large").open("rb", buffering=0) as stream:
        for offset in range(len(content) - step, -1, -step):
            assert os.pread(stream.fileno(), step, offset) == content[offset : offset + step]
    lab.unmount(record)
    spans = sorted((read.offset, read.offset + read.length) for read in kept(lab, image).reads)
    assert (spans[0][0], max(end for _, end in spans)) == (0, len(content))
    assert all(begin <= end for (_, end), (begin, _) in pairwise(spans))


def test_what_of_a_library_was_in_memory_before_it_was_asked_for_is_recorded(
    lab: Lab, faulty: FaultyServer
) -> None:
    library = next(Path("/usr/lib").glob("*-linux-gnu/libstdc++.so.6.*"), Path("/bin/bash"))
    content = library.read_bytes()
    digest = lab.index(lab.tree(library=content))
    faulty.root = lab.store
    record = lab.mount(store=faulty.url, traces=options(lab))
    with lab.first_page(record, "library") as stream:
        wait_until(
            lambda: lab.counters(record)["read_ahead"]["pushed_bytes"] > len(content) // 2,
            "most of the library is in memory",
        )
        stream.seek(0)
        assert stream.read() == content
    lab.unmount(record)
    reads = [read for read in kept(lab, digest).reads if read.path == b"library"]
    assert sum(read.length for read in reads) == len(content)


def test_after_a_replay_no_read_of_a_traced_range_reaches_the_server(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    known = kept(lab, image)
    # a kernel that is short of memory, or reclaims idle pages by itself as DAMON does, may forget some: again
    for attempt in range(4):
        record = traced(lab)
        replay = replayed(lab, record)["replay"]
        assert replay["primed"] is True
        assert (replay["pushed_bytes"], replay["refused_bytes"]) == (known.size_bytes, 0)
        start(record)
        assert not (record.mountpoint / f"never{attempt}").exists()
        lab.unmount(record)
        trace = kept(lab, image)
        # what the primer asked is no question of the workload's, and what it asked nobody asked again
        new = {(lookup.path, lookup.kind) for lookup in set(trace.lookups) - set(known.lookups)}
        expected = (b"never%d" % attempt, Kind.MISSING)
        assert expected in new
        again = (set(trace.reads) - set(known.reads), new - {expected})
        if again == (set(), set()):
            return
        KeptTraces(lab.folder / "state").replace(known)
    pytest.fail(f"ranges were read, or names looked up, again: {again}")


def test_a_new_version_of_an_image_replays_what_the_earlier_one_read(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    tree = lab.folder / "trees" / "image"
    (tree / "small").write_bytes(b"other\n")
    (tree / "package" / "m0").unlink()
    (tree / "new").write_bytes(b"new\n")
    newer = lab.index(tree)
    assert newer != image
    record = traced(lab)
    found = replayed(lab, record)
    assert found["earlier_image"] == f"blake3:{image.hex()}"
    assert found["replay"]["pushed_bytes"] >= LARGE
    assert (record.mountpoint / "new").read_bytes() == b"new\n"
    assert (record.mountpoint / "small").read_bytes() == b"other\n"
    lab.unmount(record)
    # what the replay brought and the recording did not see stays known, and what it saw is added
    paths = {read.path for read in kept(lab, newer).reads}
    assert {b"large", b"package/m2", b"new"} <= paths
    assert b"package/m0" not in paths
    record = traced(lab)
    assert replayed(lab, record)["earlier_image"] is None


def test_of_earlier_traces_the_one_that_fits_most_is_replayed(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    # newer, and of an image that shares one small file
    lab.image("another", small=b"small\n", other=b"other\n")
    record = lab.mount(name="another", traces=options(lab))
    assert (record.mountpoint / "small").read_bytes() == b"small\n"
    lab.unmount(record)
    folder = lab.folder / "state" / "traces"
    for number in range(10):
        (folder / f"{number:064x}").mkdir()
        (folder / f"{number:064x}" / "start.trace").write_bytes(b"no trace")
    tree = lab.folder / "trees" / "image"
    (tree / "new").write_bytes(b"new\n")
    lab.index(tree)
    record = traced(lab)
    assert replayed(lab, record)["earlier_image"] == f"blake3:{image.hex()}"


def test_a_path_of_any_depth_in_an_earlier_trace_is_passed_over(lab: Lab, image: bytes) -> None:
    deep = b"/".join([b"a"] * 30_000)
    reads = (Read(b"large", 0, LARGE, 0.1, 1), Read(deep, 0, 1, 0.2, 1))
    KeptTraces(lab.folder / "state").replace(Trace(b"e" * 32, "start", reads, (), 1, 0))
    found = replayed(lab, traced(lab))
    assert found["earlier_image"] == f"blake3:{(b'e' * 32).hex()}"
    assert found["replay"]["pushed_bytes"] == LARGE


def test_another_image_is_no_earlier_version(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    lab.image(small=b"small\n", other=os.urandom(LARGE))
    record = traced(lab)
    (record.mountpoint / "other").read_bytes()
    wait_until(lambda: tracing(lab, record).get("recording") == "on", "reads are recorded")
    assert tracing(lab, record)["replay"] is None
    lab.unmount(record)


def test_a_damaged_trace_of_an_earlier_version_is_passed_over(lab: Lab, image: bytes) -> None:
    folder = lab.folder / "state" / "traces" / ("ab" * 32)
    folder.mkdir(parents=True)
    (folder / "start.trace").write_bytes(b"no trace")
    record = traced(lab)
    start(record)
    lab.unmount(record)
    assert kept(lab, image).runs == 1


_SLOW_PRIMER = "import os, sys, time; os.chdir(sys.argv[1]); open(sys.argv[0] + '.pid', 'w'); time.sleep(60)"


def test_the_primer_of_a_replay_is_no_user_of_the_mount(
    lab: Lab, image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    slow = lab.folder / "primer.py"
    slow.write_text(_SLOW_PRIMER)
    script = (
        f"import sys\nfrom coldstart_fs.traces import primer\nprimer.__file__ = {str(slow)!r}\n"
        "from coldstart_fs.mounts.keeping import main\nsys.exit(main())"
    )
    monkeypatch.setattr(prepared, "_PROGRAM", ("-P", "-c", script))
    record = traced(lab)
    wait_until((lab.folder / "primer.py.pid").exists, "a primer that stands in the mount")
    began = time.monotonic()
    assert not unmount(record.mountpoint, run_folder=lab.run).in_use
    assert time.monotonic() - began < 30
    assert mounts_below(record.server_folder) == []
    assert not record.server_lives()


def test_what_a_replay_missed_is_read_as_ever_and_added_to_the_trace(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    record = traced(lab)
    replayed(lab, record)
    start(record)
    assert (record.mountpoint / "unread").read_bytes()
    wait_until(lambda: tracing(lab, record)["coverage"]["missed_bytes"] == 500_000, "the missed bytes")
    coverage = tracing(lab, record)["coverage"]
    # the kernel answers from pushed pages without asking: nobody can say what of them was used
    assert (coverage["used_bytes"], coverage["in_vain_bytes"]) == (None, None)
    lab.unmount(record)
    trace = kept(lab, image)
    assert {b"large", b"unread"} <= {read.path for read in trace.reads}
    assert (trace.runs, trace.partial_runs) == (1, 1)


def test_an_audit_replays_into_the_local_cache_and_sees_what_was_used(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    (record.mountpoint / "unread").read_bytes()
    lab.unmount(record)
    record = traced(lab, replay=Mode.CACHE)
    replayed(lab, record)
    start(record)
    traced_bytes = kept(lab, image).size_bytes
    wait_until(
        lambda: tracing(lab, record)["coverage"]["used_bytes"] == traced_bytes - 500_000, "the used bytes"
    )
    coverage = tracing(lab, record)["coverage"]
    assert (coverage["in_vain_bytes"], coverage["missed_bytes"]) == (500_000, 0)
    lab.unmount(record)
    trace = kept(lab, image)
    assert (trace.runs, trace.partial_runs) == (2, 0)
    assert {read.runs for read in trace.reads if read.path == b"unread"} == {1}
    assert {read.runs for read in trace.reads if read.path == b"large"} == {2}


def test_after_many_partial_recordings_a_mount_audits_by_itself(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    traces = KeptTraces(lab.folder / "state")
    traces.add(Trace(image, "start", (), (), runs=0, partial_runs=5))
    record = traced(lab, audit_every=5)
    assert replayed(lab, record)["replay"]["mode"] == "cache"
    lab.unmount(record)
    record = traced(lab, audit_every=6)
    assert replayed(lab, record)["replay"]["mode"] == "pages"


def test_a_replay_fills_no_more_page_cache_than_it_may(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    record = traced(lab, memory_percent=0.0)
    status = replayed(lab, record)["replay"]
    assert (status["budget_bytes"], status["pushed_bytes"]) == (0, 0)
    start(record)
    assert lab.counters(record)["store_chunks"] >= 0
    lab.unmount(record)


@pytest.mark.parametrize("content", [b"no trace", None])
def test_a_trace_that_cannot_be_replayed_costs_nothing_but_a_line_in_the_log(
    lab: Lab, image: bytes, tmp_path: Path, content: bytes | None
) -> None:
    del image
    other = encode_trace(Trace(b"\x55" * 32, "start", ()))
    (tmp_path / "t").write_bytes(other if content is None else content)
    record = traced(lab, file=str(tmp_path / "t"))
    start(record)
    wait_until(lambda: "trace is not replayed: " in lab.log(record), "the line in the log")
    wanted = "trace is of another image" if content is None else "trace is not JSON"
    wait_until(lambda: wanted in (tracing(lab, record).get("problem") or ""), "the problem in the counters")


def test_a_workload_has_a_trace_of_its_own_and_an_untraced_mount_leaves_none(lab: Lab, image: bytes) -> None:
    for changes in ({"workload": "other"}, {"record": False}):
        record = traced(lab, **changes)
        start(record)
        lab.unmount(record)
    found = KeptTraces(lab.folder / "state").of(image)
    assert [trace.workload for trace in found] == ["other"]


def test_recordings_are_published_when_that_is_configured_and_replayed_elsewhere(
    lab: Lab, image: bytes
) -> None:
    record = traced(lab, publish=True)
    start(record)
    lab.unmount(record)
    published = published_trace(open_store(str(lab.store)), image, "start")
    assert published == kept(lab, image)
    record = traced(lab, state_folder=str(lab.folder / "another-host"))
    assert replayed(lab, record)["replay"]["pushed_bytes"] == published.size_bytes
    publish_trace(open_store(str(lab.store)), published)  # once more changes nothing
    assert published_trace(open_store(str(lab.store)), image, "start") == published


def test_a_damaged_kept_trace_is_told_and_recorded_anew(lab: Lab, image: bytes) -> None:
    path = KeptTraces(lab.folder / "state").path(image, "start")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x1f\x8b damaged")
    record = traced(lab)
    start(record)
    assert "trace cannot be used: trace is damaged" in lab.log(record)
    lab.unmount(record)
    assert kept(lab, image).runs == 1


def test_a_replay_under_an_overlay_serves_those_who_read_through_it(lab: Lab, image: bytes) -> None:
    overlay = lab.folder / "overlay"
    record = lab.mount(traces=options(lab), overlay=overlay)
    start(record)
    lab.unmount(record)
    record = lab.mount(traces=options(lab), overlay=overlay)
    replayed(lab, record)
    start(record)
    lab.unmount(record)
    assert kept(lab, image).runs == 1


def test_a_killed_server_loses_no_recording(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    (record.mountpoint / "small").read_bytes()
    wait_until(lambda: tracing(lab, record)["coverage"]["demanded_reads"] == 1, "the first read")
    before = record.server_pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: record.server_pid not in {0, before}, "the next server")
    assert (record.mountpoint / "unread").read_bytes()
    lab.unmount(record)
    trace = kept(lab, image)
    assert {read.path for read in trace.reads} == {b"small", b"unread"}
    assert (trace.runs, trace.partial_runs) == (1, 0)
    assert list((lab.folder / "state" / "traces" / "recordings").iterdir()) == []


def test_a_new_server_for_a_mount_neither_replays_nor_records_anew(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    (record.mountpoint / "small").read_bytes()
    replaced = replace_mount(lab.request(traces=options(lab)))
    assert (replaced.mountpoint / "unread").read_bytes()
    lab.unmount(replaced)
    trace = kept(lab, image)
    assert b"small" in {read.path for read in trace.reads}
    assert trace.runs + trace.partial_runs == 1


def test_mounts_of_one_workload_share_a_server_and_others_do_not(lab: Lab, image: bytes) -> None:
    del image
    first, second = traced(lab), lab.mount("second", traces=options(lab))
    third = lab.mount("third", traces=options(lab, workload="other"))
    assert first.server_pid == second.server_pid
    assert third.server_pid != first.server_pid


def test_a_state_folder_that_takes_nothing_costs_only_the_recording(lab: Lab, image: bytes) -> None:
    del image
    (lab.folder / "file").write_bytes(b"")
    record = traced(lab, state_folder=str(lab.folder / "file"))
    start(record)
    assert "reads are not recorded" in lab.log(record)
    lab.unmount(record)


def test_on_a_mount_that_stays_the_trace_is_there_when_its_recording_has_ended(
    lab: Lab, image: bytes
) -> None:
    record = traced(lab, limit_seconds=0.0, publish=True)
    (record.mountpoint / "small").read_bytes()
    path = KeptTraces(lab.folder / "state").path(image, "start")
    wait_until(path.exists, "the trace of a recording that has ended")
    wait_until(lambda: tracing(lab, record)["recording"] == "ended", "the end of the recording")
    assert {read.path for read in kept(lab, image).reads} == {b"small"}
    (record.mountpoint / "unread").read_bytes()
    lab.unmount(record)
    assert {read.path for read in kept(lab, image).reads} == {b"small"}
    assert published_trace(open_store(str(lab.store)), image, "start") == kept(lab, image)


def test_a_mount_that_ends_while_it_replays_ends_at_once_and_keeps_its_trace(lab: Lab, image: bytes) -> None:
    record = traced(lab)
    start(record)
    lab.unmount(record)
    known = kept(lab, image)
    for _ in range(3):
        record = traced(lab)
        assert not (record.mountpoint / "nothing").exists()
        lab.unmount(record)
    assert set(known.reads) <= {replace(read, runs=1) for read in kept(lab, image).reads}
    assert not list((lab.folder / "state" / "traces" / "recordings").iterdir())


def test_readers_who_are_faster_than_the_replay_get_right_bytes(lab: Lab) -> None:
    contents = {f"f{number}": os.urandom((number % 5) * 700_000 + 3 * number + 1) for number in range(24)}
    image = lab.image(**contents)
    reads = tuple(
        Read(name.encode(), 0, len(content), number / 100)
        for number, (name, content) in enumerate(contents.items())
    )
    KeptTraces(lab.folder / "state").add(Trace(image, "start", reads))

    def differs(point: Path, name: str) -> bool:
        return (point / name).read_bytes() != contents[name]

    for _ in range(3):
        record = traced(lab, record=False)
        # from the end and from the middle: some before the replay, some in it, some after it
        names = [*reversed(contents), *contents]
        with ThreadPoolExecutor(4) as readers:
            wrong = [
                name
                for name, bad in zip(
                    names, readers.map(partial(differs, record.mountpoint), names), strict=True
                )
                if bad
            ]
        assert wrong == []
        replayed(lab, record)
        with ThreadPoolExecutor(4) as readers:
            assert not any(readers.map(partial(differs, record.mountpoint), names))
        lab.unmount(record)
        shutil.rmtree(lab.cache, ignore_errors=True)
