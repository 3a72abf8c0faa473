"""How both health commands answer: a line per GPU and host, the document, warning or refusal."""

from __future__ import annotations

from coldstart_cli.errors import NegativeAnswer
from coldstart_cli.printer import Printer
from coldstart_commands.shell import Shell
from coldstart_health.document import report_document
from coldstart_health.host_checks import pressure_line
from coldstart_health.verdict import Finding, GpuVerdict, HealthReport, Verdict

_WIDTH = max(len(verdict.word) for verdict in Verdict)
_STYLES = {Verdict.OK: "ok", Verdict.DEGRADED: "warning"}


def answer(shell: Shell, report: HealthReport, schema: str) -> None:
    """Print the report; end with 3 where nothing may be placed, with 69 where only a program is missing."""
    printer = shell.printer
    gpus = {gpu.subject for gpu in report.gpus}
    on_host = [finding for finding in report.findings if finding.subject not in gpus]
    _lines(printer, report.host_verdict, f"host  {_host_figures(report)}".rstrip(), on_host)
    for gpu in report.gpus:
        _lines(printer, gpu.verdict, _gpu_line(gpu), [f for f in report.findings if f.subject == gpu.subject])
    printer.document(schema, 1, report_document(report))
    if report.may_serve:
        if report.overall is Verdict.DEGRADED:
            printer.warning(f"degraded, and may serve: {report.summary}")
        return
    if report.unavailable is not None:
        raise report.unavailable
    finding = report.worst_finding
    raise NegativeAnswer(
        f"nothing may be placed on this host: {report.summary}", hint=finding.action if finding else None
    )


def _lines(printer: Printer, verdict: Verdict, text: str, findings: list[Finding]) -> None:
    word = printer.style(verdict.word.ljust(_WIDTH), _STYLES.get(verdict, "error"))
    printer.answer(f"{word}  {text}")
    for finding in findings:
        action = f"; {finding.action}" if finding.action else ""
        about = "" if finding.verdict is verdict else f"{finding.verdict.word}: "
        printer.answer(f"{' ' * _WIDTH}  - {about}{finding.reason}: {finding.evidence}{action}")


def _host_figures(report: HealthReport) -> str:
    driver = f"driver {report.driver_version}, CUDA {report.cuda_version}" if report.driver_version else ""
    dcgm = f"DCGM {report.dcgm_version}" if report.dcgm_version else ""
    pressure = pressure_line(report.pressure) if report.pressure else ""
    return ", ".join(part for part in (pressure, driver, dcgm) if part)


def _gpu_line(gpu: GpuVerdict) -> str:
    facts = gpu.facts
    if facts is None:
        return f"{gpu.label}  {gpu.subject}"
    memory = f"{facts.memory_total_bytes / (1 << 30):.0f} GiB" if facts.memory_total_bytes else None
    heat = f"{facts.temperature_celsius} C" if facts.temperature_celsius is not None else None
    busy = f"{len(facts.process_ids)} processes" if facts.process_ids else None
    parts = (facts.name, gpu.subject, facts.pci_bus_id, memory, heat, busy)
    return "  ".join([gpu.label, *(part for part in parts if part)])
