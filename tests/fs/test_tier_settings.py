"""Tiers as operators name them, on the command line, in variables and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart_cli.config import load
from coldstart_cli.errors import ConfigError, UsageError
from coldstart_fs.tiers.settings import TierSettings, parse_tiers


def test_a_tier_is_a_url_with_settings() -> None:
    given = [
        "http://cache:8080/store/,concurrency=4,read_timeout_seconds=0.5",
        "https://cdn.example/x,retries=0",
    ]
    parsed = parse_tiers(given)
    assert parse_tiers([tier.as_text() for tier in parsed]) == parsed
    assert parsed == (
        TierSettings("http://cache:8080/store", concurrency=4, read_timeout_seconds=0.5),
        TierSettings("https://cdn.example/x", retries=0),
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("cache:8080", "not a tier's URL: cache:8080", "write http://"),
        ("s3://bucket/x", "not a tier's URL: s3://bucket/x", "write http://"),
        ("http://user:secret@cache/x", "no user, password", "CREDENTIALS"),
        ("http://cache/x,patience=3", "unknown setting of tier http://cache/x: patience", "settings are"),
        ("http://cache/x,retry=3", "unknown setting of tier http://cache/x: retry", "did you mean `retries`"),
        ("http://cache/x,concurrency=0", "wrong concurrency of tier http://cache/x: 0", "from 1 to"),
        ("http://cache/x,concurrency=2.5", "wrong concurrency", "a whole number"),
        ("http://cache/x,retries=-1", "wrong retries", "from 0 to"),
        ("http://cache/x,read_timeout_seconds=nan", "wrong read_timeout_seconds", "a number"),
        ("http://cache/x,read_timeout_seconds=0", "wrong read_timeout_seconds", "a number"),
        ("http://cache/x,connect_timeout_seconds", "wrong connect_timeout_seconds", "a number"),
        ("", "not a tier's URL", "write http://"),
        ("file:///tmp", "not a tier's URL: file:///tmp", "write http://"),
        ("ftp://user:secret@cache/x", "not a tier's URL: ftp://cache/x", "write http://"),
        ("http://", "tier URL names no server: http://", "write http://"),
        ("http://cache:99999", "not a tier's URL: http://cache:99999", ""),
    ],
)
def test_what_is_no_tier_is_refused_by_name(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_tiers([text])
    assert hint in str(caught.value.hint)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_a_tier_is_named_once() -> None:
    with pytest.raises(UsageError, match="named twice: http://a/x"):
        parse_tiers(["http://a/x", "http://b", "http://a/x/,retries=3"])


def test_tiers_come_from_files_variables_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().texts("tiers") == ()
    path = tmp_path / "config.toml"
    path.write_text('tiers = ["http://a,retries=2", "http://b"]\n')
    assert load(None, path).texts("tiers") == ("http://a,retries=2", "http://b")
    monkeypatch.setenv("COLDSTART_TIERS", "http://c  http://d")
    assert load(None).texts("tiers") == ("http://c", "http://d")
    assert load({"tiers": ("http://e",)}, path).texts("tiers") == ("http://e",)
    for wrong in ('"http://a"', "[1]", '[["http://a"]]', "true"):
        path.write_text(f"tiers = {wrong}\n")
        with pytest.raises(ConfigError, match="tiers must be a list of texts"):
            load(None, path)
    path.write_text('tiers = [""]\n')
    with pytest.raises(ConfigError, match="tiers must be something, not empty"):
        load(None, path)
    with pytest.raises(UsageError, match=r"tiers must be something, not empty: 'http://a' ''$"):
        load({"tiers": ("http://a", "")})
