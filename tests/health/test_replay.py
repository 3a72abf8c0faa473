"""What was collected on one host gets the same verdict on any other, and tells nothing that it must not."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from coldstart_cli import config as configuration
from coldstart_cli.errors import CannotCreateError, ColdstartError, DataError, NotFoundError
from coldstart_health import checks
from coldstart_health.audit import Person
from coldstart_health.clearing import clear_gpu
from coldstart_health.collection import Collection, collect, write_collection
from coldstart_health.replay import Replay, replay
from coldstart_health.verdict import Verdict
from conftest import shared_data
from stand_ins.gpu_driver import Dcgmi
from stand_ins.gpu_host import GpuHost
from stand_ins.kernel_log import KernelLogFile

SERIAL = "1650000000001"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_log: KernelLogFile) -> GpuHost:
    return GpuHost(tmp_path, monkeypatch)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another host: nothing of the first one is there."""

    def use() -> None:
        for name in ("state", "cache", "run"):
            monkeypatch.setenv(f"COLDSTART_{name.upper()}_DIR", str(tmp_path / "elsewhere" / name))
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
        monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", "/dev/null")
        for name in ("read_gpus", "pci_gpus", "read_pressure", "read_clock", "read_fabric"):
            monkeypatch.setattr(checks, name, lambda *_, **__: pytest.fail("asked this host"))

    use()
    return tmp_path / "elsewhere"


def taken(**settings: bool) -> Collection:
    return collect(configuration.load(), **settings)


def judged(source: Path) -> Replay:
    return replay(configuration.load(), source)


def put(files: dict[str, bytes] | Collection, folder: Path) -> Path:
    content = files.files if isinstance(files, Collection) else files
    write_collection(content, folder, archive=folder.suffix != "")
    return folder


