"""The demo's second act: GPUs partitioned by MIG, counted in NVIDIA's two ways, and one that is partitioned
for who waits.
"""

from __future__ import annotations

from typing import Final

from gpuslice import names
from gpuslice.cli.demo.world import Story, apply, environment, require, say
from gpuslice.cli.inspect import migtable
from gpuslice.cluster.migrecords import MigPolicy
from gpuslice.kube.wire import Node

FILE: Final = "mig.yaml"
PODS: Final = {
    "nvidia-single": "aks-mig-single",
    "nvidia-mixed": "aks-mig-mixed",
    "trainer": "workstation",
    "evaluation": "workstation",
}
WAITS: Final = "second-trainer"
WORKSTATION: Final = "workstation"


async def play(story: Story) -> None:
    """Apply the manifests of examples/mig, with what must come of each."""
    cluster = story.cluster
    offers = {node.name: node.status.allocatable or {} for node in (await cluster.client.list(Node)).items}
    for name, resource in (("single", names.WHOLE_GPU), ("mixed", f"{names.MIG_PREFIX}1g.5gb")):
        found = offers[f"aks-mig-{name}"].get(resource)
        require(str(found) == "56", f"8 x A100 in sevenths, strategy {name}: 56 {resource}")
    for file in ("01-single.yaml", "02-mixed.yaml", "03-larger.yaml"):
        await apply(story, file, folder="mig")
    await story.until("the pods run", lambda: {pod.name for pod in story.running()} == PODS.keys())
    await story.until("an event says why one waits", lambda: bool(story.reasons(WAITS, "FailedScheduling")))
    say(f"  {WAITS} waits: {story.reasons(WAITS, 'FailedScheduling')[0]}")
    say(f"$ kubectl label node {WORKSTATION} {names.MIG_POLICY}={MigPolicy.ON_DEMAND}")
    body = {"metadata": {"labels": {names.MIG_POLICY: MigPolicy.ON_DEMAND}}}
    await cluster.client.patch(Node, WORKSTATION, body)
    everybody = PODS | {WAITS: WORKSTATION}
    await story.until(f"{WAITS} runs", lambda: {pod.name for pod in story.running()} == everybody.keys())
    say(f"  {WAITS} runs: {story.reasons(WAITS, 'PartitioningGPU')[0]}")
    seen: list[str] = []
    for pod in story.running():
        node = everybody[pod.name]
        require(pod.spec.node_name == node, f"{pod.name} is on {node}", quiet=True)
        env = await environment(story, pod, pod.spec.containers[0].name)
        device = env.get(names.VISIBLE_DEVICES, "")
        record = cluster.cluster.pod(pod.uid)
        held = record.allocation.gpus if record and record.allocation else ()
        require(held == (device,) and device.startswith("MIG-"), f"{pod.name} sees {device}", quiet=True)
        say(f"  {pod.name} on {pod.spec.node_name} sees {device}")
        seen.append(device)
    require(len(set(seen)) == len(seen), "every container sees one MIG device, and no two the same")
    say("\n$ gpuslice inspect   # below the table of GPUs that are shared by memory")
    say(migtable.table(cluster.cluster.snapshots(), details=False).strip("\n"))
