"""Reads a waiting pod once into the values that decisions about it need."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuslice.cluster.predicates import NodeRules, rules_of
from gpuslice.cluster.resources import Footprint, footprint_of
from gpuslice.cluster.unsupported import unsupported
from gpuslice.errors import InputError
from gpuslice.kube.wire import Pod
from gpuslice.requests.pod import PodRequest, read_request


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pod asks of a node. Pods of one controller have equal demands and get equal answers."""

    rules: NodeRules
    footprint: Footprint
    request: PodRequest
    priority: int


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits for a node. `problem`: why it can be placed on no node at all."""

    pod: Pod = field(compare=False)
    demand: Demand
    problem: str = ""

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def may_preempt(self) -> bool:
        """True unless the pod's priority class says that it waits its turn."""
        return self.pod.spec.preemption_policy != "Never"


def read_waiting(pod: Pod) -> WaitingPod:
    """Read a pod. Input that is wrong, or asks for something unsupported, becomes its `problem`."""
    spec = pod.spec
    rules, priority = rules_of(spec), spec.priority
    try:
        demand = Demand(rules, footprint_of(spec), read_request(spec, pod.annotations), priority)
    except InputError as error:
        return WaitingPod(pod, Demand(rules, Footprint(), PodRequest(), priority), str(error))
    return WaitingPod(pod, demand, unsupported(spec))
