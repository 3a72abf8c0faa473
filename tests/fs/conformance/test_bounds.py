"""Archives that are small and ask for much: time and memory stay in proportion to what was read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from coldstart_cli.errors import DataError
from fs.conformance.raw_tar import BLOCK, GNU, RawTar, header
from image_builder import apply_layers

pytestmark = pytest.mark.timeout(60)  # each takes a second or so; quadratic ones took minutes


@pytest.fixture
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 << 20


def test_a_long_chain_of_hard_links_before_their_targets_is_bound_in_one_go() -> None:
    layer = RawTar()
    for number in range(30_000):
        layer.link(b"l%d" % number, b"l%d" % (number + 1))
    tree = apply_layers(layer.file(b"l30000", b"1").content())
    assert len({id(entry) for name, entry in tree.items() if name}) == 1


def test_a_long_ring_of_hard_links_is_refused() -> None:
    layer = RawTar()
    for number in range(30_000):
        layer.link(b"l%d" % number, b"l%d" % ((number + 1) % 30_000))
    with pytest.raises(DataError, match="which is not there"):
        apply_layers(layer.content())


def _old_map() -> bytes:
    tail = bytearray(167)
    tail[137], tail[138:150] = 1, b"%011o\0" % 1000
    block = bytes(504) + b"\1" + bytes(7)
    return header(b"f", b"S", magic=GNU, tail=bytes(tail)) + block * (20 << 20 >> 9)


def _new_map(content: bytes) -> bytes:
    keys = {b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.realsize": b"1000"}
    return RawTar().file(b"f", content, pax=keys).content()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_old_map, "passes a limit: .*`f`: its sparse map has more than 8388608 bytes"),
        (
            lambda: _new_map(b"9999999\n" + b"1\n" * (10 << 20)),
            "passes a limit: .*`f`: its sparse map has more than 8388608 bytes",
        ),
        (lambda: _new_map(b"1" * (10 << 20)), "passes a limit: .*`f`: its sparse map has"),
        (
            lambda: RawTar().pax([(b"path", b"x" * (9 << 20))]).content(),
            "passes a limit: .*an extended header has",
        ),
        (
            lambda: (
                RawTar().pax([(b"SCHILY.xattr.%d" % n, b"") for n in range(300)], b"g").file(b"f").content()
            ),
            "passes a limit: .*more than 256 PAX records are for all files",
        ),
        (
            lambda: RawTar().gnu_name(b"x" * (7 << 20)).file(b"f").content(),
            "`x+...` has more than 4095 bytes",
        ),
        (
            lambda: RawTar().gnu_link(b"x" * (7 << 20)).symlink(b"f", b"x").content(),
            "`f` is a symlink without a usable target",
        ),
    ],
    ids=[
        "old sparse map",
        "sparse map",
        "endless number",
        "PAX header",
        "PAX records for all",
        "GNU name",
        "GNU target",
    ],
)
def test_what_is_too_long_is_refused(make: Callable[[], bytes], why: str) -> None:
    with pytest.raises(DataError, match=why):
        apply_layers(make())


def test_symlinks_that_lead_through_thousands_of_folders_are_refused() -> None:
    layer = RawTar()
    for number in range(40):
        layer.symlink(b"l%d" % number, b"", pax={b"linkpath": b"./" * 1500 + b"l%d" % (number + 1)})
    with pytest.raises(DataError, match="leads through a loop of symlinks"):
        apply_layers(layer.file(b"l0/f").content())


@pytest.mark.usefixtures("little_memory")
def test_a_whiteout_of_a_large_folder_costs_what_the_folder_holds() -> None:
    lower, upper = RawTar(), RawTar()
    for number in range(5_000):
        lower.file(b"d/%d" % number)
        upper.file(b"d/.wh.%d" % number)
    upper.file(b"d/own").file(b"d/.wh..wh..opq").file(b".wh.d")
    assert set(apply_layers(lower.content(), upper.content())) == {b"", b"d", b"d/own"}


def test_an_opaque_marker_again_and_again_costs_nothing_more() -> None:
    layer = RawTar()
    for number in range(20_000):
        layer.file(b"d/%d" % number).file(b"d/.wh..wh..opq").file(b".wh.d")
    assert len(apply_layers(RawTar().file(b"d/old").content(), layer.content())) == 20_002


@pytest.mark.usefixtures("little_memory")
def test_an_endless_row_of_zeros_after_the_end_is_only_passed_over() -> None:
    assert set(apply_layers(RawTar().file(b"f").content() + bytes(60_000 * BLOCK))) == {b"", b"f"}
