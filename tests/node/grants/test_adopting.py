"""A node on which gpushare's device plugin was until now: kubelet's checkpoint has its ids, which name no GPU of ours."""

from __future__ import annotations

import msgspec
from builders import agent_node
from node_world import app, manifest

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.state import Cluster
from gpuslice.kube.wire import Pod
from gpuslice.node.grants.ledger import Ledger
from gpuslice.node.grants.nodepod import NodePod, read_pod
from gpuslice.node.kubelet.messages import ContainerDevices, ContainerResources, PodResources
from gpuslice.node.report.publishing import corrections
from gpuslice.placement.verdict import Verdict
from gpuslice.requests.kinds import SHARES


def test_gpushares_record_of_a_running_pod_stands() -> None:
    ledger, pod = taken_over(units=9, index=1)
    assert corrections(pod, ledger, now_ns=1) == {}


def test_what_gpushares_pods_hold_is_not_given_to_a_pod_that_nobody_placed() -> None:
    """kubelet offers every id of the GPU: it knows what is held by the names of the old plugin only."""
    ledger, pod = taken_over(units=25, index=1)
    everything = [i for gpu in ledger.gpus.gpus for i in ledger.ids.of(SHARES, gpu)]
    stray = read_pod(msgspec.convert(manifest("stray", "stray", app(7)), Pod), ledger.gpus)
    given = ledger.prefer(SHARES, everything, (), 7, {"uid": pod, "stray": stray})
    assert not isinstance(given, Verdict)
    assert {ledger.ids.locate(SHARES, i) for i in given} == {ledger.gpus.gpus[0].uuid}
    stray = read_pod(msgspec.convert(manifest("stray", "stray", app(16)), Pod), ledger.gpus)
    assert isinstance(ledger.prefer(SHARES, everything, (), 16, {"uid": pod, "stray": stray}), Verdict)


def taken_over(*, units: int, index: int) -> tuple[Ledger, NodePod]:
    """A ledger of GPUs of 15 and 31 GiB that has heard of a running pod of gpushare's, and that pod."""
    cluster = Cluster(clock=SystemClock())
    cluster.set_node(agent_node("n1", 15, 31))
    gpus = cluster.gpus("n1")
    assert gpus is not None
    body = manifest("old", "uid", app(units))
    body["metadata"]["annotations"] = {
        names.MEM_IDX: str(index),
        names.MEM_POD: str(units),
        names.MEM_DEV: "31",
        names.MEM_ASSIGNED: "true",
        names.MEM_ASSUME_TIME: "1600000000000000000",
    }
    body["spec"]["nodeName"] = "n1"
    body["status"]["phase"] = "Running"
    pod = read_pod(msgspec.convert(body, Pod), gpus)
    ids = tuple(f"GPU-old-_-{number}" for number in range(units))
    held = ContainerResources("c0", (ContainerDevices(names.GPU_MEM, ids),))
    ledger = Ledger(gpus)
    ledger.reconcile([PodResources("default", "old", (held,))], {"uid": pod}, 0, 0.0, fresh=True)
    return ledger, pod
