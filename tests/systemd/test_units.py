"""The shipped units, judged by systemd itself, and what their promises rest on."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coldstart_cli.errors import ExitCode
from coldstart_cli.paths import default_run_folder
from coldstart_fs.mounts.image_host import host_socket
from coldstart_health.checks import ACTIVE_DEADLINE_SECONDS
from coldstart_health.dcgm_run import LEVEL_DEADLINES_SECONDS
from conftest import REPOSITORY

UNITS = REPOSITORY / "systemd"
NAMES = tuple(sorted(path.name for path in UNITS.iterdir()))


def read(name: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((UNITS / name).read_text())
    return unit


@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = Path(sys.executable).parent / "coldstart"
    for unit in NAMES:
        text = (UNITS / unit).read_text().replace("/usr/local/bin/coldstart", str(program))
        (tmp_path / unit).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name.replace("@", "@test"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if "coldstart" in line]
    assert own == []
    assert done.returncode == 0, done.stderr


def test_the_timer_is_weekly_spread_and_catches_up() -> None:
    timer = read("coldstart-health-deep.timer")["Timer"]
    assert timer["OnCalendar"] == "weekly"
    assert timer["RandomizedDelaySec"]
    assert timer["Persistent"] == "yes"


@pytest.mark.parametrize(
    ("name", "deadline_seconds"),
    [
        ("coldstart-health-boot.service", ACTIVE_DEADLINE_SECONDS),
        ("coldstart-health-quick.service", 5.0),
        ("coldstart-health-deep.service", LEVEL_DEADLINES_SECONDS[3]),
    ],
)
def test_systemd_waits_longer_than_the_command_itself(name: str, deadline_seconds: float) -> None:
    service = read(name)["Service"]
    match = re.fullmatch(r"(\d+)min", service["TimeoutStartSec"])
    assert match is not None
    assert int(match[1]) * 60 > deadline_seconds + 30
    assert service["Type"] == "oneshot"
    assert "SuccessExitStatus" not in service, "a bad verdict must fail the unit"


def test_the_host_goes_on_being_watched_after_boot() -> None:
    timer = read("coldstart-health-quick.timer")["Timer"]
    assert {"OnBootSec", "OnUnitInactiveSec"} <= set(timer)
    watched = read("coldstart-health-quick.service")["Service"]
    assert "RemainAfterExit" not in watched, "a timer does not start a unit that is still active"
    assert read("coldstart-health-boot.service")["Service"]["RemainAfterExit"] == "yes"
    assert "--active" not in watched["ExecStart"]


def test_mounts_outlive_the_process_that_forked_their_servers() -> None:
    host = read("coldstart-image-server.service")["Service"]
    assert host["KillMode"] == "process"
    assert host["Type"] == "notify"
    assert read("coldstart-image-server.socket")["Socket"]["SocketMode"] == "0600"


def test_the_socket_is_where_mounts_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    listening = read("coldstart-image-server.socket")["Socket"]["ListenSequentialPacket"]
    assert listening == str(host_socket(default_run_folder()))


@pytest.mark.parametrize("name", ["coldstart-image-server.service", "coldstart-image@.service"])
def test_a_server_killed_for_memory_does_not_end_its_unit(name: str) -> None:
    assert read(name)["Service"]["OOMPolicy"] == "continue"


def test_reloading_a_mount_replaces_what_serves_it() -> None:
    service = read("coldstart-image@.service")["Service"]
    assert service["ExecReload"].split()[1:4] == ["image", "mount", "--replace"]


def test_a_busy_host_is_asked_again_and_a_sick_one_fails_the_unit() -> None:
    unit = read("coldstart-health-deep.service")
    final = {int(code) for code in unit["Service"]["RestartPreventExitStatus"].split()}
    assert {*map(int, ExitCode)} - final == {ExitCode.OK, ExitCode.TEMPFAIL}
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_no_exit_code_fails_a_unit_that_asks_as_its_condition(tmp_path: Path) -> None:
    # 1 to 254 skip the unit, 255 and signals fail it; 200 to 243 are systemd's own
    assert all(code < 128 or code in {ExitCode.INTERRUPTED, ExitCode.TERMINATED} for code in ExitCode)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = Path(sys.executable).parent / "coldstart"
    unit = tmp_path / "conditional.service"
    unit.write_text(f"[Service]\nType=oneshot\nExecCondition={program} health quick\nExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "conditional" in done.stderr) == (0, False), done.stderr
