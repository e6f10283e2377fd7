"""A column is declared once: everything that has to know of it follows, so that nothing can forget it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuslice.devices.availability import closed, sick
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.placement.columns import Column, FleetTable, Per
from gpuslice.placement.fleet import CODES, Fleet
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.requests.allocation import Allocation, Charge
from gpuslice.requests.kinds import SHARES
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import MemoryUnit

PLAIN = Gpu(0, "GPU-0", "T4", 8192)
KINDS = {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.5gb": 1}


class Wider(FleetTable):
    """What somebody writes who needs one more fact about GPUs."""

    colour = Column(Per.GPU, np.int8, lambda node, _: [len(gpu.model) for gpu in node.gpus], empty=-1)


def node(gpu: Gpu) -> NodeGpus:
    return NodeGpus((gpu, Gpu(1, "GPU-1", "T4", 8192)))


def test_a_new_column_is_filled_grown_kept_and_emptied() -> None:
    table = Wider()
    table.set(3, node(replace(PLAIN, model="A100")), KINDS)
    table.reserve(rows=100, slots=20, kinds=9)
    assert table.colour[:3, 3].tolist() == [4, 2, -1]
    assert table.colour.shape == table.free.shape == (20, 200)
    assert table.whole_left.shape == (18, 200)
    table.clear(3)
    assert {getattr(table, column.name)[..., 3].max() for column in table.columns} == {
        column.empty for column in table.columns
    }


def test_a_new_column_tells_nodes_apart() -> None:
    table = Wider()
    for row, model in ((1, "T4"), (2, "T4"), (3, "A100")):
        table.set(row, node(replace(PLAIN, model=model)), KINDS)
    first, second, third = table.keys(np.array([1, 2, 3], np.int32), 2)
    assert first == second != third


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, memory_mib=8191),
        replace(PLAIN, availability=closed("being partitioned")),
        replace(PLAIN, availability=sick("XID 79")),
        replace(PLAIN, resource="nvidia.com/mig-1g.5gb"),
        replace(PLAIN, shareable=False),
        replace(PLAIN, replica_rule=ReplicaRule.OTHER_DEVICES),
        replace(PLAIN, replica_rule=ReplicaRule.ALONE),
        replace(PLAIN, lone=True),
    ],
)
def test_nodes_that_differ_in_what_the_search_is_told_do_not_look_alike(other: Gpu) -> None:
    table = FleetTable()
    table.set(1, node(PLAIN), KINDS)
    table.set(2, node(other), KINDS)
    first, second = table.keys(np.array([1, 2], np.int32), 2)
    assert first != second


def test_a_column_that_does_not_fit_in_the_key_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="int64 does not fit"):
        Column(Per.GPU, np.int64)


@pytest.mark.parametrize("first", ["agent", "without"])
def test_a_node_without_our_agent_does_not_answer_for_one_that_has_it(first: str) -> None:
    """Both have GPUs of 8 and 7 GiB for 5, 4, 3 and 3, which needs a step back: the search is asked once."""
    fleet = Fleet()
    names = {"agent": "b", "without": "a"} if first == "without" else {"agent": "a", "without": "b"}
    for kind, name in names.items():
        gpus = (
            Gpu(i, f"{name}{i}", "T4", gib * 1024, lone=kind == "without") for i, gib in enumerate((8, 7))
        )
        fleet.set_node(name, NodeGpus(tuple(gpus), MemoryUnit(1024)))
    request = PodRequest(
        tuple(ContainerRequest(f"c{n}", Role.APP, SHARES, gib) for n, gib in enumerate((5, 4, 3, 3)))
    )
    codes = fleet.codes(request)[fleet.rows([names["agent"], names["without"]])].tolist()
    assert [CODES[code] for code in codes] == [Code.FITS, Code.NEEDS_AGENT]
    assert isinstance(fleet.place(request, names["agent"]), Allocation)
    refused = fleet.place(request, names["without"])
    assert isinstance(refused, Verdict)
    assert refused.code is Code.NEEDS_AGENT


def test_the_largest_gpus_that_can_be_written_down_are_counted() -> None:
    """512 of 2**31 - 1 MiB: their units in all do not fit in 32 bits."""
    fleet = Fleet()
    gpus = tuple(Gpu(i, f"GPU-{i}", "m", 2**31 - 1) for i in range(512))
    fleet.set_node("n", NodeGpus(gpus, MemoryUnit(1)))
    fleet.charge("n", [Charge("GPU-0", 1, whole=False)], PodRequest())
    request = PodRequest((ContainerRequest("c", Role.APP, SHARES, 2**31 - 1),))
    assert isinstance(fleet.place(request, "n"), Allocation)
    assert CODES[fleet.codes(request)[fleet.rows(["n"])[0]]] is Code.FITS
