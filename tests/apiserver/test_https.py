"""The server as kubectl meets it: HTTPS, token, WebSocket, and the real kubectl itself."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
import msgspec
import pytest
from apikit import PODS, Api, deployment, new_ids, pod
from foreign import program
from test_kinds import definition

from gpuslice.clock import SystemClock
from gpuslice.errors import ApiError, Unavailable
from gpuslice.local.apiserver.api import webhookpost
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.serve import Endpoint, serving
from gpuslice.local.streams import LogOptions, Output


class Process:
    """An `ExecSession` over a local process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def output(self) -> AsyncIterator[Output]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(4096):
            yield Output(1, data)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if data:
            self._process.stdin.write(data)
        else:
            self._process.stdin.close()

    async def resize(self, width: int, height: int) -> None:
        pass

    async def wait(self) -> int:
        return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Kubelet:
    """A node's streaming half that runs commands on this machine."""

    async def logs(
        self, namespace: str, pod: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        if options.previous:
            raise ApiError(400, f"previous terminated container {container} not found")
        yield b"first\n"
        if options.follow:
            await asyncio.sleep(0)
            yield b"second\n"

    async def exec(
        self, namespace: str, pod: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> Process:
        pipe = asyncio.subprocess.PIPE
        return Process(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))


class Served:
    """A running server, its endpoint, its kubeconfig."""

    def __init__(self, server: ApiServer, endpoint: Endpoint, kubeconfig: Path) -> None:
        self.server, self.endpoint, self.kubeconfig = server, endpoint, kubeconfig
        self.api = Api(server)

    async def kubectl(self, *words: str, stdin: str = "", ok: bool = True) -> str:
        """Run the real kubectl; its output, both streams together."""
        process = await asyncio.create_subprocess_exec(
            program("kubectl"), *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.kubeconfig.parent), "PATH": os.environ["PATH"]},
        )  # fmt: skip
        async with asyncio.timeout(20):
            out, _ = await process.communicate(stdin.encode())
        assert (process.returncode == 0) is ok, out.decode()
        return out.decode()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    server = ApiServer(clock=SystemClock(), new_uid=new_ids())
    server.kubelets["n1"] = Kubelet()
    await server.start()
    kubeconfig = tmp_path / "kube" / "config"
    async with serving(server, clock=SystemClock(), kubeconfig=kubeconfig) as endpoint:
        yield Served(server, endpoint, kubeconfig)
    await server.stop()


async def test_the_token_is_checked_and_the_kubeconfig_is_private(served: Served) -> None:
    """401 without the token; the file that holds it is for its owner's eyes."""
    assert stat.S_IMODE(served.kubeconfig.stat().st_mode) == 0o600
    context = ssl.create_default_context(cadata=served.endpoint.authority.decode())
    async with httpx2.AsyncClient(verify=context, base_url=served.endpoint.url) as http:
        assert (await http.get("/api/v1/pods")).status_code == 401
        wrong = await http.get("/api/v1/pods", headers={"Authorization": "Bearer nope"})
        assert (wrong.status_code, wrong.json()["reason"]) == (401, "Unauthorized")


async def test_a_body_that_is_too_large_is_refused_in_kubernetes_words(served: Served) -> None:
    context = ssl.create_default_context(cadata=served.endpoint.authority.decode())
    token = {"Authorization": f"Bearer {served.endpoint.token}"}
    async with httpx2.AsyncClient(verify=context, base_url=served.endpoint.url, headers=token) as http:
        answer = await http.post("/api/v1/namespaces/default/configmaps", content=b"x" * (3 * 2**20 + 1))
        said = answer.json()
        assert (answer.status_code, said["kind"], said["reason"]) == (413, "Status", "RequestEntityTooLarge")
        assert said["message"] == "Request entity too large: limit is 3145728"
        right = await http.get("/api/v1/pods", headers={"Authorization": f"Bearer {served.endpoint.token}"})
        assert right.status_code == 200


async def test_webhooks_are_called_over_verified_https(served: Served) -> None:
    """The CA of the configuration is trusted and no other; a refusal is a sentence."""
    authority, served.server.token = served.endpoint.authority, None
    url = served.endpoint.url + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await webhookpost.post(url, b"{}", authority=authority, timeout_s=5)
    assert msgspec.json.decode(answer)["status"]["userInfo"]["username"] == "gpuslice-admin"
    for address, trusted in ((url, b""), (url + "/nope", authority), ("https://127.0.0.1:1/", authority)):
        with pytest.raises(Unavailable):
            await webhookpost.post(address, b"{}", authority=trusted, timeout_s=5)


