"""What `snap restore` restores: a variant of this host, or one that is just being fetched from a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import NegativeAnswer, NotFoundError
from coldstart_commands.shell import Shell

if TYPE_CHECKING:
    from coldstart_snapshot.distribution.distribute import SnapshotReference
    from coldstart_snapshot.distribution.receive import Incoming
    from coldstart_snapshot.restoring.restore import RestorePlan

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="URL", help="Fetch the newest version from this store, unless it is here."
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Take what is fetched without a digest or a signature.")
]


def bare_name(name: str) -> str:
    """NAME of NAME[/VARIANT][@DIGEST]."""
    return name.partition("@")[0].partition("/")[0]


@contextmanager
def planned_restore(
    shell: Shell,
    name: str,
    variant: str | None,
    origin: str | None,
    *,
    gpus: tuple[str, ...],
    trust: bool,
    dry_run: bool,
) -> Iterator[tuple[RestorePlan, Incoming | None]]:
    """The plan, and what is still to come of it: the memory of a variant whose small files are here."""
    from coldstart_snapshot.restoring.restore import plan_restore

    configured = shell.config.optional_text("snapshot.store")
    # the imports of stores are spared where no store is asked
    if origin is None and bare_name(name) == name and (configured is None or _is_here(shell, name)):
        yield plan_restore(name, shell.config, variant=variant, gpus=gpus), None
        return
    from coldstart_snapshot.distribution.distribute import SnapshotReference, SnapshotStore
    from coldstart_snapshot.distribution.receive import Incoming, early_plan, find_offer, is_newer_here
    from coldstart_snapshot.distribution.trust import TrustRule
    from coldstart_snapshot.kept.manifest import check_name

    given = SnapshotReference.parse(name)
    reference = SnapshotReference(
        given.name, given.variant if variant is None else check_name(variant), given.digest
    )
    url = origin or configured
    local = _local_plan(shell, reference, gpus) if origin is None else None
    if local is not None:
        yield local, None
        return
    if url is None:
        raise NegativeAnswer(
            f"snapshot of this host is not the one with that digest: {name}",
            hint="name the store that has it: --from URL",
        )
    store = SnapshotStore.open(url, shell.config, tell=shell.printer.warning)
    pinned = [reference.digest] if reference.digest is not None else []
    offer = find_offer(reference, store, TrustRule.of(shell.config, pinned=pinned, given=trust))
    if reference.digest is None and is_newer_here(offer, shell.config):
        shell.printer.note(f"the capture of this host is newer than that of {url}")
        yield plan_restore(offer.version.name, shell.config, variant=offer.version.variant, gpus=gpus), None
        return
    patience = shell.config.number("snapshot.restore_timeout_seconds")
    with Incoming(offer, store, shell.config, gpus=gpus, wait_seconds=patience) as incoming:
        manifest = offer.manifest
        if incoming.is_here:
            incoming.close()
            yield plan_restore(manifest.name, shell.config, variant=manifest.variant, gpus=gpus), None
            return
        if not dry_run:
            shell.printer.status(f"fetching {offer.version.label}: {manifest.size_bytes / 1e6:.1f} MB")
            incoming.begin()
        yield early_plan(incoming, shell.config), incoming


def arrived(shell: Shell, plan: RestorePlan, incoming: Incoming | None) -> RestorePlan:
    """The plan for a variant that is wholly here."""
    from coldstart_snapshot.restoring.restore import plan_restore

    if incoming is None:
        return plan
    incoming.finish()
    incoming.close()
    whole = plan_restore(plan.name, shell.config, variant=plan.variant, gpus=incoming.gpus)
    return replace(whole, lazy=plan.lazy)


def _is_here(shell: Shell, name: str) -> bool:
    from coldstart_snapshot.kept.inventory import require_snapshot

    try:
        require_snapshot(shell.config.state_folder, name)
    except NotFoundError:
        return False
    return True


def _local_plan(shell: Shell, reference: SnapshotReference, gpus: tuple[str, ...]) -> RestorePlan | None:
    """A plan for what this host has, if that is what was asked for."""
    from coldstart_snapshot.distribution.distribute import identity_of
    from coldstart_snapshot.kept.manifest import manifest_content
    from coldstart_snapshot.restoring.restore import plan_restore

    if not _is_here(shell, reference.name):
        return None
    plan = plan_restore(reference.name, shell.config, variant=reference.variant, gpus=gpus)
    if reference.digest not in {None, identity_of(manifest_content(plan.folder))}:
        return None
    return plan
