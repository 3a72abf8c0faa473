"""The environment that holds a server to a level, and how it goes with the server's own."""

from __future__ import annotations

import os
import subprocess

import pytest

from coldstart_cli.errors import DataError, UsageError
from coldstart_host.cpu import read_cpu_facts
from coldstart_host.cpu_levels import LEVELS, reaches
from coldstart_snapshot.cpu.caps import CAPS, broken_caps, capped_environment, check_level

LOADER = "/lib64/ld-linux-x86-64.so.2"


@pytest.mark.parametrize("level", LEVELS)
def test_every_cap_has_a_value_and_a_reason_and_holds_by_itself(level: str) -> None:
    environment = capped_environment(level, {"PATH": "/bin"})
    assert environment["PATH"] == "/bin"
    assert set(environment) == {"PATH", *(cap.name for cap in CAPS)}
    assert all(cap.reason for cap in CAPS)
    assert broken_caps(level, environment) == []
    assert capped_environment(level, environment) == environment


def test_a_lower_level_holds_a_higher_one_too_and_not_the_other_way_round() -> None:
    low, high = capped_environment("x86-64-v2", {}), capped_environment("x86-64-v4", {})
    # OpenSSL's masks and NumPy's lists are compared as they are
    assert set(broken_caps("x86-64-v4", low)) <= {"OPENSSL_ia32cap"}
    assert {"GLIBC_TUNABLES", "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE"} <= set(
        broken_caps("x86-64-v2", high)
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATEN_CPU_CAPABILITY", "default"),
        ("ONEDNN_MAX_CPU_ISA", "sse41"),
        ("OPENBLAS_CORETYPE", "Nehalem"),
        ("MKL_ENABLE_INSTRUCTIONS", "AVX"),
        ("LD_BIND_NOW", "yes"),
    ],
)
def test_a_stricter_value_of_the_server_stays(name: str, value: str) -> None:
    assert capped_environment("x86-64-v3", {name: value})[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATEN_CPU_CAPABILITY", "avx512"),
        ("ONEDNN_MAX_CPU_ISA", "DEFAULT"),
        ("OPENBLAS_CORETYPE", "Zen"),
        ("OPENSSL_ia32cap", ":~0x20"),
        ("LD_BIND_NOW", ""),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=AVX512F"),
    ],
)
def test_what_allows_more_is_refused(name: str, value: str) -> None:
    with pytest.raises(DataError, match=name):
        capped_environment("x86-64-v3", {name: value})


def test_other_tunables_and_masks_of_the_server_stay_beside_ours() -> None:
    own = "glibc.malloc.arena_max=2:glibc.cpu.hwcaps=-ERMS"
    value = capped_environment("x86-64-v3", {"GLIBC_TUNABLES": own})["GLIBC_TUNABLES"]
    assert value.startswith("glibc.malloc.arena_max=2:glibc.cpu.hwcaps=-ERMS,-AVX512F")
    names = capped_environment("x86-64-v3", {"NPY_DISABLE_CPU_FEATURES": "AVX2"})["NPY_DISABLE_CPU_FEATURES"]
    assert names.split()[0] == "AVX2"
    assert "X86_V4" in names.split()


def test_a_level_that_does_not_exist_is_refused() -> None:
    assert check_level("native") == "native"
    with pytest.raises(UsageError, match="unknown CPU level: v3"):
        check_level("v3")


@pytest.mark.skipif(not os.path.exists(LOADER), reason="no glibc loader here")
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_the_real_glibc_leaves_out_the_library_folders_above_the_level(level: str) -> None:
    if not reaches("x86-64-v4", read_cpu_facts().level):
        pytest.skip("this CPU has nothing to leave out")
    text = subprocess.run(
        [LOADER, "--help"],
        env=capped_environment(level, {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("x86-64-v")]
    searched = {line.split()[0] for line in lines if "supported, searched" in line}
    assert level in searched
    assert searched <= {"x86-64-v2", level}
