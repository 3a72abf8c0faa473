"""Archives of `docker save` and `podman save`: `manifest.json` names configurations, layers and tags.

Their layers have no digests of their own; the configuration's `diff_ids` verify them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeGuard

from coldstart_cli.errors import DataError, NotFoundError, near_matches_hint
from coldstart_fs.indexing.sources.archive import Archive
from coldstart_fs.indexing.sources.blob import LARGEST_DOCUMENT_BYTES, Blob, parse, plain_document
from coldstart_fs.indexing.sources.image import Image
from coldstart_fs.indexing.sources.manifest import listed
from coldstart_fs.indexing.sources.oci import ImageArchive, open_layout
from coldstart_fs.indexing.sources.reference import familiar_name

_NAMED_BY_DIGEST = re.compile(r"(?:.*[/:])?([0-9a-f]{64})(?:\.json)?")
_BLOB = re.compile(r"(?:\./)?blobs/sha256/([0-9a-f]{64})")


@dataclass(frozen=True)
class _Saved:
    """One image of `manifest.json`."""

    configuration: str
    layers: tuple[str, ...]
    names: tuple[str, ...]


class DockerArchive(ImageArchive):
    """One image of an archive, `FILE[:REF|:@INDEX]`."""

    def _open(self, archive: Archive) -> tuple[Image, list[Blob]]:
        shown = f"docker-archive:{self._path}"
        if archive.find("manifest.json") is None:
            if archive.find("oci-layout") is not None:  # as `docker save` of several platforms
                return open_layout(archive, self._tag, self._platform, shown)
            old = archive.find("repositories") is not None
            what = "it is of Docker before 1.10" if old else "`manifest.json` is missing"
            raise DataError(f"not an archive that can be read, {what}: {self._path}")
        saved = _choose(_saved(archive), self._tag, shown)
        layers = _layers(archive, saved)
        image = Image(_configuration(archive, saved.configuration), len(layers), archive.shown)
        image.require(self._platform)
        return image, layers


def _saved(archive: Archive) -> list[_Saved]:
    items = plain_document(archive, "manifest.json", "archive")
    if not isinstance(items, list):
        raise DataError(f"not a list of images: {archive.shown}: manifest.json")
    return [_one_saved(archive, item) for item in items]


def _one_saved(archive: Archive, item: Any) -> _Saved:
    document = item if isinstance(item, dict) else {}
    configuration = document.get("Config")
    layers, names = document.get("Layers") or [], document.get("RepoTags") or []
    if not isinstance(configuration, str) or not _is_texts(layers) or not _is_texts(names):
        raise DataError(f"an image is not described as it should be: {archive.shown}: manifest.json")
    return _Saved(configuration, tuple(layers), tuple(names))


def _choose(images: list[_Saved], reference: str | None, shown: str) -> _Saved:
    names = [image.names[0] if image.names else f"@{number}" for number, image in enumerate(images)]
    if reference is None:
        if not images:
            raise DataError(f"no image in it: {shown}")
        if len(images) > 1:
            raise DataError(
                f"several images, and nothing says which: {shown}: {listed(names)}",
                hint=f"write {shown}:{names[0]}",
            )
        return images[0]
    number = reference.removeprefix("@")
    if number != reference and number.isascii() and number.isdecimal() and len(number) < 10:
        if int(number) >= len(images):
            raise NotFoundError(f"image {reference} does not exist: {shown} has {len(images)}")
        return images[int(number)]
    wanted = familiar_name(reference)
    for image in images:
        if wanted in map(familiar_name, image.names):
            return image
    known = [name for image in images for name in image.names]
    hint = near_matches_hint(reference, known, otherwise=f"images: {listed(names)}" if names else None)
    raise NotFoundError(f"image is not in the archive: {reference}: {shown}", hint=hint)


def _configuration(archive: Archive, name: str) -> dict[str, Any]:
    match = _NAMED_BY_DIGEST.fullmatch(name)
    place = archive.find(name) if match else archive.find_only(name)
    if place is None:
        raise NotFoundError(
            f"image configuration is missing: {archive.shown}: {name}", hint="save the image again"
        )
    blob = Blob(place, f"sha256:{match[1]}" if match else None, place.size_bytes)
    return parse(blob.read(LARGEST_DOCUMENT_BYTES), place.shown)


def _layers(archive: Archive, saved: _Saved) -> list[Blob]:
    blobs = []
    for name in saved.layers:
        place = archive.find(name)
        if place is None:
            raise NotFoundError(f"layer is missing: {archive.shown}: {name}", hint="save the image again")
        match = _BLOB.fullmatch(name)
        blobs.append(Blob(place, f"sha256:{match[1]}" if match else None, place.size_bytes))
    return blobs


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
