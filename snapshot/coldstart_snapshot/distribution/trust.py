"""A snapshot is code: one that was fetched is used for a pinned digest, a signature, or somebody's word."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from coldstart_cli import process
from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError, DataError, NotFoundError, PermissionNeededError
from coldstart_cli.process import ProgramFailedError

_SECONDS = 30.0


@dataclass(frozen=True)
class TrustRule:
    """What makes a fetched snapshot acceptable here; a wrong signature is refused whatever else holds."""

    pinned: Collection[bytes] = ()
    given: bool = False
    public_key: str | None = None
    minisign: str = "minisign"

    @classmethod
    def of(cls, config: Config, *, pinned: Collection[bytes] = (), given: bool = False) -> TrustRule:
        return cls(
            tuple(pinned),
            given,
            config.optional_text("snapshot.public_key"),
            config.text("programs.minisign"),
        )


@dataclass(frozen=True)
class Trust:
    """Why a snapshot is trusted: `pinned`, `signed` or `trusted`."""

    kind: str
    key: str | None = None


def judge(name: str, document: bytes, digest: bytes, signature: bytes | None, rule: TrustRule) -> Trust:
    """Why the manifest `document` with this digest may be used, or the refusal."""
    if rule.pinned and digest not in rule.pinned:
        raise DataError(f"snapshot is not one that was asked for: {name} has blake3:{digest.hex()}")
    if rule.public_key is not None and signature is not None:
        _verify(name, document, signature, rule.public_key, rule.minisign)
        return Trust("signed", rule.public_key)
    if rule.pinned:
        return Trust("pinned")
    if rule.given:
        return Trust("trusted")
    reason = "no key is configured" if rule.public_key is None else "it has no signature"
    raise PermissionNeededError(
        f"snapshot is not trusted: {name}: a snapshot is code, and {reason}",
        hint=f"pin it as {name}@blake3:{digest.hex()}, configure snapshot.public_key, or pass `--trust`",
    )


def sign(name: str, document: bytes, key: Path, config: Config) -> bytes:
    """A signature of a manifest with minisign's secret key, which must have no password."""
    if not key.is_file():
        raise NotFoundError(f"no such key file: {key}", hint="`minisign -G -W` makes a pair of keys")
    with tempfile.TemporaryDirectory(prefix="coldstart-sign-") as folder:
        message, signature = Path(folder) / "manifest.toml", Path(folder) / "signature"
        message.write_bytes(document)
        program = process.find_program("minisign", config.text("programs.minisign"))
        comment = f"coldstart snapshot {name}"
        arguments = [program, "-S", "-s", str(key), "-m", str(message), "-x", str(signature), "-t", comment]
        try:
            process.run(arguments, deadline_seconds=_SECONDS, purpose="minisign", stdin=b"\n")
        except ProgramFailedError as error:
            raise ColdstartError(
                f"snapshot cannot be signed: {name}: {error.completed.error_text or 'minisign failed'}",
                hint="the key must have no password: `minisign -G -W` makes such a pair",
            ) from error
        return signature.read_bytes()


def _verify(name: str, document: bytes, signature: bytes, public_key: str, minisign: str) -> None:
    with tempfile.TemporaryDirectory(prefix="coldstart-verify-") as folder:
        message, given = Path(folder) / "manifest.toml", Path(folder) / "signature"
        message.write_bytes(document)
        given.write_bytes(signature)
        if public_key.startswith("/") and not Path(public_key).is_file():
            raise NotFoundError(f"no such key file: {public_key}", hint="see snapshot.public_key")
        key = ["-p", public_key] if public_key.startswith("/") else ["-P", public_key]
        program = process.find_program("minisign", minisign)
        try:
            process.run(
                [program, "-V", "-q", *key, "-m", str(message), "-x", str(given)],
                deadline_seconds=_SECONDS,
                purpose="minisign",
            )
        except ProgramFailedError as error:
            raise DataError(
                f"signature of the snapshot is wrong: {name}: {error.completed.error_text or 'refused'}",
                hint="it was not made with the key of snapshot.public_key, or the manifest was changed",
            ) from error
