"""The cold command of a plain process: read from /proc at the capture, started where a restore fails."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, UnavailableError
from coldstart_cli.origin import Origin
from coldstart_cli.process import Program, start
from coldstart_snapshot.processes.secrets_found import (
    redact_arguments,
    secret_arguments,
    secret_variables,
)
from coldstart_snapshot.processes.tree import looking_at

_UMASK = 0o022


@dataclass(frozen=True)
class ColdCommand:
    """How a plain process was started; secrets are left out, and named."""

    arguments: tuple[str, ...]
    executable: str
    working_directory: str
    environment: Mapping[str, str]
    uid: int
    gid: int
    groups: tuple[int, ...]
    umask: int = _UMASK
    secret_variables: tuple[str, ...] = ()
    secret_arguments: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a cold start will need, said at the capture."""
        notes = []
        if self.secret_arguments:
            notes.append(
                f"a failed restore cannot start it cold: its arguments hold secrets, which are not kept: "
                f"{', '.join(self.secret_arguments)}"
            )
        if self.secret_variables:
            notes.append(
                "not kept, and needed by a cold start after a failed restore: variables "
                f"{', '.join(self.secret_variables)}"
            )
        return tuple(notes)


def read_cold_command(pid: int) -> ColdCommand:
    """The command of a running process."""
    with looking_at(pid):
        folder = Path(f"/proc/{pid}")
        executable = os.readlink(folder / "exe").removesuffix(" (deleted)")
        working_directory = os.readlink(folder / "cwd").removesuffix(" (deleted)")
        arguments = _strings(folder / "cmdline")
        environment = dict(entry.split("=", 1) for entry in _strings(folder / "environ") if "=" in entry)
        lines = (folder / "status").read_text("utf-8", "replace").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    secrets = secret_variables(environment)
    return ColdCommand(
        arguments=tuple(redact_arguments(arguments)) or (executable,),
        executable=executable,
        working_directory=working_directory,
        environment={name: value for name, value in environment.items() if name not in secrets},
        uid=int(status["Uid"].split()[0]),
        gid=int(status["Gid"].split()[0]),
        groups=tuple(int(number) for number in status.get("Groups", "").split()),
        umask=int(status.get("Umask", f"{_UMASK:o}"), 8),
        secret_variables=secrets,
        secret_arguments=secret_arguments(arguments),
    )


def start_cold(command: ColdCommand, log: Path) -> Program:
    """Start it again as it was, in a session of its own; secrets come from the environment of the caller."""
    from coldstart_snapshot.containers.container import open_log  # manifests are read where no container is

    if command.secret_arguments:
        raise UnavailableError(
            f"cannot be started cold: its arguments held secrets: {', '.join(command.secret_arguments)}",
            hint="start it by hand",
        )
    if missing := [name for name in command.secret_variables if name not in os.environ]:
        raise UnavailableError(
            f"cannot be started cold: its environment held secrets that are not kept: {', '.join(missing)}",
            hint="set them in the environment of this command, and restore again",
        )
    secrets = {name: os.environ[name] for name in command.secret_variables}
    with open_log(log) as output:
        return start(
            command.arguments,
            log=output,
            environment={**command.environment, **secrets},
            working_directory=Path(command.working_directory),
            as_it_was=Origin(_executable(command), command.uid, command.gid, command.groups, command.umask),
        )


def to_table(command: ColdCommand) -> dict[str, Any]:
    return {
        "arguments": list(command.arguments),
        "executable": command.executable,
        "working_directory": command.working_directory,
        "environment": dict(command.environment),
        "uid": command.uid,
        "gid": command.gid,
        "groups": list(command.groups),
        "umask": command.umask,
        "secret_variables": list(command.secret_variables),
        "secret_arguments": list(command.secret_arguments),
    }


def from_table(table: Mapping[str, Any]) -> ColdCommand:
    """Back from the manifest; raises what a damaged table raises."""
    command = ColdCommand(
        arguments=tuple(str(argument) for argument in table["arguments"]),
        executable=str(table["executable"]),
        working_directory=str(table["working_directory"]),
        environment={str(name): str(value) for name, value in table["environment"].items()},
        uid=int(table["uid"]),
        gid=int(table["gid"]),
        groups=tuple(int(number) for number in table["groups"]),
        umask=int(table["umask"]),
        secret_variables=tuple(str(name) for name in table["secret_variables"]),
        secret_arguments=tuple(str(name) for name in table["secret_arguments"]),
    )
    if not command.arguments or not command.executable.startswith("/"):
        raise DataError("cold command has no program")
    return command


def _executable(command: ColdCommand) -> str:
    """What to execute: the first argument where it leads to the program, as in a virtual environment."""
    first = command.arguments[0]
    search = command.environment.get("PATH", os.defpath)
    folders = [command.working_directory] if "/" in first else search.split(os.pathsep)
    for folder in folders:
        path = os.path.join(command.working_directory, folder, first)
        if os.path.realpath(path) == os.path.realpath(command.executable):
            return path
    return command.executable


def _strings(path: Path) -> list[str]:
    content = path.read_bytes().decode("utf-8", "surrogateescape")
    return content.removesuffix("\0").split("\0") if content else []
