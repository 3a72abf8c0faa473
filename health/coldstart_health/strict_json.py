"""State files of health, read strictly: verdicts and moments too."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from coldstart_cli import strict_json
from coldstart_health.moment import Moment
from coldstart_health.verdict import Verdict


def moment_json(moment: Moment) -> dict[str, Any]:
    return dict(vars(moment))


def moment_from_json(document: object) -> Moment:
    fields = StrictObject(document)
    utc = fields.text("utc")
    if datetime.fromisoformat(utc).tzinfo is None:
        raise ValueError(f"a time without a zone: {utc}")
    return Moment(fields.text("boot_id"), fields.number("boottime_seconds"), utc)


class StrictObject(strict_json.StrictObject):
    """An object of a state file that may hold moments and verdicts."""

    def verdict(self, key: str) -> Verdict:
        return Verdict[self.text(key).upper()]

    def moment(self, key: str) -> Moment:
        return moment_from_json(self._document[key])
