"""The house's plan, checked on the source: who may import whom, and who may speak to the outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conftest import REPOSITORY

# a package may import those on lower floors, never its own floor or a higher one
FLOORS = {
    "coldstart_cli": 0,
    "coldstart_host": 1,
    "coldstart_fs": 2,
    "coldstart_snapshot": 2,
    "coldstart_health": 2,
    "coldstart_pool": 2,
    "coldstart_launch": 3,
    "coldstart_commands": 4,
}
# the one door between two rooms of a floor: the module through which snapshots reach stores
DOORS = {("coldstart_snapshot/distribution/distribute.py", "coldstart_fs")}
# the shell: what prints, parses arguments and ends the process
SHELL = {f"coldstart_cli/{name}.py" for name in ("app", "entry", "printer", "signals")}
OUTSIDE = {"subprocess", "pty", "multiprocessing", "popen2"}
PROCESS_CALLS = {
    "system", "popen", "fork", "forkpty", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp",
    "posix_spawn", "posix_spawnp", "spawnv", "spawnl", "spawnve", "spawnvp",
}  # fmt: skip


# what goes on in the background is no other program: it is this one, with its locks and its modules
FORKS = {
    "coldstart_cli/dead_man.py": {"fork", "execv"},
    "coldstart_launch/supervise.py": {"fork"},
    "coldstart_fs/mounts/image_host.py": {"fork"},
    "coldstart_fs/mounts/keeping.py": {"fork"},
    "coldstart_fs/mounts/server_child.py": {"fork"},
}


def _sources() -> list[Path]:
    folders = [REPOSITORY / "coldstart_cli", *sorted(REPOSITORY.glob("*/coldstart_*"))]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def _name(path: Path) -> str:
    relative = path.relative_to(REPOSITORY)
    return str(relative if relative.parts[0] == "coldstart_cli" else Path(*relative.parts[1:]))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_every_package_has_a_floor() -> None:
    packages = {_name(path).split("/")[0] for path in _sources()}
    assert packages == set(FLOORS)


@pytest.mark.parametrize("package", FLOORS)
def test_imports_go_down(package: str) -> None:
    wrong = []
    for path in _sources():
        if not _name(path).startswith(f"{package}/"):
            continue
        for imported, line in _imports(path):
            target = imported.split(".")[0]
            if target not in FLOORS or target == package or FLOORS[target] < FLOORS[package]:
                continue
            if (_name(path), target) not in DOORS:
                wrong.append(f"{_name(path)}:{line} imports {imported}")
    assert wrong == []


def test_commands_are_known_to_the_kernel_as_strings_only() -> None:
    wrong = [_name(path) for path in _sources() if _name(path).startswith("coldstart_cli/")
             and any(name.startswith("coldstart_commands") for name, _ in _imports(path))]  # fmt: skip
    assert wrong == []


def test_only_the_shell_knows_typer_and_rich() -> None:
    wrong = [
        f"{_name(path)}:{line} imports {imported}"
        for path in _sources()
        if not _name(path).startswith("coldstart_commands/") and _name(path) not in SHELL
        for imported, line in _imports(path)
        if imported.split(".")[0] in {"typer", "rich", "click"}
    ]
    assert wrong == []


def test_components_do_not_print_or_exit() -> None:
    speaking = {"print", "sys.exit", "exit", "quit", "os._exit", "sys.stdout.write", "sys.stderr.write"}
    wrong = [
        f"{_name(path)}:{line} calls {call}"
        for path in _sources()
        if _name(path) not in SHELL and not _name(path).startswith("coldstart_commands/")
        for call, line in _calls(path)
        if call in speaking
    ]
    assert [entry for entry in wrong if not entry.startswith(PROGRAMS)] == []


# modules that are programs of their own, started with `python -m`: their stdout is what their parent reads
PROGRAMS = (
    "coldstart_cli/dead_man.py:",
    "coldstart_snapshot/cuda/driver_worker.py:",
    "coldstart_host/gpu_probe.py:",
    "coldstart_host/cuda_copy_probe.py:",
    "coldstart_fs/mounts/keeping.py:",
    "coldstart_fs/mounts/image_host.py:",
    "coldstart_fs/mounts/server_child.py:",
    "coldstart_snapshot/cpu/cpuid_tracer.py:",
)


def test_commands_leave_printing_to_the_printer_and_exiting_to_errors() -> None:
    wrong = [
        f"{_name(path)}:{line} calls {call}"
        for path in _sources()
        if _name(path).startswith("coldstart_commands/")
        for call, line in _calls(path)
        if call in {"print", "sys.exit", "exit", "typer.echo", "typer.Exit", "sys.stdout.write"}
    ]
    assert wrong == []


def test_external_programs_run_from_one_place() -> None:
    wrong = []
    for path in _sources():
        if _name(path) == "coldstart_cli/process.py":
            continue
        wrong += [
            f"{_name(path)}:{line} imports {imported}"
            for imported, line in _imports(path)
            if imported.split(".")[0] in OUTSIDE
        ]
        wrong += [
            f"{_name(path)}:{line} calls {call}"
            for call, line in _calls(path)
            if call.startswith("os.")
            and call.removeprefix("os.") in PROCESS_CALLS - FORKS.get(_name(path), set())
        ]
    assert wrong == []


def test_modules_stay_readable_in_one_sitting() -> None:
    long = [f"{_name(path)}: {lines}" for path in _sources() if (lines := _lines(path)) > 400]
    assert long == []


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_the_rooms_of_the_snapshot_component_form_no_circle() -> None:
    folder = REPOSITORY / "snapshot" / "coldstart_snapshot"
    uses: dict[str, set[str]] = {}
    for path in folder.glob("*/*.py"):
        found = re.findall(r"\bcoldstart_snapshot\.(\w+)\.\w+", path.read_text("utf-8"))
        uses.setdefault(path.parent.name, set()).update(set(found) - {path.parent.name})
    # what uses nothing that is left is taken away, until nothing is left
    left = dict(uses)
    while free := {room for room, used in left.items() if not used & left.keys()}:
        left = {room: used for room, used in left.items() if room not in free}
    assert left == {}
