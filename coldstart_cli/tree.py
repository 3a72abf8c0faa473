"""The command tree as data: names, one-line meanings, and where each command lives. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    commands: tuple[CommandEntry | GroupEntry, ...]


def _commands(
    group: str, *entries: tuple[str, str], groups: tuple[GroupEntry, ...] = ()
) -> tuple[CommandEntry | GroupEntry, ...]:
    commands = (
        CommandEntry(name, meaning, f"coldstart_commands.{group}_{name.replace('-', '_')}")
        for name, meaning in entries
    )
    return (*commands, *groups)


def walk_commands(
    entries: Iterable[CommandEntry | GroupEntry], words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CommandEntry]]:
    """Every command below `entries`, with the words that name it."""
    for entry in entries:
        here = (*words, entry.name)
        if isinstance(entry, GroupEntry):
            yield from walk_commands(entry.commands, here)
        else:
            yield here, entry


def walk_groups(
    entries: Iterable[CommandEntry | GroupEntry], words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], GroupEntry]]:
    """Every group below `entries`, those around it first."""
    for entry in entries:
        if isinstance(entry, GroupEntry):
            here = (*words, entry.name)
            yield here, entry
            yield from walk_groups(entry.commands, here)


_IMAGE_TRACE = GroupEntry(
    "trace",
    "what starts read of an image, recorded by mounts and replayed by the next",
    _commands(
        "image_trace",
        ("list", "the traces of this host and of the store"),
        ("record", "run a program on a mount of its own, and keep what it read"),
        ("show", "what a start reads: its timeline, its biggest files, its totals"),
        ("merge", "several traces as one, also for another build of the image"),
        ("check", "whether a trace fits an image, for CI"),
        ("push", "publish a trace beside its image in the store"),
        ("remove", "forget a trace of this host or of the store"),
    ),
)
TREE: tuple[GroupEntry | CommandEntry, ...] = (
    GroupEntry(
        "pool",
        "buffer of healthy GPUs, sized from price and observed supply",
        _commands(
            "pool",
            ("plan", "buffer sizes per offer from price, supply and demand tables"),
            ("need", "idle GPUs that recorded scale-ups ask for, and what the next hit costs"),
            ("simulate", "replay a demand trace against a plan: hits, waits, cost, beside baselines"),
            ("check", "what the tables hold, and every row that would be refused or questioned"),
            ("advise", "late answers: batching, model or capacity problem; the warm floor"),
            ("status", "the GPUs of this host: free, held by whom, kept out by health; refills"),
            ("take", "take free, healthy GPUs of this host for a holder"),
            ("release", "give back the GPUs of a holder"),
            ("refill", "order machines for those that were taken"),
        ),
    ),
    GroupEntry(
        "image",
        "lazy, content-addressed images",
        _commands(
            "image",
            ("index", "turn an image or a root folder into an index and packs in a store"),
            ("mount", "serve an image lazily at a mount point"),
            ("unmount", "end a mount and clean up after it"),
            ("serve", "fork the servers of mounts from a process that waits for them"),
            ("ls", "the images in a store, or the files in one"),
            ("show", "what an image is made of, what it shares, what runs in it"),
            ("diff", "what differs between two images, and how much must be fetched"),
            ("gc", "remove from a store what no image needs any more"),
            ("copy", "bring an image into another store, sending what is missing there"),
            ("pull", "fetch an image whole into the local cache, for use without its store"),
            ("verify", "look through the local cache and the store for damage"),
            ("status", "live mounts of this host"),
            groups=(_IMAGE_TRACE,),
        ),
    ),
    GroupEntry(
        "snap",
        "snapshots of ready servers, CPU and GPU",
        _commands(
            "snap",
            ("create", "capture a ready server as a variant of a snapshot"),
            ("restore", "bring the variant back that fits this host"),
            ("check", "whether a running server can be captured, and all that forbids it"),
            ("explain", "what a criu log means: one sentence, and what to do"),
            ("list", "snapshots and their variants"),
            ("show", "one snapshot's manifest"),
            ("verify", "check sizes and digests of a snapshot's files"),
            ("copy", "bring a snapshot into a store, or from one to this host"),
            ("gc", "remove old versions from a store, and what interruptions left on this host"),
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
