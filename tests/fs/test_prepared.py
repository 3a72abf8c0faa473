"""A keeper's process that was started before anybody knew what it is to keep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError
from coldstart_fs.mounts import prepared
from coldstart_fs.mounts.prepared import PreparedKeeper, drop_prepared, prepare_keeper, take_prepared
from conftest import wait_until
from fs.mounts import Lab


@pytest.fixture(autouse=True)
def nothing_prepared() -> Iterator[None]:
    drop_prepared()
    yield
    drop_prepared()


def keepers(run_folder: Path) -> list[int]:
    """The processes of keepers for this run folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"coldstart_fs.mounts.keeping" in arguments and os.fsencode(run_folder) in arguments:
                found.append(int(entry.name))
    return found


def test_a_mount_uses_the_process_that_was_prepared_for_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.image(file=b"content")
    lab.run.mkdir()
    prepare_keeper(lab.run)
    monkeypatch.setattr(prepared, "_PROGRAM", ("-c", "raise SystemExit('a second process was started')"))
    record = lab.mount()
    assert (record.mountpoint / "file").read_bytes() == b"content"
    assert take_prepared() is None


def test_a_process_that_nobody_needs_ends(lab: Lab) -> None:
    lab.run.mkdir()
    prepare_keeper(lab.run)
    wait_until(lambda: len(keepers(lab.run)) == 1, "the keeper's process has forked")
    drop_prepared()
    wait_until(lambda: not keepers(lab.run), "it has ended")


def test_a_mount_that_is_refused_leaves_no_process(lab: Lab) -> None:
    lab.image(file=b"content")
    lab.run.mkdir()
    with pytest.raises(ColdstartError):
        lab.mount(name="another")
    assert take_prepared() is None
    wait_until(lambda: not keepers(lab.run), "nothing is left")


def test_where_servers_run_nothing_is_prepared(lab: Lab) -> None:
    lab.image(file=b"content")
    lab.mount("one")
    prepare_keeper(lab.run)
    assert take_prepared() is None


def test_of_several_mounts_at_once_one_prepares(lab: Lab) -> None:
    lab.run.mkdir()
    prepare_keeper(lab.run)
    first = take_prepared()
    assert first is not None
    prepare_keeper(lab.run)
    assert take_prepared() is None
    first.close()
    prepare_keeper(lab.run)
    drop_prepared()


def test_what_a_process_says_before_its_order_is_kept_for_who_asks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_PROGRAM", ("-c", "raise SystemExit('no modules today')"))
    lab.run.mkdir()
    keeper = PreparedKeeper(lab.run)
    keeper.settle()
    assert b"no modules today" in keeper.said()
    keeper.close()
