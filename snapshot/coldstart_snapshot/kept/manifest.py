"""`manifest.toml` of one variant: what was captured, where, with what, and every file's digest."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from coldstart_cli.errors import DataError, IoFailure, NotFoundError, PermissionNeededError, UsageError
from coldstart_cli.files import atomic_write
from coldstart_host.cpu import CpuFacts
from coldstart_snapshot.containers.roots import RootKind, RootSource
from coldstart_snapshot.criu.zero_pages import PagesFacts
from coldstart_snapshot.kept import optional_tables

if TYPE_CHECKING:
    from coldstart_snapshot.answers.golden import GoldenRequest
    from coldstart_snapshot.cpu.caps import CapProof
    from coldstart_snapshot.cuda.gpu_state import GpuState
    from coldstart_snapshot.engines.settings import EngineSettings
    from coldstart_snapshot.kept.cold import ColdCommand
    from coldstart_snapshot.kept.restore_command import RestoreCommand

MANIFEST_NAME = "manifest.toml"
ORIGIN_NAME = "origin.json"
SCHEMA = "coldstart.snapshot"
VERSION = 1

_LARGEST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"blake3:[0-9a-f]{64}")


class NewerManifestError(DataError):
    """A manifest of a later coldstart: sound, as far as this one can tell."""


@dataclass(frozen=True)
class SnapshotFile:
    """One file of a variant; `path` is relative to the variant's folder."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class TreeMember:
    """One process of the captured tree, numbered as inside its pid namespace."""

    pid: int
    parent: int
    command: str
    threads: int
    gpu: bool


@dataclass(frozen=True)
class ReadyCheck:
    url: str
    timeout_seconds: float


@dataclass(frozen=True)
class Manifest:
    """Everything `manifest.toml` says."""

    name: str
    variant: str
    created: str
    coldstart_version: str
    kind: str
    cpu: CpuFacts
    required_flags: tuple[str, ...]
    kernel_release: str
    kernel_version: str
    criu_version: str
    criu_path: str
    criu_options: tuple[str, ...]
    root_pid: int
    command: str
    tree: tuple[TreeMember, ...]
    files: tuple[SnapshotFile, ...]
    runc_version: str | None = None
    root: RootSource | None = None
    network: str = "host"
    listen: tuple[str, ...] = ()
    output_keys: tuple[str, ...] = ()
    ready: ReadyCheck | None = None
    gpu: GpuState | None = None
    restore_command: RestoreCommand | None = None
    engine: EngineSettings | None = None
    stream: tuple[str, ...] = ()
    """Weights, by their paths in the container, to be read while it is restored."""
    caps: CapProof | None = None
    privileges: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    pages: PagesFacts | None = None
    golden: tuple[GoldenRequest, ...] = ()
    cold: ColdCommand | None = None
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_container(self) -> bool:
        return self.kind == "container"


def check_name(name: str) -> str:
    """A snapshot's or variant's name is one harmless path component."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid snapshot name: {name!r}",
            hint="letters, digits, `_`, `.`, `-`, beginning with a letter or digit; at most 128",
        )
    return name


def to_dict(manifest: Manifest) -> dict[str, Any]:
    """The manifest as the tables of `docs/formats.md`; what does not apply is left out."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": manifest.name,
        "variant": manifest.variant,
        "created": manifest.created,
        "coldstart_version": manifest.coldstart_version,
        "kind": manifest.kind,
        "cpu": {**manifest.cpu.to_dict(), "required_flags": list(manifest.required_flags)},
        "kernel": {"release": manifest.kernel_release, "version": manifest.kernel_version},
        "criu": {
            "version": manifest.criu_version,
            "path": manifest.criu_path,
            "options": list(manifest.criu_options),
        },
    }
    if manifest.runc_version is not None:
        document["runc"] = {"version": manifest.runc_version}
    if manifest.root is not None:
        document["root"] = _root_table(manifest.root)
    document["process"] = {
        "root_pid": manifest.root_pid,
        "command": manifest.command,
        "network": manifest.network,
        "listen": list(manifest.listen),
        "output_keys": list(manifest.output_keys),
        "tree": [asdict(member) for member in manifest.tree],
    }
    document |= optional_tables.to_tables(manifest)
    document["timings"] = dict(manifest.timings)
    document["files"] = [asdict(file) for file in manifest.files]
    return document


def write_manifest(folder: Path, manifest: Manifest) -> None:
    import tomli_w

    content = tomli_w.dumps(to_dict(manifest)).encode("utf-8", "replace")
    atomic_write(folder / MANIFEST_NAME, content, mode=0o600)


def read_manifest(folder: Path) -> Manifest:
    """Read and check a variant's manifest; a newer version is refused by name."""
    path = folder / MANIFEST_NAME
    return parse_manifest(_content(path), path)


def parse_manifest(content: bytes, path: Path | str) -> Manifest:
    """The manifest that `content` is; `path` names it in errors."""
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise DataError(f"snapshot manifest is damaged: {path}: nested too deeply") from error
    except ValueError as error:
        raise DataError(f"snapshot manifest is damaged: {path}: {error}") from error
    if document.get("schema") != SCHEMA:
        raise DataError(f"file is not a snapshot manifest: {path}")
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise NewerManifestError(
            f"snapshot manifest has version {version}, this coldstart reads version {VERSION}: {path}",
            hint="install a newer coldstart",
        )
    if type(version) is not int or version != VERSION:
        raise DataError(f"snapshot manifest is damaged: {path}: version is {version!r}")
    try:
        return _from_dict(document)
    except DataError as error:
        error.message = f"snapshot manifest is damaged: {path}: {error.message}"
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"snapshot manifest is damaged: {path}: {type(error).__name__}: {error}") from error


