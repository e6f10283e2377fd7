"""The live picture of `gpuslice up`: the fullest nodes, one bar per GPU."""

from __future__ import annotations

import io

from cli_world import Json, node, pod, remember
from rich.console import Console

from gpuslice import names
from gpuslice.cli.up.liveview import NODES, picture


def text_of(*bodies: Json) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(picture(remember(list(bodies)).snapshots()))
    return console.export_text()


def test_a_line_shows_each_gpus_share_and_the_number_of_pods() -> None:
    at = {"annotations": {names.MEM_IDX: "1"}}
    text = text_of(node("a", 10240, 10240), pod("p", 3, on="a", **at), pod("q", 2, on="a", **at))
    assert text.splitlines()[1].split() == ["a", "..........", "#####.....", "2"]


def test_a_large_cluster_is_cut_to_its_fullest_nodes() -> None:
    nodes = [node(f"n{number:02}", 10240) for number in range(NODES + 5)]
    text = text_of(*nodes, pod("p", 3, on="n16", annotations={names.MEM_IDX: "0"}))
    assert "n16" in text
    assert "and 5 more nodes" in text
