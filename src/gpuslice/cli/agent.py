"""`gpuslice agent`: the device plugin of one node."""

from __future__ import annotations

from pathlib import Path

import click

from gpuslice.cli import options


@click.command(
    short_help="Offer a node's GPUs to its kubelet.",
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
    default="none",
    show_default=True,
    help="How MIG devices are counted, as by NVIDIA's device plugin: as nvidia.com/gpu (single), or by their "
    "profile, nvidia.com/mig-1g.5gb and so on (mixed).",
)
@click.option(
    "--labels/--no-labels",
    default=True,
    show_default=True,
    help="Write GPU feature discovery's labels (nvidia.com/gpu.product and so on) to the node. Where it runs "
    "itself its labels stand.",
)
@click.option(
    "--memory-unit",
    metavar="UNIT",
    help="What one aliyun.com/gpu-mem is, such as 256MiB; default: what the devices file says, or GiB.",
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    metavar="DIR",
    help="The kubelet's root directory.",
)
@options.probes
def agent(
    kubeconfig: Path | None,
    node: str,
    devices: Path | None,
    mig_strategy: str,
    labels: bool,
    memory_unit: str | None,
    kubelet_dir: Path,
    probes: str | None,
) -> None:
    from gpuslice.cli.process import serve

    async def work() -> None:
        from gpuslice.cli import servers

        await servers.agent(
            kubeconfig,
            node,
            devices,
            kubelet_dir,
            mig_strategy=mig_strategy,
            labels=labels,
            memory_unit=memory_unit,
            probes=probes,
        )

    serve(work())
