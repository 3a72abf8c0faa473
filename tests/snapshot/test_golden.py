"""A golden answer is recorded only when it comes again, and a server that answers otherwise is no success."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coldstart_cli.errors import BusyError, ColdstartError, DataError
from coldstart_snapshot.answers.golden import (
    ANSWER_LIMIT_BYTES,
    Answer,
    Expect,
    GoldenError,
    GoldenRequest,
    difference,
    from_table,
    record_answers,
    replay,
    same_questions,
    send,
    to_table,
)
from coldstart_snapshot.capturing import capture
from coldstart_snapshot.capturing.capture import CaptureRequest, create_snapshot
from coldstart_snapshot.kept.manifest import read_manifest
from snapshot.servers import Lab, ask, free_port, laboratory, url


class Model:
    """A server whose answers the test decides."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, bytes, str]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                model.asked.append((self.command, self.path, body, self.headers.get("Connection", "")))
                status, content = model.answers[self.path]
                content = content() if callable(content) else content
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _answer  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def request(self, path: str, **changes: Any) -> GoldenRequest:
        port = self.server.server_address[1]
        return replace(GoldenRequest("GET", f"http://127.0.0.1:{port}{path}", timeout_seconds=20), **changes)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def _counting() -> Any:
    numbers = iter(range(1000))
    return lambda: json.dumps({"id": next(numbers), "choices": [{"text": "four"}]}).encode()


def test_the_answer_that_is_recorded_must_come_again(model: Model) -> None:
    model.answers["/v1"] = 200, b"forty two"
    (recorded,) = record_answers([model.request("/v1", method="POST", body=b"question")])
    assert (recorded.status, str(recorded.digest)[:7]) == (200, "blake3:")
    assert model.asked[0] == ("POST", "/v1", b"question", "close")
    replay([recorded])
    model.answers["/v1"] = 200, b"forty one"
    with pytest.raises(GoldenError, match=r"than at the capture: body blake3:.*, not blake3:"):
        replay([recorded])
    model.answers["/v1"] = 503, b"forty two"
    with pytest.raises(GoldenError, match="status 503, not 200"):
        replay([recorded])


def test_an_answer_that_differs_each_time_is_refused_with_what_to_record_instead(model: Model) -> None:
    model.answers["/v1"] = 200, _counting()
    with pytest.raises(DataError, match="not answered the same way twice") as caught:
        record_answers([model.request("/v1")])
    assert "json_values" in str(caught.value.hint)
    assert "json_subset" in str(caught.value.hint)
    values = model.request("/v1", expect=Expect.JSON_VALUES, pointers=("/choices/0/text",))
    (recorded,) = record_answers([values])
    assert json.loads(recorded.wanted or "") == {"/choices/0/text": "four"}
    replay([recorded])
    model.answers["/v1"] = 200, b'{"choices": [{"text": "five"}]}'
    with pytest.raises(GoldenError, match='/choices/0/text is "five", not "four"'):
        replay([recorded])
    subset = json.dumps({"choices": [{"text": "five"}]})
    replay(record_answers([model.request("/v1", expect=Expect.JSON_SUBSET, wanted=subset)]))


def test_answers_that_cannot_be_recorded_are_refused(model: Model) -> None:
    model.answers["/error"] = 500, b"no model"
    with pytest.raises(DataError, match="is answered with status 500"):
        record_answers([model.request("/error")])
    model.answers["/text"] = 200, b"plain"
    values = model.request("/text", expect=Expect.JSON_VALUES, pointers=("/a",))
    with pytest.raises(DataError, match="is not answered with JSON: b'plain'"):
        record_answers([values])
    model.answers["/text"] = 200, b"{}"
    with pytest.raises(DataError, match="answer has no /a"):
        record_answers([values])
    with pytest.raises(DataError, match="is not answered as `json_subset` says: no /a"):
        record_answers([model.request("/text", expect=Expect.JSON_SUBSET, wanted='{"a": 1}')])
    model.answers["/large"] = 200, bytes(ANSWER_LIMIT_BYTES + 1)
    with pytest.raises(GoldenError, match=f"answer is larger than {ANSWER_LIMIT_BYTES} bytes"):
        send(model.request("/large"))


