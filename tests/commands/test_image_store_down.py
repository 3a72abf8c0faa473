"""Commands that look at an image whose store is down: they go on from the cache, and say so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Coldstart
from fs.servers import FaultyServer, answer, faulty_server


@pytest.fixture
def server(coldstart: Coldstart, tmp_path: Path) -> Iterator[FaultyServer]:
    """A server of a store with one image, which `image ls` has opened before."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("content")
    source, store = f"dir:{tmp_path / 'root'}", tmp_path / "s"
    indexed = coldstart("image", "index", source, "--name", "app", "--store", store)
    assert indexed.status == 0, indexed.stderr
    with faulty_server(store) as server:
        yield server


def test_files_of_a_known_image_are_listed_with_a_warning_that_tells_its_age(
    coldstart: Coldstart, server: FaultyServer
) -> None:
    first = coldstart("image", "ls", "app", "--store", server.url)
    assert (first.status, first.stderr) == (0, "")
    server.fault = answer(403)
    later = coldstart("image", "ls", "app", "--store", server.url)
    assert (later.status, later.stdout) == (0, first.stdout)
    assert re.search(
        r"warning: going on with what the cache knows of the name, as of \d{4}-\d\d-\d\d \d\d:\d\d UTC: "
        r"access is refused",
        " ".join(later.stderr.split()),
    )
    as_json = coldstart("image", "ls", "app", "--store", server.url, "--json")
    assert json.loads(as_json.stdout)["schema"] == "coldstart.image.ls.entries"
    assert "going on with what the cache knows" in as_json.stderr


@pytest.mark.parametrize("verb", ["show", "diff"])
def test_an_image_whose_locator_is_not_known_cannot_be_measured(
    coldstart: Coldstart, server: FaultyServer, verb: str
) -> None:
    assert coldstart("image", "ls", "app", "--store", server.url).status == 0
    server.fault = answer(403)
    result = coldstart("image", verb, *(["app"] if verb == "show" else ["app", "app"]), "--store", server.url)
    assert result.status == 77
    assert "going on with what the cache knows of the name" in result.stderr


@pytest.mark.parametrize("verb", ["show", "diff"])
def test_a_known_image_is_measured_with_a_warning(
    coldstart: Coldstart, server: FaultyServer, verb: str
) -> None:
    words = ["image", verb, *(["app"] if verb == "show" else ["app", "app"]), "--store", server.url]
    assert coldstart(*words).status == 0
    server.fault = answer(403)
    result = coldstart(*words)
    assert result.status == 0, result.stderr
    assert "going on with what the cache knows of the name" in result.stderr
    assert "going on with what the cache knows of the image, as of" in " ".join(result.stderr.split())


def test_a_store_that_is_not_there_is_75(coldstart: Coldstart, server: FaultyServer, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "coldstart/cache", ignore_errors=True)
    url = "http://127.0.0.1:1/store"
    for words in (["ls", "app"], ["show", "app"], ["mount", "app", tmp_path / "root2"]):
        (tmp_path / "root2").mkdir(exist_ok=True)
        result = coldstart("image", *words, "--store", url)
        assert result.status == 75, result.stderr
        assert "the connection is refused" in " ".join(result.stderr.split())
        assert "hint: check the address and the network" in result.stderr
