"""Which image of an index is taken, and what is refused because its parts do not fit together."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_fs.indexing.build import IndexReport, index_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from image_builder import (
    Layer,
    OciImage,
    add_image,
    begin_layout,
    blob_path,
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


def index(source: Path | str, store: Store) -> IndexReport:
    return index_image(f"oci:{source}", store=store, name="image", chunk_bytes=4096)


def two_layers() -> list[Layer]:
    return [
        Layer().folder("d").file("d/old", b"old").file("keep", b"k" * 9000).link("kept", "keep"),
        Layer().file("d/.wh.old").file("d/new", b"new").file("keep", b"other"),
    ]


def test_tags_choose_the_image(tmp_path: Path, store: Store) -> None:
    descriptors = []
    for tag in ("one", "two"):
        write_layout(tmp_path / tag, [Layer().file(tag)], tag=tag)
        descriptors += json.loads((tmp_path / tag / "index.json").read_text())["manifests"]
    subprocess.run(
        ["cp", "-a", *(tmp_path / "two/blobs").glob("*"), tmp_path / "one/blobs"], check=True, timeout=20
    )
    write_index(tmp_path / "one", descriptors)
    index(f"{tmp_path}/one:two", store)
    assert b"two" in image_facts(store, "image")
    with pytest.raises(DataError, match="several images") as several:
        index(tmp_path / "one", store)
    assert several.value.hint is not None
    assert "one, two" in several.value.message
    assert several.value.hint == f"write oci:{tmp_path}/one:one"
    with pytest.raises(NotFoundError, match="tag is not in the image layout: tow") as absent:
        index(f"{tmp_path}/one:tow", store)
    assert absent.value.hint == "did you mean `two`?"


def test_nested_indexes_pick_this_platform(tmp_path: Path, store: Store) -> None:
    here = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    folder = tmp_path / "l"
    descriptors = []
    for architecture in (here, "mips", "unknown"):
        image = write_layout(tmp_path / architecture, [Layer().file(architecture)], tag=None)
        (descriptor,) = json.loads((tmp_path / architecture / "index.json").read_text())["manifests"]
        system = "unknown" if architecture == "unknown" else "linux"
        descriptors.append(descriptor | {"platform": {"os": system, "architecture": architecture}})
        subprocess.run(["mkdir", "-p", folder], check=True, timeout=60)
        subprocess.run(["cp", "-a", *image.folder.iterdir(), folder], check=True, timeout=60)
    nested = write_blob(folder, json.dumps({"schemaVersion": 2, "manifests": descriptors}).encode(), INDEX)
    write_index(folder, [nested])
    index(folder, store)
    assert here.encode() in image_facts(store, "image")
    nested = write_blob(
        folder, json.dumps({"schemaVersion": 2, "manifests": descriptors[1:]}).encode(), INDEX
    )
    write_index(folder, [nested])
    with pytest.raises(DataError, match=f"not made for linux/{here}, only for: linux/mips: "):
        index(folder, store)


def platform_layout(folder: Path, *platforms: str) -> list[dict[str, Any]]:
    """Images of several platforms in one layout, each with a file named after it; their descriptors."""
    begin_layout(folder)
    descriptors = []
    for number, platform in enumerate(platforms):
        name = f"{platform.replace('/', '-')}.{number}"
        manifest, _ = add_image(folder, [Layer().file(name)], platform=platform)
        about = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
        descriptors.append(manifest | {"platform": about})
    return descriptors


def index_platform(source: Path, store: Store, platform: str | None) -> set[bytes]:
    index_image(f"oci:{source}", store=store, name="image", chunk_bytes=4096, platform=platform)
    return set(image_facts(store, "image")) - {b""}


def test_the_wanted_platform_is_taken_or_the_next_lower_variant(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "l"
    offered = ("linux/amd64", "linux/amd64/v2", "linux/arm/v6", "linux/arm/v7", "linux/arm64")
    write_index(folder, platform_layout(folder, *offered))
    for wanted, name in {
        "linux/amd64": b"linux-amd64.0",
        "linux/amd64/v3": b"linux-amd64-v2.1",
        "linux/arm/v7": b"linux-arm-v7.3",
        "linux/arm/v6": b"linux-arm-v6.2",
        "linux/arm64": b"linux-arm64.4",
    }.items():
        assert index_platform(folder, store, wanted) == {name}
    with pytest.raises(
        DataError, match="not made for linux/s390x, only for: linux/amd64, linux/amd64/v2, "
    ) as no:
        index_platform(folder, store, "linux/s390x")
    assert no.value.hint == "choose one: `--platform linux/amd64`"


def test_two_images_that_fit_equally_well_are_refused_with_the_list(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "l"
    one, two = platform_layout(folder, "linux/amd64", "linux/amd64")
    write_index(folder, [one, two])
    with pytest.raises(
        DataError, match="2 images are made for linux/amd64, and nothing says which"
    ) as caught:
        index_platform(folder, store, "linux/amd64")
    assert one["digest"] in caught.value.message
    assert two["digest"] in caught.value.message
    write_index(folder, [one, one])
    assert index_platform(folder, store, "linux/amd64") == {b"linux-amd64.0"}


def test_descriptors_without_platform_have_that_of_the_configuration(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "l"
    descriptors = platform_layout(folder, "linux/amd64", "linux/s390x")
    for descriptor in descriptors:
        del descriptor["platform"]
    write_index(folder, descriptors)
    assert index_platform(folder, store, "linux/s390x") == {b"linux-s390x.1"}


def test_one_image_of_another_platform_is_refused_only_when_one_was_wanted(
    tmp_path: Path, store: Store
) -> None:
    write_layout(tmp_path / "l", [Layer().file("a")], platform="linux/s390x")
    report = index(tmp_path / "l", store)
    assert any(note.startswith("image is made for linux/s390x, this host is linux/") for note in report.notes)
    with pytest.raises(DataError, match="image is made for linux/s390x, not for linux/riscv64"):
        index_platform(tmp_path / "l", store, "linux/riscv64")


def test_attestations_beside_an_image_are_no_platform(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "l"
    (image,) = platform_layout(folder, "linux/amd64")
    statement = write_blob(folder, b"{}", MANIFEST) | {
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
    }
    for order in ([image, statement], [statement, image]):
        write_index(folder, order)
        assert index_platform(folder, store, "linux/amd64") == {b"linux-amd64.0"}
    write_index(folder, [statement])
    with pytest.raises(DataError, match="no image in it"):
        index_platform(folder, store, None)


def test_an_index_inside_of_itself_ends(tmp_path: Path, store: Store) -> None:
    write_layout(tmp_path / "l", [])
    descriptor: dict[str, Any] = {"mediaType": INDEX, "digest": "sha256:" + "0" * 64, "size": 2}
    for _ in range(8):
        descriptor = write_blob(tmp_path / "l", json.dumps({"manifests": [descriptor]}).encode(), INDEX)
    write_index(tmp_path / "l", [descriptor])
    with pytest.raises(DataError, match="nested too deeply"):
        index(tmp_path / "l", store)


def rewrite(image: OciImage, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change manifest and configuration of an image, with all digests right again."""
    manifest = json.loads(image.manifest.read_bytes())
    configuration = json.loads(blob_path(image.folder, manifest["config"]).read_bytes())
    kept = dict(manifest["config"])
    change(manifest, configuration)
    if manifest.get("config") == kept:
        manifest["config"] = write_blob(image.folder, json.dumps(configuration).encode(), kept["mediaType"])
    kind = manifest.get("mediaType", MANIFEST)
    write_index(image.folder, [write_blob(image.folder, json.dumps(manifest).encode(), kind)])


