"""A cluster in which gpuslice is installed as the chart installs it, healthy, to be broken by a test.

The objects are those of deploy/manifests; what controllers, kubelets and agents would add (pods, endpoints,
Leases, certificates) is written as they write it.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuslice import names
from gpuslice.admission import certificates
from gpuslice.clock import SystemClock
from gpuslice.cluster.annotations import encode_gpus
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.doctor.checks import examine
from gpuslice.doctor.finding import Finding
from gpuslice.doctor.look import look
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import KubeObject, Resource
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.schema.kinds import BUILT_IN
from gpuslice.units import GIB, MemoryUnit

Json = dict[str, Any]
MANIFESTS = Path(__file__).resolve().parents[2] / "deploy" / "manifests"
NAMESPACE = "gpuslice-system"
SERVED = f"gpuslice-webhook.{NAMESPACE}.svc"
READY = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
}


async def admit(url: str, body: bytes, *, authority: bytes, timeout_s: float) -> bytes:
    """A webhook that changes nothing: pods of a time when ours was not there yet."""
    uid = msgspec.json.decode(body)["request"]["uid"]
    answer = {"uid": uid, "allowed": True}
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    )


class Shifted(SystemClock):
    """A server's clock, to let objects be of another time."""

    ahead = timedelta()

    def now_ns(self) -> int:
        return super().now_ns() + int(self.ahead.total_seconds() * 1e9)


