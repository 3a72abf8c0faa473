"""Packs lie in the order of the tree, or of a trace, whatever the order in which contents were met."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldstart_fs.format.chunk import Compression, chunk_digest
from coldstart_fs.format.index import Index
from coldstart_fs.format.locator import RECORD, Locator
from coldstart_fs.format.names import digest_text, index_key, locator_key
from coldstart_fs.format.pack import FOOTER
from coldstart_fs.format.trace import Read, Trace
from coldstart_fs.indexing.build import IndexReport, index_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from image_builder import Layer, folder_facts, image_facts, write_layout

CHUNK = 4096
ANOTHER_IMAGE = b"i" * 32


def make_store(folder: Path) -> Store:
    return open_store(str(folder / "store"), create=True)


def snapshot(store: Store) -> dict[str, bytes]:
    """All but the names, which hold a time."""
    return {key: store.get(key) for key in store.list("") if not key.startswith("refs/")}


def index(
    source: Path, store: Store, *, trace: Trace | None = None, compression: Compression | None = None
) -> IndexReport:
    kind = "oci" if (source / "oci-layout").exists() else "dir"
    return index_image(
        f"{kind}:{source}", store=store, name="image", chunk_bytes=CHUNK, trace=trace, compression=compression
    )


def packed(store: Store, packs: Sequence[str] | None = None) -> list[bytes]:
    """Digests of all packed chunks as they lie."""
    found = []
    for key in packs if packs is not None else store.list("packs/"):
        content = store.get(key)
        _, _, count, table = FOOTER.unpack(content[-FOOTER.size :])
        found += [record[0] for record in RECORD.iter_unpack(content[table : table + count * RECORD.size])]
    return found


def chunks(content: bytes) -> list[bytes]:
    return [chunk_digest(content[start : start + CHUNK]) for start in range(0, len(content), CHUNK)]


CONTENTS = {name: os.urandom(size) for name, size in {"a/x": 9000, "a/y": 100, "b": 5000}.items()}
CONTENTS["c/d/e"] = b"e"  # not by chance a zero: that would be a hole, and in no pack


def layout(folder: Path, names: Sequence[str], *, layers: int = 1, compression: str = "gzip") -> Path:
    made = [Layer() for _ in range(layers)]
    for number, name in enumerate(names):
        made[number * layers // len(names)].file(name, CONTENTS[name])
    return write_layout(folder, made, compression=compression).folder


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_order_of_tars_and_layers_is_not_seen_in_the_store(tmp_path: Path, layers: int) -> None:
    seen = []
    for number, names in enumerate((sorted(CONTENTS), sorted(CONTENTS, reverse=True))):
        store = make_store(tmp_path / str(number))
        index(layout(tmp_path / f"layout{number}", names, layers=layers), store)
        seen.append(snapshot(store))
        expected = [digest for name in sorted(CONTENTS) for digest in chunks(CONTENTS[name])]
        assert packed(store) == expected
    assert seen[0] == seen[1]


def test_what_upper_layers_hide_is_in_no_pack(tmp_path: Path) -> None:
    lower = Layer().file("a", CONTENTS["a/x"]).file("gone", b"secret" * 2000).file("z", CONTENTS["b"])
    upper = Layer().file(".wh.gone").file("a", CONTENTS["a/y"])
    store = make_store(tmp_path)
    report = index(write_layout(tmp_path / "layout", [lower, upper]).folder, store)
    assert packed(store) == chunks(CONTENTS["a/y"]) + chunks(CONTENTS["b"])
    assert report.new_bytes == len(CONTENTS["a/y"]) + len(CONTENTS["b"])


def test_a_folder_and_an_image_of_it_give_the_same_entries_and_packs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, content in CONTENTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    os.link(root / "b", root / "a" / "link")
    os.symlink("b", root / "sym")
    os.setxattr(root / "b", "user.note", b"\0x")
    os.utime(root / "b", ns=(0, -1_500_000_001))
    layer = Layer()
    for path, facts in sorted(folder_facts(root).items(), reverse=True):
        pax = {"mtime": f"{facts.mtime_ns / 1e9:.9f}" if facts.mtime_ns < 0 else _seconds(facts.mtime_ns)}
        fields = {"mode": facts.mode & 0o7777, "uid": facts.uid, "gid": facts.gid, "pax": pax}
        if facts.target:
            layer.symlink(path, facts.target, **fields)
        elif path != facts.group:
            continue
        elif facts.mode & 0o040000:
            layer.folder(path or b".", **fields)
        else:
            layer.file(path, facts.content, xattrs={k.decode(): v for k, v in facts.xattrs}, **fields)
    layer.link("b", "a/link")
    one, two = make_store(tmp_path / "1"), make_store(tmp_path / "2")
    index(root, one)
    index(write_layout(tmp_path / "layout", [layer]).folder, two)
    assert image_facts(one, "image") == image_facts(two, "image")
    assert {key: one.get(key) for key in one.list("packs/")} == {
        key: two.get(key) for key in two.list("packs/")
    }


def _seconds(mtime_ns: int) -> str:
    return f"{mtime_ns // 10**9}.{mtime_ns % 10**9:09d}"


# --- traces ---


def trace_of(*reads: tuple[str, int, int, float]) -> Trace:
    return Trace(ANOTHER_IMAGE, "start", tuple(Read(path.encode(), *numbers) for path, *numbers in reads))


@pytest.mark.parametrize("kind", ["dir", "oci"])
def test_traced_chunks_lie_first_by_time_in_packs_of_their_own(tmp_path: Path, kind: str) -> None:
    if kind == "oci":
        source = layout(tmp_path / "layout", list(CONTENTS))
    else:
        source = tmp_path / "root"
        for name, content in CONTENTS.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
    trace = trace_of(("/b", 0, 1, 2.0), ("a/x", CHUNK + 5, CHUNK, 1.0), ("b", 0, 99, 0.5), ("/none", 0, 1, 0))
    store = make_store(tmp_path)
    report = index(source, store, trace=trace)
    hot = [chunks(CONTENTS["b"])[0], *chunks(CONTENTS["a/x"])[1:]]
    every = [digest for name in sorted(CONTENTS) for digest in chunks(CONTENTS[name])]
    by_pack = sorted((packed(store, [key]) for key in store.list("packs/")), key=len)
    assert by_pack == [hot, [digest for digest in every if digest not in hot]]
    assert report.trace is not None
    assert (report.trace.chunks, report.trace.missing_paths, report.trace.of_this_image) == (3, 1, False)
    assert image_facts(store, "image")[b"b"].content == CONTENTS["b"]


def test_a_trace_moves_what_the_store_has_and_moves_it_only_once(tmp_path: Path) -> None:
    source = layout(tmp_path / "layout", list(CONTENTS))
    store = make_store(tmp_path)
    plain = index(source, store, compression=Compression())
    before = set(store.list("packs/"))
    trace = trace_of(("c/d/e", 0, 1, 0.0), ("b", 0, 9000, 1.0))
    traced = index(source, store, trace=trace)
    assert (traced.digest, traced.packs) == (plain.digest, 1)
    (hot,) = set(store.list("packs/")) - before
    assert packed(store, [hot]) == chunks(CONTENTS["c/d/e"]) + chunks(CONTENTS["b"])
    path = store.local_path(locator_key(traced.digest))
    assert path is not None
    with Locator.open(path) as locator:
        place = locator.find(chunks(CONTENTS["b"])[0])
        assert place is not None
        assert digest_text(place.pack).removeprefix("blake3:") in hot
    after = snapshot(store)
    index(source, store, trace=trace)
    index(source, store)
    assert snapshot(store) == after
    assert image_facts(store, "image")[b"b"].content == CONTENTS["b"]


# --- any tree, any order ---

NAMES = st.binary(min_size=1, max_size=3).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"0"))
BODIES = st.sampled_from([b"", b"x", b"y" * CHUNK, bytes(CHUNK * 2), b"z" * 9000, b"y" * CHUNK + bytes(5)])
TREES = st.dictionaries(
    st.lists(NAMES.filter(lambda name: name not in {b".", b".."} and not name.startswith(b".wh")), max_size=3)
    .filter(bool)
    .map(tuple),
    BODIES,
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES, seed=st.integers(0, 1000), layers=st.integers(1, 3), filled=st.booleans())
def test_any_tree_in_any_order_over_any_store_is_the_same_image(
    tmp_path_factory: pytest.TempPathFactory,
    tree: dict[tuple[bytes, ...], bytes],
    seed: int,
    layers: int,
    filled: bool,
) -> None:
    # a file below another file would mean something else in another order
    files = {
        path: body for path, body in tree.items() if not any(path[:n] in tree for n in range(1, len(path)))
    }
    folder = tmp_path_factory.mktemp("any")
    orders = [sorted(files), random.Random(seed).sample(sorted(files), len(files))]
    seen = []
    for number, order in enumerate(orders):
        made = [Layer() for _ in range(layers if number else 1)]
        for position, path in enumerate(order):
            made[position % len(made)].file(b"/".join(path), files[path])
        store = make_store(folder / str(number))
        if filled and number:
            index(write_layout(folder / "other", [Layer().file("q", b"y" * CHUNK)]).folder, store)
        report = index(write_layout(folder / f"layout{number}", made).folder, store)
        seen.append((report.digest, store.get(index_key(report.digest)), report.content_bytes))
        before = snapshot(store)
        assert index(folder / f"layout{number}", store).packs == 0
        assert snapshot(store) == before
        contents = {
            path: facts.content
            for path, facts in image_facts(store, "image").items()
            if facts.mode >> 12 == 8
        }
        assert contents == {b"/".join(path): body for path, body in files.items()}
    assert seen[0] == seen[1]


def test_hash_seeds_do_not_reach_the_store(tmp_path: Path) -> None:
    source = layout(tmp_path / "layout", list(CONTENTS), layers=2)
    seen = []
    for seed in ("0", "1", "777"):
        script = (
            "import sys\nfrom coldstart_fs.indexing.build import index_image\n"
            "from coldstart_fs.stores.store_url import open_store\n"
            "index_image('oci:' + sys.argv[1], store=open_store(sys.argv[2], create=True), name='n')\n"
        )
        folder = tmp_path / seed
        subprocess.run(
            [sys.executable, "-c", script, source, folder / "store"],
            check=True,
            timeout=60,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        seen.append(snapshot(make_store(folder)))
    assert seen[0] == seen[1] == seen[2]
    (name,) = (key for key in seen[0] if key.startswith("images/"))
    with Index.open(tmp_path / "0" / "store" / name) as opened:
        assert opened.content_bytes == sum(map(len, CONTENTS.values()))
