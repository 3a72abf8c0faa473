"""Indexes damaged images one after the other in a process of its own, and says what each came to.

`python -m fs.conformance.fuzz FOLDER FIRST COUNT` prints a JSON document.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

from coldstart_cli.errors import ColdstartError
from coldstart_fs.indexing.build import index_image
from coldstart_fs.stores.store import Store
from coldstart_fs.stores.store_url import open_store
from fs.conformance.mutations import write_mutated
from image_builder import image_facts

MEMORY_BYTES = 2 << 30
SECONDS_AN_IMAGE = 20


def main(folder: Path, first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    folder.mkdir()
    os.chdir(folder)
    store_folder = folder / "store"
    store = open_store(str(store_folder), create=True)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    messages: Counter[str] = Counter()
    for seed in range(first, first + count):
        layout = folder / "layout"
        kind, source = write_mutated(layout, seed)
        signal.alarm(SECONDS_AN_IMAGE)
        try:
            _index(source, store)
        except ColdstartError as error:
            counts[f"{kind} refused"] += 1
            messages[type(error).__name__] += 1
            if "\n" in error.message:
                failures.append(f"seed {seed}: more than one line: {error.message!r}")
        except Exception:  # noqa: BLE001 - any other error is what is looked for
            failures.append(f"seed {seed} ({kind}): {traceback.format_exc(limit=-6)}")
        else:
            counts[f"{kind} accepted"] += 1
        finally:
            signal.alarm(0)
        if left := _left_over(folder, store_folder):
            failures.append(f"seed {seed}: left over: {left}")
        shutil.rmtree(layout)
        if seed % 200 == 0:  # chunks of earlier images would answer for later ones
            shutil.rmtree(store_folder)
            store = open_store(str(store_folder), create=True)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"counts": counts, "errors": messages, "failures": failures, "memory_bytes": used}))


def _index(source: str, store: Store) -> None:
    """Accepted is what can be read again to its last byte."""
    report = index_image(source, store=store, name="image")
    if report.content_bytes < 64 << 20:
        facts = image_facts(store, "image")
        assert len({(item.group) for item in facts.values()}) == report.entries


def _left_over(folder: Path, store_folder: Path) -> list[str]:
    """What lies where nothing may: beside the store, in its scratch space, above us."""
    outside = set(os.listdir(folder)) - {"layout", "store"}
    inside = {name for name in os.listdir(store_folder) if name.startswith(".writing")}
    above = {name for name in os.listdir(folder.parent) if name.startswith("coldstart-conformance")}
    return sorted(outside | inside | above)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
