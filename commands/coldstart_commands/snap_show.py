"""coldstart snap show: one snapshot's manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_snapshot.manifest import Manifest

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="VARIANT", help="This variant, where there are several.")
]


@coldstart_command()
def command(shell: Shell, name: NameArgument, variant: VariantOption = None) -> None:
    """Show what a snapshot holds: where and of what it was taken, its processes, its parts."""
    from coldstart_snapshot.inventory import load_variant
    from coldstart_snapshot.manifest import to_dict

    stored = load_variant(shell.config.state_folder, name, variant)
    for heading, value in _facts(stored.manifest):
        shell.printer.answer(f"{shell.printer.style(f'{heading:<10}', 'bold')} {value}")
    shell.printer.answer(f"{shell.printer.style('folder    ', 'bold')} {stored.folder}")
    document = to_dict(stored.manifest)
    document.pop("schema")
    document["manifest_version"] = document.pop("version")
    shell.printer.document("snap.show", 1, {"folder": str(stored.folder), **document})


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
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
    if manifest.root is not None:
        facts.append(("root", f"{manifest.root.kind}: {manifest.root.image or manifest.root.path}"))
    if manifest.ready is not None:
        facts.append(("ready", f"{manifest.ready.url} within {manifest.ready.timeout_seconds:g} s"))
    if manifest.gpu is not None:
        facts.append(("gpu", f"driver {manifest.gpu.driver_version}, processes {manifest.gpu.processes}"))
    facts += [
        ("size", f"{manifest.size_bytes / 1e6:.1f} MB in {len(manifest.files)} files"),
        ("timings", ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in manifest.timings.items())),
    ]
    return facts
