"""coldstart snap show: one snapshot's manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.kept.manifest import Manifest

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="VARIANT", help="This variant, where there are several.")
]


@coldstart_command()
def command(shell: Shell, name: NameArgument, variant: VariantOption = None) -> None:
    """Show what a snapshot holds: where and of what it was taken, its processes, its parts."""
    from coldstart_commands.snap_stored import identity
    from coldstart_snapshot.kept.inventory import load_variant
    from coldstart_snapshot.kept.manifest import to_dict
    from coldstart_snapshot.processes.secrets_found import redact_url

    stored = load_variant(shell.config.state_folder, name, variant)
    facts, provenance = identity(stored)
    for heading, value in [*_facts(stored.manifest), *facts]:
        shell.printer.answer(f"{shell.printer.style(f'{heading:<10}', 'bold')} {value}")
    shell.printer.answer(f"{shell.printer.style('folder    ', 'bold')} {stored.folder}")
    document = to_dict(stored.manifest)
    for request, table in zip(stored.manifest.golden, document.get("golden", ()), strict=False):
        # what goes to a terminal or a ticket need not hold the key of the server
        table["headers"] |= dict.fromkeys(request.secret_headers, "[redacted]")
    for table in (document.get("ready"), document.get("engine"), *document.get("golden", ())):
        if table and table.get("url"):
            table["url"] = redact_url(table["url"])
    document.pop("schema")
    document["manifest_version"] = document.pop("version")
    shell.printer.document("snap.show", 1, {"folder": str(stored.folder), **provenance, **document})


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    from coldstart_snapshot.processes.secrets_found import redact_url

    cpu = manifest.cpu
    facts = [
        ("snapshot", f"{manifest.name}/{manifest.variant}"),
        ("created", f"{manifest.created} by coldstart {manifest.coldstart_version}"),
        ("kind", manifest.kind),
        ("command", " ".join(manifest.command.split())[:200]),
        ("processes", ", ".join(f"{member.pid} ({member.threads} threads)" for member in manifest.tree)),
        ("listens", ", ".join(manifest.listen) or "on nothing"),
        ("cpu", f"{cpu.level}, {cpu.brand or cpu.vendor}, XSAVE {cpu.xsave_bytes} bytes"),
        ("kernel", manifest.kernel_release),
        ("criu", manifest.criu_version),
    ]
    if (caps := manifest.caps) is not None:
        doubts = "proven" if caps.proven else "not proven: " + "; ".join(caps.problems)
        facts.append(("held to", f"{caps.level} ({caps.mechanism}), {doubts}"))
    if manifest.root is not None:
        facts.append(("root", f"{manifest.root.kind}: {manifest.root.image or manifest.root.path}"))
    if manifest.ready is not None:
        facts.append(
            ("ready", f"{redact_url(manifest.ready.url)} within {manifest.ready.timeout_seconds:g} s")
        )
    if manifest.restore_command is not None:
        command = manifest.restore_command
        text = " ".join(command.arguments)[:200]
        facts.append(("restore", f"runs {text} within {command.timeout_seconds:g} s"))
    facts += [
        ("golden", f"{request.method} {redact_url(request.url)}: {request.expect}, status {request.status}")
        for request in manifest.golden
    ]
    if (engine := manifest.engine) is not None:
        where = redact_url(engine.url or "") or engine.control_folder or " ".join(engine.quiesce)
        facts.append(("engine", f"{engine.kind}, weights {engine.weights}: {where}"))
    if manifest.stream:
        facts.append(("weights", f"read while it is restored: {', '.join(manifest.stream)}"))
    if manifest.secrets:
        facts.append(("secrets", ", ".join(manifest.secrets)))
    if manifest.privileges:
        facts.append(("may", "; ".join(manifest.privileges)))
    if manifest.gpu is not None:
        facts.append(("gpu", f"driver {manifest.gpu.driver_version}, processes {manifest.gpu.processes}"))
    return facts + _sizes(manifest)


def _sizes(manifest: Manifest) -> list[tuple[str, str]]:
    found = []
    if (pages := manifest.pages) is not None:
        memory = f"{pages.nonzero_bytes / 1e6:.1f} MB, and {pages.zero_bytes / 1e6:.1f} MB of zeros"
        found.append(("memory", f"{memory}; {pages.allocated_bytes / 1e6:.1f} MB on disk"))
    return [
        *found,
        ("size", f"{manifest.size_bytes / 1e6:.1f} MB in {len(manifest.files)} files"),
        ("timings", ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in manifest.timings.items())),
    ]
