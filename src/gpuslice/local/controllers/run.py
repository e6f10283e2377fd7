"""All controllers together, over one set of informers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gpuslice.clock import Clock
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.local.controllers.daemonset import DaemonSetController
from gpuslice.local.controllers.deployment import DeploymentController
from gpuslice.local.controllers.disruption import DisruptionController
from gpuslice.local.controllers.garbage import GarbageCollector
from gpuslice.local.controllers.informers import Informers
from gpuslice.local.controllers.job import JobController
from gpuslice.local.controllers.namespaces import NamespaceController, NamespaceFurnisher
from gpuslice.local.controllers.nodes import NodeController
from gpuslice.local.controllers.objects import Pod
from gpuslice.local.controllers.podcontrol import PodControl
from gpuslice.local.controllers.replicaset import ReplicaSetController
from gpuslice.local.controllers.runtime import Controller, Expectations, Shared
from gpuslice.local.controllers.statefulset import StatefulSetController
from gpuslice.local.controllers.stranded import StrandedPods

COMPONENTS: Final = {
    "Deployment": "deployment-controller",
    "ReplicaSet": "replicaset-controller",
    "StatefulSet": "statefulset-controller",
    "DaemonSet": "daemonset-controller",
    "Job": "job-controller",
    "Node": "node-controller",
    "Pod": "taint-eviction-controller",
}
"""Who says what happens to objects of a kind, as kube-controller-manager's parts call themselves."""


async def run_controllers(
    client: Client,
    *,
    clock: Clock,
    new_id: Callable[[], str],
    random: Callable[[], float],
    root_ca: str = "",
) -> None:
    """Run every controller, for ever. `root_ca` (PEM) goes into each namespace's kube-root-ca.crt."""
    informers = Informers(client, clock=clock, random=random)
    recorders = {
        kind: EventRecorder(client, component, clock=clock, new_id=new_id, random=random)
        for kind, component in COMPONENTS.items()
    }
    shared = Shared(client, informers, recorders, Expectations(clock), clock, random)
    control = PodControl(shared, informers.of(Pod))
    controllers: list[Controller] = [
        ReplicaSetController(shared, control),
        DeploymentController(shared),
        StatefulSetController(shared, control),
        DaemonSetController(shared, control),
        JobController(shared, control),
        NodeController(shared),
        StrandedPods(shared),
        DisruptionController(shared),
        NamespaceController(shared),
        NamespaceFurnisher(shared, root_ca),
        GarbageCollector(shared),
    ]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informers.run())
        for recorder in recorders.values():
            tasks.create_task(recorder.run())
        for controller in controllers:
            tasks.create_task(controller.run())
