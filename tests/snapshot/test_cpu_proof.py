"""Caps that hold are proven on live processes, and those that do not are found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import reaches
from coldstart_snapshot.cpu.caps import CapProof, capped_environment
from coldstart_snapshot.cpu.cpuid_cap import CpuidReport
from coldstart_snapshot.cpu.glibc_cpu import active_above
from coldstart_snapshot.cpu.mapped import mapped_files
from coldstart_snapshot.cpu.proof import prove_caps
from coldstart_snapshot.processes.tree import process_tree
from snapshot.servers import PYTHON, require_root

LEVEL = "x86-64-v3"
MASKED = CpuidReport((), {}, ())


@pytest.fixture(autouse=True)
def _host() -> None:
    require_root()
    if not reaches("x86-64-v4", read_cpu_facts().level):
        pytest.skip("this CPU has nothing above the level")


@pytest.fixture
def begun() -> Iterator[Callable[..., int]]:
    """Start programs that say `up`; they are ended afterwards."""
    made: list[subprocess.Popen[str]] = []

    def start(*command: str, environment: dict[str, str] | None = None) -> int:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "up"
        return process.pid

    yield start
    for process in made:
        for member in process_tree(process.pid)[::-1]:
            os.kill(member.pid, 9)
        process.communicate(timeout=60)


def _prove(pid: int, *, report: CpuidReport | None = None, since_seconds: float = 0.0) -> CapProof:
    pids = [member.pid for member in process_tree(pid)]
    return prove_caps(LEVEL, pids, since_seconds=since_seconds, report=report)


def _capped() -> dict[str, str]:
    return capped_environment(LEVEL, dict(os.environ))


def test_a_small_program_with_every_cap_is_proven_by_its_environment(begun: Callable[..., int]) -> None:
    pid = begun("/bin/sh", "-c", "echo up; read x", environment=_capped())
    proof = _prove(pid)
    assert proof == CapProof(LEVEL, "environment", 1)
    assert proof.proven


def test_a_program_without_caps_is_found_with_what_its_glibc_uses(begun: Callable[..., int]) -> None:
    pid = begun("/bin/sh", "-c", "echo up; read x")
    problems = "\n".join(_prove(pid).problems)
    assert "was started without GLIBC_TUNABLES, LD_BIND_NOW" in problems
    assert "uses avx512bw avx512cd avx512dq avx512f avx512vl" in problems


def test_what_glibc_uses_is_read_from_the_live_process(begun: Callable[..., int]) -> None:
    for level in ("x86-64-v2", "x86-64-v3"):
        environment = capped_environment(level, dict(os.environ))
        pid = begun("/bin/sh", "-c", "echo up; read x", environment=environment)
        files = tuple(mapped_files(pid))
        assert active_above(pid, level, files) == ()
        if level == "x86-64-v3":
            found = active_above(pid, "x86-64-v2", files)
            assert found is not None
            assert {"avx2", "fma", "bmi2"} <= set(found)


def test_a_server_that_drops_the_caps_and_starts_itself_again_is_found(begun: Callable[..., int]) -> None:
    pid = begun(
        "/bin/sh",
        "-c",
        "exec env -u GLIBC_TUNABLES /bin/sh -c 'echo up; read x'",
        environment=_capped(),
    )
    problems = "\n".join(_prove(pid).problems)
    assert "was started without GLIBC_TUNABLES\n" in problems
    assert "avx512f" in problems
    # with CPUID masked too: what it starts after a restore would not be held any more
    seen = CpuidReport((), {}, (), {pid: ("GLIBC_TUNABLES",)})
    assert "was started without GLIBC_TUNABLES" in "\n".join(_prove(pid, report=seen).problems)


def test_a_child_with_another_environment_is_found(begun: Callable[..., int]) -> None:
    pid = begun(
        "/bin/sh", "-c", "exec 3<&0; env -i /bin/sh -c 'echo up; read x' <&3 & wait", environment=_capped()
    )
    proof = _prove(pid)
    (child,) = [member.pid for member in process_tree(pid)[1:]]
    assert proof.processes == 2
    assert proof.problems
    assert all(f"process {child} " in problem for problem in proof.problems)


def test_numpy_is_held_but_code_beside_it_that_asks_the_cpu_itself_is_named(
    begun: Callable[..., int],
) -> None:
    pid = begun(
        sys.executable,
        "-c",
        "import numpy\n"
        "from numpy._core._multiarray_umath import __cpu_features__ as found\n"
        "assert not any(found[name] for name in ('X86_V4', 'AVX512_ICL', 'AVX512_SPR')), found\n"
        "assert found['AVX2']\n"
        "print('up', flush=True); input()",
        environment=_capped(),
    )
    (problem,) = _prove(pid).problems
    assert "code that asks the CPU past every cap" in problem
    assert "libgcc_s" in problem or "libstdc++" in problem
    # nothing of it matters where the CPU itself was answered for
    assert _prove(pid, report=MASKED).proven


def test_code_made_at_run_time_is_not_proven_by_the_environment(begun: Callable[..., int]) -> None:
    pid = begun(
        PYTHON,
        "-c",
        "import mmap; page = mmap.mmap(-1, 4096, prot=7); print('up', flush=True); input()",
        environment=_capped(),
    )
    assert any("compiles code at run time" in problem for problem in _prove(pid).problems)
    assert not any("compiles code" in problem for problem in _prove(pid, report=MASKED).problems)


def test_problems_of_the_tracer_speak_against_the_caps(begun: Callable[..., int]) -> None:
    pid = begun("/bin/sh", "-c", "echo up; read x", environment=_capped())
    escaped = CpuidReport(("/bin/old",), {}, ("/bin/old is a 32-bit program",))
    assert _prove(pid, report=escaped).problems == ("/bin/old is a 32-bit program",)


def test_avx512_that_a_thread_executed_is_seen(begun: Callable[..., int]) -> None:
    if not os.path.exists("/proc/self/arch_status"):
        pytest.skip("this kernel does not say when AVX-512 was used")
    began = time.monotonic()
    time.sleep(0.3)
    # uncapped glibc copies with EVEX registers; the kernel looks when it takes the CPU away
    pid = begun(
        PYTHON,
        "-c",
        "import os, time\n"
        "def used(): return 0 <= int(open('/proc/self/arch_status').read().split()[1]) < 250\n"
        "text = bytes(1 << 20)\n"
        "end = time.monotonic() + 30\n"
        "while not used() and time.monotonic() < end:\n"
        "    for _ in range(200): bytearray(text).find(b'x')\n"
        "    os.sched_yield()\n"
        "print('up', flush=True)\n"
        "while True: bytearray(text).find(b'x')",
    )
    proof = _prove(pid, report=MASKED, since_seconds=time.monotonic() - began)
    assert any("has executed AVX-512" in problem for problem in proof.problems)
