"""A replica described by its snapshot alone: what `snap restore` starts from, and falls back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import DataError, UsageError
from coldstart_launch.roots import FolderRoot, ImageRoot, OverlayRoot, Root
from coldstart_launch.spec import DEFAULT_READY_TIMEOUT_SECONDS, HostMount, Readiness, ReplicaSpec

if TYPE_CHECKING:
    from coldstart_launch.publish import Publication
    from coldstart_snapshot.kept.inventory import StoredVariant
    from coldstart_snapshot.kept.manifest import Manifest


def recorded_replica(stored: StoredVariant, name: str, store: str) -> tuple[ReplicaSpec, Root]:
    """Specification and root of a captured container, to be run under `name`."""
    from coldstart_snapshot.containers.bundle import network_is_shared, read_bundle
    from coldstart_snapshot.containers.cdi_edits import injected, without_devices

    given = read_bundle(stored.folder / "bundle")
    bundle = without_devices(given)
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
        restore_command=stored.manifest.restore_command,
        stream=stored.manifest.stream,
        engine=stored.manifest.engine,
        devices=injected(given),
    )
    return spec, root


def with_network(spec: ReplicaSpec, network: str | None, publish: tuple[Publication, ...]) -> ReplicaSpec:
    """The same replica in another network, with published ports."""
    if network is not None and network not in {"host", "own"} and not network.startswith("/"):
        raise UsageError(f"no such network: {network}", hint="host, own, or the path of a network namespace")
    if network == "host" and publish:
        raise UsageError("options exclude each other: --network host and --publish")
    if spec.network == "none":
        if network not in {None, "own"}:
            raise UsageError(
                f"snapshot brings a network of its own: {spec.snapshot}",
                hint="leave `--network` out; `--publish` leads into it",
            )
        return replace(spec, publish=publish)
    return replace(spec, network=network or ("own" if publish else spec.network), publish=publish)


def recorded_root(manifest: Manifest, store: str) -> Root:
    """The root that a container was captured on, found again by digest or by path."""
    from coldstart_snapshot.containers.roots import RootKind

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
    from coldstart_snapshot.containers.bundle import is_bound

    return [
        HostMount(Path(mount["source"]), mount["destination"], "ro" in mount.get("options", ()))
        for mount in bundle.get("mounts", ())
        if is_bound(mount)
    ]
