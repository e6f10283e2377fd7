"""A pod's life on a simulated node: phases, restarts, deletion, logs, exec, local processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from kubelet_world import GUARD, IDS, Plugin, World, container, world

from gpuslice.errors import ApiError, Unavailable
from gpuslice.kube.client import Response, Transport
from gpuslice.kube.wire import ConfigMap, Event, Node, Pod
from gpuslice.local.kubelet import node as nodes
from gpuslice.local.kubelet.podspec import LEASES, Lease, RunPod
from gpuslice.local.kubelet.runtime import PATH
from gpuslice.local.kubelet.statuswriter import StatusWriter
from gpuslice.local.streams import LogOptions
from gpuslice.node.kubelet.messages import ContainerAllocation, Mount


class Gate:
    """A transport that counts pod status writes and can be away."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.status_writes = 0
        self.away = False
        self.refused = asyncio.Event()

    async def request(self, method: str, path: str, **more: Any) -> Response:
        if self.away:
            self.refused.set()
            raise Unavailable("the API server is away")
        self.status_writes += path.startswith("/api/v1/namespaces") and path.endswith("/status")
        return await self.inner.request(method, path, **more)

    def stream(
        self, path: str, *, query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        return self.inner.stream(path, query=query)

    async def aclose(self) -> None:
        await self.inner.aclose()


def gated(node: World) -> Gate:
    gate = Gate(node.client.transport)
    node.client.transport = gate
    return gate


async def test_the_node_is_registered_like_a_real_one() -> None:
    async with world(cpu_milli=4000, memory_mib=1024, pods=20, labels={"gpushare": "true"}) as here:
        node = await here.node(lambda node: bool(node.status.conditions))
        assert (node.labels["kubernetes.io/hostname"], node.labels["gpushare"]) == ("n1", "true")
        capacity = node.status.capacity or {}
        assert (capacity["cpu"], capacity["memory"], capacity["pods"]) == ("4", "1Gi", "20")
        conditions = {one.type: one.status for one in node.status.conditions or ()}
        assert conditions["Ready"] == "True"
        assert [one.address for one in node.status.addresses or () if one.type == "InternalIP"] == [
            "10.0.0.7"
        ]


async def test_the_lease_is_renewed() -> None:
    async with world() as here:
        await here.clock.someone_sleeps(9, 11)
        first = await here.client.get(Lease, "n1", nodes.LEASE_NAMESPACE)
        version = first.metadata.resource_version
        here.clock.advance(11)
        async with asyncio.timeout(GUARD):
            async for event in here.client.watch(Lease, nodes.LEASE_NAMESPACE, resource_version=version):
                if event.type == "MODIFIED":
                    break
        path = LEASES.path(nodes.LEASE_NAMESPACE, "n1")
        assert b'"leaseDurationSeconds":40' in (await here.client.transport.request("GET", path)).body


async def test_a_second_start_takes_its_node_over_and_nothing_was_removed() -> None:
    async with world() as here:
        again = here.new_kubelet()
        await here.kubelet.close_sockets()
        running = asyncio.create_task(again.run())
        async with asyncio.timeout(GUARD):
            await again.ready.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await here.client.get(Node, "n1")).name == "n1"


async def test_a_pod_runs_after_one_status_write() -> None:
    async with world() as here:
        gate = gated(here)
        await here.create("p", container("a"), container("b"))
        await here.phase("p", "Running")
        status = (await here.raw("p"))["status"]
        assert gate.status_writes == 1
        assert status["podIP"] == "10.128.7.1"
        assert status["hostIP"] == "10.0.0.7"
        assert {one["type"]: one["status"] for one in status["conditions"]} == dict.fromkeys(
            ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
        )
        first = status["containerStatuses"][0]
        assert first["ready"]
        assert first["containerID"].startswith("gpuslice://")
        assert "startedAt" in first["state"]["running"]


