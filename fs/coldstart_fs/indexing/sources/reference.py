"""How sources name an image: `PATH[:TAG]`, familiar names of Docker, references of registries."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from coldstart_cli.errors import UsageError
from coldstart_fs.indexing.sources.blob import is_digest

_PATHS = ("dir:", "oci:", "oci-archive:", "docker-archive:")
_DIGEST = re.compile(r"@(?=(?:sha|blake|md)\w*:[^@/]*$)")


def without_login(source: str) -> str:
    """A source as it may be shown: whatever stands before an `@` that begins no digest may be a password."""
    if source.startswith(_PATHS):
        return source
    name, *digest = _DIGEST.split(source, maxsplit=1)
    start, at, rest = name.rpartition("@")
    scheme = re.match(r"[a-z-]*:?//|docker:|", start, re.IGNORECASE)
    shown = f"{scheme[0] if scheme else ''}***@{rest}" if at else name
    return "@".join((shown, *digest))


def _refuse_login(rest: str) -> None:
    """Registries take names and passwords from skopeo's login, and a reference is shown in many places."""
    login, at, place = _DIGEST.split(rest, maxsplit=1)[0].rpartition("@")
    if at and ("/" in place or (":" in login and "/" not in login.removeprefix("//"))):
        raise UsageError(
            f"a reference holds no login: {without_login(f'docker:{rest}')}",
            hint=f"skopeo login {place.partition('/')[0] or 'HOST'}",
        )


def split_tag(rest: str, fits: Callable[[str], bool]) -> tuple[str, str | None]:
    """PATH and TAG of `PATH[:TAG]`: the path that fits, or exists, even when its name holds a colon."""
    ends = [position for position, letter in enumerate(rest) if letter == ":" and position]
    for good in (fits, os.path.lexists):
        for end in (len(rest), *ends):
            if good(rest[:end]):
                return rest[:end], rest[end + 1 :] or None
    end = ends[0] if ends else len(rest)
    return rest[:end], rest[end + 1 :] or None


def familiar_name(reference: str) -> str:
    """`docker.io/library/app` and `app:latest` are the same name."""
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        reference = reference.removeprefix(prefix)
    if "@" not in reference and ":" not in reference.rpartition("/")[2]:
        reference += ":latest"
    return reference


@dataclass(frozen=True)
class RegistryReference:
    """`[HOST[:PORT]/]PATH` with a tag or a digest."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def registry(self) -> str:
        """Where it is; a first part without dot or colon is a folder of docker.io."""
        first, slash, _ = self.repository.partition("/")
        is_host = slash and ("." in first or ":" in first or first == "localhost")
        return first if is_host else "docker.io"

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}" if self.tag else ""
        return f"docker://{self.repository}{end}"

    def pinned(self, digest: str) -> RegistryReference:
        return RegistryReference(self.repository, None, digest)


def parse_registry_reference(rest: str) -> RegistryReference:
    """What follows `docker:`; a digest makes a tag beside it irrelevant, as engines have it."""
    _refuse_login(rest)
    name, at, digest = rest.removeprefix("//").partition("@")
    if not rest.startswith("//"):
        raise UsageError(f"not a reference of an image: docker:{rest}", hint=f"write docker://{rest}")
    head, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    repository = f"{head}{slash}{last}"
    if not last or repository.startswith("/") or (colon and not tag) or (at and not digest):
        raise UsageError(f"not a reference of an image: docker:{rest}", hint="write docker://HOST/PATH:TAG")
    if digest and not is_digest(digest):
        raise UsageError(
            f"not a digest that can be checked: {digest}", hint="write sha256: and 64 hex digits"
        )
    return RegistryReference(repository, None if digest else tag or None, digest or None)
