"""The modules that an image's own command begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coldstart_fs.format.entry import Entry
from coldstart_fs.indexing.imports.modules import Folder, Module, Modules
from coldstart_fs.indexing.imports.statements import MOST_PARTS

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETER = b"python"


def of_command(
    modules: Modules, configuration: Mapping[str, Any], read: Callable[[Entry], bytes | None]
) -> Iterator[Module]:
    """Scripts, modules (`-m`) and applications (`module:name`) that the image's command names, in order."""
    words = [*configuration.get("entrypoint", ()), *configuration.get("command", ())]
    here = _below(modules.root, str(configuration.get("working_directory", "/")))
    for place, word in enumerate(words):
        if place and words[place - 1] == "-m":
            yield from _module(modules, here, word)
        elif word.endswith(".py"):
            yield from _script(modules, here, word)
        elif not place:
            yield from _program(modules, configuration, word, read)
        elif ":" in word and not word.startswith(("-", "/")):
            yield from _module(modules, here, word.partition(":")[0])


def _module(modules: Modules, here: Folder | None, name: str) -> Iterator[Module]:
    parts = [part for part in name.encode().split(b".")[:MOST_PARTS] if part]
    found, _ = modules.absolute(here or modules.root, parts)
    yield from found
    if found and found[-1].name == b"__init__" and (main := found[-1].folder.module(b"__main__")):
        yield main


def _script(modules: Modules, here: Folder | None, path: str) -> Iterator[Module]:
    directory, _, name = path.rpartition("/")
    folder = _below(modules.root if path.startswith("/") else here, directory)
    module = folder.module(name.removesuffix(".py").encode()) if folder is not None else None
    if module is not None:
        yield module


def _program(
    modules: Modules, configuration: Mapping[str, Any], word: str, read: Callable[[Entry], bytes | None]
) -> Iterator[Module]:
    """A script that some Python runs: `vllm`, `uvicorn` and so on."""
    if "/" in word:
        paths = [word]
    else:
        paths = [f"{folder}/{word}" for folder in _search_path(configuration).split(":")]
    for path in paths:
        directory, _, name = path.rpartition("/")
        folder = _below(modules.root, directory)
        entry = folder.entry.children.get(name.encode()) if folder is not None else None
        if folder is None or entry is None or not entry.is_file:
            continue
        first = (read(entry) or b"").split(b"\n", 1)[0]
        if first.startswith(b"#!") and _INTERPRETER in first:
            yield Module(entry, folder, name.encode())
        return


def _search_path(configuration: Mapping[str, Any]) -> str:
    said = [text for text in configuration.get("environment", ()) if text.startswith("PATH=")]
    return said[-1].removeprefix("PATH=") if said else _PATH


def _below(folder: Folder | None, path: str) -> Folder | None:
    return None if folder is None else folder.below(path.encode())