@pytest.mark.parametrize("name", ["collection", "collection.tar", "collection.tar.gz", "collection.tgz"])
def test_a_collection_is_judged_elsewhere_as_it_was_here(
    host: GpuHost, kernel_log: KernelLogFile, tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    host.driver.control("* count 2", "0 remap_pending 1", "1 error DeviceGetSerial 4", "1 persistence 0")
    kernel_log.say(
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
    )
    here = checks.quick_check(configuration.load(), record=False)
    source = put(taken(), tmp_path / name)
    other = request.getfixturevalue("elsewhere")
    there = judged(source)
    assert there.report.overall is here.overall is Verdict.REBOOT
    assert {(f.reason, f.verdict, f.subject) for f in there.report.findings} == {
        (f.reason, f.verdict, f.subject) for f in here.findings
    }
    assert [(gpu.subject, gpu.verdict) for gpu in there.report.gpus] == [
        (gpu.subject, gpu.verdict) for gpu in here.gpus
    ]
    assert there.told == "reboot"
    assert not other.exists(), "a replay writes nothing"


def test_the_quarantine_of_the_other_host_counts_and_not_ones_own(
    host: GpuHost, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    host.driver.control("* count 2", "0 remap_pending 1")
    checks.quick_check(configuration.load())
    host.driver.control("* count 2")
    clear_gpu(
        configuration.load(),
        "0",
        why="Jane reset it by hand",
        by=Person(uid=1000, user="jane", sudo_user=None, login_uid=None, pid=1),
    )
    host.driver.control("* count 2", "1 remap_failure 1")
    checks.quick_check(configuration.load())
    host.driver.control("* count 2")
    collection = taken()
    source = put(collection, tmp_path / "collection")
    request.getfixturevalue("elsewhere")
    there = judged(source).report
    assert [(f.reason, f.verdict) for f in there.findings if f.verdict > Verdict.DEGRADED] == [
        ("quarantined", Verdict.REPLACE)
    ]
    assert b"jane" not in b"".join(collection.files.values()).lower()


def test_a_damaged_quarantine_stays_one_and_its_bytes_stay_at_home(
    host: GpuHost, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    quarantine = configuration.load().state_folder / "health" / "quarantine.json"
    quarantine.parent.mkdir(parents=True)
    quarantine.write_text("{secret")
    collection = taken()
    assert b"secret" not in collection.files["state/quarantine.json"]
    source = put(collection, tmp_path / "collection")
    request.getfixturevalue("elsewhere")
    assert "quarantine_unreadable" in {finding.reason for finding in judged(source).report.findings}


def test_collecting_records_nothing(host: GpuHost, tmp_path: Path) -> None:
    host.driver.control("* count 2", "0 remap_pending 1")
    assert taken().verdict is Verdict.RESET
    assert not configuration.load().state_folder.exists()


def test_names_addresses_and_serial_numbers_stay_at_home(
    host: GpuHost, kernel_log: KernelLogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-host-7.example.org")
    kernel_log.say(
        "NVRM: GPU at PCI:0000:1a:00: GPU-00000000-0000-0000-0000-000000000000",
        "NVRM: GPU Board Serial Number: 1650114000000",
        "NVRM: Xid (PCI:0000:1a:00): 31, pid=7, name=my, secret app, Ch 00000008",
        "NVRM: Xid (PCI:0000:1a:00): 13, pid=7, name=secretd, Graphics Exception",
        "Out of memory: Killed process 77 (secret-train) total-vm:1kB",
        "INFO: task secret-io:88 blocked for more than 120 seconds.",
        "NVRM: gpu-host-7 reached from 10.1.2.3 and fe80::1:2 by jane@example.org in /home/jane/x",
    )
    collection = taken()
    text = b"".join(collection.files.values()).decode()
    for secret in ("secret", "gpu-host-7", "10.1.2.3", "fe80", "jane", "1650114000000", SERIAL[:-1]):
        assert secret not in text, secret
    for kept in (
        "GPU-00000000-0000-0000-0000-000000000000",
        "0000:1a:00",
        "serial-1",
        "pid=7",
        "Ch 00000008",
    ):
        assert kept in text, kept


def test_serial_numbers_are_kept_when_they_are_asked_for(host: GpuHost) -> None:
    collection = taken(keep_serials=True)
    assert SERIAL.encode() in collection.files["evidence.json"]
    assert json.loads(collection.files["manifest.json"])["serials"] == "kept"


def test_dcgm_and_nvml_still_mean_the_same_gpu_when_serials_are_replaced(
    host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    result = {
        "entity_group": "GPU",
        "entity_id": 0,
        "status": "Fail",
        "warnings": [{"warning": "Row remap failure", "error_id": 80, "error_severity": 6}],
    }
    tests = [{"name": "software", "results": [result]}]
    document = {
        "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]},
        "entity_groups": [{"entity_group": "GPU", "entities": [{"entity_id": 0, "serial_num": SERIAL}]}],
        "metadata": {"version": "4.6.0"},
    }
    output = tmp_path / "diag.json"
    output.write_text(json.dumps(document))
    for name, value in Dcgmi(tmp_path).prints(output, status=226).items():
        monkeypatch.setenv(name, value)
    host.driver.control("* count 1")
    collection = taken(active=True)
    assert SERIAL.encode() not in b"".join(collection.files.values())
    source = put(collection, tmp_path / "collection")
    request.getfixturevalue("elsewhere")
    (finding,) = [f for f in judged(source).report.findings if f.reason == "row_remap_failure"]
    assert finding.subject == "GPU-00000000-0000-0000-0000-000000000000"


def test_a_check_that_failed_there_is_unknown_here_too(
    host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("COLDSTART_HEALTH_KERNEL_LOG", "/nonexistent/kmsg")
    source = put(taken(), tmp_path / "collection")
    request.getfixturevalue("elsewhere")
    assert ("kmsg_denied", Verdict.UNKNOWN) in {(f.reason, f.verdict) for f in judged(source).report.findings}


def test_a_place_that_is_taken_is_left_alone(host: GpuHost, tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    with pytest.raises(CannotCreateError, match="there is something already"):
        put(taken(), folder)
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_only_its_owner_may_read_a_collection(host: GpuHost, tmp_path: Path) -> None:
    collection = taken()
    assert put(collection, tmp_path / "folder").stat().st_mode & 0o077 == 0
    assert put(collection, tmp_path / "file.tar").stat().st_mode & 0o077 == 0


def test_a_collection_that_cannot_be_finished_leaves_nothing(host: GpuHost, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(ColdstartError):
        write_collection({"a": b"a", "a/b": b"b"}, tmp_path / "new" / "collection", archive=False)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evidence.json", b"{"),
        ("evidence.json", b"[]"),
        ("evidence.json", b'{"reading": {"count": "eight"}}'),
        ("evidence.json", b'{"duration_seconds": NaN}'),
        ("evidence.json", b'{"limits": ' + b"[" * 100_000),
        ("evidence.json", b'{"checks": [{"name": "nvml"}]}'),
        ("evidence.json", b"\xff"),
        ("manifest.json", b"{}"),
        ("manifest.json", b'{"schema": "other", "version": 1}'),
        ("manifest.json", b'{"schema": "coldstart.health.collection", "version": "x"}'),
        ("manifest.json", b'{"schema": "coldstart.health.collection", "version": 1, "began": 3}'),
    ],
)
def test_a_damaged_collection_is_refused_by_name(
    host: GpuHost, tmp_path: Path, name: str, content: bytes
) -> None:
    folder = put(taken(), tmp_path / "collection")
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=str(folder)):
        judged(folder)


def test_a_newer_collection_is_refused_with_the_remedy(host: GpuHost, tmp_path: Path) -> None:
    files = dict(taken().files)
    files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | {"version": 2}).encode()
    with pytest.raises(DataError, match="newer than this coldstart"):
        judged(put(files, tmp_path / "collection"))


def test_keys_of_a_later_release_are_passed_over(host: GpuHost, tmp_path: Path) -> None:
    files = dict(taken().files)
    files["evidence.json"] = json.dumps(json.loads(files["evidence.json"]) | {"new": 1}).encode()
    assert judged(put(files, tmp_path / "collection")).report.overall is Verdict.OK


def test_an_archive_is_only_read_and_its_links_and_paths_lead_nowhere(host: GpuHost, tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as stream:
        link = tarfile.TarInfo("evil/evidence.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        stream.addfile(link)
        outside = tarfile.TarInfo("../../outside")
        outside.size = 1
        stream.addfile(outside, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="nothing to judge"):
        judged(archive)
    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00rubbish", b"\0" * 2000, b"\x1f\x8b"])
def test_an_archive_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataError):
        judged(path)


def test_a_collection_that_is_not_there_is_said() -> None:
    with pytest.raises(NotFoundError, match="no such collection"):
        judged(Path("/nonexistent/collection"))


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_saved_dmesg_is_judged_by_itself(tmp_path: Path, *, as_folder: bool) -> None:
    saved = shared_data("health/kernel-log/dmesg-T-xid-119-gsp-timeout.log")
    source = tmp_path / "dmesg.txt"
    source.write_bytes(saved.read_bytes())
    found = judged(tmp_path if as_folder else source)
    assert {(f.reason, f.verdict, f.subject) for f in found.report.findings} == {
        ("xid_119", Verdict.RESET, "GPU-509665ad-b600-ac93-3616-d754b23d636d"),
        ("nvml_not_checked", Verdict.UNKNOWN, "host"),
    }
    assert found.recorded is None


def test_a_saved_diagnosis_is_judged_by_itself(tmp_path: Path) -> None:
    saved = shared_data("health/dcgmi-handwritten/v4.1-isolate-one-of-two.json")
    (tmp_path / "dcgmi.json").write_bytes(saved.read_bytes())
    assert judged(tmp_path).report.overall >= Verdict.DRAIN


def test_a_saved_log_without_events_is_no_clean_host(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text("[    0.000000] Linux version 6.12.0\n")
    assert judged(tmp_path).report.overall is Verdict.UNKNOWN


def test_an_empty_folder_is_nothing_to_judge(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to judge"):
        judged(tmp_path)
