"""Options that say which inference engine a server is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from coldstart_snapshot.engines.settings import EngineSettings

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="KIND",
        help="Put this engine to sleep while it is captured, its KV cache left out: vllm, sglang, or "
        "sentinel for workers that keep to the files of Dynamo Snapshot.",
    ),
]
EngineUrlOption = Annotated[
    str | None,
    typer.Option("--engine-url", metavar="URL", help="Where it answers; default: where --ready-url does."),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="HOW",
        help="With --engine: keep them on the GPU, park (default) them in host memory, or drop and reload "
        "them.",
    ),
]
EngineTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--engine-timeout", metavar="SECONDS", help="How long each of its steps may take; default: 300."
    ),
]


def engine_settings(
    kind: str | None,
    url: str | None,
    weights: str | None,
    timeout_seconds: float | None,
    *,
    ready_url: str | None,
) -> EngineSettings | None:
    """What the options say; None without `--engine`, which the others need."""
    from coldstart_cli.errors import UsageError

    given = {"--engine-url": url, "--weights": weights, "--engine-timeout": timeout_seconds}
    if kind is None:
        if alone := [option for option, value in given.items() if value is not None]:
            raise UsageError(f"{alone[0]} says nothing without --engine", hint="--engine KIND")
        return None
    from coldstart_snapshot.engines.settings import EngineSettings

    table = {"kind": kind, "weights": weights, "timeout_seconds": timeout_seconds}
    if kind in {"vllm", "sglang"} and (address := url or ready_url) is not None:
        parts = urlsplit(address)
        table["url"] = f"{parts.scheme}://{parts.netloc}"
    try:
        return EngineSettings.from_document({key: value for key, value in table.items() if value is not None})
    except ValueError as error:
        hint = error.__cause__.hint if isinstance(error.__cause__, UsageError) else None
        if kind == "command":
            hint = "an engine of kind `command` needs a specification"
        raise UsageError(str(error), hint=hint) from error
