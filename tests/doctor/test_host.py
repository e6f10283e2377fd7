"""`gpuslice doctor host`: every fault is made for real in a node's files, and only it is found."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click.testing
import host_world as world
import pytest
from host_world import (
    CONTAINERD,
    CONTAINERD_DROP_IN,
    CRIO_DROP_IN,
    DAEMON_JSON,
    FLAGS,
    K3S,
    LIBRARIES,
    RUNTIME,
    SECOND,
    SPEC,
    THIRD,
    TOOLKIT,
    Node,
)

from gpuslice.cli.main import main
from gpuslice.doctor.finding import Finding, Level

WARNING = Level.WARNING
ALIASES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 30)
)
OFF = "accept-nvidia-visible-devices-envvar-when-unprivileged = false"


@dataclass(frozen=True)
class Case:
    """A healthy node, how it is broken, and what must be said about it, and nothing else."""

    node: Callable[[Path], Node]
    fault: Callable[[Node], None]
    code: str
    where: str
    sentence: str
    remedy: str
    level: Level = Level.ERROR


# --- driver and toolkit -----------------------------------------------------------------------------
def driver_not_loaded(node: Node) -> None:
    node.remove("/proc/driver/nvidia/version")


def no_device_nodes(node: Node) -> None:
    node.remove("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")


def no_unified_memory(node: Node) -> None:
    node.remove("/dev/nvidia-uvm")


def no_library(node: Node) -> None:
    node.remove(f"{LIBRARIES}/libnvidia-ml.so.1")


def updated_without_reboot(node: Node) -> None:
    node.remove(f"{LIBRARIES}/libnvidia-ml.so.1")
    node.write(f"{LIBRARIES}/libnvidia-ml.so.580.95.05")
    node.link(f"{LIBRARIES}/libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05")


def no_toolkit(node: Node) -> None:
    node.remove(RUNTIME, "/usr/bin/nvidia-ctk")


def runtime_elsewhere_on_disk(node: Node) -> None:
    node.remove(RUNTIME)
    node.write("/usr/local/nvidia/toolkit/nvidia-container-runtime")


def runtime_removed(node: Node) -> None:
    node.remove(RUNTIME)


def mode_of_fancy(node: Node) -> None:
    node.change(TOOLKIT, 'mode = "auto"', 'mode = "automatic"')


def no_card(node: Node) -> None:
    node.remove("/sys/bus/pci/devices/0000:00:1e.0", "/proc/driver/nvidia/version", "/dev/nvidia0")
    node.write(DAEMON_JSON, "{}")


# --- docker -----------------------------------------------------------------------------------------
def docker_without_default(node: Node) -> None:
    node.json(DAEMON_JSON, {"runtimes": {"nvidia": {"path": RUNTIME}}})


def docker_as_it_comes(node: Node) -> None:
    node.json(DAEMON_JSON, {"exec-opts": ["native.cgroupdriver=systemd"]})


def docker_with_a_false_name(node: Node) -> None:
    node.json(DAEMON_JSON, {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/usr/bin/runc"}}})


def docker_with_cdi_off(node: Node) -> None:
    node.json(DAEMON_JSON, {"features": {"cdi": False}})
    node.write(SPEC, world.CDI)


def docker_with_cdi_unsaid(node: Node) -> None:
    node.json(DAEMON_JSON, {})
    node.write(SPEC, world.CDI)


def comma_too_many(node: Node) -> None:
    node.write(DAEMON_JSON, '{\n    "default-runtime": "nvidia",\n}\n')


def text_where_a_table_belongs(node: Node) -> None:
    node.json(DAEMON_JSON, {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": 5}}})


def folder_where_a_file_belongs(node: Node) -> None:
    node.remove(DAEMON_JSON)
    node.write(f"{DAEMON_JSON}/oops")


def latin_1(node: Node) -> None:
    (node.root / DAEMON_JSON.lstrip("/")).write_bytes(b'{"label": "k\xfcche"}')


# --- containerd -------------------------------------------------------------------------------------
def containerd_as_it_comes(node: Node) -> None:
    node.write(CONTAINERD, "version = 2\n")


def containerd_without_a_file(node: Node) -> None:
    node.remove(CONTAINERD)


def containerd_without_default(node: Node) -> None:
    node.change(CONTAINERD, 'default_runtime_name = "nvidia"', 'default_runtime_name = "runc"')


def containerd_without_import(node: Node) -> None:
    node.write(CONTAINERD, f"version = 3\n[{THIRD}]\n")


def section_of_an_older_version(node: Node) -> None:
    """What a file of containerd 1.7 becomes if only its version is changed."""
    node.remove(CONTAINERD_DROP_IN)
    node.write(CONTAINERD, f"version = 3\n{world.handlers(SECOND)}")


def section_that_is_gone(node: Node) -> None:
    node.remove(CONTAINERD_DROP_IN)
    node.write(CONTAINERD, f"version = 4\n{world.handlers(SECOND)}")


def section_of_a_newer_version(node: Node) -> None:
    node.write(CONTAINERD, f"version = 2\n{world.handlers(THIRD)}")


def dropin_that_replaces(node: Node) -> None:
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, f'imports = ["conf.d/*.toml"]\n{text}')
    node.write("/etc/containerd/conf.d/cdi.toml", f"version = 2\n[{SECOND}]\nenable_cdi = true\n")


def broken_dropin(node: Node) -> None:
    node.write(CONTAINERD_DROP_IN, "version = 3\n[plugins\n")


def cdi_switched_off(node: Node) -> None:
    node.write(CONTAINERD, f"version = 3\n[{THIRD}]\nenable_cdi = false\n")


def no_specification(node: Node) -> None:
    node.remove(SPEC)


def specification_where_nobody_looks(node: Node) -> None:
    node.write(CONTAINERD, f'version = 3\n[{THIRD}]\ncdi_spec_dirs = ["/var/cdi"]\n')


def only_docker_was_told(node: Node) -> None:
    """The article's way on a node that left docker."""
    node.write(CONTAINERD, "version = 2\n")
    node.json(DAEMON_JSON, {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": RUNTIME}}})


def docker_beside_is_broken(node: Node) -> None:
    node.write(DAEMON_JSON, "{")


# --- CDI --------------------------------------------------------------------------------------------
def specification_of_an_older_driver(node: Node) -> None:
    node.write(SPEC, world.CDI.replace(world.DRIVER, "550.54.14"))


def specification_that_nobody_needs_is_old(node: Node) -> None:
    node.write(SPEC, world.CDI.replace(world.DRIVER, "550.54.14"))


def specification_that_is_no_yaml(node: Node) -> None:
    node.write(SPEC, "cdiVersion: 0.5.0\nkind: [nvidia.com/gpu\ndevices: []\n")


def device_whose_name_is_a_number(node: Node) -> None:
    node.change(SPEC, 'name: "0"', "name: 0")


def mode_cdi_without_specification(node: Node) -> None:
    node.change(TOOLKIT, 'mode = "auto"', 'mode = "cdi"')


# --- CRI-O, k3s -------------------------------------------------------------------------------------
def crio_as_it_comes(node: Node) -> None:
    node.remove(CRIO_DROP_IN)


def crio_without_default(node: Node) -> None:
    node.change(CRIO_DROP_IN, 'default_runtime = "nvidia"', "")


def later_file_of_crio(node: Node) -> None:
    node.write("/etc/crio/crio.conf.d/99-z.conf", '[crio.runtime]\ndefault_runtime = "crun"\n')


def crio_dropin_where_nobody_looks(node: Node) -> None:
    node.remove(CRIO_DROP_IN)
    node.write("/etc/crio/conf.d/99-nvidia.toml", world.CRIO_NVIDIA)


def crio_without_cdi_folders(node: Node) -> None:
    node.write("/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = []\n")


def k3s_without_default(node: Node) -> None:
    node.change(K3S, 'default_runtime_name = "nvidia"', "")


def file_that_k3s_never_reads(node: Node) -> None:
    """nvidia-ctk runtime configure --runtime=containerd, on k3s."""
    node.write(K3S, "version = 2\n")
    node.write(CONTAINERD, f"version = 2\n{world.handlers(SECOND)}")


# --- kubelet, visibility ----------------------------------------------------------------------------
def kubelet_elsewhere(node: Node) -> None:
    node.remove("/var/lib/kubelet/device-plugins/kubelet.sock")
    (node.root / "var/lib/kubelet/device-plugins").rmdir()
    node.write("/var/lib/k0s/kubelet/device-plugins/kubelet.sock")


def no_kubelet(node: Node) -> None:
    node.remove("/var/lib/kubelet/device-plugins/kubelet.sock")
    (node.root / "var/lib/kubelet/device-plugins").rmdir()


def containerd_stopped(node: Node) -> None:
    node.remove("/run/containerd/containerd.sock")


def runtime_of_another_kind(node: Node) -> None:
    node.write(FLAGS, 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/frakti.sock"\n')


def nobody_says(node: Node) -> None:
    node.remove(FLAGS, "/run/containerd/containerd.sock")


def kubelets_file_is_broken(node: Node) -> None:
    node.remove(FLAGS)
    node.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n  cgroupDriver: systemd\n")


def environment_is_believed(node: Node) -> None:
    node.change(TOOLKIT, OFF, f"#{OFF}")


def nobody_says_whether_there_is_cdi(node: Node) -> None:
    environment_is_believed(node)
    assert "deviceListStrategy" not in only(node.findings()).remedy


def nothing_is_believed(node: Node) -> None:
    node.change(TOOLKIT, "as-volume-mounts = true", "as-volume-mounts = false")


def toolkits_file_is_broken(node: Node) -> None:
    node.change(TOOLKIT, "disable-require = false", "disable-require = no")


CTK = "sudo nvidia-ctk runtime configure --runtime"
GENERATE = "sudo nvidia-ctk cdi generate --output="
CASES = [
    Case(world.docker, driver_not_loaded, "driver-absent", "File/proc/driver/nvidia/version", "driver is not loaded", "sudo modprobe nvidia"),
    Case(world.docker, no_device_nodes, "driver-devices-missing", "File/dev/nvidiactl", "/dev has no nvidiactl, nvidia-uvm and nvidia0", "sudo nvidia-modprobe"),
    Case(world.containerd_cdi, no_unified_memory, "driver-devices-missing", "File/dev/nvidia-uvm", "/dev has no nvidia-uvm", "sudo nvidia-modprobe", WARNING),
    Case(world.crio, no_library, "driver-library-missing", f"File{LIBRARIES}/libnvidia-ml.so.1", "driver 570.86.15 is loaded, but libnvidia-ml.so.1 is in none", "ldconfig -p"),
    Case(world.docker, updated_without_reboot, "driver-mismatch", f"File{LIBRARIES}/libnvidia-ml.so.1", "driver is 570.86.15, but /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 is of 580.95.05", "sudo reboot"),
    Case(world.docker, no_toolkit, "toolkit-missing", "Host", "neither nvidia-container-runtime nor nvidia-ctk", "apt-get install -y nvidia-container-toolkit"),
    Case(world.containerd_3, runtime_elsewhere_on_disk, "runtime-binary-missing", f"File{CONTAINERD}", f"handler nvidia runs {RUNTIME}, which is not there: every container of the node", f"sudo ln -s /usr/local/nvidia/toolkit/nvidia-container-runtime {RUNTIME}"),
    Case(world.crio, runtime_removed, "runtime-binary-missing", "File/etc/crio/crio.conf", "every container of the node fails", "--reinstall -y nvidia-container-toolkit"),
    Case(world.k3s_cdi, runtime_removed, "runtime-binary-missing", f"File{K3S}", "every pod of RuntimeClass nvidia fails", "--reinstall -y nvidia-container-toolkit"),
    Case(world.docker, mode_of_fancy, "runtime-mode-unknown", f"File{TOOLKIT}", "sets the mode 'automatic'", "nvidia-container-runtime.mode=auto"),
    Case(world.docker, no_card, "card-absent", "Host", "simulated GPUs need none of them", "lspci -d 10de:", WARNING),
    Case(world.docker, docker_without_default, "runtime-not-default", f"File{DAEMON_JSON}", "docker knows NVIDIA's runtime (nvidia), but its default is runc: containers see no GPU", f"{CTK}=docker --set-as-default && sudo systemctl restart docker"),
    Case(world.docker, docker_as_it_comes, "runtime-missing", f"File{DAEMON_JSON}", "docker does not know NVIDIA's runtime (/etc/docker/daemon.json)", f"{CTK}=docker --set-as-default"),
    Case(world.docker, docker_with_a_false_name, "runtime-missing", f"File{DAEMON_JSON}", "has a handler nvidia, which runs /usr/bin/runc", f"{CTK}=docker --set-as-default"),
    Case(world.docker, docker_with_cdi_off, "cdi-off", f"File{DAEMON_JSON}", "docker has CDI switched off", f"{CTK}=docker --cdi.enabled"),
    Case(world.docker, docker_with_cdi_unsaid, "cdi-off", f"File{DAEMON_JSON}", "docker has CDI on only from 28.2", f"{CTK}=docker --cdi.enabled", WARNING),
    Case(world.docker, comma_too_many, "file-broken", f"File{DAEMON_JSON}", "/etc/docker/daemon.json cannot be read: line ", "sudoedit /etc/docker/daemon.json && sudo systemctl restart docker"),
    Case(world.docker, text_where_a_table_belongs, "file-broken", f"File{DAEMON_JSON}", "path: expected str, got int", "sudoedit"),
    Case(world.docker, folder_where_a_file_belongs, "file-broken", f"File{DAEMON_JSON}", "it is not a file", "sudoedit"),
    Case(world.docker, latin_1, "file-broken", f"File{DAEMON_JSON}", "byte 13 is not UTF-8", "sudoedit"),
    Case(world.containerd_2, containerd_as_it_comes, "runtime-missing", f"File{CONTAINERD}", "containerd does not know NVIDIA's runtime", f"{CTK}=containerd --set-as-default"),
    Case(world.containerd_2, containerd_without_a_file, "runtime-missing", f"File{CONTAINERD}", "containers start, but see no GPU", f"{CTK}=containerd --set-as-default"),
    Case(world.containerd_2, containerd_without_default, "runtime-not-default", f"File{CONTAINERD}", "only pods with runtimeClassName: nvidia see GPUs", f"{CTK}=containerd --set-as-default", WARNING),
    Case(world.containerd_3, containerd_without_import, "dropin-unread", f"File{CONTAINERD_DROP_IN}", "/etc/containerd/config.toml does not import it", 'imports = ["/etc/containerd/conf.d/*.toml"]'),
    Case(world.containerd_3, section_of_an_older_version, "section-ignored", f"File{CONTAINERD}", "only containerd 2.3 and newer reads it", f"{CTK}=containerd", WARNING),
    Case(world.containerd_3, section_that_is_gone, "section-ignored", f"File{CONTAINERD}", "in a section that containerd does not read", f"{CTK}=containerd"),
    Case(world.containerd_2, section_of_a_newer_version, "section-ignored", f"File{CONTAINERD}", "only containerd 2.0 and newer reads it", f"{CTK}=containerd", WARNING),
    Case(world.containerd_2, dropin_that_replaces, "dropin-replaces", "File/etc/containerd/conf.d/cdi.toml", "before containerd 2.0 it replaces the whole section", f"move its lines into {CONTAINERD}", WARNING),
    Case(world.containerd_3, broken_dropin, "file-broken", f"File{CONTAINERD_DROP_IN}", "line 2, column 9: ", "sudo systemctl restart containerd"),
    Case(world.containerd_cdi, cdi_switched_off, "cdi-off", f"File{CONTAINERD}", "/etc/cdi/nvidia.yaml describes NVIDIA's GPUs", f"{CTK}=containerd --cdi.enabled"),
    Case(world.containerd_cdi, no_specification, "cdi-spec-missing", "File/etc/cdi", "no specification of NVIDIA's GPUs is in /etc/cdi and /var/run/cdi", f"{GENERATE}/etc/cdi/nvidia.yaml"),
    Case(world.containerd_cdi, specification_where_nobody_looks, "cdi-spec-missing", "File/var/cdi", "(/etc/cdi/nvidia.yaml is where it does not look)", f"{GENERATE}/var/cdi/nvidia.yaml"),
    Case(world.containerd_2, only_docker_was_told, "runtime-elsewhere", f"File{CONTAINERD}", "/etc/docker/daemon.json configures NVIDIA's runtime for docker, but kubelet uses containerd", f"{CTK}=containerd --set-as-default"),
    Case(world.containerd_2, docker_beside_is_broken, "file-broken", f"File{DAEMON_JSON}", "cannot be read: line 1", "sudoedit", WARNING),
    Case(world.containerd_cdi, specification_of_an_older_driver, "cdi-spec-stale", f"File{SPEC}", f"names 1 file that this host does not have ({LIBRARIES}/libnvidia-ml.so.550.54.14)", f"{GENERATE}{SPEC}"),
    Case(world.docker, specification_that_nobody_needs_is_old, "cdi-spec-stale", f"File{SPEC}", "names 1 file", f"{GENERATE}{SPEC}", WARNING),
    Case(world.containerd_cdi, specification_that_is_no_yaml, "file-broken", f"File{SPEC}", "cannot be read: line 3", f"{GENERATE}{SPEC}"),
    Case(world.containerd_cdi, device_whose_name_is_a_number, "file-broken", f"File{SPEC}", "name: expected str, got int", f"{GENERATE}{SPEC}"),
    Case(world.crio, mode_cdi_without_specification, "cdi-spec-missing", f"File{TOOLKIT}", "NVIDIA's runtime is in mode cdi", GENERATE),
    Case(world.crio, crio_as_it_comes, "cdi-spec-missing", "File/etc/cdi", "CRI-O has CDI, but no specification", f"{GENERATE}/etc/cdi/nvidia.yaml\n# or, without CDI: {CTK}=crio --set-as-default --drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml"),
    Case(world.crio, crio_without_default, "runtime-not-default", "File/etc/crio/crio.conf", "its default is crun", f"{CTK}=crio", WARNING),
    Case(world.crio, later_file_of_crio, "runtime-not-default", "File/etc/crio/crio.conf", "its default is crun", f"{CTK}=crio", WARNING),
    Case(world.crio, crio_dropin_where_nobody_looks, "dropin-unread", "File/etc/crio/conf.d/99-nvidia.toml", "CRI-O reads only /etc/crio/crio.conf and /etc/crio/crio.conf.d", "sudo mv /etc/crio/conf.d/99-nvidia.toml /etc/crio/crio.conf.d/"),
    Case(world.crio_cdi, crio_without_cdi_folders, "cdi-off", "File/etc/crio/crio.conf", "CRI-O has CDI switched off", "grep -r cdi_spec_dirs /etc/crio"),
    Case(world.k3s, k3s_without_default, "runtime-not-default", f"File{K3S}", "k3s knows NVIDIA's runtime (nvidia), but its default is runc", "default-runtime: nvidia", WARNING),
    Case(world.k3s, file_that_k3s_never_reads, "dropin-unread", f"File{CONTAINERD}", "k3s has a containerd of its own", "/etc/rancher/k3s/config.yaml.d/nvidia.yaml"),
    Case(world.containerd_2, kubelet_elsewhere, "kubelet-folder-missing", "File/var/lib/kubelet/device-plugins", "this kubelet's folder is /var/lib/k0s/kubelet", "--set agent.kubeletDir=/var/lib/k0s/kubelet"),
    Case(world.containerd_2, no_kubelet, "kubelet-folder-missing", "File/var/lib/kubelet/device-plugins", "where the agent registers with kubelet", "systemctl status kubelet"),
    Case(world.containerd_2, containerd_stopped, "runtime-down", "File/run/containerd/containerd.sock", f"kubelet speaks to containerd at /run/containerd/containerd.sock ({FLAGS})", "sudo systemctl restart containerd"),
    Case(world.containerd_2, runtime_of_another_kind, "runtime-unknown", "Host", "its socket is /run/frakti.sock", "kubectl get nodes -o wide", WARNING),
    Case(world.containerd_2, nobody_says, "runtime-unknown", "Host", "no socket is there", "kubectl get nodes -o wide", WARNING),
    Case(world.containerd_2, kubelets_file_is_broken, "file-broken", "File/var/lib/kubelet/config.yaml", "cannot be read: line 2", "sudoedit /var/lib/kubelet/config.yaml"),
    Case(world.containerd_2, nobody_says_whether_there_is_cdi, "visibility-open", f"File{TOOLKIT}", "sees every GPU of this node", "envvar-when-unprivileged=false", WARNING),
    Case(world.docker, environment_is_believed, "visibility-open", f"File{TOOLKIT}", "NVIDIA_VISIBLE_DEVICES=all sees every GPU of this node", "envvar-when-unprivileged=false", WARNING),
    Case(world.containerd_3, environment_is_believed, "visibility-open", f"File{TOOLKIT}", "containerd has CDI, by which GPUs can be handed out instead", "--set 'agent.deviceListStrategy={cdi-cri}'   # if all", WARNING),
    Case(world.crio, nothing_is_believed, "visibility-closed", f"File{TOOLKIT}", "cannot tell it which GPU a container has", "as-volume-mounts=true"),
    Case(world.docker, toolkits_file_is_broken, "file-broken", f"File{TOOLKIT}", "line 3", f"sudoedit {TOOLKIT}"),
]  # fmt: skip


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, "\n".join(f"{one.code}: {one.sentence}" for one in findings) or "nothing found"
    return findings[0]


@pytest.mark.parametrize("node", world.HEALTHY, ids=lambda node: node.__name__)
def test_a_healthy_node(node: Callable[[Path], Node], tmp_path: Path) -> None:
    assert node(tmp_path).findings() == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.node.__name__}-{case.fault.__name__}")
def test_a_fault_is_found_and_nothing_else(case: Case, tmp_path: Path) -> None:
    node = case.node(tmp_path)
    assert node.findings() == []
    case.fault(node)
    found = only(node.findings())
    assert (found.code, found.level, found.object) == (case.code, case.level, case.where)
    assert case.sentence in found.sentence
    assert case.remedy in found.remedy


# --- what is healthy in a less usual way --------------------------------------------------------------
def test_a_dropin_without_a_version_means_what_it_says(tmp_path: Path) -> None:
    """containerd 2 brings it up to date from any version, so either name of the section will do."""
    node = world.containerd_3(tmp_path)
    for section in (SECOND, THIRD):
        node.write(CONTAINERD_DROP_IN, world.handlers(section))
        assert node.findings() == []


def test_without_a_main_file_containerd_reads_its_dropins(tmp_path: Path) -> None:
    """From 2.2 on; nvidia-ctk writes one there."""
    node = world.containerd_3(tmp_path)
    node.remove(CONTAINERD)
    assert node.findings() == []


def test_files_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    node = world.containerd_3(tmp_path)
    text = node.read(CONTAINERD_DROP_IN)
    node.write(CONTAINERD_DROP_IN, f'imports = ["/etc/containerd/config.toml", "../conf.d/*"]\n{text}')
    assert node.findings() == []


def test_kubelets_own_file_may_name_the_socket(tmp_path: Path) -> None:
    """And it is believed more than a socket that happens to be there: docker brings a containerd."""
    node = world.crio(tmp_path)
    node.remove(FLAGS)
    node.write("/run/containerd/containerd.sock")
    node.write(
        "/var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n",
    )
    assert node.findings() == []


def test_rke2_is_k3s_under_another_name(tmp_path: Path) -> None:
    node = world.k3s(tmp_path)
    text = node.read(K3S)
    node.remove(K3S)
    ours = K3S.replace("/k3s/", "/rke2/")
    node.write(ours, text)
    assert node.findings() == []
    node.write(ours, "version = 2\n")
    found = only(node.findings())
    assert (found.code, found.object) == ("runtime-missing", f"File{ours}")
    assert "/etc/rancher/rke2/config.yaml.d" in found.remedy
    assert "systemctl restart rke2-server" in found.remedy


def test_a_driver_that_comes_in_a_container(tmp_path: Path) -> None:
    """NVIDIA's operator puts driver and toolkit into folders of its own."""
    node = world.containerd_2(tmp_path)
    node.remove(f"{LIBRARIES}/libnvidia-ml.so.1", RUNTIME, "/usr/bin/nvidia-ctk")
    folder = f"/run/nvidia/driver{LIBRARIES}"
    node.write(f"{folder}/libnvidia-ml.so.{world.DRIVER}")
    node.link(f"{folder}/libnvidia-ml.so.1", f"libnvidia-ml.so.{world.DRIVER}")
    program = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    node.write(program)
    node.write(CONTAINERD, f"version = 2\n{world.handlers(SECOND, program=program)}")
    assert node.findings() == []


def test_links_lead_where_they_lead_on_the_host(tmp_path: Path) -> None:
    """An absolute link below --root is not a link to this machine."""
    node = world.containerd_2(tmp_path)
    text = node.read(CONTAINERD)
    node.remove(CONTAINERD)
    node.write("/opt/node/config.toml", text)
    node.link("/etc/containerd/current", "/opt/node")
    node.link(CONTAINERD, "../containerd/current/config.toml")
    assert node.findings() == []
    node.remove(CONTAINERD)
    node.link(CONTAINERD, CONTAINERD)
    assert only(node.findings()).code == "runtime-missing"


def test_specifications_of_other_vendors_are_not_ours(tmp_path: Path) -> None:
    node = world.containerd_cdi(tmp_path)
    node.json("/etc/cdi/net.json", {"cdiVersion": "0.6.0", "kind": "mellanox.com/net", "devices": []})
    node.write("/etc/cdi/README", "these are generated")
    assert node.findings() == []
    node.remove(SPEC)
    assert only(node.findings()).code == "cdi-spec-missing"


def test_the_first_to_be_mended_comes_first(tmp_path: Path) -> None:
    node = world.docker(tmp_path)
    for fault in (environment_is_believed, driver_not_loaded, no_kubelet, no_toolkit):
        fault(node)
    assert [found.code for found in node.findings()] == [
        "kubelet-folder-missing",
        "driver-absent",
        "toolkit-missing",
        "visibility-open",
    ]


@pytest.mark.parametrize("path", [DAEMON_JSON, CONTAINERD, CRIO_DROP_IN, K3S, SPEC, TOOLKIT, FLAGS])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "5",
        '"text"',
        "{",
        "[" * 10_000,
        "a" * 5000,
        "\x00",
        "kind: {[]: 1}",
        "a: 2001-99-99",
        ALIASES,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_nothing_that_a_file_may_hold_is_a_traceback(path: str, text: str, tmp_path: Path) -> None:
    node = world.containerd_2(tmp_path)
    node.write(path, text)
    for found in node.findings():
        assert found.sentence
        assert found.remedy


# --- the command ------------------------------------------------------------------------------------
def run(*words: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["doctor", *words])


def test_the_command_prints_and_its_exit_code_tells(tmp_path: Path) -> None:
    node = world.docker(tmp_path)
    root = ["host", "--root", str(tmp_path)]
    result = run(*root)
    assert (result.exit_code, result.output) == (0, "nothing is wrong\n")
    environment_is_believed(node)
    result = run(*root)
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "1 warning")
    assert run(*root, "--strict").exit_code == 1
    driver_not_loaded(node)
    result = run(*root, "-o", "json")
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert (report["errors"], report["warnings"]) == (1, 1)
    assert report["findings"][0]["code"] == "driver-absent"
    assert report["findings"][0]["remedy"] == [
        "sudo modprobe nvidia   # if it fails, install the driver and reboot"
    ]


def test_what_is_typed_wrong(tmp_path: Path) -> None:
    assert run("host", "--root", str(tmp_path / "nowhere")).exit_code == 2
    assert run("hots").exit_code == 2
    result = run("--strict", "host", "--root", str(tmp_path))
    assert result.exit_code == 2
    assert "options go behind the command: gpuslice doctor host" in result.stderr


@contextmanager
def as_nobody() -> Iterator[None]:
    """root may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_is_said_and_guessed_at_by_nobody() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = world.containerd_2(Path(folder))
        secret = [node.root / path for path in ("etc/containerd", "var/lib/kubelet")]
        for path in secret:
            path.chmod(0)
        with as_nobody():
            found = only(node.findings())
        for path in secret:
            path.chmod(0o700)
    assert (found.code, found.level) == ("cannot-look", Level.WARNING)
    assert "/etc/containerd/config.toml" in found.sentence
    assert found.remedy == "sudo gpuslice doctor host"


# --- the documentation ------------------------------------------------------------------------------
def test_what_the_documentation_says_to_write_is_what_the_doctor_wants(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/install.md").read_text()
    (daemon_json,) = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    containerd, crio = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for made, path, content in (
        (world.docker, DAEMON_JSON, daemon_json),
        (world.containerd_2, CONTAINERD, containerd),
        (world.crio, CRIO_DROP_IN, crio),
    ):
        node = made(tmp_path / made.__name__)
        node.remove(path)
        assert node.findings() != []
        node.write(path, content)
        assert node.findings() == []
