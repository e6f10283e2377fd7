"""Pods that gpushare's own scheduler has bound: on how many GPUs they are only its record says."""

from __future__ import annotations

import msgspec
import pytest

from gpuslice import names
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.wire import Pod
from gpuslice.node.grants.held import Held
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import read_pod
from gpuslice.node.kubelet.messages import ContainerDevices, ContainerResources, PodResources
from gpuslice.requests.kinds import SHARES

GPUS = NodeGpus(tuple(Gpu(i, f"GPU-{i}", "T4", 10 * 1024) for i in range(3)))


def bound(record: str, **annotations: str) -> Pod:
    limits = {names.GPU_MEM: "6"}
    return msgspec.convert(
        {
            "metadata": {
                "name": "a",
                "namespace": "default",
                "uid": "a",
                "annotations": {names.GPUSHARE_ALLOCATION: record, **annotations},
            },
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "side"}, {"name": "main", "resources": {"limits": limits}}],
            },
            "status": {"phase": "Pending"},
        },
        Pod,
    )


def test_a_share_on_two_gpus_is_let_in_and_gets_them() -> None:
    """The agent took it for a share of one GPU, and did not let it start."""
    pods = {"a": read_pod(bound('{"1":{"0":3,"2":3}}'), GPUS)}
    ledger = Ledger(GPUS)
    offered = [one for gpu in GPUS.gpus for one in ledger.ids.of(SHARES, gpu)]
    ids = ledger.prefer(SHARES, offered, (), 6, pods)
    assert isinstance(ids, tuple), ids
    assert isinstance(ledger.allocate(SHARES, ids, pods, 0.0), Held)
    listed = ContainerResources("main", (ContainerDevices(SHARES.resource, ids),))
    found = ledger.identify(SHARES, ids, [PodResources("default", "a", (listed,))], pods, 1.0, fresh=True)
    assert isinstance(found, Identity), found
    assert found.held.gpus == {"GPU-0": 3, "GPU-2": 3}


@pytest.mark.parametrize(
    ("record", "ours", "across"),
    [
        ('{"1":{"0":3,"2":3}}', "", 2),
        ('{"1":{"0":3,"7":3}}', "", 1),  # no such GPU here
        ('{"2":{"0":3,"2":3}}', "", 1),  # no such container
        ('{"1":{"0":5,"2":1}}', "", 1),
        ('{"1":{"0":3,"2":3}}', '{"main":{"GPU-0":2048,"GPU-1":2048,"GPU-2":2048}}', 3),
    ],
)
def test_what_is_not_believable_is_not_believed_and_ours_comes_first(
    record: str, ours: str, across: int
) -> None:
    annotations = {names.ALLOCATION: ours} if ours else {}
    (request,) = read_pod(bound(record, **annotations), GPUS).request.containers
    assert request.across == across
