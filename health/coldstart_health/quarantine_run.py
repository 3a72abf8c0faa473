"""What one run changes in the quarantine, and what the quarantine adds to that run's findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coldstart_health.escalation import EXERCISED, found_bad, gone_after_reboot
from coldstart_health.identity import SeenGpu, find_record, joined_name, was_set_back
from coldstart_health.quarantine_policy import Policy, RunFacts
from coldstart_health.quarantine_record import GpuRecord, Quarantine
from coldstart_health.recovery import found_clean, proven
from coldstart_health.verdict import FABRIC, HOST, Finding, Verdict

# each run asks host and fabric anew for everything else; these are told once
_TOLD_ONCE = EXERCISED | {"kernel_log"}
_WHOLE = frozenset({HOST, FABRIC})
_SHOWN_CAUSES = 3


def after_run(state: Quarantine, seen: Sequence[SeenGpu], run: RunFacts, policy: Policy) -> Quarantine:
    """The state as it is after this run."""
    taken = [gpu.name.uuid for gpu in seen if gpu.readable]
    records = list(state.records)
    met: set[int] = set()
    for gpu in seen:
        record, bad = find_record(gpu, records, taken), _entering(gpu)
        if record is None:
            if not bad:
                continue
            record = GpuRecord(gpu.name)
            records.append(record)
        place = next(place for place, other in enumerate(records) if other is record)
        met.add(place)
        records[place] = _seen(record, gpu, bad, run, policy)
    for place, record in enumerate(records):
        if place not in met:
            records[place] = _not_seen(record, run, policy)
    return replace(state, records=tuple(records))


def quarantine_findings(state: Quarantine, seen: Sequence[SeenGpu], policy: Policy) -> list[Finding]:
    """A finding for each record that says more, or worse, than this run's own findings."""
    taken = [gpu.name.uuid for gpu in seen if gpu.readable]
    owners = {id(record): gpu for gpu in seen if (record := find_record(gpu, state.records, taken))}
    found = []
    for record in state.records:
        gpu = owners.get(id(record))
        if record.blocks and _says_more(record, gpu):
            subject = gpu.name.subject if gpu else record.name.subject
            action = next_step(record, policy)
            found.append(Finding("quarantined", record.verdict, subject, "quarantine", why(record), action))
    return found


def why(record: GpuRecord) -> str:
    """Since when and for what, in one line."""
    causes = sorted(record.causes, key=lambda cause: -cause.verdict)
    texts = []
    for cause in causes[:_SHOWN_CAUSES]:
        about = f": {cause.escalated}" if cause.escalated else ""
        texts.append(f"{cause.reason} ({cause.verdict.word}{about}): {cause.evidence}")
    more = f" (and {len(causes) - _SHOWN_CAUSES} more)" if len(causes) > _SHOWN_CAUSES else ""
    return f"since {record.since.utc}: {'; '.join(texts)}{more}"


def next_step(record: GpuRecord, policy: Policy) -> str:
    """What would release it."""
    cause = record.worst_cause
    clear = f"`coldstart health clear {record.name.subject} --reason TEXT`"
    if cause.verdict is Verdict.REPLACE:
        return f"take it out of service and have it replaced; only {clear} releases it"
    if not policy.auto_release:
        return f"{cause.action or 'mend it'}; only {clear} releases it"
    if cause.verdict is Verdict.REBOOT:
        return "reboot the host: the first clean run after that releases it"
    if cause.verdict is Verdict.RESET:
        mend = cause.action or "reset it"
        return f"{mend}: the first clean run after that, or after a reboot, releases it"
    if cause.level:
        deep = f"deep --level {cause.level}" if cause.level > 1 else "quick --active"
        return f"a clean `coldstart health {deep}` releases it, or {clear}"
    return f"{policy.clean_runs} clean runs release it ({cause.clean_runs} so far), or {clear}"


def _says_more(record: GpuRecord, gpu: SeenGpu | None) -> bool:
    now = {finding.reason: finding.verdict for finding in gpu.findings} if gpu else {}
    return any(now.get(cause.reason, Verdict.OK) < cause.verdict for cause in record.causes)


def _entering(gpu: SeenGpu) -> list[Finding]:
    bad = [finding for finding in gpu.findings if finding.verdict >= Verdict.DRAIN]
    if gpu.name.subject in _WHOLE:
        bad = [finding for finding in bad if finding.source in _TOLD_ONCE]
    return bad


def _seen(
    record: GpuRecord, gpu: SeenGpu, bad: Sequence[Finding], run: RunFacts, policy: Policy
) -> GpuRecord:
    # the host itself is clean when nothing that could enter was found: its pressure has nothing to do with it
    clean = not bad if not gpu.name.is_gpu else gpu.readable and gpu.verdict < Verdict.UNKNOWN
    clean = clean and run.proves
    if not record.causes and not bad:
        return proven(record) if clean else record
    was_reset = gpu.readable and was_set_back(record.marks, gpu.marks)
    record = replace(
        record,
        name=joined_name(record.name, gpu.name) if gpu.name.is_gpu else record.name,
        present=True,
        marks=dict(gpu.marks) if gpu.readable else record.marks,
    )
    if bad:
        return found_bad(record, bad, run, policy, was_reset=was_reset)
    return (
        found_clean(record, run, policy, was_reset=was_reset, ended_by_reset=_ended_by_reset(record, gpu))
        if clean
        else record
    )


def _ended_by_reset(record: GpuRecord, gpu: SeenGpu) -> set[str]:
    """Reasons that ended, which only a reset can have done.

    NVML complains for as long as it lasts; the kernel log keeps its lines, and says which are over.
    """
    told = {finding.reason for finding in gpu.findings if finding.source == "kernel_log"}
    return {
        cause.reason
        for cause in record.causes
        if (cause.source == "nvml" and gpu.whole) or (cause.source == "kernel_log" and cause.reason in told)
    }


def _not_seen(record: GpuRecord, run: RunFacts, policy: Policy) -> GpuRecord:
    if not record.causes:
        return record
    if not record.name.is_gpu:  # a GPU's number in DCGM is seen only where something is found on it
        return found_clean(record, run, policy) if run.proves else record
    if not run.counted or not record.present:
        return record
    record = gone_after_reboot(record, run.ended) if run.missing else record
    return replace(record, present=False)
