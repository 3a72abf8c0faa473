"""coldstart doctor: what this host can and cannot do."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from coldstart_cli.config import Scalar
from coldstart_cli.errors import NegativeAnswer
from coldstart_cli.version import __version__
from coldstart_commands.shell import Shell, coldstart_command
from coldstart_host.doctor_finding import DoctorInput, Finding, Status

_PACKAGES = (
    "typer", "rich", "tomli-w", "blake3", "nvidia-ml-py", "psutil",
    "obstore", "zstandard", "ortools",
)  # fmt: skip
_STYLES = {Status.OK: "ok", Status.NOTE: "warning", Status.FAULT: "error"}


@coldstart_command("store", "cache_dir")
def command(shell: Shell) -> None:
    """Show what this host can and cannot do, each gap with its remedy.

    Nothing is changed. Every check has a deadline; all together take less than three seconds.
    """
    from coldstart_host.cpu import read_cpu_facts
    from coldstart_host.doctor import examine

    config = shell.config
    with shell.printer.progress("looking at this host"):
        findings = examine(
            DoctorInput(
                criu=config.text("programs.criu"),
                runc=config.text("programs.runc"),
                skopeo=config.text("programs.skopeo"),
                cuda_checkpoint=config.text("programs.cuda_checkpoint"),
                dcgmi=config.text("programs.dcgmi"),
                state_folder=Path(config.text("state_dir")),
                cache_folder=Path(config.text("cache_dir")),
            )
        )
    faults = [finding for finding in findings if finding.status is Status.FAULT]
    shell.printer.document(
        "doctor",
        1,
        {
            "ok": not faults,
            "host": platform.node(),
            "coldstart": _installation(),
            "checks": [asdict(finding) for finding in findings],
            "cpu": read_cpu_facts().to_dict(),
            "configuration": [
                {"key": setting.key, "value": value.value, "source": value.source}
                for setting, value in config.items()
            ],
            "store": config.named_store,
        },
    )
    _show(shell, findings)
    if faults:
        names = ", ".join(finding.check for finding in faults)
        raise NegativeAnswer(f"this host has faults: {names}", hint=faults[0].remedy)


def _installation() -> dict[str, object]:
    packages = {name: found for name in _PACKAGES if (found := _package_version(name))}
    return {
        "version": __version__,
        "path": str(Path(__file__).resolve().parent),
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "packages": packages,
    }


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _setting_row(shell: Shell, key: str, value: Scalar, source: str) -> list[str]:
    if value is None:
        # an unset store is the one in the state folder; other unset values have no effect
        return [key, shell.config.named_store, "below state_dir"] if key == "store" else [key, "", source]
    return [key, " ".join(value) if isinstance(value, tuple) else str(value), source]


def _show(shell: Shell, findings: Sequence[Finding]) -> None:
    printer = shell.printer
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = printer.style(f"{finding.status.value:<5}", _STYLES[finding.status])
        printer.answer(f"{mark}  {finding.check:<{width}}  {finding.detail}")
        for label, text in (("does not work", finding.cost), ("remedy", finding.remedy)):
            if text and finding.status is not Status.OK:
                printer.answer(f"{'':<{width + 9}}{printer.style(f'{label}:', 'hint')} {text}")
    printer.answer()
    printer.table(
        ["setting", "value", "from"],
        [
            _setting_row(shell, setting.key, value.value, value.source)
            for setting, value in shell.config.items()
        ],
    )
    printer.answer()
    about = _installation()
    packages = about["packages"]
    assert isinstance(packages, dict)
    printer.answer(f"coldstart {about['version']} in {about['path']}")
    printer.answer(f"Python {about['python']} ({about['interpreter']})")
    printer.answer(", ".join(f"{name} {found}" for name, found in packages.items()))
