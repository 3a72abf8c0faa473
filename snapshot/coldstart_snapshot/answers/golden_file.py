"""Golden requests as people write them: tables of a TOML file, checked key by key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from coldstart_cli.errors import DataError, UsageError, near_matches_hint
from coldstart_cli.regular import read_input
from coldstart_snapshot.answers.golden import BODY_LIMIT_BYTES, Expect, GoldenRequest
from coldstart_snapshot.answers.ready import parse_url

SCHEMA = "coldstart.golden"
VERSION = 1
_DEFAULT_TIMEOUT_SECONDS = 60.0
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BODIES = ("body", "body_file", "json")
_KEYS = frozenset(
    {"method", "path", "url", "headers", *_BODIES, "expect", "json_subset", "json_values", "timeout_seconds"}
)


def load_golden(path: Path, base_url: str | None) -> tuple[GoldenRequest, ...]:
    """The requests of a file: one at its top, or `[[golden]]` tables; paths are of the server's ready URL."""
    try:
        document = tomllib.loads(read_input(path, "golden request").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"golden request is not valid TOML: {path}: {error}") from error
    schema, version = document.pop("schema", SCHEMA), document.pop("version", VERSION)
    if schema != SCHEMA:
        raise DataError(f'{path}: schema must be "{SCHEMA}": {schema!r}')
    if type(version) is not int or version < 1:
        raise DataError(f"{path}: version must be a whole number: {version!r}")
    if version > VERSION:
        raise DataError(
            f"{path}: version {version} is newer than this coldstart reads: {VERSION}",
            hint="install a newer coldstart",
        )
    if set(document) == {"golden"}:
        return golden_requests(document["golden"], base_url, path)
    return golden_requests(document, base_url, path, name="")


def golden_requests(
    tables: object, base_url: str | None, source: Path, *, name: str = "golden"
) -> tuple[GoldenRequest, ...]:
    """One table or a list of them, of the file `source`, beside which body files lie."""
    if isinstance(tables, dict):
        return (_Table(tables, source, f"{name}." if name else "").request(base_url),)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{source}: {name} must be tables: `[[{name}]]`")
    if not tables:
        raise DataError(f"{source}: {name} has no request")
    return tuple(
        _Table(table, source, f"{name}[{number}].").request(base_url)
        for number, table in enumerate(tables, start=1)
    )


