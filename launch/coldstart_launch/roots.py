"""Root file systems of replicas: a lazily mounted image, an overlay over a folder, or a folder as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from coldstart_cli.config import Config
from coldstart_cli.errors import NotFoundError
from coldstart_cli.files import make_directory
from coldstart_launch.replica import Replica

if TYPE_CHECKING:
    from coldstart_snapshot.containers.roots import RootSource


class Root(Protocol):
    """Where a replica's root comes from. Opening is idempotent only after `Replica.unmount`."""

    @property
    def label(self) -> str: ...

    def identity(self, config: Config) -> str | None:
        """`blake3:HEX` of the image, None where the root is no image of ours."""
        ...

    def open(self, replica: Replica, before_overlay: Callable[[], None], tell: Callable[[str], None]) -> Path:
        """Make the root; `before_overlay` fills the writable layer before anything looks at it.

        `tell` hears what a mount has to say, such as that the store is down and the cache is used.
        """
        ...

    def configuration(self, config: Config) -> Mapping[str, Any]:
        """The image's runtime configuration; empty where there is none."""
        ...

    def source(self, path: Path) -> RootSource:
        """What a snapshot of a container on this root, open at `path`, records of it."""
        ...


@dataclass(frozen=True)
class ImageRoot:
    """An image of the store under a writable overlay; `workload` names its trace, else the replica does."""

    name: str
    store: str
    workload: str | None = None

    @property
    def label(self) -> str:
        return self.name

    def identity(self, config: Config) -> str:
        from coldstart_fs.format.names import digest_text
        from coldstart_fs.stores.references import resolve_image
        from coldstart_fs.stores.store_url import open_store

        return digest_text(resolve_image(open_store(self.store), self.name, cache=config.cache_folder).digest)

    def open(self, replica: Replica, before_overlay: Callable[[], None], tell: Callable[[str], None]) -> Path:
        from coldstart_fs.mounts.mount import MountRequest, mount_detached
        from coldstart_fs.traces.options import TraceOptions

        make_directory(replica.root, mode=0o755)
        request = MountRequest.configured(
            replica.config,
            name=self.name,
            mountpoint=replica.root,
            store=self.store,
            overlay=replica.overlay,
            # a root file system without its setuid programs and devices would not be the image
            suid=True,
            dev=True,
            traces=TraceOptions.from_config(replica.config, workload=self.workload or replica.name),
        )
        for note in mount_detached(request, before_overlay=before_overlay).notes:
            tell(note)
        return replica.root

    def configuration(self, config: Config) -> Mapping[str, Any]:
        from coldstart_fs.stores.images import image_configuration
        from coldstart_fs.stores.references import resolve_image
        from coldstart_fs.stores.store_url import open_store

        store = open_store(self.store)
        return image_configuration(
            store, resolve_image(store, self.name, cache=config.cache_folder).digest, config.cache_folder
        )

    def source(self, path: Path) -> RootSource:
        from coldstart_fs.stores.store_url import open_store
        from coldstart_snapshot.containers.roots import detect_root

        return replace(detect_root(path), name=self.name, store=open_store(self.store).url)


@dataclass(frozen=True)
class OverlayRoot:
    """A folder of the host under a writable overlay."""

    lower: Path

    @property
    def label(self) -> str:
        return str(self.lower)

    def identity(self, config: Config) -> None:
        del config

    def open(self, replica: Replica, before_overlay: Callable[[], None], tell: Callable[[str], None]) -> Path:
        from coldstart_fs.mounts.kernel_mounts import mount_overlay

        del tell
        _require_folder(self.lower)
        upper, work = make_directory(replica.overlay / "upper"), make_directory(replica.overlay / "work")
        before_overlay()
        make_directory(replica.root, mode=0o755)
        mount_overlay(self.lower, upper, work, replica.root, source="coldstart", suid=True, dev=True)
        return replica.root

    def configuration(self, config: Config) -> Mapping[str, Any]:
        del config
        return {}

    def source(self, path: Path) -> RootSource:
        from coldstart_snapshot.containers.roots import detect_root

        return detect_root(path)


@dataclass(frozen=True)
class FolderRoot:
    """A folder of the host as it is: what runs in it writes to it."""

    path: Path

    @property
    def label(self) -> str:
        return str(self.path)

    def identity(self, config: Config) -> None:
        del config

    def open(self, replica: Replica, before_overlay: Callable[[], None], tell: Callable[[str], None]) -> Path:
        del replica, tell
        before_overlay()
        _require_folder(self.path)
        return self.path

    def configuration(self, config: Config) -> Mapping[str, Any]:
        del config
        return {}

    def source(self, path: Path) -> RootSource:
        from coldstart_snapshot.containers.roots import detect_root

        return detect_root(path)


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise NotFoundError(
            f"root folder does not exist: {path}", hint="bring it back: the snapshot was taken on top of it"
        )
