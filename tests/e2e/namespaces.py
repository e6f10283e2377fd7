"""A machine within the machine: its own host paths, network and host name, for the control plane and for each node.

So two kubelets and two containerds live side by side with all their usual paths and ports, hostPath volumes and
hostNetwork pods mean what they mean on a true node, and a node can be cut off by taking its link down. Everything
that was mounted, every link, address and packet filter vanishes with the last process inside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from .machine import Slot, run
from .waiting import wait

KINDS = ("mnt", "net", "uts")


class Namespace:
    """The namespaces of one machine, held open by a sleeping process while this is open.

    Each of `paths` is, inside, a folder of this machine's own; `on_host` says where that lies.
    """

    def __init__(self, slot: Slot, name: str, folder: Path, paths: Iterable[str] = ()) -> None:
        self.name = name
        self._slot = slot
        self._folder = folder
        self._paths = sorted(set(paths), key=len)
        self._holder: subprocess.Popen[bytes] | None = None

    def on_host(self, path: str) -> Path:
        """Where the tests see `path` of this machine."""
        if any(path == root or path.startswith(root + "/") for root in self._paths):
            return self._folder / path.lstrip("/")
        return Path(path)

    def enter(self, *command: str | Path) -> list[str]:
        """The command line that runs `command` inside; it keeps its pid."""
        mount, net, uts = (f"/proc/{self.pid}/ns/{kind}" for kind in KINDS)
        return ["nsenter", f"--mount={mount}", f"--net={net}", f"--uts={uts}", "--", *map(str, command)]

    def run(self, *command: str | Path, check: bool = True) -> str:
        return run(*self.enter(*command), check=check)

    @property
    def pid(self) -> int:
        assert self._holder is not None, f"{self.name} is not there"
        return self._holder.pid

    def open(self) -> None:
        held = ("unshare", "--mount", "--propagation=private", "--net", "--uts", "sleep", "infinity")
        self._holder = subprocess.Popen(
            self._slot.cgroup.enter(*held), stdin=subprocess.DEVNULL, start_new_session=True
        )
        # The last thing that unshare does is to become a sleep.
        name = Path(f"/proc/{self.pid}/comm")
        wait(lambda: name.read_text() == "sleep\n", 10, f"the namespaces of {self.name}", pause=0.01)
        self.run("hostname", self.name)
        for path in self._paths:
            self._slot.mount_point(Path(path))
            self.on_host(path).mkdir(parents=True, exist_ok=True)
            self.run("mount", "--bind", self.on_host(path), path)
        # Pods whose mounts propagate ask for a shared root, as systemd leaves it. Made only now and inside, so that
        # nothing above reaches the machine's own view.
        self.run("mount", "--make-rshared", "/")
        self.run("ip", "link", "set", "lo", "up")
        self.run("sysctl", "--quiet", "net.ipv4.ip_forward=1")

    def close(self) -> None:
        """Let go."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            self._holder = None

    def open_switch(self) -> None:
        """Become the switch that nodes are plugged into, with this machine as the first to be."""
        slot = self._slot
        self.run("ip", "link", "add", "switch", "type", "bridge")
        self.run("ip", "address", "add", f"{slot.control_address}/24", "dev", "switch")
        self.run("ip", "link", "set", "switch", "up")
        veth = f"link add {slot.link} type veth peer name host netns {self.pid}"

        def linked() -> bool:
            # That of a cluster which has just ended goes when the kernel has taken its namespace down.
            run("ip", "link", "delete", slot.link, check=False)
            run("ip", *veth.split())
            return True

        wait(linked, 30, f"the link {slot.link}")
        run("ip", "address", "add", f"{slot.host_address}/24", "dev", slot.link)
        run("ip", "link", "set", slot.link, "up")
        for network in (slot.pod_networks, slot.service_network):
            run("ip", "route", "add", network, "via", slot.control_address, "dev", slot.link)
        # A connection needs a way before kube-proxy turns it to a pod: without, the API server reaches no webhook.
        self.run("ip", "route", "add", slot.service_network, "dev", "switch")
        self._plug("host")

    def plug_in(self, node: Namespace, number: int) -> None:
        """Give a node its `eth0` at this switch, and everybody the way to its pods."""
        port, slot = f"node-{number}", self._slot
        self.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
        node.run("ip", "address", "add", f"{slot.node_address(number)}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
        # Pods of other nodes, and services, by way of the control plane's machine; it knows where each node is.
        node.run("ip", "route", "add", "default", "via", slot.control_address)
        self.run("ip", "route", "add", slot.pod_network(number), "via", slot.node_address(number))
        self._plug(port)

    def _plug(self, port: str) -> None:
        self.run("ip", "link", "set", port, "master", "switch", "up")
