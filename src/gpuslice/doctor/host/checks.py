"""Pure functions from a host to findings: what keeps its GPUs from containers, or shows them to too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuslice.doctor.checks.say import listed, plural
from gpuslice.doctor.finding import Area, Finding, Level, in_order
from gpuslice.doctor.host import nvidia, reach
from gpuslice.doctor.host.driver import TOOLKIT_FILE
from gpuslice.doctor.host.engines import CARE, engine_of
from gpuslice.doctor.host.kubelet import FOLDER
from gpuslice.doctor.host.look import Host
from gpuslice.doctor.host.root import Broken

ENVVAR: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
BY_CDI: Final = (
    "helm upgrade gpuslice deploy/helm/gpuslice -n gpuslice-system --reuse-values --set "
    "'agent.deviceListStrategy={cdi-cri}'   # if all nodes with GPUs have CDI, and kubelet 1.29 or newer\n"
)
"""Containers then get their GPUs from the runtime, which asks nobody's environment."""


def examine(host: Host) -> list[Finding]:
    """Everything that is wrong, what must be mended first before the rest."""
    found = [*_files(host), *_kubelet(host)]
    if host.concerned:
        found += [*nvidia.check(host), *reach.check(host), *_specs(host), *_visibility(host)]
    else:
        found.append(_no_card())
    return in_order(found)


def _no_card() -> Finding:
    return Finding(
        Area.DRIVER,
        "card-absent",
        Level.WARNING,
        "Host",
        "there is no NVIDIA GPU on this host's PCI bus, so driver, toolkit and container runtime were not "
        "judged; simulated GPUs need none of them",
        "lspci -d 10de:   # a virtual machine sees a card only if its host passes it through",
    )


# --- what can be read -----------------------------------------------------------------------------
def _files(host: Host) -> Iterator[Finding]:
    if host.denied:
        yield Finding(
            Area.API,
            "cannot-look",
            Level.WARNING,
            f"File{host.denied[0]}",
            f"may not read {listed(host.denied)}, so nothing that depends on it was checked",
            "sudo gpuslice doctor host",
            {"files": len(host.denied)},
        )
    for one in host.broken:
        yield Finding(
            Area.HOST,
            "file-broken",
            Level.WARNING if _of_another_engine(host, one) else Level.ERROR,
            f"File{one.path}",
            f"{one.path} cannot be read: {one.why}",
            _mend(one),
        )


def _of_another_engine(host: Host, one: Broken) -> bool:
    engine = engine_of(one.path)
    return engine is not None and engine is not host.kubelet.engine and host.kubelet.engine is not None


def _mend(one: Broken) -> str:
    if one.path.rpartition("/")[0].endswith("/cdi"):
        return f"sudo nvidia-ctk cdi generate --output={one.path}"
    engine = engine_of(one.path)
    return f"sudoedit {one.path}" + (f" && {CARE[engine].restart}" if engine else "")


# --- kubelet --------------------------------------------------------------------------------------
def _kubelet(host: Host) -> Iterator[Finding]:
    kubelet = host.kubelet
    if kubelet.folder != FOLDER and not any(path.startswith(FOLDER) for path in host.denied):
        yield Finding(
            Area.HOST,
            "kubelet-folder-missing",
            Level.ERROR,
            f"File{FOLDER}/device-plugins",
            f"there is no {FOLDER}/device-plugins, where the agent registers with kubelet"
            + (f"; this kubelet's folder is {kubelet.folder}" if kubelet.folder else ""),
            "helm upgrade gpuslice deploy/helm/gpuslice -n gpuslice-system --reuse-values --set "
            f"agent.kubeletDir={kubelet.folder}"
            if kubelet.folder
            else "systemctl status kubelet   # does it run here, and with which --root-dir?",
        )
    if not kubelet.socket or kubelet.engine is None:
        said = (
            f"its socket is {kubelet.socket}" if kubelet.socket else "no file says it, and no socket is there"
        )
        yield Finding(
            Area.HOST,
            "runtime-unknown",
            Level.WARNING,
            "Host",
            "docker, containerd, CRI-O, k3s and RKE2 are known here, but which of them kubelet uses is not: "
            f"{said}",
            "kubectl get nodes -o wide   # CONTAINER-RUNTIME",
        )
    elif not kubelet.listening:
        yield Finding(
            Area.HOST,
            "runtime-down",
            Level.ERROR,
            f"File{kubelet.socket}",
            f"kubelet speaks to {kubelet.engine} at {kubelet.socket} ({kubelet.source}), and nobody "
            "listens there",
            CARE[kubelet.engine].restart,
        )


# --- CDI specifications ---------------------------------------------------------------------------
def _specs(host: Host) -> Iterator[Finding]:
    needed = host.by_cdi or host.toolkit.mode == "cdi"
    for one in host.specs:
        if not one.missing:
            continue
        yield Finding(
            Area.RUNTIME,
            "cdi-spec-stale",
            Level.ERROR if needed else Level.WARNING,
            f"File{one.path}",
            f"{one.path} names {plural(len(one.missing), 'file')} that this host does not have "
            f"({listed(one.missing)}), so containers with a GPU cannot start: it was written before the "
            "driver or the cards changed",
            f"sudo nvidia-ctk cdi generate --output={one.path}",
            {"missing": len(one.missing)},
        )


# --- who sees GPUs --------------------------------------------------------------------------------
def _visibility(host: Host) -> Iterator[Finding]:
    unread = {*(one.path for one in host.broken), *host.denied}
    if host.used is None or not host.used.by_default or TOOLKIT_FILE in unread:
        return
    settings = host.toolkit.settings
    by_mount = settings.accept_nvidia_visible_devices_as_volume_mounts
    if settings.accept_nvidia_visible_devices_envvar_when_unprivileged:
        by_cdi = host.used.cdi is True
        yield Finding(
            Area.PODS,
            "visibility-open",
            Level.WARNING,
            f"File{TOOLKIT_FILE}",
            f"every container goes through NVIDIA's runtime, which believes each container's own environment "
            f"({ENVVAR} is true): an image or pod that says NVIDIA_VISIBLE_DEVICES=all sees every GPU of "
            "this node"
            + (f"; {host.used.engine} has CDI, by which GPUs can be handed out instead" if by_cdi else ""),
            f"{BY_CDI if by_cdi else ''}sudo nvidia-ctk config --in-place --set {ENVVAR}=false --set "
            f"{MOUNTS}=true   # only with a "
            "device plugin that hands out GPUs as mounts or by CDI, not in the environment",
        )
    elif not by_mount and not host.by_cdi:
        yield Finding(
            Area.PODS,
            "visibility-closed",
            Level.ERROR,
            f"File{TOOLKIT_FILE}",
            f"NVIDIA's runtime believes neither a container's environment ({ENVVAR} is false) nor its mounts "
            f"({MOUNTS} is false): a device plugin cannot tell it which GPU a container has",
            f"sudo nvidia-ctk config --in-place --set {MOUNTS}=true",
        )
