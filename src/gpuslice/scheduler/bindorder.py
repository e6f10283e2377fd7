"""Whose bind waits for whose: pods that a node could confuse are not admitted there at the same time. Pure.

kubelet asks for ids without saying for which pod, so of the pods that wait for as much a node's agent may
take one for another, until a container starts. Mostly nobody minds. But the place of a pod's first container
binds those after it: an init container's ids are handed on, and what several containers take side by side may
fit nowhere else. Such a pod could be turned away on a packed node though its scheduler saw room for it.
"""

from __future__ import annotations

from gpuslice.requests.pod import PodRequest, Role


def can_be_confused(one: PodRequest, other: PodRequest) -> bool:
    """True if one of them could find no room because it, or the other, was taken for the other at first.

    Pods that are alike can change places as a whole; those with init containers cannot, since they get their
    ids in several steps.
    """
    containers = (*one.containers, *other.containers)
    if len(containers) < 3 or not _sizes(one) & _sizes(other):
        return False
    return any(c.role is Role.INIT for c in containers) or _shape(one) != _shape(other)


def _sizes(request: PodRequest) -> set[int]:
    return {container.units for container in request.shares}


def _shape(request: PodRequest) -> list[tuple[Role, int, int]]:
    return [(c.role, c.units, c.across) for c in request.containers]
