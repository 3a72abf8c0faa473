"""DCGM's diagnosis judged by our own map of its error ids; `dcgm_run` runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coldstart_cli.errors import BusyError, UnavailableError
from coldstart_cli.process import last_lines
from coldstart_health.dcgm_document import DcgmDocument, DcgmError, Status, TestResult, parse
from coldstart_health.dcgm_errors import (
    BUSY,
    RETESTED,
    RETURN_CODES,
    TEST_FAILED,
    TOOL_MISSING,
    judge_error,
)
from coldstart_health.dcgm_run import SOURCE, DcgmGpu, DcgmOutput, Ending
from coldstart_health.verdict import HOST, Finding, Verdict, merged
from coldstart_host.gpu import GpuFacts

# skipped where they are not installed, not root, or not for one GPU; every other skip is a hole
_OPTIONAL_TESTS = frozenset(
    {
        "eud",
        "eud_test",
        "cpu_eud",
        "cpu_eud_test",
        "nccl_tests",
        "nvbandwidth",
        "context_create",
        "ncclallreduce",
    }
)
_VERSION_MISMATCH = -12
_EMBEDDED = "unable to establish a connection to the specified host"


@dataclass(frozen=True)
class Diagnosis:
    """What a diagnosis came to. `labels`: every GPU it saw, by subject."""

    findings: tuple[Finding, ...]
    labels: Mapping[str, str]
    version: str | None
    duration_seconds: float


def read_outputs(outputs: Sequence[DcgmOutput], gpus: Sequence[GpuFacts]) -> Diagnosis:
    """All runs of one diagnosis: one a GPU model, and those that were repeated."""
    diagnoses = [read_output(output, gpus) for output in outputs]
    for output, again in zip(outputs, list(diagnoses), strict=True):
        if output.repeats is not None:
            diagnoses[output.repeats] = _after_retest(diagnoses[output.repeats], again)
    return Diagnosis(
        findings=merged(finding for diagnosis in diagnoses for finding in diagnosis.findings),
        labels={subject: label for diagnosis in diagnoses for subject, label in diagnosis.labels.items()},
        version=next((diagnosis.version for diagnosis in diagnoses if diagnosis.version), None),
        duration_seconds=sum(output.duration_seconds for output in outputs),
    )


def read_output(output: DcgmOutput, gpus: Sequence[GpuFacts]) -> Diagnosis:
    """Findings of what a run printed. Raises where it says that DCGM is not whole or busy."""
    names = Names(output.known, gpus)
    document = parse(output.text)
    if output.status is None:
        # a document that was cut is none; one that is whole was printed before the end
        partly = tuple(_failures(document, names)) if document else ()
        return Diagnosis((*_cut(output, names), *partly, *output.kept), {}, None, output.duration_seconds)
    words = last_lines(output.text.encode()) if document is None else ""
    findings = judge(
        document,
        status=output.status,
        level=output.level,
        names=names,
        words=words or output.words,
        wanted=output.wanted,
    )
    if output.versions:
        findings = tuple(_with_versions(finding, output.versions) for finding in findings)
    numbers = document.gpus if document else ()
    labels = {names.subject(document, number): names.label(document, number) for number in numbers}
    version = document.version if document else None
    return Diagnosis((*findings, *output.kept), labels, version, output.duration_seconds)


def wants_retest(diagnosis: Diagnosis) -> bool:
    """Heat, power and other readings of the moment are believed when they come twice."""
    return any(
        finding.reason in RETESTED and finding.source == SOURCE and finding.verdict is not Verdict.OK
        for finding in diagnosis.findings
    )


def _with_versions(finding: Finding, versions: str) -> Finding:
    if finding.reason != RETURN_CODES[_VERSION_MISMATCH].reason:
        return finding
    return replace(finding, evidence=f"{finding.evidence}: {versions}")


def _after_retest(first: Diagnosis, again: Diagnosis) -> Diagnosis:
    """What did not come again is told, and counts no more; what could not be tested again stays."""
    if any(finding.verdict is Verdict.UNKNOWN for finding in again.findings):
        return first
    repeated = {(finding.reason, finding.subject) for finding in again.findings}
    return replace(
        first,
        findings=tuple(
            replace(
                finding, verdict=Verdict.OK, evidence=f"once, and not again when repeated: {finding.evidence}"
            )
            if finding.reason in RETESTED and (finding.reason, finding.subject) not in repeated
            else finding
            for finding in first.findings
        ),
    )


def _cut(output: DcgmOutput, names: Names) -> Iterator[Finding]:
    if output.ending is Ending.DEADLINE:
        action = "see `dmesg` for NVRM lines and `systemctl status nvidia-dcgm`"
        yield _host("probe_hang", Verdict.UNKNOWN, output.words, action)
        return
    again = f"coldstart health deep --level {output.level}"
    subjects = [names.subject(None, number) for number in output.wanted]
    for subject in subjects or [gpu.subject for gpu in names.gpus] or [HOST]:
        yield Finding("diagnosis_aborted", Verdict.UNKNOWN, subject, SOURCE, output.words, again)


class Names:
    """Which GPU DCGM means by a number: its numbers are not NVML's."""

    def __init__(self, known: Sequence[DcgmGpu] = (), gpus: Sequence[GpuFacts] = ()) -> None:
        self.gpus = gpus
        self._known = {gpu.number: gpu for gpu in known}

    def facts(self, document: DcgmDocument | None, number: int) -> GpuFacts | None:
        """By UUID or bus address as DCGM lists them, by serial number, or where there is but one."""
        listed = self._known.get(number)
        serial = (document.serials or {}).get(number) if document else None
        for matches in (
            [gpu for gpu in self.gpus if listed and listed.uuid and gpu.uuid == listed.uuid],
            [
                gpu
                for gpu in self.gpus
                if listed and listed.pci_bus_id and gpu.pci_bus_id == listed.pci_bus_id
            ],
            [gpu for gpu in self.gpus if serial and gpu.serial == serial],
        ):
            if len(matches) == 1:
                return matches[0]
        alone = len(self.gpus) == 1 and (document is None or len(document.gpus) <= 1)
        return self.gpus[0] if alone else None

    def subject(self, document: DcgmDocument | None, number: int) -> str:
        facts = self.facts(document, number)
        listed = self._known.get(number)
        if facts is None and listed and listed.uuid:
            return listed.uuid
        return f"dcgm:{number}" if facts is None else facts.subject

    def label(self, document: DcgmDocument | None, number: int) -> str:
        facts = self.facts(document, number)
        return f"GPU {number if facts is None else facts.index}"


