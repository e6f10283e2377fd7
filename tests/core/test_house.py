"""What is said of the house is so: tests let no time pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
REAL = ("contract", "e2e")
"""Against a real cluster nothing but time tells."""


def _sleeps(tree: ast.AST, function: str = "") -> Iterator[int]:
    """The lines that let time pass. A clock may: it is who is asked for time, and runs as fast as a test wants."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) else function
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep")
            and ast.unparse(node.args[0]) != "0"
            and inside != "sleep"
        ):
            yield node.lineno
        yield from _sleeps(node, inside)


def test_no_test_waits_for_time() -> None:
    found = [
        f"{file.relative_to(TESTS)}:{line}"
        for file in sorted(TESTS.rglob("*.py"))
        if file.relative_to(TESTS).parts[0] not in REAL
        if ".sleep(" in (text := file.read_text())
        for line in _sleeps(ast.parse(text))
    ]
    assert not found, "wait for the event itself, or move a clock"
