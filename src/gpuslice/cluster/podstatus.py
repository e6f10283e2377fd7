"""What a pod's status says. A module of its own: an agent needs it without the arrays of a whole cluster."""

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
    """True if its scheduler found no node for a pod that is to run."""
    return (
        not pod.spec.node_name
        and pod.metadata.deletion_timestamp is None
        and any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in pod.status.conditions or ()
        )
    )
