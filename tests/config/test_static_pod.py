"""`gpuslice install scheduler-config`: kube-scheduler's file for every version, and kubeadm's static pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import pytest
import yaml

from gpuslice.cli.main import main

MANIFEST = """
apiVersion: v1
kind: Pod
metadata:
  labels: {component: kube-scheduler, tier: control-plane}
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=/etc/kubernetes/scheduler.conf
    - --kubeconfig=/etc/kubernetes/own.conf
    - --leader-elect=true
    image: registry.k8s.io/kube-scheduler:v1.36.3
    name: kube-scheduler
    volumeMounts:
    - {mountPath: /etc/kubernetes/scheduler.conf, name: kubeconfig, readOnly: true}
  hostNetwork: true
  volumes:
  - hostPath: {path: /etc/kubernetes/scheduler.conf, type: FileOrCreate}
    name: kubeconfig
"""


class Host:
    """A control-plane host's /etc/kubernetes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "manifests").mkdir()
        self.manifest = folder / "manifests" / "kube-scheduler.yaml"
        self.manifest.write_text(MANIFEST)
        self.config = folder / "gpuslice.yaml"

    def run(self, *words: str, status: int = 0) -> str:
        result = click.testing.CliRunner().invoke(
            main,
            [
                *("install", "scheduler-config", "--manifest", str(self.manifest)),
                *("--config-file", str(self.config), "--backup-dir", str(self.folder / "kept"), *words),
            ],
        )
        assert result.exit_code == status, result.output
        return result.output

    def pod(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.manifest.read_text())
        return found

    def command(self) -> list[str]:
        words: list[str] = self.pod()["spec"]["containers"][0]["command"]
        return words

    def use(self, config: dict[str, Any]) -> Path:
        """Make the scheduler read a file of its own, as gpushare's users do."""
        path = self.folder / "scheduler-policy-config.yaml"
        path.write_text(yaml.safe_dump(config))
        pod = self.pod()
        container = pod["spec"]["containers"][0]
        container["command"].append("--config=/in/the/pod.yaml")
        container["volumeMounts"].append({"mountPath": "/in/the/pod.yaml", "name": "old"})
        pod["spec"]["volumes"].append({"name": "old", "hostPath": {"path": str(path)}})
        self.manifest.write_text(yaml.safe_dump(pod))
        return path


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def printed(*words: str) -> dict[str, Any]:
    result = click.testing.CliRunner().invoke(main, ["install", "scheduler-config", *words])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = yaml.safe_load(result.output)
    return document


@pytest.mark.parametrize(
    ("kubernetes", "api_version", "kind"),
    [
        ("1.36", "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"),
        ("v1.25.3", "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"),
        ("1.24", "kubescheduler.config.k8s.io/v1beta3", "KubeSchedulerConfiguration"),
        ("1.22", "kubescheduler.config.k8s.io/v1beta2", "KubeSchedulerConfiguration"),
        ("1.18", "v1", "Policy"),
    ],
)
def test_the_format_is_the_schedulers_own(kubernetes: str, api_version: str, kind: str) -> None:
    document = printed("--kubernetes", kubernetes)
    assert (document["apiVersion"], document["kind"]) == (api_version, kind)
    assert document["extenders"][0]["urlPrefix"] == "http://127.0.0.1:32766/gpushare-scheduler"


def test_the_policy_of_old_has_its_own_spelling() -> None:
    (extender,) = printed("--kubernetes", "1.18")["extenders"]
    assert extender["enableHttps"] is False
    assert extender["httpTimeout"] == 10_000_000_000  # a Go duration in JSON: nanoseconds


def test_https_carries_the_ca_along(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("PEM")
    url = "https://10.0.0.9:443/gpushare-scheduler/"
    (extender,) = printed("--url", url, "--ca", str(tmp_path / "ca.crt"))["extenders"]
    assert extender["urlPrefix"] == "https://10.0.0.9:443/gpushare-scheduler"
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {"caData": "UEVN"}
    client = ["--client-cert", str(tmp_path / "ca.crt"), "--client-key", str(tmp_path / "ca.crt")]
    (extender,) = printed("--url", url, *client, "--server-name", "gpuslice.svc")["extenders"]
    assert extender["tlsConfig"] == {"serverName": "gpuslice.svc", "certData": "UEVN", "keyData": "UEVN"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "nonsense"], "is not http://HOST:PORT"),
        (["--ca", "x"], "are for an https --url"),
        (["--url", "https://a", "--client-cert", "x"], "go together"),
        (["--kubernetes", "two"], "is not a version such as 1.36"),
        (["--undo"], "--undo needs --manifest"),
    ],
)
def test_what_does_not_go_together_is_said(words: list[str], sentence: str) -> None:
    result = click.testing.CliRunner().invoke(main, ["install", "scheduler-config", *words])
    assert result.exit_code == 2
    assert sentence in result.output


