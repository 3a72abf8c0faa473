"""`coldstart image status --prometheus` and `--listen`: what monitoring reads of mounts."""

from __future__ import annotations

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import wait_until
from image_desk import Desk


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by name and mount point, or tier where there is one."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, sample.labels.get("tier", sample.labels["mountpoint"])): sample.value
        for family in families
        for sample in family.samples
    }


@contextmanager
def exporter(desk: Desk) -> Iterator[str]:
    process = subprocess.Popen(
        [desk.run.program, "image", "status", "--listen", "127.0.0.1:0"],
        env=desk.run.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        yield process.stderr.readline().split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        process.stderr.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def test_an_exporter_shows_what_a_mount_reads_while_it_reads(desk: Desk) -> None:
    assert desk.mount("--detach").status == 0
    point = str(desk.point)
    with exporter(desk) as url:
        assert samples(get(url))["coldstart_mount_up", point] == 1
        (desk.point / "large").read_bytes()
        wait_until(
            lambda: samples(get(url)).get(("coldstart_mount_store_bytes_total", point)) == 700_000,
            "what was read",
        )
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url.replace("/metrics", "/other"))


def test_a_textfile_tells_a_dead_mount_from_a_live_one(desk: Desk, tmp_path: Path) -> None:
    assert desk.mount("--detach").status == 0
    path = tmp_path / "coldstart.prom"
    assert desk.run("image", "status", "--prometheus", path).status == 0
    found = samples(path.read_text())
    assert found["coldstart_mount_up", str(desk.point)] == 1
    assert found["coldstart_mount_protected", str(desk.point)] == 1
    assert desk.unmount().status == 0
    assert desk.run("image", "status", "--prometheus", path).status == 0
    assert samples(path.read_text()) == {}


@pytest.mark.parametrize("address", ["9178", "host:", ":9178", "127.0.0.1:70000", "127.0.0.1:x"])
def test_an_address_that_is_none_is_refused(desk: Desk, address: str) -> None:
    done = desk.run("image", "status", "--listen", address)
    assert done.status == 2
    assert f"not an address to listen on: {address}" in done.stderr


def test_a_textfile_is_never_written_over_a_device(desk: Desk) -> None:
    assert desk.run("image", "status", "--prometheus", "/dev/null").status != 0
