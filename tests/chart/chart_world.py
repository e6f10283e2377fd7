"""Renders the chart with the real helm."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from foreign import program

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "gpuslice"
GOLDEN = Path(__file__).parent / "golden"
DEVICES = ROOT / "examples" / "devices" / "t4x2.yaml"


@dataclass(frozen=True)
class Case:
    """Values as a user would write them, and the cluster they meet."""

    values: dict[str, Any] = field(default_factory=dict)
    kubernetes: str = "1.36.3"
    namespace: str = "gpuslice-system"
    release: str = "gpuslice"


CASES = {
    "bundled": Case(),
    "extender": Case(
        {
            "scheduler": {
                "mode": "extender",
                "service": {"type": "NodePort", "nodePort": 32766, "clusterIP": "10.96.7.7"},
            },
            "policy": "spread",
            "tls": {"names": ["192.0.2.8", "control-plane.example"]},
            "webhook": {"clientCASecret": "api-server-ca"},
            "networkPolicy": {
                "controlPlaneFrom": [{"ipBlock": {"cidr": "192.0.2.0/28"}}],
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "metrics"}}}],
            },
        },
        namespace="gpus",
    ),
    "own-certmanager": Case(
        {
            "scheduler": {"mode": "own", "replicas": 3, "priorityClassName": "system-cluster-critical"},
            "tls": {"mode": "certManager"},
            "metrics": {
                "tokenSecret": "scraper",
                "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            },
        }
    ),
    "no-kube-proxy": Case(
        {
            "k8sServiceHost": "192.0.2.7",
            "k8sServicePort": 6443,
            "scheduler": {"hostNetwork": True, "replicas": 1},
            "agent": {"hostNetwork": True, "kubeletDir": "/data/kubelet"},
            "webhook": {"url": "https://192.0.2.7:8443/mutate"},
        }
    ),
    "driver": Case(
        {
            "scheduler": {"mode": "own"},
            "memoryUnit": "MiB",
            "agent": {
                "devices": {"simulated": ""},
                "migStrategy": "mixed",
                "nodeLabels": False,
                "nodeFeatureAPI": True,
                "runtimeClassName": "nvidia",
            },
        }
    ),
    "cdi-and-mig": Case(
        {
            "scheduler": {"mode": "own"},
            "agent": {
                "devices": {"simulated": ""},
                "migStrategy": "mixed",
                "migManager": True,
                "migConfigs": "version: v1\nmig-configs:\n  half:\n  - devices: [0]\n    mig-enabled: false\n",
                "deviceListStrategy": ["cdi-cri", "volume-mounts"],
                "passDeviceSpecs": True,
                "config": {"default": "version: v1\nflags:\n  failOnInitError: false\n", "none": "{}"},
                "defaultConfig": "none",
                "driverRoot": "/run/nvidia/driver",
                "runtimeClassName": "nvidia",
            },
        }
    ),
    "managed-cluster-of-old": Case(
        {
            "image": {"repository": "registry.example/gpuslice", "pullSecrets": [{"name": "example"}]},
            "memoryUnit": "256MiB",
            "tls": {
                "mode": "provided",
                "provided": {"secretName": "mine", "caBundle": "-----BEGIN CERTIFICATE-----\n"},
            },
            "agent": {
                "nodeSelector": {"gpushare": None, "pool": "gpu"},
                "priorityClassName": "system-node-critical",
                "seLinuxOptions": {"type": "spc_t"},
                "devices": {
                    "simulated": {
                        "apiVersion": "gpuslice.io/v1alpha1",
                        "kind": "Devices",
                        "spec": {"gpus": [{"model": "Tesla T4"}]},
                    }
                },
            },
            "metrics": {"scrapeAnnotations": False},
        },
        kubernetes="1.27.16-eks-2d5f260",
        release="team-a",
    ),
}


class Refused(Exception):
    """helm said no; the text is its sentence."""


def render(case: Case, chart: Path = CHART) -> str:
    """What helm would install. Raises Refused."""
    values = yaml.safe_dump(case.values)
    command = [program("helm"), "template", case.release, str(chart), "--namespace", case.namespace]
    command += ["--kube-version", case.kubernetes, "--values", "-"]
    if "devices" not in case.values.get("agent", {}):
        command += ["--set-file", f"agent.devices.simulated={DEVICES}"]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def objects(text: str) -> list[dict[str, Any]]:
    """The documents of a rendered chart."""
    return [one for one in yaml.safe_load_all(text) if one]


def find(text: str, kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = [o for o in objects(text) if o["kind"] == kind and o["metadata"]["name"] == name]
    return found
