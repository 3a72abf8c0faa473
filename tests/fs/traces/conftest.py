"""One small image for all tests of traces that only look at its index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart_fs.format.index import Index
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.images import open_index
from coldstart_fs.stores.store_url import open_store

PAGE = 4096


@dataclass(frozen=True)
class Small:
    """An image of a few files, indexed; `store` is its folder."""

    index: Index
    digest: bytes
    store: Path

    def number(self, path: str) -> int:
        number: int | None = 0
        for part in path.split("/"):
            assert number is not None
            number = self.index.lookup(number, os.fsencode(part))
        assert number is not None
        return number


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    folder = tmp_path_factory.mktemp("small")
    tree = folder / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "lib" / "deep").mkdir(parents=True)
    (tree / "lib" / "python").write_bytes(os.urandom(20 * PAGE + 100))
    for number in range(30):
        (tree / "lib" / "deep" / f"m{number:02}.py").write_bytes(b"x" * number)
    (tree / "bin" / "run").write_bytes(os.urandom(3 * PAGE))
    # another name of a file that comes later in the tree's order
    os.link(tree / "lib" / "python", tree / "bin" / "alias")
    os.link(tree / "bin" / "run", tree / "zz")
    (tree / "lib" / "link").symlink_to("python")
    (tree / "empty").mkdir()
    store = open_store(str(folder / "store"), create=True)
    digest = index_image(f"dir:{tree}", store=store, name="small").digest
    with open_index(store, digest, folder / "cache") as index:
        yield Small(index, digest, folder / "store")
