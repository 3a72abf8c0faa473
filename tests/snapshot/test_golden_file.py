"""Golden requests as people write them: what is taken, and what is refused with file and key."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError, NotFoundError
from coldstart_cli.regular import INPUT_BYTES
from coldstart_snapshot.answers.golden import BODY_LIMIT_BYTES, Expect, GoldenRequest
from coldstart_snapshot.answers.golden_file import load_golden

READY = "http://127.0.0.1:8000/health?deep=1"


def _load(tmp_path: Path, text: str, base_url: str | None = READY) -> tuple[GoldenRequest, ...]:
    path = tmp_path / "golden.toml"
    path.write_text(text)
    return load_golden(path, base_url)


def test_one_request_stands_at_the_top_and_its_path_is_of_the_ready_url(tmp_path: Path) -> None:
    (request,) = _load(tmp_path, 'path = "/v1/models?limit=1"')
    assert request == GoldenRequest("GET", "http://127.0.0.1:8000/v1/models?limit=1")
    assert request.expect is Expect.BODY


def test_several_requests_are_tables_with_bodies_of_three_kinds(tmp_path: Path) -> None:
    (tmp_path / "prompt").write_bytes(b"\x00raw")
    requests = _load(
        tmp_path,
        """
        schema = "coldstart.golden"
        version = 1
        [[golden]]
        path = "/text"
        body = "hello"
        [[golden]]
        path = "/file"
        method = "put"
        body_file = "prompt"
        expect = "status"
        timeout_seconds = 2
        [[golden]]
        url = "https://example.test:8443/v1/completions"
        json = { prompt = "one two", max_tokens = 4, temperature = 0.0 }
        headers = { Authorization = "Bearer x" }
        json_values = ["/choices/0/text"]
        """,
    )
    assert [request.body for request in requests[:2]] == [b"hello", b"\x00raw"]
    assert [request.method for request in requests] == ["POST", "PUT", "POST"]
    assert json.loads(requests[2].body) == {"prompt": "one two", "max_tokens": 4, "temperature": 0.0}
    assert requests[2].headers == (("Authorization", "Bearer x"), ("Content-Type", "application/json"))
    assert requests[2].secret_headers == ("Authorization",)
    assert (requests[2].expect, requests[2].pointers) == (Expect.JSON_VALUES, ("/choices/0/text",))
    assert (requests[1].expect, requests[1].timeout_seconds) == (Expect.STATUS, 2.0)


def test_a_subset_is_kept_as_json(tmp_path: Path) -> None:
    (request,) = _load(tmp_path, 'path = "/"\njson_subset = { model = "m", data = [1, true] }')
    assert request.expect is Expect.JSON_SUBSET
    assert json.loads(request.wanted or "") == {"model": "m", "data": [1, True]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path = ", "not valid TOML"),
        ('pth = "/"', r"unknown key: pth$"),
        ('[[golden]]\npath = "/"\n[[golden]]\npth = "/"', r"unknown key: golden\[2\].pth"),
        ("golden = []", "golden has no request"),
        ("golden = [1]", "golden must be tables"),
        ('method = "GET"', "give path or url, one of them"),
        ('path = "/"\nurl = "http://h/"', "give path or url, one of them"),
        ('path = "v1"', "path must begin with `/`: v1"),
        ('path = "/a b"', "path has blanks"),
        ('url = "ftp://h/"', "url cannot be used: ftp://h/"),
        ('path = "/"\nmethod = "G T"', "method is no method: G T"),
        ('path = "/"\nheaders = { A = 1 }', "headers.A must be a text of one line: 1"),
        ('path = "/"\nheaders = { A = "x\\r\\nB: y" }', "headers.A must be a text of one line"),
        ('path = "/"\nheaders = { A = "\u20ac" }', "headers.A must be Latin-1"),
        ('path = "/"\nbody = "a"\nbody_file = "b"', "keys exclude each other: body, body_file"),
        ('path = "/"\njson = 1979-05-27', "json has a value that JSON has not"),
        ('path = "/"\nexpect = "hash"', "expect must be one of body, json_subset, json_values, status: hash"),
        ('path = "/"\nexpect = "json_subset"', "expect needs the key json_subset"),
        ('path = "/"\nexpect = "status"\njson_values = ["/a"]', "expect does not go with json_values"),
        ('path = "/"\njson_values = ["a"]', "json_values must be JSON pointers"),
        ('path = "/"\njson_subset = { a = nan }', "json_subset has a value that JSON has not"),
        ('path = "/"\njson_subset = [1]', "json_subset must be a table"),
        ('path = "/"\ntimeout_seconds = nan', "timeout_seconds must be a positive number"),
        ('path = "/"\ntimeout_seconds = true', "timeout_seconds must be a positive number"),
        ('version = 2\npath = "/"', "version 2 is newer than this coldstart reads"),
        ('schema = "x"\npath = "/"', 'schema must be "coldstart.golden"'),
    ],
)
def test_what_cannot_be_asked_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        _load(tmp_path, text)
    assert "golden.toml" in str(caught.value)


def test_absent_files_and_large_bodies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="golden request does not exist"):
        load_golden(tmp_path / "absent.toml", READY)
    with pytest.raises(NotFoundError, match="body of golden request does not exist"):
        _load(tmp_path, 'path = "/"\nbody_file = "absent"')
    (tmp_path / "large").write_bytes(bytes(BODY_LIMIT_BYTES + 1))
    with pytest.raises(DataError, match=f"larger than {BODY_LIMIT_BYTES} bytes"):
        _load(tmp_path, 'path = "/"\nbody_file = "large"')
    with pytest.raises(DataError, match="path is relative to the ready URL, and there is none: /"):
        _load(tmp_path, 'path = "/"', base_url=None)


def test_what_has_no_end_or_no_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.toml").write_bytes(b"#" * (INPUT_BYTES + 1))
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(DataError, match=r"golden request cannot be used: .*: not a regular file"):
            load_golden(path, READY)
    with pytest.raises(DataError, match=f"larger than {INPUT_BYTES} bytes"):
        load_golden(tmp_path / "large.toml", READY)
    with pytest.raises(DataError, match=r"body of golden request cannot be used: .*: not a regular file"):
        _load(tmp_path, 'path = "/"\nbody_file = "pipe"')


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link", "below/../../secret"])
def test_a_body_that_does_not_lie_beside_the_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("s")
    folder = tmp_path / "golden"
    (folder / "below").mkdir(parents=True)
    (folder / "link").symlink_to("../secret")
    with pytest.raises(DataError, match="body_file is not in the folder"):
        _load(folder, f'path = "/"\nbody_file = "{name}"')


def test_a_body_in_a_folder_below_is_sent(tmp_path: Path) -> None:
    (tmp_path / "bodies").mkdir()
    (tmp_path / "bodies/one").write_text("prompt")
    assert _load(tmp_path, 'path = "/"\nbody_file = "bodies/one"')[0].body == b"prompt"
