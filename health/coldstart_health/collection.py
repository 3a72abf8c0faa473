"""`health collect`: what the judgement reads, redacted, in a folder or an archive to attach to a ticket."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coldstart_cli.config import Config
from coldstart_cli.errors import CannotCreateError, ColdstartError, IoFailure, PermissionNeededError
from coldstart_cli.files import atomic_write, fsync_directory
from coldstart_cli.regular import open_regular, read_regular, require_output
from coldstart_cli.version import __version__
from coldstart_health.checks import gather
from coldstart_health.document import report_document
from coldstart_health.judgement import judge
from coldstart_health.kernel_events import decode
from coldstart_health.kernel_log import read_kernel_log
from coldstart_health.moment import Moment, now
from coldstart_health.plain_json import to_plain
from coldstart_health.redaction import Redaction
from coldstart_health.remember import Run, with_memory
from coldstart_health.verdict import Verdict

SCHEMA = "coldstart.health.collection"
VERSION = 1
MANIFEST, EVIDENCE, REPORT = "manifest.json", "evidence.json", "report.json"
# the state that a verdict depends on besides the evidence
STATE_FILES = ("quarantine.json", "baseline.json")
_DCGM_FILES = "dcgmi-diag*.out"
_KERNEL_LOG_LINES = 5000
_KERNEL_LOG_SECONDS = 4.0
_FILE_LIMIT_BYTES = 4 << 20
_ARCHIVES: dict[str, Literal["w", "w:gz"]] = {".tar": "w", ".gz": "w:gz", ".tgz": "w:gz"}


@dataclass(frozen=True)
class Collection:
    """Files by name, and the verdict that the host came to while they were collected."""

    files: Mapping[str, bytes]
    verdict: Verdict


def collect(
    config: Config, *, active: bool = False, active_deadline_seconds: float = 90.0, keep_serials: bool = False
) -> Collection:
    """Every file of a collection by its name. Looks at the host like `health quick`, and records nothing."""
    began = now()
    evidence = gather(config, active=active, active_deadline_seconds=active_deadline_seconds, record=False)
    ended = now()
    report = with_memory(config, evidence, judge(evidence), Run("quick", began, record=False, ended=ended))
    redaction = Redaction(keep_serials=keep_serials)
    # the evidence first: it knows the serial numbers that the other texts may hold
    files = {EVIDENCE: _json(redaction.tree(to_plain(evidence)))}
    files[REPORT] = _json(redaction.tree(report_document(report)))
    files |= _state(config.state_folder / "health", redaction)
    files |= _texts(config, redaction)
    files[MANIFEST] = _json(redaction.tree(_manifest(config, began, ended, keep_serials=keep_serials)))
    return Collection(dict(sorted(files.items())), report.overall)


def is_archive(target: Path) -> bool:
    return target.suffix in _ARCHIVES


def write_collection(files: Mapping[str, bytes], target: Path, *, archive: bool) -> None:
    """Put it down whole or not at all, in a new folder or as an archive; readable by its owner alone."""
    if os.path.lexists(target):
        raise CannotCreateError(f"there is something already: {target}", hint="choose another name")
    require_output(target)
    if not archive:
        _write_folder(files, target)
        return
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=_ARCHIVES[target.suffix]) as stream:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{target.name.partition('.')[0]}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
            stream.addfile(member, io.BytesIO(data))
    atomic_write(target, content.getvalue(), mode=0o600)


def _write_folder(files: Mapping[str, bytes], target: Path) -> None:
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name[:32]}.", dir=target.absolute().parent))
    except PermissionError as error:
        raise PermissionNeededError(
            f"cannot write {target}: {error.strerror}", hint="choose another folder"
        ) from error
    except OSError as error:
        raise CannotCreateError(f"cannot write {target}: {error.strerror}") from error
    try:
        for name, content in files.items():
            path = scratch / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(content)
        scratch.rename(target)
    except OSError as error:
        raise IoFailure(f"cannot write {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    fsync_directory(target.absolute().parent)


def _manifest(config: Config, began: Moment, ended: Moment, *, keep_serials: bool) -> dict[str, Any]:
    system = os.uname()
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "coldstart": __version__,
        "began": to_plain(began),
        "ended": to_plain(ended),
        "kernel": f"{system.sysname} {system.release} {system.machine}",
        "distribution": _distribution(),
        "python": platform.python_version(),
        "serials": "kept" if keep_serials else "replaced",
        "settings": {
            setting.key: value.value
            for setting, value in config.items()
            if setting.key.startswith("health.") and setting.kind is not str
        },
    }


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _state(folder: Path, redaction: Redaction) -> dict[str, bytes]:
    """Quarantine and baseline. One that is damaged stays one, without the bytes that nobody can vouch for."""
    found = {}
    for name in STATE_FILES:
        try:
            content = read_regular(folder / name, _FILE_LIMIT_BYTES)
        except FileNotFoundError:
            continue
        except OSError:
            content = b""
        try:
            document = redaction.tree(json.loads(content[:_FILE_LIMIT_BYTES]))
            found[f"state/{name}"] = _json(_anonymous(document))
        except (ValueError, RecursionError):
            found[f"state/{name}"] = b"damaged on the host\n"
    return found


def _anonymous(value: Any) -> Any:
    """Without who cleared what, and what they wrote about it."""
    if isinstance(value, dict):
        hidden = {"by": "<person>", "why": "<reason>"}
        return {
            key: hidden[key] if key in hidden and item is not None else _anonymous(item)
            for key, item in value.items()
        }
    return [_anonymous(item) for item in value] if isinstance(value, list) else value


def _texts(config: Config, redaction: Redaction) -> dict[str, bytes]:
    """For a person to read: the kernel log's lines, and what the last diagnosis printed."""
    found = {}
    configured = config.text("health.kernel_log")
    try:
        if configured != "none":
            reading = read_kernel_log(
                configured,
                None,
                journalctl=config.text("programs.journalctl"),
                deadline_seconds=_KERNEL_LOG_SECONDS,
            )
            lines = (
                f"[{record.usec / 1e6:13.6f}] {record.text}"
                for record in reading.records
                if record.text.startswith(("NVRM:", "nvidia")) or any(decode([record]))
            )
            text = "\n".join(list(lines)[-_KERNEL_LOG_LINES:])
            found["kernel-log.txt"] = f"{redaction.text(text)}\n".encode("utf-8", "replace")
    except ColdstartError as error:
        found["kernel-log.txt"] = f"# {redaction.text(error.message)}\n".encode("utf-8", "replace")
    for path in sorted((config.state_folder / "health").glob(_DCGM_FILES)):
        try:
            with open(open_regular(path), "rb") as stream:
                text = stream.read(_FILE_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        found[path.name] = redaction.text(text).encode("utf-8", "replace")
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
