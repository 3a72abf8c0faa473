"""Which way to the driver this host has: its checkpoint API, or the program cuda-checkpoint."""

from __future__ import annotations

from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import ConfigError, UnavailableError
from coldstart_cli.process import find_program
from coldstart_snapshot.cuda import driver_api, program
from coldstart_snapshot.cuda.client import CudaClient
from coldstart_snapshot.cuda.driver_api import DriverApi
from coldstart_snapshot.cuda.program import CheckpointProgram

_DRIVER_MARKS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))
_AUTO = "auto"


def cuda_client(config: Config, *, copies: bool = False) -> CudaClient:
    """A client as configured, else with the best way of this host; it has the driver started."""
    configured_program = config.text("programs.cuda_checkpoint")
    return chosen_client(config.text("snapshot.cuda_backend"), configured_program, copies=copies)


def chosen_client(wanted: str, configured_program: str | None, *, copies: bool = False) -> CudaClient:
    """The API comes before the program: the driver is started once for all calls, and not once for each.

    What calls the driver for `copies` ends with this process, wherever it is.
    """
    if wanted == program.NAME:
        return CudaClient(_program(configured_program, copies), "as configured")
    if wanted == driver_api.NAME:
        return CudaClient(_api(copies), "as configured")
    if wanted != _AUTO:
        raise ConfigError(
            f"unknown value of snapshot.cuda_backend: {wanted}",
            hint=f"it is `{_AUTO}`, `{driver_api.NAME}` or `{program.NAME}`",
        )
    if not has_driver():
        return CudaClient(_program(configured_program, copies), "no NVIDIA driver is loaded")
    try:
        return CudaClient(_api(copies), "the driver has the checkpoint API")
    except UnavailableError as refusal:
        try:
            return CudaClient(_program(configured_program, copies), refusal.message)
        except UnavailableError as error:
            error.add(refusal.message)
            raise


def require_backend(config: Config) -> None:
    """Refuse a host that has no way to a driver, without starting one."""
    wanted = config.text("snapshot.cuda_backend")
    if wanted == driver_api.NAME or (wanted == _AUTO and has_driver()):
        return
    chosen_client(wanted, config.text("programs.cuda_checkpoint"))


def has_driver() -> bool:
    """Whether this host has an NVIDIA driver, as far as files tell."""
    return any(mark.exists() for mark in _DRIVER_MARKS)


def _api(copies: bool) -> DriverApi:
    api = DriverApi(copies=copies)
    api.require()
    return api


def _program(configured: str | None, copies: bool) -> CheckpointProgram:
    found = CheckpointProgram(find_program("cuda-checkpoint", configured), copies=copies)
    found.require_actions()
    return found