def manifest_content(folder: Path) -> bytes:
    """The bytes of a variant's manifest: their digest is the snapshot's identity."""
    return _content(folder / MANIFEST_NAME)


def _content(path: Path) -> bytes:
    """The whole file; a link, a pipe or a folder in its place is neither followed nor waited for."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DataError(f"snapshot manifest is damaged: {path}: not a regular file")
            content = stream.read(_LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"snapshot has no manifest: {path}") from error
    except PermissionError as error:
        raise PermissionNeededError(f"cannot read snapshot manifest: {path}", hint="run as root") from error
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR}:
            raise DataError(f"snapshot manifest is damaged: {path}: not a regular file") from error
        raise IoFailure(f"cannot read snapshot manifest: {path}: {error.strerror}") from error
    if len(content) > _LARGEST_BYTES:
        raise DataError(f"snapshot manifest is damaged: {path}: larger than {_LARGEST_BYTES} bytes")
    return content


def _from_dict(document: Mapping[str, Any]) -> Manifest:
    cpu, criu, process = document["cpu"], document["criu"], document["process"]
    ready, root = document.get("ready"), document.get("root")
    kind = document["kind"]
    if kind not in {"container", "process"}:
        raise ValueError(f"kind is {kind!r}")
    return Manifest(
        name=_stored_name(document["name"]),
        variant=_stored_name(document["variant"]),
        created=document["created"],
        coldstart_version=document["coldstart_version"],
        kind=kind,
        cpu=CpuFacts.from_dict(cpu),
        required_flags=tuple(cpu["required_flags"]),
        kernel_release=document["kernel"]["release"],
        kernel_version=document["kernel"]["version"],
        criu_version=criu["version"],
        criu_path=criu["path"],
        criu_options=tuple(criu["options"]),
        root_pid=int(process["root_pid"]),
        command=process["command"],
        tree=tuple(TreeMember(**member) for member in process["tree"]),
        files=_files(document["files"]),
        runc_version=document.get("runc", {}).get("version"),
        root=_root(root) if root is not None else None,
        network=process["network"],
        listen=tuple(process["listen"]),
        output_keys=tuple(process["output_keys"]),
        ready=_ready(ready) if ready is not None else None,
        privileges=_texts(document.get("exposure", {}).get("privileges", ())),
        secrets=_texts(document.get("exposure", {}).get("secrets", ())),
        stream=_stream(document.get("weights", {})),
        pages=_pages(document["pages"]) if "pages" in document else None,
        **optional_tables.from_tables(document),
        timings={name: float(seconds) for name, seconds in document.get("timings", {}).items()},
    )


def _texts(values: Any) -> tuple[str, ...]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"not a list of texts: {values!r}")
    return tuple(values)


def _stored_name(name: str) -> str:
    try:
        return check_name(name)
    except UsageError as error:
        raise DataError(error.message) from error


def _stream(table: Mapping[str, Any]) -> tuple[str, ...]:
    paths = tuple(table.get("stream", ()))
    if not all(
        isinstance(path, str) and path.startswith("/") and ".." not in path.split("/") for path in paths
    ):
        raise ValueError(f"weights are {paths!r}")
    return paths


def _ready(table: Mapping[str, Any]) -> ReadyCheck:
    seconds = float(table["timeout_seconds"])
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"ready timeout is {seconds}")
    return ReadyCheck(table["url"], seconds)


def _files(entries: Iterable[Mapping[str, Any]]) -> tuple[SnapshotFile, ...]:
    files = tuple(_file(entry) for entry in entries)
    # coldstart writes these two itself; a file cannot be a folder too, nor be there twice
    taken = {MANIFEST_NAME, ORIGIN_NAME}
    taken.update(str(folder) for file in files for folder in PurePosixPath(file.path).parents)
    for file in files:
        if file.path in taken:
            raise ValueError(f"no name for a file of a snapshot: {file.path!r}")
        taken.add(file.path)
    return files


def _file(entry: Mapping[str, Any]) -> SnapshotFile:
    file = SnapshotFile(entry["path"], int(entry["size_bytes"]), entry["digest"])
    parts = file.path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"unsafe path: {file.path!r}")
    if not _DIGEST.fullmatch(file.digest):
        raise ValueError(f"digest of {file.path} is {file.digest!r}")
    return file


def _pages(table: Mapping[str, Any]) -> PagesFacts:
    return PagesFacts(int(table["size_bytes"]), int(table["zero_bytes"]), int(table["allocated_bytes"]))


def _root_table(root: RootSource) -> dict[str, str]:
    table = {
        "kind": str(root.kind),
        "path": str(root.path),
        "image": root.image,
        "name": root.name,
        "store": root.store,
    }
    return {key: value for key, value in table.items() if value is not None}


def _root(table: Mapping[str, Any]) -> RootSource:
    return RootSource(
        kind=RootKind(table["kind"]),
        path=Path(table["path"]),
        image=table.get("image"),
        name=table.get("name"),
        store=table.get("store"),
    )
