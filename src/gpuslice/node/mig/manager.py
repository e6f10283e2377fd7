"""Partitions a node's GPUs by its labels, as NVIDIA's mig-manager does, and as waiting pods need it.

The label nvidia.com/mig.config says how the node's GPUs are to be partitioned; where the policy is on demand,
an annotation says it, written by what looks at the waiting pods. The outcome is in the label
nvidia.com/mig.config.state (pending, success, failed), its reason in an annotation. Every GPU is partitioned
as soon as nothing that has to go is in use: devices that have to go are given to nobody any more, and no pod
is ended. Nothing is remembered: each round compares what is asked for with what is there, so after a restart,
a reboot that lost all instances, or a crash between two steps the GPUs still become what the node asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock, happened
from gpuslice.cluster.migrecords import encode_partitions
from gpuslice.devices.found import FoundGpu
from gpuslice.devices.inventory import Gpu
from gpuslice.devices.migstate import MigState
from gpuslice.errors import GpuSliceError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node
from gpuslice.node.discovery.backend import DiscoveredGpus
from gpuslice.node.discovery.driver import Driver
from gpuslice.node.mig.desired import DesiredMig
from gpuslice.node.mig.executor import GpuPlan, MigExecutor, MigGoal, MigRefused, Reset
from gpuslice.node.mig.survey import survey
from gpuslice.placement.migsteps import Action
from gpuslice.units import parse_count

RETRY_SECONDS: Final = 5.0
"""How soon to look again while pods hold what has to go."""
RECONCILE_SECONDS: Final = 60.0
"""How often to look whether the GPUs still are as the label says."""
CLOSED_SECONDS: Final = 0.05

_log = structlog.get_logger(__name__)

Users = Callable[[], Mapping[str, str]]
"""The pods (namespace/name) that hold GPUs and MIG devices or are about to, by the device's UUID."""


@dataclass(frozen=True, slots=True)
class MigTools:
    """What it takes to partition this node's GPUs.

    `configs`: a file of mig-parted's, None for the configurations that go by standard names.
    """

    driver: Driver
    backend: DiscoveredGpus
    reset: Reset | None = None
    configs: Path | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The result of one reconciliation."""

    state: MigState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done: GPUs that can be partitioned now beside what is in use, and GPUs that cannot
    yet.
    """

    possible: list[GpuPlan] = field(default_factory=list)
    blocked: list[GpuPlan] = field(default_factory=list)


