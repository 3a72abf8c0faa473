"""SGLang, started with `--enable-memory-saver`.

Memory is released and resumed by tags, `kv_cache` and `weights`. Weights that are released come back only
where the server was started with `--enable-weights-cpu-backup`; without it they are read anew from disk,
which is what `drop` does. A release while requests run ends the engine (SGLang 0.5), so it is paused first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from coldstart_snapshot.engines.engine import EngineError, EngineSilentError, Quiesced, Served
from coldstart_snapshot.engines.http_calls import Calls
from coldstart_snapshot.engines.settings import EngineSettings

_GIB = 1 << 30
_MISSING = "start SGLang with --enable-memory-saver"
_BACKUP = "start SGLang with --enable-weights-cpu-backup, or choose weights `keep` or `drop`"


class SglangEngine:
    def __init__(self, settings: EngineSettings, served: Served) -> None:
        self._settings = settings
        self._served = served

    @property
    def _tags(self) -> list[str]:
        return ["kv_cache"] if self._settings.weights == "keep" else ["kv_cache", "weights"]

    def quiesce(self, releasing: Callable[[], None]) -> Quiesced:
        calls = Calls(self._settings, self._served)
        information = _information(calls)
        if information.get("enable_memory_saver") is False:
            raise EngineError("engine sglang cannot release its memory", hint=_MISSING)
        if self._settings.weights == "park" and information.get("enable_weights_cpu_backup") is False:
            raise EngineError("engine sglang would lose its weights", hint=_BACKUP)
        # what is under way ends; older ones have no pause, and must be idle
        calls.try_ask("POST", "/pause_generation", {"mode": "retract"})
        calls.ask("POST", "/flush_cache")
        releasing()
        calls.ask("POST", "/release_memory_occupation", {"tags": self._tags}, missing=_MISSING)
        return Quiesced(f"SGLang released {' and '.join(self._tags)}", _kv_cache_bytes(information))

    def undo(self, *, released: bool, late: bool) -> str:
        del late  # its scheduler takes requests in order: a resume comes after a release still under way
        # to resume what was not released ends the engine (SGLang 0.5)
        if released:
            return self.resume(restored=False)
        Calls(self._settings, self._served).try_ask("POST", "/continue_generation", {})
        return "SGLang continued"

    def resume(self, *, restored: bool) -> str:
        del restored
        calls = Calls(self._settings, self._served)
        try:
            calls.ask("POST", "/resume_memory_occupation", {"tags": self._tags}, missing=_MISSING)
        except EngineSilentError:
            # it may be done yet, and must not find a paused engine then
            with suppress(EngineError):
                Calls(self._settings, self._served).try_ask("POST", "/continue_generation", {})
            raise
        if self._settings.weights == "drop":
            self._reload(calls)
        calls.try_ask("POST", "/continue_generation", {})
        calls.ask("GET", "/health")
        return "SGLang resumed"

    def _reload(self, calls: Calls) -> None:
        path = self._settings.model_path or _information(calls).get("model_path")
        if not isinstance(path, str):
            raise EngineError("engine sglang does not say which model it serves", hint="engine model_path")
        answer = calls.ask("POST", "/update_weights_from_disk", {"model_path": path}).table()
        if answer.get("success") is False:
            raise EngineError(f"engine sglang could not load {path}: {answer.get('message')}")


def _information(calls: Calls) -> dict[str, Any]:
    for path in ("/get_server_info", "/server_info"):
        if (answer := calls.try_ask("GET", path)).status == 200:
            return answer.table()
    return {}


def _kv_cache_bytes(information: dict[str, Any]) -> int | None:
    """What the server says of its KV cache, in GiB there."""
    states = information.get("internal_states")
    if not isinstance(states, list):
        return None
    sizes = [state.get("memory_usage", {}).get("kvcache") for state in states if isinstance(state, dict)]
    known = [size for size in sizes if isinstance(size, int | float)]
    return int(sum(known) * _GIB) if known else None
