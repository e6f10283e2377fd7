"""Nodes that are not there: kwok keeps thousands of them Ready and says that their pods run.

Only the nodes that carry kwok's annotation are its; the real kubelets beside them are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from .cluster import Object, RealCluster, condition
from .components import KWOK_STAGES
from .processes import Process

MINE = "kwok.x-k8s.io/node"


def fake_nodes(
    cluster: RealCluster,
    count: int,
    *,
    prefix: str = "fake",
    capacity: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[str]:
    """Create `count` fake nodes, see to it that kwok runs, wait until all are Ready, and return their names.

    `capacity` is added to what a large machine has and is allocatable as a whole. A node that a real pod must not
    land on needs a taint or a selector: for the scheduler these are nodes like any other.
    """
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "250", **(capacity or {})}

    def create(number: int) -> str:
        name = f"{prefix}-{number}"
        node: Object = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {MINE: "fake", **(annotations or {})},
                "labels": {"kubernetes.io/hostname": name, "type": "kwok", **(labels or {})},
            },
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        cluster.request("POST", "/api/v1/nodes", node)
        return name

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(create, range(count)))
    start_kwok(cluster)

    def ready() -> bool:
        found = cluster.objects("nodes", namespace=None, labelSelector="type=kwok")
        return set(names) <= {
            node["metadata"]["name"] for node in found if condition(node, "Ready") == "True"
        }

    cluster.wait(ready, 60 + count / 20, f"{count} fake nodes to be Ready")
    return names


def start_kwok(cluster: RealCluster) -> None:
    """Start kwok for the cluster; once is enough."""
    if any(process.name == "kwok" for process in cluster.helpers):
        return
    command = [
        str(cluster.programs / "kwok"),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--config={cluster.programs / KWOK_STAGES}",
        f"--manage-nodes-with-annotation-selector={MINE}=fake",
        "--manage-all-nodes=false",
        # Renewed every quarter of this. Shorter, leases would be most of the load; at 200 s a node is now and then
        # given up, for the controllers' patience is 50 s.
        "--node-lease-duration-seconds=120",
        "--server-address=127.0.0.1:10247",
    ]
    enter = cluster.plane.namespace.enter
    kwok = Process("kwok", lambda: enter(*command), cluster.work / "logs" / "kwok.log", cluster.etcd.cgroup)
    cluster.helpers.append(kwok)
    kwok.start()
