"""What a capture and a restore ask of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coldstart_cli.errors import ColdstartError
from coldstart_snapshot.engines.settings import EngineSettings


class EngineError(ColdstartError):
    """The engine did not do what it was asked; the message says what it answered."""


class EngineSilentError(EngineError):
    """The engine did not say in time that it did it: it may do it yet."""


@dataclass(frozen=True)
class Served:
    """The server that an engine is in: its first process, and its container, where it has one.

    `network` is the namespace to speak to it from; None: ours.
    """

    pid: int
    snapshot: str
    container_id: str | None = None
    runc_root: Path | None = None
    runc: str | None = None
    network: Path | None = None


@dataclass(frozen=True)
class Quiesced:
    """What an engine gave up; `kv_cache_bytes` where it says how large its KV cache was."""

    note: str
    kv_cache_bytes: int | None = None


class Engine(Protocol):
    """Every call has the settings' deadline, and raises `EngineError` when it is over."""

    def quiesce(self, releasing: Callable[[], None]) -> Quiesced:
        """Finish what is under way, drop the KV cache, treat the weights as the settings say.

        `releasing` is called just before memory is given up. What raises here is undone by `undo`.
        """

    def undo(self, *, released: bool, late: bool) -> str:
        """Serve again after a capture that was cut short, `released` when memory may have been given up.

        `late` when it may be given up only now: what was asked for last was not confirmed.
        """

    def resume(self, *, restored: bool) -> str:
        """Serve again, after the capture or in a restored server; returns what was done in words."""


def engine_of(
    settings: EngineSettings, served: Served, environment: Mapping[str, str] | None = None
) -> Engine:
    """The engine that the settings name, in this server; `environment` is that of its first process."""
    if settings.kind == "vllm":
        from coldstart_snapshot.engines.vllm import VllmEngine

        return VllmEngine(settings, served)
    if settings.kind == "sglang":
        from coldstart_snapshot.engines.sglang import SglangEngine

        return SglangEngine(settings, served)
    if settings.kind == "command":
        from coldstart_snapshot.engines.commands import CommandEngine

        return CommandEngine(settings, served)
    from coldstart_snapshot.engines.sentinel import SentinelEngine

    return SentinelEngine(settings, served, environment)
