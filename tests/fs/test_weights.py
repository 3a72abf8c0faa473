"""Where tensors begin, read from the header of a safetensors file, and from files that are none."""

from __future__ import annotations

import json
import random

import pytest

from coldstart_fs.mounts.weights import tensor_places

FILE_BYTES = 50 << 20


def places(content: bytes, file_bytes: int = FILE_BYTES) -> list[int]:
    return tensor_places(lambda offset, length: content[offset : offset + length], file_bytes)


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def made(**tensors: object) -> bytes:
    return framed(json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode())


def tensor(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "F16", "shape": [end - begin], "data_offsets": [begin, end]}


def test_tensors_begin_after_the_header() -> None:
    content = made(b=tensor(1000, 5000), a=tensor(0, 1000), c=tensor(5000, 9000))
    assert places(content) == [len(content), len(content) + 1000, len(content) + 5000]


def test_what_lies_outside_of_the_file_is_left_out() -> None:
    content = made(a=tensor(0, 10), b=tensor(FILE_BYTES, FILE_BYTES + 1), c=tensor(1 << 70, 1 << 71))
    assert places(content) == [len(content)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF" + bytes(100),
        bytes(100),
        b"\xff" * 100,
        framed(b"{"),
        framed(b"{}"),
        framed(b"[1, 2]"),
        framed(b'{"a": 1, "b": [], "c": {"data_offsets": "x"}, "d": {"data_offsets": [-1, 2]}}'),
        framed(b'{"a":' * 100_000),
        framed(b"{" + b"\xff" * 50),
        (1 << 40).to_bytes(8, "little") + b"{" + bytes(100),
    ],
    ids=["empty", "elf", "zeros", "ones", "cut", "none", "list", "odd", "deep", "no text", "huge"],
)
def test_any_other_file_has_none(content: bytes) -> None:
    assert places(content) == []


def test_noise_is_no_header() -> None:
    make = random.Random(2)
    for _ in range(300):
        places(framed(b"{" + make.randbytes(make.randrange(60))))
