"""The process that copies to every GPU and back, each in a thread of its own. `cuda_copy` starts it."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from coldstart_host.cuda_copy import CopyResult
from coldstart_host.cuda_driver import CudaDriver, CudaError

_ROUNDS = 3
_BLOCK_BYTES = 4096

_saying = threading.Lock()


def _say(content: dict[str, Any]) -> None:
    with _saying:
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()


class _Copy:
    """One GPU in a thread of its own; `call` is what it waits for."""

    def __init__(self, pci_bus_id: str) -> None:
        self.pci_bus_id = pci_bus_id
        self.call = "cuInit"

    def result(self, driver: CudaDriver, patterns: Sequence[bytes]) -> CopyResult:
        try:
            return self._copy(driver, patterns)
        except CudaError as error:
            return CopyResult(self.pci_bus_id, error.call, error.code, error.text)

    def _copy(self, driver: CudaDriver, patterns: Sequence[bytes]) -> CopyResult:
        size = len(patterns[0])
        device = self._step("cuDeviceGetByPCIBusId", partial(driver.device, self.pci_bus_id))
        self._step("cuDevicePrimaryCtxRetain", partial(driver.enter, device))
        there = self._step("cuMemAlloc", partial(driver.allocate, size))
        source = self._step("cuMemHostAlloc", partial(driver.allocate_host, size))
        back = self._step("cuMemHostAlloc", partial(driver.allocate_host, size))
        wrong, up, down = 0, [], []
        for number in range(_ROUNDS):
            ctypes.memmove(source, patterns[number % 2], size)
            ctypes.memset(back, 0, size)
            up.append(self._timed("cuMemcpyHtoD", driver, partial(driver.to_device, there, source, size)))
            down.append(self._timed("cuMemcpyDtoH", driver, partial(driver.to_host, back, there, size)))
            wrong += _different_bytes(source, back, size)
        self._step("cuMemFreeHost", partial(driver.free_host, source))
        self._step("cuMemFreeHost", partial(driver.free_host, back))
        self._step("cuMemFree", partial(driver.free, there))
        self._step("cuDevicePrimaryCtxRelease", partial(driver.leave, device))
        return CopyResult(
            self.pci_bus_id,
            wrong_bytes=wrong,
            to_device_bytes_per_second=size / min(up),
            to_host_bytes_per_second=size / min(down),
        )

    def _step(self, call: str, function: Callable[[], Any]) -> Any:
        self.call = call
        return function()

    def _timed(self, call: str, driver: CudaDriver, function: Callable[[], None]) -> float:
        started = time.monotonic()
        self._step(call, function)
        self._step("cuCtxSynchronize", driver.wait)
        return max(time.monotonic() - started, 1e-9)


def _different_bytes(one: ctypes.c_void_p, other: ctypes.c_void_p, size_bytes: int) -> int:
    if not ctypes.CDLL(None).memcmp(one, other, ctypes.c_size_t(size_bytes)):
        return 0
    first, second = (ctypes.string_at(pointer, size_bytes) for pointer in (one, other))
    count = 0
    for start in range(0, size_bytes, _BLOCK_BYTES):
        mine, its = (content[start : start + _BLOCK_BYTES] for content in (first, second))
        if mine != its:
            count += sum(a != b for a, b in zip(mine, its, strict=True))
    return count


class _Run:
    """All copies beside each other; one that does not come back costs the others nothing."""

    def __init__(self, seconds: float, size_bytes: int, bus_ids: Sequence[str]) -> None:
        self._end = time.monotonic() + seconds
        self._copies = [_Copy(bus_id) for bus_id in bus_ids]
        self._driver: CudaDriver | None = None
        pattern = os.urandom(size_bytes)
        # and its inverse, so that a bit that is stuck shows in one of them
        self._patterns = (pattern, pattern.translate(bytes(255 - value for value in range(256))))
        self.failures: list[BaseException] = []

    def copy(self) -> None:
        if not self._ended(self._thread(self._start)):
            _leave(self._copies)
        if self._driver is None:
            return
        threads = [(copy, self._thread(partial(self._take, self._driver, copy))) for copy in self._copies]
        if late := [copy for copy, thread in threads if not self._ended(thread)]:
            _leave(late)

    def _start(self) -> None:
        try:
            self._driver = CudaDriver()
        except CudaError as error:
            if error.code is None:
                _say({"missing": error.text})
                return
            for copy in self._copies:
                _say(asdict(CopyResult(copy.pci_bus_id, error.call, error.code, error.text)))

    def _take(self, driver: CudaDriver, copy: _Copy) -> None:
        _say(asdict(copy.result(driver, self._patterns)))

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.failures.append(error)

    def _ended(self, thread: threading.Thread) -> bool:
        thread.join(max(self._end - time.monotonic(), 0.0))
        return not thread.is_alive()


def _leave(late: Sequence[_Copy]) -> None:
    for copy in late:
        _say(asdict(CopyResult(copy.pci_bus_id, call=copy.call, hung=True)))
    os._exit(0)


def main() -> None:
    """One JSON line a GPU."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the health of all is asked for
    run = _Run(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    run.copy()
    if run.failures:
        raise run.failures[0]


if __name__ == "__main__":
    main()
