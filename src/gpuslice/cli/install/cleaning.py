"""Removes from the API what an installation leaves there; safe to repeat and to interrupt."""

from __future__ import annotations

from gpuslice import names
from gpuslice.capacity.nodepatch import release_patch
from gpuslice.devices.labels import owned
from gpuslice.errors import Conflict, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.leading import Lease
from gpuslice.kube.wire import Node

ANNOTATIONS = (
    names.NODE_GPUS,
    names.MEMORY_UNIT,
    names.MIG_CONFIG_REASON,
    names.MIG_PARTITIONS,
    names.MIG_WANTED,
    names.DEVICE_CONFIG,
    names.DEVICE_CONFIG_REASON,
)


async def clean(client: Client, *, lease: tuple[str, str] | None) -> list[str]:
    """Clean all nodes. Returns a line for each thing done. Raises ApiError, Unavailable.

    What kubelet itself says of the resources (aliyun.com/gpu-mem, nvidia.com/gpu) goes with the plugins.
    """
    nodes = [await _release_patched(client, node) for node in (await client.list(Node)).items]
    cleaned = [node.name for node in nodes if await _clean(client, node)]
    done = [
        f"node {name}: no annotations and labels of ours, no {names.GPU_COUNT}, "
        f"no condition {names.UNHEALTHY_CONDITION}"
        for name in cleaned
    ]
    if lease is not None:
        namespace, name = lease
        try:
            await client.delete(Lease.resource, name, namespace)
        except NotFound:
            return done
        done.append(f"lease {namespace}/{name}: deleted")
    return done


async def _release_patched(client: Client, node: Node) -> Node:
    """The node without what its pool put on it; as it was if it goes meanwhile."""
    while names.POOL_RECORD in node.annotations:
        try:
            return await client.patch(Node, node.name, release_patch(node))
        except NotFound:
            return node
        except Conflict:
            there = (await client.list(Node, field_selector=f"metadata.name={node.name}")).items
            node = there[0] if there else Node()
    return node


async def _clean(client: Client, node: Node) -> bool:
    """True if there was something to do; a node that goes meanwhile is clean.

    A node without our annotations is not ours: its count may be of a gpushare that stays. So they go last.
    """
    written = [key for key in ANNOTATIONS if key in node.annotations]
    if not written:
        return False
    amounts = {"capacity": node.status.capacity or {}, "allocatable": node.status.allocatable or {}}
    counted = [kind for kind, have in amounts.items() if names.GPU_COUNT in have]
    try:
        status: dict[str, object] = {kind: {names.GPU_COUNT: None} for kind in counted}
        if any(condition.type == names.UNHEALTHY_CONDITION for condition in node.status.conditions or ()):
            status["conditions"] = [{"$patch": "delete", "type": names.UNHEALTHY_CONDITION}]
        if status:
            body: dict[str, object] = {"status": status}
            await client.patch(Node, node.name, body, patch_type="strategic", subresource="status")
        labels = [key for key in node.metadata.labels or {} if owned(key) or key == names.MIG_STRATEGY]
        if names.GFD_TIMESTAMP in (node.metadata.labels or {}):
            labels = [key for key in labels if not key.startswith("nvidia.com/")]
        body = {"metadata": {"annotations": dict.fromkeys(written), "labels": dict.fromkeys(labels)}}
        await client.patch(Node, node.name, body)
    except NotFound:
        return False
    return True
