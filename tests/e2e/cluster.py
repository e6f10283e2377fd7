"""A whole cluster of real programs, as a test sees it.

with RealCluster(work_folder) as cluster:
    cluster.apply(manifest)
    cluster.wait(lambda: cluster.phase("pod") == "Running", 60, "the pod to run")
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlencode

from . import packages
from .components import components
from .controlplane import ControlPlane
from .images import busybox_image, pause_image
from .machine import Slot
from .node import Node
from .processes import Process
from .waiting import NotInTime, wait

T = TypeVar("T")
Object = dict[str, Any]


class ApiError(Exception):
    """The API server's refusal; `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RealCluster:
    """etcd, API server, controllers, scheduler and as many nodes as asked for, under one work folder.

    `start` either brings everything up or leaves nothing behind; so does `stop`. Components are processes with
    start, stop, kill, restart and freeze: `cluster.apiserver`, `cluster.nodes[0].kubelet` and so on.
    """

    def __init__(
        self,
        work: Path,
        *,
        nodes: int = 2,
        scheduler: Mapping[str, Any] | None = None,
        own_paths: Iterable[str] = (),
        images: Iterable[Path] = (),
        kubelet: Object | None = None,
        version: str = "",
    ) -> None:
        """`scheduler` is what KubeSchedulerConfiguration has beyond the connection; `own_paths` are more host
        paths that each node has to itself; `images` are archives that every node has before its kubelet starts."""
        packages.need_root()
        packages.need_system_packages()
        self.programs = components(version)
        self.work = work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self._scheduler_config = dict(scheduler or {})
        self._own_paths = list(own_paths)
        self._kubelet_config = kubelet
        self._images = list(images)
        self._count = nodes
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []
        self.nodes: list[Node] = []
        self.helpers: list[Process] = []
        self.log_namespaces = {"kube-system"}
        self._slot: Slot | None = None

    def __enter__(self) -> RealCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life

    def start(self) -> None:
        """Bring everything up; every node is Ready when this returns."""
        self._slot = Slot.take()
        try:
            self._start(self._slot)
        except BaseException:
            self.stop()
            raise

    def _start(self, slot: Slot) -> None:
        self.plane = ControlPlane(self.programs, self.work, slot, self._scheduler_config)
        self.etcd, self.apiserver = self.plane.etcd, self.plane.apiserver
        self.controllers, self.scheduler = self.plane.controllers, self.plane.scheduler
        self._trust = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        self.plane.namespace.open()
        self.plane.namespace.open_switch()
        self.etcd.start()
        self.apiserver.start()
        shell, plugins = packages.busybox(), packages.cni_folder()
        assert shell and plugins
        images = [
            pause_image(self.work / "images" / "pause.tar", shell),
            busybox_image(self.work / "images" / "busybox.tar", shell),
            *self._images,
        ]
        self.nodes = [
            Node(number, self.plane, plugins, images, own_paths=self._own_paths, kubelet=self._kubelet_config)
            for number in range(1, self._count + 1)
        ]
        self.wait_for_apiserver()
        self.controllers.start()
        self.scheduler.start()
        self.plane.proxy.start()
        for node in self.nodes:
            node.start()
        self.wait_for_nodes()
        # Pods are refused before the controllers have made it.
        self.wait(lambda: self.get("serviceaccounts", "default"), 30, "the default service account")

    def stop(self) -> None:
        """End everything, in whatever state it is, and give back what was taken of the machine. Logs are kept."""
        while self._connections:
            self._connections.pop().close()
        if hasattr(self, "plane"):
            # In order it would take half a minute; nothing of what they know is wanted any more.
            for process in self.processes:
                process.kill()
            for node in self.nodes:
                node.stop()
            self.plane.namespace.close()
        if self._slot is not None:
            self._slot.give_back()
            self._slot = None
            for state in [self.work / "etcd", self.work / "images", *(node.work for node in self.nodes)]:
                shutil.rmtree(state, ignore_errors=True)

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    @property
    def processes(self) -> list[Process]:
        return [*self.plane.processes, *(p for node in self.nodes for p in node.processes), *self.helpers]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def load_image(self, archive: Path) -> None:
        """Import a docker or OCI archive on every node."""
        for node in self.nodes:
            node.load_image(archive)

    def wait_for_apiserver(self) -> None:
        self.wait(lambda: self.request("GET", "/readyz") == "ok", 60, "the API server to be ready")

    def wait_for_nodes(self) -> None:
        def ready() -> bool:
            found = {node["metadata"]["name"]: node for node in self.objects("nodes", namespace=None)}
            return all(condition(found.get(node.name, {}), "Ready") == "True" for node in self.nodes)

        self.wait(ready, 90, "the nodes to be Ready")

    def configure_scheduler(self, config: Mapping[str, Any]) -> None:
        """Restart kube-scheduler with another configuration (extenders, profiles)."""
        self.plane.scheduler_config = dict(config)
        self.scheduler.restart()

    # --- clients

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as an administrator and return its output; RuntimeError with what it said if it failed."""
        return self._client("kubectl", arguments, stdin, check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        return self._client("helm", arguments, None, check)

    def _client(self, program: str, arguments: Sequence[str], stdin: str | None, check: bool) -> str:
        done = subprocess.run(
            [self.programs / program, *arguments],
            input=stdin,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.work)},
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, manifest: str | Object | Sequence[Object]) -> None:
        """`kubectl apply` YAML text, an object or a list of objects."""
        if not isinstance(manifest, str):
            items = [manifest] if isinstance(manifest, dict) else list(manifest)
            manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self.kubectl("apply", "--filename=-", stdin=manifest)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        content: str = "application/json",
        *,
        token: str = "",
        **query: str,
    ) -> Any:
        """One request over a connection of this thread, far cheaper than a kubectl: as an administrator, or as
        whoever the token is of."""
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        used = connection is not None
        if connection is None:
            address, port = self.plane.address, self.plane.port
            connection = http.client.HTTPSConnection(address, port, context=self._trust, timeout=30)
            self._local.connection = connection
            self._connections.append(connection)
        headers = {"Authorization": f"Bearer {token or self.plane.token}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, data, headers)
            response = connection.getresponse()
            text = response.read()
        except BaseException as error:
            connection.close()
            self._local.connection = None
            if used and isinstance(error, http.client.RemoteDisconnected):
                # The server closes connections that nobody uses for some minutes.
                return self.request(method, path, body, content, token=token, **query)
            raise
        answer = (
            json.loads(text) if response.headers.get_content_type() == "application/json" else text.decode()
        )
        if response.status >= 400:
            message = answer.get("message", "") if isinstance(answer, dict) else answer
            raise ApiError(response.status, f"{method} {path}: {response.status} {message}")
        return answer

    def get(self, plural: str, name: str, namespace: str | None = "default") -> Object:
        """An object of the core group. ApiError 404 if there is none."""
        answer: Object = self.request("GET", f"{_collection(plural, namespace)}/{name}")
        return answer

    def objects(self, plural: str, namespace: str | None = "default", **query: str) -> list[Object]:
        items: list[Object] = self.request("GET", _collection(plural, namespace), **query)["items"]
        return items

    def phase(self, pod: str, namespace: str = "default") -> str:
        phase: str = self.get("pods", pod, namespace)["status"].get("phase", "")
        return phase

    # --- waiting

    def wait(self, condition: Callable[[], T | None], timeout: float, what: str) -> T:
        """Wait until `condition` answers something true; a failure carries the logs that matter.

        A component that ended by itself is a failure at once: nobody has to wait for what cannot come.
        """

        def alive() -> T | None:
            if dead := [process.failed for process in self.processes if process.failed]:
                raise NotInTime(f"{'; '.join(dead)}, while waiting for {what}\n{self.report()}")
            return condition()

        return wait(alive, timeout, what, report=self.report)

    def wait_for_pods(
        self, count: int, *, timeout: float = 120, namespace: str = "default", **query: str
    ) -> list[Object]:
        """Wait until `count` pods have every container ready; a query such as labelSelector="app=x" narrows it."""

        def ready() -> Sequence[Object]:
            pods = [p for p in self.objects("pods", namespace, **query) if condition(p, "Ready") == "True"]
            return pods if len(pods) == count else []

        narrowed = f" with {query}" if query else ""
        return [*self.wait(ready, timeout, f"{count} pods{narrowed} to be ready")]

    def report(self) -> str:
        """What one would look at first: who died, the events, pods that do not run, the end of each log."""

        def shown(*arguments: str) -> str:
            text = self.kubectl(*arguments, "--request-timeout=5s", check=False)
            return _section(f"kubectl {' '.join(arguments)}", "\n".join(text.splitlines()[-60:]))

        parts = [process.failed for process in self.processes if process.failed]
        parts.append(shown("get", "nodes,pods", "--all-namespaces", "--output=wide"))
        parts.append(shown("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"))
        parts += [shown("describe", "pod", name, f"--namespace={space}") for space, name in self._stuck()]
        parts += [_section(process.name, process.tail()) for process in self.processes]
        parts += [
            _section(str(log.parent.relative_to(log.parents[2])), _tail(log)) for log in self._pod_logs()
        ]
        return "\n".join(parts)

    def _pod_logs(self) -> list[Path]:
        """The containers' logs in `log_namespaces`, as kubelets keep them: no API server is needed to read these.

        kubelets remove some meanwhile, which os.walk does not mind.
        """
        return [
            Path(folder, name)
            for node in self.nodes
            for folder, _, files in sorted(os.walk(node.path("/var/log/pods")))
            if Path(folder).parent.name.partition("_")[0] in self.log_namespaces
            for name in sorted(files)
            if name.endswith(".log")
        ]

    def _stuck(self) -> Sequence[tuple[str, str]]:
        try:
            pods = self.request("GET", "/api/v1/pods")["items"]
        except (OSError, ApiError, http.client.HTTPException):
            return []
        stuck = [
            p["metadata"]
            for p in pods
            if condition(p, "Ready") != "True" and p["status"]["phase"] != "Succeeded"
        ]
        return [(metadata["namespace"], metadata["name"]) for metadata in stuck[:5]]


def condition(thing: Object, kind: str) -> str:
    """The status of a condition of an object, "" if it has none."""
    conditions = thing.get("status", {}).get("conditions") or []
    return next((c["status"] for c in conditions if c["type"] == kind), "")


def _collection(plural: str, namespace: str | None) -> str:
    return f"/api/v1/namespaces/{namespace}/{plural}" if namespace else f"/api/v1/{plural}"


def _tail(log: Path, lines: int = 40) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(gone)"


def _section(title: str, text: str) -> str:
    return f"--- {title}\n{text}"
