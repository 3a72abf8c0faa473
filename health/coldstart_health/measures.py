"""What is measured of a GPU over its life, and how far from the usual is too far."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from coldstart_health.evidence import Evidence
from coldstart_host.gpu import GpuFacts

# a temperature, a clock or a power says something when the load is known: full
_FULL_UTILISATION_PERCENT = 90
_FULL_POWER_SHARE = 0.7


@dataclass(frozen=True)
class Measure:
    """`least` and `least_share`: how far from the median a value must be, however little they scatter.

    `lasts`: for how long a value stands for the GPU: `now`, an `hour` of this boot, until it is measured
    `again`. `kind`: `usual` is compared with its median, `limit` has a fixed floor before anything is
    known, `growth` is compared with the least of the last month.
    """

    key: str
    reason: str
    what: str
    worse: Literal["lower", "higher"]
    least: float = 0.0
    least_share: float = 0.0
    unit: str = ""
    lasts: Literal["now", "hour", "again"] = "now"
    kind: Literal["usual", "limit", "growth"] = "usual"
    driver_matters: bool = False


_LINK = "see `nvidia-smi -q -i {gpu}`; reseat it or its riser"
_DEEP = "compare it with its neighbours: `coldstart health deep --level 2` on the idle host"
_COOLING = "check the cooling and the power of the host"
ACTIONS: dict[str, str] = {
    "nvlinks_fewer": "see `nvidia-smi nvlink --status -i {gpu}`",
    "pcie_width_drift": _LINK,
    "pcie_generation_drift": _LINK,
    "pcie_bandwidth_drift": _DEEP,
    "pcie_latency_drift": _DEEP,
    "compute_drift": _DEEP,
    "temperature_drift": _COOLING,
    "clock_drift": _COOLING,
    "power_drift": _COOLING,
    "ecc_rate_high": "see `nvidia-smi -q -d ECC -i {gpu}`; have it diagnosed: `coldstart health deep`",
    "ecc_uncorrected_rising": "see `nvidia-smi -q -d ECC -i {gpu}`; plan its replacement",
    "remapped_rows_rising": "see `nvidia-smi -q -d ROW_REMAPPER -i {gpu}`; plan its replacement",
    "pcie_replay_rate_high": _LINK,
}

MEASURES: tuple[Measure, ...] = (
    Measure("nvlinks_active", "nvlinks_fewer", "active NVLinks", "lower", 0.5),
    Measure("pcie_width_max", "pcie_width_drift", "possible PCIe width", "lower", 0.5),
    Measure("pcie_generation_max", "pcie_generation_drift", "possible PCIe generation", "lower", 0.5),
    Measure(
        "full_load_temperature", "temperature_drift", "temperature under full load", "higher", 10, unit=" C",
        lasts="hour", driver_matters=True,
    ),
    Measure(
        "full_load_clock", "clock_drift", "clock under full load", "lower", least_share=0.07, unit=" MHz",
        lasts="hour", driver_matters=True,
    ),
    # DCGM's own limit is 8 replays a minute
    Measure(
        "pcie_replays_per_hour", "pcie_replay_rate_high", "PCIe replays an hour", "higher", 480,
        lasts="hour", kind="limit",
    ),
    # one a second: a row that fails at every access; single ones are what ECC is for
    Measure(
        "ecc_corrected_per_hour", "ecc_rate_high", "corrected ECC errors an hour", "higher", 3600,
        lasts="hour", kind="limit",
    ),
    Measure(
        "ecc_uncorrected", "ecc_uncorrected_rising", "uncorrectable ECC errors", "higher", 4, kind="growth"
    ),
    Measure(
        "remapped_rows", "remapped_rows_rising", "rows remapped after uncorrectable errors", "higher", 4,
        kind="growth",
    ),
    *(
        Measure(
            key, "pcie_bandwidth_drift", what, "lower", least_share=0.1, unit=" GB/s", lasts="again",
            driver_matters=True,
        )
        for key, what in (
            ("gpu_to_host_bandwidth", "bandwidth from the GPU (DCGM)"),
            ("host_to_gpu_bandwidth", "bandwidth to the GPU (DCGM)"),
            ("bidirectional_bandwidth", "bandwidth both ways (DCGM)"),
        )
    ),
    # a single copy of 64 MiB scatters more than DCGM's seconds of them
    *(
        Measure(
            key, "pcie_bandwidth_drift", what, "lower", least_share=0.25, unit=" GB/s", lasts="again",
            driver_matters=True,
        )
        for key, what in (
            ("copy_from_gpu", "bandwidth from the GPU (CUDA copy)"),
            ("copy_to_gpu", "bandwidth to the GPU (CUDA copy)"),
        )
    ),
    *(
        Measure(
            key, "pcie_latency_drift", what, "higher", 1.0, 0.5, " us", lasts="again", driver_matters=True
        )
        for key, what in (
            ("gpu_to_host_latency", "latency from the GPU (DCGM)"),
            ("host_to_gpu_latency", "latency to the GPU (DCGM)"),
            ("bidirectional_latency", "latency both ways (DCGM)"),
        )
    ),
    Measure(
        "gigaflops", "compute_drift", "arithmetic (DCGM diagnostic)", "lower", least_share=0.1,
        unit=" Gflop/s", lasts="again", driver_matters=True,
    ),
    Measure(
        "stress_level", "compute_drift", "arithmetic (DCGM targeted stress)", "lower", least_share=0.15,
        lasts="again", driver_matters=True,
    ),
    Measure(
        "power_average", "power_drift", "power under full load (DCGM)", "lower", least_share=0.15, unit=" W",
        lasts="again", driver_matters=True,
    ),
)  # fmt: skip
# counted by the GPU since its making, or since the driver was loaded: only their pace says something
PACES: dict[str, str] = {
    "ecc_corrected": "ecc_corrected_per_hour",
    "pcie_replays": "pcie_replays_per_hour",
}

_FIGURES = re.compile(
    r"(?:GPU (?P<gpu>\d+) )*"
    r"(?:(?P<way>GPU to Host|Host to GPU|bidirectional) (?P<kind>bandwidth|latency):\s*(?P<link>[\d.]+)"
    r"|calculated at approximately (?P<gigaflops>[\d.]+) gigaflops"
    r"|relative stress level\s*(?P<stress_level>[\d.]+)"
    r"|power average:\s*(?P<power_average>[\d.]+) W)"
)
_WAYS = {"GPU to Host": "gpu_to_host", "Host to GPU": "host_to_gpu", "bidirectional": "bidirectional"}


def counters(gpu: GpuFacts) -> dict[str, float]:
    """Counts whose pace is watched."""
    found: dict[str, float] = {}
    if gpu.ecc is not None:
        found["ecc_corrected"] = gpu.ecc.aggregate_corrected
    if gpu.pcie_replays is not None:
        found["pcie_replays"] = gpu.pcie_replays
    return found


def measured(gpu: GpuFacts) -> dict[str, float]:
    """What NVML says at this moment; what depends on the load only under full load."""
    found: dict[str, float | None] = {
        "nvlinks_active": gpu.nvlinks_active,
        "pcie_width_max": gpu.pcie_width_max,
        "pcie_generation_max": gpu.pcie_generation_max,
        "ecc_uncorrected": gpu.ecc.aggregate_uncorrected if gpu.ecc else None,
        "remapped_rows": gpu.remapped_rows.uncorrectable if gpu.remapped_rows else None,
    }
    if _full_load(gpu):
        found |= {"full_load_temperature": gpu.temperature_celsius, "full_load_clock": gpu.sm_clock_mhz}
    return {key: float(value) for key, value in found.items() if value is not None}


def exercised(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Figures that DCGM or a CUDA copy measured in this run, by the GPU's subject."""
    found: dict[str, dict[str, float]] = {}
    subjects = {gpu.pci_bus_id: gpu.subject for gpu in evidence.reading.gpus}
    for copy in evidence.copies:
        speeds = {
            "copy_to_gpu": copy.to_device_bytes_per_second,
            "copy_from_gpu": copy.to_host_bytes_per_second,
        }
        if copy.passed and copy.pci_bus_id in subjects:
            known = {key: speed / 1e9 for key, speed in speeds.items() if speed}
            found.setdefault(subjects[copy.pci_bus_id], {}).update(known)
    if evidence.dcgm:
        for subject, key, value in _dcgm(evidence):
            # several precisions, or a repeated run: the best of them is what the GPU can do
            better = min if key.endswith("latency") else max
            own = found.setdefault(subject, {})
            own[key] = better(own.get(key, value), value)
    return found


