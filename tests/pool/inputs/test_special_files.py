"""What is no regular file: pipes that a program fills are read, all that need not end is refused at once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_pool.inputs.encodings import read_bytes
from conftest import REPOSITORY, Coldstart

PRICES = REPOSITORY / "examples" / "pool" / "prices.csv"


def test_a_named_pipe_and_a_device_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DataError, match="a named pipe, no table"):
        read_bytes(tmp_path / "fifo")
    with pytest.raises(DataError, match="a device, no table"):
        read_bytes(Path("/dev/zero"))


def test_a_hole_of_two_gibibytes_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "long.csv", "wb") as stream:
        stream.truncate(2 << 30)
    with pytest.raises(DataError, match="larger than 1024 MiB"):
        read_bytes(tmp_path / "long.csv")


def test_standard_input_has_a_name() -> None:
    with pytest.raises(NotFoundError) as caught:
        read_bytes(Path("-"))
    assert caught.value.hint == "standard input is `/dev/stdin`"


@pytest.mark.parametrize("option", ["--prices", "--snapshots"])
def test_what_a_program_hands_over_is_read(coldstart: Coldstart, option: str) -> None:
    table = PRICES if option == "--prices" else PRICES.with_name("snapshots.csv")
    check = f"{coldstart.program} pool check {option}"
    script = f"{check} <(cat {table}) && cat {table} | {check} /dev/stdin"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