async def test_leaving_ends_open_watches_at_once(tmp_path: Path) -> None:
    """Shutdown does not wait for clients."""
    server = ApiServer(clock=SystemClock(), new_uid=new_ids())
    await server.start()
    async with serving(server, clock=SystemClock()) as endpoint:
        context = ssl.create_default_context(cadata=endpoint.authority.decode())
        http = httpx2.AsyncClient(
            verify=context,
            base_url=endpoint.url,
            headers={"Authorization": f"Bearer {endpoint.token}"},
            timeout=None,
        )
        stream = http.stream("GET", "/api/v1/pods?watch=1")
        answer = await stream.__aenter__()
        assert answer.status_code == 200

        async def read() -> list[str]:
            return [line async for line in answer.aiter_lines()]

        reading = asyncio.create_task(read())
    # Well before the watch itself would end (290 s) or a grace period for it would be over.
    async with asyncio.timeout(10):
        assert await reading == []
    await stream.__aexit__(None, None, None)
    await http.aclose()
    await server.stop()


async def test_kubectl_apply_get_edit_delete(served: Served) -> None:
    """The life of a deployment, client side and server side, with kubectl's own sentences."""
    manifest = msgspec.json.encode(deployment()).decode()
    assert "deployment.apps/web created" in await served.kubectl("apply", "-f", "-", stdin=manifest)
    assert "unchanged" in await served.kubectl("apply", "-f", "-", stdin=manifest)
    table = await served.kubectl("get", "deploy", "-o", "wide")
    assert table.split("\n")[0].split() == [
        "NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"
    ]  # fmt: skip
    assert "deployment.apps/web scaled" in await served.kubectl("scale", "deploy", "web", "--replicas=5")
    newer = manifest.replace("nginx:1", "nginx:2")
    conflict = await served.kubectl("apply", "--server-side", "-f", "-", stdin=newer, ok=False)
    assert "Apply failed with" in conflict and ".spec.template.spec.containers" in conflict
    forced = await served.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=newer)
    assert "serverside-applied" in forced
    assert "restarted" in await served.kubectl("rollout", "restart", "deploy", "web")
    assert 'deployment.apps "web" deleted' in await served.kubectl("delete", "deploy", "web")


async def test_kubectl_typed_commands_speak_protobuf(served: Served) -> None:
    """create deployment, drain and auth can-i send protobuf and are understood."""
    assert "created" in await served.kubectl("create", "deployment", "d", "--image=nginx", "--replicas=0")
    assert (await served.api.get("/apis/apps/v1/namespaces/default/deployments/d"))["spec"]["replicas"] == 0
    assert await served.kubectl("auth", "can-i", "create", "pods") == "yes\n"
    await served.api.make("/api/v1/nodes", {"metadata": {"name": "n1"}})
    await served.api.make(PODS, pod("p", nodeName="n1", terminationGracePeriodSeconds=0))
    assert "node/n1 drained" in await served.kubectl("drain", "n1", "--force", "--timeout=10s")
    assert "Ready,SchedulingDisabled" not in await served.kubectl("uncordon", "n1")


async def test_kubectl_tells_what_is_wrong(served: Served) -> None:
    """A typo in a manifest is found by the server and named by kubectl."""
    body = pod()
    body["spec"]["containers"][0]["imagee"] = "x"
    text = await served.kubectl("create", "-f", "-", stdin=msgspec.json.encode(body).decode(), ok=False)
    assert 'unknown field "spec.containers[0].imagee"' in text


async def test_kubectl_logs_and_exec(served: Served) -> None:
    """Logs follow, exec passes stdin and the exit code."""
    await served.api.make(PODS, pod("p", nodeName="n1"))
    assert await served.kubectl("logs", "-f", "p") == "first\nsecond\n"
    assert "previous terminated container c not found" in await served.kubectl("logs", "-p", "p", ok=False)
    # With -f, kubectl 1.36 asks again for ever; it is a refusal all the same, and no stream.
    refused = await served.api("GET", f"{PODS}/p/log", previous="true", follow="true")
    assert (refused.status, refused.message) == (400, "previous terminated container c not found")
    assert await served.kubectl("exec", "-i", "p", "--", "cat", stdin="hello") == "hello"
    failed = await served.kubectl("exec", "p", "--", "sh", "-c", "exit 3", ok=False)
    assert "command terminated with exit code 3" in failed
    await served.api.make(PODS, pod("waiting"))
    assert await served.kubectl("logs", "waiting") == ""
    assert "does not have a host assigned" in await served.kubectl("exec", "waiting", "--", "true", ok=False)


async def test_kubectl_wait_watch_and_custom_resources(served: Served) -> None:
    """A CRD is usable at once; wait follows a condition; explain reads the schema."""
    manifest = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", **definition()}
    await served.kubectl("create", "-f", "-", stdin=msgspec.json.encode(manifest).decode())
    await served.kubectl("wait", "--for=condition=Established", "crd/rayclusters.ray.io", "--timeout=5s")
    ray = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "a"}, "spec": {"size": 2}}
    await served.kubectl("apply", "-f", "-", stdin=msgspec.json.encode(ray).decode())
    assert (await served.kubectl("get", "ray", "--no-headers")).split()[:2] == ["a", "2"]
    assert "FIELD: containers" in await served.kubectl("explain", "pod.spec.containers")