class Transport:
    """The server's, with some kinds forbidden, and with logs, which kubelets would have."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.forbidden: set[str] = set()
        self.logs: dict[str, bytes] = {}
        """POD/log?CONTAINER -> the whole log."""
        self.version = ""
        """What /version says, if not the truth."""

    async def request(self, method: str, path: str, **more: Any) -> Response:
        for plural in self.forbidden:
            if method == "GET" and f"/{plural}" in path:
                message = f'{plural} is forbidden: User "ci" cannot list resource "{plural}"'
                body = {
                    "kind": "Status",
                    "status": "Failure",
                    "code": 403,
                    "reason": "Forbidden",
                    "message": message,
                }
                return Response(403, msgspec.json.encode(body))
        if path == "/version" and self.version:
            return Response(200, msgspec.json.encode({"gitVersion": self.version}))
        query = more.get("query") or {}
        log = self.logs.get(f"{path.rpartition('/pods/')[2]}?{query.get('container')}")
        if log is not None and query.get("previous") == "false":
            return Response(200, b"".join(log.splitlines(keepends=True)[-int(query["tailLines"]) :]))
        answer: Response = await self._inner.request(method, path, **more)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def resource(kind: str, api_version: str = "") -> Resource:
    for one in BUILT_IN:
        if one.kind == kind and api_version in ("", one.api_version):
            return Resource(one.group, one.version, one.plural, one.kind, one.namespaced)
    raise LookupError(kind)


@dataclass
class Site:
    """One cluster."""

    server: ApiServer
    clock: Shifted
    transport: Transport = field(init=False)
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.transport = Transport(self.server.transport())
        self.client = Client(self.transport)  # type: ignore[arg-type]

    async def findings(self, now: datetime | None = None) -> list[Finding]:
        return examine(await look(self.client), now or datetime.now(UTC))

    async def put(self, body: Json) -> Json:
        """Create an object, its status too."""
        kind = resource(body["kind"], body["apiVersion"])
        meta = body["metadata"]
        namespace = meta.get("namespace", "default") if kind.namespaced else None
        made = msgspec.json.decode(await self.client.create(kind, body, namespace))
        if "status" in body and body["kind"] in ("Pod", "Node"):
            await self.patch(body["kind"], meta["name"], {"status": body["status"]}, namespace, "status")
        return dict(made)

    async def patch(
        self, kind: str, name: str, body: object, namespace: str | None = None, subresource: str | None = None
    ) -> None:
        """A merge patch; a list is a JSON patch."""
        made = type(f"Some{kind}", (KubeObject,), {"resource": resource(kind)}, frozen=True, gc=False)
        form = "json" if isinstance(body, list) else "merge"
        await self.client.patch(made, name, body, namespace, patch_type=form, subresource=subresource)  # type: ignore[arg-type]

    async def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        await self.client.delete(resource(kind), name, namespace, grace_seconds=0)

    # --- what is there ------------------------------------------------------------------------------
    async def node(
        self,
        name: str = "gpu-1",
        gib: tuple[int, ...] = (15, 15),
        *,
        unit: MemoryUnit = GIB,
        runtime: str = "containerd://2.1.0",
        labels: Mapping[str, str] | None = None,
        published: bool = True,
        offered: bool = True,
    ) -> None:
        """A node of the pool with its GPUs published and offered; GPU i is GPU-<name>-<i>."""
        gpus = NodeGpus(
            tuple(Gpu(i, f"GPU-{name}-{i}", "Tesla T4", size * 1024) for i, size in enumerate(gib)), unit
        )
        units = sum(map(gpus.units_of, gpus.gpus))
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        if offered:
            amounts |= {
                names.GPU_MEM: str(units),
                names.GPU_COUNT: str(len(gib)),
                names.WHOLE_GPU: str(len(gib)),
            }
        await self.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {names.LABEL_GPUSHARE: "true"} if labels is None else dict(labels),
                    "annotations": encode_gpus(gpus) if published else {},
                },
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {
                        "containerRuntimeVersion": runtime, "kubeletVersion": "v1.36.2", "architecture": "amd64",
                        "bootID": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
                        "operatingSystem": "linux", "osImage": "", "systemUUID": "",
                    },
                },
            }
        )  # fmt: skip

    async def pod(
        self,
        name: str,
        units: int = 0,
        *,
        on: str = "",
        index: int | None = None,
        annotations: Mapping[str, str] | None = None,
        scheduler: str = "gpuslice",
        container: Json | None = None,
        status: Json | None = None,
        owner: Json | None = None,
        namespace: str = "default",
        **spec: Any,
    ) -> None:
        """A user's pod; `index` is the GPU that it was given."""
        marks = dict(annotations or {})
        if index is not None:
            marks |= {names.MEM_IDX: str(index), names.MEM_POD: str(units), names.MEM_ASSIGNED: "true"}
        main: Json = {"name": "main", "image": "cuda", **(container or {})}
        if units:
            main["resources"] = {"limits": {names.GPU_MEM: str(units)}}
        waits = {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}],
        }
        await self.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "annotations": marks,
                    "ownerReferences": [owner] if owner else [],
                },
                "spec": {"nodeName": on, "schedulerName": scheduler, "containers": [main], **spec},
                "status": status if status is not None else (READY if on else waits),
            }
        )

    async def pods_of(self, kind: str, name: str, on: str, *, suffix: str, status: Json | None = None) -> str:
        """A pod of a workload of ours, as its controller makes it."""
        path = resource(kind).path(NAMESPACE, name)
        workload = msgspec.json.decode(await self.client.read(path))
        template = workload["spec"]["template"]
        made = f"{name}-{suffix}"
        owner = owner_of(kind, name)
        await self.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    **template["metadata"],
                    "name": made,
                    "namespace": NAMESPACE,
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], "nodeName": on},
                "status": status or READY,
            }
        )
        return made

    async def agent(self, on: str = "gpu-1", status: Json | None = None) -> str:
        """The agent of a node."""
        return await self.pods_of("DaemonSet", "gpuslice-agent", on, suffix=on, status=status)

    async def kube_scheduler(self, *flags: str) -> None:
        """The cluster's own, as kubeadm starts it."""
        command = ["kube-scheduler", "--leader-elect=true", *flags]
        await self.pod(
            "kube-scheduler-cp",
            on="cp",
            container={"image": "registry.k8s.io/kube-scheduler:v1.36.0", "command": command},
            namespace="kube-system",
        )

    async def install(self, mode: str = "bundled") -> None:
        """The chart's objects, and what makes them healthy."""
        for body in yaml.safe_load_all((MANIFESTS / f"{mode}.yaml").read_text()):
            if body["kind"] != "MutatingWebhookConfiguration":
                await self.put(body)
            else:
                webhook = body
        await self.node()
        await self.agent()
        for suffix in ("a", "b"):
            await self.pods_of("Deployment", "gpuslice-scheduler", "cp", suffix=suffix)
        await self.endpoints("gpuslice-webhook", ready=True)
        if mode == "extender":
            await self.endpoints("gpuslice-extender", ready=True)
        await self.certificate(webhook=webhook)
        await self.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "gpuslice-scheduler", "namespace": NAMESPACE},
                "spec": {"holderIdentity": "gpuslice-scheduler-a", "renewTime": micro(datetime.now(UTC))},
            }
        )

    async def endpoints(self, service: str, *, ready: bool) -> None:
        await self.put(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"{service}-x",
                    "namespace": NAMESPACE,
                    "labels": {"kubernetes.io/service-name": service},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": ready}}],
            }
        )

    async def certificate(
        self, *, webhook: Json | None = None, made: datetime | None = None, name: str = SERVED
    ) -> bytes:
        """Issue a certificate into the Secret; returns the authority, which only a new webhook is told."""
        now = made or datetime.now(UTC).replace(microsecond=0)
        plan = certificates.plan({}, names=[name], client=False, now=now)
        stored = certificates.renewed({}, plan, names=[name], now=now)
        data = {key: base64.b64encode(value).decode() for key, value in stored.items()}
        await self.patch("Secret", "gpuslice-tls", {"data": data}, NAMESPACE)
        if webhook is not None:
            webhook["webhooks"][0]["clientConfig"]["caBundle"] = data[certificates.AUTHORITY]
            await self.put(webhook)
        return stored[certificates.AUTHORITY]

    async def hook(self, *operations: Json) -> None:
        """Change our webhook."""
        at = [{**one, "path": f"/webhooks/0{one['path']}"} for one in operations]
        await self.patch("MutatingWebhookConfiguration", "gpuslice", at)

    async def trust(self, authority: bytes) -> None:
        bundle = base64.b64encode(authority).decode()
        await self.hook({"op": "replace", "path": "/clientConfig/caBundle", "value": bundle})


def owner_of(kind: str, name: str) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": name,
        "uid": f"uid-{kind}-{name}",
        "controller": True,
    }


def micro(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def start() -> Site:
    """An empty cluster."""
    clock = Shifted()
    server = ApiServer(clock=clock, new_uid=lambda: str(uuid.uuid4()), webhook_post=admit)
    await server.start()
    return Site(server, clock)
