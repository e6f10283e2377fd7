"""A driver for simulated GPUs that behaves as NVIDIA's does: MIG modes, placements, refusals, XIDs, lost
GPUs.

Like NVIDIA's it reports no event when a GPU is partitioned or reset: whoever does that queries it anew. What
happens to the machine (`raise_xid`, `lose`, `reset`, ...) may come from any thread.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from gpuslice.devices.found import Found, FoundGpu, MigDevice, MigMode, Window
from gpuslice.devices.machine import PaperGpu, PaperMachine
from gpuslice.devices.mig import Engines, MigGeometry
from gpuslice.devices.miglayout import ComputeInstance, GpuInstance, MigLayout
from gpuslice.devices.migspace import space_of
from gpuslice.node.discovery.driver import Changed, DriverError, Trouble, Xid

PATIENCE_SECONDS: Final = 10.0
"""How long a driver waits for an event."""

_NAMESPACE: Final = uuid.UUID("2f4a7d5e-98c1-5b0d-8d0e-5a5f3c1b7e42")
OFF_THE_BUS: Final = "the GPU has fallen off the bus or does not answer"


@dataclass(slots=True)
class _Mig:
    """The state of a GPU that can be partitioned; `busy` are ids of GPU instances with running programs."""

    needs_reset: bool
    current: bool
    pending: bool
    layout: MigLayout
    busy: set[int]


@dataclass(slots=True)
class _State:
    paper: PaperGpu
    lost: bool
    mig: _Mig | None

    @classmethod
    def of(cls, paper: PaperGpu) -> _State:
        left = paper.mig
        mig = left and _Mig(left.needs_reset, left.enabled, left.enabled, left.layout, set())
        return cls(paper, paper.lost, mig or None)


class SimulatedDriver:
    """A `Driver` for a machine that a file describes."""

    def __init__(self, machine: PaperMachine) -> None:
        self.on_news: Callable[[], None] = _nobody
        """Called, in any thread, when `wait` would have something to answer."""
        self._machine = machine
        self._gpus = {paper.gpu.uuid: _State.of(paper) for paper in machine.gpus}
        self._news = threading.Condition(threading.RLock())
        self._events: deque[Xid | Changed] = deque(
            Xid(paper.gpu.uuid, number) for paper in machine.gpus for number in paper.xids
        )

    # --- what happens to the machine --------------------------------------------------------------
    def describe(self, machine: PaperMachine) -> None:
        """Take in a changed description: GPUs come and go, XIDs are added, a GPU is lost or found again.

        A GPU's MIG state stays as it is unless the description of it has changed.
        """
        with self._news:
            states: dict[str, _State] = {}
            for paper in machine.gpus:
                state = self._gpus.get(paper.gpu.uuid)
                if state is None or state.paper.mig != paper.mig:
                    before, state = state, _State.of(paper)
                    known = before.paper.xids if before else ()
                else:
                    known, state.paper, state.lost = state.paper.xids, paper, paper.lost
                states[paper.gpu.uuid] = state
                if paper.xids[: len(known)] == known:
                    self._events.extend(Xid(paper.gpu.uuid, number) for number in paper.xids[len(known) :])
            self._machine, self._gpus = machine, states
            self._emit(Changed())

    def raise_xid(
        self, gpu: str, number: int, gpu_instance: int | None = None, compute_instance: int | None = None
    ) -> None:
        """The GPU reports an error."""
        with self._news:
            self._emit(Xid(gpu, number, gpu_instance, compute_instance))

    def lose(self, gpu: str) -> None:
        """The GPU falls off the bus: it reports XID 79 and nothing more."""
        with self._news:
            self._gpus[gpu].lost = True
            self._emit(Xid(gpu, 79))

    def recover(self, gpu: str) -> None:
        """A lost GPU answers again."""
        with self._news:
            self._gpus[gpu].lost = False
            self._emit(Changed())

    def use(self, gpu: str, gpu_instance: int, in_use: bool = True) -> None:
        """Record that a program runs in a GPU instance, or has ended."""
        mig = self._mig(gpu)
        (mig.busy.add if in_use else mig.busy.discard)(gpu_instance)

    def reset(self, gpu: str) -> None:
        """Reset a GPU, as `nvidia-smi --gpu-reset`: a pending MIG mode comes true. IN_USE: a program runs."""
        with self._news:
            mig = self._mig(gpu)
            if mig.busy:
                raise DriverError(Trouble.IN_USE, f"GPU {gpu} is in use by a program")
            _activate(mig)

    # --- the driver -------------------------------------------------------------------------------
    def open(self) -> None:
        """Nothing to connect."""

    def listen(self) -> None:
        """Nothing to do: all GPUs are listened to."""

    def query(self) -> Found:
        with self._news:
            gpus = tuple(_described(state) for state in self._gpus.values() if not state.lost)
            silent = tuple((s.paper.gpu.index, OFF_THE_BUS) for s in self._gpus.values() if s.lost)
            machine = self._machine
            return Found(machine.driver_version, machine.cuda_version, gpus, silent, complete=True)

    def query_gpu(self, gpu: str) -> FoundGpu:
        with self._news:
            state = self._gpus.get(gpu)
            if state is None:
                raise DriverError(Trouble.NOT_FOUND, f"the driver has no GPU {gpu} that answers")
            if state.lost:
                raise DriverError(Trouble.LOST, OFF_THE_BUS)
            return _described(state)

    def wait(self, milliseconds: int) -> Xid | Changed | None:
        with self._news:
            self._news.wait_for(lambda: self._events, milliseconds / 1000)
            return self._events.popleft() if self._events else None

    def set_mig_mode(self, gpu: str, enabled: bool) -> bool:
        with self._news:
            mig = self._mig(gpu)
            if not enabled and mig.layout.instances:
                raise DriverError(Trouble.IN_USE, f"GPU {gpu} has GPU instances; destroy them first")
            mig.pending = enabled
            if not mig.needs_reset:
                _activate(mig)
            return mig.current == enabled

    def geometry(self, gpu: str) -> MigGeometry:
        return self._mig(gpu).layout.geometry

    def layout(self, gpu: str) -> MigLayout:
        return self._mig(gpu).layout

    def create_gpu_instance(self, gpu: str, profile_id: int, start: int | None = None) -> GpuInstance:
        with self._news:
            mig = self._mig(gpu)
            geometry = mig.layout.geometry
            profile = geometry.by_id(profile_id)
            if profile is None or not mig.current:
                why = f"there is no MIG profile {profile_id}" if mig.current else "MIG is off"
                raise DriverError(Trouble.NOT_SUPPORTED, f"GPU {gpu}: {why}")
            if start is not None and start not in profile.starts:
                raise DriverError(Trouble.INVALID, f"GPU {gpu}: {profile} cannot begin at {start}")
            space = space_of(geometry)
            if start is None:
                start = space.drivers_start(mig.layout, profile)
            elif start not in space.starts(*space.state(mig.layout), profile):
                start = None
            if start is None:
                raise DriverError(Trouble.NO_ROOM, f"GPU {gpu}: no room for {profile} beside {mig.layout}")
            made = GpuInstance(profile, start, geometry.gi_id(profile, start))
            self._set(mig, (*mig.layout.instances, made))
            return made

    def destroy_gpu_instance(self, gpu: str, gpu_instance: int) -> None:
        with self._news:
            mig = self._mig(gpu)
            instance = _find(mig, gpu_instance)
            if instance.compute:
                raise DriverError(Trouble.IN_USE, f"GPU {gpu}: {instance} has compute instances")
            self._set(mig, tuple(one for one in mig.layout.instances if one.id != gpu_instance))

    def create_compute_instance(self, gpu: str, gpu_instance: int, slices: int) -> ComputeInstance:
        with self._news:
            mig = self._mig(gpu)
            instance = _find(mig, gpu_instance)
            if all(kind.slices != slices for kind in mig.layout.geometry.ci_profiles(instance.profile)):
                raise DriverError(
                    Trouble.NOT_SUPPORTED, f"GPU {gpu}: no part of {slices} slices can be made in {instance}"
                )
            if slices > instance.spare:
                raise DriverError(Trouble.NO_ROOM, f"GPU {gpu}: {instance} has {instance.spare} slices left")
            taken = {compute.id for compute in instance.compute}
            made = ComputeInstance(slices, next(i for i in range(len(taken) + 1) if i not in taken))
            self._change(mig, replace(instance, compute=(*instance.compute, made)))
            return made

    def destroy_compute_instance(self, gpu: str, gpu_instance: int, compute_instance: int) -> None:
        with self._news:
            mig = self._mig(gpu)
            instance = _find(mig, gpu_instance)
            rest = tuple(one for one in instance.compute if one.id != compute_instance)
            if len(rest) == len(instance.compute):
                raise DriverError(
                    Trouble.NOT_FOUND, f"GPU {gpu}: {instance} has no compute instance {compute_instance}"
                )
            if gpu_instance in mig.busy:
                raise DriverError(Trouble.IN_USE, f"GPU {gpu}: {instance} is in use by a program")
            self._change(mig, replace(instance, compute=rest))

    # --- inside -----------------------------------------------------------------------------------
    def _mig(self, gpu: str) -> _Mig:
        state = self._gpus.get(gpu)
        if state is None:
            raise DriverError(Trouble.NOT_FOUND, f"the driver has no GPU {gpu}")
        if state.lost:
            raise DriverError(Trouble.LOST, OFF_THE_BUS)
        if state.mig is None:
            raise DriverError(Trouble.NOT_SUPPORTED, f"{state.paper.gpu.name} cannot be partitioned")
        return state.mig

    def _change(self, mig: _Mig, instance: GpuInstance) -> None:
        self._set(mig, tuple(instance if one.id == instance.id else one for one in mig.layout.instances))

    def _set(self, mig: _Mig, instances: tuple[GpuInstance, ...]) -> None:
        mig.layout = MigLayout(mig.layout.geometry, instances)

    def _emit(self, event: Xid | Changed) -> None:
        self._events.append(event)
        self._news.notify_all()
        self.on_news()


class DirectDriver:
    """A simulated driver asked directly: one process may simulate a thousand machines."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self._news = asyncio.Event()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._driver.on_news = lambda: _wake(loop, self._news)
        self._driver.open()

    async def listen(self) -> None:
        self._driver.listen()

    async def query(self) -> Found:
        return self._driver.query()

    async def query_gpu(self, gpu: str) -> FoundGpu:
        return self._driver.query_gpu(gpu)

    async def wait(self) -> Xid | Changed | None:
        event = self._driver.wait(0)
        if event is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._news.wait()
            self._news.clear()
            event = self._driver.wait(0)
        return event


