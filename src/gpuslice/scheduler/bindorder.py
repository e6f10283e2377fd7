"""Decides which pod's bind waits for which other pod: pods that a node could confuse are not admitted
together. Pure.

kubelet asks for ids without saying for which pod, so until a container starts a node's agent may confuse pods
that wait for the same amount. Mostly that does no harm. But the GPU of a pod's first container binds its
later ones: an init container's ids are handed on, and what several containers take side by side may fit
nowhere else. Such a pod could be rejected on a packed node although its scheduler found that it fits.
"""

from __future__ import annotations

from gpuslice.requests.pod import PodRequest, Role


def can_be_confused(one: PodRequest, other: PodRequest) -> bool:
    """True if one of them could fail to fit because the two were confused at first.

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
