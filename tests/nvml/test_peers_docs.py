"""docs/peers.md names tests that there are: one for each defect of NVIDIA's tools that ours are to be without."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "peers.md").read_text()


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", TEXT)
    assert len(named) >= 20
    absent = [(file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert absent == []


def test_every_defect_that_is_named_has_a_test() -> None:
    table = TEXT.partition("## Defects")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row for row in rows if "::test_" not in row] == []
