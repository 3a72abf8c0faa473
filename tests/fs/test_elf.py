"""What of a library its first page foretells."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coldstart_fs.foresight.elf import HEAD_BYTES, Linking, loader_ranges
from conftest import wait_until
from fs.mounts import CHUNK_BYTES, Lab
from fs.servers import FaultyServer

LIBRARIES = sorted(Path("/usr/lib").glob("*-linux-gnu/libstdc++.so.6.*")) or [Path("/bin/bash")]


def test_tables_and_data_are_foreseen_and_code_is_not() -> None:
    path = LIBRARIES[0]
    said = told_by_readelf("-lW", path)
    loads = re.findall(r"LOAD +(0x\w+) 0x\w+ 0x\w+ (0x\w+) 0x\w+ (R?)( ?)(W? ?)(E?)", said)
    assert loads, said
    wanted = [
        (int(offset, 16), int(size, 16))
        for offset, size, _, _, write, execute in loads
        if write.strip() or (not execute and not int(offset, 16))
    ]
    assert loader_ranges(path.read_bytes()[:HEAD_BYTES], path.stat().st_size) == wanted


@pytest.mark.parametrize("head", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(4000)])
def test_other_files_foretell_nothing(head: bytes) -> None:
    assert loader_ranges(head, 1 << 30) == []


def test_a_header_that_lies_leads_nowhere() -> None:
    head = bytearray(LIBRARIES[0].read_bytes()[:HEAD_BYTES])
    head[32:40] = (1 << 60).to_bytes(8, "little")
    assert loader_ranges(bytes(head), 1 << 30) == []
    head = bytearray(LIBRARIES[0].read_bytes()[:HEAD_BYTES])
    assert all(offset + length <= 5000 for offset, length in loader_ranges(bytes(head), 5000))


def test_overlapping_headers_and_folders_without_end_are_not_followed(tmp_path: Path) -> None:
    content = bytearray(LIBRARIES[0].read_bytes())
    content[54:58] = (1).to_bytes(2, "little") + (3900).to_bytes(2, "little")  # e_phentsize, e_phnum
    assert loader_ranges(bytes(content[:HEAD_BYTES]), len(content)) == []
    content[54:58] = (56).to_bytes(2, "little") + (60_000).to_bytes(2, "little")
    assert len(loader_ranges(bytes(content[:HEAD_BYTES]), len(content))) <= 64
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    library, folders = tmp_path / "libmade.so", ":".join(f"$ORIGIN/{number}" for number in range(90))
    command = [compiler, "-shared", "-x", "c", "/dev/null", f"-Wl,-rpath,{folders}", "-o", library]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    _, found = linking(library.read_bytes()).needed_libraries()
    assert found == [b"$ORIGIN/%d" % number for number in range(32)]


def test_the_data_of_a_library_comes_with_its_first_page(lab: Lab, faulty: FaultyServer) -> None:
    content = LIBRARIES[0].read_bytes()
    lab.image(library=content)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url)
    offset, length = loader_ranges(content[:HEAD_BYTES], len(content))[-1]
    assert offset > 2 * CHUNK_BYTES
    with (record.mountpoint / "library").open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert stream.read(4096) == content[:4096]
        lab.counters(record)
        wait_until(
            lambda: lab.counters(record).get("prefetched_bytes", 0) >= length, "the library's data is brought"
        )
        asked = len(faulty.requests)
        stream.seek(offset)
        assert stream.read(4096) == content[offset : offset + 4096]
        assert len(faulty.requests) == asked


def test_a_library_of_moderate_size_comes_whole(lab: Lab, faulty: FaultyServer) -> None:
    content = LIBRARIES[0].read_bytes()
    assert 2 * CHUNK_BYTES < len(content) < 8 << 20
    lab.image(library=content)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url)
    with lab.first_page(record, "library") as stream:
        lab.wait_until_brought(
            record, lambda counters: counters["store_bytes"] == len(content), "the library is brought"
        )
        # all but what somebody asked for: its first page, and what its headers were looked up in
        wait_until(
            lambda: lab.counters(record)["read_ahead"]["pushed_bytes"] >= len(content) - 4 * CHUNK_BYTES,
            "the library is in memory",
        )
        asked, questions = len(faulty.requests), lab.counters(record)["requests"]
        stream.seek(0)
        assert stream.read() == content
        assert len(faulty.requests) == asked
        assert lab.counters(record)["requests"] <= questions + 8


def linking(content: bytes) -> Linking:
    return Linking(content[:HEAD_BYTES], lambda offset, length: content[offset : offset + length])


def told_by_readelf(option: str, path: Path) -> str:
    program = shutil.which("readelf")
    if program is None:
        pytest.skip("readelf is not installed")
    command = [program, option, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_tables_of_a_linker_are_those_that_readelf_shows() -> None:
    path = LIBRARIES[0]
    sections = re.findall(r"\] (\.\S+) +\S+ +\w+ (\w+) (\w+) \w\w +A", told_by_readelf("-SW", path))
    wanted = {
        name: (int(offset, 16), int(size, 16))
        for name, offset, size in sections
        if name
        in {".dynsym", ".dynstr", ".gnu.hash", ".gnu.version", ".gnu.version_r", ".rela.dyn", ".rela.plt"}
    }
    assert {".dynsym", ".dynstr", ".rela.dyn"} <= set(wanted)
    found = linking(path.read_bytes()).table_ranges()
    for name, (offset, size_bytes) in wanted.items():
        covering = [(begin, length) for begin, length in found if begin <= offset]
        # where no size is said the table reaches to the next one, which is aligned
        assert any(offset + size_bytes <= begin + length for begin, length in covering), name
    assert sum(length for _, length in found) < 1.1 * sum(size for _, size in wanted.values()) + 4096


@pytest.mark.parametrize("packed", [False, True])
def test_constructors_are_the_functions_that_the_loader_will_run(tmp_path: Path, packed: bool) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source, library = tmp_path / "made.c", tmp_path / "libmade.so"
    functions = "".join(
        f"__attribute__((constructor)) static void begin{number}(void) {{ counter += {number + 1}; }}\n"
        for number in range(5)
    )
    # of no other file, as those that C++ makes for its objects; other pointers are relocated as well
    source.write_text(f"int counter; int *table[64] = {{&counter}};\n{functions}void other(void) {{}}\n")
    how = ["-Wl,-z,pack-relative-relocs"] if packed else []
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", *how, "-o", library, source],
        check=False,
        timeout=120,
        capture_output=True,
    )
    if packed and made.returncode:
        pytest.skip("the linker packs no relocations")
    assert not made.returncode, made.stderr
    symbols = {
        name: int(value, 16)
        for value, name in re.findall(r"(\w{16}) .* (begin\d)\n", told_by_readelf("-sW", library))
    }
    assert len(symbols) == 5
    # code stands in its file where it stands in memory, in what this compiler makes
    assert set(symbols.values()) <= set(linking(library.read_bytes()).constructors())


def test_needed_libraries_are_those_that_readelf_shows() -> None:
    for path in (LIBRARIES[0], Path("/bin/bash")):
        said = told_by_readelf("-dW", path)
        wanted = [name.encode() for name in re.findall(r"NEEDED.*\[(.*)\]", said)]
        assert linking(path.read_bytes()).needed_libraries() == (wanted, [])


def test_damage_of_the_dynamic_section_finds_nothing_or_less() -> None:
    content = LIBRARIES[0].read_bytes()
    whole, _ = linking(content).needed_libraries()
    choose = random.Random(5)
    for _ in range(300):
        damaged = bytearray(content[: 2 * HEAD_BYTES])
        for _ in range(4):
            damaged[choose.randrange(16, 700)] = choose.randrange(256)
        found = Linking(bytes(damaged[:HEAD_BYTES]), lambda offset, length: content[offset : offset + length])
        names, _ = found.needed_libraries()
        assert sum(length for _, length in found.table_ranges()) <= 64 << 20
        assert len(found.constructors()) <= 4096
        assert len(names) <= len(whole) or all(b"/" not in name for name in names)


def test_the_libraries_that_one_needs_are_brought_through_their_links(lab: Lab, faulty: FaultyServer) -> None:
    tree = lab.tree(first=LIBRARIES[0].read_bytes())
    folder = tree / "usr" / "lib" / "x86_64-linux-gnu"
    folder.mkdir(parents=True)
    library = LIBRARIES[0].parent / "libm.so.6"
    if not library.exists():
        pytest.skip(f"{library} is absent")
    (folder / "libm-real.so").write_bytes(library.read_bytes())
    (folder / "libm.so.6").symlink_to("libm-real.so")
    (folder / "libother.so.6").write_bytes(random.Random(1).randbytes(4 * CHUNK_BYTES))
    lab.index(tree)
    faulty.root = lab.store
    record = lab.mount(store=faulty.url)
    with lab.first_page(record, "first"):
        pass
    ranges = [
        *loader_ranges(LIBRARIES[0].read_bytes()[:HEAD_BYTES], LIBRARIES[0].stat().st_size),
        *loader_ranges(library.read_bytes()[:HEAD_BYTES], library.stat().st_size),
    ]
    half_bytes = sum(length for _, length in ranges) // 2
    lab.wait_until_brought(
        record, lambda counters: counters["read_ahead"]["foreseen_bytes"] >= half_bytes, "both are brought"
    )
    asked = len(faulty.requests)
    with (record.mountpoint / "usr/lib/x86_64-linux-gnu/libm.so.6").open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert stream.read(4096) == library.read_bytes()[:4096]
    assert len(faulty.requests) == asked
