"""Modules lie in packs in the order in which starts import them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coldstart_fs.format.chunk import chunk_digest
from coldstart_fs.format.entry import Entry, made_directory
from coldstart_fs.format.locator import RECORD
from coldstart_fs.format.pack import FOOTER
from coldstart_fs.indexing.build import index_image
from coldstart_fs.indexing.imports.order import import_order
from coldstart_fs.indexing.imports.statements import Statement, imported
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from image_builder import Layer, write_layout

PACKAGES = "usr/lib/python3/dist-packages"
STANDARD = "usr/lib/python3.11"


class Tree:
    """Sources by path, as entries of an image."""

    def __init__(self, files: dict[str, str]) -> None:
        self.root = made_directory()
        self.paths: dict[Entry, str] = {}
        self._sources: dict[Entry, bytes] = {}
        for path, source in files.items():
            folder = self.root
            *folders, name = path.split("/")
            for part in folders:
                folder = folder.children.setdefault(part.encode(), made_directory())
            entry = folder.children[name.encode()] = Entry(0o100644, size=len(source))
            self.paths[entry] = path
            self._sources[entry] = source.encode()

    def order(self, **configuration: Any) -> list[str]:
        return [self.paths[entry] for entry in import_order(self.root, configuration, self._sources.get)]


def packages(sources: dict[str, str]) -> dict[str, str]:
    """Files of installed packages, by their paths without the ending."""
    return {f"{PACKAGES}/{name}.py": source for name, source in sources.items()}


def order(sources: dict[str, str]) -> list[str]:
    found = Tree(packages(sources)).order()
    return [path.removeprefix(f"{PACKAGES}/").removesuffix(".py") for path in found]


# --- what a source imports ---


def test_imports_are_found_as_python_writes_them() -> None:
    source = (
        b"import os, sys as system\n"
        b"from .near import one as first, two\n"
        b"from ..far import (  # why\n    three,\n    four,\n)\n"
        b"from . import sibling\n"
        b"try:\n    import fast\nexcept ImportError:\n    import slow  # instead\n"
        b"if True:\n\tfrom tabs import *\n"
        b"from a.b.c import d, \\\n    e\r\n"
    )
    assert list(imported(source)) == [
        Statement(b"os", ()),
        Statement(b"sys", ()),
        Statement(b".near", (b"one", b"two")),
        Statement(b"..far", (b"three", b"four")),
        Statement(b".", (b"sibling",)),
        Statement(b"fast", ()),
        Statement(b"slow", ()),
        Statement(b"tabs", ()),
        Statement(b"a.b.c", (b"d", b"e")),
    ]


@pytest.mark.parametrize(
    "block",
    [
        "def late():\n    import later\n",
        "async def late():\n    import later\n",
        "@decorated\ndef late():\n    import later\n",
        "class Late:\n    def late(self):\n        import later\n",
        "if TYPE_CHECKING:\n    import later\n",
        "if typing.TYPE_CHECKING:\n    from later import x\n",
        "text = 'import later'\n",
        "important = 1\n",
        "# import later\n",
    ],
)
def test_what_does_not_happen_at_import_is_no_import(block: str) -> None:
    source = f"import first\n{block}import last\n".encode()
    assert [statement.module for statement in imported(source)] == [b"first", b"last"]


def test_any_bytes_are_a_source() -> None:
    assert list(imported(b"")) == []
    assert list(imported(os.urandom(10_000) + b"\nimport found"))[-1:] == [Statement(b"found", ())]
    assert len(list(imported(b"from x import (" + b"a," * 10_000))) <= 1
    assert len(list(imported(b"import " + b",".join(b"a%d" % number for number in range(20_000))))) == 4096
    assert list(imported(b"from " + b"x." * 20_000 + b"y import z")) == []


def test_comments_in_parentheses_may_hold_anything() -> None:
    source = b"from x import (  # (why)\n    one,  # not two, three)\n    # from y import z\n    four,\n)\n"
    assert list(imported(source)) == [Statement(b"x", (b"one", b"four"))]


@pytest.mark.parametrize(
    "line",
    [b"from . import(\n", b"from . import (#\n", b"from . import (a,\n", b"import a,a,a,a,\\\n", b"from"],
)
def test_no_source_takes_long(line: bytes) -> None:
    source = (line * 128_000)[: 128 << 10]
    started = time.process_time()
    for _ in imported(source):
        pass
    assert time.process_time() - started < 2  # milliseconds; minutes where it would be quadratic


def test_a_small_tree_cannot_make_a_long_walk() -> None:
    deep, files = PACKAGES, {}
    source = "from " + ".".join("x" * 30) + " import " + ",".join("a" * 60_000)
    for _ in range(30):
        deep += "/x"
        files[f"{deep}/__init__.py"] = source
    assert len(Tree(files).order()) == 30


# --- their order ---


def test_modules_come_as_imports_nest() -> None:
    found = order(
        {
            "top/__init__": "from top.a import x\nimport top.b\n",
            "top/a": "from . import c\n",
            "top/b": "import other.deep.leaf\n",
            "top/c": "",
            "top/unused": "",
            "other/__init__": "",
            "other/deep/__init__": "",
            "other/deep/leaf": "from ... import nothing\n",
        }
    )
    assert found == ["top/__init__", "top/a", "top/c", "top/b", *(f"other/{name}" for name in OTHER)]


OTHER = ("__init__", "deep/__init__", "deep/leaf")


def test_cycles_end_and_packages_without_an_init_are_walked_through() -> None:
    found = order(
        {"top/__init__": "import top.space.one", "top/space/one": "import top.two", "top/two": "import top"}
    )
    assert found == ["top/__init__", "top/space/one", "top/two"]


def test_byte_code_stands_for_its_source() -> None:
    tree = Tree(
        {
            f"{PACKAGES}/m.py": "import n",
            f"{PACKAGES}/__pycache__/m.cpython-311.pyc": "m11",
            f"{PACKAGES}/__pycache__/m.cpython-311.opt-1.pyc": "optimised",
            f"{PACKAGES}/__pycache__/m.cpython-312.pyc": "m12",
            f"{PACKAGES}/__pycache__/more.cpython-311.pyc": "another",
            f"{PACKAGES}/n.py": "",
        }
    )
    cache = f"{PACKAGES}/__pycache__"
    assert tree.order() == [f"{cache}/m.cpython-311.pyc", f"{cache}/m.cpython-312.pyc", f"{PACKAGES}/n.py"]


def test_the_standard_library_is_found_from_packages_and_the_nearest_is_taken() -> None:
    other = "opt/python/lib/python3.9"
    tree = Tree(
        {
            f"{PACKAGES}/m/__init__.py": "import json",
            f"{STANDARD}/json.py": "",
            f"{other}/json.py": "import os",
            f"{other}/os.py": "",
            f"{other}/site-packages/n.py": "import json",
        }
    )
    found = tree.order()
    assert found.index(f"{STANDARD}/json.py") == found.index(f"{PACKAGES}/m/__init__.py") + 1
    place = found.index(f"{other}/json.py")
    assert found[place + 1] == f"{other}/os.py"


def test_an_image_without_python_has_no_modules() -> None:
    assert Tree({"srv/app.py": "import os", "bin/sh": ""}).order() == []


COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({"entrypoint": ["python3", "/srv/app.py"]}, "srv/app.py"),
    ({"command": ["python3", "-u", "app.py"], "working_directory": "/srv"}, "srv/app.py"),
    ({"entrypoint": ["python3", "-m"], "command": ["tool.run"]}, f"{PACKAGES}/tool/__init__.py"),
    ({"entrypoint": ["uvicorn", "app:api"], "working_directory": "/srv"}, "srv/app.py"),
    ({"command": ["serve", "--port", "80"]}, "usr/bin/serve"),
    ({"command": ["serve"], "environment": ["PATH=/opt/bin"]}, "opt/bin/serve"),
    ({"command": ["/opt/bin/serve"]}, "opt/bin/serve"),
]


@pytest.mark.parametrize(("configuration", "first"), COMMANDS)
def test_what_the_images_command_imports_comes_first(configuration: dict[str, Any], first: str) -> None:
    tree = Tree(
        {
            **packages({"big/__init__": "import big.one, big.two", "big/one": "", "big/two": ""}),
            **packages({"shared": "", "tool/__init__": "import shared", "tool/run": ""}),
            "srv/app.py": "import shared",
            "usr/bin/serve": "#!/usr/bin/python3\nimport shared\n",
            "usr/bin/uvicorn": "#!/bin/sh\nimport shared\n",
            "opt/bin/serve": "#!/usr/bin/env python3\nimport shared\n",
        }
    )
    found = tree.order(**configuration)
    assert found[:2] == [first, f"{PACKAGES}/shared.py"]
    assert tree.order()[0] == f"{PACKAGES}/big/__init__.py"


@pytest.mark.parametrize(
    "configuration",
    [
        {"entrypoint": ["python3", "-m"]},
        {"entrypoint": ["", ":", "-m", "", "..", "/.py", ".py"]},
        {"command": ["../../x.py"], "working_directory": "/../../"},
        {"command": ["serve"], "environment": ["PATH="], "working_directory": "/absent/folder"},
    ],
)
def test_odd_commands_begin_nowhere(configuration: dict[str, Any]) -> None:
    assert Tree(packages({"m": ""})).order(**configuration) == [f"{PACKAGES}/m.py"]


def test_what_python_really_imports_is_in_that_order() -> None:
    """The standard library of the Python that runs this, imported for real."""
    start = "import email.message, logging.config, unittest\n"
    script = f"import sys\nold = set(sys.modules)\n{start}"
    script += (
        "for name, module in sys.modules.items():\n    name in old or print(getattr(module, '__file__', ''))"
    )
    command = [sys.executable, "-I", "-S", "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    folder = Path(json.__file__).parent.parent
    sources = {
        f"{STANDARD}/{path.relative_to(folder)}": path.read_text("utf-8", "replace")
        for path in folder.rglob("*.py")
        if "site-packages" not in path.parts
    }
    found = Tree({**sources, "srv/start.py": start}).order(command=["python3", "/srv/start.py"])
    real = [f"{STANDARD}/{Path(name).relative_to(folder)}" for name in said if name.endswith(".py")]
    missing = [name for name in real if name not in found[: 2 * len(real)]]
    assert len(missing) <= len(real) // 20, missing


# --- and in packs ---


def packed(store: Store) -> list[bytes]:
    found = []
    for key in store.list("packs/"):
        content = store.get(key)
        _, _, count, table = FOOTER.unpack(content[-FOOTER.size :])
        found += [record[0] for record in RECORD.iter_unpack(content[table : table + count * RECORD.size])]
    return found


IMAGE = {
    f"{PACKAGES}/z.py": b"import a\n",
    f"{PACKAGES}/__pycache__/z.cpython-311.pyc": b"z" * 5000,
    f"{PACKAGES}/a.py": b"from b import c\n",
    f"{PACKAGES}/__pycache__/a.cpython-311.pyc": b"a" * 5000,
    f"{PACKAGES}/b.py": b"x = 1\n",
    "etc/first": b"first",
}


def test_packs_begin_with_the_modules_in_their_order_from_images_and_from_folders(tmp_path: Path) -> None:
    layer = Layer()
    for name, content in IMAGE.items():
        layer.file(name, content)
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    layout = write_layout(tmp_path / "layout", [layer]).folder
    wanted = [f"{PACKAGES}/__pycache__/a.cpython-311.pyc", f"{PACKAGES}/b.py"]
    wanted += [
        f"{PACKAGES}/__pycache__/z.cpython-311.pyc",
        "etc/first",
        f"{PACKAGES}/a.py",
        f"{PACKAGES}/z.py",
    ]
    contents = [chunk_digest(IMAGE[name][start : start + 4096]) for name in wanted for start in (0, 4096)]
    stores = []
    for source in (f"oci:{layout}", f"dir:{tmp_path / 'root'}"):
        store = open_store(str(tmp_path / f"store{len(stores)}"), create=True)
        index_image(source, store=store, name="image", chunk_bytes=4096)
        stores.append({key: store.get(key) for key in store.list("packs/")})
        assert packed(store) == [digest for digest in contents if digest != chunk_digest(b"")]
    assert stores[0] == stores[1]


def test_a_folder_may_have_modules_under_any_second_name(tmp_path: Path) -> None:
    folder = tmp_path / "root" / PACKAGES
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "z.py").write_bytes(b"import y\n")
    (folder / "y.py").write_bytes(b"")
    (folder / "__pycache__" / "z.cpython-311.pyc").write_bytes(b"code")
    os.link(folder / "z.py", folder / "a")
    os.link(folder / "__pycache__" / "z.cpython-311.pyc", folder / "__pycache__" / "a")
    store = open_store(str(tmp_path / "store"), create=True)
    index_image(f"dir:{tmp_path / 'root'}", store=store, name="image")
    assert packed(store)[0] == chunk_digest(b"code")


def test_modules_that_the_store_has_stay_where_they_are(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    layer = Layer()
    for name, content in IMAGE.items():
        layer.file(name, content)
    index_image(f"oci:{write_layout(tmp_path / 'one', [layer]).folder}", store=store, name="one")
    before = set(store.list("packs/"))
    layer = Layer()
    for name, content in {**IMAGE, f"{PACKAGES}/new.py": b"import a, z\n"}.items():
        layer.file(name, content)
    report = index_image(f"oci:{write_layout(tmp_path / 'two', [layer]).folder}", store=store, name="two")
    assert report.new_bytes == len(b"import a, z\n")
    assert before < set(store.list("packs/"))