class MigManager:
    """One node's. `close` returns True once the devices it was given to close really are given to nobody.

    `unknown` says why the users of the GPUs are not known now, "" if they are: nothing is partitioned without
    knowing them.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        tools: MigTools,
        *,
        users: Users,
        close: Callable[[Collection[str]], bool],
        unknown: Callable[[], str] = lambda: "",
        clock: Clock,
    ) -> None:
        self._client = client
        self._name = node
        self._tools = tools
        self._users = users
        self._close = close
        self._unknown = unknown
        self._clock = clock
        self._node: Node | None = None
        self._awaits_kubelet = False
        self._wake = asyncio.Event()

    def set_node(self, node: Node) -> None:
        """The node as the API server has it."""
        before, self._node = self._node, node
        if (
            before is None
            or DesiredMig.of(before) != DesiredMig.of(node)
            or (self._awaits_kubelet and before.status.allocatable != node.status.allocatable)
        ):
            self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            pause = RECONCILE_SECONDS
            desired = DesiredMig.of(self._node) if self._node is not None else DesiredMig()
            try:
                if desired:
                    status = await self._reconcile(desired)
                    await self._write_status(desired, status)
                    pause = RETRY_SECONDS if status.state == MigState.PENDING else RECONCILE_SECONDS
                else:
                    self._close(())
                    await self._write_status(desired)
            except GpuSliceError as error:
                _log.warning("cannot follow what the node says of MIG now", by=str(desired), error=str(error))
                pause = RETRY_SECONDS
            await happened(self._wake, self._clock, pause)
            self._wake.clear()

    # --- one look ---------------------------------------------------------------------------------
    async def _reconcile(self, desired: DesiredMig) -> Status:
        """Do what can be done now."""
        tools = self._tools
        try:
            machine = await asyncio.to_thread(survey, tools.driver)
            goals = desired.goals(machine, tools.configs, tools.backend.strategy)
            work = await self._plans(goals)
        except GpuSliceError as error:
            self._close(())
            return Status(MigState.FAILED, str(error))
        # Layouts for waiting pods are written anew when something is in use; a label waits until nothing is.
        waiting = work.possible if desired.on_demand else [*work.possible, *work.blocked]
        plans = [*work.possible, *work.blocked]
        if not plans:
            self._close(())
            return Status(MigState.SUCCESS)
        if not await self._closed(frozenset().union(*map(_going, waiting))):
            return Status(
                MigState.PENDING, "kubelet has not yet confirmed that the devices to be removed are closed"
            )
        if problem := self._unknown():
            return Status(MigState.PENDING, problem)
        users = self._users()
        in_use = {
            plan.gpu.uuid: sorted({users[uuid] for uuid in _going(plan) & users.keys()}) for plan in plans
        }
        free = [plan.gpu for plan in waiting if not in_use[plan.gpu.uuid]]
        if free:
            await self._write_status(desired, Status(MigState.PENDING, "GPUs are being partitioned"))
        try:
            await self._partition(desired, free, goals, users.keys())
        except GpuSliceError as error:
            self._close(())
            return Status(MigState.FAILED, str(error))
        who = sorted((plan.gpu.index, ", ".join(in_use[plan.gpu.uuid])) for plan in plans)
        said = "; ".join(f"GPU {index}: {pods}" for index, pods in who if pods)
        if desired.on_demand or not said:
            self._close(())
        return (
            Status(MigState.PENDING, f"these have to end first: {said}") if said else Status(MigState.SUCCESS)
        )

    async def _partition(
        self,
        desired: DesiredMig,
        gpus: Sequence[FoundGpu],
        goals: Mapping[str, MigGoal],
        held: Collection[str],
    ) -> None:
        """Partition these one after the other; afterwards the GPUs are announced as they then are.

        Raises MigRefused, DriverError.
        """
        if not gpus:
            return
        executor = MigExecutor(self._tools.driver, held=held, reset=self._tools.reset)
        async with self._tools.backend.partitioning():
            for gpu in gpus:
                await asyncio.to_thread(executor.apply, {gpu.uuid: goals[gpu.uuid]})
                _log.info("a GPU was partitioned", gpu=gpu.index, by=str(desired))

    async def _closed(self, uuids: Collection[str]) -> bool:
        """Give these to nobody any more; True once kubelet has taken it over and shows it."""
        while not self._close(uuids):
            await self._clock.sleep(CLOSED_SECONDS)
        self._awaits_kubelet = not self._kubelet_knows(uuids)
        return not self._awaits_kubelet

    def _kubelet_knows(self, closing: Collection[str]) -> bool:
        """True once the node offers to schedulers no more than what is still given out.

        The kubelet would reject a pod that a scheduler places on a device that is about to go.
        """
        offered = self._tools.backend.gpus()
        allocatable = (self._node.status.allocatable if self._node else None) or {}
        for resource in {gpu.resource for gpu in offered if gpu.device in closing}:
            said = parse_count(allocatable.get(resource, 0), field=f"status.allocatable[{resource}]")
            if said > sum(_is_offered(gpu, resource) for gpu in offered):
                return False
        return True

    async def _plans(self, goals: Mapping[str, MigGoal]) -> _Work:
        """What is to be done, all checked before anything is touched. Raises MigRefused, DriverError.

        A GPU that can reach its goal beside what is in use is planned so; otherwise as if nothing were in
        use.
        """
        driver, reset = self._tools.driver, self._tools.reset
        careful = MigExecutor(driver, held=self._users().keys(), reset=reset)
        bold = MigExecutor(driver, reset=reset)
        work = _Work()
        for uuid, goal in goals.items():
            try:
                found, kind = await asyncio.to_thread(careful.plan, {uuid: goal}), work.possible
            except MigRefused:
                found, kind = await asyncio.to_thread(bold.plan, {uuid: goal}), work.blocked
            kind += [plan for plan in found if not plan.does_nothing]
        return work

    async def _write_status(self, desired: DesiredMig, status: Status | None = None) -> None:
        """Write the status where the node does not have it yet. No status means that nobody asked for
        anything.
        """
        labels: dict[str, str] = {}
        annotations: dict[str, str | None] = {}
        if status is not None:
            labels[names.MIG_CONFIG_STATE] = status.state
            annotations[names.MIG_CONFIG_REASON] = status.reason or None
        if desired.on_demand:
            machine = await asyncio.to_thread(survey, self._tools.driver)
            annotations[names.MIG_PARTITIONS] = encode_partitions(machine.partitions)
        else:
            annotations |= _NOTHING_ON_DEMAND
        node = self._node
        if node is None:
            return
        present = node.metadata.labels or {}
        labels = {key: value for key, value in labels.items() if present.get(key) != value}
        annotations = {key: value for key, value in annotations.items() if node.annotations.get(key) != value}
        if not labels and not annotations:
            return
        body = {"metadata": {"labels": labels, "annotations": annotations}}
        answer = await self._client.patch(Node, self._name, body)
        if (
            self._node is not None
            and self._node.uid == answer.uid
            and DesiredMig.of(self._node) == DesiredMig.of(answer)
        ):
            self._node = answer


_NOTHING_ON_DEMAND: Final[Mapping[str, None]] = {names.MIG_PARTITIONS: None, names.MIG_WANTED: None}
"""The annotations removed from a node that is not partitioned on demand: old layouts must not come back when
the policy does.
"""


def _is_offered(gpu: Gpu, resource: str) -> bool:
    return gpu.available and gpu.resource == resource


def _going(plan: GpuPlan) -> frozenset[str]:
    """UUIDs of what will not be there afterwards: MIG devices, and the GPU itself where the mode changes."""
    gone = {(step.gi_id, step.ci_id) for step in plan.plan.steps if step.action is Action.DESTROY_CI}
    devices = plan.gpu.mig_devices
    if plan.changes_mode:
        return frozenset((plan.gpu.uuid, *(device.uuid for device in devices)))
    return frozenset(d.uuid for d in devices if (d.gpu_instance, d.compute_instance) in gone)
