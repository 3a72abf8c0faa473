"""`make setup` where apt can give nothing: real apt and dpkg on empty state of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from conftest import REPOSITORY


@pytest.fixture
def empty_apt(tmp_path: Path) -> dict[str, str]:
    """An environment in which apt has no archive and dpkg has no package; the host's stay untouched."""
    database = tmp_path / "dpkg"
    for folder in ("updates", "info"):
        (database / folder).mkdir(parents=True)
    (database / "status").touch()
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    (tmp_path / "archives" / "partial").mkdir(parents=True)
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        f'Dir::State::status "{database}/status";\n'
        f'Dir::State::lists "{tmp_path}/lists";\n'
        f'Dir::Cache::archives "{tmp_path}/archives";\n'
        f'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
        f'Dir::Etc::sourcelist "{os.devnull}";\nDir::Etc::sourceparts "-";\n'
    )
    return dict(os.environ) | {
        "APT_CONFIG": str(configuration),
        "DPKG_ADMINDIR": str(database),
        "TMPDIR": str(tmp_path),
    }


def _run(program: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(REPOSITORY / "tools" / program)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="set-up installs system packages")
def test_a_failed_step_is_named_with_the_way_on_and_a_log(empty_apt: dict[str, str]) -> None:
    done = _run("setup.sh", empty_apt)
    assert done.returncode != 0
    complaint = done.stderr.splitlines()
    assert complaint[-2].startswith("setup: failed at: system packages: ")
    assert "apt-get install --no-install-recommends" in complaint[-1]
    log = Path(complaint[-2].rpartition("whole log: ")[2].removesuffix(")"))
    assert "Unable to locate package" in log.read_text()


def test_without_package_lists_the_mirror_is_unknown_and_the_remedy_said(
    empty_apt: dict[str, str],
) -> None:
    done = _run("apt-mirror.sh", empty_apt)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "run apt-get update" in done.stderr
