"""Nobody but root may change a snapshot, and an altered one gets a container no further than a sound one."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import DataError, PermissionNeededError
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.containers.bundle import read_bundle
from coldstart_snapshot.containers.privileges import privileges_of
from coldstart_snapshot.containers.runc import Runc
from coldstart_snapshot.containers.upper import unpack_upper
from coldstart_snapshot.kept.manifest import read_manifest, write_manifest
from coldstart_snapshot.kept.privacy import require_private
from coldstart_snapshot.kept.verify import digest_files, verify_files
from coldstart_snapshot.restoring.restore import plan_restore, restore_container
from snapshot.made import make_variant
from snapshot.servers import Lab, free_port, laboratory, require_root, url


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    """A made-up variant, laid out as a captured one."""
    require_root()
    state_folder = tmp_path / "state"
    folder, _ = make_variant(state_folder, "web")
    for path in (state_folder, state_folder / "snapshots", folder.parent, folder):
        path.chmod(0o700)
    return folder


def test_a_snapshot_of_root_alone_is_private(variant: Path, tmp_path: Path) -> None:
    assert require_private(variant, tmp_path / "state") == ()


def test_a_readable_snapshot_is_warned_of(variant: Path, tmp_path: Path) -> None:
    variant.chmod(0o755)
    (warning,) = require_private(variant, tmp_path / "state")
    assert warning == f"other users may read the snapshot's memory: chmod 700 {variant}"


@pytest.mark.parametrize("level", range(4))
def test_a_folder_that_others_may_write_to_is_refused_at_every_level(
    variant: Path, tmp_path: Path, level: int
) -> None:
    path = [variant, *variant.parents][level]
    path.chmod(0o770)
    with pytest.raises(PermissionNeededError, match=f"others may write to {path}: mode 0770"):
        require_private(variant, tmp_path / "state")


@pytest.mark.parametrize("level", range(5))
def test_a_folder_of_another_user_is_refused_at_every_level(
    variant: Path, tmp_path: Path, level: int
) -> None:
    path = [variant, *variant.parents][level]
    os.chown(path, 65534, 65534)
    try:
        with pytest.raises(PermissionNeededError, match=f"{path} belongs to user 65534"):
            require_private(variant, tmp_path / "state")
    finally:
        os.chown(path, 0, 0)


@pytest.mark.parametrize("level", range(3))
def test_a_link_in_the_place_of_a_snapshots_folder_is_refused(
    variant: Path, tmp_path: Path, level: int
) -> None:
    path = [variant, *variant.parents][level]
    moved = path.with_name(f"{path.name}-moved")
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(PermissionNeededError, match="is a link"):
        require_private(variant, tmp_path / "state")


def test_links_and_sticky_folders_above_the_state_folder_are_fine(variant: Path, tmp_path: Path) -> None:
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (tmp_path / "state").rename(sticky / "state")
    (tmp_path / "state").symlink_to(sticky / "state")
    assert require_private(variant, tmp_path / "state") == ()


def _captured(lab: Lab) -> Path:
    port = free_port()
    container, overlay, log = lab.start("source", port)
    created = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    lab.erase(container, overlay, log)
    return created.folder


def test_all_that_a_capture_writes_is_for_root_alone_whatever_the_umask(lab: Lab) -> None:
    # the folder that the configuration names is the operator's to make
    lab.config.state_folder.parent.mkdir(mode=0o700, exist_ok=True)
    before = os.umask(0)
    try:
        folder = _captured(lab)
    finally:
        os.umask(before)
    for parent, folders, files in os.walk(folder.parent):
        for name in folders:
            assert (Path(parent) / name).stat().st_mode & 0o777 == 0o700, name
        for name in files:
            assert (Path(parent) / name).stat().st_mode & 0o777 == 0o600, name
    for path in (folder.parent, folder.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700


def test_secrets_of_a_server_are_named_and_are_in_no_manifest(lab: Lab) -> None:
    port = free_port()
    overlay = lab.overlay("source").mount()
    (overlay.root / "srv").mkdir(exist_ok=True)
    spec = lab.spec("source", overlay, port)
    spec = replace(
        spec,
        arguments=(*spec.arguments, "--api-key", "sk-very-secret"),
        environment={**spec.environment, "HF_TOKEN": "hf_very_secret"},
    )
    container = lab.run(spec)
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port)), lab.config
    )
    assert captured.manifest.secrets == ("--api-key", "HF_TOKEN")
    assert captured.warnings == ("the snapshot's memory holds these secrets: --api-key, HF_TOKEN",)
    text = (captured.folder / "manifest.toml").read_text()
    assert "very" not in text
    assert "--api-key [redacted]" in text


def _alter_bundle(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the bundle as somebody would who also knows how to write a manifest's digests."""
    configuration = read_bundle(folder / "bundle")
    change(configuration)
    (folder / "bundle" / "config.json").write_text(json.dumps(configuration))
    write_manifest(folder, replace(read_manifest(folder), files=digest_files(folder)))


def _mounted(configuration: dict[str, Any], **mount: Any) -> None:
    configuration["mounts"].append({"destination": "/mnt", **mount})


