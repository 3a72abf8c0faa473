"""Names of workloads, and where their traces are kept."""

from __future__ import annotations

import re

from coldstart_cli.errors import UsageError

DEFAULT_WORKLOAD = "default"
SUFFIX = ".trace"
_WORKLOAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def is_workload(name: str) -> bool:
    return _WORKLOAD.fullmatch(name) is not None


def check_workload(name: str) -> str:
    """The name itself, when it may name a workload."""
    if not is_workload(name):
        raise UsageError(
            f"not a workload's name: {name}",
            hint="1-128 characters of A-Z a-z 0-9 . _ - beginning with a letter or digit",
        )
    return name


def trace_key(image: bytes, workload: str) -> str:
    """The key of a trace in a store."""
    return f"{trace_prefix(image)}{workload}{SUFFIX}"


def trace_prefix(image: bytes) -> str:
    """What the keys of all traces of an image begin with."""
    return f"traces/{image.hex()}/"


def workload_of(name: str) -> str | None:
    """The workload of a trace's file name or key; None for what is no trace."""
    name = name.rpartition("/")[2]
    workload = name.removesuffix(SUFFIX)
    return workload if workload != name and _WORKLOAD.fullmatch(workload) else None
