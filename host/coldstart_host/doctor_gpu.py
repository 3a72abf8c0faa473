"""Checks of GPUs and of what speaks to them; on a host without any they are notes at most."""

from __future__ import annotations

import re

from coldstart_cli.errors import UnavailableError
from coldstart_cli.process import INSTALL_HINTS, find_program, last_lines
from coldstart_host import gpu_module
from coldstart_host.doctor_finding import Budget, DoctorInput, Fact, Finding, Status
from coldstart_host.gpu_probe import read_gpus
from coldstart_host.kernel import release_number
from coldstart_host.pci import PciGpu, pci_gpus

# the first driver with cuCheckpointProcess*
_CHECKPOINT_API_SINCE = (570, 0)
_NO_GPU = "no NVIDIA GPU on this host"


def driver(configured: DoctorInput, budget: Budget) -> Finding:
    del configured
    on_bus = len(_gpus())
    version = gpu_module.module_version()
    facts: dict[str, Fact] = {"gpus_on_bus": on_bus}
    cost = "GPU checks of health, GPU snapshots, every CUDA server"
    if version is None and on_bus == 0:
        return Finding("nvidia driver", Status.NOTE, _NO_GPU, facts=facts)
    if version is None:
        detail = f"{on_bus} NVIDIA GPUs on the PCI bus, and no driver is loaded"
        remedy = "modprobe nvidia; dmesg | grep NVRM"
        return Finding("nvidia driver", Status.FAULT, detail, cost, remedy, facts)
    facts["version"] = version
    reading = read_gpus(deadline_seconds=budget.left_seconds)
    if reading.fault is not None:
        detail = f"version {version}, but NVML says: {reading.fault.text}"
        remedy = "nvidia-smi; dmesg | grep NVRM; nvidia-modprobe -c 0 -u"
        return Finding("nvidia driver", Status.FAULT, detail, cost, remedy, facts)
    if reading.hung is not None:
        # seconds are normal without persistence mode: whether it is a fault is for the health check to say
        detail = f"version {version}, NVML has not answered yet: {reading.hung}"
        return Finding("nvidia driver", Status.NOTE, detail, cost, "coldstart health quick", facts)
    facts["gpus"] = len(reading.gpus)
    return Finding("nvidia driver", Status.OK, f"version {version}, {len(reading.gpus)} GPUs", facts=facts)


def cuda_checkpoint(configured: DoctorInput, budget: Budget) -> Finding:
    cost = "snap create and snap restore of processes with GPU state"
    try:
        path = find_program("cuda-checkpoint", configured.cuda_checkpoint)
    except UnavailableError as error:
        driver_version = gpu_module.module_version() or ""
        if release_number(driver_version) >= _CHECKPOINT_API_SINCE:
            detail = f"not installed; driver {driver_version} has a checkpoint API, which is used instead"
            return Finding("cuda-checkpoint", Status.NOTE, detail)
        return _missing("cuda-checkpoint", error.message, cost, INSTALL_HINTS["cuda-checkpoint"])
    done = budget.run(path, "--help")
    output = f"{done.text}\n{done.stderr.decode('utf-8', 'replace')}"
    match = re.search(r"Version (\d[\d.]*\d)", output)
    version = match[1] if match else "unknown"
    facts: dict[str, Fact] = {"path": path, "version": version}
    if "--action" not in output:
        detail = f"{path}, version {version}: it has no --action"
        remedy = "install NVIDIA driver 555 or newer and its cuda-checkpoint"
        return Finding("cuda-checkpoint", _severity(), detail, cost, remedy, facts)
    facts["device_map"] = "--device-map" in output
    return Finding("cuda-checkpoint", Status.OK, f"{path}, version {version}", facts=facts)


def dcgm(configured: DoctorInput, budget: Budget) -> Finding:
    cost = "health deep"
    try:
        path = find_program("dcgmi", configured.dcgmi)
    except UnavailableError as error:
        return _missing("dcgm", error.message, cost, INSTALL_HINTS["dcgmi"])
    # dcgmi prints its version and the host engine's, and fails where the engine does not answer
    done = budget.run(path, "--version")
    match = re.search(r"version: (\d[\w.]*)", done.text)
    version = match[1] if match else "unknown"
    facts: dict[str, Fact] = {"path": path, "version": version}
    if done.status != 0:
        detail = f"{path}: {last_lines(done.stderr or done.stdout, 1)}"
        return Finding("dcgm", _severity(), detail, cost, "systemctl start nvidia-dcgm", facts)
    return Finding("dcgm", Status.OK, f"{path}, version {version}", facts=facts)


def _gpus() -> list[PciGpu]:
    return [gpu for gpu in pci_gpus() if gpu.ours]


def _severity() -> Status:
    return Status.FAULT if gpu_module.module_version() or _gpus() else Status.NOTE


def _missing(check: str, message: str, cost: str, remedy: str) -> Finding:
    if _severity() is Status.FAULT:
        return Finding(check, Status.FAULT, message, cost, remedy)
    return Finding(check, Status.NOTE, f"not installed, and {_NO_GPU}")
