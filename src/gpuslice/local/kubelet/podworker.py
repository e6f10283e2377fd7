"""One pod's life on the node: its containers started, watched, restarted and stopped.

Level of truth: `records`. `_live` runs as one task until the pod's containers have ended for good; a
deletion or rejection cancels it and stops what runs. Timing follows pkg/kubelet/kuberuntime: the first
restart is immediate, then 10 s doubling to 5 min (CrashLoopBackOff), forgotten after 10 good minutes; a
container that cannot be configured is tried again every 10 to 15 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

import structlog

from gpuslice import names
from gpuslice.clock import Clock
from gpuslice.errors import ApiError, Conflict, GpuSliceError, NotFound
from gpuslice.kube.backoff import Backoff
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.local.kubelet.devices import Devices
from gpuslice.local.kubelet.environment import (
    Kind,
    WaitingPod,
    command_line,
    decode_secret,
    environment,
    mounted_programs,
    on_the_host,
    sources,
)
from gpuslice.local.kubelet.logs import Log
from gpuslice.local.kubelet.podspec import PODS, Config, RunPod, Secret
from gpuslice.local.kubelet.runtime import Exit, Launch, Running, Runtime, sleeping_time
from gpuslice.local.kubelet.status import (
    Conditions,
    ContainerRecord,
    Ended,
    Started,
    Waiting,
    phase_of,
    pod_status,
    rejected_status,
)
from gpuslice.local.kubelet.statuswriter import StatusWriter

CRASH_BASE: Final = 10.0
CRASH_CAP: Final = 300.0
CRASH_FORGET_NS: Final = 600_000_000_000
RETRY: Final = (10.0, 15.0)
"""Seconds until a container that could not be configured is tried again."""
_DELETE: Final = Backoff(base=0.2, cap=10.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Host:
    """What the node lends to every pod."""

    client: Client
    devices: Devices
    runtime: Runtime
    events: EventRecorder
    statuses: StatusWriter
    clock: Clock
    random: Random
    facts: Callable[[str], WaitingPod]
    """By pod uid."""
    pods_folder: Path


class PodWorker:
    """Runs one admitted pod, or stands for one that was rejected."""

    def __init__(self, pod: RunPod, host: Host) -> None:
        self.pod = pod
        self.records = [
            ContainerRecord(
                container,
                init=number < len(pod.init_containers),
                state=Waiting("PodInitializing" if pod.init_containers else "ContainerCreating"),
            )
            for number, container in enumerate(pod.all_containers)
        ]
        self.over = False
        """True once no container of the pod runs or will run."""
        self._host = host
        self._conditions = Conditions()
        self._handles: dict[str, Running] = {}
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()  # a process must not be lost between its start and its handle
        self._hurry = asyncio.Event()
        self._deleting = False
        self._grace = 0.0
        self._began_ns = host.clock.now_ns()
        self._phase: Literal["", "Failed", "Succeeded"] = ""
        self._rejection: tuple[str, str] | None = None

    # --- what others ask ----------------------------------------------------------------------------
    def record(self, container: str) -> ContainerRecord | None:
        return next((record for record in self.records if record.spec.name == container), None)

    def runs(self, container: str) -> bool:
        record = self.record(container)
        return record is not None and record.running

    @property
    def folder(self) -> Path:
        return self._host.pods_folder / self.pod.uid

    def status(self) -> Mapping[str, object]:
        """For the API server, as of now."""
        now = self._host.clock.now_ns()
        reason, message = self._rejection or ("", "")
        if self._rejection and not any(record.container_id for record in self.records):
            return rejected_status(reason, message, now)
        facts = self._host.facts(self.pod.uid)
        return pod_status(
            self.pod,
            self.records,
            self._conditions,
            phase=self._phase or phase_of(self.pod.spec.restart_policy, self.records),
            host_ip=facts.host_ip,
            pod_ip=facts.pod_ip,
            started_ns=self._began_ns,
            now_ns=now,
            reason=reason,
            message=message,
        )

    # --- what others tell ---------------------------------------------------------------------------
    def start(self) -> None:
        """Run the containers from now on. The pod's folder is there until they have ended (`clean`)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._task = asyncio.create_task(self._live(), name=f"pod {self.pod.key}")
        self._task.add_done_callback(self._check)

    def reject(self, reason: str, message: str) -> None:
        """The pod may not be here: it ends as Failed; what runs is stopped."""
        text = f"Pod was rejected: {message}"
        self._host.events.record(self.pod, "Warning", reason, text)
        if self._ending is not None:
            return
        self._rejection, self._phase = (reason, text), "Failed"
        if self._task is None:
            self.over = True
            self._host.statuses.mark(self)
            return
        self._ending = asyncio.create_task(self._stop_and_tell(), name=f"reject {self.pod.key}")

    def delete(self, grace: float) -> None:
        """Stop everything within `grace` seconds, then delete the pod object. May be called again."""
        if not self._deleting:
            self._deleting, self._grace = True, grace
            self._ending = asyncio.create_task(
                self._stop_and_delete(grace, self._ending), name=f"end {self.pod.key}"
            )
        elif grace < self._grace:
            self._hurry.set()

    async def stop(self, grace: float) -> None:
        """Stop everything and say nothing: the pod object is gone, or the kubelet ends."""
        if self._task is not None and not self._task.done():
            async with self._starting:
                self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((self._task,))
        await self._stop_containers([r for r in self.records if r.running], grace)
        self.over = True

    async def ended(self) -> None:
        """Wait until a deletion or rejection under way is through."""
        if self._ending is not None:
            await asyncio.wait((self._ending,))

    def abandon(self) -> None:
        """Cancel a deletion under way: the kubelet ends."""
        if self._ending is not None:
            self._ending.cancel()

    def clean(self) -> None:
        """Remove the pod's folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            _log.error("a pod's worker failed", pod=self.pod.key, exc_info=error)

    # --- its life -----------------------------------------------------------------------------------
    async def _live(self) -> None:
        sidecars: list[asyncio.Task[None]] = []
        try:
            for record in self.records:
                if record.init and not await self._init(record, sidecars):
                    self._phase = "Failed"
                    return
            apps = [record for record in self.records if not record.init]
            for record in apps:
                record.state = Waiting("ContainerCreating")
            started = [(record, await self._try_start(record)) for record in apps]
            self._tell()
            if len(started) == 1:
                await self._supervise(*started[0])
            else:
                await asyncio.gather(*(self._supervise(*one) for one in started))
        finally:
            for task in sidecars:
                task.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)
        running = [record for record in self.records if record.running]
        await self._stop_containers(running, self.pod.spec.termination_grace_period_seconds)
        phase = phase_of(self.pod.spec.restart_policy, self.records)
        self._phase = "Succeeded" if phase == "Succeeded" else "Failed"
        self.over = True
        self._tell()

    async def _init(self, record: ContainerRecord, sidecars: list[asyncio.Task[None]]) -> bool:
        """Run an init container to its success, or a sidecar to its start; False if the pod has failed."""
        handle = await self._try_start(record)
        if record.spec.sidecar:
            while handle is None:
                self._tell()
                await self._until_retry()
                handle = await self._try_start(record)
            sidecars.append(asyncio.create_task(self._supervise(record, handle)))
            return True
        await self._supervise(record, handle)
        if record.passed:
            return True
        self.over = True
        self._tell()
        return False

    async def _supervise(self, record: ContainerRecord, handle: Running | Exit | None) -> None:
        """See to it that a container runs, until it has ended for good."""
        delay = 0.0
        while True:
            while handle is None:
                self._tell()
                await self._until_retry()
                handle = await self._try_start(record)
                self._tell()
            if not isinstance(handle, Exit) and record.init:
                self._tell()
            ended = self._ended(record, handle if isinstance(handle, Exit) else await handle.wait())
            if not self._restarts(record, ended.exit):
                return
            if ended.finished_ns - ended.started_ns >= CRASH_FORGET_NS:
                delay = 0.0
            if delay:
                self._crash_loop(record, delay)
                self._tell()
                await self._host.clock.sleep(delay)
            delay = min(max(2 * delay, CRASH_BASE), CRASH_CAP)
            record.restarts += 1
            handle = await self._try_start(record)
            self._tell()

    def _restarts(self, record: ContainerRecord, ended: Exit) -> bool:
        policy = self.pod.spec.restart_policy
        if record.spec.sidecar:
            return True
        if record.init:
            return ended.code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and ended.code != 0)

    def _crash_loop(self, record: ContainerRecord, delay: float) -> None:
        pod, name = self.pod, record.spec.name
        where = f"{pod.name}_{pod.namespace}({pod.uid})"
        record.state = Waiting(
            "CrashLoopBackOff",
            f"back-off {_go_duration(delay)} restarting failed container={name} pod={where}",
        )
        text = f"Back-off restarting failed container {name} in pod {where}"
        self._say(record, "Warning", "BackOff", text)

    async def _until_retry(self) -> None:
        low, high = RETRY
        await self._host.clock.sleep(low + (high - low) * self._host.random.random())

    async def _try_start(self, record: ContainerRecord) -> Running | Exit | None:
        """Start a container; None if it cannot be configured now (the record says why)."""
        host, pod = self._host, self.pod
        try:
            await host.devices.pre_start(pod, record.spec)
            launch = await self._launch(record)
        except GpuSliceError as error:
            record.state = Waiting("CreateContainerConfigError", str(error))
            self._say(record, "Warning", "Failed", f"Error: {error}")
            return None
        log = Log(host.clock.now_ns)
        async with self._starting:
            handle = await host.runtime.start(launch, log)
            record.previous_log, record.log = record.log, log
            record.launch = launch
            record.container_id = f"gpuslice://{host.random.getrandbits(256):064x}"
            record.state = Started(host.clock.now_ns())
            if isinstance(handle, Exit):
                self._say(record, "Warning", "Failed", f"Error: {handle.message}")
                return handle
            self._handles[record.spec.name] = handle
        self._say(record, "Normal", "Started", "Container started")
        return handle

    def _say(
        self, record: ContainerRecord, kind: Literal["Normal", "Warning"], reason: str, text: str
    ) -> None:
        """Write an event about one container."""
        part = "initContainers" if record.init else "containers"
        path = f"spec.{part}{{{record.spec.name}}}"
        self._host.events.record(self.pod, kind, reason, text, field_path=path)

    async def _launch(self, record: ContainerRecord) -> Launch:
        pod, container = self.pod, record.spec
        answers = self._host.devices.answers(pod, container)
        values = {source: await self._values(*source) for source in sources(container)}
        env = environment(pod, container, answers, values, self._host.facts(pod.uid))
        command = command_line(container, env)
        return Launch(
            hostname=pod.name,
            name=container.name,
            command=on_the_host(command, answers),
            env=env,
            folder=self.folder,
            seconds=_seconds(pod, record, command),
            exit_code=0 if record.init else _exit_code(pod),
            ignore_term=pod.annotations.get(names.IGNORE_TERM) == "true",
            programs=mounted_programs(answers),
        )

    async def _values(self, kind: Kind, name: str) -> Mapping[str, str] | None:
        model = Secret if kind == "secret" else Config
        try:
            data = (await self._host.client.get(model, name, self.pod.namespace)).data or {}
        except NotFound:
            return None
        return decode_secret(data) if kind == "secret" else data

    # --- its end ------------------------------------------------------------------------------------
    async def _stop_and_tell(self) -> None:
        await self.stop(self.pod.spec.termination_grace_period_seconds)
        self._tell()

    async def _stop_and_delete(self, grace: float, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        running = [record for record in self.records if record.running]
        for record in running:
            self._say(record, "Normal", "Killing", f"Stopping container {record.spec.name}")
        await self.stop(grace)
        self._host.statuses.forget(self.pod.uid)
        if running or self.pod.metadata.finalizers:
            # Before the object goes (with finalizers it stays), everybody is told that nothing runs any more.
            self._phase = self._phase or ("Succeeded" if self._all_succeeded() else "Failed")
            if not await self._host.statuses.send(self):
                self._host.statuses.mark(self)
        await delete_pod(self.pod, self._host.client, clock=self._host.clock, random=self._host.random)

    def _all_succeeded(self) -> bool:
        states = [record.state for record in self.records if not record.init]
        return all(isinstance(state, Ended) and state.exit.code == 0 for state in states)

    async def _stop_containers(self, records: list[ContainerRecord], grace: float) -> None:
        handles = [(record, self._handles[record.spec.name]) for record in records]
        if not handles:
            return
        for _, handle in handles:
            handle.terminate()
        waits = {asyncio.ensure_future(handle.wait()): record for record, handle in handles}
        killer = [asyncio.create_task(self._kill_after(grace, [handle for _, handle in handles]))]
        try:
            await asyncio.wait(waits)
        finally:
            killer[0].cancel()
        for wait, record in waits.items():
            self._ended(record, wait.result())

    async def _kill_after(self, grace: float, handles: list[Running]) -> None:
        timer = asyncio.ensure_future(self._host.clock.sleep(grace))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((timer, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            hurry.cancel()
        for handle in handles:
            handle.kill()

    def _ended(self, record: ContainerRecord, exit_: Exit) -> Ended:
        now = self._host.clock.now_ns()
        began = record.state.since_ns if isinstance(record.state, Started) else now
        ended = Ended(exit_, began, now, record.container_id)
        record.state = record.last = ended
        self._handles.pop(record.spec.name, None)
        if record.log is not None:
            record.log.close()
        return ended

    def _tell(self) -> None:
        self._host.statuses.mark(self)


async def delete_pod(pod: RunPod, client: Client, *, clock: Clock, random: Random) -> None:
    """Take the pod object away, now that nothing of it runs. Waits out an API server that is away."""
    failures = 0
    while True:
        try:
            await client.delete(PODS, pod.name, pod.namespace, uid=pod.uid, grace_seconds=0)
        except (NotFound, Conflict):
            return
        except GpuSliceError as error:
            if isinstance(error, ApiError) and not error.retryable:
                _log.warning("the API server refused to delete a pod", pod=pod.key, error=str(error))
                return
            failures += 1
            await clock.sleep(_DELETE.delay(failures, random.random))
        else:
            return


def _seconds(pod: RunPod, record: ContainerRecord, command: tuple[str, ...]) -> float | None:
    """How long a simulated container runs; None for ever. An init container ends at once by default."""
    if record.spec.sidecar:
        return None
    if record.init:
        return sleeping_time(command) or 0.0
    text = pod.annotations.get(names.RUN_SECONDS, "")
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return sleeping_time(command)


def _exit_code(pod: RunPod) -> int:
    text = pod.annotations.get(names.EXIT_CODE, "0")
    return int(text) if text.isdecimal() and int(text) < 256 else 0


def _go_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
