"""Images made by hand for tests: tar layers, OCI layouts, and trees as plain facts to compare."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zstandard

from coldstart_fs.format.chunk import decode_chunk, verify
from coldstart_fs.format.entry import Entry
from coldstart_fs.format.index import HOLE, Index
from coldstart_fs.format.locator import Locator
from coldstart_fs.format.names import pack_key
from coldstart_fs.indexing.progress import Progress
from coldstart_fs.indexing.sources.layer import LayeredTree
from coldstart_fs.indexing.sources.stream import ByteStream
from coldstart_fs.indexing.sources.tar import TarReader
from coldstart_fs.stores.images import open_image
from coldstart_fs.stores.references import resolve_image
from coldstart_fs.stores.store import Store

TAR = "application/vnd.oci.image.layer.v1.tar"


class Layer:
    """A tar layer, entry by entry, in the order of the calls."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(  # noqa: SIM115 - closed by content()
            fileobj=self._buffer,
            mode="w",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        )

    def add(
        self,
        name: bytes | str,
        kind: bytes = tarfile.REGTYPE,
        content: bytes = b"",
        *,
        link: bytes | str = "",
        pax: dict[str, str] | None = None,
        xattrs: dict[str, bytes] | None = None,
        **fields: Any,
    ) -> Layer:
        info = tarfile.TarInfo(_text(name))
        info.type, info.size, info.linkname = kind, len(content), _text(link)
        info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
        info.pax_headers = dict(pax or {})
        for key, value in (xattrs or {}).items():
            info.pax_headers["SCHILY.xattr." + key] = _text(value)
        for key, value in fields.items():
            setattr(info, key, value)
        self._tar.addfile(info, io.BytesIO(content))
        return self

    def file(self, name: bytes | str, content: bytes = b"", **fields: Any) -> Layer:
        return self.add(name, tarfile.REGTYPE, content, **fields)

    def folder(self, name: bytes | str, **fields: Any) -> Layer:
        return self.add(name, tarfile.DIRTYPE, **fields)

    def symlink(self, name: bytes | str, target: bytes | str, **fields: Any) -> Layer:
        return self.add(name, tarfile.SYMTYPE, link=target, **fields)

    def link(self, name: bytes | str, target: bytes | str, **fields: Any) -> Layer:
        return self.add(name, tarfile.LNKTYPE, link=target, **fields)

    def content(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def apply_layers(*layers: Layer | bytes) -> dict[bytes, Entry]:
    """The tree that layers give, lowest first, as entries by path; the root is b''."""
    tree = LayeredTree()
    for number, layer in enumerate(layers):
        content = layer if isinstance(layer, bytes) else layer.content()
        reader = TarReader(ByteStream(iter([content])), f"layer {number}")
        tree.apply(reader, lambda *_: None, f"layer {number}")
    return entries_by_path(tree.root)


def entries_by_path(root: Entry, path: bytes = b"") -> dict[bytes, Entry]:
    found = {path: root}
    for name, child in root.children.items():
        found |= entries_by_path(child, path + b"/" + name if path else name)
    return found


class Steps(Progress):
    """Calls a function with the name of each phase as it begins."""

    def __init__(self, act: Callable[[str], None]) -> None:
        super().__init__()
        self._act = act

    def __call__(self, text: str) -> None:
        super().__call__(text)
        self._act(text)


@dataclass(frozen=True)
class OciImage:
    """A layout folder on disk, with the blobs to damage."""

    folder: Path
    layers: tuple[Path, ...]
    manifest: Path


def write_layout(
    folder: Path,
    layers: Sequence[Layer | bytes],
    *,
    compression: str = "gzip",
    tag: str | None = "latest",
    config: dict[str, Any] | None = None,
    media_type: str | None = None,
    platform: str = "linux/amd64",
) -> OciImage:
    """A minimal OCI layout that holds one image; `compression` is none, gzip or zstd."""
    begin_layout(folder)
    manifest, descriptors = add_image(
        folder, layers, compression=compression, config=config, media_type=media_type, platform=platform
    )
    if tag is not None:
        manifest["annotations"] = {"org.opencontainers.image.ref.name": tag}
    write_index(folder, [manifest])
    return OciImage(
        folder, tuple(blob_path(folder, item) for item in descriptors), blob_path(folder, manifest)
    )


def begin_layout(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def add_image(
    folder: Path,
    layers: Sequence[Layer | bytes],
    *,
    compression: str = "gzip",
    config: dict[str, Any] | None = None,
    media_type: str | None = None,
    platform: str = "linux/amd64",
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The descriptors of one more manifest of a layout and of its layers; no index names it yet."""
    descriptors, diff_ids = [], []
    for layer in layers:
        content = layer if isinstance(layer, bytes) else layer.content()
        blob, suffix = {
            "none": lambda data: (data, ""),
            "gzip": lambda data: (gzip.compress(data, 1, mtime=0), "+gzip"),
            "zstd": lambda data: (zstandard.ZstdCompressor().compress(data), "+zstd"),
        }[compression](content)
        descriptors.append(write_blob(folder, blob, media_type or TAR + suffix))
        diff_ids.append("sha256:" + hashlib.sha256(content).hexdigest())
    about = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
    configuration = write_blob(
        folder,
        json.dumps(
            about
            | {
                "config": config or {},
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
            }
        ).encode(),
        "application/vnd.oci.image.config.v1+json",
    )
    manifest = write_blob(
        folder,
        json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": configuration,
                "layers": descriptors,
            }
        ).encode(),
        "application/vnd.oci.image.manifest.v1+json",
    )
    return manifest, descriptors


def write_blob(folder: Path, content: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def blob_path(folder: Path, descriptor: dict[str, Any]) -> Path:
    path: Path = folder / "blobs" / str(descriptor["digest"]).replace(":", "/")
    return path


def write_index(folder: Path, descriptors: list[dict[str, Any]]) -> None:
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": descriptors}))


@dataclass(frozen=True)
class Facts:
    """All that must be equal between a file in an index and the same file on disk."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    links: int
    size: int
    device: tuple[int, int]
    target: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]
    content: bytes
    group: bytes  # first name of the hard-link group


def whole(content: bytes) -> bytes:
    return content


def in_brief(content: bytes) -> bytes:
    """A digest in the place of a content that is longer than one."""
    return content if len(content) <= 32 else hashlib.sha256(content).digest()


def folder_facts(root: Path, shorten: Callable[[bytes], bytes] = whole) -> dict[bytes, Facts]:
    """A folder as the kernel shows it; `shorten` says what is kept of a content."""
    found: dict[bytes, Facts] = {}
    groups: dict[tuple[int, int], bytes] = {}
    pending = [b""]
    top = os.fsencode(root)
    while pending:
        path = pending.pop()
        full = top + b"/" + path if path else top
        status = os.lstat(full)
        is_folder = stat.S_ISDIR(status.st_mode)
        names = sorted(os.listdir(full), reverse=True) if is_folder else []
        pending += [path + b"/" + name if path else name for name in names]
        key = (status.st_dev, status.st_ino)
        is_file = stat.S_ISREG(status.st_mode)
        is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
        found[path] = Facts(
            mode=status.st_mode,
            uid=status.st_uid,
            gid=status.st_gid,
            mtime_ns=status.st_mtime_ns,
            links=status.st_nlink,
            size=0 if is_folder else status.st_size,
            device=(os.major(status.st_rdev), os.minor(status.st_rdev)) if is_device else (0, 0),
            target=os.readlink(full) if stat.S_ISLNK(status.st_mode) else b"",
            xattrs=tuple(
                sorted(
                    (os.fsencode(name), os.getxattr(full, name, follow_symlinks=False))
                    for name in os.listxattr(full, follow_symlinks=False)
                )
            ),
            content=shorten(Path(os.fsdecode(full)).read_bytes()) if is_file else b"",
            group=path if is_folder else groups.setdefault(key, path),
        )
    return found


def image_facts(store: Store, name: str, shorten: Callable[[bytes], bytes] = whole) -> dict[bytes, Facts]:
    """An image as its index, locator and packs describe it, every chunk verified."""
    digest = resolve_image(store, name).digest
    found: dict[bytes, Facts] = {}
    groups: dict[int, bytes] = {}
    with TemporaryDirectory() as cache, ExitStack() as stack:
        index, locator = open_image(store, digest, Path(cache))
        stack.enter_context(index)
        stack.enter_context(locator)
        pending = [(b"", 0)]
        while pending:
            path, number = pending.pop()
            inode = index.inode(number)
            if inode.is_directory:
                pending += [
                    (path + b"/" + entry if path else entry, child)
                    for _, entry, child, _ in reversed(list(index.entries(number)))
                ]
            found[path] = Facts(
                mode=inode.mode,
                uid=inode.uid,
                gid=inode.gid,
                mtime_ns=inode.mtime_ns,
                links=inode.links,
                size=0 if inode.is_directory else inode.size,
                device=inode.device,
                target=index.symlink_target(number) if inode.is_symlink else b"",
                xattrs=tuple(index.xattrs(number).items()),
                content=shorten(_content(store, index, locator, number)) if inode.is_file else b"",
                group=groups.setdefault(number, path),
            )
    return found


def _content(store: Store, index: Index, locator: Locator, number: int) -> bytes:
    left = index.inode(number).size
    parts = []
    for digest in index.chunk_digests(number):
        size = min(left, index.chunk_bytes)
        if digest == HOLE:
            parts.append(bytes(size))
        else:
            location = locator.find(digest)
            assert location is not None
            stored = store.get_range(pack_key(location.pack), location.offset, location.stored_bytes)
            data = decode_chunk(location, stored)
            verify(digest, data)
            parts.append(data)
        left -= size
    content = b"".join(parts)
    assert len(content) == index.inode(number).size
    return content
