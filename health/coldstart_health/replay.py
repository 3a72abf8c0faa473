"""`health quick --replay`: a collection of another host judged here, without asking this host anything."""

from __future__ import annotations

import json
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart_cli.config import Config, Scalar
from coldstart_cli.errors import DataError, IoFailure, NotFoundError
from coldstart_cli.regular import open_regular
from coldstart_health.collection import EVIDENCE, MANIFEST, REPORT, SCHEMA, STATE_FILES, VERSION
from coldstart_health.dcgm_run import DcgmOutput
from coldstart_health.evidence import Evidence
from coldstart_health.judgement import judge
from coldstart_health.kernel_checks import KernelLog
from coldstart_health.loose_evidence import KERNEL_LOG_NAMES, loose_evidence
from coldstart_health.moment import Moment
from coldstart_health.plain_json import MisfitError, from_plain
from coldstart_health.remember import Run, with_memory
from coldstart_health.verdict import HealthReport
from coldstart_host.cuda_copy import CopyResult

_LIMIT_BYTES = 64 << 20
_FILES_LIMIT = 256
File = tuple[str, int, Callable[[], bytes]]
_NAMES = {"DcgmOutput": DcgmOutput, "KernelLog": KernelLog, "CopyResult": CopyResult}


@dataclass(frozen=True)
class Replay:
    """The report made here, and what is known of the host there; `told` is the verdict it gave itself."""

    report: HealthReport
    recorded: str | None
    coldstart: str | None
    kernel: str | None
    told: str | None


def replay(config: Config, source: Path) -> Replay:
    """Judge a collection, or loose files such as a saved dmesg. Writes nothing."""
    files = _read(source)
    if EVIDENCE not in files:
        loose = loose_evidence(files)
        if loose.kernel_log is None and not loose.dcgm:
            raise DataError(f"nothing to judge in {source}", hint="coldstart health collect DIR")
        return Replay(judge(loose), None, None, None, None)
    manifest = _manifest(files, source)
    try:
        evidence = from_plain(Evidence, _json(files[EVIDENCE]), _NAMES)
        began, ended = (from_plain(Moment, manifest.get(key)) for key in ("began", "ended"))
    except (MisfitError, ValueError, RecursionError) as error:
        raise DataError(f"damaged collection: {source}: {error}") from error
    told = _told(files)
    with tempfile.TemporaryDirectory(prefix="coldstart-replay-") as folder:
        state = Path(folder)
        (state / "health").mkdir()
        for name in STATE_FILES:
            if (content := files.get(f"state/{name}")) is not None:
                (state / "health" / name).write_bytes(content)
        there = config.replaced({**_settings(manifest), "state_dir": folder}, "replay")
        report = with_memory(there, evidence, judge(evidence), Run("quick", began, record=False, ended=ended))
    return Replay(report, ended.utc, manifest.get("coldstart"), manifest.get("kernel"), told)


def _manifest(files: Mapping[str, bytes], source: Path) -> dict[str, Any]:
    try:
        manifest = _json(files[MANIFEST])
        if manifest["schema"] != SCHEMA:
            raise DataError(f"not a collection: {source}")
        if manifest["version"] > VERSION:
            raise DataError(
                f"collection is of version {manifest['version']}, newer than this coldstart: {source}",
                hint="install the coldstart that wrote it",
            )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"damaged collection: {source}: {MANIFEST}") from error
    return dict(manifest)


def _settings(manifest: Mapping[str, Any]) -> dict[str, Scalar]:
    """The other host's rules for its quarantine: its verdict depends on them."""
    settings = manifest.get("settings")
    if not isinstance(settings, dict):
        return {}
    return {
        key: value
        for key, value in settings.items()
        if key.startswith("health.") and isinstance(value, str | int | float | bool)
    }


def _told(files: Mapping[str, bytes]) -> str | None:
    try:
        return str(_json(files[REPORT])["verdict"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _json(content: bytes) -> Any:
    return json.loads(content.decode("utf-8"))


def _read(source: Path) -> dict[str, bytes]:
    """The files of a folder or an archive by their name in it; nothing else than plain files is looked at."""
    files: dict[str, bytes] = {}
    try:
        for name, size, read in _files(source):
            if sum(map(len, files.values())) + size > _LIMIT_BYTES or len(files) >= _FILES_LIMIT:
                raise DataError(f"too large for a collection: {source}")
            files[name] = read()
    except FileNotFoundError as error:
        raise NotFoundError(f"no such collection: {source}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"neither a folder nor an archive: {source}: {error}") from error
    except OSError as error:
        raise IoFailure(f"cannot read {source}: {error.strerror or error}") from error
    return files


def _files(source: Path) -> Iterator[File]:
    if source.is_dir():
        return _folder(source)
    with open(open_regular(source), "rb") as stream:
        begin = stream.read(512)
    # a saved dmesg is text; compressed files and archives are not
    if b"\0" in begin or begin.startswith(b"\x1f\x8b"):
        return _archive(source)
    return iter([(KERNEL_LOG_NAMES[0], source.stat().st_size, source.read_bytes)])


def _folder(source: Path) -> Iterator[File]:
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(source)), path.stat().st_size, path.read_bytes


def _archive(source: Path) -> Iterator[File]:
    with tarfile.open(source) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                # all lies in one folder, named like the archive
                yield member.name.partition("/")[2] or member.name, member.size, stream.read
