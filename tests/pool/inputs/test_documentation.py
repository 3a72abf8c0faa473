"""docs/pool-tables.md names what the tables really have."""

from __future__ import annotations

from coldstart_pool.inputs.fields import FIELDS
from conftest import REPOSITORY


def test_every_table_and_field_is_documented() -> None:
    text = (REPOSITORY / "docs" / "pool-tables.md").read_text()
    missing = [f"--{kind}" for kind in FIELDS if f"`--{kind}`" not in text and f"`--{kind}`," not in text]
    missing += [
        f"{kind}.{field}" for kind, fields in FIELDS.items() for field in fields if f"`{field}`" not in text
    ]
    assert missing == []