def set_layer(**fields: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda manifest, _: manifest["layers"][0].update(fields)


FOREIGN = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
ABSENT = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda _, config: config["rootfs"]["diff_ids"].pop(),
            "image has 2 layers, its configuration digests of 1",
        ),
        (lambda _, config: config["rootfs"]["diff_ids"].append(ABSENT), "has 2 layers, .* digests of 3"),
        (
            lambda _, config: config["rootfs"]["diff_ids"].reverse(),
            "layer is not the one of the configuration",
        ),
        (
            lambda _, config: config["rootfs"].update(diff_ids=["md5:0", "x"]),
            "not a digest that can be checked: md5",
        ),
        (lambda _, config: config["rootfs"].update(diff_ids=None), "`rootfs` has no digests of layers"),
        (lambda _, config: config.pop("rootfs"), "`rootfs` has no digests of layers"),
        (lambda _, config: config.update(config=[1]), "`config` is not an object"),
        (lambda manifest, _: manifest.update(layers=None), "manifest has no list of layers"),
        (lambda manifest, _: manifest.update(layers=[1]), "layer has no digest and size"),
        (lambda manifest, _: manifest.update(manifests=[]), "manifest is an image index at the same time"),
        (lambda manifest, _: manifest.update(schemaVersion=1), "manifest of Docker's schema 1"),
        (
            lambda manifest, _: manifest.update(
                mediaType="application/vnd.docker.distribution.manifest.v1+prettyjws"
            ),
            "manifest of Docker's schema 1",
        ),
        (
            lambda manifest, _: manifest["config"].update(
                mediaType="application/vnd.cncf.helm.config.v1+json"
            ),
            "not a container image, its configuration is application/vnd.cncf.helm.config",
        ),
        (
            lambda manifest, _: manifest.update(config=None),
            "not a container image, its manifest says nothing of its configuration's type",
        ),
        (set_layer(size=-1), "layer has no digest and size"),
        (set_layer(size=True), "layer has no digest and size"),
        (set_layer(size=1.5), "layer has no digest and size"),
        (set_layer(size="5"), "layer has no digest and size"),
        (set_layer(size=1 << 70), "blob has .* bytes instead of 1180591620717411303424"),
        (set_layer(digest="sha256:" + "A" * 64), "not a digest that can be checked"),
        (
            set_layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip+encrypted"),
            "layer is encrypted: sha256:",
        ),
        (
            set_layer(mediaType=FOREIGN, digest=ABSENT, urls=["https://a.example/layer"]),
            f"layer is not in the image, only elsewhere: {ABSENT}: https://a.example/layer",
        ),
    ],
)
def test_an_image_that_does_not_fit_together_is_refused_by_name(
    tmp_path: Path, store: Store, change: Callable[[dict[str, Any], dict[str, Any]], None], message: str
) -> None:
    rewrite(write_layout(tmp_path / "l", two_layers()), change)
    with pytest.raises(DataError, match=message):
        index(tmp_path / "l", store)
    assert store.list("") == ["coldstart-store.json"]
    assert not list((tmp_path / "store").glob(".writing-*"))


