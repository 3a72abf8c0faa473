"""Published ports: a socket of the host, and a forwarder in the replica's network that serves it.

The forwarder is systemd-socket-proxyd: it takes the listening socket over from us and connects inside the
network namespace. No address, route or packet filter of the host is touched, and killing it ends it all.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from coldstart_cli import process
from coldstart_cli.errors import BusyError, ColdstartError, UnavailableError, UsageError
from coldstart_cli.regular import open_own

_PROGRAM = "systemd-socket-proxyd"
_PROGRAM_FOLDERS = (Path("/usr/lib/systemd"), Path("/lib/systemd"))
_CONNECTIONS = 16384  # its default is 256, and more are refused
_BACKLOG = 4096
_SHORTEST_LIFE_SECONDS = 1.0
_FORM = re.compile(r"(?:(?P<address>[0-9.]+|\[[0-9a-fA-F:]+\]):)?(?P<host>\d{1,5}):(?P<container>\d{1,5})")


@dataclass(frozen=True)
class Publication:
    """A port of the host, on one of its addresses, that leads to a port in the replica; 0: any free one."""

    address: str
    host_port: int
    container_port: int

    def __str__(self) -> str:
        return f"{_joined(self.address, self.host_port)}:{self.container_port}"


def parse_publication(text: str) -> Publication:
    """`[ADDRESS:]HOST:CONTAINER`; without an address only this host itself can connect."""
    hint = "HOST:CONTAINER, for example 8001:8000, or ADDRESS:HOST:CONTAINER"
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"invalid publication: {text}", hint=hint)
    address = (match["address"] or "127.0.0.1").strip("[]")
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise UsageError(f"invalid publication: {text}: not an IP address: {address}", hint=hint) from error
    host, container = int(match["host"]), int(match["container"])
    if host > 65535 or not 0 < container <= 65535:
        raise UsageError(f"invalid publication: {text}: ports go to 65535", hint=hint)
    return Publication(address, host, container)


@dataclass
class _Forwarder:
    publication: Publication
    listener: socket.socket
    target: str = ""
    child: process.Program | None = None
    started: float = 0.0


class Publisher:
    """The published ports of one replica: reserved before it starts, served once it is ready."""

    def __init__(self, publications: Sequence[Publication], folder: Path) -> None:
        self._wanted = publications
        self._folder = folder
        self._forwarders: list[_Forwarder] = []

    @property
    def publications(self) -> tuple[Publication, ...]:
        """What is reserved, free ports by their numbers."""
        return tuple(forwarder.publication for forwarder in self._forwarders)

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Hold the ports of the host; nobody is let in before `serve`."""
        try:
            if self._wanted:
                find_forwarder()
            for publication in self._wanted:
                listener = _bind(publication)
                bound = replace(publication, host_port=listener.getsockname()[1])
                self._forwarders.append(_Forwarder(bound, listener))
            yield
        finally:
            for forwarder in self._forwarders:
                forwarder.listener.close()

    def serve(self, listening: Iterable[str]) -> None:
        """Forward to the addresses that the replica listens on; call it inside of its network."""
        addresses = tuple(listening)
        for forwarder in self._forwarders:
            forwarder.target = _target(forwarder.publication, addresses)
        for forwarder in self._forwarders:
            try:
                forwarder.listener.listen(_BACKLOG)
            except OSError as error:  # somebody else began to listen there after we had reserved it
                raise _cannot_listen(forwarder.publication, error) from error
            self._start(forwarder)

    def outside_url(self, url: str | None) -> str | None:
        """The replica's own URL as this host can ask it; None where its port is not published."""
        if url is None:
            return None
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        for publication in self.publications:
            if publication.container_port == port:
                address = ipaddress.ip_address(publication.address)
                near = "::1" if address.version == 6 else "127.0.0.1"
                host = near if address.is_unspecified else publication.address
                return urlunsplit(parts._replace(netloc=_joined(host, publication.host_port)))
        return None

    @property
    def pids(self) -> tuple[int, ...]:
        """The forwarders."""
        return tuple(each.child.pid for each in self._forwarders if each.child is not None)

    def revive(self, pid: int) -> bool:
        """Start a forwarder anew that has ended; false where that process was none of ours."""
        for forwarder in self._forwarders:
            if forwarder.child is not None and forwarder.child.pid == pid:
                if time.monotonic() - forwarder.started < _SHORTEST_LIFE_SECONDS:
                    raise ColdstartError(
                        f"forwarder of published port ends at once: {forwarder.publication}",
                        hint=f"see {self._folder / 'log'}",
                    )
                self._start(forwarder)
                return True
        return False

    def _start(self, forwarder: _Forwarder) -> None:
        program = find_forwarder()
        # descriptor 3 and the number of the process are how a socket is handed over: sd_listen_fds(3)
        script = 'exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        command = ["/bin/sh", "-c", script, "sh", program]
        log = open_own(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            forwarder.child = process.start(
                [*command, f"--connections-max={_CONNECTIONS}", forwarder.target],
                log=log,
                standard_input=forwarder.listener.fileno(),
                # by where it stands it is found again when whoever started it was killed
                working_directory=self._folder,
            )
        finally:
            os.close(log)
        forwarder.started = time.monotonic()


def find_forwarder() -> str:
    """The program, which no PATH names."""
    for folder in _PROGRAM_FOLDERS:
        with suppress(UnavailableError):
            return process.find_program(_PROGRAM, str(folder / _PROGRAM))
    raise UnavailableError(
        f"program is not installed: {_PROGRAM}: it serves published ports",
        hint="apt-get install --no-install-recommends systemd",
    )


def _bind(publication: Publication) -> socket.socket:
    from coldstart_snapshot.processes.ports import port_holder

    address = _joined(publication.address, publication.host_port)
    if publication.host_port and (holder := port_holder(address)) is not None:
        pid, name = holder
        who = f"process {pid} ({name})" if pid else "another process"
        raise BusyError(f"published port is in use: {address}: {who}", hint="publish another one")
    family = socket.AF_INET6 if ":" in publication.address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((publication.address, publication.host_port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(publication, error) from error
    return listener


def _cannot_listen(publication: Publication, error: OSError) -> BusyError:
    address = _joined(publication.address, publication.host_port)
    return BusyError(f"cannot publish port {address}: {error.strerror}", hint="publish another one")


def _target(publication: Publication, listening: Sequence[str]) -> str:
    """Where inside its network the replica listens on that port, in the proxy's form: no brackets."""
    port = publication.container_port
    hosts = [
        host.strip("[]")
        for host, _, number in (one.rpartition(":") for one in listening)
        if number == str(port)
    ]
    if not hosts:
        where = ", ".join(listening) or "nothing"
        raise UsageError(
            f"replica does not listen on the port to be published: {port}: it listens on {where}",
            hint="publish one of those: HOST:CONTAINER",
        )
    found = ipaddress.ip_address(hosts[0])
    if found.is_unspecified:
        return f"127.0.0.1:{port}" if found.version == 4 else f"::1:{port}"
    return f"{found}:{port}"


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
