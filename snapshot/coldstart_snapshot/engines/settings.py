"""Which inference engine a server is, and how it is put to sleep for a capture and woken after a restore."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coldstart_cli.errors import UsageError
from coldstart_snapshot.answers.ready import parse_url

Kind = Literal["vllm", "sglang", "command", "sentinel"]
Weights = Literal["keep", "park", "drop"]
KINDS: tuple[Kind, ...] = ("vllm", "sglang", "command", "sentinel")
WEIGHTS: tuple[Weights, ...] = ("keep", "park", "drop")
DEFAULT_TIMEOUT_SECONDS = 300.0
_OWNERS: dict[str, Kind] = {
    "quiesce": "command",
    "resume": "command",
    "control_folder": "sentinel",
    "framework": "sentinel",
    "model_path": "sglang",
}
_FRAMEWORK = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
CONTROL_FOLDER = "/snapshot-control"


@dataclass(frozen=True)
class EngineSettings:
    """How one server is quiesced and woken.

    `weights`: kept on the device (its driver moves them), parked in host memory by the engine, or dropped and
    loaded anew after the restore. The KV cache is dropped in each case. `url` is the engine's address, for
    `vllm` and `sglang`; `quiesce` and `resume` are commands, for `command`; `control_folder` is inside the
    server's root, for `sentinel`, where None asks the server's own environment.
    """

    kind: Kind
    weights: Weights = "park"
    url: str | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    quiesce: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    control_folder: str | None = None
    model_path: str | None = None
    """What SGLang loads again where its weights were dropped; None: what it was started with."""
    framework: str | None = None
    """Whose `FRAMEWORK-restore-ready` a restored `sentinel` worker writes; None: nobody waits for one."""

    def __post_init__(self) -> None:
        check(self)

    def document(self) -> dict[str, Any]:
        """The settings as a table of the manifest; what is unset is left out."""
        table = {key: value for key, value in asdict(self).items() if value not in (None, (), {})}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}

    @classmethod
    def from_document(cls, table: Mapping[str, Any]) -> EngineSettings:
        """What `document` wrote; `ValueError` or `TypeError` where it is none."""
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(table) - known):
            raise ValueError(f"engine has unknown keys: {', '.join(unknown)}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        try:
            return cls(**values)
        except UsageError as error:
            raise ValueError(error.message) from error


def check(settings: EngineSettings) -> None:
    """Refuse what cannot work, by name."""
    if settings.kind not in KINDS:
        raise UsageError(f"no such engine: {settings.kind}", hint=f"one of {', '.join(KINDS)}")
    if settings.weights not in WEIGHTS:
        raise UsageError(f"weights cannot be {settings.weights!r}", hint=f"one of {', '.join(WEIGHTS)}")
    if not math.isfinite(settings.timeout_seconds) or settings.timeout_seconds <= 0:
        raise UsageError(f"engine timeout is not a positive number of seconds: {settings.timeout_seconds:g}")
    _check_own_keys(settings)
    if settings.kind in {"vllm", "sglang"}:
        if settings.url is None:
            raise UsageError(f"engine {settings.kind} needs an address", hint="engine url, or a ready URL")
        parse_url(settings.url)
    if settings.kind == "command" and not settings.quiesce:
        raise UsageError("engine command has nothing to run", hint='quiesce = ["PROGRAM", "ARGUMENT"]')
    if settings.control_folder is not None and not _is_plain(settings.control_folder):
        hint = f"for example {CONTROL_FOLDER}"
        raise UsageError(f"control folder cannot be used: {settings.control_folder}", hint=hint)
    if settings.framework is not None and not _FRAMEWORK.fullmatch(settings.framework):
        raise UsageError(f"framework cannot be used: {settings.framework}", hint="for example vllm")


def _check_own_keys(settings: EngineSettings) -> None:
    """Each kind has keys that say nothing to another."""
    for key, kind in _OWNERS.items():
        if getattr(settings, key) and settings.kind != kind:
            raise UsageError(f"engine {settings.kind} takes no {key}", hint=f'it is for kind = "{kind}"')


def _is_plain(folder: str) -> bool:
    return folder.startswith("/") and ".." not in folder.split("/") and "\0" not in folder
