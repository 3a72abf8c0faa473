"""What the operator has decided about the quarantine, and what one run is worth as evidence."""

from __future__ import annotations

from dataclasses import dataclass

from coldstart_cli.config import Config
from coldstart_cli.errors import ConfigError
from coldstart_health.moment import Moment


@dataclass(frozen=True)
class Policy:
    """When a GPU is released without a person, and when it is given up; a limit of 0 repairs is none."""

    auto_release: bool = True
    clean_runs: int = 3
    clean_interval_seconds: float = 60.0
    repair_limit: int = 2
    repair_window_days: float = 30.0

    @classmethod
    def of(cls, config: Config) -> Policy:
        clean_runs = int(config.number("health.clean_runs"))
        if clean_runs < 1:  # a GPU would be released at once
            source = config.value("health.clean_runs").source
            raise ConfigError(f"health.clean_runs must be at least 1: {clean_runs} ({source})")
        return cls(
            auto_release=config.value("health.auto_release").value is True,
            clean_runs=clean_runs,
            clean_interval_seconds=config.number("health.clean_interval_seconds"),
            repair_limit=int(config.number("health.repair_limit")),
            repair_window_days=config.number("health.repair_window_days"),
        )


@dataclass(frozen=True)
class RunFacts:
    """`began`, `ended`: of the run. `level`: of DCGM, 0 if no GPU was put to work.

    `proves`: no check that sees faults failed. `counted`: every GPU that NVML counts said who it is, so one
    that is not among them is not here. `missing`: the host has fewer GPUs than it should.
    """

    began: Moment
    ended: Moment
    level: int = 0
    proves: bool = True
    counted: bool = True
    missing: bool = False
