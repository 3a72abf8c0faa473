"""Registries through skopeo: with its authentication, certificates, mirrors and signature policy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli.errors import (
    BusyError,
    ColdstartError,
    ConfigError,
    DataError,
    IoFailure,
    NotFoundError,
    PermissionNeededError,
    UsageError,
)
from coldstart_cli.process import ProgramFailedError, find_program, run
from coldstart_fs.indexing.sources.blob import LARGEST_DOCUMENT_BYTES
from coldstart_fs.indexing.sources.reference import RegistryReference

# a registry that says nothing for so long says nothing more
_SILENT_SECONDS = 120.0
_LOG_LIMIT_BYTES = 1 << 20
_FATAL = re.compile(rb'level=fatal msg=("(?:[^"\\]|\\.)*")')
_PREFIX = re.compile(
    r'(?:Error (?:parsing image name|retrieving manifest for image|reading manifest for image)(?: "[^"]*")?'
    r"|initializing source \S+|creating an updated image manifest|copying system image from manifest list): "
)


class ConnectionLostError(BusyError):
    """The registry could not be reached, or went away in the middle: another try may help."""


@dataclass(frozen=True)
class Skopeo:
    """The program, as configured."""

    program: str

    @classmethod
    def find(cls, configured: str | None) -> Skopeo:
        return cls(find_program("skopeo", configured))

    def manifest(self, reference: RegistryReference) -> bytes:
        """The manifest or image index, exactly as the registry has it."""
        return self._ask(reference, "--raw")

    def configuration(self, reference: RegistryReference) -> bytes:
        """The image configuration of a manifest, exactly as the registry has it."""
        return self._ask(reference, "--config", "--raw")

    def copy(
        self, reference: RegistryReference, layout: Path, scratch: Path, activity: Callable[[], object]
    ) -> None:
        """Copy the blobs of an image into an OCI layout, those it lacks; ends when nothing moves any more."""
        # temporary files go where they are removed with all else
        before = ["--tmpdir", str(scratch), "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
        self._run(reference, before, [f"oci:{layout}:image"], activity)

    def _ask(self, reference: RegistryReference, *options: str) -> bytes:
        output = self._run(reference, ["inspect", *options], [], None)
        if len(output) > LARGEST_DOCUMENT_BYTES:
            raise DataError(f"document is larger than {LARGEST_DOCUMENT_BYTES} bytes: {reference}")
        return output

    def _run(
        self,
        reference: RegistryReference,
        before: list[str],
        after: list[str],
        activity: Callable[[], object] | None,
    ) -> bytes:
        try:
            done = run(
                [self.program, *before, str(reference), *after],
                deadline_seconds=_SILENT_SECONDS,
                activity=activity,
                purpose=f"reading {reference}",
                output_limit_bytes=LARGEST_DOCUMENT_BYTES + 1 if activity is None else _LOG_LIMIT_BYTES,
            )
        except ProgramFailedError as error:
            raise failure(reference, error.completed.stderr) from error
        return done.stdout


@dataclass(frozen=True)
class _Case:
    """What skopeo's message holds, and what it means; `hint` is one thing to do."""

    parts: tuple[str, ...]
    kind: type[ColdstartError]
    message: str
    hint: str | None = None


# of skopeo 1.4 to 1.18 and the registries they talk to; the first that fits counts
_CASES = (
    _Case(
        ("no space left on device",),
        IoFailure,
        "no room for the layers of {reference}: {text}",
        "choose another `--store`",
    ),
    _Case(
        ("server gave HTTP response to HTTPS client",),
        ConfigError,
        "registry speaks plain HTTP: {registry}",
        'add `[[registry]]`, `location = "{registry}"`, `insecure = true` to /etc/containers/registries.conf',
    ),
    _Case(
        ("x509:", "certificate"),
        ConfigError,
        "certificate of the registry is not trusted: {registry}: {text}",
        "put its authority into /etc/containers/certs.d/{registry}/ca.crt",
    ),
    _Case(
        ("toomanyrequests", "too many requests", "Too Many Requests"),
        BusyError,
        "registry wants fewer requests: {reference}: {text}",
        "skopeo login {registry}",
    ),
    _Case(
        ("unauthorized", "authentication required", "denied", "Forbidden", "invalid username/password"),
        PermissionNeededError,
        "registry refuses access, or has no such image: {reference}: {text}",
        "skopeo login {registry}",
    ),
    _Case(("no such host",), NotFoundError, "registry does not exist: {registry}", "getent hosts {host}"),
    _Case(
        ("blob unknown", "fetching blob: StatusCode: 404", "invalid status code from registry 404"),
        NotFoundError,
        "registry lacks a blob of the image: {reference}: {text}",
        "push the image again",
    ),
    _Case(
        ("manifest unknown", "name unknown", "not found", "404 (Not Found)"),
        NotFoundError,
        "image is not in the registry: {reference}",
        "skopeo list-tags docker://{repository}",
    ),
    _Case(
        ("invalid reference format", "Invalid image name", "Error parsing image name"),
        UsageError,
        "not a reference of an image: {reference}: {text}",
    ),
    _Case(
        ("rejected by policy", "policy.json", "signature"),
        PermissionNeededError,
        "signature policy refuses the image: {reference}: {text}",
        "edit /etc/containers/policy.json",
    ),
    _Case(
        ("id not match",),  # Digest did not match, Layer does not match
        DataError,
        "registry sent something else than it promised: {reference}: {text}",
    ),
)
_LOST = (
    "EOF", "connection re", "broken pipe", "timeout", "unreachable", "no route", "server misbehaving",
    "500 ", "502 ", "503 ", "504 ", "closed network connection", "stream error",
)  # fmt: skip


def failure(reference: RegistryReference, stderr: bytes) -> ColdstartError:
    """What skopeo said, as one of our errors."""
    said = _message(stderr)
    text = _PREFIX.sub("", said)
    registry = reference.registry
    names = {
        "reference": reference,
        "registry": registry,
        "host": registry.rpartition(":")[0] or registry,
        "repository": reference.repository,
        "text": text,
    }
    lost = any(part in text for part in _LOST)
    for case in _CASES:
        # a network's failure is often told within the parsing of a name
        if case.kind is UsageError and lost:
            break
        if any(part in said for part in case.parts):
            hint = case.hint.format(**names) if case.hint else None
            return case.kind(case.message.format(**names), hint=hint)
    if lost:
        return ConnectionLostError(
            f"registry cannot be reached, or went away: {reference}: {text}",
            hint=f"skopeo inspect docker://{reference.repository}",
        )
    return ColdstartError(f"skopeo failed: {reference}: {text}")


def _message(stderr: bytes) -> str:
    found = _FATAL.findall(stderr)
    if not found:
        return stderr[-2000:].decode("utf-8", "replace").strip()
    quoted = found[-1].decode("utf-8", "replace")
    try:
        return str(json.loads(quoted))
    except ValueError:
        return str(quoted.strip('"'))


def bytes_below(folder: Path) -> int:
    """How much there is below a folder that another process writes to."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # renamed meanwhile
                continue
    return total
