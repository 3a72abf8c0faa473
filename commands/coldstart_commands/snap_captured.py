"""How `snap create` says what it captured, and how it captures the replica of a specification."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import NegativeAnswer
from coldstart_commands.shell import Shell

if TYPE_CHECKING:
    from coldstart_launch.chain import Running
    from coldstart_snapshot.capturing.capture import SnapshotVariant
    from coldstart_snapshot.kept.manifest import Manifest


def create_from_spec(
    shell: Shell, name: str, path: Path, cpu_level: str, *, leave_running: bool, dry_run: bool
) -> None:
    """Start a replica cold, held to a CPU level, capture it when it is ready, and end it."""
    started = time.monotonic()
    from coldstart_commands.launch import keep
    from coldstart_host.cpu import read_cpu_facts
    from coldstart_launch.chain import launched, rehearse
    from coldstart_launch.options import Conversation, LaunchOptions
    from coldstart_launch.roots import ImageRoot
    from coldstart_launch.spec import load_spec
    from coldstart_launch.waterfall import Waterfall
    from coldstart_snapshot.cpu.capped import check_reached
    from coldstart_snapshot.cpu.caps import NATIVE, capped_environment, check_level
    from coldstart_snapshot.kept.manifest import check_name

    check_name(name)
    level = check_level(cpu_level)
    spec = replace(load_spec(path), snapshot=name)
    if level != NATIVE:
        check_reached(level, read_cpu_facts())
        capped_environment(level, spec.environment)  # what it allows beyond the level is refused here
    root = ImageRoot(spec.image, shell.config.store, spec.workload)
    options = LaunchOptions(cold=True, snapshot_when_ready=True, only_to_capture=True, cpu_level=level)
    conversation = Conversation(shell.printer.status, shell.printer.warning)
    if dry_run:
        rehearsal = rehearse(spec, root, options, shell.config, conversation)
        shell.printer.answer(f"would start {rehearsal.name} cold, held to {level}, and capture it as {name}")
        shell.printer.document("snap.create.rehearsal", 1, {"name": name, "spec": str(path), "level": level})
        return
    with launched(spec, root, options, shell.config, conversation, waterfall=Waterfall(started)) as running:
        if leave_running:
            keep(shell, running, detach=True, answer=_show_running)
        else:
            assert running.captured is not None
            captured = replace(running.captured, stopped=True)
    show_captured(shell, captured)
    _answer_whether_proven(captured)


def _show_running(shell: Shell, running: Running) -> None:
    assert running.captured is not None
    show_captured(shell, running.captured)
    _answer_whether_proven(running.captured)


def _answer_whether_proven(captured: SnapshotVariant) -> None:
    """Whoever asked for a level wants to know, by the exit status too, that it did not come to one."""
    caps = captured.manifest.caps
    if caps is not None and not caps.proven:
        raise NegativeAnswer(
            f"not proven to keep to {caps.level}: {captured.manifest.name}/{captured.manifest.variant}, "
            "which is for CPUs with every flag of this one",
            hint="what speaks against it is said above; the variant is published and can be restored",
        )


def show_captured(shell: Shell, captured: SnapshotVariant) -> None:
    """What was published, for people and as JSON."""
    for warning in captured.warnings:
        shell.printer.warning(warning)
    for note in captured.notes:
        shell.printer.note(note)
    manifest = captured.manifest
    label = f"{manifest.name}/{manifest.variant}"
    if captured.published:
        verb = "replaced" if captured.replaced else "created"
        shell.printer.answer(f"{verb} {label}: {manifest.size_bytes / 1e6:.1f} MB")
        shell.printer.note(f"the server stood still for {_standstill_seconds(manifest):.2f} s")
        _show_caps(shell, captured)
    else:
        verb = "replace" if captured.replaced else "create"
        shell.printer.answer(f"would {verb} {label}: {len(manifest.tree)} processes")
    shell.printer.document("snap.create", 1, _document(captured))


def _show_caps(shell: Shell, captured: SnapshotVariant) -> None:
    manifest = captured.manifest
    caps = manifest.caps
    if caps is None:
        return
    if caps.proven:
        how = "CPUID was answered for it" if caps.mechanism == "cpuid" else "by its environment"
        shell.printer.note(
            f"all {caps.processes} processes keep to {caps.level}: {how}; "
            "what was compiled for a higher level without asking the CPU is not noticed"
        )
        return
    for problem in caps.problems:
        shell.printer.warning(problem)


def _standstill_seconds(manifest: Manifest) -> float:
    """How long its clients got no answer."""
    return manifest.timings.get("frozen", manifest.timings.get("dump", 0.0))


def _document(captured: SnapshotVariant) -> dict[str, Any]:
    manifest = captured.manifest
    return {
        "name": manifest.name,
        "variant": manifest.variant,
        "folder": str(captured.folder),
        "kind": manifest.kind,
        "published": captured.published,
        "replaced": captured.replaced,
        "stopped": captured.stopped,
        "size_bytes": manifest.size_bytes,
        "processes": len(manifest.tree),
        "gpu_processes": sum(member.gpu for member in manifest.tree),
        "golden_requests": len(manifest.golden),
        "standstill_seconds": _standstill_seconds(manifest) if captured.published else None,
        "timings": dict(manifest.timings),
        "notes": list(captured.notes),
        "warnings": list(captured.warnings),
        "cpu_caps": asdict(manifest.caps) if manifest.caps is not None else None,
        "required_flags": list(manifest.required_flags),
    }
