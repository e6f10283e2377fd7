"""Reads a pod's status. A module of its own, so that an agent need not load the arrays of a whole cluster."""

from __future__ import annotations

from gpuslice.kube.wire import Pod


def has_ended(pod: Pod) -> bool:
    """True once no container of the pod can touch a GPU any more.

    A deletionTimestamp alone does not count (processes hold their memory through the grace period), nor
    does a final phase while a container is still reported running.
    """
    if pod.status.phase not in ("Succeeded", "Failed"):
        return False
    statuses = (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
    return all(status.state.running is None for status in statuses)


def is_unschedulable(pod: Pod) -> bool:
    """True if the pod is to run and its scheduler found no node for it."""
    return (
        not pod.spec.node_name
        and pod.metadata.deletion_timestamp is None
        and any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in pod.status.conditions or ()
        )
    )
