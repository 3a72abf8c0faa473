from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.errors import UnavailableError
from coldstart_snapshot.criu.program import find_criu


def _write(program: Path, version: str) -> None:
    program.write_text(f'#!/bin/sh\necho asked >> "$0.log"\necho "Version: {version}"\n')
    program.chmod(0o755)


def test_the_same_criu_is_asked_for_its_version_once_and_another_one_anew(tmp_path: Path) -> None:
    program, run_folder = tmp_path / "criu", tmp_path / "run"
    _write(program, "9.1")
    for _ in range(2):
        assert find_criu(str(program), run_folder=run_folder).version == "9.1"
    assert (tmp_path / "criu.log").read_text() == "asked\n"
    _write(program, "9.2")
    assert find_criu(str(program), run_folder=run_folder).version == "9.2"


def test_a_record_that_says_nothing_is_passed_over(tmp_path: Path) -> None:
    program, run_folder = tmp_path / "criu", tmp_path / "run"
    _write(program, "9.1")
    find_criu(str(program), run_folder=run_folder)
    record = run_folder / "programs" / "criu.json"
    for content in ("", "[]", "null", '[["x"], "9.3"]', "[[[[["):
        record.write_text(content)
        assert find_criu(str(program), run_folder=run_folder).version == "9.1"


def test_a_known_criu_is_still_compared_with_the_kernel(tmp_path: Path) -> None:
    program, run_folder = tmp_path / "criu", tmp_path / "run"
    _write(program, "4.0")
    assert find_criu(str(program), release="6.1.0", run_folder=run_folder).version == "4.0"
    with pytest.raises(UnavailableError, match="too old"):
        find_criu(str(program), release="6.16.0", run_folder=run_folder)
