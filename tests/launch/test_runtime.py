from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import DataError
from coldstart_launch.runtime import (
    merge_runtime,
    numeric_user,
    snapshot_difference,
    supplementary_groups,
)
from coldstart_launch.spec import Readiness, ReplicaSpec
from coldstart_snapshot.containers.new_bundle import ContainerSpec, write_bundle
from coldstart_snapshot.cpu.caps import CapProof, capped_environment
from coldstart_snapshot.criu.program import Criu
from coldstart_snapshot.restoring.restore import RestorePlan
from snapshot.made import IMAGE as IMAGE_DIGEST
from snapshot.made import manifest_of

READY = Readiness(None, 1.0)
SPEC = ReplicaSpec("ocr", "ocr:1", (), {}, None, None, "host", (), Readiness(None, 1.0), "ocr")
IMAGE = {
    "entrypoint": ["/usr/bin/python3"],
    "command": ["server.py"],
    "environment": ["A=1", "B=x=y", "broken"],
    "working_directory": "/srv",
    "user": "app",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    etc = tmp_path / "root" / "etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/:/bin/sh\nbroken\n")
    (etc / "group").write_text("root:x:0:\nvideo:x:44:app\n")
    return tmp_path / "root"


def test_the_image_decides_where_the_specification_is_silent(root: Path) -> None:
    runtime = merge_runtime(SPEC, IMAGE, root)
    assert runtime.arguments == ("/usr/bin/python3", "server.py")
    assert (runtime.environment["A"], runtime.environment["B"]) == ("1", "x=y")
    assert "PATH" in runtime.environment
    assert (runtime.working_directory, runtime.uid, runtime.gid) == ("/srv", 1000, 1001)
    assert runtime.groups == (44,)


def test_the_specification_wins_over_the_image(root: Path) -> None:
    spec = replace(SPEC, command=("other",), environment={"A": "2"}, working_directory="/", user="7:video")
    runtime = merge_runtime(spec, IMAGE, root)
    assert runtime.arguments == ("other",)
    assert runtime.environment["A"] == "2"
    assert (runtime.working_directory, runtime.uid, runtime.gid) == ("/", 7, 44)
    assert runtime.groups == ()
    assert merge_runtime(replace(spec, groups=(5, 6)), IMAGE, root).groups == (5, 6)


def test_a_command_of_the_specification_replaces_entrypoint_and_command_alike(root: Path) -> None:
    assert merge_runtime(replace(SPEC, command=("a", "b")), IMAGE, root).arguments == ("a", "b")
    assert merge_runtime(SPEC, {"command": ["sh", "-c", "x"]}, root).arguments == ("sh", "-c", "x")
    assert merge_runtime(SPEC, {"entrypoint": ["only"]}, root).arguments == ("only",)


def test_environments_are_merged_variable_by_variable(root: Path) -> None:
    image = IMAGE | {"environment": ["PATH=/image", "A=1", "A=2", "EMPTY=", "=x"]}
    runtime = merge_runtime(replace(SPEC, environment={"B": "3"}), image, root)
    assert dict(runtime.environment) == {"PATH": "/image", "A": "2", "EMPTY": "", "B": "3"}


@pytest.mark.parametrize(
    ("image", "folder"),
    [({"working_directory": "srv/app"}, "/srv/app"), ({"working_directory": ""}, "/"), ({}, "/")],
)
def test_a_working_directory_is_always_absolute(root: Path, image: dict[str, str], folder: str) -> None:
    assert merge_runtime(SPEC, {"command": ["sh"], **image}, root).working_directory == folder


@pytest.mark.parametrize(
    "image",
    [
        {"entrypoint": "sh"},
        {"command": ["sh", 1]},
        {"command": ["sh"], "environment": {"A": "1"}},
        {"command": ["sh"], "user": 7},
        {"command": ["sh"], "working_directory": ["/"]},
        {"command": ["s\0h"]},
    ],
)
def test_a_configuration_of_wrong_types_is_refused_by_name(root: Path, image: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="configuration of image ocr:1 is damaged"):
        merge_runtime(SPEC, image, root)


def test_an_image_with_nothing_to_run_is_refused_by_name(root: Path) -> None:
    with pytest.raises(DataError, match="ocr:1 has no entrypoint"):
        merge_runtime(SPEC, {}, root)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("0", (0, 0)),
        ("1000", (1000, 1001)),
        ("1000:5", (1000, 5)),
        ("app:video", (1000, 44)),
        ("42", (42, 0)),
    ],
)
def test_users_are_looked_up_in_the_image(root: Path, user: str, expected: tuple[int, int]) -> None:
    assert numeric_user(user, root) == expected


@pytest.mark.parametrize(
    ("user", "expected"),
    [("app", (44, 60)), ("1000", (44, 60)), ("app:audio", ()), ("1000:5", ()), ("root", ()), ("42", ())],
)
def test_groups_that_list_the_user_in_the_image_are_its_own(
    root: Path, user: str, expected: tuple[int, ...]
) -> None:
    (root / "etc" / "group").write_text(
        "root:x:0:\nrender:x:60:x,app\nvideo:x:44:app\nwrong:x:y:app\nhuge:x:99999999999:app\nother:x:1:apps\n"
    )
    assert supplementary_groups(user, root) == expected


@pytest.mark.parametrize("user", ["nobody-here", "app:nogroup", "99999999999"])
def test_a_name_that_the_image_does_not_know_is_refused(root: Path, user: str) -> None:
    with pytest.raises(DataError, match=user.rsplit(":", maxsplit=1)[-1]):
        numeric_user(user, root)


def test_a_passwd_that_is_a_link_out_of_the_image_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "host-passwd").write_text("evil:x:0:0::/:/bin/sh\n")
    (root / "etc" / "passwd").unlink()
    (root / "etc" / "passwd").symlink_to(tmp_path / "host-passwd")
    with pytest.raises(DataError, match="evil"):
        numeric_user("evil", root)


def _plan(tmp_path: Path, environment: dict[str, str], caps: CapProof | None) -> RestorePlan:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    write_bundle(bundle, ContainerSpec("ocr", tmp_path, ("server",), environment, tmp_path / "log"))
    manifest = replace(manifest_of("ocr"), caps=caps)
    return RestorePlan("ocr", manifest.variant, tmp_path, manifest, Criu("/bin/criu", "4.2.1"), "", False)


def test_a_capped_snapshot_is_of_the_replica_whose_own_tunables_it_kept(tmp_path: Path) -> None:
    own = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2", "PORT": "1"}
    level = "x86-64-v3"
    plan = _plan(tmp_path, capped_environment(level, own), CapProof(level, "cpuid", 1))
    assert snapshot_difference(plan, replace(SPEC, environment=own), IMAGE_DIGEST) is None
    other = replace(SPEC, environment={**own, "GLIBC_TUNABLES": "glibc.malloc.arena_max=3"})
    assert snapshot_difference(plan, other, IMAGE_DIGEST) == "its environment has another GLIBC_TUNABLES"
    uncapped = replace(plan, manifest=replace(plan.manifest, caps=None))
    assert snapshot_difference(uncapped, replace(SPEC, environment=own), IMAGE_DIGEST) is not None
