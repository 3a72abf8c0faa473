"""How things stand, from what is on record alone: nobody is asked, so a hung driver cannot hide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError
from coldstart_health.last_run import RUN_KINDS, LastRun, load_last_run
from coldstart_health.moment import now
from coldstart_health.quarantine_pending import load_known
from coldstart_health.quarantine_policy import Policy
from coldstart_health.quarantine_record import GpuRecord, Quarantine, to_json
from coldstart_health.quarantine_run import next_step, why
from coldstart_health.strict_json import moment_json


@dataclass(frozen=True)
class Standing:
    """What is in quarantine, and the last runs. `warnings` name records that could not be read."""

    records: tuple[GpuRecord, ...]
    runs: tuple[LastRun, ...]
    policy: Policy
    boot_id: str
    warnings: tuple[str, ...] = ()

    @property
    def blocking(self) -> tuple[GpuRecord, ...]:
        return tuple(record for record in self.records if record.blocks)

    def this_boot(self, run: LastRun) -> bool:
        return run.at.boot_id == self.boot_id

    def document(self) -> dict[str, Any]:
        """The answer as JSON values: the state file's own objects, and what they mean."""
        return {
            "blocked": bool(self.blocking),
            "quarantine": [self._record(record) for record in self.records],
            "last_runs": {
                run.kind: {**run.document(), "this_boot": self.this_boot(run)} for run in self.runs
            },
            "warnings": list(self.warnings),
        }

    def _record(self, record: GpuRecord) -> dict[str, Any]:
        (content,) = to_json(Quarantine((record,)))["gpus"]
        return {
            **content,
            "blocks": record.blocks,
            "since": moment_json(record.since),
            "why": why(record),
            "next": next_step(record, self.policy),
        }


def standing(config: Config) -> Standing:
    """Raises where the quarantine cannot be read: the answer is then that nothing may be placed."""
    state = load_known(config)
    runs: list[LastRun] = []
    warnings: list[str] = []
    for kind in RUN_KINDS:
        try:
            if run := load_last_run(config.state_folder, kind):
                runs.append(run)
        except ColdstartError as error:
            warnings.append(error.message)
    return Standing(
        records=tuple(record for record in state.records if record.causes),
        runs=tuple(runs),
        policy=Policy.of(config),
        boot_id=now().boot_id,
        warnings=tuple(warnings),
    )
