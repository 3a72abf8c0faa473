"""The distribution's default seccomp profile, turned from containers-common's format into runc's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError

PROFILES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))

# criu cannot dump rings; without these calls libuv, Redis and others fall back to epoll
_NEVER_ALLOWED = frozenset({"io_uring_setup", "io_uring_enter", "io_uring_register"})
_ARCHITECTURES = {
    "x86_64": ("SCMP_ARCH_X86_64", "amd64"),
    "aarch64": ("SCMP_ARCH_AARCH64", "arm64"),
    "ppc64le": ("SCMP_ARCH_PPC64LE", "ppc64le"),
    "riscv64": ("SCMP_ARCH_RISCV64", "riscv64"),
    "s390x": ("SCMP_ARCH_S390X", "s390x"),
}


def default_profile(
    capabilities: Iterable[str], profiles: Iterable[Path] = PROFILES
) -> dict[str, Any] | None:
    """The first profile on this host as a bundle's `linux.seccomp`; None when the host has none."""
    for path in profiles:
        try:
            profile = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"seccomp profile cannot be read: {path}: {error}") from error
        return convert_profile(profile, frozenset(capabilities), os.uname().machine, os.uname().release)
    return None


def convert_profile(
    profile: Mapping[str, Any], capabilities: frozenset[str], machine: str, release: str
) -> dict[str, Any]:
    """Resolve a profile's conditions (capabilities, architecture, kernel) for one container on one host."""
    native, short = _ARCHITECTURES.get(machine, ("SCMP_ARCH_NATIVE", machine))
    rules = [
        rule
        for entry in profile.get("syscalls", ())
        if _applies(entry, capabilities, short, release)
        for rule in [_rule(entry)]
        if rule["names"]
    ]
    architectures = [native]
    for entry in profile.get("archMap", ()):
        if entry.get("architecture") == native:
            architectures += entry.get("subArchitectures") or ()
    converted = {
        "defaultAction": profile["defaultAction"],
        "architectures": architectures,
        "syscalls": rules,
    }
    if "defaultErrnoRet" in profile:
        converted["defaultErrnoRet"] = profile["defaultErrnoRet"]
    return converted


def _applies(entry: Mapping[str, Any], capabilities: frozenset[str], short: str, release: str) -> bool:
    includes, excludes = entry.get("includes") or {}, entry.get("excludes") or {}
    if not set(includes.get("caps") or ()) <= capabilities:
        return False
    if set(excludes.get("caps") or ()) & capabilities:
        return False
    if (names := includes.get("arches")) and short not in names:
        return False
    if short in (excludes.get("arches") or ()):
        return False
    oldest = includes.get("minKernel")
    return oldest is None or _version(release) >= _version(oldest)


def _version(release: str) -> tuple[int, ...]:
    numbers = []
    for part in release.split(".")[:2]:
        digits = part.split("-")[0]
        if not digits.isdecimal():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _rule(entry: Mapping[str, Any]) -> dict[str, Any]:
    names = [*(entry.get("names") or ()), *([entry["name"]] if entry.get("name") else [])]
    if entry["action"] == "SCMP_ACT_ALLOW":
        names = [name for name in names if name not in _NEVER_ALLOWED]
    rule: dict[str, Any] = {"names": names, "action": entry["action"]}
    if entry.get("args"):
        rule["args"] = entry["args"]
    if "errnoRet" in entry:
        rule["errnoRet"] = entry["errnoRet"]
    return rule
