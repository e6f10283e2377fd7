"""What is said of the house is so: its drawings are the linter's contracts, and tests let no time pass."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
REAL = ("contract", "e2e")
"""Against a real cluster nothing but time tells."""
MAP = (ROOT / "ARCHITECTURE.md").read_text()
DRAWINGS = re.findall(r"^```mermaid\n(.*?)^```$", MAP, re.MULTILINE | re.DOTALL)


def _layers() -> list[set[str]]:
    """The rooms as import-linter has them, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["name"].startswith("Layers: ")]
    return [set(re.findall(r"gpuslice\.(\w+)", layer)) for layer in contract["layers"]]


def test_the_drawing_of_the_rooms_is_what_the_linter_checks() -> None:
    rooms = DRAWINGS[0]
    drawn = {
        number: set(re.findall(r"^ +(\w+)$", inside, re.MULTILINE))
        for number, inside in re.findall(
            r"subgraph (L\d+).*?\n(.*?)    end$", rooms, re.MULTILINE | re.DOTALL
        )
    }
    order = rooms.strip().splitlines()[-1].split(" --> ")
    assert [drawn[number.strip()] for number in order] == _layers()
    assert len(drawn) == len(order)


def test_the_table_of_the_rooms_is_what_the_linter_checks() -> None:
    rows: dict[int, set[str]] = {}
    for number, rooms in re.findall(r"^\| (\d+) \| ([^|]*) \|", MAP, re.MULTILINE):
        rows.setdefault(int(number), set()).update(re.findall(r"`(\w+)`", rooms))
    assert [rows[number] for number in sorted(rows, reverse=True)] == _layers()


def test_every_room_and_module_that_the_map_names_is_there() -> None:
    packages = {path.name for path in (ROOT / "src" / "gpuslice").iterdir() if path.is_dir()}
    named = set(re.findall(r"\b(\w+/[\w/]+(?:\.py)?)\b", MAP))
    ours = {path for path in named if path.split("/")[0] in packages}
    there = ROOT / "src" / "gpuslice"
    assert {p for p in ours if not (there / p).exists() and not (there / f"{p}.py").exists()} == set()
    assert len(ours) > 20


def test_every_key_that_is_written_on_objects_is_in_names_and_in_the_map() -> None:
    source = ROOT / "src" / "gpuslice"
    found = {
        (file.name, node.value)
        for file in source.rglob("*.py")
        if "gpuslice.io/" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and re.fullmatch(r"gpuslice\.io/(?!v\d)[\w.-]+", str(node.value))
    }
    assert {file for file, _ in found} == {"names.py"}
    assert {key for _, key in found if f"`{key}`" not in MAP} == set()


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
