"""What a capture writes down of a server, its host and the programs, before it touches the server."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from coldstart_cli.version import __version__
from coldstart_host.cpu import read_cpu_facts
from coldstart_snapshot.containers.bundle import read_bundle
from coldstart_snapshot.containers.privileges import privileges_of
from coldstart_snapshot.containers.target import ContainerTarget, Target, TargetFacts
from coldstart_snapshot.cpu.caps import CapProof
from coldstart_snapshot.cpu.match import required_flags
from coldstart_snapshot.cpu.variants import variant_name
from coldstart_snapshot.criu.calls import DumpOptions
from coldstart_snapshot.criu.program import Criu
from coldstart_snapshot.cuda.capturing import GpuCapture
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.kept.manifest import Manifest, ReadyCheck, TreeMember
from coldstart_snapshot.processes.secrets_found import exposed_secrets

if TYPE_CHECKING:
    from coldstart_snapshot.capturing.capture import CaptureRequest


def describe(
    request: CaptureRequest,
    target: Target,
    criu: Criu,
    options: DumpOptions,
    facts: TargetFacts,
    *,
    gpu: GpuCapture | None,
    caps: CapProof | None,
    engine: EngineSettings | None,
) -> Manifest:
    """The manifest of a capture that is about to begin: without files, golden answers and timings."""
    cpu = read_cpu_facts()
    inner = {member.pid: member.inner_pid for member in facts.tree}
    container = isinstance(target, ContainerTarget)
    bundle = read_bundle(target.bundle) if isinstance(target, ContainerTarget) else None
    system = os.uname()
    return Manifest(
        name=request.name,
        variant=variant_name(cpu, caps),
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        coldstart_version=__version__,
        kind="container" if container else "process",
        cpu=cpu,
        required_flags=required_flags(cpu, caps),
        caps=caps,
        kernel_release=system.release,
        kernel_version=system.version,
        criu_version=criu.version,
        criu_path=criu.program,
        criu_options=options.lines(),
        root_pid=facts.tree[0].inner_pid,
        command=facts.tree[0].command,
        tree=tuple(
            TreeMember(
                pid=member.inner_pid,
                parent=inner.get(member.parent, 0),
                command=member.command,
                threads=member.threads,
                gpu=gpu is not None and member.pid in gpu.pids,
            )
            for member in facts.tree
        ),
        files=(),
        runc_version=target.runc.version() if isinstance(target, ContainerTarget) else None,
        root=target.root if isinstance(target, ContainerTarget) else None,
        network=facts.network,
        listen=facts.listen,
        output_keys=facts.output_keys,
        ready=ReadyCheck(request.ready_url, request.ready_timeout_seconds) if request.ready_url else None,
        gpu=gpu.state if gpu is not None else None,
        restore_command=request.restore_command,
        privileges=privileges_of(bundle) if bundle is not None else (),
        secrets=exposed_secrets([member.pid for member in facts.tree], bundle),
        engine=engine,
        stream=request.stream,
    )
