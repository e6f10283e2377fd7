"""`make demo`: the gpushare story and the one of MIG on clusters in this process, told and checked.

    python -m gpuslice.cli.demo

Manifests go to the API server over HTTPS, as kubectl would send them; every wait is for an event of the
cluster; at the end what the containers see, what the annotations say and what `inspect` counts must agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import Final

from gpuslice import names
from gpuslice.cli.demo import mig as demomig
from gpuslice.cli.demo.world import (
    EXAMPLES,
    DemoError,
    Story,
    apply,
    environment,
    require,
    say,
    within,
)
from gpuslice.cli.inspect.gpushare import details, summary
from gpuslice.cli.process import run
from gpuslice.clock import Clock, SystemClock
from gpuslice.cluster.annotations import decode_allocation
from gpuslice.cluster.records import NodeView
from gpuslice.config.cluster import ClusterFile
from gpuslice.kube.wire import Pod
from gpuslice.local.up import Settings, local_cluster
from gpuslice.observe.logging import setup
from gpuslice.requests.pod import read_request

STUCK: Final = "too-large-for-one-gpu"
ARTICLE: Final = "gpu-share-test"
UNITS: Final = 5 + 3 * 2 + (4 + 1) + 3 * 3
"""GiB that the story's running pods hold."""


async def tell(clock: Clock) -> None:
    """Run the demo. Raises DemoError if something is not as it must be."""
    start = clock.monotonic()
    if not EXAMPLES.is_dir():
        raise DemoError(f"{EXAMPLES} is missing; run the demo from a clone of the repository")
    async with staged("laptop.yaml", "in this process, without a GPU", clock) as story:
        print_nodes(story.cluster.cluster.snapshots())
        await play(story)
    say("")
    async with staged(demomig.FILE, "whose GPUs are partitioned by MIG", clock) as story:
        await demomig.play(story)
    say(f"\nAll of it is as it must be; {clock.monotonic() - start:.1f} s in all.")


@asynccontextmanager
async def staged(file: str, what: str, clock: Clock) -> AsyncIterator[Story]:
    """A cluster of examples/clusters that is ready, with somebody who watches it."""
    start = clock.monotonic()
    path = EXAMPLES / "clusters" / file
    plan = ClusterFile.load(path).plan()
    say(f"# A cluster from {path.relative_to(EXAMPLES.parent)}, {what}")
    async with local_cluster(plan, Settings(), clock=clock, random=SystemRandom()) as cluster:
        story = Story(cluster, clock=clock)
        watching = asyncio.create_task(story.follow())
        try:
            await within("the nodes offer their GPUs", cluster.ready())
            say(f"ready after {clock.monotonic() - start:.1f} s")
            yield story
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def play(story: Story) -> None:
    """Apply the manifests one after the other, with what must come of each."""
    say("\n# The usual test pod: 5 GiB, and an env line that would show it every GPU")
    (pod,) = await apply(story, "01-gpu-share-test.yaml")
    require(
        len(pod.warnings) == 1 and names.VISIBLE_DEVICES in pod.warnings[0], "the API server warns about it"
    )
    await story.until("the test pod runs", lambda: ARTICLE in {pod.name for pod in story.running()})
    tell_places(story, ARTICLE)

    say("\n# Three deployments of 2 GiB: bin-packing puts them beside it")
    await apply(story, "02-binpack.yaml")
    await story.until("four pods run", lambda: len(story.running()) == 4)
    tell_places(story, "binpack")
    gpus = {gpu for pod in story.running() for gpu in gpus_of(story, pod).values()}
    require(len(gpus) == 1, "all four share one GPU")

    say("\n# 40 GiB: node gpu-3 has 45 GiB in all, but no GPU has more than 31")
    await apply(story, "03-too-large-for-one-gpu.yaml")
    await story.until("an event says why it waits", lambda: bool(story.reasons(STUCK, "FailedScheduling")))
    why = story.reasons(STUCK, "FailedScheduling")[0]
    say(f"  {STUCK} waits: {why}")
    require("Insufficient GPU Memory in one device" in why, "the event names the reason")

    say("\n# Two containers in one pod, each with a share of its own")
    await apply(story, "04-two-containers.yaml")
    await story.until("five pods run", lambda: len(story.running()) == 5)
    tell_places(story, "two-containers")

    say("\n# A StatefulSet: three replicas of 3 GiB, one after the other")
    await apply(story, "05-statefulset.yaml")
    await story.until("eight pods run", lambda: len(story.running()) == 8)
    tell_places(story, "player")

    await check_all(story)


