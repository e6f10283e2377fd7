"""One simulated node: puts the kubelet's parts together and admits its pods, one at a time.

Pods come from the API server (those bound to this node), in no particular order to be relied on: a real
kubelet does not admit them in the order of their creation either. Devices first, then node affinity and
resources, as the kubelet's admit handlers are ordered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from gpuslice.clock import Clock
from gpuslice.errors import ApiError, GpuSliceError, InputError, NotFound
from gpuslice.kube.client import Client
from gpuslice.kube.events import EventRecorder
from gpuslice.kube.reflector import Reflector
from gpuslice.local.kubelet.admission import (
    Need,
    Rejection,
    asks_for_a_node,
    check_affinity,
    check_resources,
    need_of,
)
from gpuslice.local.kubelet.devicemanager import AllocationError
from gpuslice.local.kubelet.devices import SOCKET, Devices
from gpuslice.local.kubelet.environment import WaitingPod, on_the_host
from gpuslice.local.kubelet.execsession import start_exec
from gpuslice.local.kubelet.node import NodeDescription, PodAddresses
from gpuslice.local.kubelet.nodekeeper import NodeKeeper
from gpuslice.local.kubelet.podresources import Lister
from gpuslice.local.kubelet.podspec import RunPod
from gpuslice.local.kubelet.podworker import Host, PodWorker, delete_pod
from gpuslice.local.kubelet.runtime import LocalProcesses, Simulated, process_env
from gpuslice.local.kubelet.status import ContainerRecord
from gpuslice.local.kubelet.statuswriter import StatusWriter
from gpuslice.local.streams import ExecSession, LogOptions
from gpuslice.node.kubelet.rpc import Server, serve_pod_resources

LEAST_GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL at least (minimumGracePeriodInSeconds)."""
READMIT_AFTER: Final = 1.0
"""Seconds from a kubelet's restart until it admits its pods again: what plugins have to come back."""


