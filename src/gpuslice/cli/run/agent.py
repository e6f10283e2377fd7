"""`gpuslice agent`: the device plugin of one node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpuslice.cli import options
from gpuslice.cli.process import serve
from gpuslice.cli.run.agentserver import run_agent
from gpuslice.config.nodeconfig import Fallback
from gpuslice.devices.xids import read_policy
from gpuslice.errors import InputError
from gpuslice.kube.http import own_namespace
from gpuslice.node.assembly import KUBELET_DIR, AgentSettings
from gpuslice.node.discovery.drivers import unit_of
from gpuslice.node.pluginconfig import ConfigFiles


class _Root(click.ParamType[str]):
    name = "DIR"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.startswith("/"):
            self.fail(f"{value!r} is not a folder of the host, such as /run/nvidia/driver", param, ctx)
        return value


_ROOT = _Root()


@click.command(
    help="Offer a node's GPUs to its kubelet and hand them out in shares.\n\n"
    + options.examples(
        "gpuslice agent --node gpu-1",
        "gpuslice agent --node gpu-1 --devices examples/devices/t4x2.yaml",
        "gpuslice agent --kubeconfig ~/.kube/config --node gpu-1 --devices 8xA100-40 "
        "--kubelet-dir /var/lib/kubelet",
    ),
)
@options.kubeconfig
@click.option("--node", required=True, metavar="NAME", help="The node's name.")
@options.devices
@click.option(
    "--mig-strategy",
    type=click.Choice(["none", "single", "mixed"]),
    envvar="MIG_STRATEGY",
    help="How MIG devices are counted, as by NVIDIA's device plugin: as nvidia.com/gpu (single), or by their "
    "profile, nvidia.com/mig-1g.5gb and so on (mixed); default: what the configuration says, or none.",
)
@click.option(
    "--config-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="CONFIG_FILE",
    metavar="FILE",
    help="NVIDIA's device plugin configuration (version v1), followed while the agent runs: replicas of "
    "GPUs, and settings that neither an option nor the environment gives.",
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="CONFIG_FILE_SRCDIR",
    metavar="DIR",
    help="A folder with several of them; the node's label nvidia.com/device-plugin.config says which counts.",
)
@click.option(
    "--default-config",
    envvar="DEFAULT_CONFIG",
    metavar="NAME",
    help="The one that counts on a node without the label.",
)
@click.option(
    "--config-fallbacks",
    envvar="FALLBACK_STRATEGIES",
    metavar="LIST",
    help="Without label and default: named (the file called default), single (the only one), empty (none), "
    "or several of them with commas, tried in this order.",
)
@click.option(
    "--mig-configs",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="mig-parted's file with the configurations that the node's label nvidia.com/mig.config can name; "
    "default: the standard ones (all-1g.5gb, all-balanced, all-disabled and so on).",
)
@click.option(
    "--device-list-strategy",
    multiple=True,
    envvar="DEVICE_LIST_STRATEGY",
    metavar="STRATEGY",
    help="How a container's devices are named to the container runtime: envvar (the default), volume-mounts, "
    "cdi-annotations or cdi-cri, or several of them. For CDI the agent writes the specification.",
)
@click.option(
    "--pass-device-specs",
    is_flag=True,
    default=None,
    envvar="PASS_DEVICE_SPECS",
    help="Name the device files to the kubelet, too, which a static CPU manager needs.",
)
@click.option(
    "--driver-root",
    "--nvidia-driver-root",
    type=_ROOT,
    envvar="NVIDIA_DRIVER_ROOT",
    metavar="DIR",
    help="Where the driver is installed on the host; default: /",
)
@click.option(
    "--dev-root",
    "--nvidia-dev-root",
    type=_ROOT,
    envvar="NVIDIA_DEV_ROOT",
    metavar="DIR",
    help="Below which folder of the host /dev is; default: as the driver.",
)
@click.option(
    "--labels/--no-labels",
    default=True,
    show_default=True,
    help="Write GPU feature discovery's labels (nvidia.com/gpu.product and so on) to the node. Where it runs "
    "itself its labels stand.",
)
@click.option(
    "--output-file",
    envvar="GFD_OUTPUT_FILE",
    metavar="FILE",
    help="Write the labels to a file for Node Feature Discovery's worker, too, such as "
    "/etc/kubernetes/node-feature-discovery/features.d/gfd",
)
@click.option(
    "--use-node-feature-api",
    is_flag=True,
    default=None,
    envvar=("USE_NODE_FEATURE_API", "GFD_USE_NODE_FEATURE_API"),
    help="Write them to a NodeFeature object, too, which Node Feature Discovery's master reads.",
)
@click.option(
    "--memory-unit",
    metavar="UNIT",
    help="What one aliyun.com/gpu-mem is, such as 256MiB; default: what the devices file says, or GiB.",
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    default=KUBELET_DIR,
    show_default=True,
    metavar="DIR",
    help="The kubelet's root directory.",
)
@options.probes
def agent(
    kubeconfig: Path | None,
    node: str,
    devices: Path | None,
    config_file: Path | None,
    config_dir: Path | None,
    default_config: str | None,
    config_fallbacks: str | None,
    mig_configs: Path | None,
    labels: bool,
    memory_unit: str | None,
    kubelet_dir: Path,
    probes: options.Probes | None,
    **plugin: Any,
) -> None:
    async def work() -> None:
        settings = AgentSettings(
            node,
            kubelet_dir,
            unit=unit_of(devices, memory_unit),
            options=_given(plugin),
            environment=os.environ,
            xids=read_policy(os.environ),
            files=_files(config_file, config_dir, default_config or "", config_fallbacks or ""),
            mig_configs=mig_configs,
            labels=labels,
            namespace=own_namespace(),
        )
        await run_agent(kubeconfig, devices, settings, probes)

    serve(work())


def _given(plugin: Mapping[str, Any]) -> dict[str, object]:
    """The options of NVIDIA's device plugin that are given, by its names."""
    named = {name.replace("_", "-"): value for name, value in plugin.items()}
    named["device-list-strategy"] = ",".join(named["device-list-strategy"]) or None
    return {name: value for name, value in named.items() if value is not None}


def _files(file: Path | None, folder: Path | None, default: str, fallbacks: str) -> ConfigFiles | None:
    """The device plugin's files, None if there are none. Raises InputError."""
    if folder is None:
        if default or fallbacks:
            raise InputError(
                "a default is one of several files; give their folder, too",
                field="--default-config" if default else "--config-fallbacks",
            )
        return ConfigFiles.one(file) if file is not None else None
    if file is not None:
        raise InputError("give either one file or a folder of several", field="--config-dir")
    try:
        chosen = tuple(Fallback(word.strip()) for word in fallbacks.split(",") if word.strip())
    except ValueError as error:
        raise InputError(
            f"{fallbacks!r} is not understood; write {', '.join(Fallback)}", field="--config-fallbacks"
        ) from error
    return ConfigFiles.folder(folder, default, chosen)
