"""A replica described by its snapshot alone: what `snap restore` starts from, and falls back to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import DataError
from coldstart_launch.roots import FolderRoot, ImageRoot, OverlayRoot, Root
from coldstart_launch.spec import DEFAULT_READY_TIMEOUT_SECONDS, HostMount, Readiness, ReplicaSpec

if TYPE_CHECKING:
    from coldstart_snapshot.inventory import StoredVariant
    from coldstart_snapshot.manifest import Manifest


def recorded_replica(stored: StoredVariant, name: str, store: str) -> tuple[ReplicaSpec, Root]:
    """Specification and root of a captured container, to be run under `name`."""
    from coldstart_snapshot.bundle import network_is_shared, read_bundle

    bundle = read_bundle(stored.folder / "bundle")
    process: Mapping[str, Any] = bundle.get("process", {})
    user: Mapping[str, Any] = process.get("user", {})
    ready = stored.manifest.ready
    root = recorded_root(stored.manifest, store)
    spec = ReplicaSpec(
        name=name,
        image=root.label,
        command=tuple(process.get("args", ())),
        environment=dict(entry.split("=", 1) for entry in process.get("env", ()) if "=" in entry),
        working_directory=process.get("cwd"),
        user=f"{user.get('uid', 0)}:{user.get('gid', 0)}",
        network="host" if network_is_shared(bundle) else "none",
        mounts=tuple(_host_mounts(bundle)),
        ready=Readiness(
            ready.url if ready is not None else None,
            ready.timeout_seconds if ready is not None else DEFAULT_READY_TIMEOUT_SECONDS,
        ),
        snapshot=stored.manifest.name,
        groups=tuple(user.get("additionalGids", ())),
    )
    return spec, root


def recorded_root(manifest: Manifest, store: str) -> Root:
    """The root that a container was captured on, found again by digest or by path."""
    from coldstart_snapshot.roots import RootKind

    source = manifest.root
    if source is None:
        raise DataError(f"snapshot does not say what its root was: {manifest.name}")
    if source.kind is RootKind.IMAGE:
        if source.image is None:
            raise DataError(f"snapshot does not say which image its root was: {manifest.name}")
        return ImageRoot(source.image, store)
    if source.kind is RootKind.OVERLAY:
        return OverlayRoot(source.path)
    return FolderRoot(source.path)


def _host_mounts(bundle: Mapping[str, Any]) -> list[HostMount]:
    return [
        HostMount(Path(mount["source"]), mount["destination"], "ro" in mount.get("options", ()))
        for mount in bundle.get("mounts", ())
        if mount.get("type") == "bind" or {"bind", "rbind"} & set(mount.get("options", ()))
    ]
