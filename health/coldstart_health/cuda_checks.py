"""A copy to a GPU and back, judged: CUDA's errors, wrong bytes, and a bus far slower than its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coldstart_health.gpu_faults import RESET
from coldstart_health.verdict import HOST, Finding, Verdict
from coldstart_host.cuda_copy import CopyResult
from coldstart_host.gpu import GpuFacts

_SOURCE = "cuda"
_NVRM = "see `dmesg` for NVRM lines"
_FABRIC = "systemctl status nvidia-fabricmanager"
_OUT_OF_MEMORY = 2
# what one PCIe lane carries, by generation
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
# a single copy of 64 MiB reaches well above half; a quarter is a link that trained down or retries
_LEAST_SHARE = 0.25

_ERRORS: dict[int, tuple[str, Verdict, str]] = {
    _OUT_OF_MEMORY: ("cuda_out_of_memory", Verdict.UNKNOWN, "see who holds its memory with `nvidia-smi`"),
    3: ("cuda_not_initialized", Verdict.UNKNOWN, _NVRM),
    34: ("cuda_stub", Verdict.UNKNOWN, "a stub of the CUDA library is found first: repair the library path"),
    46: ("gpu_busy", Verdict.UNKNOWN, "another process has the GPU for itself: see `nvidia-smi`"),
    100: ("cuda_device_missing", Verdict.DRAIN, f"{_NVRM}; reboot"),
    101: ("cuda_device_missing", Verdict.DRAIN, f"{_NVRM}; reboot"),
    214: ("ecc_uncorrectable", Verdict.RESET, RESET),
    219: ("cuda_graphics", Verdict.UNKNOWN, _NVRM),
    700: ("cuda_context_broken", Verdict.RESET, RESET),
    702: ("cuda_timeout", Verdict.UNKNOWN, _NVRM),
    710: ("cuda_context_broken", Verdict.RESET, RESET),
    714: ("cuda_hardware_stack", Verdict.RESET, RESET),
    718: ("cuda_context_broken", Verdict.RESET, RESET),
    719: ("cuda_context_broken", Verdict.RESET, RESET),
    801: ("cuda_not_supported", Verdict.UNKNOWN, _NVRM),
    802: ("fabric_not_started", Verdict.DRAIN, _FABRIC),
    803: (
        "driver_version_mismatch",
        Verdict.REBOOT,
        "reboot: the driver was upgraded while its old kernel module stayed loaded",
    ),
    804: (
        "cuda_compatibility",
        Verdict.DRAIN,
        "remove the CUDA compatibility package, or upgrade the driver",
    ),
    999: ("cuda_error", Verdict.UNKNOWN, _NVRM),
}


def copy_findings(results: Sequence[CopyResult], gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    """What each copy came to; none is a finding where all is well."""
    by_bus = {gpu.pci_bus_id: gpu for gpu in gpus}
    for result in results:
        gpu = by_bus.get(result.pci_bus_id)
        where = HOST if gpu is None else gpu.subject
        for reason, verdict, evidence, action in _judge(result, gpu):
            yield Finding(reason, verdict, where, _SOURCE, evidence, action.format(gpu=where))


def _judge(result: CopyResult, gpu: GpuFacts | None) -> Iterator[tuple[str, Verdict, str, str]]:
    if result.hung:
        evidence = f"CUDA did not come back, in {result.call or 'a call'}"
        yield "probe_hang", Verdict.UNKNOWN, evidence, f"{_NVRM}; reboot if it repeats"
    elif result.call:
        if result.code == _OUT_OF_MEMORY and gpu and gpu.process_ids:
            evidence = f"copy not made: its {len(gpu.process_ids)} processes hold the memory"
            yield "copy_skipped", Verdict.OK, evidence, "look again when the GPU is idle"
            return
        reason, verdict, action = _ERRORS.get(result.code or 0, ("cuda_error", Verdict.UNKNOWN, _NVRM))
        code = "" if result.code is None else f" (CUDA {result.code})"
        yield reason, verdict, f"{result.call}: {result.text}{code}", action
    elif result.wrong_bytes:
        evidence = f"{result.wrong_bytes} bytes of a copy to the GPU and back came back wrong"
        yield "copy_mismatch", Verdict.DRAIN, evidence, "have NVIDIA's field diagnostic run on it"
    else:
        yield from _speed(result, gpu)


def _speed(result: CopyResult, gpu: GpuFacts | None) -> Iterator[tuple[str, Verdict, str, str]]:
    if gpu is None or gpu.pcie_generation_max not in _LANE_BYTES_PER_SECOND or not gpu.pcie_width_max:
        return
    wire = _LANE_BYTES_PER_SECOND[gpu.pcie_generation_max] * gpu.pcie_width_max
    for direction, speed in (
        ("to the GPU", result.to_device_bytes_per_second),
        ("from the GPU", result.to_host_bytes_per_second),
    ):
        if speed is not None and speed < _LEAST_SHARE * wire:
            evidence = (
                f"copied {direction} at {speed / 1e9:.1f} GB/s, PCIe generation {gpu.pcie_generation_max} "
                f"x{gpu.pcie_width_max} carries {wire / 1e9:.0f} GB/s"
            )
            action = "run `coldstart health deep --level 2` on the idle host"
            yield "copy_bandwidth_low", Verdict.DEGRADED, evidence, action
