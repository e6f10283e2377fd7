"""NVIDIA's own GPU feature discovery beside our agent: whose the labels under nvidia.com/ are, and until when."""

from __future__ import annotations

from agent_world import NODE, World, world

from gpuslice.kube.wire import Node, Pod

COUNT, STAMP = "nvidia.com/gpu.count", "nvidia.com/gfd.timestamp"
OURS = "gpuslice.io/gpu.memory"
LABELS = {COUNT: "4", OURS: "16GB"}


async def labelled(here: World, **wanted: str | None) -> None:
    keys = {"count": COUNT, "stamp": STAMP, "ours": OURS}
    await here.until(
        Node, NODE, lambda node: all(node.labels.get(keys[key]) == value for key, value in wanted.items())
    )


async def test_what_feature_discovery_has_left_is_ours_to_keep_true() -> None:
    """Its timestamp stays when it is gone, and once froze all labels: a node of 4 GPUs went on saying 9."""
    async with world(labels=lambda: LABELS) as here:
        await here.client.patch(Node, NODE, {"metadata": {"labels": {COUNT: "9", STAMP: "1795220829"}}})
        await labelled(here, count="4", stamp=None, ours="16GB")


async def test_while_feature_discovery_runs_its_labels_stand() -> None:
    async with world() as here:
        await here.stop("agent")
        here.options["labels"] = lambda: LABELS
        await here.create("gfd-x7", {"name": "gpu-feature-discovery-ctr", "image": "k8s-device-plugin"})
        await here.client.patch(Node, NODE, {"metadata": {"labels": {COUNT: "9", STAMP: "1795220829"}}})
        await here.start_agent()
        await labelled(here, ours="16GB")
        node = await here.client.get(Node, NODE)
        assert (node.labels[COUNT], node.labels[STAMP]) == ("9", "1795220829")
        # When it goes they are ours at once, without a restart.
        await here.client.delete(Pod.resource, "gfd-x7", "default")
        await labelled(here, count="4", stamp=None)
