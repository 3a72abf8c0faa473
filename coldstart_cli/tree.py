"""The command tree as data: names, one-line meanings, and where each command lives. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandEntry:
    """`module` holds a function `command`, imported only when the command is asked for."""

    name: str
    meaning: str
    module: str


@dataclass(frozen=True)
class GroupEntry:
    name: str
    meaning: str
    commands: tuple[CommandEntry, ...]


def _commands(group: str, *entries: tuple[str, str]) -> tuple[CommandEntry, ...]:
    return tuple(
        CommandEntry(name, meaning, f"coldstart_commands.{group}_{name.replace('-', '_')}")
        for name, meaning in entries
    )


TREE: tuple[GroupEntry | CommandEntry, ...] = (
    GroupEntry(
        "pool",
        "buffer of healthy GPUs, sized from price and observed supply",
        _commands("pool", ("plan", "buffer sizes per offer from price, supply and demand tables")),
    ),
    GroupEntry(
        "image",
        "lazy, content-addressed images",
        _commands(
            "image",
            ("index", "turn an image or a root folder into an index and packs in a store"),
            ("mount", "serve an image lazily at a mount point"),
            ("unmount", "end a mount and clean up after it"),
            ("ls", "the images in a store, or the files in one"),
            ("show", "what an image is made of, what it shares, what runs in it"),
            ("diff", "what differs between two images, and how much must be fetched"),
            ("copy", "bring an image into another store, sending what is missing there"),
            ("status", "live mounts of this host"),
        ),
    ),
    GroupEntry(
        "snap",
        "snapshots of ready servers, CPU and GPU",
        _commands(
            "snap",
            ("create", "capture a ready server as a variant of a snapshot"),
            ("restore", "bring the variant back that fits this host"),
            ("list", "snapshots and their variants"),
            ("show", "one snapshot's manifest"),
            ("verify", "check sizes and digests of a snapshot's files"),
            ("remove", "delete a snapshot or one of its variants"),
        ),
    ),
    GroupEntry(
        "health",
        "verdicts on GPUs and host",
        _commands(
            "health",
            ("quick", "verdict in seconds, for every boot and every launch"),
            ("deep", "DCGM's long diagnosis, for the weekly timer"),
            ("status", "what is in quarantine, why, and what would release it"),
            ("clear", "take a GPU out of quarantine, on record"),
            ("collect", "evidence for a ticket, redacted"),
        ),
    ),
    CommandEntry(
        "launch", "health, mount, restore or cold start, ready: the whole chain", "coldstart_commands.launch"
    ),
    CommandEntry(
        "doctor", "what this host can and cannot do, each gap with its remedy", "coldstart_commands.doctor"
    ),
)