def test_a_server_that_drips_its_answer_is_hung_up_on_at_the_deadline() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not stop.wait(0.05):
                    try:
                        connection.sendall(b"X")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        port = listener.getsockname()[1]
        try:
            with pytest.raises(BusyError, match=r"is not answered: within 0.4 s"):
                send(GoldenRequest("GET", f"http://127.0.0.1:{port}/", timeout_seconds=0.4))
        finally:
            stop.set()
            thread.join(60)
    with pytest.raises(BusyError, match="is not answered: Connection refused"):
        send(GoldenRequest("GET", f"http://127.0.0.1:{port}/", timeout_seconds=5))


@pytest.mark.parametrize(
    ("wanted", "body", "problem"),
    [
        ({"a": {"b": 1}}, b'{"a": {"b": 1, "c": 2}, "d": 3}', None),
        ({"a": {"b": 1}}, b'{"a": {"c": 2}}', "no /a/b"),
        ({"a": 1}, b'{"a": 1.0}', None),
        ({"a": 1}, b'{"a": true}', "/a is true, not 1"),
        ({"a": [1, 2]}, b'{"a": [1]}', "/a is [1], not [1, 2]"),
        ({"a": [{"b": 1}]}, b'{"a": [{"b": 2}]}', "/a/0/b is 2, not 1"),
        ({"a": {}}, b"[]", '/ is [], not {"a": {}}'),
        ({"a": 1}, b"{", "no JSON: b'{'"),
    ],
)
def test_a_subset_names_the_first_place_that_differs(
    wanted: object, body: bytes, problem: str | None
) -> None:
    recorded = GoldenRequest(
        "GET", "http://h/", expect=Expect.JSON_SUBSET, wanted=json.dumps(wanted), status=200
    )
    assert difference(recorded, Answer(200, body)) == problem


def test_recorded_answers_come_back_from_their_tables(model: Model) -> None:
    model.answers["/v1"] = 200, b'{"a~/b": [7]}'
    requests = [
        model.request("/v1", method="POST", body=b"\xff\x00", headers=(("X-Api-Key", "k"),)),
        model.request("/v1", expect=Expect.JSON_VALUES, pointers=("/a~0~1b/0", "")),
        model.request("/v1", expect=Expect.JSON_SUBSET, wanted="{}"),
        model.request("/v1", expect=Expect.STATUS),
    ]
    recorded = record_answers(requests)
    assert tuple(from_table(to_table(request)) for request in recorded) == recorded
    assert same_questions(recorded, requests)
    assert not same_questions(recorded, requests[1:])
    assert not same_questions(recorded, [replace(requests[0], body=b"other"), *requests[1:]])
    for damage in (
        {"digest": "blake3:00"},
        {"body_base64": "!"},
        {"timeout_seconds": "inf"},
        {"expect": "x"},
    ):
        with pytest.raises(ValueError, match=r".+"):
            from_table({**to_table(recorded[0]), **damage})


def test_golden_answers_are_recorded_before_the_dump_and_must_come_after_it(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    ask(port)
    golden = (
        GoldenRequest("GET", f"http://127.0.0.1:{port}/file", headers=(("Authorization", "Bearer x"),)),
    )
    captured = create_snapshot(
        CaptureRequest("web", container_id=container.id, ready_url=url(port), golden=golden), lab.config
    )
    (recorded,) = read_manifest(captured.folder).golden
    assert recorded == record_answers(golden)[0]
    assert any(
        "for root alone: golden request GET" in note and "Authorization" in note for note in captured.notes
    )
    assert "golden" in captured.manifest.timings


def test_a_capture_whose_golden_answer_is_not_reproducible_touches_nothing(lab: Lab) -> None:
    port = free_port()
    container, _, _ = lab.start("web", port)
    golden = (GoldenRequest("GET", f"http://127.0.0.1:{port}/count"),)
    with pytest.raises(DataError, match="not answered the same way twice"):
        create_snapshot(CaptureRequest("web", container_id=container.id, golden=golden), lab.config)
    assert not (lab.config.state_folder / "snapshots").exists()


def test_a_server_that_answers_otherwise_after_the_dump_is_not_published(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    pid, _, folder = lab.start_process(port)
    ask(port)
    golden = (GoldenRequest("GET", f"http://127.0.0.1:{port}/file"),)
    real = capture.replay

    def changed(*arguments: Any, **named: Any) -> None:
        (folder / "count").write_text("changed")
        real(*arguments, **named)

    monkeypatch.setattr(capture, "replay", changed)
    with pytest.raises(ColdstartError, match=rf"differently .*; nothing was published; process {pid} runs"):
        create_snapshot(CaptureRequest("web", pid=pid, ready_url=url(port), golden=golden), lab.config)
    assert list((lab.config.state_folder / "snapshots").glob("*/*")) == []
