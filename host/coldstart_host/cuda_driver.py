"""The few functions of the CUDA driver library that a copy to a GPU and back needs, through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libcuda.so.1"
_PORTABLE = 1  # page-locked for the contexts of all GPUs


class CudaError(Exception):
    """A call that failed; `code` is CUDA's, or None where the library itself is missing."""

    def __init__(self, call: str, code: int | None, text: str) -> None:
        super().__init__(text)
        self.call = call
        self.code = code
        self.text = text


class CudaDriver:
    """The library, started. Every method raises `CudaError`."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise CudaError("dlopen", None, str(error)) from error
        self._call("cuInit", 0)

    def device(self, pci_bus_id: str) -> int:
        device = ctypes.c_int()
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), pci_bus_id.encode("ascii"))
        return device.value

    def enter(self, device: int) -> None:
        """Make the device's own context that of this thread."""
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def leave(self, device: int) -> None:
        self._call("cuDevicePrimaryCtxRelease_v2", device)

    def allocate(self, size_bytes: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return pointer

    def free(self, pointer: ctypes.c_uint64) -> None:
        self._call("cuMemFree_v2", pointer)

    def allocate_host(self, size_bytes: int) -> ctypes.c_void_p:
        """Page-locked memory of the host: the driver copies to and from it at the speed of the bus."""
        pointer = ctypes.c_void_p()
        self._call(
            "cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), ctypes.c_uint(_PORTABLE)
        )
        return pointer

    def free_host(self, pointer: ctypes.c_void_p) -> None:
        self._call("cuMemFreeHost", pointer)

    def to_device(self, target: ctypes.c_uint64, source: ctypes.c_void_p, size_bytes: int) -> None:
        self._call("cuMemcpyHtoD_v2", target, source, ctypes.c_size_t(size_bytes))

    def to_host(self, target: ctypes.c_void_p, source: ctypes.c_uint64, size_bytes: int) -> None:
        self._call("cuMemcpyDtoH_v2", target, source, ctypes.c_size_t(size_bytes))

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise CudaError(name, None, f"the driver has no {name}") from error
        code = int(function(*arguments))
        if code:
            raise CudaError(name, code, self._name(code))

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = not self._library.cuGetErrorName(code, ctypes.byref(text))
        return text.value.decode("ascii", "replace") if known and text.value else f"CUDA error {code}"