class _Table:
    def __init__(self, table: Mapping[str, Any], source: Path, prefix: str) -> None:
        self._table = table
        self._source = source
        self._prefix = prefix

    def request(self, base_url: str | None) -> GoldenRequest:
        for key in self._table:
            if key not in _KEYS:
                raise DataError(
                    f"{self._source}: unknown key: {self._prefix}{key}", hint=near_matches_hint(key, _KEYS)
                )
        headers = self._headers()
        body = self._body()
        if "json" in self._table and not any(name.lower() == "content-type" for name, _ in headers):
            headers = (*headers, ("Content-Type", "application/json"))
        method = self._text("method") or ("POST" if body else "GET")
        if not _TOKEN.fullmatch(method):
            raise self._refusal("method", "is no method", method)
        expect, subset, pointers = self._expectation()
        return GoldenRequest(
            method=method.upper(),
            url=self._url(base_url),
            headers=headers,
            body=body,
            expect=expect,
            pointers=pointers,
            wanted=json.dumps(subset) if expect is Expect.JSON_SUBSET else None,
            timeout_seconds=self._timeout(),
        )

    def _url(self, base_url: str | None) -> str:
        url, path = self._text("url"), self._text("path")
        if (url is None) == (path is None):
            raise DataError(f"{self._source}: give {self._prefix}path or {self._prefix}url, one of them")
        if path is not None:
            if not path.startswith("/"):
                raise self._refusal("path", "must begin with `/`", path)
            if base_url is None:
                raise self._refusal("path", "is relative to the ready URL, and there is none", path)
            base = urlsplit(base_url)
            url = urlunsplit((base.scheme, base.netloc, "", "", "")) + path
        assert url is not None
        try:
            parse_url(url)
        except UsageError as error:
            raise self._refusal("url" if path is None else "path", "cannot be used", url) from error
        if any(character <= " " for character in url):
            raise self._refusal("url" if path is None else "path", "has blanks", url)
        return url

    def _headers(self) -> tuple[tuple[str, str], ...]:
        table = self._table.get("headers", {})
        if not isinstance(table, dict):
            raise self._refusal("headers", "must be a table", table)
        for name, value in table.items():
            if not _TOKEN.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
                raise self._refusal(f"headers.{name}", "must be a text of one line", value)
            try:
                value.encode("latin-1")
            except UnicodeEncodeError as error:
                raise self._refusal(f"headers.{name}", "must be Latin-1", value) from error
        return tuple(table.items())

    def _body(self) -> bytes:
        given = [key for key in _BODIES if key in self._table]
        if len(given) > 1:
            raise self._conflict(*given)
        body = b""
        if "json" in self._table:
            try:
                body = json.dumps(self._table["json"]).encode()
            except TypeError as error:
                raise self._refusal("json", "has a value that JSON has not", error) from error
        elif (text := self._text("body")) is not None:
            body = text.encode()
        elif (name := self._text("body_file")) is not None:
            body = read_input(self._beside(name), "body of golden request", BODY_LIMIT_BYTES)
        if len(body) > BODY_LIMIT_BYTES:
            raise DataError(f"{self._source}: body of golden request is larger than {BODY_LIMIT_BYTES} bytes")
        return body

    def _beside(self, name: str) -> Path:
        """A file in the folder of this one, or below: what it holds becomes part of the snapshot."""
        folder = self._source.parent.resolve()
        try:
            inside = (folder / name).resolve().is_relative_to(folder)
        except (OSError, ValueError):
            inside = False
        if not inside:
            raise self._refusal("body_file", f"is not in the folder {folder}", name)
        return folder / name

    def _expectation(self) -> tuple[Expect, object, tuple[str, ...]]:
        given = self._text("expect")
        subset, pointers = self._table.get("json_subset"), self._table.get("json_values")
        if subset is not None and pointers is not None:
            raise self._conflict("json_subset", "json_values")
        implied: Expect | None = None
        if subset is not None:
            implied = Expect.JSON_SUBSET
        elif pointers is not None:
            implied = Expect.JSON_VALUES
        try:
            expect = Expect(given) if given is not None else implied or Expect.BODY
        except ValueError as error:
            raise self._refusal("expect", f"must be one of {', '.join(Expect)}", given) from error
        if implied is not None and expect is not implied:
            raise self._refusal("expect", f"does not go with {implied}", given)
        if implied is None and expect in {Expect.JSON_SUBSET, Expect.JSON_VALUES}:
            raise self._refusal("expect", f"needs the key {self._prefix}{expect}", given)
        if subset is not None:
            self._check_subset(subset)
        if pointers is not None and (
            not isinstance(pointers, list)
            or not pointers
            or not all(isinstance(one, str) and (not one or one.startswith("/")) for one in pointers)
        ):
            raise self._refusal("json_values", 'must be JSON pointers, as `["/choices/0/text"]`', pointers)
        return expect, subset, tuple(pointers or ())

    def _check_subset(self, subset: object) -> None:
        if not isinstance(subset, dict):
            raise self._refusal("json_subset", "must be a table", subset)
        try:
            json.dumps(subset, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self._refusal("json_subset", "has a value that JSON has not", error) from error

    def _timeout(self) -> float:
        seconds = self._table.get("timeout_seconds", _DEFAULT_TIMEOUT_SECONDS)
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 < seconds < float("inf")
        ):
            raise self._refusal("timeout_seconds", "must be a positive number", seconds)
        return float(seconds)

    def _text(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self._refusal(key, "must be a non-empty text", value)
        return value

    def _conflict(self, *keys: str) -> DataError:
        named = ", ".join(f"{self._prefix}{key}" for key in keys)
        return DataError(f"{self._source}: keys exclude each other: {named}")

    def _refusal(self, key: str, what: str, value: object) -> DataError:
        shown = str(value) if isinstance(value, str | Exception) else repr(value)
        return DataError(f"{self._source}: {self._prefix}{key} {what}: {shown[:200]}")
