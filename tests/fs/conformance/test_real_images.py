"""Images that tools made of real trees: entry by entry what umoci and containerd unpack."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import small_root
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from conftest import REPOSITORY
from fs.conformance import metadata
from fs.conformance.comparison import differences, unpack_layout
from fs.conformance.references import Containerd, Umoci, program_or_skip
from image_builder import add_image, begin_layout, image_facts, in_brief, write_index

_BASES = Path("/var/tmp/coldstart-clean-roots")  # where tools/clean-root.sh keeps what it bootstrapped


@dataclass(frozen=True)
class Workshop:
    folder: Path
    store: Store
    umoci: Umoci
    containerd: Containerd

    def compare(self, layout: Path, *tags: str) -> None:
        """The same trees in all three, to the last byte."""
        for tag, outcomes in unpack_layout(
            layout, tags, self.store, self.umoci, self.containerd, in_brief
        ).items():
            ours = outcomes.coldstart.tree
            assert ours is not None, outcomes.coldstart.refusal
            assert len(ours) > 100
            for name, theirs in (("umoci", outcomes.umoci), ("containerd", outcomes.containerd)):
                assert theirs.tree is not None, theirs.refusal
                assert differences(ours, theirs.tree, outcomes.started_ns) == {}, f"{tag}: {name}"


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    store = open_store(str(tmp_path / "store"), create=True)
    with Containerd.running(tmp_path / "c") as containerd:
        yield Workshop(tmp_path, store, Umoci(tmp_path), containerd)
    for left in tmp_path.iterdir():  # several copies of whole systems
        if left.name != "c":
            shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(tmp_path / "c" / "root", ignore_errors=True)


def test_a_root_with_python_and_a_heavy_library(workshop: Workshop) -> None:
    root, library = small_root.make_root(workshop.folder / "root"), workshop.folder / "library"
    _make_odd(root)
    numpy = importlib.util.find_spec("numpy")
    if numpy is None or numpy.origin is None:
        pytest.skip("numpy is not installed: it comes with the extra `pool`")
    packages = library / "usr/lib/python3/dist-packages"
    for found in Path(numpy.origin).parents[1].glob("numpy*"):
        shutil.copytree(found, packages / found.name, symlinks=True, ignore=shutil.ignore_patterns("tests"))
    layout = workshop.folder / "layout"
    begin_layout(layout)
    descriptor, _ = add_image(layout, [_tar(root), _tar(library)], compression="none")
    descriptor["annotations"] = {"org.opencontainers.image.ref.name": "base"}
    write_index(layout, [descriptor])
    _repack(workshop, layout, "base", "changed", _change)
    workshop.compare(layout, "base", "changed")


def test_an_image_of_more_than_a_hundred_layers_made_by_umoci(workshop: Workshop) -> None:
    program, layout = program_or_skip("umoci"), workshop.folder / "layout"
    tree = workshop.folder / "tree"
    for number in range(100):
        (tree / f"d{number % 10}" / f"e{number}").mkdir(parents=True)
        (tree / f"d{number % 10}" / f"e{number}" / "f").write_text(f"{number}")
    image = f"{layout}:latest"
    commands = [
        ["init", "--layout", layout],
        ["new", "--image", image],
        ["insert", "--image", image, tree, "/"],
    ]
    for number in range(110):
        name = f"/d{number % 10}/e{(number * 7) % 100}"
        if number % 5 == 0:
            commands.append(["insert", "--image", image, "--whiteout", name])
        else:
            options = ["--opaque"] if number % 3 == 0 else []
            commands.append(["insert", "--image", image, *options, tree / f"d{number % 7}", name])
    for command in commands:
        subprocess.run([program, *command], check=True, timeout=60, capture_output=True)
    workshop.compare(layout, "latest")


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("release", ["bullseye", "bookworm", "trixie"])
def test_debian(release: str, workshop: Workshop) -> None:
    layout = workshop.folder / "layout"
    begin_layout(layout)
    base = _debian(release, workshop.folder)
    descriptors = []
    # another end, or containerd would know the layer already
    for compression, end in (("gzip", b""), ("zstd", bytes(512))):
        descriptor, _ = add_image(layout, [base + end], compression=compression)
        descriptor["annotations"] = {"org.opencontainers.image.ref.name": compression}
        descriptors.append(descriptor)
    write_index(layout, descriptors)
    _repack(workshop, layout, "gzip", "changed", _change_system)
    workshop.compare(layout, "gzip", "changed")
    # this umoci does not read zstd: containerd alone is the judge
    unzstd = unpack_layout(layout, ["zstd"], workshop.store, workshop.umoci, workshop.containerd, in_brief)[
        "zstd"
    ]
    assert unzstd.coldstart.tree == image_facts(workshop.store, "gzip", in_brief)
    assert unzstd.containerd.tree is not None, unzstd.containerd.refusal
    assert differences(unzstd.coldstart.tree, unzstd.containerd.tree, unzstd.started_ns) == {}


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_image_of_the_demo(workshop: Workshop) -> None:
    layout = REPOSITORY / ".demo" / "image"
    if not (layout / "index.json").exists():
        pytest.skip("make demo has not made its image here")
    workshop.compare(layout, "latest")


def _tar(root: Path) -> bytes:
    return subprocess.run(
        ["tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--format=posix", "-C", root, "-c", "."],
        check=True,
        capture_output=True,
        timeout=300,
    ).stdout


def _make_odd(root: Path) -> None:
    """What real roots have some of: links, devices, capabilities, attributes, odd modes and names."""
    os.link(root / "etc/passwd", root / "etc/passwd-")
    os.mknod(root / "dev/null", 0o20666, os.makedev(1, 3))
    os.mkfifo(root / "srv/pipe", 0o600)
    (root / "srv/setuid").write_bytes(b"x")
    (root / "srv/setuid").chmod(0o6755)
    os.setxattr(root / "srv/setuid", "user.note", b"\0\xff")
    os.setxattr(root / "srv/server.py", "security.capability", metadata.CAPABILITY)
    os.chown(root / "srv/pipe", 1234, 4_000_000_000)
    (root / os.fsdecode(b"srv/\xff\n")).write_bytes(b"odd")
    os.utime(root / "srv/setuid", ns=(0, 1_234_567_890_123_456_789))
    os.setxattr(root / "srv", "system.posix_acl_access", metadata.FOLDER_ACL)
    os.setxattr(root / "bin", "system.posix_acl_default", metadata.DEFAULT_ACL)  # an empty folder
    with (root / "srv/sparse").open("wb") as stream:
        stream.truncate(3_000_000)


def _change(root: Path) -> None:
    """What a build step does: files go, types change, folders move, links come and go."""
    shutil.rmtree(root / "usr/lib/python3/dist-packages/numpy/doc", ignore_errors=True)
    (root / "usr/lib/python3/dist-packages/numpy/version.py").unlink()
    (root / "etc/passwd").unlink()
    (root / "srv/pipe").unlink()
    (root / "srv/pipe").mkdir(mode=0o711)
    (root / "srv/pipe/file").write_text("now a folder")
    (root / "srv/server.py").write_text("changed")
    shutil.rmtree(root / "tmp")
    (root / "tmp").symlink_to("srv")
    os.link(root / "srv/setuid", root / "srv/setuid-too")
    (root / "etc/new").write_text("new")


def _change_system(root: Path) -> None:
    shutil.rmtree(root / "usr/share/doc")
    shutil.rmtree(root / "usr/share/locale", ignore_errors=True)
    (root / "usr/share/man").rename(root / "usr/share/manual")
    # no file in its place: umoci 0.4.7 then writes whiteouts below it, which containerd refuses
    (root / "etc/debian_version").write_text("changed\n")
    (root / "etc/motd").unlink()
    os.setxattr(root / "usr/bin/env", "security.capability", metadata.CAPABILITY)


def _repack(workshop: Workshop, layout: Path, tag: str, new: str, change: Callable[[Path], None]) -> None:
    """One more layer as umoci writes it, from a bundle that was changed."""
    program, bundle = program_or_skip("umoci"), workshop.folder / f"bundle-{new}"
    unpack = [program, "unpack", "--image", f"{layout}:{tag}", bundle]
    subprocess.run(unpack, check=True, timeout=600, capture_output=True)
    change(bundle / "rootfs")
    repack = [program, "repack", "--image", f"{layout}:{new}", bundle]
    subprocess.run(repack, check=True, timeout=600, capture_output=True)
    shutil.rmtree(bundle)


def _debian(release: str, folder: Path) -> bytes:
    """A minimal system as a tar; the one that clean roots are made from, where there is one."""
    base = _BASES / f"{release}.tar"
    if base.exists():
        return base.read_bytes()
    program, root = program_or_skip("debootstrap"), folder / "debian"
    mirror = subprocess.run(
        [REPOSITORY / "tools/apt-mirror.sh"], capture_output=True, text=True, check=False, timeout=60
    )
    if mirror.returncode:
        pytest.skip(f"no mirror: {mirror.stderr.strip()}")
    with (folder / "debootstrap.log").open("wb") as log:
        done = subprocess.run(
            ["unshare", "--mount", program, "--variant=minbase", release, root, mirror.stdout.strip()],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, timeout=900, check=False,
        )  # fmt: skip
    if done.returncode:
        pytest.skip(f"debootstrap of {release} failed: {(folder / 'debootstrap.log').read_text()[-300:]}")
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    content = _tar(root)
    shutil.rmtree(root)
    return content
