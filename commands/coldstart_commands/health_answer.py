"""How both health commands answer: table, document, Nagios line, textfile; then warning or refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from coldstart_cli.errors import AnswerStatus, ColdstartError, NegativeAnswer, UsageError
from coldstart_cli.printer import Level, Printer
from coldstart_commands.shell import Shell
from coldstart_health.checks import thresholds
from coldstart_health.document import report_document
from coldstart_health.host_checks import pressure_line
from coldstart_health.nagios import NagiosStatus, nagios_line, nagios_status, problem_line
from coldstart_health.verdict import FABRIC, HOST, Finding, GpuVerdict, HealthReport, Verdict

NagiosOption = Annotated[
    bool,
    typer.Option(
        "--nagios",
        help="Answer with one line and performance data; exit 0 ok, 1 degraded, 2 out, 3 unknown.",
    ),
]
PrometheusOption = Annotated[
    Path | None,
    typer.Option("--prometheus", metavar="FILE", help="Also write a textfile for the node exporter."),
]
_HEADINGS = ("SUBJECT", "VERDICT", "REASON", "ACTION")
_STYLES = {Verdict.OK: "ok", Verdict.DEGRADED: "warning"}


@dataclass(frozen=True)
class Outputs:
    """`run` is `quick` or `deep`."""

    run: str
    nagios: bool = False
    prometheus: Path | None = None


def answer_with(shell: Shell, outputs: Outputs, check: Callable[[], HealthReport]) -> None:
    """Make the check and answer in the forms that were asked for."""
    if outputs.nagios and shell.printer.json_output:
        raise UsageError("--nagios and --json are two answers: choose one")
    try:
        report = check()
    except ColdstartError as error:
        if not outputs.nagios:
            raise
        _nagios(shell, problem_line(NagiosStatus.UNKNOWN, error.message), NagiosStatus.UNKNOWN)
    problem = _write_textfile(outputs, report)
    if problem is not None:
        # the verdict comes first: a full disk is one of the things it tells of
        shell.printer.warning(problem.message)
    if outputs.nagios:
        line = nagios_line(report, thresholds(shell.config))
        _nagios(shell, line, nagios_status(report.overall))
    answer(shell, report, f"health.{outputs.run}")
    if problem is not None:
        raise problem


def _nagios(shell: Shell, line: str, status: NagiosStatus) -> NoReturn:
    try:
        shell.printer.answer(line)
    except (ColdstartError, OSError) as error:
        # the protocol knows four statuses: a line that nobody gets is the fourth
        shell.printer.warning(str(error))
        raise AnswerStatus(NagiosStatus.UNKNOWN, answered=False) from error
    raise AnswerStatus(status)


def _write_textfile(outputs: Outputs, report: HealthReport) -> ColdstartError | None:
    if outputs.prometheus is None:
        return None
    from coldstart_health.prometheus import write_report

    try:
        write_report(outputs.prometheus, report, run=outputs.run, now_seconds=time.time())
    except ColdstartError as error:
        return error
    return None


def answer(shell: Shell, report: HealthReport, schema: str, more: Mapping[str, Any] | None = None) -> None:
    """Print the report; end with 3 where nothing may be placed, with 69 where only a program is missing."""
    printer = shell.printer
    _table(printer, list(_subjects(report)))
    for subject in _subjects(report):
        _details(printer, subject)
    printer.answer()
    printer.answer(_summary(report))
    printer.document(schema, 1, {**report_document(report), **(more or {})})
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


@dataclass(frozen=True)
class _Subject:
    label: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    gpu: GpuVerdict | None = None


def _subjects(report: HealthReport) -> Iterator[_Subject]:
    gpus = {gpu.subject for gpu in report.gpus}
    elsewhere = {FABRIC, *gpus}
    on_host = tuple(finding for finding in report.findings if finding.subject not in elsewhere)
    yield _Subject(HOST, report.host_verdict, on_host)
    if report.fabric_verdict is not None:
        yield _Subject(FABRIC, report.fabric_verdict, _of(report, FABRIC))
    for gpu in report.gpus:
        yield _Subject(gpu.label, gpu.verdict, _of(report, gpu.subject), gpu)


def _of(report: HealthReport, subject: str) -> tuple[Finding, ...]:
    return tuple(finding for finding in report.findings if finding.subject == subject)


def _table(printer: Printer, subjects: Sequence[_Subject]) -> None:
    """A line for each subject and each thing that is wrong with it, the worst first."""
    rows: list[tuple[tuple[str, str, str, str], Verdict]] = []
    for subject in subjects:
        wrong = [finding for finding in subject.findings if finding.verdict is not Verdict.OK]
        if not wrong:
            rows.append(((subject.label, subject.verdict.word, "", ""), subject.verdict))
        for number, finding in enumerate(wrong):
            label = "" if number else subject.label
            cells = (label, finding.verdict.word, finding.reason, finding.action or "")
            rows.append((cells, finding.verdict))
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *(cells for cells, _ in rows), strict=True)]
    printer.answer(printer.style("  ".join(map(str.ljust, _HEADINGS, widths)).rstrip(), "bold"))
    for (label, word, reason, action), verdict in rows:
        colored = printer.style(word.ljust(widths[1]), _STYLES.get(verdict, "error"))
        rest = f"{reason.ljust(widths[2])}  {action}".rstrip()
        printer.answer(f"{label.ljust(widths[0])}  {colored}  {rest}".rstrip())


def _details(printer: Printer, subject: _Subject) -> None:
    """What was seen, below the table: for each finding its evidence, with who the GPU is."""
    if not subject.findings and not (subject.gpu and printer.level >= Level.VERBOSE):
        return
    printer.answer()
    printer.answer(f"{subject.label}{_identity(subject.gpu)}")
    for finding in subject.findings:
        printer.answer(f"  {finding.reason}: {finding.evidence}")


def _identity(gpu: GpuVerdict | None) -> str:
    if gpu is None:
        return ""
    facts = gpu.facts
    if facts is None:
        return f"  {gpu.subject}"
    memory = f"{facts.memory_total_bytes / (1 << 30):.0f} GiB" if facts.memory_total_bytes else None
    heat = f"{facts.temperature_celsius} C" if facts.temperature_celsius is not None else None
    busy = f"{len(facts.process_ids)} processes" if facts.process_ids else None
    parts = (facts.name, gpu.subject, facts.pci_bus_id, memory, heat, busy)
    return "".join(f"  {part}" for part in parts if part)


def _summary(report: HealthReport) -> str:
    counts = [
        f"{number} {verdict.word}"
        for verdict in Verdict
        if (number := sum(gpu.verdict is verdict for gpu in report.gpus))
    ]
    gpus = f"{len(report.gpus)} GPUs ({', '.join(counts)})" if counts else "no GPU"
    driver = f"driver {report.driver_version}, CUDA {report.cuda_version}" if report.driver_version else ""
    dcgm = f"DCGM {report.dcgm_version}" if report.dcgm_version else ""
    pressure = pressure_line(report.pressure) if report.pressure else ""
    figures = "; ".join(part for part in (gpus, pressure, driver, dcgm) if part)
    return f"{report.overall.word}: {figures}"