def judge(
    document: DcgmDocument | None,
    *,
    status: int,
    level: int,
    names: Names | None = None,
    words: str = "",
    wanted: Sequence[int] = (),
) -> tuple[Finding, ...]:
    """Findings of one diagnosis from its document and exit status; `words` explain a missing document."""
    if document is None:
        return (_without_document(status, words),)
    if document.runtime_error:
        return (_runtime_error(document.runtime_error, status),)
    names = names or Names()
    findings = [
        *_preamble(document),
        *_failures(document, names),
        *_holes(document, level, names),
        *_others(document, names, wanted),
    ]
    quiet = all(finding.verdict is Verdict.OK for finding in findings)
    if status in TEST_FAILED or document.overall_failed:
        if quiet:
            evidence = f"dcgmi reports a failed test (status {status}) and names none"
            findings.append(_host("dcgm_unexplained", Verdict.UNKNOWN, evidence, "dcgmi diag -r 1 -v"))
    elif status:
        findings.append(_exit(status, words))
    return merged(findings)


def _failures(document: DcgmDocument, names: Names) -> Iterator[Finding]:
    for result in document.results:
        if result.status is Status.SKIP:
            continue
        # a passed test may warn too: DCGM has passed tests that could not allocate memory
        errors = result.errors
        if not errors and result.status is Status.FAIL:
            errors = tuple(DcgmError("failed, no reason given", gpu=gpu) for gpu in result.gpus or (None,))
        for error in errors:
            where = HOST if error.gpu is None else names.subject(document, error.gpu)
            judged = judge_error(error.error_id, error.severity, error.text)
            number = f" (DCGM error {error.error_id})" if error.error_id is not None else ""
            evidence = f"{result.test}: {error.text}{number}"
            action = judged.action.format(gpu=where)
            yield Finding(judged.reason, judged.verdict, where, SOURCE, evidence, action)
        if result.status is Status.OTHER and not errors:
            evidence = f"{result.test}: no status that coldstart knows"
            yield _host("dcgm_status_unknown", Verdict.UNKNOWN, evidence, "dcgmi -v")


def _holes(document: DcgmDocument, level: int, names: Names) -> Iterator[Finding]:
    """A test that was asked for and did not run is unknown; dcgmi ends with 0 when all are skipped."""
    wanted = [result for result in document.results if level == 1 or not result.software]
    ran = [result for result in wanted if result.status in {Status.PASS, Status.FAIL}]
    if not ran:
        devices = ", ".join(sorted(set(document.device_ids)))
        about = f" (device id {devices}: not in DCGM's table?)" if devices else ""
        evidence = f"no test of level {level} ran: all were skipped or absent{about}"
        yield _host("nothing_ran", Verdict.UNKNOWN, evidence, "install a DCGM release that knows this GPU")
        return
    for gpu in document.gpus:
        skipped = sorted({result.test for result in wanted if _hole(result, gpu)})
        if skipped:
            evidence = f"did not run: {', '.join(skipped)}"
            action = f"dcgmi diag -r {level} -i {gpu} -v"
            where = names.subject(document, gpu)
            yield Finding("test_skipped", Verdict.UNKNOWN, where, SOURCE, evidence, action)


