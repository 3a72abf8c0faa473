"""Publications as operators write them."""

from __future__ import annotations

import pytest

from coldstart_cli.errors import UsageError
from coldstart_launch.publish import Publication, parse_publication


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8001:8000", Publication("127.0.0.1", 8001, 8000)),
        ("0:8000", Publication("127.0.0.1", 0, 8000)),
        ("0.0.0.0:8001:8000", Publication("0.0.0.0", 8001, 8000)),
        ("[::1]:8001:8000", Publication("::1", 8001, 8000)),
    ],
)
def test_a_publication_names_address_and_ports(text: str, expected: Publication) -> None:
    assert parse_publication(text) == expected


@pytest.mark.parametrize(
    "text", ["", "8000", "8001:0", "70000:1", "1:70000", "300.1.1.1:1:1", "host:1:1", "::1:1:1", "1:1/udp"]
)
def test_what_is_no_publication_is_refused_with_one(text: str) -> None:
    with pytest.raises(UsageError, match="invalid publication") as refusal:
        parse_publication(text)
    assert "8001:8000" in (refusal.value.hint or "")
