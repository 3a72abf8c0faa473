"""Completion in real shells: what TAB offers, and that it starts no program."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import REPOSITORY

COMPLETIONS = REPOSITORY / "completions"
SNAPSHOTS = ("snapshots/ocr/v3-avx512", "snapshots/ocr/v2-avx2", "snapshots/bert/v2-avx2")
IMAGES = ("ocr", "ocr:v2", "other", "team/llm")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
# what readline does before it calls a completion function: break the line at blanks, colons and equals signs
ASK_BASH = r"""
source "$1"
COMP_LINE="$2" COMP_POINT=${#2}
line="${2//:/ : }" line="${line//=/ = }"
read -ra COMP_WORDS <<<"$line"
if [[ "$2" == *[\ :=] ]]; then COMP_WORDS+=(""); fi
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_coldstart coldstart "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with images in its store, and snapshots."""
    folder = tmp_path / "state"
    for name in IMAGES:
        (folder / "store" / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "store" / "refs" / name).touch()
    for name in SNAPSHOTS:
        (folder / name).mkdir(parents=True)
    monkeypatch.setenv("COLDSTART_STATE_DIR", str(folder))
    return folder


def offered(line: str, **environment: str) -> list[str]:
    """What bash offers at the end of `line`, in a shell that can find no program at all."""
    bash = shutil.which("bash")
    assert bash, "bash is part of every Debian"
    result = subprocess.run(
        [bash, "--norc", "--noprofile", "-c", ASK_BASH, "bash", COMPLETIONS / "coldstart.bash", line],
        env={**os.environ, "PATH": "/nowhere", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stderr == ""
    return sorted(result.stdout.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("coldstart im", ["image"]),
        ("coldstart image mo", ["mount"]),
        ("coldstart image mount ", sorted(IMAGES)),
        ("coldstart image mount --detach o", ["ocr", "ocr:v2", "other"]),
        ("coldstart image mount team/", ["team/llm"]),
        ("coldstart image mount ocr:", ["v2"]),  # readline keeps what stands before the colon
        ("coldstart snap restore ", ["bert", "ocr"]),
        ("coldstart snap restore ocr --variant v3", ["v3-avx512"]),
        ("coldstart image index ", ["dir:", "oci:"]),
        ("coldstart doctor --color ", ["always", "auto", "never"]),
        ("coldstart pool plan --peak", ["--peak-utilisation"]),
    ],
)
def test_bash_offers_commands_options_and_names_without_starting_a_program(
    state: Path, line: str, expected: list[str]
) -> None:
    assert offered(line) == expected


def test_bash_lists_images_of_the_store_that_is_typed_configured_or_in_the_environment(
    state: Path, tmp_path: Path
) -> None:
    for name in ("typed", "variable", "configured"):
        (tmp_path / name / "refs").mkdir(parents=True)
        (tmp_path / name / "refs" / f"of-{name}").touch()
    config = tmp_path / "config.toml"
    config.write_text(f'store = "{tmp_path}/configured"\n\n[programs]\ncriu = "criu"\n')
    assert offered("coldstart image mount ", COLDSTART_CONFIG=str(config)) == ["of-configured"]
    assert offered("coldstart image mount ", COLDSTART_STORE=f"file://{tmp_path}/variable") == ["of-variable"]
    assert offered(f"coldstart image mount --store {tmp_path}/typed ") == ["of-typed"]


def test_bash_completes_folders_behind_the_kind_of_a_source(state: Path, tmp_path: Path) -> None:
    (tmp_path / "layout").mkdir()
    assert offered(f"coldstart image index oci:{tmp_path}/lay") == [f"{tmp_path}/layout"]


def test_bash_offers_the_mount_points_of_this_host(state: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for name in ("lower", "upper", "work", "here"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{key}dir={tmp_path}/{key}" for key in ("lower", "upper", "work"))
    point = tmp_path / "here"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "coldstart", point], check=True, timeout=60)
    try:
        assert offered(f"coldstart image unmount {tmp_path}/") == [str(point)]
    finally:
        subprocess.run(["umount", point], check=True, timeout=60)
    assert offered(f"coldstart image unmount {tmp_path}/") == []


@dataclass
class Terminal:
    """A shell on a terminal of its own."""

    descriptor: int
    seen: str = ""

    def type(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def wait_for(self, pattern: str, timeout_seconds: float = 20) -> None:
        """Read until `pattern` appears after what was matched before."""
        deadline = time.monotonic() + timeout_seconds
        while not (match := re.search(pattern, ESCAPES.sub("", self.seen))):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.descriptor], [], [], max(0, left))
            if not ready:
                pytest.fail(f"no {pattern!r} on the terminal: {self.seen!r}")
            self.seen += os.read(self.descriptor, 65536).decode("utf-8", "replace")
        self.seen = ESCAPES.sub("", self.seen)[match.end() :]


SHELLS = {
    "bash": ("bash --norc --noprofile", f"PS1='%'; source {COMPLETIONS}/coldstart.bash"),
    "zsh": ("zsh -f", f"PS1='%%'; fpath=({COMPLETIONS} $fpath); autoload -U compinit; compinit -u -D"),
    "fish": (
        "fish --no-config",
        f"function fish_prompt; printf '%%'; end; source {COMPLETIONS}/coldstart.fish",
    ),
}


@pytest.fixture(params=SHELLS)
def terminal(
    request: pytest.FixtureRequest, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    shell, setup = SHELLS[request.param]
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HOME", str(tmp_path))
    # fish completes no command that does not exist
    stub = tmp_path / "bin" / "coldstart"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    master, slave = pty.openpty()
    # opened by a session leader, the terminal becomes its controlling one: shells want that for editing
    name = os.ttyname(slave)
    process = subprocess.Popen(
        ["sh", "-c", f"exec {shell} <{name} >{name} 2>&1"], start_new_session=True, cwd=tmp_path
    )
    try:
        session = Terminal(master)
        session.type(f"{setup}; echo rea''dy\r")
        session.wait_for("ready")
        session.wait_for("%")
        yield session
    finally:
        process.kill()
        process.wait(60)
        os.close(master)
        os.close(slave)
    assert not (tmp_path / "started").exists(), "completing started the program"


def test_tab_completes_commands_and_names_in_a_real_shell(terminal: Terminal) -> None:
    terminal.type("coldstart im\t")
    terminal.wait_for("(im)?age ")
    terminal.type("mount te\t")
    terminal.wait_for("am/llm ")
    terminal.type("\x15coldstart snap restore be\t")
    terminal.wait_for("rt ")
