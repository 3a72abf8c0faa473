"""A health report as Nagios and its heirs read it: one line with performance data, and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from coldstart_health.evidence import Limits
from coldstart_health.verdict import HealthReport, Verdict


class NagiosStatus(IntEnum):
    """The exit statuses of the plugin interface."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


def nagios_status(verdict: Verdict) -> NagiosStatus:
    if verdict is Verdict.UNKNOWN:
        return NagiosStatus.UNKNOWN
    if verdict.may_serve:
        return NagiosStatus.WARNING if verdict else NagiosStatus.OK
    return NagiosStatus.CRITICAL


def nagios_line(report: HealthReport, limits: Limits) -> str:
    """`HEALTH STATUS - text | performance data`."""
    status = nagios_status(report.overall)
    return f"{problem_line(status, report.summary)} | {' '.join(_performance(report, limits))}"


def problem_line(status: NagiosStatus, text: str) -> str:
    """The line without figures, for a check that could not be made too."""
    # the bar ends the text, and a second line would be the long output
    clean = " ".join(text.replace("|", "/").split())
    return f"HEALTH {status.name} - {clean}"


def _performance(report: HealthReport, limits: Limits) -> Iterator[str]:
    """`label=value[unit];warn;crit;min;max`, as the plugin guidelines have it."""
    yield f"gpus={len(report.gpus)};;;0"
    yield f"gpus_out={sum(not gpu.verdict.may_serve for gpu in report.gpus)};;;0"
    yield f"verdict={int(report.overall)};0;1;0;{int(Verdict.REPLACE)}"
    yield f"duration={report.duration_seconds:.3f}s;;;0"
    if report.pressure:
        for key, percent in {"cpu": report.pressure.cpu_percent, **report.pressure.percents}.items():
            label = key.replace("'", "").replace("=", "")
            yield f"'{label}'={percent:.1f}%;{limits.warn_percent:g};{limits.fail_percent:g};0;100"
    for gpu in report.gpus:
        if gpu.facts and gpu.facts.temperature_celsius is not None:
            yield f"gpu{gpu.facts.index}_temperature={gpu.facts.temperature_celsius}"
