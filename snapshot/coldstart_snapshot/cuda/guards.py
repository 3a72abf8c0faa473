"""What speaks against moving GPU state: all of it found and said before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coldstart_cli.config import Config
from coldstart_cli.errors import ConfigError, UnavailableError

# every guard by name; `snapshot.gpu_allow` turns those that it names into notes
GUARDS = (
    "communication",
    "driver",
    "gpu-memory",
    "host-memory",
    "managed-memory",
    "mig",
    "model",
    "mps",
    "several-gpus",
)


@dataclass(frozen=True)
class Problem:
    """One reason why GPU state should be left where it is."""

    guard: str
    text: str
    hint: str


class GpuGuardError(UnavailableError):
    """GPU state that cannot be moved here; `problems` are all reasons."""

    def __init__(self, what: str, problems: Sequence[Problem]) -> None:
        reasons = "; ".join(problem.text for problem in problems)
        hints = "; ".join(dict.fromkeys(problem.hint for problem in problems))
        super().__init__(f"{what}: {reasons}", hint=hints)
        self.problems = tuple(problems)


def allowed_guards(config: Config) -> frozenset[str]:
    """The guards that the configuration lets warn only."""
    allowed = config.texts("snapshot.gpu_allow")
    for name in allowed:
        if name not in GUARDS:
            raise ConfigError(
                f"unknown guard in snapshot.gpu_allow: {name}", hint=f"there is {', '.join(GUARDS)}"
            )
    return frozenset(allowed)


def refuse(what: str, problems: Iterable[Problem], config: Config) -> tuple[str, ...]:
    """Raise when a guard says no; the texts of those that are allowed are returned as notes."""
    allowed = allowed_guards(config)
    found = tuple(problems)
    if refused := [problem for problem in found if problem.guard not in allowed]:
        raise GpuGuardError(what, refused)
    return tuple(f"{problem.text} (allowed: {problem.guard})" for problem in found)
