"""GetPreferredAllocation: GPUs near to each other and replicas of different ones, unless somebody planned otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.devices.found import FoundGpu, Link, Nearness
from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.kinds import WHOLE_GPUS
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role

PAIRS = {"GPU-0": "GPU-2", "GPU-1": "GPU-3"}
"""Which are on one switch."""


def near(index: int) -> FoundGpu:
    pairs = PAIRS | {two: one for one, two in PAIRS.items()}
    uuid = f"GPU-{index}"
    others = [f"GPU-{other}" for other in range(4) if other != index]
    links = (Link(o, Nearness.SWITCH if pairs[uuid] == o else Nearness.SYSTEM) for o in others)
    return FoundGpu(index, uuid, "A100", 40960, 0, links=tuple(links))


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(NodeGpus(tuple(Gpu(i, f"GPU-{i}", "A100", 40960) for i in range(4))))
    made.machine = [near(index) for index in range(4)]
    return made


ALL = [f"GPU-{index}" for index in range(4)]


def test_whole_gpus_are_near_to_each_other(ledger: Ledger) -> None:
    assert ledger.prefer(WHOLE_GPUS, ALL, (), 2, {}) == ("GPU-0", "GPU-2")
    assert ledger.prefer(WHOLE_GPUS, ALL[1:], (), 2, {}) == ("GPU-1", "GPU-3")
    assert ledger.prefer(WHOLE_GPUS, ALL, ("GPU-1",), 2, {}) == ("GPU-1", "GPU-3")


def test_what_the_scheduler_planned_wins(ledger: Ledger) -> None:
    request = PodRequest((ContainerRequest("c", Role.APP, WHOLE_GPUS, 2),))
    planned = Allocation(tuple(Grant("c", uuid, 40960, whole=True) for uuid in ("GPU-0", "GPU-1")))
    pod = NodePod("uid", "default", "a", request, ("c",), planned, since=1)
    assert ledger.prefer(WHOLE_GPUS, ALL, (), 2, {"uid": pod}) == ("GPU-0", "GPU-1")
    other = replace(pod, uid="other", name="b", planned=None, since=2)
    taken = ledger.allocate(WHOLE_GPUS, ("GPU-0", "GPU-1"), {"uid": pod}, 0.0)
    assert not isinstance(taken, Verdict)
    left = ledger.prefer(WHOLE_GPUS, ALL[2:], (), 2, {"uid": pod, "other": other})
    assert left == ("GPU-2", "GPU-3")


@pytest.mark.parametrize(
    ("packed", "chosen"),
    [(False, ("GPU-1::0", "GPU-2::0")), (True, ("GPU-0::1", "GPU-1::0"))],
)
def test_replicas_are_of_different_gpus_by_policy(packed: bool, chosen: tuple[str, ...]) -> None:
    """One of GPU 0 is given out already."""
    uuids = [f"GPU-{gpu}::{number}" for gpu in range(3) for number in range(2)]
    replicas = [
        Gpu(
            index,
            uuid,
            "T4",
            7554,
            parent=uuid[:5],
            shareable=False,
            replica_rule=ReplicaRule.OTHER_DEVICES,
            packed=packed,
        )
        for index, uuid in enumerate(uuids)
    ]
    ledger = Ledger(NodeGpus(tuple(replicas)))
    ledger.allocate(WHOLE_GPUS, ["GPU-0::0"], {}, 0.0)
    assert ledger.prefer(WHOLE_GPUS, uuids[1:], (), 2, {}) == chosen
    refused = ledger.prefer(WHOLE_GPUS, uuids[1:], (), 4, {})
    assert isinstance(refused, Verdict)
    assert "as many different GPUs; 3 have one that is free" in refused.message
    both = ledger.prefer(WHOLE_GPUS, uuids[1:], ("GPU-1::1",), 2, {})
    assert not isinstance(both, Verdict)
    assert {one[:5] for one in both} == {"GPU-1", "GPU-0" if packed else "GPU-2"}
