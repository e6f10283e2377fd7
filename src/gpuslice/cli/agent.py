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
    memory_unit: str | None,
    kubelet_dir: Path,
    probes: str | None,
) -> None:
    from gpuslice.cli.process import serve

    async def work() -> None:
        from gpuslice.cli import servers

        await servers.agent(kubeconfig, node, devices, kubelet_dir, memory_unit=memory_unit, probes=probes)

    serve(work())
