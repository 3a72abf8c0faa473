"""coldstart image index: turn an image of any kind or a root folder into an image of a store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coldstart_cli.errors import UsageError
from coldstart_commands import image_findings
from coldstart_commands.image_findings import LargeBytesOption, LintOption
from coldstart_commands.image_texts import count, size
from coldstart_commands.shell import DryRunOption, Shell, coldstart_command

if TYPE_CHECKING:
    from coldstart_cli.printer import Printer
    from coldstart_fs.indexing.build import IndexReport

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:REF], docker://REF or dir:PATH.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the image in the store.", show_default=False)
]
PlatformOption = Annotated[
    str | None,
    typer.Option(
        "--platform",
        metavar="OS/ARCH[/VARIANT]",
        help="Which image of several; default: this host's platform.",
        show_default=False,
    ),
]
CompressionOption = Annotated[
    str,
    typer.Option(
        "--compression",
        metavar="none|zstd[:LEVEL]",
        help="How new chunks are stored: zstd saves bytes on slow links and costs time at every read.",
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Lay out first what this trace says a start reads, and publish it with the image.",
        show_default=False,
    ),
]

_LISTED_FINDINGS = 5


@coldstart_command("store", "lock_wait_seconds")
def command(
    shell: Shell,
    source: SourceArgument,
    name: NameOption,
    platform: PlatformOption = None,
    compression: CompressionOption = "none",
    trace: TraceOption = None,
    lint: LintOption = False,
    large_bytes: LargeBytesOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Index an image or a root folder: metadata into an index, contents into packs of the store."""
    from coldstart_fs.format.chunk import Compression
    from coldstart_fs.format.names import digest_text
    from coldstart_fs.format.trace import load_trace
    from coldstart_fs.indexing.build import index_image
    from coldstart_fs.indexing.progress import Progress
    from coldstart_fs.indexing.sources.reference import without_login
    from coldstart_fs.stores.store_url import open_store
    from coldstart_fs.traces.published import publish_for_image

    if lint and dry_run:
        raise UsageError(
            "`--lint` looks at contents in the store, and `--dry-run` puts none there",
            hint="index the image, then `coldstart image show NAME --lint`",
        )
    printer = shell.printer
    progress = Progress(f"opening {without_login(source)}")
    known = load_trace(trace) if trace is not None else None
    wait_seconds = shell.config.number("lock_wait_seconds")
    with printer.watching(progress.describe):
        store = open_store(shell.config.store, create=True, tell=printer.warning)
        report = index_image(
            source,
            store=store,
            name=name,
            progress=progress,
            dry_run=dry_run,
            platform=platform,
            skopeo=shell.config.text("programs.skopeo"),
            wait_seconds=wait_seconds,
            compression=Compression.parse(compression),
            trace=known,
        )
    _say(printer, report)
    digest = digest_text(report.digest)
    document = asdict(report) | {"digest": digest, "notes": list(report.notes)}
    if known is not None and not dry_run:
        cache = shell.config.cache_folder
        published = publish_for_image(store, known, report.digest, cache, wait_seconds=wait_seconds)
        printer.note(f"the trace is published for workload `{published.workload}`: mounts replay it")
        document["workload"] = published.workload
    if lint:
        printer.status("lint")
        findings = image_findings.lint_published(shell, digest, large_bytes)
        image_findings.answer(shell, findings, listed=_LISTED_FINDINGS)
        document |= image_findings.documents(findings)
    printer.document("image.index", 1, document)


def _say(printer: Printer, report: IndexReport) -> None:
    from coldstart_fs.format.names import digest_text

    for note in report.notes:
        printer.warning(note)
    rows = [
        ("image", f"{report.name}@{digest_text(report.digest)}"),
        ("entries", f"{report.entries:,}"),
        ("content", f"{size(report.content_bytes)} in {count(report.files, 'file')}"),
        ("  new", f"{size(report.new_bytes)}"),
        ("  in the store", f"{size(report.reused_bytes)}"),
        ("  repeated", f"{size(report.repeated_bytes)}"),
        ("  zeros", f"{size(report.zero_bytes)}"),
        ("index", f"{size(report.index_bytes)}"),
    ]
    if report.trace is not None:
        rows.append(("traced, first", f"{size(report.trace.size_bytes)}"))
        if missing := report.trace.missing_paths:
            what = "1 path that is" if missing == 1 else f"{missing} paths that are"
            printer.warning(f"trace names {what} no file of the image")
    if not report.dry_run:
        rows.append(("packs", f"{size(report.pack_bytes)} in {count(report.packs, 'pack')}"))
    rows.append(("time", f"{report.seconds:.1f} s"))
    for label, value in rows:
        printer.answer(f"{label:<16}{value}")
    if report.dry_run:
        printer.note(
            f"dry run: nothing was written; it would be {size(report.new_bytes)} of new content "
            f"in packs, {size(report.index_bytes)} of index, and the name `{report.name}`"
        )
