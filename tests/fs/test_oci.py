"""OCI layouts: choosing the image, verifying every blob, decompression, refusals by name."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import stat
import subprocess
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError
from coldstart_fs.format.index import Index
from coldstart_fs.format.names import index_key
from coldstart_fs.indexing.build import IndexReport, index_image
from coldstart_fs.indexing.sources.compression import decompressed
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from image_builder import (
    Layer,
    OciImage,
    blob_path,
    folder_facts,
    image_facts,
    write_blob,
    write_index,
    write_layout,
)

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def index(source: Path | str, store: Store, name: str = "image") -> IndexReport:
    return index_image(f"oci:{source}", store=store, name=name, chunk_bytes=4096)


def configuration(store: Store, report: IndexReport) -> dict[str, Any]:
    path = store.local_path(index_key(report.digest))
    assert path is not None
    with Index.open(path) as opened:
        return opened.configuration


def two_layers() -> list[Layer]:
    return [
        Layer().folder("d").file("d/old", b"old").file("keep", b"k" * 9000).link("kept", "keep"),
        Layer().file("d/.wh.old").file("d/new", b"new").file("keep", b"other"),
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_layers_of_every_compression_give_the_same_image(
    tmp_path: Path, store: Store, compression: str
) -> None:
    write_layout(tmp_path / compression, two_layers(), compression=compression)
    index(tmp_path / compression, store)
    facts = image_facts(store, "image")
    assert {path: fact.content for path, fact in facts.items()} == {
        b"": b"",
        b"d": b"",
        b"d/new": b"new",
        b"keep": b"other",
        b"kept": b"k" * 9000,
    }


def test_compression_and_run_do_not_change_the_digest(tmp_path: Path, store: Store) -> None:
    other = open_store(str(tmp_path / "other"), create=True)
    digests = set()
    for compression in ("none", "gzip", "zstd"):
        write_layout(tmp_path / compression, two_layers(), compression=compression)
        digests |= {index(tmp_path / compression, where).digest for where in (store, other)}
    assert len(digests) == 1


def test_gzip_of_several_members_and_padding(tmp_path: Path, store: Store) -> None:
    content = two_layers()[0].content()
    image = write_layout(tmp_path / "l", [content])
    blob = gzip.compress(content[:700]) + gzip.compress(b"") + gzip.compress(content[700:]) + bytes(600)
    replace_layer(image, blob)
    index(tmp_path / "l", store)
    assert image_facts(store, "image")[b"keep"].content == b"k" * 9000


def test_zstd_of_several_frames_with_a_skippable_one(tmp_path: Path, store: Store) -> None:
    content = two_layers()[0].content()
    image = write_layout(tmp_path / "l", [content])
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    compress = zstandard.ZstdCompressor().compress
    replace_layer(
        image, skippable + compress(content[:700]) + skippable + compress(content[700:]) + skippable
    )
    index(tmp_path / "l", store)
    assert image_facts(store, "image")[b"keep"].content == b"k" * 9000


def replace_layer(
    image: OciImage, blob: bytes, media_type: str | None = None, *, diff_id: str | None = None
) -> None:
    """Put another blob in place of the only layer, with all digests right again."""
    manifest = json.loads(image.manifest.read_bytes())
    kind = media_type or manifest["layers"][0]["mediaType"]
    manifest["layers"] = [write_blob(image.folder, blob, kind)]
    configuration = json.loads(blob_path(image.folder, manifest["config"]).read_bytes())
    configuration["rootfs"]["diff_ids"] = [diff_id or plain_digest(blob)]
    manifest["config"] = write_blob(
        image.folder, json.dumps(configuration).encode(), manifest["config"]["mediaType"]
    )
    write_index(image.folder, [write_blob(image.folder, json.dumps(manifest).encode(), MANIFEST)])


def plain_digest(blob: bytes) -> str:
    """The digest of what is behind the compression, as far as it can be read."""
    hasher = hashlib.sha256()
    with suppress(DataError):
        for block in decompressed(iter([blob]), "blob"):
            hasher.update(block)
    return f"sha256:{hasher.hexdigest()}"


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (gzip.compress(bytes(100_000))[:-9], "gzip stream is cut short"),
        (gzip.compress(b"x" * 5000)[:-8] + bytes(8), "gzip stream is damaged"),
        (gzip.compress(bytes(1024)) + b"trailing garbage", "gzip stream is damaged"),
        (zstandard.compress(bytes(1024) + os.urandom(100_000))[:-9], "zstd stream is cut short"),
        (zstandard.compress(bytes(1024)) + b"trailing garbage", "zstd stream is damaged"),
        (gzip.compress(Layer().file("a", b"x" * 5000).content()[:3000]), "tar stream is damaged"),
        (b"no tar at all" * 100, "tar stream is damaged"),
    ],
    # the same in every process: the streams hold times and random bytes
    ids=["gzip cut", "gzip changed", "gzip and more", "zstd cut", "zstd and more", "tar cut", "no tar"],
)
def test_streams_damaged_before_they_were_published_are_named(
    tmp_path: Path, store: Store, blob: bytes, message: str
) -> None:
    image = write_layout(tmp_path / "l", [Layer()])
    replace_layer(image, blob)
    with pytest.raises(DataError, match=message) as caught:
        index(tmp_path / "l", store)
    assert "/blobs/sha256/" in caught.value.message
    assert store.list("") == ["coldstart-store.json"]


def test_a_bomb_of_zeros_comes_in_small_blocks_and_costs_no_pack(tmp_path: Path, store: Store) -> None:
    size = 256 << 20
    header = Layer().file("zeros", b"").content()[:512]
    fields = bytearray(header)
    fields[124:136] = b"%011o\0" % size
    fields[148:156] = b" " * 8
    fields[148:156] = b"%06o\0 " % sum(fields)
    compressor = zstandard.ZstdCompressor().compressobj()
    blob = compressor.compress(bytes(fields))
    for _ in range(size >> 24):
        blob += compressor.compress(bytes(1 << 24))
    blob += compressor.compress(bytes(1024)) + compressor.flush()
    image = write_layout(tmp_path / "l", [Layer()], compression="zstd")
    replace_layer(image, blob)
    assert max(len(block) for block in decompressed(iter([blob]), "bomb")) <= 1 << 20
    report = index_image(f"oci:{tmp_path}/l", store=store, name="zeros")
    assert (report.zero_bytes, report.new_bytes) == (size, 0)


@pytest.mark.parametrize("which", ["layer", "manifest", "config"])
@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_a_blob_that_is_not_what_was_promised_is_named_and_publishes_nothing(
    tmp_path: Path, store: Store, which: str, damage: str
) -> None:
    image = write_layout(
        tmp_path / "l", [Layer().file("a", os.urandom(50_000)), *two_layers()], compression="none"
    )
    config = blob_path(image.folder, json.loads(image.manifest.read_bytes())["config"])
    victim = {"layer": image.layers[0], "manifest": image.manifest, "config": config}[which]
    content = bytearray(victim.read_bytes())
    if damage == "flipped":  # the layer's first header, so that the tar reader stumbles first
        content[3 if which == "layer" else len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif damage == "short":
        victim.write_bytes(content[:-1])
    else:
        victim.unlink()
    with pytest.raises(ColdstartError, match=victim.name) as caught:
        index(tmp_path / "l", store)
    assert isinstance(caught.value, NotFoundError if damage == "missing" else DataError)
    assert store.list("") == ["coldstart-store.json"]
    assert not list((tmp_path / "store").glob(".writing-*"))


@pytest.mark.parametrize("kind", ["application/vnd.oci.image.layer.v1.tar+lz4", "application/octet-stream"])
def test_unknown_layer_types_are_refused_by_name(tmp_path: Path, store: Store, kind: str) -> None:
    write_layout(tmp_path / "l", [Layer()], media_type=kind)
    with pytest.raises(DataError, match=f"layer has unknown media type {kind.replace('+', '.')}"):
        index(tmp_path / "l", store)


def test_docker_media_types_are_known(tmp_path: Path, store: Store) -> None:
    write_layout(tmp_path / "l", two_layers(), media_type="application/vnd.docker.image.rootfs.diff.tar.gzip")
    index(tmp_path / "l", store)
    assert b"kept" in image_facts(store, "image")


def test_the_runtime_configuration_is_kept(tmp_path: Path, store: Store) -> None:
    given = {
        "Cmd": ["-c", "\u00fc"],
        "Entrypoint": ["/bin/sh"],
        "Env": ["A=b"],
        "User": "1:2",
        "WorkingDir": "/srv",
        "Labels": {"not": "kept"},
        "Volumes": None,
    }
    write_layout(tmp_path / "l", [], config=given)
    assert configuration(store, index(tmp_path / "l", store)) == {
        "architecture": "amd64",
        "os": "linux",
        "command": ["-c", "\u00fc"],
        "entrypoint": ["/bin/sh"],
        "environment": ["A=b"],
        "user": "1:2",
        "working_directory": "/srv",
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"Env": "A=b"}, "`Env` is not a list of texts"),
        ({"Cmd": [1]}, "`Cmd` is not a text: item 0"),
        ({"Entrypoint": {"a": 1}}, "`Entrypoint` is not a list"),
        ({"User": 5}, "`User` is not a text"),
        ({"User": False}, "`User` is not a text"),
        ({"Env": ["A=b", "A=\0"]}, "`Env` holds a zero byte, .*: item 1"),
        ({"Cmd": ["\0"]}, "`Cmd` holds a zero byte"),
        ({"WorkingDir": "/a\0b"}, "`WorkingDir` holds a zero byte"),
        ({"Env": ["A=\ud800"]}, "`Env` holds half a character"),
    ],
)
def test_a_configuration_that_readers_would_refuse_is_refused(
    tmp_path: Path, store: Store, config: dict[str, Any], message: str
) -> None:
    write_layout(tmp_path / "l", [], config=config)
    with pytest.raises(DataError, match=f"image configuration is damaged: .*: {message}"):
        index(tmp_path / "l", store)


@pytest.mark.parametrize(
    "about", [{"architecture": ["x"]}, {"os": "a\0"}, {"architecture": 5}, {"variant": {}}]
)
def test_a_platform_of_wrong_type_is_damage(tmp_path: Path, store: Store, about: dict[str, Any]) -> None:
    image = write_layout(tmp_path / "l", [])
    manifest = json.loads(image.manifest.read_bytes())
    content = json.loads(blob_path(image.folder, manifest["config"]).read_bytes()) | about
    manifest["config"] = write_blob(
        image.folder, json.dumps(content).encode(), manifest["config"]["mediaType"]
    )
    write_index(image.folder, [write_blob(image.folder, json.dumps(manifest).encode(), MANIFEST)])
    flaw = "holds a zero byte" if "os" in about else "is not a text"
    with pytest.raises(DataError, match=f"image configuration is damaged: .*: `{next(iter(about))}` {flaw}"):
        index(tmp_path / "l", store)


def test_a_window_or_dictionary_that_is_too_large_is_not_called_damage() -> None:
    def frame(window_bits: int) -> bytes:
        return b"\x28\xb5\x2f\xfd\0" + bytes([window_bits - 10 << 3]) + b"\x01\0\0"

    assert list(decompressed(iter([frame(27)]), "x")) == []
    with pytest.raises(DataError, match=r"^zstd stream needs a window of more than 128 MiB: x$") as caught:
        list(decompressed(iter([frame(31)]), "x"))
    assert caught.value.hint == "compress it again with `zstd --long=27` or without `--long`"
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    blob = bytearray(lzma.compress(b"tar", filters=filters))
    blob[16] = 40  # of the block's header: a dictionary of 4 GiB
    blob[20:24] = zlib.crc32(blob[12:20]).to_bytes(4, "little")
    with pytest.raises(DataError, match=r"^xz stream needs more than 512 MiB of memory: x$"):
        list(decompressed(iter([bytes(blob)]), "x"))


def test_a_layer_in_an_error_is_named_once(tmp_path: Path, store: Store) -> None:
    image = write_layout(tmp_path / "l", [two_layers()[0].content()[:700]])
    with pytest.raises(DataError, match="tar stream is damaged") as caught:
        index(tmp_path / "l", store)
    assert caught.value.message.count(image.layers[0].name) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "oci-layout").unlink(), "not an OCI layout"),
        (lambda folder: (folder / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}'), "version 2"),
        (lambda folder: (folder / "oci-layout").write_text("?"), "not JSON"),
        (lambda folder: (folder / "index.json").unlink(), "file is missing: .*index.json"),
        (lambda folder: (folder / "index.json").write_text("[]"), "not a JSON object: .*index.json"),
        (
            lambda folder: (folder / "index.json").write_text("[" * 100_000),
            "nested too deeply: .*index.json",
        ),
        (
            lambda folder: write_index(folder, [write_blob(folder, b"[" * 100_000, MANIFEST)]),
            "nested too deeply: .*sha256",
        ),
        (lambda folder: (folder / "index.json").write_text("{}"), "no list of manifests"),
        (lambda folder: write_index(folder, []), "no image in it"),
        (
            lambda folder: write_index(folder, [write_blob(folder, b"{}", "text/plain")]),
            "not an image manifest but text/plain",
        ),
        (lambda folder: write_index(folder, [{"mediaType": MANIFEST}]), "manifest has no digest and size"),
        (
            lambda folder: write_index(
                folder, [{"mediaType": MANIFEST, "digest": "sha256:../../x", "size": 1}]
            ),
            "not a digest",
        ),
        (
            lambda folder: write_index(
                folder, [{"mediaType": MANIFEST, "digest": "md5:" + "0" * 32, "size": 1}]
            ),
            "not a digest that can be checked",
        ),
    ],
)
def test_damaged_layouts_are_named(tmp_path: Path, store: Store, damage: Any, message: str) -> None:
    write_layout(tmp_path / "l", [])
    damage(tmp_path / "l")
    with pytest.raises(DataError, match=message):
        index(tmp_path / "l", store)


def umoci(*arguments: str | Path) -> None:
    subprocess.run(["umoci", *arguments], check=True, timeout=120, capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="umoci needs root to make devices and owners")
def test_an_image_built_by_umoci_is_what_umoci_unpacks(tmp_path: Path, store: Store) -> None:
    layout, bundle, unpacked = tmp_path / "layout", tmp_path / "bundle", tmp_path / "unpacked"
    umoci("init", "--layout", layout)
    umoci("new", "--image", f"{layout}:app")
    umoci("unpack", "--image", f"{layout}:app", bundle)
    root = bundle / "rootfs"
    for folder in ("usr/lib", "etc/old/deep", "var/gone", "proc", "dev"):
        (root / folder).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib/big").write_bytes(os.urandom(300_000))
    (root / "usr/lib/sparse").write_bytes(b"start" + bytes(500_000))
    (root / "etc/old/deep/file").write_text("old")
    (root / "var/gone/file").write_text("gone")
    os.link(root / "usr/lib/big", root / "usr/lib/same")
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.setxattr(root / "usr/lib/big", "user.binary", bytes(range(1, 255)))
    os.setxattr(
        root / "usr/lib/same",
        "security.capability",
        bytes.fromhex("0100000200200000000000000000000000000000"),
    )
    os.chown(root / "etc/old", 1000, 2000)
    os.chmod(root / "usr/lib/sparse", 0o4711)
    os.utime(root / "usr/lib/sparse", ns=(0, 1_111_111_111_000_000_000))
    umoci("repack", "--image", f"{layout}:app", bundle)
    subprocess.run(["rm", "-rf", bundle], check=True, timeout=60)
    umoci("unpack", "--image", f"{layout}:app", bundle)
    subprocess.run(["rm", "-rf", root / "var/gone", root / "etc/old"], check=True, timeout=60)
    (root / "etc/old").write_text("now a file")
    (root / "usr/lib/big").write_bytes(b"broken away")
    (root / "lib/more").write_text("through the symlink")
    umoci("repack", "--image", f"{layout}:app", bundle)
    umoci("config", "--image", f"{layout}:app", "--config.cmd", "/bin/app", "--config.env", "A=b")
    umoci("unpack", "--image", f"{layout}:app", unpacked)

    report = index(f"{layout}:app", store)
    expected = folder_facts(unpacked / "rootfs")
    assert image_facts(store, "image") == expected
    assert {b"etc/old", b"usr/lib/more", b"dev/null", b"usr/lib/same"} <= set(expected)
    assert b"var/gone" not in expected
    assert configuration(store, report)["command"] == ["/bin/app"]
    # the unpacked folder gives the same bytes, but for the configuration
    again = index_image(f"dir:{unpacked}/rootfs", store=store, name="folder", chunk_bytes=4096)
    assert again.new_bytes == 0
    assert body(store, report) == body(store, again)


def body(store: Store, report: IndexReport) -> bytes:
    """An index without its header and its configuration."""
    content = store.get(index_key(report.digest))
    return content[192 : int.from_bytes(content[128:136], "little")]


def test_contents_that_upper_layers_replace_or_hide_are_not_stored(tmp_path: Path, store: Store) -> None:
    secret, kept, late = os.urandom(50_000), os.urandom(50_000), os.urandom(9_000)
    write_layout(
        tmp_path / "l",
        [
            Layer().file("secret", secret).file("kept", kept).file("two", secret[:5000]).file("two", b"2"),
            Layer().file(".wh.secret").file("late", late),
        ],
    )
    report = index(tmp_path / "l", store)
    assert report.new_bytes == 59_001
    stored = b"".join(store.get(key) for key in store.list("packs/"))
    assert len(stored) < 61_000
    assert secret[:4096] not in stored
    assert image_facts(store, "image")[b"kept"].content == kept
    assert image_facts(store, "image")[b"late"].content == late
    assert index(tmp_path / "l", store).new_bytes == 0