def figures(text: str) -> Iterator[tuple[int | None, str, float]]:
    """Numbers in DCGM's `info` texts: its number of the GPU where the text names one, what, how much."""
    for match in _FIGURES.finditer(text):
        named = match["gpu"]
        gpu = int(named) if named is not None else None
        if match["way"]:
            yield gpu, f"{_WAYS[match['way']]}_{match['kind']}", float(match["link"].rstrip("."))
        for key in ("gigaflops", "stress_level", "power_average"):
            if match[key]:
                yield gpu, key, float(match[key].rstrip("."))


def _dcgm(evidence: Evidence) -> Iterator[tuple[str, str, float]]:
    from coldstart_health.dcgm import Names
    from coldstart_health.dcgm_document import parse

    readable = [gpu for gpu in evidence.reading.gpus if gpu.readable]
    for output in evidence.dcgm:
        document = parse(output.text)
        if document is None:
            continue
        names = Names(output.known, readable)
        for result in document.results:
            alone = result.gpus[0] if len(result.gpus) == 1 else None
            for text in result.info:
                for named, key, value in figures(text):
                    number = alone if named is None else named
                    if number is not None:
                        yield names.subject(document, number), key, value


def _full_load(gpu: GpuFacts) -> bool:
    busy = (gpu.utilisation_percent or 0) >= _FULL_UTILISATION_PERCENT
    limit = gpu.power_limit_watts
    return busy and bool(limit) and (gpu.power_watts or 0.0) >= _FULL_POWER_SHARE * (limit or 0.0)