def _others(document: DcgmDocument, names: Names, wanted: Sequence[int]) -> Iterator[Finding]:
    """GPUs that were asked for and not tested, or tested and not asked for; some releases ignore `-i`."""
    look = "dcgmi discovery -l"
    if not document.gpus:
        return  # level 1 before 4.0 names no GPUs at all
    if not wanted:
        known = max(len(names.gpus), len(document.device_ids))
        if len(document.gpus) < known:
            evidence = f"DCGM tested {len(document.gpus)} of {known} GPUs"
            yield _host("gpu_not_tested", Verdict.UNKNOWN, evidence, look)
        return
    for number in sorted(set(wanted) - set(document.gpus)):
        where = names.subject(document, number)
        evidence = f"DCGM was asked to test its GPU {number} and did not"
        yield Finding("gpu_not_tested", Verdict.UNKNOWN, where, SOURCE, evidence, look)
    if strangers := sorted(set(document.gpus) - set(wanted)):
        evidence = f"asked for GPUs {_list(wanted)} of DCGM's, and {_list(strangers)} were tested too"
        yield _host("gpu_not_requested", Verdict.OK, evidence, look)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _hole(result: TestResult, gpu: int) -> bool:
    name = result.test.lower().replace(" ", "_")
    return result.status is Status.SKIP and gpu in result.gpus and name not in _OPTIONAL_TESTS


def _preamble(document: DcgmDocument) -> Iterator[Finding]:
    if _EMBEDDED in document.preamble.lower():
        # dcgmi then starts an engine of its own inside its process, even where a host was asked for
        evidence = f"no host engine answered, an embedded one was used: {document.preamble.splitlines()[0]}"
        yield _host("dcgm_embedded_engine", Verdict.OK, evidence, "systemctl start nvidia-dcgm")


def _without_document(status: int, words: str) -> Finding:
    if status == 0:
        evidence = f"dcgmi printed no diagnosis{_quoted(words)}"
        return _host("dcgm_output_unreadable", Verdict.UNKNOWN, evidence, "dcgmi -v")
    if _code_in(words, status) == _VERSION_MISMATCH:
        return _exit(_VERSION_MISMATCH + 256, words)
    if re.search(r"host ?engine", words, re.IGNORECASE):
        return _host("dcgm_engine_down", Verdict.UNKNOWN, words, "systemctl restart nvidia-dcgm")
    return _exit(status, words)


def _runtime_error(text: str, status: int) -> Finding:
    """No test was begun; the text carries the return code, the exit status may not."""
    match = re.search(r"Return: \((-\d+)\)", text)
    code = int(match[1]) if match else _code_in(text, status)
    _raise_if_unusable(code, text)
    known = RETURN_CODES.get(code)
    if known is None:
        return _host("dcgm_runtime_error", Verdict.UNKNOWN, text, "dcgmi -v")
    return _host(known.reason, known.verdict, f"{known.meaning}: {text}", known.action)


def _code_in(text: str, status: int) -> int:
    for pattern, code in (
        (r"NVVS binary was not found", -52),
        (r"homogen", -23),
        (r"paused", -54),
        (r"version mismatch", _VERSION_MISMATCH),
    ):
        if re.search(pattern, text, re.IGNORECASE):
            return code
    return status - 256


def _exit(status: int, words: str) -> Finding:
    _raise_if_unusable(status - 256, words)
    known = RETURN_CODES.get(status - 256)
    if known is not None:
        evidence = f"{known.meaning} (dcgmi ended with {status}){_quoted(words)}"
        return _host(known.reason, known.verdict, evidence, known.action)
    evidence = f"dcgmi ended with {status}{_quoted(words)}"
    return _host("dcgm_failed", Verdict.UNKNOWN, evidence, "dcgmi diag -r 1 -v")


def _raise_if_unusable(code: int, words: str) -> None:
    """DCGM is not whole, or at work for somebody else: no verdict, but an error with its remedy."""
    if code in TOOL_MISSING:
        known = RETURN_CODES[code]
        raise UnavailableError(f"DCGM cannot run its diagnosis: {known.meaning}", hint=known.action)
    if code in BUSY:
        known = RETURN_CODES[code]
        raise BusyError(f"DCGM is busy: {known.meaning}{_quoted(words)}", hint=known.action)


def _quoted(words: str) -> str:
    return f": {words}" if words else ""


def _host(reason: str, verdict: Verdict, evidence: str, action: str) -> Finding:
    return Finding(reason, verdict, HOST, SOURCE, evidence, action)
