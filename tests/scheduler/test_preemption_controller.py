"""Room on a single GPU for pods of kube-scheduler, which never asks for it."""

from lab import Lab, laboratory

from gpuslice.kube.wire import Pod

KUBE = "default-scheduler"


async def fill(lab: Lab) -> None:
    """2 x 3 GiB free on n1: the sum is 6, no single GPU has 5."""
    await lab.node("n1", [8, 8], labels={"kind": "first"})
    for name, priority in (("low", -5), ("mid", -1)):
        await lab.pod(name, 5, priority=priority, scheduler=KUBE)
        await lab.place(name, "n1")


async def test_frees_one_gpu_for_a_pod_that_fits_the_sum_only() -> None:
    """The less important pod is evicted, the node nominated, and the event tells why."""
    async with laboratory(scheduler=False, controller=True) as lab:
        await fill(lab)
        await lab.pod("high", 5, priority=100, scheduler=KUBE)
        await lab.give_up("high")
        await lab.until(lambda: lab.pods["low"].metadata.deletion_timestamp is not None, "low evicted")
        await lab.until(lambda: lab.pods["high"].status.nominated_node_name == "n1", "nominated")
        assert lab.pods["mid"].metadata.deletion_timestamp is None
        assert await lab.events("high", "Preemption") == ["preemption: default/low must leave node n1."]
        await lab.end("low")
        await lab.pod("thief", 5, scheduler=KUBE)
        await lab.until(lambda: "thief" in lab.pods)
        assert lab.controller is not None
        assert lab.controller.kept(lab.pods["thief"], ["n1"]) == ["n1"]
        assert lab.controller.kept(lab.pods["high"], ["n1"]) == []
        await lab.place("high", "n1")
        assert lab.controller.kept(lab.pods["thief"], ["n1"]) == []


async def test_evicts_once_however_often_the_pod_is_reported() -> None:
    """While the victim ends, the pod's scheduler reports it again and again: nobody else has to go."""
    async with laboratory(scheduler=False, controller=True) as lab:
        await fill(lab)
        await lab.pod("high", 5, priority=100, scheduler=KUBE)
        await lab.give_up("high")
        await lab.until(lambda: lab.pods["low"].metadata.deletion_timestamp is not None)
        await lab.until(lambda: lab.pods["high"].status.nominated_node_name == "n1")
        touch = {"metadata": {"labels": {"touched": "1"}}}
        version = (await lab.client.patch(Pod, "high", touch, "default")).metadata.resource_version
        await lab.until(lambda: lab.pods["high"].metadata.resource_version == version)
        # A second pod's preemption comes after the first one's second look.
        await lab.pod("other", 5, priority=100, scheduler=KUBE)
        await lab.give_up("other")
        await lab.until(lambda: lab.pods["mid"].metadata.deletion_timestamp is not None)
        assert await lab.events("high", "Preemption") == ["preemption: default/low must leave node n1."]
        assert await lab.events("other", "Preemption") == ["preemption: default/mid must leave node n1."]


async def _left_alone(lab: Lab, name: str) -> None:
    """Nothing is done for the pod, although two rounds after it make room for others."""
    await lab.node("n9", [8, 8], labels={"witness": "yes"})
    on_n9 = {"nodeSelector": {"witness": "yes"}, "scheduler": KUBE}
    for low in ("w1", "w2"):
        await lab.pod(low, 5, **on_n9)
        await lab.place(low, "n9")
    for witness in ("witness1", "witness2"):
        await lab.pod(witness, 5, priority=1000, **on_n9)
        await lab.give_up(witness)
        await lab.until(lambda: bool(lab.pods[witness].status.nominated_node_name), f"{witness} nominated")  # noqa: B023
    assert not lab.pods[name].status.nominated_node_name
    assert all(lab.pods[n].metadata.deletion_timestamp is None for n in ("low", "mid"))


PINNED = {"nodeSelector": {"kind": "first"}}


async def test_no_room_for_pods_without_priority() -> None:
    async with laboratory(scheduler=False, controller=True) as lab:
        await fill(lab)
        await lab.pod("high", 5, scheduler=KUBE, **PINNED)
        await lab.give_up("high")
        await _left_alone(lab, "high")


async def test_pods_of_our_own_scheduler_are_left_to_it() -> None:
    async with laboratory(scheduler=False, controller=True) as lab:
        await fill(lab)
        await lab.pod("ours", 5, priority=100, **PINNED)
        await lab.give_up("ours")
        await _left_alone(lab, "ours")


async def test_kube_schedulers_own_preemption_is_not_doubled() -> None:
    """Where the sum is short as well, kube-scheduler preempts by itself."""
    async with laboratory(scheduler=False, controller=True) as lab:
        await fill(lab)
        await lab.pod("high", 8, priority=100, scheduler=KUBE, **PINNED)
        await lab.give_up("high")
        await _left_alone(lab, "high")


async def test_pod_that_fits_somewhere_needs_no_victims() -> None:
    """Its condition is out of date: its scheduler will place it at the next try."""
    async with laboratory(scheduler=False, controller=True) as lab:
        await fill(lab)
        await lab.node("n2", [8], labels={"kind": "first"})
        await lab.pod("high", 5, priority=100, scheduler=KUBE, **PINNED)
        await lab.give_up("high")
        await _left_alone(lab, "high")