ESCAPES: dict[str, Callable[[dict[str, Any]], object]] = {
    "capability CAP_SYS_ADMIN": lambda c: c["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN"),
    "mount of /etc at /mnt, writable": lambda c: _mounted(c, type="bind", source="/etc", options=["rbind"]),
    "mount of / at /mnt": lambda c: _mounted(c, type="none", source="/", options=["bind", "ro"]),
    "mount of ext4 /dev/vda at /mnt": lambda c: _mounted(c, type="ext4", source="/dev/vda"),
    "mount of overlay overlay at /mnt: lowerdir=/": lambda c: _mounted(
        c, type="overlay", source="overlay", options=["lowerdir=/"]
    ),
    "pid namespace of the host": lambda c: c["linux"]["namespaces"].remove({"type": "pid"}),
    "user namespace /proc/1/ns/user": lambda c: c["linux"]["namespaces"].append(
        {"type": "user", "path": "/proc/1/ns/user"}
    ),
    "devices b 8:0 rwm": lambda c: c["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "b", "major": 8, "minor": 0, "access": "rwm"}
    ),
    "device /dev/sda": lambda c: c["linux"].update(devices=[{"path": "/dev/sda", "type": "b"}]),
    "every system call": lambda c: c["linux"].update(seccomp={"defaultAction": "SCMP_ACT_ALLOW"}),
    "new privileges by setuid programs": lambda c: c["process"].update(noNewPrivileges=False),
    "unmasked /proc/kcore": lambda c: c["linux"]["maskedPaths"].remove("/proc/kcore"),
    "sysctl kernel.core_pattern": lambda c: c["linux"].update(sysctl={"kernel.core_pattern": "|/tmp/x"}),
}


def test_a_bundle_that_was_altered_to_allow_more_is_refused_by_name(lab: Lab) -> None:
    folder = _captured(lab)
    plan_restore("web", lab.config)
    sound = (folder / "bundle" / "config.json").read_bytes()
    known = set(privileges_of(json.loads(sound)))
    for privilege, change in ESCAPES.items():
        if privilege in known:  # a host without a seccomp profile
            continue
        _alter_bundle(folder, change)
        with pytest.raises(DataError) as refusal:
            plan_restore("web", lab.config)
        assert f"bundle of the snapshot allows what the manifest does not: {privilege}" in str(refusal.value)
        (folder / "bundle" / "config.json").write_bytes(sound)
    write_manifest(folder, replace(read_manifest(folder), files=digest_files(folder)))
    plan_restore("web", lab.config)


def test_hooks_and_the_root_of_an_altered_bundle_are_not_used(lab: Lab) -> None:
    folder = _captured(lab)
    mark = lab.tmp_path / "mark"

    def change(configuration: dict[str, Any]) -> None:
        hook = {"path": "/bin/touch", "args": ["touch", str(mark)]}
        configuration["hooks"] = {kind: [hook] for kind in ("prestart", "createRuntime", "poststop")}
        configuration["root"]["path"] = "/"

    _alter_bundle(folder, change)
    plan = plan_restore("web", lab.config)
    target = lab.overlay("target")
    unpack_upper(plan.upper_archive, target.upper)
    root = target.mount().root
    restored = restore_container(
        plan, lab.config, root=root, container_id=lab.id("target"), log=lab.tmp_path / "log"
    )
    state = Runc.find(None, lab.runc_root).state(restored.id)
    assert state is not None
    assert state.root == root
    assert not mark.exists()


def test_images_that_give_more_capabilities_than_the_bundle_start_nothing_that_stays(lab: Lab) -> None:
    """The other way round: the bundle was taken a capability that the images still have."""
    folder = _captured(lab)

    def change(configuration: dict[str, Any]) -> None:
        for names in configuration["process"]["capabilities"].values():
            names.remove("CAP_CHOWN")

    _alter_bundle(folder, change)
    plan = plan_restore("web", lab.config)
    target = lab.overlay("target")
    unpack_upper(plan.upper_archive, target.upper)
    container_id = lab.id("target")
    with pytest.raises(DataError, match="more than its bundle: CAP_CHOWN"):
        restore_container(
            plan, lab.config, root=target.mount().root, container_id=container_id, log=lab.tmp_path / "log"
        )
    assert lab.processes_in(container_id) == []


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "images/../../x", "images//x", ""])
def test_a_path_that_leads_out_of_the_snapshot_is_refused(variant: Path, path: str) -> None:
    manifest = variant / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('"images/inventory.img"', f'"{path}"'))
    with pytest.raises(DataError, match="unsafe path"):
        read_manifest(variant)


@pytest.mark.parametrize("name", ["images/pages-1.img", "images", "bundle"])
def test_a_link_among_the_files_is_refused(variant: Path, tmp_path: Path, name: str) -> None:
    moved = tmp_path / "moved"
    (variant / name).rename(moved)
    (variant / name).symlink_to(moved)
    with pytest.raises(DataError, match=r"not a regular file|not in the manifest"):
        verify_files(variant, read_manifest(variant))


def test_a_device_in_the_writable_layer_is_refused_unless_its_container_could_make_one(
    tmp_path: Path,
) -> None:
    require_root()
    archive = tmp_path / "upper.tar"
    with tarfile.open(archive, "w") as tar:
        whiteout, disk = tarfile.TarInfo("gone"), tarfile.TarInfo("disk")
        whiteout.type, disk.type = tarfile.CHRTYPE, tarfile.BLKTYPE
        disk.devmajor = 8
        tar.addfile(whiteout)
        tar.addfile(disk)
    with pytest.raises(DataError, match="could not have made: disk"):
        unpack_upper(archive, tmp_path / "one")
    assert not (tmp_path / "one" / "disk").exists()
    assert unpack_upper(archive, tmp_path / "two", device_nodes=True) == 2
