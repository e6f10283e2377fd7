"""The whole scheduler against the embedded API server: what a user of it would notice."""

import asyncio

from lab import PDB, api_server, laboratory, pod_body

from gpuslice import names
from gpuslice.kube.wire import ConfigMap, Node, Pod

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def budget(app: str) -> dict[str, object]:
    """No pod of that app may be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }


async def test_places_shares_on_one_gpu_and_says_so() -> None:
    """The first pod of the first day: bound, annotated, with a Scheduled event."""
    async with laboratory() as lab:
        await lab.node("n1", [16])
        await lab.pod("a", 5)
        assert await lab.bound("a") == "n1"
        assert lab.pods["a"].annotations[names.MEM_IDX] == "0"
        assert await lab.events("a", "Scheduled") == ["Successfully assigned default/a to n1"]


async def test_sum_is_not_enough_and_a_freed_gpu_wakes_the_pod_at_once() -> None:
    """2 x 3 GiB free on two GPUs is not 5 GiB; the end of a pod schedules the waiting one without a timer."""
    async with laboratory() as lab:
        await lab.node("n1", [8, 8])
        await lab.pod("a", 5)
        await lab.bound("a")
        await lab.pod("b", 5)
        await lab.bound("b")
        await lab.pod("c", 5)
        message = await lab.waits("c")
        assert message == "0/1 nodes are available: 1 Insufficient GPU Memory in one device."
        assert await lab.events("c", "FailedScheduling") == [message]
        await lab.end("a")
        assert await lab.bound("c") == "n1"


async def test_reasons_are_counted_together_in_kube_schedulers_words() -> None:
    async with laboratory() as lab:
        await lab.node("cordoned", [16], unschedulable=True)
        await lab.node("tainted", [16], taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
        await lab.node("small1", [16], cpu="1")
        await lab.node("small2", [16], cpu="1")
        await lab.node("plain")
        await lab.pod("a", 5, cpu="2")
        assert await lab.waits("a", "5 nodes") == (
            "0/5 nodes are available: 1 node(s) had untolerated taint {team: x}, "
            "1 node(s) were unschedulable, 1 node(s) without GPUs of the kind asked for, 2 Insufficient cpu."
        )


async def test_new_node_uncordon_and_removed_taint_wake() -> None:
    """Each kind of change wakes the pod that waits for just that."""
    async with laboratory() as lab:
        await lab.pod("a", 5)
        assert await lab.waits("a") == "no nodes available to schedule pods"
        await lab.node("n1", [8])
        assert await lab.bound("a") == "n1"
        await lab.node("n2", [8], unschedulable=True)
        await lab.pod("b", 5)
        await lab.waits("b", "unschedulable")
        await lab.client.patch(Node, "n2", {"spec": {"unschedulable": False}})
        assert await lab.bound("b") == "n2"
        await lab.node("n3", [8], taints=[{"key": "t", "effect": "NoSchedule"}])
        await lab.pod("c", 5)
        await lab.waits("c", "untolerated taint {t: }")
        await lab.client.patch(Node, "n3", {"spec": {"taints": None}})
        assert await lab.bound("c") == "n3"


async def test_what_is_not_implemented_waits_with_a_sentence() -> None:
    """Never placed as if it had not asked."""
    term = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with laboratory() as lab:
        await lab.node("n1", [8])
        await lab.pod("a", 2, affinity=affinity)
        message = await lab.waits("a")
        assert "required inter-pod affinity" in message
        assert "spec.affinity.podAntiAffinity" in message
        assert not lab.pods["a"].spec.node_name


async def test_scheduling_gate_is_respected() -> None:
    """A gated pod is not looked at until its gate is gone."""
    async with laboratory() as lab:
        await lab.node("n1", [8])
        await lab.pod("gated", 2, schedulingGates=[{"name": "example.com/wait"}])
        await lab.pod("later", 2)
        await lab.bound("later")
        assert not lab.pods["gated"].spec.node_name
        await lab.client.patch(Pod, "gated", {"spec": {"schedulingGates": None}}, "default")
        assert await lab.bound("gated") == "n1"


async def test_other_schedulers_pods_are_left_alone_but_counted() -> None:
    async with laboratory() as lab:
        await lab.node("n1", [8], cpu="2")
        await lab.pod("theirs", cpu="1500m", scheduler="someone-else")
        binding = {"metadata": {"name": "theirs"}, "target": {"kind": "Node", "name": "n1"}}
        await lab.client.create(Pod.resource, binding, "default", name="theirs", subresource="binding")
        await lab.bound("theirs")
        await lab.pod("ours", cpu="1")
        assert "Insufficient cpu" in await lab.waits("ours")


async def test_default_scheduler_can_be_one_of_its_names() -> None:
    async with laboratory(scheduler_names=("gpuslice", "default-scheduler")) as lab:
        await lab.node("n1")
        await lab.pod("a", scheduler="default-scheduler")
        assert await lab.bound("a") == "n1"


async def test_finished_pod_gives_back_its_room() -> None:
    """A completed Job's pod stays as an object and holds nothing."""
    async with laboratory() as lab:
        await lab.node("n1", [8], cpu="1")
        await lab.pod("a", 8, cpu="1")
        await lab.bound("a")
        await lab.pod("b", 8, cpu="1")
        await lab.waits("b")
        await lab.client.patch(Pod, "a", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
        assert await lab.bound("b") == "n1"


async def test_burst_is_never_overcommitted() -> None:
    """200 pods at once on 10 nodes: every GPU holds what it can, the rest waits."""
    async with laboratory() as lab:
        for i in range(10):
            await lab.node(f"n{i}", [10, 10])
        await asyncio.gather(*(lab.pod(f"p{i}", 3) for i in range(80)))
        await lab.until(lambda: sum(bool(p.spec.node_name) for p in lab.pods.values()) == 60)
        held: dict[tuple[str, str], int] = {}
        for pod in lab.pods.values():
            if pod.spec.node_name:
                gpu = (pod.spec.node_name, pod.annotations[names.MEM_IDX])
                held[gpu] = held.get(gpu, 0) + 3
        assert set(held.values()) == {9}
        waiting = [name for name, pod in lab.pods.items() if not pod.spec.node_name]
        for name in waiting:
            assert "Insufficient GPU Memory in one device" in await lab.waits(name)


async def test_burst_never_overcommits_cpu() -> None:
    """Each decision counts the ones before it, whose bindings are still on their way."""
    async with laboratory() as lab:
        await lab.node("n1", cpu="4")
        await lab.node("n2", cpu="4")
        await asyncio.gather(*(lab.pod(f"p{i}", cpu="1") for i in range(12)))
        await lab.until(lambda: sum(bool(p.spec.node_name) for p in lab.pods.values()) >= 8)
        waiting = [name for name, pod in lab.pods.items() if not pod.spec.node_name]
        assert len(waiting) == 4
        for name in waiting:
            assert await lab.waits(name) == "0/2 nodes are available: 2 Insufficient cpu."


async def test_preempts_the_pods_of_one_gpu() -> None:
    """Fewest and least important victims that free one GPU; the others stay; the pod gets the room."""
    async with laboratory() as lab:
        await lab.node("n1", [10, 10])
        for name, units, priority in (("low1", 6, 1), ("low2", 4, 1), ("mid", 9, 5)):
            await lab.pod(name, units, priority=priority)
            await lab.bound(name)
        await lab.pod("high", 8, priority=100)
        await lab.waits("high", "preemption: default/low")
        await lab.until(lambda: lab.pods["high"].status.nominated_node_name == "n1", "nominated")
        await lab.until(lambda: all(lab.pods[n].metadata.deletion_timestamp for n in ("low1", "low2")))
        assert lab.pods["mid"].metadata.deletion_timestamp is None
        (message,) = await lab.events("low1", "Preempted")
        assert message == "Preempted by pod default/high with priority 100 on node n1"
        await lab.end("low1")
        await lab.end("low2")
        assert await lab.bound("high") == "n1"


async def test_room_of_a_nominated_pod_is_not_stolen() -> None:
    """While the last victim ends, a small pod of low priority would fit: it must not take the room."""
    async with laboratory() as lab:
        await lab.node("n1", [10])
        for name in ("low1", "low2"):
            await lab.pod(name, 5)
            await lab.bound(name)
        await lab.pod("high", 10, priority=100)
        await lab.waits("high", "must leave")
        await lab.pod("thief", 4)
        await lab.waits("thief")
        await lab.end("low1")
        await lab.waits("thief", "kept their room")
        await lab.end("low2")
        assert await lab.bound("high") == "n1"


async def test_never_policy_does_not_preempt() -> None:
    async with laboratory() as lab:
        await lab.node("n1", [10])
        await lab.pod("low", 10)
        await lab.bound("low")
        await lab.pod("polite", 10, priority=100, preemptionPolicy="Never")
        assert "must leave" not in await lab.waits("polite")
        assert lab.pods["low"].metadata.deletion_timestamp is None


async def test_preempts_for_cpu_too() -> None:
    async with laboratory() as lab:
        await lab.node("n1", cpu="4")
        for i, cpu in enumerate(["2", "1", "1"]):
            await lab.pod(f"low{i}", cpu=cpu, priority=i)
            await lab.bound(f"low{i}")
        await lab.pod("high", cpu="2", priority=100)
        await lab.until(lambda: lab.pods["low0"].metadata.deletion_timestamp is not None)
        await lab.end("low0")
        await lab.bound("high")
        assert "low1" in lab.pods
        assert "low2" in lab.pods


async def test_budget_protects_and_others_are_tried() -> None:
    """A pod under a disruption budget of 0 stays; the more important one on the other GPU goes instead."""
    async with laboratory() as lab:
        await lab.node("n1", [10, 10])
        await lab.client.create(PDB, budget("precious"), "default")
        for name, priority in (("precious", 1), ("other", 2)):
            await lab.pod(name, 10, priority=priority)
            await lab.bound(name)
            await lab.client.patch(Pod, name, {"status": READY}, "default", subresource="status")
        await lab.pod("high", 10, priority=100)
        await lab.until(lambda: lab.pods["other"].metadata.deletion_timestamp is not None)
        assert lab.pods["precious"].metadata.deletion_timestamp is None
        await lab.end("other")
        assert await lab.bound("high") == "n1"


async def test_two_pods_preempt_two_gpus_of_one_node_at_once() -> None:
    """The second counts the first one's room and victims and does not wait for it."""
    async with laboratory() as lab:
        await lab.node("n1", [10, 10])
        for name in ("low1", "low2"):
            await lab.pod(name, 10)
            await lab.bound(name)
        await lab.pod("high1", 10, priority=100)
        await lab.pod("high2", 10, priority=100)
        await lab.waits("high1", "must leave")
        await lab.waits("high2", "must leave")
        await lab.end("low1")
        await lab.end("low2")
        await lab.bound("high1")
        await lab.bound("high2")
        assert {lab.pods[n].annotations[names.MEM_IDX] for n in ("high1", "high2")} == {"0", "1"}


async def test_preempts_where_it_costs_least() -> None:
    """Across nodes: the least important victim, wherever it is."""
    async with laboratory() as lab:
        for node, priority in (("n1", 5), ("n2", 1), ("n3", 9)):
            await lab.node(node, [10], labels={"n": node})
            await lab.pod(f"on-{node}", 10, priority=priority, nodeSelector={"n": node})
            await lab.bound(f"on-{node}")
        await lab.pod("high", 10, priority=100)
        await lab.until(lambda: lab.pods["high"].status.nominated_node_name == "n2")
        await lab.end("on-n2")
        assert await lab.bound("high") == "n2"
        assert all(lab.pods[f"on-{n}"].metadata.deletion_timestamp is None for n in ("n1", "n3"))


async def test_preemption_that_becomes_possible_wakes_the_pod() -> None:
    """The one that could not be evicted ends: its room alone is too small, with the others' it is not."""
    async with laboratory() as lab:
        await lab.node("n1", [10])
        for name, units, priority in (("boss", 6, 200), ("low", 4, 1)):
            await lab.pod(name, units, priority=priority)
            await lab.bound(name)
        await lab.pod("high", 10, priority=100)
        assert "must leave" not in await lab.waits("high")
        await lab.end("boss")
        await lab.waits("high", "default/low must leave")
        await lab.end("low")
        assert await lab.bound("high") == "n1"


async def test_uncordoned_node_can_be_preempted_on() -> None:
    async with laboratory() as lab:
        await lab.node("n1", cpu="1")
        await lab.pod("low", cpu="1")
        await lab.bound("low")
        await lab.client.patch(Node, "n1", {"spec": {"unschedulable": True}})
        await lab.pod("high", cpu="1", priority=100)
        await lab.waits("high", "unschedulable")
        await lab.client.patch(Node, "n1", {"spec": {"unschedulable": False}})
        await lab.waits("high", "default/low must leave")


async def test_nobody_leaves_for_nothing() -> None:
    """Two would have to go and a budget protects one of them: then neither goes, and the pod says why."""
    async with laboratory() as lab:
        await lab.node("n1", [10])
        await lab.client.create(PDB, budget("precious"), "default")
        for name in ("plain", "precious"):
            await lab.pod(name, 5)
            await lab.bound(name)
            await lab.client.patch(Pod, name, {"status": READY}, "default", subresource="status")
        await lab.pod("high", 10, priority=100)
        await lab.waits("high", "protected by disruption budgets")
        assert all(lab.pods[n].metadata.deletion_timestamp is None for n in ("plain", "precious"))


async def test_two_nominated_pods_do_not_wait_for_each_other() -> None:
    """One of the two GPUs fails while their victims end: the earlier of the two gets what is left."""
    async with laboratory() as lab:
        await lab.node("n1", [10, 10])
        for name in ("low1", "low2"):
            await lab.pod(name, 10)
            await lab.bound(name)
        for name in ("high1", "high2"):
            await lab.pod(name, 10, priority=100)
            await lab.waits(name, "must leave")
        config = {"metadata": {"name": "unhealthy-gpu-n1"}, "data": {"gpus": "1"}}
        await lab.client.create(ConfigMap.resource, config, "kube-system")
        await lab.until(lambda: not lab.cluster.fleet.free_gpus("n1")[1].gpu.available)
        await lab.end("low1")
        await lab.end("low2")
        assert await lab.bound("high1") == "n1"
        assert not lab.pods["high2"].spec.node_name


async def test_preferred_affinity_and_soft_taints_steer() -> None:
    preferred = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 10,
                    "preference": {
                        "matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]
                    },
                }
            ]
        }
    }
    async with laboratory() as lab:
        await lab.node("a", taints=[{"key": "t", "effect": "PreferNoSchedule"}])
        await lab.node("b")
        await lab.node("c", labels={"disk": "ssd"})
        await lab.pod("picky", affinity=preferred)
        assert await lab.bound("picky") == "c"
        body = pod_body("not-a", affinity={"nodeAffinity": {}})
        body["spec"]["nodeSelector"] = {}
        for i in range(6):
            await lab.pod(f"p{i}")
            assert await lab.bound(f"p{i}") in ("b", "c")


