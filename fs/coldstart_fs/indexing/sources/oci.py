"""Images in an OCI layout, as a folder or in an archive: index, manifest, configuration and layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, NotFoundError, UsageError
from coldstart_fs.format.entry import Entry
from coldstart_fs.indexing.sources import Keep, Progress
from coldstart_fs.indexing.sources.archive import Archive
from coldstart_fs.indexing.sources.blob import Blob, Files, Folder, blob_document, parse, plain_document
from coldstart_fs.indexing.sources.image import Image, layer_blobs, layer_descriptors
from coldstart_fs.indexing.sources.manifest import choose_manifest
from coldstart_fs.indexing.sources.platforms import Platform
from coldstart_fs.indexing.sources.reference import split_tag


class OciLayout:
    """One image of a layout folder, `DIR[:TAG]`."""

    def __init__(self, rest: str, platform: Platform | None) -> None:
        self.notes: list[str] = []
        self.configuration: dict[str, Any] = {}
        path, self._tag = split_tag(rest, os.path.isdir)
        self._folder = Path(path)
        self._platform = platform
        if not os.path.lexists(self._folder):
            raise NotFoundError(f"folder does not exist: {self._folder}")
        if not self._folder.is_dir():
            hint = f"oci-archive:{rest}" if self._folder.is_file() else None
            raise UsageError(f"not a folder: {self._folder}", hint=f"write {hint}" if hint else None)

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress, scratch: Path) -> Entry:
        del chunk_bytes, scratch
        files, shown = Folder(self._folder), f"oci:{self._folder}"
        image, layers = open_layout(files, self._tag, self._platform, shown)
        self.configuration, self.notes = image.configuration, image.notes
        return image.read(layers, sum(layer.size_bytes for layer in layers), keep, progress)


class ImageArchive:
    """One image of a tar file; what names it there, its kind knows."""

    def __init__(self, rest: str, platform: Platform | None) -> None:
        self.notes: list[str] = []
        self.configuration: dict[str, Any] = {}
        path, self._tag = split_tag(rest, os.path.isfile)
        self._path = Path(path)
        self._platform = platform
        Archive.check(self._path)

    def read(self, keep: Keep, chunk_bytes: int, progress: Progress, scratch: Path) -> Entry:
        del chunk_bytes
        with Archive.open(self._path, scratch, progress) as archive:
            image, layers = self._open(archive)
            self.configuration, self.notes = image.configuration, image.notes
            return image.read(layers, sum(layer.size_bytes for layer in layers), keep, progress)

    def _open(self, archive: Archive) -> tuple[Image, list[Blob]]:
        raise NotImplementedError


class OciArchive(ImageArchive):
    """One image of a layout in a tar file, `FILE[:TAG]`."""

    def _open(self, archive: Archive) -> tuple[Image, list[Blob]]:
        return open_layout(archive, self._tag, self._platform, f"oci-archive:{self._path}")


class _Documents:
    def __init__(self, files: Files) -> None:
        self._files = files

    def fetch(self, descriptor: dict[str, Any], what: str) -> dict[str, Any]:
        return blob_document(self._files, descriptor, what)

    def configuration(self, descriptor: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
        del descriptor
        return blob_document(self._files, manifest.get("config"), "image configuration")


def open_layout(
    files: Files, tag: str | None, wanted: Platform | None, shown: str
) -> tuple[Image, list[Blob]]:
    """The image of a layout that tag and platform choose; `shown` is how the source was written."""
    _check_layout(files, shown)
    index = plain_document(files, "index.json", "OCI layout")
    if not isinstance(index, dict):
        raise DataError(f"not a JSON object: {files.shown}: index.json")
    documents = _Documents(files)
    chosen = choose_manifest(index, tag=tag, wanted=wanted, documents=documents, shown=shown)
    layers = layer_descriptors(chosen.manifest, files.shown)
    image = Image(documents.configuration(chosen.descriptor, chosen.manifest), len(layers), files.shown)
    image.require(wanted)
    return image, layer_blobs(files, layers)


def _check_layout(files: Files, shown: str) -> None:
    marker = files.find_only("oci-layout")
    if marker is None:
        scheme, _, rest = shown.partition(":")
        other = f"docker-archive:{rest}" if scheme == "oci-archive" else f"dir:{rest}"
        what = "an archive of docker save" if scheme == "oci-archive" else "a root file system"
        raise DataError(
            f"not an OCI layout, `oci-layout` is missing: {files.shown}", hint=f"for {what} write {other}"
        )
    document = parse(b"".join(marker.blocks()) if marker.size_bytes < 1 << 20 else b"", marker.shown)
    version = document.get("imageLayoutVersion")
    if not isinstance(version, str) or version.split(".")[0] != "1":
        raise DataError(f"OCI layout has version {version}, 1 is supported: {files.shown}")
