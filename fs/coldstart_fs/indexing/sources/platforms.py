"""Platforms of images, `os/architecture[/variant]`, normalised and matched as containerd does.

Other than containerd, an image for a 32-bit relative of the wanted architecture is never taken on its own.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from typing import Any

from coldstart_cli.errors import UsageError

# what `uname -m` and people say, as image indexes write it
_ARCHITECTURES = {
    "x86_64": ("amd64", ""),
    "x86-64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "i386": ("386", ""),
    "i486": ("386", ""),
    "i586": ("386", ""),
    "i686": ("386", ""),
    "armhf": ("arm", "v7"),
    "armv7l": ("arm", "v7"),
    "armel": ("arm", "v6"),
    "armv6l": ("arm", "v6"),
}
# a variant that goes without saying
_BASE = {"amd64": "v1", "arm64": "v8"}
_VERSION = re.compile(r"v(\d{1,3})(?:\.(\d{1,3}))?")
_PART = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Platform:
    """What an image is made for; build one with `normalised`."""

    system: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.system, self.architecture, self.variant) if part)


UNKNOWN = Platform("unknown", "unknown")


def normalised(system: str, architecture: str, variant: str = "") -> Platform:
    """One spelling for each platform."""
    system, architecture, variant = system.lower(), architecture.lower(), variant.lower()
    architecture, implied = _ARCHITECTURES.get(architecture, (architecture, ""))
    variant = variant or implied
    if variant.isdigit():
        variant = f"v{variant}"
    if architecture == "arm" and not variant:
        variant = "v7"
    if variant == _BASE.get(architecture):
        variant = ""
    return Platform("darwin" if system == "macos" else system, architecture, variant)


def parse_platform(text: str) -> Platform:
    """A platform as an operator writes it."""
    parts = text.split("/")
    if len(parts) not in {2, 3} or not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(f"not a platform: {text}", hint="write it as `--platform linux/amd64`")
    return normalised(*parts)


def host_platform() -> Platform:
    """This host's, without its variant, so that every host of an architecture picks the same image."""
    return normalised("linux", platform.machine())


def described_platform(document: Any) -> Platform:
    """What the `platform` of a descriptor or an image configuration says."""
    if not isinstance(document, dict):
        return UNKNOWN
    parts = [document.get(key) or "" for key in ("os", "architecture", "variant")]
    if not all(isinstance(part, str) for part in parts):
        return UNKNOWN
    system, architecture, variant = parts
    return normalised(system or "unknown", architecture or "unknown", variant)


def rank(wanted: Platform, offered: Platform) -> int | None:
    """How far what is offered lies below what is wanted: 0 is the same, `None` does not run there."""
    if (wanted.system, wanted.architecture) != (offered.system, offered.architecture):
        return None
    if wanted.variant == offered.variant:
        return 0
    highest, lower = _version(wanted), _version(offered)
    if highest is None or lower is None or lower > highest:
        return None
    return (highest[0] - lower[0]) * 1000 + highest[1] - lower[1]


def _version(of: Platform) -> tuple[int, int] | None:
    match = _VERSION.fullmatch(of.variant or _BASE.get(of.architecture, ""))
    return (int(match[1]), int(match[2] or 0)) if match else None