async def test_scheduler_that_joins_late_knows_everything() -> None:
    """The feed ran before it: pods bound earlier count, pods that wait are scheduled."""
    server = await api_server()
    async with laboratory(server=server) as lab:
        await lab.node("n1", [8], cpu="2")
        await lab.pod("a", 4, cpu="1500m")
        await lab.bound("a")
        await lab.pod("b", 4, cpu="1")
        await lab.waits("b", "Insufficient cpu")
    async with laboratory(server=server, late=True) as lab:
        await lab.pod("c", cpu="500m")
        assert await lab.bound("c") == "n1"
        assert not lab.pods["b"].spec.node_name
        await lab.end("a")
        assert await lab.bound("b") == "n1"
    await server.stop()


async def test_restart_rebuilds_everything_from_the_api_server() -> None:
    """A new process, nothing on disk: no GPU is forgotten, no pod is stranded."""
    server = await api_server()
    async with laboratory(server=server) as lab:
        await lab.node("n1", [8, 8])
        for name in ("a", "b"):
            await lab.pod(name, 6)
            await lab.bound(name)
        await lab.pod("c", 6)
        await lab.waits("c")
    async with laboratory(server=server) as lab:
        await lab.end("b")
        await lab.bound("c")
        assert lab.pods["c"].annotations[names.MEM_IDX] == "1"
    await server.stop()


