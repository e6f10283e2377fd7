"""`gpuslice explain`: why a pod waits, or why it is where it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import click

from gpuslice.cli import options
from gpuslice.cli.deciding import policy as policy_option
from gpuslice.cli.inspect.explainreport import report
from gpuslice.cli.output import print_as
from gpuslice.cli.process import run
from gpuslice.cluster.reading import read_cluster
from gpuslice.kube.http import connected
from gpuslice.kube.wire import Node, Pod
from gpuslice.placement.policies.policy import Policy
from gpuslice.scheduler.explaining import Explanation, GpuVerdict
from gpuslice.scheduler.explaining import explain as explain_pod


@click.command(
    help="Say in a sentence per node and GPU why POD waits, or where it is and why there.\n\n"
    + options.examples("gpuslice explain trainer", "gpuslice explain -n research trainer -o json"),
)
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True, help="Its namespace.")
@policy_option
@options.output
@options.kubeconfig
def explain(pod: str, namespace: str, policy: Policy, output: str | None, kubeconfig: Path | None) -> None:
    explanation = run(_explain(kubeconfig, namespace, pod, policy))
    if output:
        print_as(report(explanation), output)
    else:
        click.echo(tell(explanation))


def tell(explanation: Explanation) -> str:
    """The text for people."""
    lines = [f"pod {explanation.pod.key} {explanation.headline}"]
    lines += [f"  {sentence}" for sentence in explanation.where]
    if explanation.why:
        lines.append(f"  why: {explanation.why}")
    for node in explanation.nodes:
        lines.append(f"{node.node}: {'yes' if node.ok else 'no'}, {node.sentence}")
        lines += [f"  {line}" for line in _tell_gpus(node.gpus)]
    return "\n".join(lines)


def _tell_gpus(gpus: Sequence[GpuVerdict]) -> list[str]:
    """A line per GPU; MIG devices of which the same is to be said share one."""
    lines = []

    def said(one: GpuVerdict) -> tuple[str, ...]:
        return (one.gpu.model, one.verdict.message, one.gpu.parent and "MIG")

    for _, same in groupby(gpus, key=said):
        alike = list(same)
        last = "" if len(alike) == 1 or not alike[0].gpu.parent else f" to GPU{alike[-1].gpu.index}"
        shown = alike[:1] if last else alike
        lines += [f"GPU{one.gpu.index}{last} {one.gpu.model}: {one.verdict.message}" for one in shown]
    return lines


async def _explain(kubeconfig: Path | None, namespace: str, name: str, policy: Policy) -> Explanation:
    async with connected(kubeconfig) as client:
        pod = await client.get(Pod, name, namespace)
        nodes, pods = await client.list(Node), await client.list(Pod)
        cluster = await read_cluster(client, nodes, pods, policy)
    for sentence in cluster.quarantine.sentences():
        click.echo(sentence, err=True)
    return explain_pod(pod, cluster)
