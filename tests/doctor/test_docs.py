"""docs/doctor.md lists what the doctor can say, and nothing else; every finding has its fault in a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def codes() -> set[str]:
    """The code of every finding that the checks make, and of every sentence of the webhook's."""
    found = set()
    folders = ("checks", "host")
    for file in (one for name in folders for one in (ROOT / "src/gpuslice/doctor" / name).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            position = {"Finding": 1, "_say": 0, "_visible": 1}.get(name)
            if position is not None:
                argument = node.args[position]
                if isinstance(argument, ast.Constant):
                    found.add(str(argument.value))
    return found


def test_every_finding_is_documented_and_tested() -> None:
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs/doctor.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    documented = {code for row in rows for code in re.findall(r"`(.+?)`", row)}
    assert len(codes()) > 50
    assert all(CODE.fullmatch(code) for code in codes())
    assert documented == codes()
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert {code for code in codes() if f'"{code}"' not in tests} == set()
