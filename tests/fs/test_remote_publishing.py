"""Stores whose objects are no files of this host: packs leave the scratch folder as they are made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_fs.format.pack import PackWriter
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.folder_store import FolderStore
from coldstart_fs.stores.store import PutReport
from coldstart_fs.stores.store_url import open_store
from image_builder import Layer, Steps, image_facts, write_layout

PACK_BYTES = 200_000


class Distant(FolderStore):
    """Objects are copied up from a scratch folder elsewhere, one at a time, and have no path."""

    def __init__(self, path: Path, scratch: Path) -> None:
        super().__init__(path)
        self._scratch = scratch
        self.most_packs_waiting = 0

    def local_path(self, key: str) -> Path | None:
        del key

    def put_file(self, key: str, path: Path) -> None:
        self.put_bytes(key, path.read_bytes())
        path.unlink()

    def put_files(
        self, items: Iterable[tuple[str, Path]], *, on_put: Callable[[int], None] | None = None
    ) -> PutReport:
        report = PutReport()
        for key, path in items:
            self.most_packs_waiting = max(self.most_packs_waiting, len(list(path.parent.glob("*.pack"))))
            size_bytes = path.stat().st_size
            self.put_file(key, path)
            report = report.with_sent(size_bytes)
            if on_put is not None:
                on_put(size_bytes)
        return report

    @contextmanager
    def writing(self, *, wait_seconds: float = 0.0) -> Iterator[Path]:
        with (
            super().writing(wait_seconds=wait_seconds),
            tempfile.TemporaryDirectory(dir=self._scratch) as name,
        ):
            yield Path(name)


@pytest.fixture
def distant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distant:
    monkeypatch.setattr("coldstart_fs.indexing.build.PackWriter", partial(PackWriter, full_bytes=PACK_BYTES))
    (tmp_path / "scratch").mkdir()
    return Distant(tmp_path / "store", tmp_path / "scratch")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    layer = Layer()
    for number in range(20):
        layer.file(f"f{19 - number:02}", os.urandom(100_000))
    return write_layout(tmp_path / "layout", [layer]).folder


def test_packs_go_up_one_by_one_and_only_when_everything_was_read(
    layout: Path, tmp_path: Path, distant: Distant
) -> None:
    def nothing_yet(step: str) -> None:
        if step == "writing packs":
            assert distant.list("packs/") == []

    report = index_image(f"oci:{layout}", store=distant, name="x", progress=Steps(nothing_yet))
    assert report.packs == 10
    assert distant.most_packs_waiting <= 2
    assert list((tmp_path / "scratch").iterdir()) == []
    assert len(image_facts(open_store(str(tmp_path / "store")), "x")) == 21


def test_indexing_again_sends_nothing(
    layout: Path, distant: Distant, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = index_image(f"oci:{layout}", store=distant, name="x")

    def refuse(self: Distant, key: str, content: object) -> None:
        raise AssertionError(key)

    monkeypatch.setattr(Distant, "put_file", refuse)
    monkeypatch.setattr(Distant, "put_bytes", refuse)
    again = index_image(f"oci:{layout}", store=distant, name="x")
    assert (again.digest, again.packs, again.reused_bytes) == (first.digest, 0, first.new_bytes)


def test_both_kinds_of_stores_hold_the_same_objects(layout: Path, tmp_path: Path, distant: Distant) -> None:
    near = open_store(str(tmp_path / "near"), create=True)
    for store in (near, distant):
        index_image(f"oci:{layout}", store=store, name="x")
    keys = [key for key in near.list("") if not key.startswith("refs/")]
    assert [(key, near.get(key)) for key in keys] == [
        (key, distant.get(key)) for key in distant.list("") if not key.startswith("refs/")
    ]


def test_a_source_that_turns_out_damaged_sends_nothing(
    layout: Path, tmp_path: Path, distant: Distant
) -> None:
    (blob,) = (path for path in (layout / "blobs" / "sha256").iterdir() if path.stat().st_size > 100_000)
    content = bytearray(blob.read_bytes())
    content[-20] ^= 1
    blob.write_bytes(content)
    with pytest.raises(DataError):
        index_image(f"oci:{layout}", store=distant, name="x")
    assert distant.list("") == ["coldstart-store.json"]
    assert list((tmp_path / "scratch").iterdir()) == []