# --- checking -----------------------------------------------------------------------------------------
async def check_all(story: Story) -> None:
    """What the containers see, what is written down and what is counted must be one and the same."""
    cluster = story.cluster
    await story.until(
        "every running pod is marked as assigned",
        lambda: all(pod.annotations.get(names.MEM_ASSIGNED) == "true" for pod in story.running()),
    )
    await within(
        f"{UNITS} GiB are counted", cluster.changed(lambda: in_use(cluster.cluster.snapshots()) == UNITS)
    )
    views = cluster.cluster.snapshots()
    say("\n# What there is now")
    print_pods(story)
    print_inspect(views, details_of=story.pods[ARTICLE].spec.node_name)
    say("\n# The same from three sides: the containers' environment, the annotations, the sums")
    counted = {
        (share.namespace, share.name, gpu.gpu.uuid): share.mib
        for view in views
        for gpu in view.gpus
        for share in gpu.pods
    }
    written = 0
    for pod in story.running():
        held: dict[str, int] = {}
        for container, gpu in gpus_of(story, pod).items():
            env = await environment(story, pod, container)
            require(
                env.get(names.VISIBLE_DEVICES) == gpu,
                f"{pod.name}/{container} sees {env.get(names.VISIBLE_DEVICES)} and was given {gpu}",
                quiet=True,
            )
            request = read_request(pod.spec, pod.annotations).container(container)
            units = request.units if request else 0
            require(
                env.get(names.MEM_CONTAINER) == str(units),
                f"{pod.name}/{container} is told that it has {units} units",
                quiet=True,
            )
            held[gpu] = held.get(gpu, 0) + units * 1024
        for gpu, mib in held.items():
            key = (pod.namespace, pod.name, gpu)
            require(
                counted.pop(key, None) == mib, f"{pod.name} is counted with {mib} MiB on {gpu}", quiet=True
            )
            written += mib
    require(
        not counted, "every pod sees the GPU that its annotation names, with the memory that inspect counts"
    )
    require(written == UNITS * 1024, f"5 + 3 x 2 + (4 + 1) + 3 x 3 = {UNITS} GiB are in use")
    over = [one.gpu.uuid for view in views for one in view.gpus if one.used_mib > one.gpu.memory_mib]
    require(not over, "no GPU is promised more than it has")
    require(story.pods[STUCK].status.phase == "Pending", f"{STUCK} still waits")


def in_use(views: list[NodeView]) -> int:
    """GiB that pods hold on known GPUs."""
    return sum(gpu.used_mib for view in views for gpu in view.gpus) // 1024


def gpus_of(story: Story, pod: Pod) -> dict[str, str]:
    """Container -> UUID, as the pod's annotation says."""
    gpus = story.cluster.cluster.gpus(pod.spec.node_name)
    require(gpus is not None, f"node {pod.spec.node_name} is known", quiet=True)
    assert gpus is not None
    request = read_request(pod.spec, pod.annotations)
    containers = [container.name for container in pod.spec.containers]
    allocation = decode_allocation(pod.annotations, request, containers, gpus)
    if allocation is None:
        raise DemoError(f"pod {pod.name} runs without saying which GPU it has")
    return {grant.container: grant.gpu for grant in allocation.grants}


# --- telling ------------------------------------------------------------------------------------------
def tell_places(story: Story, prefix: str) -> None:
    """Where the pods of that name run."""
    for pod in story.running():
        if pod.name.startswith(prefix):
            for container, uuid in gpus_of(story, pod).items():
                gpus = story.cluster.cluster.gpus(pod.spec.node_name)
                gpu = gpus.find(uuid) if gpus else None
                where = f"GPU{gpu.index} ({gpu.model})" if gpu else uuid
                say(f"  {pod.name}: container {container} on {pod.spec.node_name}, {where}")


def print_nodes(views: list[NodeView]) -> None:
    """The GPUs of every node."""
    for view in views:
        gpus = ", ".join(
            f"{one.gpu.model} {view.unit.units_in(one.gpu.memory_mib)} {view.unit}" for one in view.gpus
        )
        say(f"  {view.name}: {gpus}")


def print_pods(story: Story) -> None:
    """Like `kubectl get pods -o wide`, the columns that matter here."""
    rows = [("NAME", "STATUS", "NODE")]
    rows += [(p.name, p.status.phase, p.spec.node_name or "<none>") for _, p in sorted(story.pods.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, status, node in rows:
        say(f"  {name:<{widths[0]}}  {status:<{widths[1]}}  {node}")


def print_inspect(views: list[NodeView], *, details_of: str) -> None:
    """What kubectl's plugin prints."""
    say("\n$ kubectl inspect gpushare")
    say(summary(views).rstrip("\n"))
    say(f"\n$ kubectl inspect gpushare -d {details_of}")
    say(details([view for view in views if view.name == details_of]).strip("\n"))


def main() -> None:
    """Exit code 0 if all is as it must be, 1 with a sentence if not."""
    setup(level="warning")
    run(tell(SystemClock()))


if __name__ == "__main__":
    main()
