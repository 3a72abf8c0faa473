"""What constructors of a library refer to is brought before they run."""

from __future__ import annotations

import platform
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coldstart_fs.foresight.code import addresses_taken, function_ranges
from coldstart_fs.foresight.elf import HEAD_BYTES, Linking
from fs.mounts import CHUNK_BYTES, Lab
from fs.servers import FaultyServer

# a table far from code, in the same segment, whose address a constructor hands on; nobody mentions the other
_SOURCE = """
__attribute__((used, section(".text.table"))) static const char table[{size}] = {{1}};
__attribute__((used, section(".text.unused"))) static const char unused[{size}] = {{1}};
const void *registered[2];
void hand_on(const void *);
static void called(void) {{ registered[1] = registered[0]; }}
__attribute__((constructor)) static void begin(void) {{
  hand_on(table + {middle});
  hand_on((void *) called);
}}
__attribute__((noinline)) void hand_on(const void *place) {{ registered[0] = place; }}
"""
# together more than what is brought whole
_SIZE = 40 * CHUNK_BYTES


@pytest.fixture
def library(tmp_path: Path) -> bytes:
    compiler = shutil.which("gcc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("no gcc for x86-64 here")
    source, made = tmp_path / "made.c", tmp_path / "libmade.so"
    source.write_text(_SOURCE.format(size=_SIZE, middle=_SIZE // 2))
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-z,noseparate-code", "-o", made, source]
    done = subprocess.run(command, check=False, timeout=120, capture_output=True)
    assert not done.returncode, done.stderr
    content = bytearray(made.read_bytes())
    for name in (b"table", b"unused"):  # as code is: no two chunks alike, and none of zeros
        begin = symbols(made)[name.decode()]
        content[begin : begin + _SIZE] = random.Random(name).randbytes(_SIZE)
    return bytes(content)


def symbols(library: Path) -> dict[str, int]:
    program = shutil.which("readelf")
    if program is None:
        pytest.skip("readelf is not installed")
    said = subprocess.run([program, "-sW", library], capture_output=True, text=True, timeout=60, check=True)
    return {name: int(value, 16) for value, name in re.findall(r"(\w{16}) .* (\w+)\n", said.stdout)}


def test_addresses_that_constructors_take_are_found_in_their_code(library: bytes, tmp_path: Path) -> None:
    where = symbols(tmp_path / "libmade.so")
    linking = Linking(library[:HEAD_BYTES], lambda offset, length: library[offset : offset + length])
    assert linking.is_x86_64
    taken = {
        place
        for begin, length in function_ranges(linking.constructors(), 1 << 20)
        for place in addresses_taken(library[begin : begin + length], begin)
    }
    assert {where["table"] + _SIZE // 2, where["called"]} <= taken
    first, end = linking.segment_around(where["begin"])
    assert first <= where["table"] < where["table"] + _SIZE <= end < len(library)
    assert linking.segment_around(1 << 40) == (1 << 40, 1 << 40)


def test_functions_end_where_the_next_one_begins_and_are_read_within_a_bound() -> None:
    assert function_ranges([100, 40, 60, 60, 9000], 1 << 20) == [(40, 4156), (9000, 4096)]
    assert function_ranges([0, 10_000, 20_000], 5000) == [(0, 4096), (10_000, 904)]
    assert function_ranges([], 5000) == []


def test_what_a_constructor_refers_to_is_there_before_anybody_asks(
    library: bytes, tmp_path: Path, lab: Lab, faulty: FaultyServer
) -> None:
    where = symbols(tmp_path / "libmade.so")
    lab.image(library=library)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url)
    with lab.first_page(record, "library") as stream:
        lab.wait_until_brought(
            record,
            lambda counters: counters["read_ahead"]["foreseen_bytes"] >= 2 * CHUNK_BYTES,
            "what the constructor refers to is brought",
        )
        asked = len(faulty.requests)
        stream.seek(where["table"] + _SIZE // 2)
        assert stream.read(4096) == library[stream.tell() - 4096 : stream.tell()]
        assert len(faulty.requests) == asked
        stream.seek(where["unused"] + _SIZE // 2)
        stream.read(4096)
        assert len(faulty.requests) > asked
