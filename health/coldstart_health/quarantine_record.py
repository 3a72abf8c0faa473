"""What the quarantine knows of a GPU: why it is in, what was tried, how it came out; also as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from coldstart_cli.errors import ColdstartError
from coldstart_health.moment import Moment
from coldstart_health.strict_json import StrictObject, moment_json
from coldstart_health.verdict import Verdict, worst

SCHEMA = "coldstart.health.quarantine"
VERSION = 1
RepairKind = Literal["reset", "reboot"]


@dataclass(frozen=True)
class Cause:
    """One reason to be in quarantine. `found` is what the checks say, `verdict` what became of it.

    `level` is the DCGM level that found it, 0 for what every quick run looks at. `escalated` says why the
    verdict is worse than what was found.
    """

    reason: str
    found: Verdict
    verdict: Verdict
    source: str
    level: int
    evidence: str
    action: str | None
    first: Moment
    last: Moment
    runs: int = 1
    clean_runs: int = 0
    last_clean: Moment | None = None
    escalated: str | None = None


@dataclass(frozen=True)
class Repair:
    """A reset or a reboot that a quarantined GPU has been through."""

    kind: RepairKind
    at: Moment
    helped: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """A cause that recovered, or that a person cleared. `proven`: a clean run has seen it gone."""

    reason: str
    verdict: Verdict
    how: Literal["recovered", "cleared"]
    last: Moment
    at: Moment
    proven: bool
    by: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class GpuName:
    """All names that a GPU goes by. `subject` is the one that findings use; `host` for the host itself."""

    subject: str
    uuid: str | None = None
    serial: str | None = None
    pci_bus_id: str | None = None
    index: int | None = None
    model: str | None = None

    @property
    def is_gpu(self) -> bool:
        """False for the host, and for a GPU that only DCGM has a number for: it may be any."""
        return any((self.uuid, self.serial, self.pci_bus_id)) or self.subject.startswith("index:")


@dataclass(frozen=True)
class GpuRecord:
    """One GPU, or the host. In quarantine while it has causes; else kept for what was tried on it.

    `marks` are counters that only a reset or a driver reload sets back.
    """

    name: GpuName
    present: bool = True
    causes: tuple[Cause, ...] = ()
    repairs: tuple[Repair, ...] = ()
    ended: tuple[Ended, ...] = ()
    marks: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return worst(cause.verdict for cause in self.causes)

    @property
    def worst_cause(self) -> Cause:
        return max(self.causes, key=lambda cause: cause.verdict)

    @property
    def since(self) -> Moment:
        """When the oldest of its causes was first seen; causes are kept in that order."""
        return self.causes[0].first

    @property
    def blocks(self) -> bool:
        """In quarantine, and where something could be placed on it."""
        return bool(self.causes) and self.present


@dataclass(frozen=True)
class Quarantine:
    """The whole state. `sequence` counts the changes."""

    records: tuple[GpuRecord, ...] = ()
    sequence: int = 0


class MalformedError(ColdstartError):
    """The document does not say what a quarantine says."""


def to_json(state: Quarantine) -> dict[str, Any]:
    """The document of the state file."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "sequence": state.sequence,
        "gpus": [_record_json(record) for record in state.records],
    }


def from_json(document: object) -> Quarantine:
    """The inverse, strict: what cannot be understood whole is refused whole."""
    try:
        content = StrictObject(document)
        return Quarantine(
            records=tuple(map(_record, content.items("gpus"))), sequence=content.integer("sequence")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"{type(error).__name__}: {error}") from error


def _record_json(record: GpuRecord) -> dict[str, Any]:
    return {
        **vars(record.name),
        "present": record.present,
        "verdict": record.verdict.word,
        "causes": [_plain(vars(cause)) for cause in record.causes],
        "repairs": [_plain(vars(repair)) for repair in record.repairs],
        "ended": [_plain(vars(ended)) for ended in record.ended],
        "marks": dict(record.marks),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(values)
    for key, value in plain.items():
        if isinstance(value, Verdict):
            plain[key] = value.word
        elif isinstance(value, Moment):
            plain[key] = moment_json(value)
        elif isinstance(value, tuple):
            plain[key] = list(value)
    return plain


def name_from_json(fields: StrictObject) -> GpuName:
    """The names that stand among the other values of an object."""
    return GpuName(
        subject=fields.text("subject"),
        uuid=fields.optional("uuid", fields.text),
        serial=fields.optional("serial", fields.text),
        pci_bus_id=fields.optional("pci_bus_id", fields.text),
        index=fields.optional("index", fields.integer),
        model=fields.optional("model", fields.text),
    )


def _record(document: object) -> GpuRecord:
    fields = StrictObject(document)
    record = GpuRecord(
        name=name_from_json(fields),
        present=fields.flag("present"),
        causes=tuple(map(_cause, fields.items("causes"))),
        repairs=tuple(map(_repair, fields.items("repairs"))),
        ended=tuple(map(_ended, fields.items("ended"))),
        marks=fields.counters("marks"),
    )
    # it says the same twice: what was edited in one place alone means nothing
    if fields.verdict("verdict") is not record.verdict:
        told = fields.text("verdict")
        raise ValueError(f"{record.name.subject}: verdict {told}, and its causes say {record.verdict.word}")
    for cause in record.causes:
        if not Verdict.DRAIN <= cause.found <= cause.verdict:
            raise ValueError(
                f"{record.name.subject}: {cause.reason} is {cause.found.word}, then {cause.verdict.word}"
            )
    return record


def _cause(document: object) -> Cause:
    fields = StrictObject(document)
    return Cause(
        reason=fields.text("reason"),
        found=fields.verdict("found"),
        verdict=fields.verdict("verdict"),
        source=fields.text("source"),
        level=fields.integer("level"),
        evidence=fields.text("evidence"),
        action=fields.optional("action", fields.text),
        first=fields.moment("first"),
        last=fields.moment("last"),
        runs=fields.integer("runs"),
        clean_runs=fields.integer("clean_runs"),
        last_clean=fields.optional("last_clean", fields.moment),
        escalated=fields.optional("escalated", fields.text),
    )


def _repair(document: object) -> Repair:
    fields = StrictObject(document)
    kind = fields.text("kind")
    if kind not in {"reset", "reboot"}:
        raise ValueError(f"kind: {kind}")
    return Repair(
        kind="reset" if kind == "reset" else "reboot",
        at=fields.moment("at"),
        helped=fields.flag("helped"),
        reasons=fields.texts("reasons"),
    )


def _ended(document: object) -> Ended:
    fields = StrictObject(document)
    how = fields.text("how")
    if how not in {"recovered", "cleared"}:
        raise ValueError(f"how: {how}")
    return Ended(
        reason=fields.text("reason"),
        verdict=fields.verdict("verdict"),
        how="cleared" if how == "cleared" else "recovered",
        last=fields.moment("last"),
        at=fields.moment("at"),
        proven=fields.flag("proven"),
        by=fields.optional("by", fields.text),
        why=fields.optional("why", fields.text),
    )