def test_a_foreign_layer_that_is_there_is_a_layer(tmp_path: Path, store: Store) -> None:
    image = write_layout(tmp_path / "l", two_layers())
    rewrite(image, set_layer(mediaType=FOREIGN, urls=["https://a.example/layer"]))
    index(tmp_path / "l", store)
    assert b"kept" in image_facts(store, "image")


def test_an_index_that_is_a_manifest_at_the_same_time_is_refused(tmp_path: Path, store: Store) -> None:
    image = write_layout(tmp_path / "l", two_layers())
    both = json.loads(image.manifest.read_bytes()) | {"manifests": []}
    write_index(tmp_path / "l", [write_blob(tmp_path / "l", json.dumps(both).encode(), INDEX)])
    with pytest.raises(DataError, match="image index is a manifest at the same time"):
        index(tmp_path / "l", store)


def test_layers_of_another_count_than_the_history_are_noted(tmp_path: Path, store: Store) -> None:
    image = write_layout(tmp_path / "l", two_layers())
    steps = [{"created_by": "a"}, {"created_by": "b", "empty_layer": True}, {"created_by": "c"}]
    rewrite(image, lambda _, config: config.update(history=steps))
    assert index(tmp_path / "l", store).notes == ()
    rewrite(image, lambda _, config: config.update(history=steps[:1]))
    assert "image has 2 layers, its history tells of 1" in index(tmp_path / "l", store).notes


@pytest.mark.parametrize("kind", ["gzip", "zstd", ""])
def test_media_types_that_are_wrong_about_the_compression_do_not_matter(
    tmp_path: Path, store: Store, kind: str
) -> None:
    media_type = "application/vnd.oci.image.layer.v1.tar" + (f"+{kind}" if kind else "")
    for compression in ("none", "gzip", "zstd"):
        write_layout(tmp_path / compression, two_layers(), compression=compression, media_type=media_type)
        index(tmp_path / compression, store)
        assert b"kept" in image_facts(store, "image")


def test_sha512_digests_are_verified_too(tmp_path: Path, store: Store) -> None:
    image = write_layout(tmp_path / "l", two_layers())
    layer = image.layers[0]
    digest = hashlib.sha512(layer.read_bytes()).hexdigest()
    (image.folder / "blobs/sha512").mkdir()
    layer.rename(image.folder / "blobs/sha512" / digest)
    rewrite(image, set_layer(digest=f"sha512:{digest}"))
    index(tmp_path / "l", store)
    moved = image.folder / "blobs/sha512" / digest
    moved.write_bytes(bytes([moved.read_bytes()[0] ^ 1]) + moved.read_bytes()[1:])
    with pytest.raises(DataError, match="its sha512 is"):
        index(tmp_path / "l", store)


def test_a_fifo_in_place_of_a_blob_holds_nobody(tmp_path: Path, store: Store) -> None:
    image = write_layout(tmp_path / "l", two_layers())
    image.layers[1].unlink()
    os.mkfifo(image.layers[1])
    with pytest.raises(DataError, match=f"not a regular file: {image.layers[1]}"):
        index(tmp_path / "l", store)
