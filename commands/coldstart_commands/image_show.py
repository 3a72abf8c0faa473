"""coldstart image show: what an image is made of, what it shares, what runs in it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import PermissionNeededError, UnavailableError, UnreachableError
from coldstart_commands import image_findings, image_texts
from coldstart_commands.image_findings import LargeBytesOption, LintOption
from coldstart_commands.shell import Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_fs.looking.configuration import RuntimeConfiguration
    from coldstart_fs.looking.opened import OpenedImage
    from coldstart_fs.looking.usage import Sharing, SizedPath, Usage

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Image name, or NAME@blake3:DIGEST.")]
TopOption = Annotated[
    int, typer.Option("--top", metavar="N", min=0, help="How many lines each list has at most.")
]


@coldstart_command("store", "cache_dir")
def command(
    shell: Shell,
    name: NameArgument,
    lint: LintOption = False,
    large_bytes: LargeBytesOption = None,
    top: TopOption = 5,
) -> None:
    """Show an image's sizes, its runtime configuration, and what it shares with others of the store."""
    from coldstart_fs.looking.configuration import parse_configuration
    from coldstart_fs.looking.opened import opened_image
    from coldstart_fs.looking.usage import measure_sharing, measure_usage

    printer, config = shell.printer, shell.config
    with opened_image(name, store_url=config.store, cache=config.cache_folder, tell=printer.warning) as image:
        configuration = parse_configuration(image.index.configuration, image.name)
        usage = measure_usage(image.index, image.locator, listed=top)
        sharing, unknown = None, None
        try:
            sharing = measure_sharing(image.store, image.name, image.digest, image.locator, image.cache)
        except (UnavailableError, UnreachableError, PermissionNeededError) as error:
            unknown = error.message
        report = image_findings.lint(image, large_bytes) if lint else None
        for problem in sharing.problems if sharing else ():
            printer.warning(problem)
        _answer_lines(shell, [*_identity(image, configuration), *_bytes(usage)])
        _answer_lines(shell, _shared(sharing, unknown, top))
        _answer_lines(shell, _largest("largest files", usage.largest_files))
        _answer_lines(shell, _largest("largest folders", usage.largest_directories))
        if report is not None:
            image_findings.answer(shell, report, listed=top)
        if printer.json_output:
            document = _document(image, usage) | _sharing_document(sharing, unknown)
            printer.document(
                "image.show", 1, document | (image_findings.documents(report) if report is not None else {})
            )


def _answer_lines(shell: Shell, rows: Iterable[tuple[str, str]]) -> None:
    for label, value in rows:
        shell.printer.answer(f"{label:<16}{value}".rstrip())


def _identity(image: OpenedImage, configuration: RuntimeConfiguration) -> Iterable[tuple[str, str]]:
    yield "image", image.resolved.pinned
    if image.created:
        yield "created", image.created
    if configuration.platform:
        yield "platform", configuration.platform
    if configuration.entrypoint:
        yield "entrypoint", shlex.join(configuration.entrypoint)
    if configuration.command:
        yield "command", shlex.join(configuration.command)
    for number, variable in enumerate(configuration.environment):
        yield "environment" if number == 0 else "", variable
    if configuration.user:
        yield "user", configuration.user
    if configuration.working_directory:
        yield "working folder", configuration.working_directory


def _bytes(usage: Usage) -> Iterable[tuple[str, str]]:
    size = image_texts.size
    kinds = ", ".join(_kind(kind, number) for kind, number in usage.entries.items())
    links = f", {image_texts.count(usage.further_links, 'further hard link')}" if usage.further_links else ""
    yield "entries", f"{sum(usage.entries.values()):,}: {kinds}{links}"
    yield "content", size(usage.content_bytes)
    yield "  unique", size(usage.unique_bytes)
    yield "  repeated", size(usage.repeated_bytes)
    yield "  zeros", size(usage.zero_bytes)
    chunks = ", ".join(f"{number:,} {encoding}" for encoding, number in usage.chunks.items())
    packs = image_texts.count(usage.packs, "pack")
    yield "stored", f"{size(usage.stored_bytes)} in {packs}" + (f"; chunks: {chunks}" if chunks else "")
    yield "index", f"{size(usage.index_bytes)}, locator {size(usage.locator_bytes)}"


def _kind(plural: str, number: int) -> str:
    plural = plural.replace("_", " ")
    singular = "directory" if plural == "directories" else plural.removesuffix("s")
    return image_texts.count(number, singular, plural)


def _shared(sharing: Sharing | None, unknown: str | None, top: int) -> Iterable[tuple[str, str]]:
    if sharing is None:
        yield "shared", f"unknown: {unknown}"
        return
    size = image_texts.size
    if sharing.aliases:
        yield "also named", ", ".join(sharing.aliases[:top]) + (", ..." if sharing.aliases[top:] else "")
    others = image_texts.count(sharing.images, "other image")
    yield (
        "shared",
        f"{size(sharing.shared_bytes)} with the {others} of the store" if sharing.images else "0 B",
    )
    for sharer in sharing.sharers[:top]:
        yield "", f"{size(sharer.size_bytes):>9}  {sharer.names[0]}"
    if len(sharing.sharers) > top:
        yield "", f"and {image_texts.count(len(sharing.sharers) - top, 'image')} more"
    bound = "at most " if sharing.problems else ""
    removal = f"removing it frees {bound}{size(sharing.only_here_stored_bytes)} of the store"
    if sharing.aliases:
        removal = "removing this name frees nothing: the image has others"
    elif sharing.whole_packs_bytes < sharing.only_here_stored_bytes:
        removal += f", {size(sharing.whole_packs_bytes)} of it in packs of its own"
    yield "only here", f"{bound}{size(sharing.only_here_bytes)}; {removal}"


def _largest(label: str, paths: tuple[SizedPath, ...]) -> Iterable[tuple[str, str]]:
    for number, item in enumerate(paths):
        text = f"{image_texts.size(item.size_bytes):>9}  {image_texts.path(item.path)}"
        yield label if number == 0 else "", text


def _document(image: OpenedImage, usage: Usage) -> dict[str, Any]:
    from coldstart_fs.format.names import digest_text

    def sized(paths: tuple[SizedPath, ...]) -> list[dict[str, Any]]:
        return [image_texts.texts(path=b"/" + item.path) | {"size_bytes": item.size_bytes} for item in paths]

    return {
        "store": image.store.url,
        "name": image.name,
        "digest": digest_text(image.digest),
        "created": image.created,
        "configuration": image.index.configuration,
        **asdict(usage),
        "chunk_bytes": image.index.chunk_bytes,
        "largest_files": sized(usage.largest_files),
        "largest_directories": sized(usage.largest_directories),
    }


def _sharing_document(sharing: Sharing | None, unknown: str | None) -> dict[str, Any]:
    from coldstart_fs.format.names import digest_text

    if sharing is None:
        return {"sharing": None, "sharing_unknown": unknown}
    document = asdict(sharing) | {
        "aliases": list(sharing.aliases),
        "problems": list(sharing.problems),
        "sharers": [
            {"names": list(item.names), "digest": digest_text(item.digest), "size_bytes": item.size_bytes}
            for item in sharing.sharers
        ],
    }
    return {"sharing": document}