def _nobody() -> None:
    """Nobody waits for events."""


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with suppress(RuntimeError):  # that loop has ended; the machine goes on
        loop.call_soon_threadsafe(news.set)


def _activate(mig: _Mig) -> None:
    if mig.current != mig.pending:
        mig.current, mig.layout = mig.pending, MigLayout(mig.layout.geometry)


def _find(mig: _Mig, gpu_instance: int) -> GpuInstance:
    for instance in mig.layout.instances:
        if instance.id == gpu_instance:
            return instance
    raise DriverError(Trouble.NOT_FOUND, f"there is no GPU instance {gpu_instance}")


def _described(state: _State) -> FoundGpu:
    gpu, mig = state.paper.gpu, state.mig
    if mig is None:
        return gpu
    instances = sorted(mig.layout.instances, key=lambda instance: instance.id)
    parts = [(instance, compute) for instance in instances for compute in instance.compute]
    devices = tuple(_device(gpu, index, *part) for index, part in enumerate(parts))
    return replace(gpu, mig=MigMode(mig.current, mig.pending), mig_devices=devices)


def _device(gpu: FoundGpu, index: int, instance: GpuInstance, compute: ComputeInstance) -> MigDevice:
    profile = instance.profile
    name = uuid.uuid5(_NAMESPACE, f"{gpu.uuid}/{instance.id}/{compute.id}")
    return MigDevice(
        f"MIG-{name}",
        instance.id,
        compute.id,
        instance.device(compute),
        profile.memory_mib,
        _part(profile.engines, compute.slices, instance.profile.slices),
        Window(instance.start, profile.size),
        index=index,
    )


def _part(engines: Engines, slices: int, of: int) -> Engines:
    """A compute instance has its part of the multiprocessors and shares everything else."""
    return engines if slices == of or engines.sm is None else replace(engines, sm=engines.sm * slices // of)
