"""Zero pages become holes and everything else stays byte for byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_snapshot.answers.ready import wait_ready
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.criu.zero_pages import punch_zero_pages
from coldstart_snapshot.restoring.restore import plan_restore, restore_container
from snapshot.servers import Lab, ask, free_port, laboratory, url

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LONG = 64  # pages: more than the least hole


def _has_holes(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(b"x" * (1 << 20))
    with probe.open("r+b") as stream:
        stream.truncate(0)
        stream.truncate(1 << 20)
        holes = os.fstat(stream.fileno()).st_blocks == 0
    probe.unlink()
    return holes


@pytest.mark.parametrize(
    ("pages", "zero_pages"),
    [
        ([b"\0"] * 3 * 256, 3 * 256),
        ([b"x"] * 700, 0),
        ([b"x", b"\0"] * 300, 300),
        ([b"\0"] * _LONG + [b"x"] + [b"\0"] * 400 + [b"x"] * 3, _LONG + 400),
        ([b"x"] * 255 + [b"\0"] * 2 + [b"x"], 2),
        ([], 0),
    ],
)
def test_content_stays_and_zero_pages_are_counted(
    tmp_path: Path, pages: list[bytes], zero_pages: int
) -> None:
    # a page that is zero but for its last byte is no zero page
    content = b"".join(bytes(_PAGE) if page == b"\0" else bytes(_PAGE - 1) + page for page in pages)
    image = tmp_path / "pages-1.img"
    image.write_bytes(content)
    facts = punch_zero_pages(tmp_path)
    assert image.read_bytes() == content
    assert (facts.size_bytes, facts.zero_bytes) == (len(content), zero_pages * _PAGE)
    assert facts.nonzero_bytes == len(content) - zero_pages * _PAGE
    assert facts.allocated_bytes == image.stat().st_blocks * 512


def test_a_long_run_of_zeros_takes_no_room(tmp_path: Path) -> None:
    if not _has_holes(tmp_path):
        pytest.skip("the file system of the tests has no holes")
    image = tmp_path / "pages-7.img"
    image.write_bytes(b"x" * _PAGE + bytes(8 << 20) + b"x" * _PAGE)
    (tmp_path / "core-1.img").write_bytes(bytes(1 << 20))
    facts = punch_zero_pages(tmp_path)
    assert facts.allocated_bytes < 1 << 20
    # only images of memory are looked at
    assert facts.size_bytes == image.stat().st_size


def test_a_bit_less_than_a_page_at_the_end_is_compared_too(tmp_path: Path) -> None:
    image = tmp_path / "pages-1.img"
    image.write_bytes(bytes(_PAGE * 3 + 17))
    assert punch_zero_pages(tmp_path).zero_bytes == _PAGE * 3 + 17


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_a_server_with_empty_memory_is_captured_small_and_comes_back(lab: Lab) -> None:
    """A heap of zeros is written in full by criu, and holes bring it back."""
    port = free_port()
    container, overlay, log = lab.start("source", port, "zeros")
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    pages = captured.manifest.pages
    assert pages is not None
    assert pages.zero_bytes >= 32 << 20
    assert pages.allocated_bytes <= pages.size_bytes - (32 << 20)
    lab.erase(container, overlay, log)
    plan = plan_restore("web", lab.config)
    target = lab.overlay("target")
    unpack_upper(plan.upper_archive, target.upper)
    target.mount()
    restored = restore_container(
        plan, lab.config, root=target.root, container_id=lab.id("target"), log=lab.tmp_path / "new.log"
    )
    wait_ready(url(port), 60, pid=restored.pid)
    assert ask(port, "/zeros") == str(32 << 20)
