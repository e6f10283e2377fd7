"""Decisions as values: a code for programs, a sentence for humans, the numbers behind it.

The same object feeds the scheduler's answer, events, metrics and `explain`. Sentences of the same
reason are the same text on every node (kube-scheduler counts equal texts together); what differs by
node is in `numbers`. The sentences of the gpushare codes are gpushare's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """Base of all codes, for programs: label values in metrics and `code` in `-o json`.

    Each package that decides something has its own codes; what they mean for a pod is the same everywhere.
    """

    @property
    def ok(self) -> bool:
        """True for a yes."""
        return False


class Code(Reason):
    """The engine's codes."""

    FITS = "fits"
    NODE_NOT_FOUND = "node_not_found"
    NOT_GPU_NODE = "not_gpu_node"
    INSUFFICIENT = "insufficient_memory_in_one_gpu"
    INSUFFICIENT_GPUS = "too_few_gpus_with_room"
    NO_WHOLE_GPU = "no_free_whole_gpu"
    NO_MIG_DEVICE = "no_free_mig_device"
    NO_REPLICA = "no_free_replica"
    SAME_DEVICE = "replicas_of_too_few_devices"
    NODE_FULL = "node_allocatable_exhausted"
    CLOSED = "gpu_closed"
    UNHEALTHY = "gpu_unhealthy"
    UNDECIDED = "too_many_ways_to_divide"
    NEEDS_AGENT = "several_gpus_need_the_agent"
    BAD_REQUEST = "bad_request"
    MIG_UNKNOWN_PROFILE = "mig_profile_unknown"
    MIG_IMPOSSIBLE = "mig_layout_impossible"
    MIG_IN_USE = "mig_instances_in_use"
    MIG_NO_ROOM = "no_room_for_mig_instance"

    @property
    def ok(self) -> bool:
        return self is Code.FITS


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision about one pod (and mostly one node)."""

    code: Reason
    message: str
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True for a yes."""
        return self.code.ok


FITS = Verdict(Code.FITS, "fits")

_TEXTS: Mapping[Code, str] = {
    Code.FITS: "fits",
    Code.NODE_NOT_FOUND: 'node "{node}" not found',
    Code.NOT_GPU_NODE: "The node {node} is not for GPU share, need skip",
    Code.INSUFFICIENT: "Insufficient GPU Memory in one device",
    Code.INSUFFICIENT_GPUS: "Insufficient GPU Memory in as many devices as the pod asks for",
    Code.NO_WHOLE_GPU: "Insufficient free whole GPUs",
    Code.NO_MIG_DEVICE: "Insufficient free MIG devices of the profile",
    Code.NO_REPLICA: "Insufficient free replicas of GPUs",
    Code.SAME_DEVICE: "Insufficient free replicas of as many different GPUs as a container asks for",
    Code.NODE_FULL: "the device plugin of the node offers no more of the GPU resource",
    Code.CLOSED: "the GPUs with enough memory are closed while they are partitioned or change their use",
    Code.UNHEALTHY: "the GPUs with enough memory are unhealthy",
    Code.NEEDS_AGENT: (
        "Insufficient GPU Memory in one device for all containers of the pod; with gpuslice's agent on the "
        "node they could be on several"
    ),
    Code.UNDECIDED: (
        "the pod's containers can be divided among the GPUs in too many ways to try them all; "
        "ask for fewer different sizes"
    ),
}


def unavailable(closed: bool) -> Code:
    """The code of devices that would do and are given to nobody: for a time, or because they are sick."""
    return Code.CLOSED if closed else Code.UNHEALTHY


def refusal(code: Code, node: str, **numbers: int) -> Verdict:
    """The verdict of a node that cannot take a pod."""
    return Verdict(code, _TEXTS[code].format(node=node), numbers)
