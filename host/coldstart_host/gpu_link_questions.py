"""What one GPU says of its NVLinks and of the fabric behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from coldstart_host.gpu import Fabric, NvLinkErrors
from coldstart_host.gpu_asking import GpuQuestions
from coldstart_host.gpu_codes import NvmlCode

_FIELD_LINK_RECOVERY_FAILED = 214
_FIELD_LINK_RECOVERY = 215
_FIELD_LINK_EFFECTIVE_ERRORS = 219
_LINK_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data", "ecc_data")  # by NVML's number
_NVLINK_LIMIT = 64


def ask_nvlinks(of: GpuQuestions) -> None:
    """The links until NVML says that there is no such link; nothing without NVLink."""
    states = list(_link_states(of))
    if not states:
        return
    active = [link for link, state in enumerate(states) if state]
    of.values |= {"nvlinks": len(states), "nvlinks_active": len(active)}
    of.values["nvlink_errors"] = tuple(counts for counts in _link_errors(of, active) if counts.any)


def _link_states(of: GpuQuestions) -> Iterator[bool]:
    for link in range(_NVLINK_LIMIT):
        state = of.ask("nvmlDeviceGetNvLinkState", lambda link=link: _link_state(of, link))  # type: ignore[misc]
        if state is None:
            return
        yield state


def _link_state(of: GpuQuestions, link: int) -> bool | None:
    try:
        return bool(of.nvml.nvmlDeviceGetNvLinkState(of.handle, link))
    except of.nvml.NVMLError as error:
        if error.value != NvmlCode.INVALID_ARGUMENT:
            raise
        return None  # there is no such link


def _link_errors(of: GpuQuestions, links: list[int]) -> Iterator[NvLinkErrors]:
    """Per link, through the counters of NVLink 4 and before, or the fields of NVLink 5."""
    for link in links:
        counts = [
            of.plain("nvmlDeviceGetNvLinkErrorCounter", link, number) for number in range(len(_LINK_COUNTERS))
        ]
        if all(count is None for count in counts):
            yield from _newer_link_errors(of, links)
            return
        yield NvLinkErrors(link, *counts)


def _newer_link_errors(of: GpuQuestions, links: list[int]) -> Iterator[NvLinkErrors]:
    kinds = (_FIELD_LINK_RECOVERY, _FIELD_LINK_RECOVERY_FAILED, _FIELD_LINK_EFFECTIVE_ERRORS)
    values = of.fields(*((kind, link) for link in links for kind in kinds))
    for number, link in enumerate(links):
        recovery, failed, effective = values[3 * number : 3 * number + 3]
        yield NvLinkErrors(link, None, recovery, None, None, None, failed, effective)


def ask_fabric(of: GpuQuestions) -> None:
    nvml = of.nvml
    of.values["fabric"] = of.ask(
        "nvmlDeviceGetGpuFabricInfo",
        lambda: _fabric_info(of, nvml.c_nvmlGpuFabricInfo_v3_t),
        lambda: _fabric_info(of, nvml.c_nvmlGpuFabricInfo_v2_t),
    )


def _fabric_info(of: GpuQuestions, layout: Any) -> Fabric:
    info = layout()
    of.nvml.nvmlDeviceGetGpuFabricInfoV(of.handle, ctypes.byref(info))
    return Fabric(
        state=info.state & 0xFF,  # NVML writes one byte of state, nvidia-ml-py reads four
        status=info.status,
        health_mask=info.healthMask,
        health_summary=getattr(info, "healthSummary", None),
        cluster_uuid=_uuid_text(bytes(info.clusterUuid)),
        clique=info.cliqueId,
    )


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
