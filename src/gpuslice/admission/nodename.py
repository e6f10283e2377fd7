"""Checks pods that ask for a GPU and name their node themselves (`spec.nodeName`), past every scheduler.
Pure.

Before kubelet admits a pod it strikes out extended resources that its node has never had
(`removeMissingExtendedResources`); such a pod starts, no device plugin is called, and nothing limits the GPUs
that its containers see: an image that says `all` sees every one. A resource that the node has had is still in
its status with an amount, even if 0, and kubelet rejects a pod that asks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gpuslice import names
from gpuslice.admission.visibility import EnvSpec
from gpuslice.errors import Unavailable, quoted
from gpuslice.requests.check import asked, may_bring_gpus, of_gpus

Offered = Callable[[str], Collection[str]]
"""The resources that a node has, by its name. Raises Unavailable, with a sentence, if that is not known.
Called from the thread of reviews."""


def unknown(node: str) -> Collection[str]:
    """`Offered` for a process that does not follow the cluster's nodes."""
    raise Unavailable("the nodes of the cluster are not followed here")


def why_not_there(spec: EnvSpec, annotations: Mapping[str, str], offered: Offered) -> str:
    """Why a new pod cannot be let onto the node that it names; "" if it can, or names none.

    A mirror pod shows a pod that kubelet has already started from a file; kubelet starts no other pod with
    that annotation.
    """
    node = spec.node_name
    if not node or names.MIRROR_POD in annotations:
        return ""
    for container in (*spec.containers, *(spec.init_containers or ())):
        for resource in asked(container.resources, _gpus):
            # Requests in the form of Kubernetes 1.4 to 1.9 are translated.
            resource = names.WHOLE_GPU if resource == names.HISTORICAL_GPU else resource
            asks = f"spec.nodeName: container {quoted(container.name)} asks for {resource[:100]}"
            otherwise = "say where it may run by a node selector or affinity, so that a scheduler looks"
            try:
                if resource not in offered(node):
                    return (
                        f"{asks}, which node {quoted(node)} does not have: kubelet would start it all the "
                        "same, and no device plugin would say which GPUs it sees; ask for what the node has, "
                        f"or {otherwise}"
                    )
            except Unavailable as error:
                return (
                    f"{asks}, and whether node {quoted(node)} has that is not known: {error}; try again, "
                    f"or {otherwise}"
                )
    return ""


def _gpus(name: str) -> bool:
    return of_gpus(name) or may_bring_gpus(name)
