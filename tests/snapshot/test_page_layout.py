"""Where chunks of a snapshot end: by addresses, as criu's own pagemaps have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.criu.images import page_runs
from coldstart_snapshot.distribution.page_layout import CHUNK_BYTES, PageLayout, is_pages, transfer_order
from snapshot.servers import Lab, free_port, laboratory
from snapshot.stores import PAGE, Host, Memory


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_memory_that_criu_captured_is_cut_where_addresses_say(lab: Lab) -> None:
    pid, _, _ = lab.start_process(free_port(), "child")
    captured = create_snapshot(CaptureRequest("web", pid=pid), lab.config)
    layout = PageLayout(captured.folder)
    runs = page_runs(captured.folder / "images")
    memory = [file for file in captured.manifest.files if is_pages(file.path)]
    assert len(memory) == len(runs) == 2
    for file in memory:
        sizes = list(layout.sizes(file))
        assert sum(sizes) == file.size_bytes
        assert max(sizes) <= CHUNK_BYTES
        # by offset all but the last would be alike
        assert len(set(sizes[:-1])) > 1
        addresses = runs[int(Path(file.path).stem.removeprefix("pages-"))]
        assert sum(count for _, count in addresses) * PAGE == file.size_bytes
        assert all(address % PAGE == 0 for address, _ in addresses)


def test_small_files_come_before_memory_in_criu_s_order(tmp_path: Path) -> None:
    manifest = Host(tmp_path).capture("web", Memory.random(2))
    paths = [file.path for file in sorted(manifest.files, key=transfer_order)]
    assert paths[-1] == "images/pages-1.img"
    assert set(paths[:-1]) == {
        "bundle/config.json",
        "images/inventory.img",
        "images/pagemap-1.img",
        "upper.tar",
    }


def test_memory_without_a_pagemap_that_fits_is_cut_at_offsets(tmp_path: Path) -> None:
    host = Host(tmp_path)
    manifest = host.capture("web", Memory.random(40))
    folder = host.config.state_folder / "snapshots/web" / manifest.variant
    (pages,) = [file for file in manifest.files if is_pages(file.path)]
    (folder / "images/pagemap-1.img").write_bytes(b"something else")
    assert list(PageLayout(folder).sizes(pages)) == [CHUNK_BYTES, CHUNK_BYTES, 8 * PAGE]
