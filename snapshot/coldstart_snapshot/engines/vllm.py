"""vLLM, started with `--enable-sleep-mode` and VLLM_SERVER_DEV_MODE=1.

Level 1 moves the weights to host memory and drops the KV cache, level 2 drops both. Of level 1 the weights
can be woken alone, which is how they stay on the device while the KV cache is gone. After level 2 the memory
of the weights is mapped again, but empty: `reload_weights` reads them anew (vLLM 0.10 and newer).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from coldstart_snapshot.engines.engine import EngineError, EngineSilentError, Quiesced, Served
from coldstart_snapshot.engines.http_calls import Calls
from coldstart_snapshot.engines.settings import EngineSettings

_POLL_SECONDS = 0.05
# a sleep that was asked for and not confirmed is looked out for at least so long
_LATE_SECONDS = 10.0
_MISSING = "start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1 in its environment"
_BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)


class VllmEngine:
    def __init__(self, settings: EngineSettings, served: Served) -> None:
        self._settings = settings
        self._served = served

    def quiesce(self, releasing: Callable[[], None]) -> Quiesced:
        calls = Calls(self._settings, self._served)
        # before anything is asked to sleep: is that possible at all, and is it not asleep for somebody else
        if self._is_sleeping(calls):
            raise EngineError("engine vllm sleeps already", hint="curl -X POST URL/wake_up")
        self._wait_idle(calls)
        level = 2 if self._settings.weights == "drop" else 1
        releasing()
        # older ones do not know the mode, and ignore it
        calls.ask("POST", f"/sleep?level={level}&mode=wait", missing=_MISSING)
        self._wait_sleeping(calls, True)
        if self._settings.weights == "keep":
            calls.ask("POST", "/wake_up?tags=weights", missing=_MISSING)
        where = {
            "keep": "weights stay on the GPU",
            "park": "weights in host memory",
            "drop": "weights dropped",
        }
        return Quiesced(f"vLLM sleeps at level {level}: KV cache dropped, {where[self._settings.weights]}")

    def undo(self, *, released: bool, late: bool) -> str:
        del released  # it can be asked
        seconds = max(self._settings.timeout_seconds, _LATE_SECONDS) if late else 0.0
        deadline = time.monotonic() + seconds
        while not self._is_sleeping(Calls(self._settings, self._served)):
            if time.monotonic() > deadline:
                return self._stay_awake(seconds) if late else "vLLM is awake"
            time.sleep(_POLL_SECONDS)
        calls = Calls(self._settings, self._served)
        if self._settings.weights == "keep":
            # cut short before its weights were woken; when they are, it says so and does nothing
            calls.ask("POST", "/wake_up?tags=weights", missing=_MISSING)
        self._wake(calls)
        return "vLLM fell asleep late and was woken" if late else "vLLM woken"

    def _stay_awake(self, seconds: float) -> str:
        """A sleep that did not come by now may wait for requests; a wake-up ends that, or comes after it."""
        calls = Calls(self._settings, self._served)
        calls.ask("POST", "/wake_up", missing=_MISSING)
        if self._is_sleeping(calls):
            self._wake(calls)
        return f"vLLM stayed awake for {seconds:g} s, and was told to wake up"

    def resume(self, *, restored: bool) -> str:
        del restored
        calls = Calls(self._settings, self._served)
        if not self._is_sleeping(calls):
            return "vLLM is awake"
        self._wake(calls)
        return "vLLM woken"

    def _wake(self, calls: Calls) -> None:
        if self._settings.weights == "drop":
            calls.ask("POST", "/wake_up?tags=weights", missing=_MISSING)
            calls.ask("POST", "/collective_rpc", {"method": "reload_weights"}, missing=_MISSING)
            calls.ask("POST", "/wake_up?tags=kv_cache", missing=_MISSING)
        elif self._settings.weights == "keep":
            calls.ask("POST", "/wake_up?tags=kv_cache", missing=_MISSING)
        else:
            calls.ask("POST", "/wake_up", missing=_MISSING)
        self._wait_sleeping(calls, False)
        calls.ask("GET", "/health")

    def _wait_sleeping(self, calls: Calls, wanted: bool) -> None:
        # the answer may come before the engine's processes are done
        while self._is_sleeping(calls) != wanted:
            if calls.left_seconds <= 2 * _POLL_SECONDS:
                state = "fall asleep" if wanted else "wake up"
                raise EngineSilentError(
                    f"engine vllm did not {state} within {self._settings.timeout_seconds:g} s"
                )
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def _is_sleeping(calls: Calls) -> bool:
        answer = calls.ask("GET", "/is_sleeping", missing=_MISSING).table().get("is_sleeping")
        if not isinstance(answer, bool):
            raise EngineError("engine vllm does not say whether it sleeps", hint=_MISSING)
        return answer

    def _wait_idle(self, calls: Calls) -> None:
        """Until no request is under way: a sleep aborts those in versions without `mode=wait`."""
        while (busy := _requests(calls)) > 0:
            if calls.left_seconds <= 2 * _POLL_SECONDS:
                raise EngineError(
                    f"engine vllm still works on {busy:g} requests",
                    hint="take the replica out of traffic first",
                )
            time.sleep(_POLL_SECONDS)


def _requests(calls: Calls) -> float:
    answer = calls.try_ask("GET", "/metrics")
    if answer.status != 200:  # metrics can be switched off
        return 0.0
    return sum(float(value) for value in _BUSY.findall(answer.body.decode("utf-8", "replace")))
