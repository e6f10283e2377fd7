"""What plans for a pool are told of a node."""

from __future__ import annotations

import msgspec
import pytest

from gpuslice import names
from gpuslice.capacity.nodepool import PoolFields, read_fields
from gpuslice.capacity.poolobserver import PoolObserver
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.cluster.state import Cluster
from gpuslice.devices.availability import OK, Availability, closed, sick
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.kube.wire import Node

CUT = closed("being partitioned into MIG devices")


@pytest.mark.parametrize(("other", "answered"), [(CUT, True), (sick("XID 79"), False), (OK, False)])
def test_an_agent_has_answered_when_what_has_to_go_is_closed_not_when_a_gpu_is_sick(
    other: Availability, answered: bool
) -> None:
    """The node would get pods again before the agent has closed anything."""
    gpus = NodeGpus(tuple(Gpu(i, f"GPU-{i}", "A100", 40536, a) for i, a in enumerate((OK, other))))
    node = msgspec.convert(
        {
            "metadata": {
                "name": "a",
                "labels": {names.MIG_CONFIG: "all-1g.5gb", names.MIG_CONFIG_STATE: "pending"},
                "annotations": {**encode_gpus(gpus), names.MIG_CONFIG_REASON: "these have to end first"},
            },
            "status": {"allocatable": {names.WHOLE_GPU: "1" if other != OK else "2"}},
        },
        Node,
    )
    cluster = Cluster(clock=SystemClock())
    cluster.set_node(node)
    observer = PoolObserver(cluster, SystemClock())
    fields = PoolFields(selector={"rack": "r1"}, vm_size="Standard_ND96asr_v4", gpu_instance_profile="MIG1g")
    assert observer.observe(node, read_fields("p", fields)).answered is answered
