"""How many GPUs this host should have, how many it has, and the record of those it had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, IoFailure
from coldstart_cli.files import atomic_write
from coldstart_cli.regular import read_regular
from coldstart_health.gpu_faults import fault_finding
from coldstart_health.verdict import HOST, Expectation, Finding, Verdict
from coldstart_host.gpu import NvmlReading
from coldstart_host.gpu_codes import NvmlCode
from coldstart_host.kernel import boot_id
from coldstart_host.pci import PciGpu

_SCHEMA = "coldstart.health.inventory"
_VERSION = 1
_SOURCE = "inventory"
NO_DRIVER_CODES = frozenset({NvmlCode.LIBRARY_NOT_FOUND, NvmlCode.DRIVER_NOT_LOADED})
NONE_CODES = NO_DRIVER_CODES | {NvmlCode.GPU_NOT_FOUND}


@dataclass(frozen=True)
class KnownGpu:
    uuid: str
    name: str | None
    serial: str | None
    pci_bus_id: str | None


@dataclass(frozen=True)
class Inventory:
    """The GPUs that a successful run saw."""

    boot_id: str
    driver_version: str | None
    gpus: tuple[KnownGpu, ...]


def inventory_path(state_folder: Path) -> Path:
    return state_folder / "health" / "inventory.json"


def load_inventory(path: Path) -> Inventory | None:
    """The record, None where there is none; a record that cannot be read is an error, not an empty host."""
    hint = f"rm {path}, then `coldstart health quick --expect-gpus N`"
    try:
        document = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IoFailure(f"cannot read the GPU inventory: {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"GPU inventory is damaged: {path}", hint=hint) from error
    try:
        if document["schema"] != _SCHEMA:
            raise DataError(f"not a GPU inventory: {path}", hint=hint)
        if document["version"] > _VERSION:
            raise DataError(
                f"GPU inventory is of version {document['version']}, newer than this coldstart: {path}",
                hint="install the coldstart that wrote it",
            )
        gpus = tuple(map(_known, document["gpus"]))
        boot, driver = document.get("boot_id"), document.get("driver_version")
        return Inventory("" if boot is None else boot, driver, gpus)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"GPU inventory is damaged: {path}: {error}", hint=hint) from error


def _known(gpu: dict[str, Any]) -> KnownGpu:
    """One GPU of a record, or of a person's list, which need say no more than the UUID."""
    texts: dict[str, Any] = {field: gpu.get(field) for field in ("uuid", "name", "serial", "pci_bus_id")}
    if unknown := gpu.keys() - texts.keys():
        raise ValueError(f"unknown key: {min(unknown)}")
    for field, text in texts.items():
        if not isinstance(text, str) and (field == "uuid" or text is not None):
            raise ValueError(f"{field} of a GPU is no text: {text!r:.40}")
    return KnownGpu(**texts)


def record_inventory(path: Path, reading: NvmlReading, known: Inventory | None) -> None:
    """Write what this boot has; nothing when it is what the record says already."""
    gpus = tuple(
        KnownGpu(gpu.uuid, gpu.name, gpu.serial, gpu.pci_bus_id)
        for gpu in reading.gpus
        if gpu.uuid is not None
    )
    inventory = Inventory(boot_id(), reading.driver_version, gpus)
    if inventory == known or (known is None and not gpus):
        return
    document: dict[str, Any] = {
        "schema": _SCHEMA,
        "version": _VERSION,
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "boot_id": inventory.boot_id,
        "driver_version": inventory.driver_version,
        "gpus": [vars(gpu) for gpu in gpus],
    }
    atomic_write(path, json.dumps(document, indent=2).encode() + b"\n")


def may_record(reading: NvmlReading, expected: Expectation) -> bool:
    """Only a full count may replace the record, unless the operator said how many there should be."""
    if reading.fault is not None:
        return expected.explicit and expected.count == 0 and reading.fault.code in NO_DRIVER_CODES
    if reading.hung or not reading.complete:
        return False
    found = reading.count or 0
    return found == expected.count if expected.explicit else found >= expected.count


def inventory_findings(
    reading: NvmlReading, expected: Expectation, bus: tuple[PciGpu, ...], known: Inventory | None
) -> Iterator[Finding]:
    """Compare what should be there, what the bus shows, and what the driver answers for."""
    bus = tuple(gpu for gpu in bus if gpu.ours)
    wanted = expected.count if expected.explicit else max(expected.count, len(bus))
    if reading.fault is not None:
        yield from _driver_fault(reading, expected, wanted, bus)
        return
    if reading.died and not any(gpu.died for gpu in reading.gpus):
        evidence = f"NVML ended its process, in {reading.hung}"
        action = "see `dmesg` for NVRM lines; reinstall NVIDIA's driver"
        yield _finding("probe_died", Verdict.UNKNOWN, evidence, action)
    elif reading.hung and not any(gpu.hung for gpu in reading.gpus):
        yield _finding(
            "probe_hang",
            Verdict.UNKNOWN,
            f"the driver did not answer in time, at: {reading.hung}",
            "see `dmesg` for NVRM lines; without persistence mode each GPU takes 1-3 s to answer: "
            "`systemctl enable --now nvidia-persistenced`",
        )
    if reading.count is None:
        return
    if not reading.count and not wanted:
        yield no_gpu()
    elif reading.count < wanted:
        yield from _missing(reading, reading.count, expected, wanted, bus, known)
    elif expected.explicit and reading.count > wanted:
        evidence = f"{reading.count} GPUs found, {wanted} expected ({expected.source})"
        yield _finding(
            "gpu_unexpected", Verdict.DEGRADED, evidence, "set `health.expect_gpus` to what is right"
        )
    elif reading.complete and known is not None:
        yield from _exchanged(reading, expected, known)


