"""Image indexes and manifests: choosing the image, refusing by name what is no container image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from coldstart_cli.errors import DataError, NotFoundError, near_matches_hint
from coldstart_fs.indexing.sources.platforms import (
    UNKNOWN,
    Platform,
    described_platform,
    host_platform,
    rank,
)


class Documents(Protocol):
    """Gets the verified documents of an image, from wherever they lie."""

    def fetch(self, descriptor: dict[str, Any], what: str) -> dict[str, Any]:
        """The manifest or index that a descriptor names."""
        ...

    def configuration(self, descriptor: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
        """The configuration of a manifest, which a descriptor named."""
        ...


@dataclass(frozen=True)
class Chosen:
    """A manifest, and the descriptor that it was found by."""

    descriptor: dict[str, Any]
    manifest: dict[str, Any]


_DEEPEST_INDEX = 4
_MOST_LISTED = 16
_TAG = "org.opencontainers.image.ref.name"
_NAME = "io.containerd.image.name"
_ATTESTS = "vnd.docker.reference.type"
INDEX_TYPES = frozenset(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
MANIFEST_TYPES = frozenset(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_SCHEMA_1_TYPES = frozenset(
    (
        "application/vnd.docker.distribution.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
    )
)
_CONFIGURATION_TYPES = frozenset(
    (
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.docker.container.image.v1+json",
        "application/octet-stream",  # as old Docker versions pushed it
    )
)


def choose_manifest(
    index: dict[str, Any], *, tag: str | None, wanted: Platform | None, documents: Documents, shown: str
) -> Chosen:
    """The manifest that an index leads to, maybe through others; `shown` is how SOURCE was written."""
    descriptor: dict[str, Any] = {}
    document, nested_tag = index, tag
    for _ in range(_DEEPEST_INDEX + 1):
        descriptor = _choose(_descriptors(document, shown), nested_tag, wanted, documents, shown)
        kind = media_type(descriptor)
        if kind not in INDEX_TYPES:
            manifest = documents.fetch(descriptor, "manifest")
            return Chosen(descriptor, check_manifest(manifest, kind, f"{descriptor.get('digest')}"))
        document, nested_tag = documents.fetch(descriptor, "image index"), None
        if "layers" in document or "config" in document:
            raise DataError(f"image index is a manifest at the same time: {descriptor.get('digest')}")
    raise DataError(f"image indexes are nested too deeply: {shown}")


def media_type(descriptor: Any) -> str | None:
    """What a descriptor says of its blob; None when that is no text."""
    value = descriptor.get("mediaType") if isinstance(descriptor, dict) else None
    return value if isinstance(value, str) else None


def check_manifest(manifest: dict[str, Any], kind: object, shown: str) -> dict[str, Any]:
    """The manifest of a container image, or a refusal that says what it is instead."""
    if kind in _SCHEMA_1_TYPES or manifest.get("schemaVersion") == 1:
        raise DataError(
            f"image has a manifest of Docker's schema 1, which nothing can verify: {shown}",
            hint="skopeo copy --format oci docker://REF oci:DIR:TAG",
        )
    if kind not in MANIFEST_TYPES:
        raise DataError(f"not an image manifest but {kind or 'of no media type'}: {shown}")
    if "manifests" in manifest:
        raise DataError(f"manifest is an image index at the same time: {shown}")
    own = manifest.get("mediaType", kind)
    if own != kind:
        raise DataError(f"manifest says that it is {own}, its descriptor {kind or 'nothing'}: {shown}")
    config_type = media_type(manifest.get("config"))
    if config_type is None:
        raise DataError(
            f"not a container image, its manifest says nothing of its configuration's type: {shown}"
        )
    if config_type not in _CONFIGURATION_TYPES:
        raise DataError(f"not a container image, its configuration is {config_type}: {shown}")
    return manifest


def _descriptors(index: dict[str, Any], shown: str) -> list[dict[str, Any]]:
    found = index.get("manifests")
    if not isinstance(found, list):
        raise DataError(f"image index has no list of manifests: {shown}")
    return [item for item in found if isinstance(item, dict) and not _is_attestation(item)]


def _is_attestation(descriptor: dict[str, Any]) -> bool:
    """What buildkit puts beside an image to say how it was built."""
    return _annotation(descriptor, _ATTESTS) is not None or (
        "platform" in descriptor and described_platform(descriptor["platform"]) == UNKNOWN
    )


def _choose(
    candidates: list[dict[str, Any]],
    tag: str | None,
    wanted: Platform | None,
    documents: Documents,
    shown: str,
) -> dict[str, Any]:
    if tag is not None:
        candidates = _tagged(candidates, tag, shown)
    if not candidates:
        raise DataError(f"no image in it: {shown}")
    if len({str(item.get("digest")) for item in candidates}) == 1 and "platform" not in candidates[0]:
        return candidates[0]
    tags = _tags(candidates)
    if tag is None and len(tags) > 1:
        raise DataError(
            f"several images, and nothing says which: {shown}: {listed(tags)}",
            hint=f"write {shown}:{tags[0]}",
        )
    return _fitting(candidates, wanted, documents, shown)


def _tagged(candidates: list[dict[str, Any]], tag: str, shown: str) -> list[dict[str, Any]]:
    number = tag.removeprefix("@")
    if number != tag and number.isascii() and number.isdecimal() and len(number) < 10:
        if int(number) >= len(candidates):
            raise NotFoundError(f"image {tag} does not exist: {shown} has {len(candidates)}")
        return [candidates[int(number)]]
    found = [item for item in candidates if tag in {_annotation(item, _TAG), _annotation(item, _NAME)}]
    if not found:
        tags = _tags(candidates)
        hint = near_matches_hint(tag, tags, otherwise=f"tags: {listed(tags)}" if tags else None)
        raise NotFoundError(f"tag is not in the image layout: {tag}: {shown}", hint=hint)
    return found


def _fitting(
    candidates: list[dict[str, Any]], wanted: Platform | None, documents: Documents, shown: str
) -> dict[str, Any]:
    target = wanted or host_platform()
    platforms = [_platform(item, documents) for item in candidates]
    ranked = [
        (distance, item)
        for item, offered in zip(candidates, platforms, strict=True)
        if (distance := rank(target, offered)) is not None
    ]
    names = listed(sorted({str(item) for item in platforms}))
    if not ranked:
        other = next((str(item) for item in platforms if item != UNKNOWN), None)
        raise DataError(
            f"image is not made for {target}, only for: {names}: {shown}",
            hint=f"choose one: `--platform {other}`" if other else None,
        )
    best = min(distance for distance, _ in ranked)
    fitting = [item for distance, item in ranked if distance == best]
    if len({str(item.get("digest")) for item in fitting}) > 1:
        digests = listed([str(item.get("digest")) for item in fitting])
        raise DataError(
            f"{len(fitting)} images are made for {target}, and nothing says which: {shown}: {digests}"
        )
    return fitting[0]


def _platform(descriptor: dict[str, Any], documents: Documents) -> Platform:
    """From the descriptor, or else from the image's configuration."""
    if "platform" in descriptor:
        return described_platform(descriptor["platform"])
    if media_type(descriptor) not in MANIFEST_TYPES:
        return UNKNOWN
    manifest = documents.fetch(descriptor, "manifest")
    configuration = manifest.get("config")
    if not isinstance(configuration, dict) or media_type(configuration) not in _CONFIGURATION_TYPES:
        return UNKNOWN
    return described_platform(documents.configuration(descriptor, manifest))


def _tags(candidates: list[dict[str, Any]]) -> list[str]:
    return sorted({name for item in candidates if (name := _annotation(item, _TAG)) is not None})


def _annotation(descriptor: dict[str, Any], key: str) -> str | None:
    annotations = descriptor.get("annotations")
    value = annotations.get(key) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else None


def listed(names: list[str]) -> str:
    """Names for a message, not more than a few."""
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
