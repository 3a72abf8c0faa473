"""Files that are brought because others of their folder were waited for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_fs.content.reader import ImageReader
from coldstart_fs.foresight.folders import Folders
from conftest import wait_until
from fs.readers import Desk, reader_desk

_MAKE = random.Random(48)
MODULES = {f"m{number:03}.pyc": _MAKE.randbytes(9000) for number in range(120)}
OTHERS = {f"m{number:03}.txt": _MAKE.randbytes(9000) for number in range(120)}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    # nothing comes along in the request itself
    monkeypatch.setattr("coldstart_fs.content.companions._WINDOW_BYTES", 0)
    with reader_desk(tmp_path, b"content", **MODULES, **OTHERS) as desk:
        yield desk


def number_of(reader: ImageReader, name: str) -> int:
    number = reader.index.lookup(0, name.encode())
    assert number is not None
    return number


def here(reader: ImageReader, files: dict[str, bytes]) -> set[str]:
    return {name for name in files if reader.peek(number_of(reader, name), 0, 9000) is not None}


def wait_for(reader: ImageReader, folders: Folders, name: str) -> None:
    """Miss a file as a mount does, until what that brings is there."""
    reader.read(number_of(reader, name), 0, 9000)
    folders.missed(number_of(reader, name))
    wait_until(lambda: not folders.waiting, f"what {name} brings is brought")
    reader.settle()


def test_files_with_the_same_ending_come_the_nearest_first_and_no_others(desk: Desk) -> None:
    reader = desk.reader()
    wait_for(reader, Folders(reader), "m060.pyc")
    found = here(reader, MODULES)
    assert {"m058.pyc", "m059.pyc", "m061.pyc", "m062.pyc"} <= found
    assert (len(found) - 1) * 9000 <= 96 << 10
    assert not here(reader, OTHERS)


def test_each_further_wait_in_a_folder_brings_twice_as_much(desk: Desk) -> None:
    reader = desk.reader()
    folders = Folders(reader)
    brought = []
    for name in ("m000.pyc", "m030.pyc", "m060.pyc"):
        before = len(here(reader, MODULES))
        wait_for(reader, folders, name)
        brought.append(len(here(reader, MODULES)) - before)
    assert brought[0] < brought[1] < brought[2]
    asked = len(desk.server.requests)
    for name in sorted(here(reader, MODULES)):
        assert reader.at_hand(number_of(reader, name), 0, 9000) == MODULES[name]
    assert len(desk.server.requests) == asked < 40


def test_what_nobody_reads_stays_within_the_bound_of_companions(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coldstart_fs.content.companions._BEGINNING_BYTES", 30_000)
    reader = desk.reader()
    folders = Folders(reader)
    for place in range(0, 120, 40):
        wait_for(reader, folders, f"m{place:03}.pyc")
    unused = len(here(reader, MODULES)) - 3
    assert 0 < unused * 9000 <= 30_000 + 3 * 9000 // 4


def test_a_very_large_folder_is_not_looked_through(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldstart_fs.foresight.folders._LARGEST_FOLDER", 100)
    reader = desk.reader()
    folders = Folders(reader)
    wait_for(reader, folders, "m060.pyc")
    assert not folders.foreseen_bytes


def test_a_file_of_this_hosts_disk_brings_nothing(desk: Desk) -> None:
    reader = desk.reader(url=str(desk.folder / "store"))
    folders = Folders(reader)
    wait_for(reader, folders, "m060.pyc")
    assert not folders.foreseen_bytes