async def test_two_schedulers_at_once_do_not_bind_a_pod_twice() -> None:
    """A rolling update: both decide about every pod, each pod gets one node, and both learn which."""
    server = await api_server()
    async with laboratory(server=server) as one, laboratory(server=server) as two:
        for i in range(4):
            await one.node(f"n{i}", [8, 8])
        for i in range(16):
            await one.pod(f"p{i}", 2)
        for i in range(16):
            await one.bound(f"p{i}")
            await two.bound(f"p{i}")
        for lab in (one, two):
            held = {r.uid: r.node for name in lab.cluster.node_names() for r in lab.cluster.pods_on(name)}
            assert held == {pod.uid: pod.spec.node_name for pod in one.pods.values()}
    await server.stop()


async def test_api_server_away_at_bind_is_survived() -> None:
    """The bind fails, nothing is lost: the pod is bound when the API server is back."""
    async with laboratory() as lab:
        assert lab.weather is not None
        await lab.node("n1", [8])
        await lab.until(lambda: lab.cluster.node_names() == ["n1"])
        lab.weather.cut = True
        await lab.pod("a", 8, cpu="8")  # all that the node has
        async with asyncio.timeout(5):
            await lab.weather.refused.wait()
        lab.weather.cut = False
        assert await lab.bound("a") == "n1"


async def test_pod_deleted_while_it_waits_is_forgotten() -> None:
    async with laboratory() as lab:
        await lab.node("n1", [8])
        await lab.pod("a", 9)
        await lab.waits("a")
        await lab.end("a")
        await lab.pod("b", 8)
        assert await lab.bound("b") == "n1"


async def test_unhealthy_gpu_healed_wakes_the_pod() -> None:
    """ConfigMap unhealthy-gpu-<node>: its removal is an event like any other."""
    async with laboratory() as lab:
        config = {"metadata": {"name": "unhealthy-gpu-n1"}, "data": {"gpus": "0"}}
        await lab.client.create(ConfigMap.resource, config, "kube-system")
        await lab.node("n1", [8])
        await lab.pod("a", 4)
        assert "unhealthy" in await lab.waits("a", "unhealthy")
        await lab.client.delete(ConfigMap.resource, "unhealthy-gpu-n1", "kube-system")
        assert await lab.bound("a") == "n1"
