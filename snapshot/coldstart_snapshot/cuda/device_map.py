"""Which GPU of this host takes the place of which GPU of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coldstart_cli.errors import NegativeAnswer, UsageError


@dataclass(frozen=True)
class MapDevice:
    """One GPU as a map sees it; `used`: the snapshot has memory of it."""

    uuid: str
    used: bool = True


def build_device_map(
    recorded: Sequence[MapDevice], present: Sequence[str], chosen: Sequence[str] = ()
) -> dict[str, str]:
    """UUID to UUID for every GPU of the snapshot: the driver takes a map of all of them or none.

    The chosen GPUs take the places of those that were used, in their order. Of the others each keeps its
    place where its GPU is here, and the rest take what is left, in order.
    """
    used = [device.uuid for device in recorded if device.used]
    if chosen and len(chosen) != len(used):
        raise UsageError(
            f"the snapshot uses {len(used)} GPUs, and {len(chosen)} were chosen: {' '.join(chosen)}",
            hint="give --gpu once for each",
        )
    if len(set(chosen)) != len(chosen):
        raise UsageError(f"one GPU was chosen twice: {' '.join(chosen)}")
    found: dict[str, str] = dict(zip(used, chosen, strict=False))
    free = [uuid for uuid in present if uuid not in chosen]
    # the used ones first: what is left over may be nothing
    waiting = [*used, *(device.uuid for device in recorded if not device.used)]
    for uuid in waiting:
        if uuid not in found and uuid in free:
            found[uuid] = uuid
            free.remove(uuid)
    for uuid in waiting:
        if uuid in found:
            continue
        if not free:
            raise NegativeAnswer(
                f"the snapshot was captured with {len(recorded)} GPUs in sight, and this host has"
                f" {len(present)}",
                hint="restore on a host with as many, or capture where the server sees only its own GPU",
            )
        found[uuid] = free.pop(0)
    return {device.uuid: found[device.uuid] for device in recorded}


def resolve_choice(wanted: Sequence[str], present: Sequence[str]) -> tuple[str, ...]:
    """UUIDs, beginnings of UUIDs, or indexes, as UUIDs of this host."""
    return tuple(_resolve(text, present) for text in wanted)


def _resolve(text: str, present: Sequence[str]) -> str:
    if text.isdecimal():
        if int(text) < len(present):
            return present[int(text)]
    elif len(found := [uuid for uuid in present if text and uuid.lower().startswith(text.lower())]) == 1:
        return found[0]
    raise UsageError(
        f"no such GPU on this host: {text}", hint=f"here is {', '.join(present) or 'none'} (`nvidia-smi -L`)"
    )


def is_identity(device_map: Mapping[str, str]) -> bool:
    return all(old == new for old, new in device_map.items())
