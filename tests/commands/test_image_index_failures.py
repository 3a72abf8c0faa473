"""An indexing that ends before its time: the right status, nothing published, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from coldstart_cli.errors import ColdstartError, IoFailure
from coldstart_fs.indexing import spool
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import Coldstart
from fs.mounts import small_disk
from image_builder import Layer, Steps, image_facts, write_layout


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Two layers; the order of the first is not the tree's, and the second hides some of it."""
    first, second = Layer(), Layer().file(".wh.b").file("z", os.urandom(500_000))
    for name in ("d", "c", "b", "a"):
        first.file(name, os.urandom(6_000_000))
    return write_layout(tmp_path / "layout", [first, second], compression="zstd").folder


def assert_nothing_published(store: Path) -> None:
    assert sorted(path.name for path in store.rglob("*") if path.is_file()) in (
        [".lock"],
        [".lock", "coldstart-store.json"],
    )
    assert not list(store.glob(".writing-*"))


@pytest.mark.parametrize("size", ["1m", "9m", "20m", "24500k"])
def test_a_disk_that_fills_at_any_step_is_named_and_left_as_it_was(
    coldstart: Coldstart, layout: Path, tmp_path: Path, size: str
) -> None:
    with small_disk(tmp_path / "small", size) as disk:
        result = coldstart("image", "index", f"oci:{layout}", "--name", "x", "--store", disk / "store")
        assert result.status == 74, result.stderr
        assert "No space left on device" in result.stderr
        assert f"hint: df -h {disk / 'store'}" in result.stderr
        assert "Traceback" not in result.stderr
        assert_nothing_published(disk / "store")


def test_a_store_needs_little_more_room_than_the_image(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_RELEASE_BYTES", 1 << 20)
    with small_disk(tmp_path / "small", "29m") as disk:
        store = open_store(str(disk / "store"), create=True)
        report = index_image(f"oci:{layout}", store=store, name="x")
        assert report.pack_bytes > 18_000_000
        assert set(image_facts(store, "x")) == {b"", b"a", b"c", b"d", b"z"}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_leaves_no_half_image(
    coldstart: Coldstart, layout: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    started = time.monotonic()
    whole = coldstart("image", "index", f"oci:{layout}", "--name", "x", "--store", "whole")
    assert whole.status == 0, whole.stderr
    usual_seconds = time.monotonic() - started
    for part in (1, 3, 5, 7):
        store = tmp_path / f"store-{part}"
        process = subprocess.Popen(
            [coldstart.program, "image", "index", f"oci:{layout}", "--name", "x", "--store", store],
            env=coldstart.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            process.wait(usual_seconds * part / 8)
        except subprocess.TimeoutExpired:
            process.send_signal(sent)
        _, stderr = process.communicate(timeout=60)
        assert b"Traceback" not in stderr
        # the signal itself before there are handlers
        ended = {signal.SIGINT: 130, signal.SIGTERM: 143}
        assert process.returncode in {0, -sent, ended.get(sent)}
        if sent != signal.SIGKILL:
            assert not list(store.glob(".writing-*"))
        if (store / "refs" / "x").exists():
            assert image_facts(open_store(str(store)), "x").keys() >= {b"a", b"z"}
        again = coldstart("image", "index", f"oci:{layout}", "--name", "x", "--store", store)
        assert (again.status, again.stdout.split("\n")[0]) == (0, whole.stdout.split("\n")[0])
        assert not list(store.glob(".writing-*"))
        assert image_facts(open_store(str(store)), "x")[b"a"].size == 6_000_000
        shutil.rmtree(store)


@pytest.mark.parametrize(
    "phase",
    ["reading layer 1 of 2", "reading layer 2 of 2", "writing the index", "writing packs", "publishing"],
)
def test_a_store_that_vanishes_is_an_error_with_its_name(layout: Path, tmp_path: Path, phase: str) -> None:
    def vanish(step: str) -> None:
        if step == phase:
            shutil.rmtree(tmp_path / "store")

    store: Store = open_store(str(tmp_path / "store"), create=True)
    with pytest.raises(ColdstartError) as caught:
        index_image(f"oci:{layout}", store=store, name="x", progress=Steps(vanish))
    assert isinstance(caught.value, IoFailure)
    assert str(tmp_path / "store") in caught.value.message
    assert not (tmp_path / "store" / "refs").exists()


def test_a_second_indexing_waits_or_says_who_is_there(
    coldstart: Coldstart, layout: Path, tmp_path: Path
) -> None:
    command = ("image", "index", f"oci:{layout}", "--store", "store")
    store = open_store(str(tmp_path / "store"), create=True)
    with store.writing():
        busy = coldstart(*command, "--name", "x")
    assert (busy.status, busy.stdout) == (75, "")
    assert f"pid {os.getpid()}" in busy.stderr
    assert "--lock-wait" in busy.stderr
    both = [
        subprocess.Popen(
            [coldstart.program, *command, "--name", name, "--lock-wait", "60"],
            env=coldstart.environment,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in ("x", "y")
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    assert image_facts(store, "x") == image_facts(store, "y")
    assert len(store.list("packs/")) == len(store.list("images/")) == 1
