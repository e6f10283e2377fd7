"""Which replicas containers get: NVIDIA's policies, and two of one device only where that is allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.devices.inventory import Gpu, NodeGpus, ReplicaRule
from gpuslice.names import SHARED_GPU, WHOLE_GPU
from gpuslice.placement.fleet import CODES, Fleet
from gpuslice.placement.freegpu import FreeGpu
from gpuslice.placement.node import place
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.placement.whole import pick
from gpuslice.requests.kinds import WholeDevices
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role
from gpuslice.units import GIB

OUT = {"GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-2::0", "GPU-2::1", "GPU-2::2"}
"""Two of GPU 0, one of GPU 1 and three of GPU 2 are given out."""


def devices(
    rule: ReplicaRule = ReplicaRule.OTHER_DEVICES, *, out: set[str] = OUT, packed: bool = False
) -> list[FreeGpu]:
    """Three GPUs of four replicas."""
    uuids = [f"GPU-{gpu}::{number}" for gpu in range(3) for number in range(4)]
    return [
        FreeGpu(
            Gpu(
                index,
                uuid,
                "m",
                4096,
                parent=uuid.partition("::")[0],
                shareable=False,
                replica_rule=rule,
                packed=packed,
            ),
            0 if uuid in out else 4096,
            int(uuid in out),
        )
        for index, uuid in enumerate(uuids, 3)
    ]


def asking(*sizes: int, resource: str = WHOLE_GPU) -> PodRequest:
    containers = enumerate(sizes)
    return PodRequest(
        tuple(ContainerRequest(f"c{i}", Role.APP, WholeDevices(resource), n) for i, n in containers)
    )


def chosen(node: list[FreeGpu], *sizes: int) -> list[str]:
    outcome = place(asking(*sizes), GIB, node)
    assert not isinstance(outcome, Verdict), outcome
    return [grant.gpu for grant in outcome.grants]


@pytest.mark.parametrize(
    ("packed", "size", "expected"),
    [
        (False, 1, ["GPU-1::1"]),
        (False, 2, ["GPU-1::1", "GPU-0::2"]),
        (True, 1, ["GPU-2::3"]),
        (True, 3, ["GPU-2::3", "GPU-0::2", "GPU-1::1"]),
    ],
)
def test_replicas_are_of_different_gpus_by_policy(packed: bool, size: int, expected: list[str]) -> None:
    assert chosen(devices(packed=packed), size) == expected


def test_two_replicas_of_one_gpu_only_if_that_is_allowed() -> None:
    """NVIDIA's device plugin, issues 404 and 491."""
    verdict = place(asking(4), GIB, devices(out=set()))
    assert isinstance(verdict, Verdict)
    assert verdict.code is Code.SAME_DEVICE
    assert chosen(devices(ReplicaRule.ANY, out=set()), 4) == ["GPU-0::0", "GPU-1::0", "GPU-2::0", "GPU-0::1"]
    assert chosen(devices(ReplicaRule.ANY), 2) == ["GPU-1::1", "GPU-0::2"]
    assert chosen(devices(ReplicaRule.ANY, packed=True), 3) == ["GPU-2::3", "GPU-0::2", "GPU-0::3"]


def test_packed_replicas_of_one_container_are_of_one_gpu() -> None:
    """As NVIDIA's device plugin 0.20 picks them: what is picked counts as given out."""
    assert chosen(devices(ReplicaRule.ANY, out=set(), packed=True), 3) == ["GPU-0::0", "GPU-0::1", "GPU-0::2"]
    one_of_gpu_1 = devices(ReplicaRule.ANY, out={"GPU-1::0"}, packed=True)
    assert chosen(one_of_gpu_1, 2, 2) == ["GPU-1::1", "GPU-1::2", "GPU-1::3", "GPU-0::0"]


def test_containers_of_one_pod_may_have_the_same_gpu() -> None:
    assert chosen(devices(out={f"GPU-{g}::{n}" for g in (0, 1) for n in range(4)}), 1, 1) == [
        "GPU-2::0",
        "GPU-2::1",
    ]


def test_what_one_container_takes_leaves_the_next_enough_different_ones() -> None:
    """The only replica of GPU 1 is the best for the first, but then the second would have two of GPU 0."""
    there = ("GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::3")
    node = [room for room in devices(out={"GPU-0::2"}) if room.gpu.uuid in there]
    assert chosen(node, 1) == ["GPU-1::3"]
    first, *second = chosen(node, 1, 2)
    assert first.startswith("GPU-0")
    assert sorted(one[:5] for one in second) == ["GPU-0", "GPU-1"]


def test_where_a_container_may_have_one_only_it_is_refused_more() -> None:
    assert chosen(devices(ReplicaRule.ALONE), 1) == ["GPU-1::1"]
    assert isinstance(place(asking(2), GIB, devices(ReplicaRule.ALONE)), Verdict)
    unshared = [FreeGpu(Gpu(i, uuid, "m", 16276), 16276) for i, uuid in enumerate(("GPU-7", "GPU-8"))]
    assert chosen([*unshared, *devices(ReplicaRule.ALONE)], 2) == ["GPU-7", "GPU-8"], "these are no replicas"


def test_what_a_container_has_already_counts() -> None:
    """A kubelet asks for more beside what the pod's init container leaves."""
    free = [room for room in devices(out=set()) if room.gpu.uuid != "GPU-0::3"]
    (found,) = pick(asking(1).containers, free, devices(out=set()), beside=["GPU-0::3"]) or ()
    assert [room.gpu.uuid for room in found] == ["GPU-1::0"]
    packed = devices(ReplicaRule.ANY, out=set(), packed=True)
    free = [room for room in packed if room.gpu.uuid != "GPU-1::3"]
    (found,) = pick(asking(1).containers, free, packed, beside=["GPU-1::3"]) or ()
    assert [room.gpu.uuid for room in found] == ["GPU-1::0"], "beside what it has, as with NVIDIA's plugin"


def test_the_cluster_refuses_a_node_whose_free_replicas_are_of_too_few_gpus() -> None:
    fleet = Fleet()
    for node, gpus in (("one", 1), ("two", 2)):
        replicas = [
            Gpu(number, f"{node}-{number % gpus}::{number // gpus}", "T4", 3000, resource=SHARED_GPU)
            for number in range(4)
        ]
        fleet.set_node(
            node, NodeGpus(tuple(replace(gpu, replica_rule=ReplicaRule.OTHER_DEVICES) for gpu in replicas))
        )
    codes = fleet.codes(asking(2, resource=SHARED_GPU))[fleet.rows(["one", "two"])]
    assert [CODES[number] for number in codes] == [Code.SAME_DEVICE, Code.FITS]
    codes = fleet.codes(asking(5, resource=SHARED_GPU))[fleet.rows(["one", "two"])]
    assert [CODES[number] for number in codes] == [Code.NO_REPLICA, Code.NO_REPLICA]
