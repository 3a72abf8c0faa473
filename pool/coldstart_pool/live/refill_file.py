"""How each offer is ordered: the operator's commands, in the order of the plan where there is one."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coldstart_cli.errors import ConfigError
from coldstart_cli.regular import INPUT_BYTES, read_regular
from coldstart_pool.inputs.gpu_names import UnclearGpuError, canonical_gpu
from coldstart_pool.inputs.offers import canonical_market

_PLACE = ("provider", "region", "zone", "instance_type", "gpu", "market")
_LONGEST_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class RefillOffer:
    """One offer and the command that orders it.

    The command is given `deadline_seconds`, and after a failure tried again after `backoff_seconds`, doubled
    each time, up to `attempts` times; then the next offer has its turn. Names are those of the plan.
    """

    provider: str
    command: tuple[str, ...]
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    gpu: str = ""
    market: str = "on-demand"
    gpus_per_instance: int = 1
    deadline_seconds: float = 900.0
    attempts: int = 3
    backoff_seconds: float = 30.0

    @property
    def label(self) -> str:
        place = " ".join(filter(None, (self.provider, self.region, self.zone)))
        return f"{place}: {self.instance_type or self.gpu or 'any'} ({self.market})"


def load_refills(path: Path, *, plan: Mapping[str, Any] | None = None) -> tuple[RefillOffer, ...]:
    """The offers of a refill file; `plan`, a `coldstart.plan` document, says which come first.

    An offer that the plan does not have comes after those that it has, in the order of the file.
    """
    try:
        document = tomllib.loads(read_regular(path, INPUT_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read refill file: {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"refill file is not valid TOML: {path}: {error}") from error
    entries = document.pop("offer", [])
    if document:
        raise ConfigError(f"unknown key in refill file: {path}: {next(iter(document))}")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"refill file has no offers: {path}", hint="add a table [[offer]]")
    offers = [_offer(entry, f"{path}: offer {number}") for number, entry in enumerate(entries, 1)]
    planned = (plan or {}).get("offers", [])
    ranks = [_rank(offer, planned) for offer in offers]
    return tuple(offer for _, offer in sorted(zip(ranks, offers, strict=True), key=lambda pair: pair[0]))


def _offer(entry: Any, place: str) -> RefillOffer:
    if not isinstance(entry, dict):
        raise ConfigError(f"{place}: not a table")
    known = {field.name: field for field in fields(RefillOffer)}
    for key in entry:
        if key not in known:
            raise ConfigError(f"{place}: unknown key: {key}", hint=f"known: {', '.join(known)}")
    values: dict[str, Any] = dict(entry)
    command = values.pop("command", None)
    if not isinstance(command, list) or not command or not all(isinstance(part, str) for part in command):
        raise ConfigError(f'{place}: command must be a list of texts, as ["order-gpu", "--region", "a"]')
    if not isinstance(values.get("provider"), str) or not values["provider"].strip():
        raise ConfigError(f"{place}: provider is missing")
    for key, value in values.items():
        _check_value(key, value, place)
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{place}: command is no program that can be run: {command[0]}")
    return RefillOffer(command=tuple(command), **values)


def _check_value(key: str, value: Any, place: str) -> None:
    whole = key in {"gpus_per_instance", "attempts"}
    if key in _PLACE:
        if not isinstance(value, str):
            raise ConfigError(f"{place}: {key} must be a text: {value!r}")
        _check_name(key, value, place)
    elif isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ConfigError(f"{place}: {key} must be a number: {value!r}")
    elif not (1 if whole else 0) <= value <= _LONGEST_SECONDS:
        raise ConfigError(f"{place}: {key} is out of range: {value!r}")


def _check_name(key: str, value: str, place: str) -> None:
    """A name that tables of supply could not be matched by would make the attempts worthless."""
    if key == "market" and canonical_market(value) is None:
        raise ConfigError(f"{place}: unknown market: {value}", hint="on-demand, spot, reserved or standby")
    if key == "gpu" and value:
        try:
            canonical_gpu(value)
        except UnclearGpuError as error:
            raise ConfigError(f"{place}: {error}") from error


def _rank(offer: RefillOffer, planned: Sequence[Mapping[str, Any]]) -> int:
    for number, entry in enumerate(planned):
        if all(not getattr(offer, key) or getattr(offer, key) == entry.get(key, "") for key in _PLACE):
            return number
    return len(planned)
