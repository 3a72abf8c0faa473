"""Containers that write on a lazily served root: a package manager, locks, renames, copies of large files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.config import Config
from coldstart_fs.mounts.mount import MountRecord
from coldstart_snapshot.containers.container import kill_and_delete, run_container
from coldstart_snapshot.containers.new_bundle import ContainerSpec
from conftest import wait_until
from fs.mounts import Lab, laboratory

LARGE_BYTES = 24 << 20
DPKG = (
    "dpkg",
    "dpkg-deb",
    "dpkg-split",
    "dpkg-query",
    "tar",
    "sh",
    "rm",
    "cat",
    "ldconfig",
    "start-stop-daemon",
)
TOOLS = (
    "diff",
    "gzip",
    "xz",
    "zstd",
    "mv",
    "cp",
    "ln",
    "cmp",
    "sed",
    "touch",
    "mkdir",
    "ls",
    "sync",
    "dd",
    "flock",
)

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dpkg-deb") is None, reason="needs root and Debian's dpkg"
)


def _root_of(root: Path, *names: str) -> None:
    """A root with these programs of the host and the libraries they need."""
    programs = [Path(found).resolve() for name in names if (found := _find(name))]
    listing = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, timeout=60, check=False
    )
    for folder in (
        "proc",
        "sys",
        "dev",
        "tmp",
        "etc",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/log",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path in {*programs, *(Path(path) for path in re.findall(r"(/\S+) \(0x", listing.stdout))}:
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    for name in names:
        found = _find(name)
        place = root / "usr/bin" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if found and not place.exists():
            place.symlink_to(Path(found).resolve())
    (root / "var/lib/dpkg/status").touch()
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    if not (root / "bin").exists():
        (root / "bin").symlink_to("usr/bin")


def _find(name: str) -> str | None:
    return shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")


def _package(folder: Path, version: str, files: dict[str, str]) -> Path:
    tree = folder / f"package-{version}"
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: greeting\nVersion: {version}\nArchitecture: all\nMaintainer: tests\nDescription: greets\n"
    )
    (tree / "DEBIAN/postinst").write_text("#!/bin/sh\necho configured $1 >> /var/log/greeting\n")
    (tree / "DEBIAN/postinst").chmod(0o755)
    package = folder / f"greeting-{version}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", tree, package],
        check=True,
        timeout=60,
        capture_output=True,
    )
    return package


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("overlay-containers")
    with laboratory(folder) as lab:
        tree = lab.tree()
        _root_of(tree, *DPKG, *TOOLS)
        (tree / "large").write_bytes(os.urandom(LARGE_BYTES))
        (tree / "tmp/1.deb").write_bytes(
            _package(folder, "1", {"opt/hello": "one\n", "opt/old": "x"}).read_bytes()
        )
        (tree / "tmp/2.deb").write_bytes(_package(folder, "2", {"opt/hello": "two\n"}).read_bytes())
        lab.index(tree)
        yield lab


@pytest.fixture
def config(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Config:
    return configuration.load({"run_dir": str(lab.folder / "run"), "state_dir": str(lab.folder / "state")})


Run = Callable[[str], str]


@pytest.fixture
def record(lab: Lab, request: pytest.FixtureRequest) -> Iterator[MountRecord]:
    record = lab.mount(
        f"mnt-{request.node.name[:20]}", overlay=lab.folder / f"layer-{request.node.name[:20]}"
    )
    yield record
    lab.unmount(record)


@pytest.fixture
def shell(lab: Lab, record: MountRecord, config: Config, request: pytest.FixtureRequest) -> Run:
    """Run a script in a container on the overlay; what it printed."""
    number = 0
    name = f"overlay-{os.getpid()}-{abs(hash(request.node.name)) % 10**6}"

    def run(script: str) -> str:
        nonlocal number
        number += 1
        log = lab.folder / f"{name}-{number}.log"
        spec = ContainerSpec(
            id=f"{name}-{number}",
            root=record.mountpoint,
            arguments=("/usr/bin/sh", "-c", f"set -e\n{script}\necho DONE-$?"),
            environment={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL": "C"},
            log=log,
            network="none",
        )
        container = run_container(spec, config)
        try:
            wait_until(lambda: not Path(f"/proc/{container.pid}/root/usr").exists(), "the script ends", 60)
            text = log.read_text()
            assert text.endswith("DONE-0\n"), text
            return text.removesuffix("DONE-0\n")
        finally:
            kill_and_delete(spec.id, runc_root=container.runc_root)

    return run


def test_a_package_manager_installs_upgrades_and_removes(lab: Lab, record: MountRecord, shell: Run) -> None:
    shell("dpkg -i /tmp/1.deb")
    assert (record.mountpoint / "opt/hello").read_text() == "one\n"
    shell("dpkg -i /tmp/2.deb; dpkg -s greeting | sed -n 's/^Version: //p' > /version")
    assert (record.mountpoint / "version").read_text() == "2\n"
    assert (record.mountpoint / "opt/hello").read_text() == "two\n"
    assert not (record.mountpoint / "opt/old").exists()
    assert (record.mountpoint / "var/log/greeting").read_text() == "configured configure\n" * 2
    shell("dpkg --purge greeting")
    assert not (record.mountpoint / "opt").exists()
    # nothing of it reached the image
    assert sorted(os.listdir(lab.tree())) == sorted(os.listdir(record.fuse_mountpoint))


def test_a_large_file_is_copied_up_whole_before_its_first_change(
    lab: Lab, record: MountRecord, shell: Run
) -> None:
    shell("printf changed | dd of=/large bs=1 seek=1000 conv=notrunc 2>/dev/null")
    expected = bytearray((lab.tree() / "large").read_bytes())
    expected[1000:1007] = b"changed"
    assert (record.mountpoint / "large").read_bytes() == expected
    assert (record.fuse_mountpoint / "large").read_bytes() == (lab.tree() / "large").read_bytes()


def test_files_and_folders_of_the_image_are_renamed_and_linked(record: MountRecord, shell: Run) -> None:
    shell(
        "mv /etc/passwd /etc/passwd.old; ln /etc/group /etc/group.link\n"
        "mv /var/log /var/journal; mkdir /var/log"
    )
    root = record.mountpoint
    assert sorted(os.listdir(root / "etc")) == ["group", "group.link", "passwd.old"]
    with (root / "etc/group.link").open("a") as stream:
        stream.write("more\n")
    assert (root / "etc/group").read_text() == "root:x:0:\nmore\n"
    assert os.listdir(root / "var/log") == []
    assert os.listdir(root / "var/journal") == []


def test_a_lock_on_a_file_of_the_image_excludes_others(record: MountRecord, shell: Run) -> None:
    del record
    text = shell(
        "exec 8>>/etc/group; flock -n 8\n"
        "sh -c 'exec 9>>/etc/group; flock -n 9 && echo taken twice || echo excluded' 8>&-\n"
        "flock -u 8\n"
        "sh -c 'exec 9>>/etc/group; flock -n 9 && echo free'"
    )
    assert text.splitlines() == ["excluded", "free"]


def test_containers_on_one_image_do_not_see_what_the_others_write(lab: Lab, config: Config) -> None:
    records = [
        lab.mount(f"many-{number}", overlay=lab.folder / f"many-layer-{number}") for number in range(4)
    ]
    containers = []
    try:
        for number, record in enumerate(records):
            spec = ContainerSpec(
                id=f"many-{os.getpid()}-{number}",
                root=record.mountpoint,
                arguments=("/usr/bin/sh", "-c", f"echo {number} > /own; cmp /large /large && touch /done"),
                environment={"PATH": "/usr/bin"},
                log=lab.folder / f"many-{number}.log",
                network="none",
            )
            containers.append(run_container(spec, config))
        for number, record in enumerate(records):
            done = record.mountpoint / "done"
            wait_until(done.exists, f"container {number}", 60)
            assert (record.mountpoint / "own").read_text() == f"{number}\n"
        # one server for all, and each chunk brought once
        assert len({record.server_folder for record in records}) == 1
    finally:
        for container in containers:
            kill_and_delete(container.id, runc_root=container.runc_root)
        for record in records:
            lab.unmount(record)
