"""A node on which gpushare's device plugin was until now: kubelet's checkpoint has its ids, which name no GPU of ours."""

from __future__ import annotations

import msgspec
from builders import agent_node
from node_world import app, manifest

from gpuslice import names
from gpuslice.clock import SystemClock
from gpuslice.cluster.state import Cluster
from gpuslice.kube.wire import Pod
from gpuslice.node.kubeletmessages import ContainerDevices, ContainerResources, PodResources
from gpuslice.node.ledger import Ledger
from gpuslice.node.nodepod import read_pod
from gpuslice.node.publish import corrections


def test_gpushares_record_of_a_running_pod_stands() -> None:
    cluster = Cluster(clock=SystemClock())
    cluster.set_node(agent_node("n1", 15, 31))
    gpus = cluster.gpus("n1")
    assert gpus is not None
    body = manifest("old", "uid", app(9))
    body["metadata"]["annotations"] = {
        names.MEM_IDX: "1",
        names.MEM_POD: "9",
        names.MEM_DEV: "31",
        names.MEM_ASSIGNED: "true",
        names.MEM_ASSUME_TIME: "1600000000000000000",
    }
    body["spec"]["nodeName"] = "n1"
    body["status"]["phase"] = "Running"
    pod = read_pod(msgspec.convert(body, Pod), gpus)
    ids = tuple(f"GPU-old-_-{number}" for number in range(9))
    held = ContainerResources("c0", (ContainerDevices(names.GPU_MEM, ids),))
    ledger = Ledger(gpus)
    ledger.reconcile([PodResources("default", "old", (held,))], {"uid": pod}, 0, 0.0, fresh=True)
    assert corrections(pod, ledger, now_ns=1) == {}
