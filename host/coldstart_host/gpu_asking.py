"""One GPU that is asked through NVML: sorts each answer, and tells which one it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from coldstart_host.gpu import GpuFacts, NvmlFault
from coldstart_host.gpu_codes import NvmlCode, skipped_codes

T = TypeVar("T")

_VALUE_KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class GpuQuestions:
    """Sorts the answers of one GPU: a value, a question it does not know, or a fault.

    Another thread may take `facts` at any moment: the answers so far, and in `call` the one that is awaited.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.call = ""
        self.values: dict[str, Any] = {}
        self.handle: Any = None
        self._faults: list[NvmlFault] = []
        self._skipped: list[str] = []
        self._lost = False
        # told of the answers so far before each call; the call is in their `hung`
        self.announce: Callable[[GpuFacts], None] = lambda _: None

    def facts(self, *, hung: str | None = None) -> GpuFacts:
        values = {name: value for name, value in list(self.values.items()) if value is not None}
        return GpuFacts(
            index=self.index,
            hung=hung,
            skipped=tuple(dict.fromkeys(self._skipped)),
            faults=tuple(self._faults),
            **values,
        )

    def ask(self, call: str, *ways: Callable[[], T]) -> T | None:
        """The first way that the driver knows; a GPU that is lost is not asked again."""
        if self._lost:
            return None
        self.call = call
        self.announce(self.facts(hung=call))
        for way in ways:
            try:
                return self._twice(way)
            except self.nvml.NVMLError as error:
                if error.value in skipped_codes(call):
                    continue
                self._fault(call, error)
                return None
            except UnicodeDecodeError as error:
                # a text with other bytes than UTF-8: NVML's texts are kept readable, not exact
                return cast("T", bytes(error.object).decode("utf-8", "replace"))
        self._skipped.append(call)
        return None

    def plain(self, call: str, *arguments: Any) -> Any:
        """A function of NVML that takes the handle and is named `call` in nvidia-ml-py too."""
        return self.ask(call, lambda: getattr(self.nvml, call)(self.handle, *arguments))

    def fields(self, *wanted: int | tuple[int, int]) -> list[int | None]:
        """The values of several fields (with their scope) in one call; each may be unknown to the GPU."""
        answers = self.ask(
            "nvmlDeviceGetFieldValues",
            lambda: self.nvml.nvmlDeviceGetFieldValues(self.handle, list(wanted)),
        )
        return [None] * len(wanted) if answers is None else [self._field(answer) for answer in answers]

    def _field(self, answer: Any) -> int | None:
        if answer.nvmlReturn == 0:
            kind = answer.valueType
            return int(getattr(answer.value, _VALUE_KINDS[kind] if kind < len(_VALUE_KINDS) else "ullVal"))
        # an old driver calls a field that it does not know an invalid argument
        field = f"field {answer.fieldId}"
        if answer.nvmlReturn in {*skipped_codes(field), NvmlCode.INVALID_ARGUMENT, NvmlCode.NOT_FOUND}:
            self._skipped.append(field)
        else:
            self._fault(field, self.nvml.NVMLError(answer.nvmlReturn))
        return None

    def switch(self, call: str, value: int) -> bool | None:
        """On or off; any other value is a fault and no `on`."""
        if value in {0, 1}:
            return bool(value)
        self._faults.append(NvmlFault(call, NvmlCode.UNKNOWN, f"answered {value}, neither on nor off"))
        return None

    def _fault(self, call: str, error: Any) -> None:
        self._faults.append(NvmlFault(call, error.value, str(error)))
        self._lost = self._lost or error.value == NvmlCode.GPU_IS_LOST

    def _twice(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except self.nvml.NVMLError as error:
            if error.value != NvmlCode.UNKNOWN:
                raise
            return function()  # often momentary: a driver that was just loaded, a reset under way
