"""Programs that were compiled for more than a level, and never ask the CPU: real ones, by a real linker."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart_snapshot.cpu.built_for import built_for_more
from coldstart_snapshot.cpu.mapped import mapped_files
from snapshot.servers import require_root

SAYS_UP = '#include <stdio.h>\nint main(void) { %s puts("up"); fflush(stdout); return getchar(); }\n'
AVX = '__asm__ volatile ("vzeroupper");'


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Compile a program and run it; it is ended afterwards."""
    require_root()
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made: list[subprocess.Popen[str]] = []

    def start(*options: str, code: str = "") -> int:
        program = tmp_path / "program"
        (tmp_path / "program.c").write_text(SAYS_UP % code)
        subprocess.run(
            ["gcc", "-O1", *options, "-o", program, tmp_path / "program.c"], check=True, timeout=60
        )
        process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process.pid

    yield start
    for process in made:
        process.kill()
        process.communicate(timeout=60)


def _found(pid: int, level: str) -> list[str]:
    return list(built_for_more(pid, level, tuple(mapped_files(pid))))


def test_an_ordinary_program_with_glibc_has_nothing_against_it(built: Callable[..., int]) -> None:
    assert _found(built(), "x86-64-v2") == []


@pytest.mark.parametrize("how", ["-static", "-static-pie"])
def test_of_a_static_program_nothing_can_be_said(built: Callable[..., int], how: str) -> None:
    (problem,) = _found(built(how), "x86-64-v3")
    assert "is linked statically" in problem


def test_a_level_that_the_linker_noted_as_needed_is_believed(built: Callable[..., int]) -> None:
    pid = built("-Wl,-z,x86-64-v3")
    assert _found(pid, "x86-64-v2") == ["maps a file that was built for x86-64-v3: program"]
    assert _found(pid, "x86-64-v3") == []


def test_code_with_avx_that_never_asks_the_cpu_is_named(built: Callable[..., int]) -> None:
    pid = built(code=AVX)
    assert _found(pid, "x86-64-v2") == ["maps a file with AVX code that never asks the CPU: program"]
    assert _found(pid, "x86-64-v3") == []


def test_code_with_avx_that_asks_the_cpu_is_left_to_its_answers(built: Callable[..., int]) -> None:
    asks = 'if (__builtin_cpu_supports("avx")) ' + AVX
    assert _found(built(code=asks), "x86-64-v2") == []
