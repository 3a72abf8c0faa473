"""Platforms as containerd normalises and matches them."""

from __future__ import annotations

import os

import pytest

from coldstart_cli.errors import UsageError
from coldstart_fs.indexing.sources.platforms import (
    UNKNOWN,
    described_platform,
    host_platform,
    normalised,
    parse_platform,
    rank,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("linux/amd64", "linux/amd64"),
        ("Linux/x86_64", "linux/amd64"),
        ("linux/amd64/v1", "linux/amd64"),
        ("linux/amd64/v3", "linux/amd64/v3"),
        ("linux/aarch64", "linux/arm64"),
        ("linux/arm64/v8", "linux/arm64"),
        ("linux/arm64/8", "linux/arm64"),
        ("linux/arm", "linux/arm/v7"),
        ("linux/arm/7", "linux/arm/v7"),
        ("linux/armhf", "linux/arm/v7"),
        ("linux/armel", "linux/arm/v6"),
        ("linux/i386", "linux/386"),
        ("macos/arm64", "darwin/arm64"),
    ],
)
def test_every_platform_has_one_spelling(text: str, shown: str) -> None:
    assert str(parse_platform(text)) == shown


@pytest.mark.parametrize(
    "text", ["", "linux", "linux/", "/amd64", "linux/arm/v7/x", "linux/a b", "linux//v7"]
)
def test_what_is_no_platform_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"^not a platform: {text}$") as caught:
        parse_platform(text)
    assert caught.value.hint == "write it as `--platform linux/amd64`"


@pytest.mark.parametrize(
    ("wanted", "best_first"),
    [
        ("linux/amd64/v3", ["linux/amd64/v3", "linux/amd64/v2", "linux/amd64"]),
        ("linux/amd64", ["linux/amd64"]),
        ("linux/arm/v8", ["linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm/v6", ["linux/arm/v6", "linux/arm/v5"]),
        ("linux/arm64/v9.2", ["linux/arm64/v9.2", "linux/arm64/v9", "linux/arm64"]),
        ("linux/ppc64le/power9", ["linux/ppc64le/power9"]),
        ("windows/amd64", ["windows/amd64"]),
    ],
)
def test_lower_variants_fit_and_higher_ones_do_not(wanted: str, best_first: list[str]) -> None:
    offered = [
        *(f"linux/amd64/v{number}" for number in (1, 2, 3, 4)),
        *(f"linux/arm/v{number}" for number in (5, 6, 7, 8)),
        *(f"linux/arm64/{variant}" for variant in ("v8", "v9", "v9.2", "v9.5")),
        *("linux/386", "linux/ppc64le/power9", "linux/ppc64le", "windows/amd64", "unknown/unknown"),
    ]
    ranks = {text: rank(parse_platform(wanted), parse_platform(text)) for text in offered}
    fitting = sorted((distance, text) for text, distance in ranks.items() if distance is not None)
    assert [str(parse_platform(text)) for _, text in fitting] == best_first


def test_hosts_of_one_architecture_pick_the_same_image() -> None:
    host = host_platform()
    assert host.system == "linux"
    if os.uname().machine in {"x86_64", "aarch64"}:
        assert host.variant == ""


@pytest.mark.parametrize("document", [None, [], {}, {"os": 5}, {"architecture": ["amd64"]}, "linux/amd64"])
def test_a_platform_that_cannot_be_read_is_unknown(document: object) -> None:
    assert described_platform(document) == UNKNOWN


def test_a_described_platform_is_normalised() -> None:
    assert described_platform({"os": "linux", "architecture": "arm"}) == normalised("linux", "arm", "v7")
