"""The store that a folder path or a URL names; only the modules of its kind are imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coldstart_cli.errors import UsageError, near_matches_hint
from coldstart_fs.stores.store import SPELLINGS, Store


def open_store(
    url: str,
    *,
    create: bool = False,
    known: bool = False,
    credentials: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Store:
    """The store at a folder path or URL; with `create`, one to write to, made by its first writing.

    `tell` hears who else can change a folder store; one that is `known` to be a store is not looked at again.
    `credentials` is a file with variables that count for this store alone.
    """
    from coldstart_fs.stores.object_clients import KINDS

    scheme, separator, _ = url.partition("://")
    _check_spelling(url, KINDS)
    if not separator or scheme == "file":
        from coldstart_fs.stores.folder_store import FolderStore, open_folder

        if known:
            return FolderStore(_folder_of(url))
        return open_folder(_folder_of(url), create=create, tell=tell)
    if scheme not in KINDS:
        hint = near_matches_hint(scheme.lower(), KINDS, otherwise=f"a store is {SPELLINGS}")
        raise UsageError(f"unknown kind of store: {scheme}://", hint=hint)
    from coldstart_fs.stores.http_store import open_remote

    return open_remote(url, create=create, credentials=credentials)


def _check_spelling(url: str, kinds: Iterable[str]) -> None:
    """`s3:/bucket` is no folder called `s3:`."""
    scheme, separator, rest = url.partition(":")
    if separator and scheme.lower() in {*kinds, "file"} and not rest.startswith("//"):
        slashes = "///" if scheme.lower() == "file" else "//"
        raise UsageError(
            f"not a store's URL: {url}",
            hint=f"did you mean `{scheme.lower()}:{slashes}{rest.lstrip('/')}`? a folder would be `./{url}`",
        )


def _folder_of(url: str) -> Path:
    if "://" not in url:
        return Path(url).absolute()
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UsageError(f"not a file URL: {url}", hint="write file:///absolute/path")
    return Path(unquote(parts.path))
