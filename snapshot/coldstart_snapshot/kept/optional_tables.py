"""Tables of a manifest that not every server has: what they need is imported for those that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldstart_snapshot.cpu.caps import CapProof
    from coldstart_snapshot.kept.manifest import Manifest


def to_tables(manifest: Manifest) -> dict[str, Any]:
    """Tables of what not every server has, or was captured with."""
    document: dict[str, Any] = {}
    if manifest.ready is not None:
        document["ready"] = asdict(manifest.ready)
    if manifest.privileges or manifest.secrets:
        document["exposure"] = {"privileges": list(manifest.privileges), "secrets": list(manifest.secrets)}
    if manifest.restore_command is not None:
        from coldstart_snapshot.kept import restore_command

        document["restore"] = restore_command.to_table(manifest.restore_command)
    if manifest.stream:
        document["weights"] = {"stream": list(manifest.stream)}
    if manifest.engine is not None:
        document["engine"] = manifest.engine.document()
    if manifest.gpu is not None:
        from coldstart_snapshot.cuda.gpu_state import gpu_table

        document["gpu"] = gpu_table(manifest.gpu)
    if manifest.pages is not None:
        document["pages"] = asdict(manifest.pages)
    if manifest.caps is not None:
        document["cpu_caps"] = {**asdict(manifest.caps), "problems": list(manifest.caps.problems)}
    return document | _judging(manifest)


def _judging(manifest: Manifest) -> dict[str, Any]:
    """What a restored server must answer, and what is started in place of one that does not."""
    document: dict[str, Any] = {}
    if manifest.cold is not None:
        from coldstart_snapshot.kept import cold

        document["cold"] = cold.to_table(manifest.cold)
    if manifest.golden:
        from coldstart_snapshot.answers import golden

        document["golden"] = [golden.to_table(request) for request in manifest.golden]
    return document


def from_tables(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of tables that not every manifest has, by their names."""
    found: dict[str, Any] = {}
    if document.get("gpu") is not None:
        from coldstart_snapshot.cuda.gpu_state import read_gpu_table

        found["gpu"] = read_gpu_table(document["gpu"])
    if document.get("restore") is not None:
        from coldstart_snapshot.kept import restore_command

        found["restore_command"] = restore_command.from_table(document["restore"])
    if "engine" in document:
        from coldstart_snapshot.engines.settings import EngineSettings

        found["engine"] = EngineSettings.from_document(document["engine"])
    if document.get("cpu_caps") is not None:
        found["caps"] = _caps(document["cpu_caps"])
    if "cold" in document:
        from coldstart_snapshot.kept import cold

        found["cold"] = cold.from_table(document["cold"])
    if document.get("golden", ()) != ():
        from coldstart_snapshot.answers import golden

        found["golden"] = tuple(golden.from_table(table) for table in document["golden"])
    return found


def _caps(table: Mapping[str, Any]) -> CapProof:
    from coldstart_host.cpu_levels import LEVELS
    from coldstart_snapshot.cpu.caps import CapProof

    level, mechanism, problems = table["level"], table["mechanism"], tuple(table["problems"])
    if level not in LEVELS or not all(isinstance(problem, str) for problem in problems):
        raise ValueError(f"CPU caps are {dict(table)!r}")
    return CapProof(level, str(mechanism), int(table["processes"]), problems)
