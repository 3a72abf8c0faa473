"""Trace documents: what is written comes back, bytes of names included; what cannot be one is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart_cli.errors import DataError, NotFoundError, UsageError
from coldstart_fs.format.trace import (
    Kind,
    Lookup,
    Read,
    Trace,
    decode_trace,
    encode_trace,
    load_trace,
)

IMAGE = b"\x12" * 32
GOOD: dict[str, Any] = {
    "schema": "coldstart.trace",
    "version": 1,
    "image": "blake3:" + "12" * 32,
    "workload": "start",
    "reads": [{"path": "/usr/bin/python3", "offset": 0, "length": 4096, "seconds": 0.25}],
}
PATHS = st.binary(min_size=1).filter(lambda path: b"\0" not in path)
NUMBERS = st.integers(0, (1 << 63) - 1)
COUNTS = st.integers(1, (1 << 63) - 1)
READS = st.builds(Read, PATHS, NUMBERS, NUMBERS, st.floats(0, 1e11), COUNTS)
LOOKUPS = st.builds(Lookup, PATHS, st.sampled_from(Kind), st.floats(0, 1e11), COUNTS)
TRACES = st.builds(
    Trace,
    st.just(IMAGE),
    st.text(),
    st.lists(READS).map(tuple),
    st.lists(LOOKUPS).map(tuple),
    NUMBERS,
    NUMBERS,
)


@given(TRACES)
def test_any_trace_comes_back_with_every_byte_of_its_paths(trace: Trace) -> None:
    document = encode_trace(trace)
    assert document.isascii()
    assert decode_trace(document, "t") == trace
    assert decode_trace(encode_trace(trace, compressed=True), "t") == trace


def test_a_trace_of_the_first_version_is_one_run_without_lookups() -> None:
    trace = decode_trace(json.dumps(GOOD).encode(), "t")
    assert (trace.runs, trace.partial_runs, trace.lookups) == (1, 0, ())
    assert trace.reads == (Read(b"/usr/bin/python3", 0, 4096, 0.25, 1),)


@pytest.mark.parametrize(
    ("lookup", "message"),
    [
        ({"kind": "asked"}, r"lookups\[0\]\.kind is none of found, missing, listed, link"),
        ({"path": ""}, r"lookups\[0\]\.path is not a path"),
        ({"runs": 0}, r"lookups\[0\]\.runs is not a number from 1"),
        ({"runs": True}, r"lookups\[0\]\.runs is not a number"),
    ],
)
def test_a_malformed_lookup_is_refused_with_the_field(lookup: dict[str, Any], message: str) -> None:
    good = {"path": "a", "kind": "found", "seconds": 0.5, "runs": 1}
    document = GOOD | {"version": 2, "reads": [], "runs": 1, "partial_runs": 0}
    assert decode_trace(json.dumps(document | {"lookups": [good]}).encode(), "t").lookups
    with pytest.raises(DataError, match=message):
        decode_trace(json.dumps(document | {"lookups": [good | lookup]}).encode(), "t")


def test_a_compressed_trace_that_was_cut_short_or_damaged_is_refused() -> None:
    content = encode_trace(Trace(IMAGE, "w", (Read(b"a", 0, 1, 0.0),)), compressed=True)
    with pytest.raises(DataError, match="trace is damaged: t: it is cut short"):
        decode_trace(content[:-3], "t")
    with pytest.raises(DataError, match="trace is damaged: t: it cannot be decompressed"):
        decode_trace(content[:10] + b"\xff" * 60, "t")


def test_reads_are_ordered_by_time_and_then_as_they_stand() -> None:
    reads = tuple(Read(b"/%d" % number, 0, 1, seconds) for number, seconds in enumerate((2.0, 0.5, 2.0, 0.0)))
    assert [read.path for read in Trace(IMAGE, "", reads).in_time()] == [b"/3", b"/1", b"/0", b"/2"]


def test_keys_of_a_later_minor_are_passed_over() -> None:
    document = GOOD | {"misses": ["/x"], "reads": [GOOD["reads"][0] | {"kind": "mmap"}]}
    assert len(decode_trace(json.dumps(document).encode(), "t").reads) == 1


def changed(**fields: Any) -> dict[str, Any]:
    return GOOD | {"reads": [GOOD["reads"][0], GOOD["reads"][0] | fields]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"{", "trace is not JSON: t"),
        (b"\xff\xfe", "trace is not JSON: t"),
        (b"[" * 100_000, "trace is not JSON: t"),
        ([], "not a coldstart.trace document: t"),
        (GOOD | {"schema": "coldstart.plan"}, "not a coldstart.trace document: t"),
        (GOOD | {"version": True}, "trace is malformed: t: version is not a number from 0"),
        (GOOD | {"image": "sha256:12"}, "trace is malformed: t: image is not a digest"),
        (GOOD | {"image": None}, "trace is malformed: t: image is not a text"),
        (GOOD | {"workload": 5}, "trace is malformed: t: workload is not a text"),
        (GOOD | {"reads": {}}, "trace is malformed: t: reads is not a list"),
        (GOOD | {"reads": [1]}, r"trace is malformed: t: reads\[0\] is not an object"),
        (changed(path=""), r"t: reads\[1\]\.path is not a path"),
        (changed(path="a\0b"), r"t: reads\[1\]\.path is not a path"),
        (changed(path=None), r"t: reads\[1\]\.path is not a text"),
        (changed(path="\ud800"), r"t: reads\[1\]\.path holds a surrogate"),
        (changed(offset=-1), r"t: reads\[1\]\.offset is not a number from 0"),
        (changed(length=1.5), r"t: reads\[1\]\.length is not a number from 0"),
        (changed(length=1 << 70), r"t: reads\[1\]\.length is not a number from 0"),
        (changed(seconds="1"), r"t: reads\[1\]\.seconds is not a time"),
        (changed(seconds=float("nan")), r"t: reads\[1\]\.seconds is not a time"),
        (changed(seconds=-0.5), r"t: reads\[1\]\.seconds is not a time"),
    ],
)
def test_what_is_malformed_is_refused_with_the_field(document: Any, message: str) -> None:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(DataError, match=message):
        decode_trace(content, "t")


def test_a_newer_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"trace has version 3, coldstart .* reads up to 2: t") as caught:
        decode_trace(json.dumps(GOOD | {"version": 3, "reads": "other"}).encode(), "t")
    assert caught.value.hint == "install a newer coldstart"


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="trace does not exist: "):
        load_trace(tmp_path / "none")
    (tmp_path / "t").write_text(json.dumps(GOOD))
    assert load_trace(tmp_path / "t").workload == "start"


def test_bytes_that_several_ranges_have_in_common_count_once() -> None:
    reads = (
        Read(b"/etc/passwd", 0, 3000, 0.1),
        Read(b"etc/passwd", 1000, 500, 0.2),
        Read(b"etc/passwd", 2000, 2000, 0.3),
        Read(b"other", 0, 10, 0.1),
    )
    assert Trace(IMAGE, "w", reads).size_bytes == 4010


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=f"trace is not a regular file: {pipe}"):
        load_trace(pipe)
