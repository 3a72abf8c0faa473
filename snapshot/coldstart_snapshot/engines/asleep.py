"""An engine sleeps while its server is captured, and serves again whatever becomes of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_cli.signals import undisturbed
from coldstart_snapshot.containers.network import foreign_network
from coldstart_snapshot.containers.target import ContainerTarget, Target
from coldstart_snapshot.engines.engine import (
    Engine,
    EngineError,
    EngineSilentError,
    Quiesced,
    Served,
    engine_of,
)
from coldstart_snapshot.engines.settings import EngineSettings
from coldstart_snapshot.processes.tree import looking_at

QUIESCE_PHASE = "quiesce"
RELEASE_PHASE = "engine_release"
# of a capture, from the first word to the engine until it serves again
ENGINE_PHASES = frozenset(
    {
        QUIESCE_PHASE,
        RELEASE_PHASE,
        "gpu_suspend",
        "freeze",
        "pre_dump",
        "dump",
        "upper",
        "thaw",
        "gpu_resume",
        "wake",
    }
)


def engine_in(settings: EngineSettings, target: Target, snapshot: str) -> Engine:
    """The engine of a running server."""
    return engine_of(settings, served(target, snapshot), environment_of(target.pid))


def served(target: Target, snapshot: str) -> Served:
    """The server as an engine sees it."""
    if isinstance(target, ContainerTarget):
        return Served(
            target.pid,
            snapshot,
            container_id=target.container_id,
            runc_root=target.runc.state_root,
            runc=target.runc.program,
            network=foreign_network(target.pid),
        )
    return Served(target.pid, snapshot, network=foreign_network(target.pid))


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    with looking_at(pid):
        content = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)


def _quiesced(engine: Engine, entered: Callable[[str], None], say: Callable[[str], None]) -> Quiesced:
    """Asleep; else it serves again, an interrupt included, or the error says that it may not."""
    released = False

    def releasing() -> None:
        nonlocal released
        released = True
        entered(RELEASE_PHASE)

    entered(QUIESCE_PHASE)
    try:
        return engine.quiesce(releasing)
    except BaseException as error:
        if isinstance(error, EngineError) and not isinstance(error, EngineSilentError):
            released = False  # it said no
            entered(QUIESCE_PHASE)
        with undisturbed():
            if released:
                say("the engine may fall asleep late: waiting for that, to wake it")
            try:
                sentence = engine.undo(released=released, late=released)
            except ColdstartError as problem:
                sentence = f"the engine may sleep: {problem.message}" if released else problem.message
            if isinstance(error, ColdstartError):
                error.add(sentence)
            else:
                say(sentence)
        raise


@contextmanager
def asleep(
    engine: Engine, entered: Callable[[str], None], notes: list[str], say: Callable[[str], None]
) -> Iterator[None]:
    """The engine sleeps while the block runs; `entered` hears of the steps that cannot be taken back."""
    say("putting the engine to sleep")
    quiesced = _quiesced(engine, entered, say)
    notes.append(quiesced.note)
    if quiesced.kv_cache_bytes is not None:
        notes.append(f"KV cache left out: {quiesced.kv_cache_bytes / (1 << 30):.1f} GiB")
    try:
        yield
    finally:
        entered("wake")
        notes.append(engine.resume(restored=False))