class Kubelet:
    """A node of a cluster in one process; a `streams.KubeletBackend`.

    `root` plays /var/lib/kubelet and must be short enough for the unix sockets under it (InputError).
    `run_processes`: containers with a command run as local processes instead of being simulated.
    """

    def __init__(
        self,
        client: Client,
        node: NodeDescription,
        *,
        root: Path,
        clock: Clock,
        random: Random,
        run_processes: bool = False,
    ) -> None:
        self.node = node
        self.ready = asyncio.Event()
        """Set once the node is registered and its pods are known."""
        self.changed = asyncio.Event()
        """Set when the ids of a plugin may be others, and when the last of a pod has gone."""
        self._client = client
        self._root = root
        self._clock = clock
        self._random = random
        self._run_processes = run_processes
        self._pods: dict[str, RunPod] = {}  # uid -> the latest of every pod bound here
        self._workers: dict[str, PodWorker] = {}  # uid -> admitted or rejected
        self._needs: dict[str, Need] = {}  # uid -> what an admitted pod counts for
        self._waiting: dict[str, None] = {}  # uids to admit
        self._readmit: list[PodWorker] = []
        self._admit_from = 0.0  # monotonic: a restarted kubelet first gives its plugins time
        self._admission: asyncio.Task[None] | None = None  # the one under way
        self._up = asyncio.Lock()  # held by an admission or by a restart
        self._admitting: RunPod | None = None
        self._work = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses = PodAddresses(node.address)
        self._keeper = NodeKeeper(
            client, node, manager=lambda: self.devices.manager, clock=clock, random=random
        )
        self.devices = Devices(
            root / "device-plugins",
            active=lambda: [pod.uid for pod in self._active()],
            on_change=self._plugins_changed,
            clock=clock,
            random=random,
        )
        self._lister = Lister(self.devices, self._active)
        self._pod_resources: Server | None = None
        simulated = Simulated(clock)
        self._events = EventRecorder(
            client,
            "kubelet",
            clock=clock,
            new_id=lambda: f"{random.getrandbits(64):016x}",
            random=random.random,
        )
        self._statuses = StatusWriter(client, clock=clock, random=random.random)
        self._host = Host(
            client=client,
            devices=self.devices,
            runtime=LocalProcesses(simulated) if run_processes else simulated,
            events=self._events,
            statuses=self._statuses,
            clock=clock,
            random=random,
            facts=self._facts,
            pods_folder=root / "pods",
        )
        self._reflector = Reflector(
            client,
            RunPod,
            on_set=self._on_pod,
            on_drop=self._on_drop,
            field_selector=f"spec.nodeName={node.name}",
            clock=clock,
            random=random.random,
        )

    async def run(self) -> None:
        """Be the node until cancelled: its processes are killed, its objects stay, as a real node's do."""
        try:
            await self._open_sockets()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._events.run())
                group.create_task(self._statuses.run())
                await self._keeper.register()
                group.create_task(self._keeper.run_status())
                group.create_task(self._keeper.run_lease())
                group.create_task(self._reflector.run())
                group.create_task(self._admit_pods())
                await self._reflector.synced.wait()
                self.ready.set()
        finally:
            await self._close()

    async def restart(self) -> None:
        """What a restart of the kubelet process does: containers run on, plugins have to come back.

        Streams end, every socket in the folder is deleted, kubelet.sock is made anew, the checkpoint is
        read, and READMIT_AFTER seconds later every pod is admitted again. An admission under way is lost
        and begins anew, even if the plugin has answered it.
        """
        if self._admission is not None:
            self._admission.cancel()
        async with self._up:
            await self.close_sockets()
            await self._open_sockets()
            self._admit_from = self._clock.monotonic() + READMIT_AFTER
            self._readmit = [worker for worker in self._workers.values() if not worker.over]
        self._plugins_changed()
        self._work.set()

    def _plugins_changed(self) -> None:
        self._keeper.changed()
        self.changed.set()

    # --- logs and exec ------------------------------------------------------------------------------
    async def logs(
        self, namespace: str, pod: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """See `streams.KubeletBackend`."""
        record = self._record(namespace, pod, container)
        name = record.spec.name
        log = record.previous_log if options.previous else record.log
        if log is None and options.previous:
            raise ApiError(400, f'previous terminated container "{name}" in pod "{pod}" not found')
        if log is None:
            reason = getattr(record.state, "reason", "ContainerCreating")
            raise ApiError(400, f'container "{name}" in pod "{pod}" is waiting to start: {reason}')
        async for line in log.read(options):
            yield line

    async def exec(
        self, namespace: str, pod: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        """See `streams.KubeletBackend`. Mounted paths in the arguments are rewritten to host paths."""
        record = self._record(namespace, pod, container)
        if record.launch is None or not record.running:
            raise ApiError(400, f'container "{record.spec.name}" in pod "{pod}" is not running')
        worker = self._worker(namespace, pod)
        words = on_the_host(command, self.devices.answers(worker.pod, record.spec))
        env = process_env(record.launch, home=self._run_processes)
        return await start_exec(words, env=env, folder=worker.folder, stdin=stdin, tty=tty)

    def _worker(self, namespace: str, name: str) -> PodWorker:
        # The latest of that name: an old incarnation may still be ending.
        for worker in reversed(self._workers.values()):
            if (worker.pod.namespace, worker.pod.name) == (namespace, name):
                return worker
        raise NotFound(404, f'pod "{name}" does not run on node "{self.node.name}"')

    def _record(self, namespace: str, pod: str, container: str) -> ContainerRecord:
        worker = self._worker(namespace, pod)
        names = [record.spec.name for record in worker.records]
        if not container:
            apps = [record.spec.name for record in worker.records if not record.init]
            if len(apps) != 1:
                raise ApiError(
                    400,
                    f"a container name must be specified for pod {pod}, choose one of: [{' '.join(names)}]",
                )
            container = apps[0]
        record = worker.record(container)
        if record is None:
            raise ApiError(400, f"container {container} is not valid for pod {pod}")
        return record

    # --- pods ---------------------------------------------------------------------------------------
    def _on_pod(self, pod: RunPod) -> None:
        uid, leaving = pod.uid, pod.metadata.deletion_timestamp is not None
        self._pods[uid] = pod
        worker = self._workers.get(uid)
        if worker is not None:
            worker.pod = pod
            if leaving:
                worker.delete(_grace(pod))
        elif self._admitting is not None and self._admitting.uid == uid:
            self._admitting = pod  # a deletion is seen when its admission is through
        elif leaving:
            if uid in self._waiting or pod.ended:
                self._waiting.pop(uid, None)
            self._spawn(delete_pod(pod, self._client, clock=self._clock, random=self._random))
        elif not pod.ended:
            self._waiting[uid] = None
            self._work.set()

    def _on_drop(self, pod: RunPod) -> None:
        self._pods.pop(pod.uid, None)
        self._waiting.pop(pod.uid, None)
        worker = self._workers.get(pod.uid)
        if worker is not None:
            if pod.metadata.deletion_timestamp is not None:
                worker.pod = pod  # by force: how much time is left to it was said with its deletion
            self._spawn(self._remove(worker))
        else:
            self._addresses.release(pod.uid)

    async def _remove(self, worker: PodWorker) -> None:
        await worker.ended()
        if not worker.over:
            await worker.stop(_grace(worker.pod))
        self._statuses.forget(worker.pod.uid)
        worker.clean()
        self._workers.pop(worker.pod.uid, None)
        self._needs.pop(worker.pod.uid, None)
        self._addresses.release(worker.pod.uid)
        self.changed.set()

    def _active(self) -> list[RunPod]:
        """The pods that count: those whose containers may run, and the one that is being admitted.

        Not those that the API server has no more: their ids are free at once, though their processes run on
        until they are killed (HandlePodRemoves). Only their folders tell of them.
        """
        pods = [
            worker.pod
            for worker in self._workers.values()
            if not worker.over and worker.pod.uid in self._pods
        ]
        if self._admitting is not None and self._admitting.uid not in self._workers:
            pods.append(self._admitting)
        return pods

    # --- admission ----------------------------------------------------------------------------------
    async def _admit_pods(self) -> None:
        while True:
            await self._work.wait()
            while self._waiting or self._readmit:
                async with self._up:
                    early = self._admit_from - self._clock.monotonic()
                    if early <= 0:
                        await self._admit_one()
                if early > 0:
                    await self._clock.sleep(early)
            self._work.clear()

    async def _admit_one(self) -> None:
        if self._readmit:
            worker = self._readmit.pop(self._random.randrange(len(self._readmit)))
            await self._admit_again(worker)
        elif self._waiting:
            uid = self._random.choice(tuple(self._waiting))
            del self._waiting[uid]
            # From here on, not only once the task runs: news of the pod must not queue it a second time.
            pod = self._admitting = self._pods[uid]
            self._admission = asyncio.create_task(self._admit(pod))
            try:
                await asyncio.wait((self._admission,))
            finally:
                self._admission.cancel()
                self._admitting = None
            if self._admission.cancelled():
                if uid in self._pods:
                    self._waiting[uid] = None
            else:
                self._admission.result()

    async def _admit(self, pod: RunPod) -> None:
        refusal = await self._refusal(pod)
        pod = self._admitting or pod
        if pod.uid not in self._pods:
            self._needs.pop(pod.uid, None)
            self._addresses.release(pod.uid)
            return
        worker = self._workers[pod.uid] = PodWorker(pod, self._host)
        if refusal is not None:
            worker.reject(refusal.reason, refusal.message)
        elif pod.metadata.deletion_timestamp is None:
            worker.start()
        if pod.metadata.deletion_timestamp is not None:
            worker.delete(_grace(pod))

    async def _refusal(self, pod: RunPod) -> Rejection | None:
        try:
            await self.devices.allocate(pod, running=lambda _: False)
        except AllocationError as error:
            return _unexpected(error)
        if asks_for_a_node(pod):
            try:
                labels = await self._keeper.labels()
            except GpuSliceError:
                labels = self.node.all_labels()
            if refusal := check_affinity(pod, self.node.name, labels):
                return refusal
        try:
            need = need_of(pod)
        except InputError as error:
            return Rejection("UnexpectedAdmissionError", str(error))
        refusal = check_resources(
            need,
            [self._needs[other.uid] for other in self._active() if other.uid != pod.uid],
            cpu_milli=self.node.cpu_milli,
            memory=self.node.memory_mib * 2**20,
            pods=self.node.pods,
        )
        if refusal is None:
            self._needs[pod.uid] = need
        return refusal

    async def _admit_again(self, worker: PodWorker) -> None:
        if worker.over:
            return
        try:
            await self.devices.allocate(worker.pod, running=worker.runs)
        except AllocationError as error:
            refusal = _unexpected(error)
            worker.reject(refusal.reason, refusal.message)

    # --- the rest -----------------------------------------------------------------------------------
    def _facts(self, uid: str) -> WaitingPod:
        resources = self.node.resources()
        return WaitingPod(self._addresses.of(uid), self.node.address, resources)

    async def _open_sockets(self) -> None:
        folder = self._root / "pod-resources"
        for one in (folder, self._host.pods_folder):
            one.mkdir(parents=True, exist_ok=True)
        self._pod_resources = await serve_pod_resources(folder / SOCKET, self._lister)
        await self.devices.start()

    async def close_sockets(self) -> None:
        """What plugins and listers see of the process's end; the containers run on."""
        await self.devices.stop()
        if self._pod_resources is not None:
            await self._pod_resources.stop()
            self._pod_resources = None

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for worker in self._workers.values():
            worker.abandon()
        if self._workers:
            await asyncio.gather(*(worker.stop(0) for worker in self._workers.values()))
        await self.close_sockets()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _unexpected(error: AllocationError) -> Rejection:
    return Rejection("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


def _grace(pod: RunPod) -> float:
    seconds = pod.metadata.deletion_grace_period_seconds
    return max(LEAST_GRACE, pod.spec.termination_grace_period_seconds if seconds is None else seconds)