@pytest.mark.parametrize(("code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
async def test_a_pod_that_is_not_restarted_ends(code: str, phase: str) -> None:
    notes = {"gpuslice.io/run-seconds": "7", "gpuslice.io/exit-code": code}
    async with world() as here:
        await here.create("p", restartPolicy="Never", annotations=notes)
        await here.phase("p", "Running")
        await here.clock.someone_sleeps(7, 7)
        here.clock.advance(7)
        pod = await here.phase("p", phase)
        (status,) = pod.status.container_statuses or ()
        assert status.state.terminated is not None
        assert status.state.terminated.exit_code == int(code)


async def test_a_sleep_command_is_honoured() -> None:
    async with world() as here:
        await here.create(
            "p", container("c", command=["sh", "-c", "echo x; sleep 2m"]), restartPolicy="Never"
        )
        await here.phase("p", "Running")
        await here.clock.someone_sleeps(120, 120)
        here.clock.advance(120)
        await here.phase("p", "Succeeded")


async def test_crash_loop_back_off_grows_from_10_seconds_to_5_minutes() -> None:
    """The first restart is immediate."""
    notes = {"gpuslice.io/run-seconds": "1", "gpuslice.io/exit-code": "1"}
    async with world() as here:
        await here.create("p", annotations=notes)
        await here.clock.someone_sleeps(1, 1)
        here.clock.advance(1)
        await here.pod("p", lambda pod: _restarts(pod) == 1)
        for number, delay in enumerate((10, 20, 40, 80, 160, 300, 300), start=2):
            await here.clock.someone_sleeps(1, 1)
            here.clock.advance(1)
            assert await here.clock.someone_sleeps(delay, delay) == delay
            await here.pod("p", lambda pod: _waiting(pod) == "CrashLoopBackOff")
            here.clock.advance(delay)
            await here.pod("p", lambda pod, number=number: _restarts(pod) == number)  # type: ignore[misc]
        state = (await here.raw("p"))["status"]["containerStatuses"][0]
        assert state["lastState"]["terminated"]["exitCode"] == 1
        assert (await here.event("BackOff")).type == "Warning"
        assert "gpuslice: simulating 'c'" in await here.log("p", previous=True)


async def test_init_containers_run_in_order_and_a_failing_one_is_repeated() -> None:
    async with world(run_processes=True) as here:
        marker = here.folder / "marker"
        first = container("first", command=["sh", "-c", f"test -e {marker} || {{ touch {marker}; exit 5; }}"])
        second = container("second", command=["test", "-e", str(marker)])
        await here.create("p", container("c"), initContainers=[first, second])
        await here.phase("p", "Running")
        statuses = (await here.raw("p"))["status"]["initContainerStatuses"]
        assert [one["restartCount"] for one in statuses] == [1, 0]
        assert [one["state"]["terminated"]["exitCode"] for one in statuses] == [0, 0]


async def test_a_failing_init_container_fails_a_pod_that_is_not_restarted() -> None:
    async with world(run_processes=True) as here:
        bad = container("bad", command=["false"])
        await here.create("p", container("c"), initContainers=[bad], restartPolicy="Never")
        await here.phase("p", "Failed")
        status = (await here.raw("p"))["status"]
        assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


async def test_a_sidecar_does_not_keep_a_finished_pod_alive() -> None:
    async with world() as here:
        sidecar = container("side", restartPolicy="Always")
        notes = {"gpuslice.io/run-seconds": "3"}
        await here.create("p", initContainers=[sidecar], restartPolicy="Never", annotations=notes)
        await here.phase("p", "Running")
        await here.clock.someone_sleeps(3, 3)
        here.clock.advance(3)
        await here.phase("p", "Succeeded")


async def test_deletion_ends_the_containers_and_then_the_object() -> None:
    async with world() as here:
        await here.create("p")
        await here.phase("p", "Running")
        await here.client.delete(Pod.resource, "p", "default")
        await here.gone("p")
        assert not here.kubelet.devices.manager.in_use()


async def test_a_container_that_ignores_term_gets_its_grace_period() -> None:
    async with world() as here:
        notes = {"gpuslice.io/ignore-term": "true"}
        await here.create("p", annotations=notes, terminationGracePeriodSeconds=17)
        await here.phase("p", "Running")
        await here.client.delete(Pod.resource, "p", "default")
        await here.clock.someone_sleeps(17, 17)
        assert (await here.client.get(Pod, "p", "default")).metadata.deletion_timestamp
        here.clock.advance(17)
        await here.gone("p")


async def test_a_forced_deletion_frees_the_node_and_a_new_pod_of_that_name_runs() -> None:
    async with world() as here:
        plugin = Plugin(IDS)
        await here.serve(plugin)
        old = await here.create("p", container("c", 2))
        await here.phase("p", "Running")
        await here.client.delete(Pod.resource, "p", "default", grace_seconds=0)
        await here.gone("p")
        new = await here.create("p", container("c", 2))
        await here.phase("p", "Running")
        assert (await here.client.get(Pod, "p", "default")).uid == new.uid != old.uid
        await here.create("all", container("c", len(IDS) - 2))
        await here.phase("all", "Running")


async def test_a_pod_deleted_while_it_waits_for_admission_never_starts() -> None:
    async with world() as here:
        plugin = Plugin(IDS)
        await here.serve(plugin)
        plugin.allocate_gate.clear()
        await here.create("busy", container("c", 1))
        async with asyncio.timeout(GUARD):
            await plugin.allocating.wait()
        await here.create("p", container("c", 1))
        await here.client.delete(Pod.resource, "p", "default")
        await here.gone("p")
        plugin.allocate_gate.set()
        await here.phase("busy", "Running")
        assert len(plugin.allocated) == 1


async def test_what_changes_faster_than_it_is_sent_is_sent_once() -> None:
    """The pod's latest status, however often it was marked meanwhile."""

    class Worker:
        def __init__(self, pod: RunPod) -> None:
            self.pod = pod
            self.phase = "Pending"

        def status(self) -> dict[str, object]:
            return {"phase": self.phase}

    async with world() as here:
        gate = gated(here)
        made = await here.create("p", nodeName="elsewhere")
        worker = Worker(RunPod(metadata=made.metadata))
        writer = StatusWriter(here.client, clock=here.clock, random=lambda: 0.0)
        writer.mark(worker)
        worker.phase = "Running"
        writer.mark(Worker(worker.pod))
        writer.mark(worker)
        sending = asyncio.create_task(writer.run())
        await here.phase("p", "Running")
        sending.cancel()
        assert gate.status_writes == 1


async def test_an_outage_of_the_api_server_is_waited_out() -> None:
    """What happened meanwhile is told afterwards."""
    async with world() as here:
        await here.create("p", annotations={"gpuslice.io/run-seconds": "5"}, restartPolicy="Never")
        await here.phase("p", "Running")
        await here.clock.someone_sleeps(5, 5)
        gate = gated(here)
        gate.away = True
        here.clock.advance(5)
        async with asyncio.timeout(GUARD):
            await gate.refused.wait()
        gate.away = False
        await here.clock.someone_sleeps(0.1, 0.2)
        here.clock.advance(1)
        await here.phase("p", "Succeeded")


# --- admission --------------------------------------------------------------------------------------
async def test_a_pod_that_does_not_fit_is_failed_with_the_kubelets_reason() -> None:
    async with world(cpu_milli=1000, pods=2) as here:
        half = {"resources": {"requests": {"cpu": "600m"}}}
        await here.create("a", container("c", **half))
        await here.phase("a", "Running")
        await here.create("b", container("c", **half))
        pod = await here.phase("b", "Failed")
        assert pod.status.reason == "OutOfcpu"
        assert pod.status.message == (
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 600, used: 600, "
            "capacity: 1000"
        )
        await here.create("c")
        await here.phase("c", "Running")
        await here.create("d")
        assert (await here.phase("d", "Failed")).status.reason == "OutOfpods"


async def test_a_pod_whose_selector_the_node_lost_is_failed() -> None:
    async with world(labels={"gpu": "t4"}) as here:
        await here.create("a", nodeSelector={"gpu": "t4"})
        await here.phase("a", "Running")
        await here.client.patch(Node, "n1", {"metadata": {"labels": {"gpu": "a100"}}})
        await here.create("b", nodeSelector={"gpu": "t4"})
        assert (await here.phase("b", "Failed")).status.reason == "NodeAffinity"


# --- environment, logs, exec ------------------------------------------------------------------------
async def test_exec_env_prints_exactly_the_containers_environment() -> None:
    """The plugin's variables, the pod's own over them, and what every container has."""
    async with world() as here:
        plugin = Plugin(IDS)
        plugin.envs = {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "ALIYUN_COM_GPU_MEM_IDX": "0"}
        await here.serve(plugin)
        own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        await here.create("p", container("c", 5, env=own))
        await here.phase("p", "Running")
        code, text = await here.exec("p", "env")
        assert code == 0
        shown = dict(line.split("=", 1) for line in text.splitlines())
        assert shown.pop("PATH")
        assert shown == {"HOSTNAME": "p", "NVIDIA_VISIBLE_DEVICES": "all", "ALIYUN_COM_GPU_MEM_IDX": "0"}


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {says} $1\n")
    path.chmod(0o755)
    return path


def mounting(folder: Path) -> Plugin:
    """A plugin that mounts a program into a folder of the PATH, one elsewhere, and a folder."""
    tool, hidden = program(folder / "tool/gpu-tool", "tool"), program(folder / "opt/hidden", "hidden")
    mounts = (
        Mount("/usr/bin/gpu-tool", str(tool)),
        Mount("/opt/hidden", str(hidden)),
        Mount("/usr/bin/data", str(tool.parent)),
    )
    plugin = Plugin(IDS)
    plugin.answer = lambda _: ContainerAllocation(mounts=mounts)
    return plugin


async def test_a_mounted_program_of_a_folder_on_the_path_is_called_by_its_name(tmp_path: Path) -> None:
    async with world() as here:
        await here.serve(mounting(tmp_path))
        await here.create("p", container("c", 5))
        await here.phase("p", "Running")
        assert await here.exec("p", "gpu-tool", "-L") == (0, "tool -L\n")
        assert await here.exec("p", "sh", "-c", "gpu-tool -L") == (0, "tool -L\n")
        assert await here.exec("p", "sh", "-c", "gpu-tool -L", tty=True) == (0, "tool -L\r\n")
        assert await here.exec("p", "/opt/hidden", "-L") == (0, "hidden -L\n")
        assert (await here.exec("p", "sh", "-c", "hidden"))[0] == 127
        assert await here.exec("p", "sh", "-c", "echo $PATH") == (0, f"{tmp_path}/tool:{PATH}\n")


async def test_a_path_of_the_containers_own_says_which_mounted_programs_are_on_it(tmp_path: Path) -> None:
    async with world() as here:
        await here.serve(mounting(tmp_path))
        await here.create("p", container("c", 5, env=[{"name": "PATH", "value": "/bin:/opt"}]))
        await here.phase("p", "Running")
        assert await here.exec("p", "sh", "-c", "hidden; echo $PATH") == (
            0,
            f"hidden\n{tmp_path}/opt:/bin:/opt\n",
        )


async def test_a_process_of_a_container_calls_mounted_programs_too(tmp_path: Path) -> None:
    async with world(run_processes=True) as here:
        await here.serve(mounting(tmp_path))
        command = ["sh", "-c", "gpu-tool -L"]
        await here.create("p", container("c", 5, command=command), restartPolicy="Never")
        await here.phase("p", "Succeeded")
        assert await here.log("p") == "tool -L\n"


async def test_a_missing_config_map_is_waited_for() -> None:
    reference = {"configMapKeyRef": {"name": "settings", "key": "mode"}}
    async with world() as here:
        await here.create("p", container("c", env=[{"name": "MODE", "valueFrom": reference}]))
        await here.event("Failed")
        await here.clock.someone_sleeps(10, 15)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings"},
            "data": {"mode": "x"},
        }
        await here.client.create(ConfigMap.resource, body, "default")
        await here.pod("p", lambda pod: _waiting(pod) == "CreateContainerConfigError")
        here.clock.advance(15)
        await here.phase("p", "Running")
        assert "MODE=x\n" in (await here.exec("p", "env"))[1]


async def test_exec_with_a_terminal_and_its_exit_code() -> None:
    async with world() as here:
        await here.create("p")
        await here.phase("p", "Running")
        code, text = await here.exec(
            "p", "sh", "-c", "test -t 0 && tty >/dev/null && echo $TERM; exit 3", tty=True
        )
        assert (code, text) == (3, "xterm\r\n")
        assert "LC_CTYPE" not in (await here.exec("p", "env", tty=True))[1]


async def test_exec_reads_stdin_until_it_is_closed() -> None:
    async with world() as here:
        await here.create("p")
        await here.phase("p", "Running")
        session = await here.kubelet.exec("default", "p", "c", ["cat"], stdin=True, tty=False)
        await session.write(b"hello")
        await session.write(b"")
        async with asyncio.timeout(GUARD):
            assert [piece.data async for piece in session.output()] == [b"hello"]
            assert await session.wait() == 0


async def test_exec_ends_with_its_user() -> None:
    async with world() as here:
        await here.create("p")
        await here.phase("p", "Running")
        session = await here.kubelet.exec("default", "p", "c", ["sleep", "1000"], stdin=False, tty=True)
        async with asyncio.timeout(GUARD):
            await session.kill()
            assert await session.wait() == 137


async def test_exec_says_what_is_wrong() -> None:
    async with world() as here:
        await here.create("p", container("a"), container("b"))
        await here.phase("p", "Running")
        with pytest.raises(ApiError, match=r"choose one of: \[a b\]"):
            await here.exec("p", "env")
        for name, command, complaint in (("x", "env", "not valid"), ("a", "no-such", "No such file")):
            with pytest.raises(ApiError, match=complaint) as refusal:
                await here.kubelet.exec("default", "p", name, [command], stdin=False, tty=False)
            assert refusal.value.status == 400


async def test_a_local_process_gets_its_environment_and_logs_its_output() -> None:
    async with world(run_processes=True) as here:
        await here.serve(Plugin(IDS))
        words = ["sh", "-c", 'echo "gpu $NVIDIA_VISIBLE_DEVICES $(WHO)"; echo oops >&2']
        own = [{"name": "WHO", "value": "world"}]
        await here.create("p", container("c", 1, command=words, env=own), restartPolicy="Never")
        await here.phase("p", "Succeeded")
        assert await here.log("p") == "gpu GPU-1 world\noops\n"
        assert await here.log("p", tail_lines=1) == "oops\n"
        stamped = await here.log("p", timestamps=True, limit_bytes=30)
        assert stamped.startswith("2026-")
        assert len(stamped) == 30


async def test_followed_logs_come_as_they_are_written_and_end_with_the_process() -> None:
    async with world(run_processes=True) as here:
        os.mkfifo(here.folder / "go")
        words = ["sh", "-c", f"echo one; read x < {here.folder}/go; echo two"]
        await here.create("p", container("c", command=words), restartPolicy="Never")
        await here.phase("p", "Running")
        follower = asyncio.create_task(here.log("p", follow=True))
        (here.folder / "go").write_text("x\n")
        async with asyncio.timeout(GUARD):
            assert await follower == "one\ntwo\n"


async def test_deletion_kills_a_process_that_ignores_term() -> None:
    async with world(run_processes=True) as here:
        words = ["sh", "-c", "trap '' TERM; echo $$$$; while true; do sleep 0.1; done"]
        await here.create("p", container("c", command=words), terminationGracePeriodSeconds=4)
        await here.phase("p", "Running")
        follower = here.kubelet.logs("default", "p", "c", _follow())
        async with asyncio.timeout(GUARD):
            pid = int(await anext(follower))
        await here.client.delete(Pod.resource, "p", "default")
        await here.clock.someone_sleeps(4, 4)
        os.kill(pid, 0)
        here.clock.advance(4)
        await here.gone("p")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_command_that_does_not_exist_is_a_start_error() -> None:
    async with world(run_processes=True) as here:
        await here.create("p", container("c", command=["no-such-command"]), restartPolicy="Never")
        await here.phase("p", "Failed")
        ended = (await here.raw("p"))["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
        assert "no-such-command" in ended["message"]


async def test_no_process_survives_the_kubelet() -> None:
    async with world(run_processes=True) as here:
        await here.create("p", container("c", command=["sh", "-c", "echo $$$$; exec sleep 1000"]))
        await here.phase("p", "Running")
        follower = here.kubelet.logs("default", "p", "c", _follow())
        async with asyncio.timeout(GUARD):
            pid = int(await anext(follower))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_container_without_a_command_only_sleeps() -> None:
    async with world(run_processes=True) as here:
        await here.create("p")
        await here.phase("p", "Running")
        assert "would run: the image's own command" in await here.log("p")


async def test_started_and_killing_are_told_as_events() -> None:
    async with world() as here:
        await here.create("p")
        await here.phase("p", "Running")
        assert (await here.event("Started")).message == "Container started"
        await here.client.delete(Pod.resource, "p", "default")
        assert (await here.event("Killing")).type == "Normal"
        assert {one.involved_object.kind for one in (await here.client.list(Event)).items} == {"Pod"}


def _follow() -> LogOptions:
    return LogOptions(follow=True)


def _restarts(pod: Pod) -> int:
    statuses = pod.status.container_statuses or ()
    return statuses[0].restart_count if statuses else 0


def _waiting(pod: Pod) -> str | None:
    statuses = pod.status.container_statuses or ()
    waiting = statuses[0].state.waiting if statuses else None
    return waiting.get("reason") if waiting else None
