"""One node: a containerd, a kubelet and a kube-proxy on a machine of their own (see namespaces.py), with all the usual
paths and ports. Only the kernel, the processes and the cgroups are shared, and the node has its own root of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .controlplane import ControlPlane
from .machine import Slot
from .namespaces import Namespace
from .processes import Cgroup, Process
from .waiting import wait

# What a node owns. The sockets and files that device plugins, runtimes and administrators know are all below these.
PATHS = [
    "/etc/cdi",
    "/etc/cni",
    "/etc/containerd",
    "/etc/kubernetes",
    "/run/cdi",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
]
CONTAINERD = "/run/containerd/containerd.sock"
MANIFESTS = "/etc/kubernetes/manifests"


class Node:
    """A node of the cluster. `kubelet` and `containerd` can be stopped, killed and frozen one by one.

    containerd has to be there before kubelet: a kubelet that finds no runtime gives up after some minutes.
    """

    def __init__(
        self,
        number: int,
        control_plane: ControlPlane,
        cni: Path,
        images: Iterable[Path],
        *,
        own_paths: Iterable[str] = (),
        kubelet: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.number = number
        self.name = f"node-{number}"
        self._plane = control_plane
        self._slot: Slot = control_plane.slot
        self._cni = cni
        self._images = list(images)
        self._kubelet_config = kubelet or {}
        self._labels = labels or {}
        self.address = self._slot.node_address(number)
        self.work = control_plane.work / self.name
        # kubelet takes every pod cgroup below its root for its own and removes those it does not know.
        self.cgroup = Cgroup(f"{self._slot.cgroup.path}/{self.name}")
        self._daemons = Cgroup(f"{self._slot.cgroup.path}/{self.name}-daemons")
        self._namespace = Namespace(self._slot, self.name, self.work, [*PATHS, *own_paths])
        logs = control_plane.work / "logs"
        environment = {"PATH": f"{control_plane.programs}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.containerd = Process(
            f"containerd of {self.name}",
            lambda: self._namespace.enter(control_plane.programs / "containerd"),
            logs / f"{self.name}-containerd.log",
            self._daemons,
            environment,
        )
        self.kubelet = Process(
            f"kubelet of {self.name}",
            self._kubelet_command,
            logs / f"{self.name}-kubelet.log",
            self._daemons,
            environment,
        )
        self.proxy = control_plane.proxy_of(self._namespace)

    @property
    def processes(self) -> list[Process]:
        return [self.containerd, self.kubelet, self.proxy]

    def path(self, path: str) -> Path:
        """Where the machine, and so a test, sees a path of this node."""
        return self._namespace.on_host(path)

    def run(self, *command: str | Path, check: bool = True) -> str:
        """Run a program with the node's view of the file system."""
        return self._namespace.run(*command, check=check)

    def enter(self, *command: str | Path) -> list[str]:
        """The command line that runs a program on this node."""
        return self._namespace.enter(*command)

    def socket(self, path: str) -> Path:
        """Where the machine can connect to a unix socket of this node: the work folder's path may be too long."""
        return Path(f"/proc/{self._namespace.pid}/root{path}")

    def ctr(self, *arguments: str | Path) -> str:
        """containerd's own client, in the namespace of kubelet's containers."""
        return self.run(self._plane.programs / "ctr", "--namespace", "k8s.io", *arguments)

    def load_image(self, archive: Path) -> None:
        self.ctr("images", "import", archive)

    def start(self) -> None:
        self.cgroup.create()
        self._daemons.create()
        self._namespace.open()
        self._plane.namespace.plug_in(self._namespace, self.number)
        self._write_configuration()
        self.start_containerd()
        for archive in self._images:
            self.load_image(archive)
        self.kubelet.start()
        self.proxy.start()

    def start_containerd(self) -> None:
        """Start it and wait until it answers."""
        self.containerd.start()
        wait(lambda: self.ctr("version"), 30, self.containerd.name, report=self.containerd.tail)

    def reboot(self) -> None:
        """Both daemons again, in the order that works. Containers run on."""
        self.kubelet.stop()
        self.containerd.stop()
        self.start_containerd()
        self.kubelet.start()

    def cut_off(self) -> None:
        """Take the node's link down: it runs on, and nobody hears of it."""
        self.run("ip", "link", "set", "eth0", "down")

    def reconnect(self) -> None:
        self.run("ip", "link", "set", "eth0", "up")
        # The route went with the link.
        self.run("ip", "route", "replace", "default", "via", self._slot.control_address)

    def stop(self) -> None:
        """End everything of the node, containers included. Its files stay in the work folder."""
        for process in self.processes:
            process.kill()
        self.cgroup.destroy()
        self._daemons.destroy()
        self._namespace.close()

    def _write_configuration(self) -> None:
        plane = self._plane
        self.path("/etc/containerd/config.toml").write_text(self._containerd_config())
        (network := self.path("/etc/cni/net.d")).mkdir(parents=True, exist_ok=True)
        (network / "10-e2e.conflist").write_text(json.dumps(self._network(), indent=1))
        self.path(MANIFESTS).mkdir(exist_ok=True)
        certificate, key = plane.authority.issue(self.name, f"system:node:{self.name}", "system:nodes")
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        self._kubeconfig = plane.write_kubeconfig(self.name, user)
        self.path("/var/lib/kubelet/config.yaml").write_text(
            json.dumps(self._kubelet_configuration(), indent=1)
        )

    def _kubelet_command(self) -> list[str]:
        return self._namespace.enter(
            self._plane.programs / "kubelet",
            "--config=/var/lib/kubelet/config.yaml",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            *(
                [f"--node-labels={','.join(f'{k}={v}' for k, v in self._labels.items())}"]
                if self._labels
                else []
            ),
            *self._plane.extra.get("kubelet", []),
        )

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup.path}",
            "clusterDNS": [self._slot.service_address(10)],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            "enforceNodeAllocatable": [],
            # The machine's disk is not what is tested.
            "evictionHard": dict.fromkeys(
                (
                    "imagefs.available",
                    "imagefs.inodesFree",
                    "memory.available",
                    "nodefs.available",
                    "nodefs.inodesFree",
                ),
                "0%",
            ),
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "maxPods": 200,
            "staticPodPath": MANIFESTS,
            "volumePluginDir": "/var/lib/kubelet/volumeplugins",
            **self._kubelet_config,
        }

    def _containerd_config(self) -> str:
        # restrict_oom_score_adj: where the machine does not let its own value be lowered, runc dies without it.
        programs = self._plane.programs
        return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile"]

[grpc]
  address = "{CONTAINERD}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.k8s.io/pause:3.10.1"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["/etc/cdi", "/run/cdi"]

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{self._cni}"]
  conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{programs / "runc"}"
    SystemdCgroup = false
"""

    def _network(self) -> dict[str, Any]:
        ranges = [[{"subnet": self._slot.pod_network(self.number)}]]
        ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
        return {"cniVersion": "1.0.0", "name": "e2e", "plugins": [{**bridge, "hairpinMode": True}]}