def _exchanged(reading: NvmlReading, expected: Expectation, known: Inventory) -> Iterator[Finding]:
    """As many as there should be, and others than those that were named or here before."""
    before = {gpu.uuid for gpu in known.gpus}
    here = {gpu.uuid: gpu for gpu in reading.gpus}
    gone = [gpu for gpu in known.gpus if gpu.uuid not in here]
    new = [gpu for uuid, gpu in here.items() if uuid not in before]
    if gone and new:
        names = ", ".join(f"{gpu.uuid} ({gpu.name})" for gpu in gone)
        others = ", ".join(f"{gpu.uuid} ({gpu.name})" for gpu in new)
        verdict = Verdict.DEGRADED if expected.named else Verdict.OK
        action = f"correct {expected.source}" if expected.named else None
        yield _finding("gpu_exchanged", verdict, f"{others} in the place of {names}", action)


def no_gpu() -> Finding:
    return _finding("no_gpu", Verdict.OK, "no GPU on this host, and none is expected", None)


def _driver_fault(
    reading: NvmlReading, expected: Expectation, wanted: int, bus: tuple[PciGpu, ...]
) -> Iterator[Finding]:
    fault = reading.fault
    assert fault is not None
    if fault.code in NONE_CODES and not wanted:
        yield no_gpu()
        return
    if fault.code not in NO_DRIVER_CODES:
        yield fault_finding(fault, HOST, about=_versions(reading))
        return
    evidence = f"{_expected(expected, bus)}, and "
    if fault.code == NvmlCode.LIBRARY_NOT_FOUND:
        loaded = any(gpu.driver == "nvidia" for gpu in bus)
        evidence += "libnvidia-ml.so.1 is not installed" + (" beside the loaded driver" if loaded else "")
        action = "install NVIDIA's driver"
        yield _finding("driver_missing", Verdict.DRAIN, evidence, action)
    else:
        wrong = sorted({gpu.driver for gpu in bus if gpu.driver and gpu.driver != "nvidia"})
        evidence += "NVIDIA's kernel driver is not loaded" + (f" ({', '.join(wrong)} is)" if wrong else "")
        yield _finding("driver_not_loaded", Verdict.DRAIN, evidence, "modprobe nvidia")


def _versions(reading: NvmlReading) -> str:
    if reading.fault is None or reading.fault.code != NvmlCode.LIB_RM_VERSION_MISMATCH:
        return ""
    module, library = (version or "unknown" for version in (reading.module_version, reading.library_version))
    return f": kernel module {module}, library {library}"


def _missing(
    reading: NvmlReading,
    count: int,
    expected: Expectation,
    wanted: int,
    bus: tuple[PciGpu, ...],
    known: Inventory | None,
) -> Iterator[Finding]:
    here = {gpu.pci_bus_id for gpu in reading.gpus}
    silent = [gpu for gpu in bus if gpu.address not in here]
    for gpu in silent:
        evidence = f"on the PCI bus (driver: {gpu.driver or 'none'}), and NVML does not know it"
        yield Finding(
            "gpu_not_started",
            Verdict.REBOOT if gpu.driver == "nvidia" else Verdict.DRAIN,
            f"pci:{gpu.address}",
            _SOURCE,
            evidence,
            "reboot the host"
            if gpu.driver == "nvidia"
            else "bind NVIDIA's driver to it, or `rmmod` the other",
        )
    if len(silent) >= wanted - count:
        return
    uuids = {gpu.uuid for gpu in reading.gpus}
    gone = [gpu for gpu in known.gpus if gpu.uuid not in uuids] if known else []
    names = ", ".join(f"{gpu.uuid} at {gpu.pci_bus_id}" for gpu in gone)
    evidence = f"{_expected(expected, bus)}, {count} found" + (f"; missing: {names}" if names else "")
    action = "look with `lspci -d 10de:`, reboot; or accept it with `coldstart health quick --expect-gpus N`"
    yield _finding("gpu_missing", Verdict.DRAIN, evidence, action)


def _expected(expected: Expectation, bus: tuple[PciGpu, ...]) -> str:
    if expected.count or expected.explicit:
        return f"{expected.count} GPUs expected ({expected.source})"
    return f"{len(bus)} NVIDIA GPUs on the PCI bus"


def _finding(reason: str, verdict: Verdict, evidence: str, action: str | None) -> Finding:
    return Finding(reason, verdict, HOST, _SOURCE, evidence, action)
