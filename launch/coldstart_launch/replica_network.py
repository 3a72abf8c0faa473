"""The network of one replica: the host's, a namespace made for it, a given one, or the container's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_cli.files import make_directory, remove_tree
from coldstart_launch.publish import Publisher

if TYPE_CHECKING:
    from coldstart_launch.replica import Replica
    from coldstart_launch.spec import ReplicaSpec
    from coldstart_snapshot.containers.container import RunningContainer
    from coldstart_snapshot.kept.manifest import Manifest

_SHOWN = 3
HOST, OWN = "host", "own"


class ReplicaNetwork:
    """`namespace` is where the replica is started or restored; None: in the host's own."""

    def __init__(self, spec: ReplicaSpec, replica: Replica) -> None:
        self._kind = spec.network
        self._replica = replica
        self.namespace: Path | None = None
        self.publisher = Publisher(spec.publish, replica.published)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Ports reserved and namespace made; the replica's own end takes the namespace down."""
        make_directory(self._replica.published, mode=0o700)
        with self.publisher.reserved():
            self._open()
            yield

    def _open(self) -> None:
        from coldstart_snapshot.containers.network import make_namespace

        if self._kind == OWN:
            make_namespace(self._replica.namespace)
            self.namespace = self._replica.namespace
        elif self._kind.startswith("/"):
            self.namespace = Path(self._kind)
            if not self.namespace.exists():
                raise NotFoundError(
                    f"network namespace does not exist: {self.namespace}",
                    hint=f"ip netns add {self.namespace.name}",
                )

    def prepare(self, manifest: Manifest, images: Path) -> None:
        """Make room for what a snapshot brings: the addresses that its sockets are bound to."""
        from coldstart_snapshot.containers.network import add_addresses
        from coldstart_snapshot.criu.images import outside_connections

        if self._kind == OWN:
            if connections := outside_connections(images):
                raise DataError(
                    f"snapshot has connections to other hosts: {', '.join(connections[:_SHOWN])}",
                    hint="close them before the capture, or restore with `--network host`",
                )
            hosts = [address.rpartition(":")[0].strip("[]") for address in manifest.listen]
            add_addresses(self._replica.namespace, hosts)

    def ready_url(self, url: str | None) -> str | None:
        """The ready URL as this host can ask it; None where nobody outside can."""
        return url if self._kind == HOST else self.publisher.outside_url(url)

    def publish(self, container: RunningContainer) -> None:
        """Let clients in: the replica is ready."""
        from coldstart_snapshot.containers.network import foreign_network, inside
        from coldstart_snapshot.processes.ports import listening_ports
        from coldstart_snapshot.processes.tree import process_tree

        listening = listening_ports([member.pid for member in process_tree(container.pid)])
        with inside(foreign_network(container.pid)):
            self.publisher.serve(listening)


def end_network(replica: Replica) -> None:
    """End the forwarders of a replica and let its namespace go, also those that a crash left."""
    from coldstart_snapshot.containers.container import standing_in
    from coldstart_snapshot.containers.network import end_processes, remove_namespace

    end_processes(standing_in(replica.published), f"published ports of {replica.name}")
    remove_namespace(replica.namespace)
    remove_tree(replica.published)