def test_a_static_pod_is_wired_and_unwired(host: Host) -> None:
    before = host.pod()
    mode = host.manifest.stat().st_mode
    output = host.run()
    assert "kept a copy" in output
    config = yaml.safe_load(host.config.read_text())
    # With --config, kube-scheduler does not look at --kubeconfig: the file must name it.
    assert config["clientConnection"]["kubeconfig"] == "/etc/kubernetes/own.conf"
    assert host.command()[-1] == f"--config={host.config}"
    mounts = host.pod()["spec"]["containers"][0]["volumeMounts"]
    assert {"mountPath": str(host.config), "name": "gpuslice-scheduler-config", "readOnly": True} in mounts
    assert host.manifest.stat().st_mode == mode
    host.run("--undo")
    assert host.pod() == before
    assert not host.config.exists()
    assert "nothing to undo" in host.run("--undo")


def test_repeating_it_changes_nothing(host: Host) -> None:
    host.run()
    once = host.manifest.read_bytes()
    assert "nothing to do" in host.run()
    assert host.manifest.read_bytes() == once
    assert len(list((host.folder / "kept").iterdir())) == 1


def test_another_url_changes_the_configuration_only(host: Host) -> None:
    host.run()
    once = host.manifest.read_bytes()
    assert "when it is started anew" in host.run("--url", "http://127.0.0.1:1234")
    assert host.manifest.read_bytes() == once
    assert "127.0.0.1:1234" in host.config.read_text()


def test_kubelet_never_sees_a_second_pod_in_its_folder(host: Host) -> None:
    host.run()
    host.run("--undo")
    assert [path.name for path in host.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]
    output = click.testing.CliRunner().invoke(
        main,
        [
            *("install", "scheduler-config", "--manifest", str(host.manifest)),
            *("--backup-dir", str(host.manifest.parent)),
        ],
    )
    assert output.exit_code == 2
    assert "kubelet would run the copies" in output.output


def test_what_the_scheduler_reads_already_stays_and_gpushares_extender_gives_way(host: Host) -> None:
    gpushare = {
        "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
    }
    other = {"urlPrefix": "http://other", "filterVerb": "filter"}
    path = host.use(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": "x"}],
            "extenders": [gpushare, other],
        }
    )
    before, original = host.pod(), path.read_text()
    host.run()
    config = yaml.safe_load(host.config.read_text())
    assert config["profiles"] == [{"schedulerName": "x"}]
    assert [one["urlPrefix"] for one in config["extenders"]] == [
        "http://other",
        "http://127.0.0.1:32766/gpushare-scheduler",
    ]
    assert config["extenders"][1]["preemptVerb"] == "preempt"
    assert [word for word in host.command() if word.startswith("--config=")] == [f"--config={host.config}"]
    assert path.read_text() == original
    host.run()  # again: the base is still the first file
    assert len(yaml.safe_load(host.config.read_text())["extenders"]) == 2
    host.run("--undo")
    assert host.pod() == before


def test_undo_keeps_what_others_changed_since(host: Host) -> None:
    """kubeadm upgrade writes a new image into the manifest."""
    host.run()
    text = host.manifest.read_text()
    host.manifest.write_text(text.replace("kube-scheduler:v1.36.3", "kube-scheduler:v1.37.0"))
    host.run("--undo")
    pod = host.pod()
    assert pod["spec"]["containers"][0]["image"].endswith("v1.37.0")
    assert "gpuslice" not in json.dumps(pod)


def test_a_dry_run_shows_both_files_and_writes_none(host: Host) -> None:
    before = host.manifest.read_text()
    config, manifest = yaml.safe_load_all(host.run("--dry-run"))
    assert config["kind"] == "KubeSchedulerConfiguration"
    assert manifest["kind"] == "Pod"
    assert host.manifest.read_text() == before
    assert not host.config.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense: [", "is not YAML"),
        ("kind: Deployment", "is not the manifest of a Pod"),
        ("{kind: Pod, metadata: {}, spec: {containers: [{name: x}]}}", "has no container kube-scheduler"),
    ],
)
def test_a_manifest_that_is_none_is_left_alone(host: Host, text: str, sentence: str) -> None:
    host.manifest.write_text(text)
    output = host.run(status=2)
    assert output.startswith(f"error: {host.manifest}: ")
    assert sentence in output
    assert host.manifest.read_text() == text


def test_a_second_extender_that_binds_is_refused(host: Host) -> None:
    host.use(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "extenders": [{"urlPrefix": "http://other", "bindVerb": "bind"}],
        }
    )
    before = host.manifest.read_text()
    assert "kube-scheduler takes one such" in host.run(status=2)
    assert host.manifest.read_text() == before


def test_a_configuration_inside_the_image_is_refused(host: Host) -> None:
    pod = host.pod()
    pod["spec"]["containers"][0]["command"].append("--config=/inside.yaml")
    host.manifest.write_text(yaml.safe_dump(pod))
    assert "no hostPath volume brings" in host.run(status=2)
