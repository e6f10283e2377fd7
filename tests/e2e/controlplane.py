"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, set up as an installer sets them up on a machine
of their own (see namespaces.py), each at its usual port.

RBAC, the Node authorizer and the ServiceAccount admission are on, and every certificate is verified: what a chart may
do here it may do on a true cluster. What is left out is what only costs time: leader election and waiting for disks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .machine import Slot
from .namespaces import Namespace
from .pki import Authority
from .processes import Process

# The default throttles of clients (20 to 50 queries a second) are what one would measure otherwise.
UNTHROTTLED = ["--kube-api-qps=2000", "--kube-api-burst=3000"]


@dataclass
class ControlPlane:
    """The four programs. `extra` has more flags for one of them, by its name; used at its next start."""

    programs: Path
    work: Path
    slot: Slot
    scheduler_config: Mapping[str, Any]
    extra: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.namespace = Namespace(self.slot, "control", self.work / "control")
        self.address = self.slot.control_address
        self.port = 6443
        self.server = f"https://{self.address}:{self.port}"
        self.token = secrets.token_hex(16)
        self.pki = self.work / "pki"
        self.authority = Authority(self.pki)
        names = ["127.0.0.1", "localhost", self.address, self.slot.service_address(1)]
        names += ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        names += ["kubernetes.default.svc.cluster.local"]
        self._serving = self.authority.issue("apiserver", "kube-apiserver", names=names)
        # The API server calls kubelets (logs, exec) as this user.
        self._to_kubelet = self.authority.issue("apiserver-kubelet", "kube-apiserver", "system:masters")
        self._account_keys = self.authority.signing_key()
        self.tokens = self.pki / "tokens.csv"
        self.tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        self.kubeconfig = self.write_kubeconfig("admin", {"token": self.token})
        self.etcd = self._process("etcd", self._etcd_command)
        self.apiserver = self._process("kube-apiserver", self._apiserver_command)
        self.controllers = self._process("kube-controller-manager", self._controllers_command)
        self.scheduler = self._process("kube-scheduler", self._scheduler_command)
        self.proxy = self.proxy_of(self.namespace)

    @property
    def processes(self) -> list[Process]:
        """In the order in which they start."""
        return [self.etcd, self.apiserver, self.controllers, self.scheduler, self.proxy]

    def write_kubeconfig(self, name: str, user: Mapping[str, str]) -> Path:
        path = self.work / f"{name}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.authority.certificate)}
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "e2e", "cluster": cluster}],
                    "users": [{"name": name, "user": dict(user)}],
                    "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
                    "current-context": "e2e",
                },
                indent=1,
            )
        )
        return path

    def _process(self, name: str, command: Callable[[], list[str | Path]]) -> Process:
        def with_extra() -> Sequence[str]:
            return [*self.namespace.enter(*command()), *self.extra.get(name, [])]

        return Process(name, with_extra, self.work / "logs" / f"{name}.log", self.slot.cgroup)

    def _etcd_command(self) -> list[str | Path]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return [
            self.programs / "etcd",
            f"--data-dir={self.work / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=2147483648",
            "--log-level=warn",
        ]

    def _apiserver_command(self) -> list[str | Path]:
        return [
            self.programs / "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={self.port}",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={self._serving[0]}",
            f"--tls-private-key-file={self._serving[1]}",
            f"--client-ca-file={self.authority.certificate}",
            f"--token-auth-file={self.tokens}",
            # Nobody uses it here, but servers that delegate authentication look for it, and complain without end.
            f"--requestheader-client-ca-file={self.authority.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--service-account-key-file={self._account_keys[0]}",
            f"--service-account-signing-key-file={self._account_keys[1]}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-cluster-ip-range={self.slot.service_network}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={self._to_kubelet[0]}",
            f"--kubelet-client-key={self._to_kubelet[1]}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controllers_command(self) -> list[str | Path]:
        return [
            self.programs / "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self._account_keys[1]}",
            f"--root-ca-file={self.authority.certificate}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
            "--leader-elect=false",
            f"--flex-volume-plugin-dir={self.work / 'flexvolumes'}",
            *UNTHROTTLED,
        ]

    def _scheduler_command(self) -> list[str | Path]:
        # With --config, kube-scheduler ignores --kubeconfig, --leader-elect and the throttles: all in the file.
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 2000, "burst": 3000},
            "leaderElection": {"leaderElect": False},
            **self.scheduler_config,
        }
        path = self.work / "scheduler.json"
        path.write_text(json.dumps(config, indent=1))
        return [
            self.programs / "kube-scheduler",
            f"--config={path}",
            "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics",
        ]

    def proxy_of(self, machine: Namespace) -> Process:
        """kube-proxy for a machine: services work on each, and from the API server to a webhook."""
        command: list[str | Path] = [
            self.programs / "kube-proxy",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={machine.name}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={self.slot.pod_networks}",
            # The kernel keeps these for all machines together; they cannot be set from inside.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]
        log = self.work / "logs" / f"{machine.name}-kube-proxy.log"
        return Process(
            f"kube-proxy of {machine.name}", lambda: machine.enter(*command), log, self.slot.cgroup
        )
