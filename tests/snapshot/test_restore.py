"""A server comes back where everything it was captured from is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coldstart_snapshot.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.container import kill_and_delete
from coldstart_snapshot.ready import wait_ready
from coldstart_snapshot.restore import plan_restore, restore_container
from coldstart_snapshot.upper import unpack_upper
from snapshot.servers import Lab, ask, free_port, laboratory, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def test_container_goes_on_counting_under_another_id_after_all_of_its_source_was_deleted(lab: Lab) -> None:
    port = free_port()
    container, overlay, log = lab.start(
        "source", port, "deleted", "lock", "pair", "threads", "child", "semaphore"
    )
    assert [ask(port), ask(port)] == ["1", "2"]
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    assert ask(port) == "3"
    lab.erase(container, overlay, log)

    for turn in ("first", "second"):
        plan = plan_restore("web", lab.config)
        assert plan.variant == captured.manifest.variant
        target = lab.overlay(turn)
        unpack_upper(plan.upper_archive, target.upper)
        target.mount()
        new_log = lab.tmp_path / f"{turn}.log"
        restored = restore_container(
            plan, lab.config, root=target.root, container_id=lab.id(turn), log=new_log
        )
        wait_ready(url(port), 20, pid=restored.pid)
        assert ask(port, "/file") == "2"
        assert ask(port) == "3"
        assert new_log.read_text() == "request 3\n"
        assert (target.upper / "srv" / "count").read_text() == "3"
        assert ask(port, "/pair") == "through the pair"
        assert ask(port, "/deleted") == str(3 << 20)
        kill_and_delete(restored.id, runc_root=lab.runc_root)
