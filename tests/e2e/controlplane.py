"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler, set up as an installer sets them up.

RBAC, the Node authorizer and the ServiceAccount admission are on, and every certificate is verified: what a chart may
do here it may do on a true cluster. What is left out is what only costs time: leader election and waiting for disks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .machine import Slot, free_port
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
        # Chosen once: clients find the server at its address again after a restart.
        self.port = free_port()
        self.scheduler_port = free_port()
        self._etcd_ports = (free_port(), free_port())
        self.address = self.slot.address(1)
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
        self.proxy = self._process("kube-proxy", self._proxy_command)

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

    def _process(self, name: str, command: Any) -> Process:
        def with_extra() -> Sequence[str]:
            return [*map(str, command()), *self.extra.get(name, [])]

        return Process(name, with_extra, self.work / "logs" / f"{name}.log", self.slot.cgroup)

    def _etcd_command(self) -> list[object]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
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

    def _apiserver_command(self) -> list[object]:
        return [
            self.programs / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}",
            "--bind-address=0.0.0.0",
            f"--secure-port={self.port}",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={self._serving[0]}",
            f"--tls-private-key-file={self._serving[1]}",
            f"--client-ca-file={self.authority.certificate}",
            f"--token-auth-file={self.tokens}",
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

    def _controllers_command(self) -> list[object]:
        return [
            self.programs / "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self._account_keys[1]}",
            f"--root-ca-file={self.authority.certificate}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
            "--leader-elect=false",
            "--secure-port=0",
            *UNTHROTTLED,
        ]

    def _scheduler_command(self) -> list[object]:
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
            f"--secure-port={self.scheduler_port}",
            "--bind-address=127.0.0.1",
            "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics",
        ]

    def _proxy_command(self) -> list[object]:
        return [
            self.programs / "kube-proxy",
            f"--kubeconfig={self.kubeconfig}",
            "--hostname-override=node-1",
            "--proxy-mode=nftables",
            "--healthz-bind-address=127.0.0.1:0",
            "--metrics-bind-address=127.0.0.1:0",
        ]
