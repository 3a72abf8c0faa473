"""How `image index --lint` and `image show --lint` answer: findings by rule, the largest first."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coldstart_cli.errors import ColdstartError
from coldstart_commands import image_texts
from coldstart_commands.shell import Shell

if TYPE_CHECKING:
    from coldstart_fs.looking.findings import Finding
    from coldstart_fs.looking.lint import LintReport
    from coldstart_fs.looking.opened import OpenedImage

LintOption = Annotated[bool, typer.Option("--lint", help="Say what in the image is slow or unsafe.")]
LargeBytesOption = Annotated[
    int | None,
    typer.Option(
        "--large-bytes",
        metavar="BYTES",
        min=1,
        show_default="1073741824",
        help="Files with this much content are large, for --lint.",
    ),
]


def lint(image: OpenedImage, large_bytes: int | None) -> LintReport:
    """Look at an image of the store."""
    from coldstart_fs.looking.lint import DEFAULT_LARGE_BYTES, lint_image

    return lint_image(image.index, image.contents, large_bytes=large_bytes or DEFAULT_LARGE_BYTES)


def lint_published(shell: Shell, digest: str, large_bytes: int | None) -> LintReport:
    """Look at an image that was just indexed: whatever comes of it, the image is in the store."""
    from coldstart_fs.looking.lint import LintReport
    from coldstart_fs.looking.opened import opened_image

    config = shell.config
    try:
        with opened_image(
            digest, store_url=config.store, cache=config.cache_folder, tell=shell.printer.warning
        ) as image:
            return lint(image, large_bytes)
    except ColdstartError as error:
        return LintReport((), (f"the image was indexed, and cannot be looked at: {error.message}",))


def answer(shell: Shell, report: LintReport, *, listed: int) -> None:
    """A paragraph for each rule that applies, with its `listed` largest findings."""
    printer = shell.printer
    for problem in report.problems:
        printer.warning(problem)
    if not report.findings and not report.problems:
        printer.answer("lint            nothing found")
    for code, group in groupby(report.findings, key=lambda finding: finding.code):
        findings = list(group)
        rule = findings[0].rule
        files, size_bytes = sum(item.files for item in findings), sum(item.size_bytes for item in findings)
        amount = [image_texts.count(len(findings), "place")]
        if files > len(findings):
            amount.append(image_texts.count(files, "file"))
        if size_bytes:
            amount.append(image_texts.size(size_bytes))
        printer.answer(f"{printer.style(code, 'warning')}: {rule.meaning} ({', '.join(amount)})")
        printer.answer(f"  cost: {rule.cost}")
        printer.answer(f"  remedy: {rule.remedy}")
        for finding in findings[:listed]:
            printer.answer(f"    {_line(finding)}")
        if len(findings) > listed:
            printer.answer(f"    and {image_texts.count(len(findings) - listed, 'place')} more")


def _line(finding: Finding) -> str:
    facts = [finding.detail] if finding.detail else []
    if finding.size_bytes:
        facts.append(image_texts.size(finding.size_bytes))
    line = image_texts.path(finding.path)
    if finding.code == "dangling-symlink":
        line += f" -> {image_texts.path(finding.other_paths[0])}"
    elif finding.other_paths:
        line += f" = {' = '.join(image_texts.path(path) for path in finding.other_paths[:3])}"
    return f"{line} ({', '.join(facts)})" if facts else line


def documents(report: LintReport) -> dict[str, Any]:
    """All findings, for a JSON document."""
    return {
        "lint": [
            {
                "code": finding.code,
                **image_texts.texts(path=b"/" + finding.path),
                "detail": finding.detail,
                "files": finding.files,
                "size_bytes": finding.size_bytes,
                "cost": finding.rule.cost,
                "remedy": finding.rule.remedy,
            }
            | _others(finding)
            for finding in report.findings
        ],
        "lint_problems": list(report.problems),
    }


def _others(finding: Finding) -> dict[str, Any]:
    if not finding.other_paths:
        return {}
    return {"others": [image_texts.texts(path=b"/" + path) for path in finding.other_paths]}
