"""Every name that we write to or read from objects is in `names`, explained there and in ARCHITECTURE's table."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

from gpuslice import names

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gpuslice"


def test_every_name_is_explained() -> None:
    body = ast.parse((SOURCE / "names.py").read_text()).body
    bare = [
        ast.unparse(one.target)
        for one, after in pairwise(body)
        if isinstance(one, ast.AnnAssign)
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]
    assert not bare
    assert isinstance(body[-1], ast.Expr)


def test_no_other_module_has_an_annotation_or_label_of_its_own() -> None:
    ours = re.compile(r"gpuslice\.io/(?!v\d)[a-z][a-z./-]*|GPUUnhealthy")
    strays = [
        f"{file.relative_to(SOURCE)}: {node.value}"
        for file in SOURCE.rglob("*.py")
        if file.name != "names.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ours.fullmatch(node.value)
    ]
    assert not strays


def test_architectures_table_has_every_annotation_and_label() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("## What is written where") :].partition("\n\nNodes without")[0]
    told = {key for cell in re.findall(r"`([^`]+)`", table) for key in _spelled_out(cell)}
    ours = {
        value for value in vars(names).values() if isinstance(value, str) and value.startswith("gpuslice.io/")
    } | {names.MIG_CONFIG, names.MIG_CONFIG_STATE, names.DEVICE_PLUGIN_CONFIG, names.UNHEALTHY_CONDITION}
    ours |= {*names.GPUSHARE_ANNOTATIONS, names.GPUSHARE_ALLOCATION, names.LABEL_GPUSHARE}
    assert not ours - told
    known = {value for value in vars(names).values() if isinstance(value, str)}
    assert not {key for key in told if key.startswith(("gpuslice.io/", "nvidia.com/")) and key not in known}


def _spelled_out(cell: str) -> list[str]:
    """`A_{X,Y}` is A_X and A_Y."""
    inner = re.search(r"\{(.*?)\}", cell)
    return [cell.replace(inner[0], one) for one in inner[1].split(",")] if inner else [cell]
