"""Help costs no heavy import, and every command the tree names exists and reads alike."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from coldstart_cli.tree import TREE, CommandEntry, GroupEntry, walk_commands, walk_groups
from conftest import Coldstart

HEAVY = [
    "ortools",
    "numpy",
    "pandas",
    "rich",
    "psutil",
    "pynvml",
    "cpuinfo",
    "pydantic",
    "asyncio",
    "obstore",
    "zstandard",
    "blake3",
    "ctypes",
]

# renders the help of everything in one process; a module, once loaded, is blamed on the first that has it
_RENDER = """
import json, sys
heavy, commands = json.loads(sys.argv[1])
import contextlib, io
from coldstart_cli.app import run
report = {}
for command in commands:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = run([*command, "--help"])
    loaded = [name for name in heavy if name in sys.modules]
    report[" ".join(command)] = [status, out.getvalue(), loaded]
print(json.dumps(report))
"""


def _commands() -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    yield from walk_commands(TREE)


@pytest.fixture(scope="module")
def rendered() -> dict[str, tuple[int, str, list[str]]]:
    groups: list[tuple[str, ...]] = [(), *[words for words, _ in walk_groups(TREE)]]
    present = [path for path, entry in _commands() if importlib.util.find_spec(entry.module)]
    arguments = json.dumps([HEAVY, [*groups, *present]])
    done = subprocess.run(
        [sys.executable, "-c", _RENDER, arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {path: tuple(result) for path, result in json.loads(done.stdout).items()}


def test_no_help_loads_a_heavy_module(rendered: dict[str, tuple[int, str, list[str]]]) -> None:
    assert {path: loaded for path, (_, _, loaded) in rendered.items() if loaded} == {}


def test_every_help_succeeds_and_names_its_command(rendered: dict[str, tuple[int, str, list[str]]]) -> None:
    for path, (status, text, _) in rendered.items():
        assert status == 0, path
        assert text.startswith(f"Usage: coldstart {path}".rstrip()), path


def test_groups_show_each_command_with_its_meaning(
    rendered: dict[str, tuple[int, str, list[str]]],
) -> None:
    for entry in TREE:
        assert entry.name in rendered[""][1]
    for path, group in walk_groups(TREE):
        words = " ".join(rendered[" ".join(path)][1].split())
        for command in group.commands:
            assert f"{command.name} {command.meaning}" in words


@pytest.mark.parametrize(("path", "entry"), list(_commands()), ids=lambda value: getattr(value, "module", ""))
def test_every_command_exists_and_its_help_is_complete(
    path: tuple[str, ...], entry: CommandEntry, rendered: dict[str, tuple[int, str, list[str]]]
) -> None:
    command = importlib.import_module(entry.module).command
    assert command.__doc__, "the docstring is the help's first line"
    text = rendered[" ".join(path)][1]
    for option in ("--json", "--quiet", "--verbose", "--color", "--config", "--debug", "--help"):
        assert option in text, option
    first_line = command.__doc__.strip().splitlines()[0]
    assert first_line.endswith(".")
    assert first_line.split()[0] in text


def test_meanings_are_short_and_alike() -> None:
    entries: list[CommandEntry | GroupEntry] = [entry for _, entry in walk_groups(TREE)]
    for meaning in [entry.meaning for entry in [*entries, *(entry for _, entry in walk_commands(TREE))]]:
        assert len(meaning) <= 80
        assert not meaning.endswith(".")


def test_a_command_is_imported_only_when_it_is_asked_for() -> None:
    script = (
        "import sys\nfrom coldstart_cli.app import run\nrun(['image', '--help'])\n"
        "print([name for name in sys.modules if name.startswith('coldstart_commands')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_version_is_answered_without_typer() -> None:
    script = (
        "import sys\nfrom coldstart_cli.app import run\nrun(['--version'])\nprint('typer' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_shared_options_work_after_the_command(coldstart: Coldstart) -> None:
    result = coldstart("doctor", "--json", "--quiet", "--color", "never", "--debug")
    assert result.stderr == ""
    assert json.loads(result.stdout)["schema"] == "coldstart.doctor"
