"""DCGM's diagnosis: run `dcgmi diag` within a deadline, read what it printed, judge it by our own map."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.config import Config
from coldstart_cli.errors import BusyError, ColdstartError, UnavailableError
from coldstart_cli.files import atomic_write
from coldstart_cli.process import ProgramTimeoutError, find_program, last_lines, run
from coldstart_health.dcgm_document import DcgmDocument, DcgmError, Status, TestResult, parse
from coldstart_health.dcgm_errors import BUSY, RETURN_CODES, TEST_FAILED, TOOL_MISSING, judge_error
from coldstart_health.verdict import HOST, Finding, Verdict, merged
from coldstart_host.gpu import GpuFacts

LEVEL_DEADLINES_SECONDS: dict[int, float] = {1: 90.0, 2: 900.0, 3: 3600.0, 4: 4 * 3600.0}
_SOURCE = "dcgm"
# on TERM dcgmi asks the host engine to stop the diagnosis, which runs outside our process group
_GRACE_SECONDS = 15.0
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
_EMBEDDED = "unable to establish a connection to the specified host"


@dataclass(frozen=True)
class DcgmOutput:
    """What `dcgmi diag` left: `status` is None where its deadline passed, `words` the end of its messages."""

    level: int
    status: int | None
    text: str
    words: str
    duration_seconds: float
    kept: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What a diagnosis came to. `labels`: every GPU it saw, by subject."""

    findings: tuple[Finding, ...]
    labels: Mapping[str, str]
    version: str | None
    duration_seconds: float


def diagnose(config: Config, *, level: int, deadline_seconds: float, gpus: Sequence[GpuFacts]) -> Diagnosis:
    """Run one level. Raises where DCGM is not there or busy; what it cannot tell is an unknown finding."""
    return read_output(run_dcgmi(config, level=level, deadline_seconds=deadline_seconds), gpus)


def run_dcgmi(config: Config, *, level: int, deadline_seconds: float) -> DcgmOutput:
    """Run one level and keep what it printed, without an opinion. Raises where dcgmi is not there."""
    program = find_program("dcgmi", config.text("programs.dcgmi"))
    try:
        completed = run(
            [program, "diag", "-r", str(level), "-j"],
            deadline_seconds=deadline_seconds,
            purpose=f"dcgmi diag -r {level}",
            check=False,
            grace_seconds=_GRACE_SECONDS,
        )
    except ProgramTimeoutError as error:
        text = error.stdout.decode("utf-8", "replace")
        return DcgmOutput(
            level, None, text, error.message, deadline_seconds, kept=_keep(config, error.stdout)
        )
    return DcgmOutput(
        level,
        completed.status,
        completed.text,
        last_lines(completed.stderr),
        completed.duration_seconds,
        kept=_keep(config, completed.stdout),
    )


def read_output(output: DcgmOutput, gpus: Sequence[GpuFacts]) -> Diagnosis:
    """Findings of what a run printed. Raises where it says that DCGM is not whole or busy."""
    if output.status is None:
        action = "see `dmesg` for NVRM lines and `systemctl status nvidia-dcgm`"
        hang = _host("probe_hang", Verdict.UNKNOWN, output.words, action)
        return Diagnosis((hang, *output.kept), {}, None, output.duration_seconds)
    document = parse(output.text)
    words = last_lines(output.text.encode()) if document is None else ""
    findings = judge(
        document, status=output.status, level=output.level, gpus=gpus, words=words or output.words
    )
    labels = {} if document is None else {subject(document, gpu, gpus): f"GPU {gpu}" for gpu in document.gpus}
    version = document.version if document else None
    return Diagnosis((*findings, *output.kept), labels, version, output.duration_seconds)


def judge(
    document: DcgmDocument | None, *, status: int, level: int, gpus: Sequence[GpuFacts] = (), words: str = ""
) -> tuple[Finding, ...]:
    """Findings of one diagnosis from its document and exit status; `words` explain a missing document."""
    if document is None:
        return (_without_document(status, words),)
    if document.runtime_error:
        return (_runtime_error(document.runtime_error, status),)
    findings = [*_preamble(document), *_failures(document, gpus), *_holes(document, level, gpus)]
    quiet = all(finding.verdict is Verdict.OK for finding in findings)
    if status in TEST_FAILED or document.overall_failed:
        if quiet:
            evidence = f"dcgmi reports a failed test (status {status}) and names none"
            findings.append(_host("dcgm_unexplained", Verdict.UNKNOWN, evidence, "dcgmi diag -r 1 -v"))
    elif status:
        findings.append(_exit(status, words))
    return merged(findings)


def subject(document: DcgmDocument, gpu: int, gpus: Sequence[GpuFacts]) -> str:
    """The UUID of DCGM's GPU number: by serial number, or where there is but one; the numbers may differ."""
    serial = (document.serials or {}).get(gpu)
    by_serial = [facts.subject for facts in gpus if serial and facts.serial == serial]
    if len(by_serial) == 1:
        return by_serial[0]
    if len(gpus) == 1 and len(document.gpus) <= 1:
        return gpus[0].subject
    return f"dcgm:{gpu}"


def _failures(document: DcgmDocument, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
    for result in document.results:
        if result.status is Status.SKIP:
            continue
        # a passed test may warn too: DCGM has passed tests that could not allocate memory
        errors = result.errors
        if not errors and result.status is Status.FAIL:
            errors = tuple(DcgmError("failed, no reason given", gpu=gpu) for gpu in result.gpus or (None,))
        for error in errors:
            where = HOST if error.gpu is None else subject(document, error.gpu, gpus)
            judged = judge_error(error.error_id, error.severity, error.text)
            number = f" (DCGM error {error.error_id})" if error.error_id is not None else ""
            evidence = f"{result.test}: {error.text}{number}"
            action = judged.action.format(gpu=where)
            yield Finding(judged.reason, judged.verdict, where, _SOURCE, evidence, action)
        if result.status is Status.OTHER and not errors:
            evidence = f"{result.test}: no status that coldstart knows"
            yield _host("dcgm_status_unknown", Verdict.UNKNOWN, evidence, "dcgmi -v")


def _holes(document: DcgmDocument, level: int, gpus: Sequence[GpuFacts]) -> Iterator[Finding]:
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
            yield Finding(
                "test_skipped", Verdict.UNKNOWN, subject(document, gpu, gpus), _SOURCE, evidence, action
            )
    # level 1 before 4.0 names no GPUs at all
    known = max(len(gpus), len(document.device_ids))
    if document.gpus and len(document.gpus) < known:
        evidence = f"DCGM tested {len(document.gpus)} of {known} GPUs"
        yield _host("gpu_not_tested", Verdict.UNKNOWN, evidence, "dcgmi discovery -l")


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
    for pattern, code in ((r"NVVS binary was not found", -52), (r"homogen", -23), (r"paused", -54)):
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
    return Finding(reason, verdict, HOST, _SOURCE, evidence, action)


def raw_output_path(state_folder: Path) -> Path:
    """What dcgmi printed last, whole: evidence for a ticket, and for a release that prints another shape."""
    return state_folder / "health" / "dcgmi-diag.out"


def _keep(config: Config, output: bytes) -> tuple[Finding, ...]:
    try:
        atomic_write(raw_output_path(config.state_folder), output)
    except ColdstartError as error:
        return (Finding("dcgm_output_not_kept", Verdict.OK, HOST, _SOURCE, error.message, error.hint),)
    return ()
