"""MIG by a node's label, as NVIDIA's mig-manager has it: nvidia.com/mig.config says how its GPUs are to be.

Where that is answered: the label nvidia.com/mig.config.state (pending, success, failed), the reason in an
annotation. Every GPU is cut as soon as nothing that has to go is in use: what has to go is given to nobody
any more, and no pod is ended. Nothing is remembered: each turn compares what is wished with what is there,
so a restart, a reboot that lost all instances, or a crash between two steps ends where the label says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.config.migparted import MigPartedFile
from gpuslice.errors import GpuSliceError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Node
from gpuslice.node.discovery.driver import Driver
from gpuslice.node.migexecutor import GpuPlan, MigExecutor, MigGoal, MigRefused, Reset, goals_of
from gpuslice.node.migsurvey import survey
from gpuslice.placement.migsteps import Action

NVIDIAS: Final = "nvidia.com/gpu.deploy.mig-manager"
"""Label of nodes on which the GPU operator runs mig-manager itself."""
PENDING, SUCCESS, FAILED = "pending", "success", "failed"
AGAIN_SECONDS: Final = 5.0
"""How soon to look again while pods hold what has to go."""
LOOK_SECONDS: Final = 60.0
"""How often to look whether the GPUs still are as the label says."""
CLOSED_SECONDS: Final = 0.05

_log = structlog.get_logger(__name__)

Held = Callable[[], Mapping[str, str]]
"""UUIDs of the GPUs and MIG devices that containers hold: who (namespace/name, "" if that is not known)."""


@dataclass(frozen=True, slots=True)
class MigTools:
    """What it takes to cut this node's GPUs.

    `close`: UUIDs that are to be given to nobody; those of before are open again. `configs`: a file of
    mig-parted's, None for the configurations that go by standard names.
    """

    driver: Driver
    close: Callable[[Collection[str]], None]
    reset: Reset | None = None
    configs: Path | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of looking once."""

    state: str
    reason: str = ""


class MigManager:
    """One node's. `close` answers True once what it was told to close really is given to nobody."""

    def __init__(
        self,
        client: Client,
        node: str,
        tools: MigTools,
        *,
        held: Held,
        close: Callable[[Collection[str]], bool],
        clock: Clock,
    ) -> None:
        self._client = client
        self._name = node
        self._driver = tools.driver
        self._configs = tools.configs
        self._reset = tools.reset
        self._held = held
        self._close = close
        self._clock = clock
        self._node: Node | None = None
        self._wake = asyncio.Event()

    def set_node(self, node: Node) -> None:
        """The node as the API server has it."""
        before, self._node = self._node, node
        if before is None or _wish(before) != _wish(node):
            self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            node = self._node
            pause = LOOK_SECONDS
            wish = _wish(node) if node is not None else ""
            if wish:
                try:
                    turn = await self._turn(wish)
                    await self._tell(turn)
                    pause = AGAIN_SECONDS if turn.state == PENDING else LOOK_SECONDS
                except GpuSliceError as error:
                    _log.warning("cannot follow the label of MIG now", config=wish, error=str(error))
                    pause = AGAIN_SECONDS
            else:
                self._close(())
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        timer = asyncio.create_task(self._clock.sleep(seconds))
        wake = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait((timer, wake), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            wake.cancel()
        self._wake.clear()

    # --- one look ---------------------------------------------------------------------------------
    async def _turn(self, wish: str) -> Turn:
        """Do what can be done now."""
        try:
            machine = await asyncio.to_thread(survey, self._driver)
            file = MigPartedFile.load(self._configs) if self._configs is not None else machine.standard
            goals = goals_of(machine.wishes(file, wish))
            waiting = await self._plans(goals)
        except GpuSliceError as error:
            self._close(())
            return Turn(FAILED, str(error))
        if not waiting:
            self._close(())
            return Turn(SUCCESS)
        going = {plan.gpu.uuid: _going(plan) for plan in waiting}
        while not self._close(frozenset().union(*going.values())):
            await self._clock.sleep(CLOSED_SECONDS)
        held = self._held()
        in_use = {
            plan.gpu.index: sorted(
                {held[uuid] or "a container" for uuid in going[plan.gpu.uuid] & held.keys()}
            )
            for plan in waiting
        }
        free = [plan.gpu for plan in waiting if not in_use[plan.gpu.index]]
        if free:
            await self._tell(Turn(PENDING, "GPUs are being cut"))
        executor = MigExecutor(self._driver, held=held.keys(), reset=self._reset)
        for gpu in free:
            try:
                await asyncio.to_thread(executor.carry_out, {gpu.uuid: goals[gpu.uuid]})
            except GpuSliceError as error:
                self._close(())
                return Turn(FAILED, str(error))
            _log.info("a GPU was cut", gpu=gpu.index, config=wish)
        who = [f"GPU {index}: {', '.join(users)}" for index, users in sorted(in_use.items()) if users]
        if who:
            return Turn(PENDING, f"these have to end first: {'; '.join(who)}")
        self._close(())
        return Turn(SUCCESS)

    async def _plans(self, goals: Mapping[str, MigGoal]) -> list[GpuPlan]:
        """What is to be done, all checked before anything is touched. Raises MigRefused, DriverError.

        A GPU that can be as it is wished beside what is in use is planned so; otherwise as if nothing were.
        """
        careful = MigExecutor(self._driver, held=self._held().keys(), reset=self._reset)
        bold = MigExecutor(self._driver, reset=self._reset)
        plans: list[GpuPlan] = []
        for uuid, goal in goals.items():
            try:
                found = await asyncio.to_thread(careful.plan, {uuid: goal})
            except MigRefused:
                found = await asyncio.to_thread(bold.plan, {uuid: goal})
            plans += [plan for plan in found if not plan.does_nothing]
        return plans

    async def _tell(self, turn: Turn) -> None:
        node = self._node
        if node is None:
            return
        said = (
            (node.metadata.labels or {}).get(names.MIG_CONFIG_STATE),
            node.annotations.get(names.MIG_CONFIG_REASON, ""),
        )
        if said == (turn.state, turn.reason):
            return
        body = {
            "metadata": {
                "labels": {names.MIG_CONFIG_STATE: turn.state},
                "annotations": {names.MIG_CONFIG_REASON: turn.reason or None},
            }
        }
        told = await self._client.patch(Node, self._name, body)
        if self._node is not None and self._node.uid == told.uid and _wish(self._node) == _wish(told):
            self._node = told


def _wish(node: Node) -> str:
    """The configuration that the node is to have; "" if nobody says so, or NVIDIA's own manager listens."""
    labels = node.metadata.labels or {}
    return "" if labels.get(NVIDIAS, "false") != "false" else labels.get(names.MIG_CONFIG, "")


def _going(plan: GpuPlan) -> frozenset[str]:
    """UUIDs of what will not be there afterwards: MIG devices, and the GPU itself where the mode changes."""
    gone = {(step.gi_id, step.ci_id) for step in plan.plan.steps if step.action is Action.DESTROY_CI}
    devices = plan.gpu.mig_devices
    if plan.changes_mode:
        return frozenset((plan.gpu.uuid, *(device.uuid for device in devices)))
    return frozenset(d.uuid for d in devices if (d.gpu_instance, d.compute_instance) in gone)
