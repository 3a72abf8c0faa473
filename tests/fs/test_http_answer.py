"""What comes from HTTP servers: bodies end where the head says, and what is no HTTP is refused."""

from __future__ import annotations

import pytest

from coldstart_fs.tiers.http_answer import Answer, BadAnswer, Ended

HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Type: x\r\nContent-Length: 5\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire:
    """Bytes of a server, in pieces of some size; then the end of the connection."""

    def __init__(self, data: bytes, piece_bytes: int = 1 << 20) -> None:
        self.left = data
        self.piece_bytes = piece_bytes

    def __call__(self, view: memoryview) -> int:
        piece = self.left[: min(len(view), self.piece_bytes)]
        view[: len(piece)] = piece
        self.left = self.left[len(piece) :]
        return len(piece)


def answer_of(data: bytes, piece_bytes: int = 1 << 20, room_bytes: int = 5) -> Answer:
    return Answer(Wire(data, piece_bytes), room_bytes=room_bytes)


pieces = pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1 << 20])


@pieces
@pytest.mark.parametrize("room_bytes", [0, 5, 100_000])
def test_a_body_of_known_length(piece_bytes: int, room_bytes: int) -> None:
    answer = answer_of(HEAD + b"12345", piece_bytes, room_bytes)
    assert (answer.status, answer.length, answer.headers["content-type"]) == (206, 5, "x")
    assert not answer.leaves_open
    assert answer.take(5) == b"12345"
    assert answer.leaves_open
    assert answer.has_ended()


@pieces
def test_a_body_that_is_larger_than_its_room(piece_bytes: int) -> None:
    body = bytes(range(256)) * 40
    head = f"HTTP/1.1 200 OK\r\ncontent-LENGTH:{len(body)} \r\n\r\n".encode()
    answer = answer_of(head + body, piece_bytes)
    assert answer.take(len(body)) == body
    assert answer.leaves_open


@pieces
def test_a_chunked_body(piece_bytes: int) -> None:
    answer = answer_of(CHUNKED + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", piece_bytes)
    assert answer.length is None
    assert answer.take(13) == b"abc0123456789"
    assert not answer.leaves_open
    assert answer.has_ended()
    assert answer.leaves_open


@pieces
def test_a_body_up_to_the_end_of_the_connection(piece_bytes: int) -> None:
    answer = answer_of(b"HTTP/1.1 200\r\n\r\nabc", piece_bytes)
    assert answer.length is None
    assert answer.take(3) == b"abc"
    assert answer.has_ended()
    assert not answer.leaves_open


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + HEAD + b"12345", False),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\tc\r\nContent-Length:\r\n 0\r\n\r\n", True),
    ],
)
def test_whether_the_connection_stays_open(head: bytes, keeps: bool) -> None:
    assert answer_of(head).leaves_open is keeps


def test_more_than_was_announced_ends_the_connection() -> None:
    answer = answer_of(HEAD + b"12345HTTP/1.1 200 OK")
    assert answer.take(5) == b"12345"
    assert not answer.leaves_open


def test_headers_that_come_twice_are_joined_and_folded_ones_are_one() -> None:
    answer = answer_of(b"HTTP/1.1 200 OK\r\nA: 1\r\na: 2\r\nB: x\r\n  y\r\nContent-Length: 0\r\n\r\n")
    assert (answer.headers["a"], answer.headers["b"]) == ("1, 2", "x y")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 twenty\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 20 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ],
)
def test_no_http_that_we_know(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        answer_of(data)


@pytest.mark.parametrize("body", [b"x\r\n", b"-3\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"1" * 9000])
def test_chunks_that_are_none(body: bytes) -> None:
    answer = answer_of(CHUNKED + body)
    with pytest.raises(BadAnswer):
        answer.take(10)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200", HEAD[:-2], HEAD[:-1]])
def test_a_head_that_is_cut_short(data: bytes) -> None:
    with pytest.raises(Ended):
        answer_of(data)


@pytest.mark.parametrize(
    "data", [HEAD + b"1234", CHUNKED + b"5\r\n1234", CHUNKED + b"4\r\n1234\r\n", CHUNKED]
)
def test_a_body_that_is_cut_short(data: bytes) -> None:
    answer = answer_of(data)
    with pytest.raises(Ended):
        answer.take(5)


def test_the_beginning_of_a_refusal() -> None:
    assert answer_of(HEAD + b"123").beginning(100) == b"123"
    assert answer_of(HEAD + b"12345").beginning(3) == b"123"
    assert answer_of(CHUNKED + b"2\r\nab\r\n0\r\n\r\n").beginning(100) == b"ab"


def test_a_server_that_only_announces_answers_is_given_up() -> None:
    wire = Wire(b"HTTP/1.1 100 Continue\r\nA: " + b"x" * 60_000 + b"\r\n\r\n", piece_bytes=4096)
    wire.left *= 100
    with pytest.raises(BadAnswer):
        Answer(wire, room_bytes=5)
    assert len(wire.left) > 80 * 60_000
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4
    assert answer_of(interim + HEAD + b"12345").take(5) == b"12345"


def test_trailers_without_end_are_given_up() -> None:
    answer = answer_of(CHUNKED + b"1\r\nx\r\n0\r\n" + b"A: b\r\n" * 10_000)
    assert answer.beginning(1) == b"x"
    with pytest.raises(BadAnswer):
        answer.has_ended()


def test_what_was_taken_of_a_body_in_small_chunks_gives_way() -> None:
    body = b"1;" + b"e" * 3000 + b"\r\nx\r\n"
    answer = answer_of(CHUNKED + body * 1000 + b"0\r\n\r\n", piece_bytes=5000)
    assert answer.take(1000) == b"x" * 1000
    assert answer.has_ended()
    assert len(answer._buffer) < 64 << 10


def test_a_space_before_a_colon_hides_no_header() -> None:
    with pytest.raises(BadAnswer):
        answer_of(HEAD.replace(b"Length:", b"Length :") + b"12345")
