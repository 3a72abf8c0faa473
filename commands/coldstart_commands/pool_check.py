"""coldstart pool check: what the tables hold, and every row that would be refused or questioned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands.pool_tables import used_sentence, with_tables
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_pool.inputs.findings import Finding, TableReport
    from coldstart_pool.inputs.loading import ReadTables
    from coldstart_pool.inputs.pool_inputs import TableFiles


@coldstart_command()
@with_tables()
def command(shell: Shell, tables: TableFiles) -> None:
    """Read the pool's tables as `pool plan` does, and say what was decided and what is wrong with them.

    Exit status 3: a row would be refused or questioned. 65: a table cannot be read at all.
    """
    from coldstart_cli.errors import UsageError
    from coldstart_pool.inputs.loading import read_tables

    if not tables.files:
        raise UsageError("no table to check", hint="for example `coldstart pool check --prices prices.csv`")
    read = read_tables(tables)
    bad = _bad_findings(read)
    shell.printer.document("pool.check", 1, _document(read, clean=not bad and not read.unreadable))
    _show(shell.printer, read)
    for _, _, error in read.unreadable[1:]:
        shell.printer.error(error)
    for _, _, error in read.unreadable[:1]:
        raise error
    if bad:
        rows = len({(finding.path, finding.line) for finding in bad if finding.line})
        others = sum(not finding.line for finding in bad)
        parts = [f"{rows} row{'s' * (rows > 1)} would be refused or questioned"] * bool(rows)
        parts += [f"{others} finding{'s' * (others > 1)} about whole tables"] * bool(others)
        raise NegativeAnswer(" and ".join(parts), hint="correct them; the lines are above")


def _bad_findings(read: ReadTables) -> list[Finding]:
    from coldstart_pool.inputs.findings import Severity

    findings = [finding for report in read.inputs.reports for finding in report.findings]
    return [one for one in (*findings, *read.inputs.contradictions) if one.severity is not Severity.NOTED]


def _show(printer: Printer, read: ReadTables) -> None:
    from coldstart_pool.inputs.findings import grouped_sentences

    for report in read.inputs.reports:
        if (sentence := used_sentence(report)) is not None:
            printer.answer(sentence)
    for number, report in enumerate(read.inputs.reports):
        if number:
            printer.answer()
        other = f", {report.other_rows} about something else" if report.other_rows else ""
        printer.answer(f"{report.table}: {report.path}: {report.used_rows} of {report.rows} rows used{other}")
        for topic, decision in report.decisions:
            printer.answer(f"  {topic}: {decision}")
        for sentence in grouped_sentences(report.findings):
            printer.answer(f"  {sentence}")
    if read.inputs.contradictions:
        printer.answer()
        for sentence in grouped_sentences(read.inputs.contradictions):
            printer.answer(sentence)


def _document(read: ReadTables, *, clean: bool) -> dict[str, Any]:
    return {
        "clean": clean,
        "tables": [
            *(_table(report) for report in read.inputs.reports),
            *(
                {
                    "table": kind.value,
                    "path": str(path),
                    "error": error.message,
                    "hint": error.hint,
                    "exit_status": int(error.exit_code),
                }
                for kind, path, error in read.unreadable
            ),
        ],
        "contradictions": [_finding(finding) for finding in read.inputs.contradictions],
        "found": _found(read),
    }


def _table(report: TableReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "path": report.path,
        "error": None,
        "digest": report.digest,
        "rows": report.rows,
        "used_rows": report.used_rows,
        "other_rows": report.other_rows,
        "refused_rows": report.refused_rows,
        "decisions": [{"topic": topic, "decision": text} for topic, text in report.decisions],
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "path": finding.path,
        "line": finding.line,
        "severity": finding.severity.value,
        "reason": finding.reason,
        "detail": finding.detail,
    }


def _found(read: ReadTables) -> dict[str, int]:
    """How many of each kind of thing the tables hold."""
    inputs = read.inputs
    trace = inputs.demand.trace
    return {
        "offers": len(inputs.offers),
        "observations": len(inputs.supply.observations),
        "attempts": len(inputs.supply.attempts),
        "targets": len(inputs.demand.targets),
        "replica_starts": sum(event.replicas for event in trace.starts) if trace else 0,
        "classes": len(inputs.classes),
        "holdings": len(inputs.holdings),
        "quotas": len(inputs.quotas),
        "commitments": len(inputs.commitments),
        "domains": len(inputs.domains),
        "snapshots": len(inputs.snapshots),
        "contracted_prices": len(inputs.paid),
    }
