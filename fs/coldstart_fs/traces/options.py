"""What a mount is to do with traces, handed to its server as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from coldstart_cli.config import Config
from coldstart_cli.errors import ConfigError
from coldstart_fs.traces.modes import Mode
from coldstart_fs.traces.names import DEFAULT_WORKLOAD, check_workload


@dataclass(frozen=True)
class TraceOptions:
    """As configured, for one workload.

    `audit_every`: after that many partial recordings for each complete one, a replay stops at the local
    cache, so that all that is read is seen; 0: never.
    """

    state_folder: str
    workload: str = DEFAULT_WORKLOAD
    record: bool = True
    replay: Mode = Mode.PAGES
    file: str | None = None
    limit_seconds: float = 300.0
    memory_percent: float = 25.0
    audit_every: int = 20
    publish: bool = False

    @classmethod
    def from_config(
        cls, config: Config, *, workload: str, file: Path | None = None, traced: bool = True
    ) -> TraceOptions:
        """As configured; not `traced`: neither recorded nor replayed."""
        replay = config.text("image.trace_replay")
        if replay not in set(Mode):
            source = config.value("image.trace_replay").source
            raise ConfigError(
                f"wrong value of image.trace_replay, {source}: {replay}",
                hint=f"it must be one of {', '.join(Mode)}",
            )
        return cls(
            state_folder=os.path.abspath(config.state_folder),
            workload=check_workload(workload),
            record=traced and config.switch("image.trace_record"),
            replay=Mode(replay) if traced else Mode.OFF,
            file=None if file is None else os.path.abspath(file),
            limit_seconds=config.number("image.trace_seconds"),
            memory_percent=min(config.number("image.trace_memory_percent"), 90.0),
            audit_every=int(config.number("image.trace_audit_every")),
            publish=config.switch("image.trace_publish"),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TraceOptions:
        """What another version wrote: fields that this one does not know are left out."""
        known = {item.name for item in fields(cls)}
        replay = values.get("replay")
        mode = Mode(replay) if replay in set(Mode) else Mode.OFF
        return cls(**{**{key: value for key, value in values.items() if key in known}, "replay": mode})

    @property
    def state(self) -> Path:
        return Path(self.state_folder)
