"""StatefulSets: ordinals, order, partitions, history; and DaemonSets: one pod on each node that suits."""

import asyncio

from world import Json, World, node, template, workload, world

REVISION = "controller-revision-hash"


async def names(it: World) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in await it.list("Pod"))


async def images(it: World) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in await it.list("Pod")}


async def test_pods_come_one_after_the_other_and_carry_their_identity() -> None:
    async with world() as it:
        it.decide = lambda _: "running"
        await it.create(workload("StatefulSet", replicas=3, serviceName="db"))
        await it.status("StatefulSet", "web", replicas=1, readyReplicas=0)
        assert await names(it) == ["web-0"], "the first is not ready yet"
        it.decide = lambda _: "ready"
        await it.mark(await it.get("Pod", "web-0"), "ready")
        item = await it.status("StatefulSet", "web", readyReplicas=3, currentReplicas=3, updatedReplicas=3)
        pod = await it.get("Pod", "web-2")
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("web-2", "db")
        labels = pod["metadata"]["labels"]
        assert labels["statefulset.kubernetes.io/pod-name"] == "web-2"
        assert labels[REVISION] == item["status"]["currentRevision"] == item["status"]["updateRevision"]


async def test_parallel_sets_wait_for_nobody() -> None:
    async with world() as it:
        it.decide = lambda _: "pending"
        await it.create(
            workload("StatefulSet", replicas=3, podManagementPolicy="Parallel", ordinals={"start": 5})
        )
        await it.status("StatefulSet", "web", replicas=3)
        assert await names(it) == ["web-5", "web-6", "web-7"]


async def test_scaling_down_takes_the_highest_first_and_a_lost_pod_comes_back_under_its_name() -> None:
    async with world() as it:
        await it.create(workload("StatefulSet", replicas=4))
        await it.status("StatefulSet", "web", readyReplicas=4)
        await it.patch("StatefulSet", "web", {"spec": {"replicas": 2}})
        await it.status("StatefulSet", "web", replicas=2, readyReplicas=2)
        assert it.pods_deleted == ["web-3", "web-2"]
        uid = (await it.get("Pod", "web-0"))["metadata"]["uid"]
        await it.delete("Pod", "web-0")

        async def reborn() -> bool:
            pod = await it.get("Pod", "web-0")
            return bool(pod["metadata"]["uid"] != uid)

        await it.until(reborn)


async def test_an_update_goes_from_the_highest_down_to_the_partition() -> None:
    """Below the partition pods stay old, and come back old when they are lost."""
    async with world() as it:
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
        await it.create(workload("StatefulSet", replicas=4, updateStrategy=rolling))
        await it.status("StatefulSet", "web", readyReplicas=4)
        await it.patch("StatefulSet", "web", {"spec": {"template": template("app:2")}})
        await it.status("StatefulSet", "web", readyReplicas=4, updatedReplicas=2, currentReplicas=2)
        assert it.pods_deleted == ["web-3", "web-2"]
        await it.delete("Pod", "web-0")

        async def back() -> bool:
            pods = await images(it)
            return it.pods_created == 7 and pods.get("web-0") == "app:1" and len(pods) == 4

        await it.until(back)
        await it.patch(
            "StatefulSet", "web", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
        )
        item = await it.status("StatefulSet", "web", readyReplicas=4, updatedReplicas=4, currentReplicas=4)
        assert item["status"]["currentRevision"] == item["status"]["updateRevision"]
        assert set((await images(it)).values()) == {"app:2"}
        assert it.pods_deleted == ["web-3", "web-2", "web-0", "web-1", "web-0"]
        history = await it.list("ControllerRevision")
        assert sorted(one["revision"] for one in history) == [1, 2]
        assert all(one["data"]["spec"]["template"]["$patch"] == "replace" for one in history)


async def test_an_update_stops_at_a_pod_that_does_not_become_ready() -> None:
    async with world() as it:
        await it.create(workload("StatefulSet", replicas=3))
        await it.status("StatefulSet", "web", readyReplicas=3)
        it.decide = lambda _: "running"
        await it.patch("StatefulSet", "web", {"spec": {"template": template("app:2")}})
        await it.status("StatefulSet", "web", readyReplicas=2, updatedReplicas=1)
        assert await images(it) == {"web-0": "app:1", "web-1": "app:1", "web-2": "app:2"}


async def test_on_delete_replaces_only_what_the_user_deletes() -> None:
    async with world() as it:
        await it.create(workload("StatefulSet", replicas=2, updateStrategy={"type": "OnDelete"}))
        await it.status("StatefulSet", "web", readyReplicas=2)
        await it.patch("StatefulSet", "web", {"spec": {"template": template("app:2")}})
        await it.status("StatefulSet", "web", readyReplicas=2, updatedReplicas=0)
        await it.delete("Pod", "web-0")
        await it.status("StatefulSet", "web", readyReplicas=2, updatedReplicas=1)
        assert await images(it) == {"web-0": "app:2", "web-1": "app:1"}


async def test_volume_claims_are_refused_in_words_and_no_pod_runs_without_its_data() -> None:
    async with world() as it:
        claim: Json = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
        await it.create(workload("StatefulSet", volumeClaimTemplates=[claim]))
        (text,) = await it.until(lambda: it.events("UnsupportedVolumeClaims"))
        assert "not supported" in text
        assert await names(it) == []


async def where(it: World) -> list[str]:
    return sorted(pod["spec"].get("nodeName", "") for pod in await it.list("Pod"))


async def test_a_daemon_runs_on_every_node_that_suits_and_follows_their_labels() -> None:
    async with world() as it:
        for name, kind in (("a", "gpu"), ("b", "gpu"), ("c", "cpu")):
            await it.create(node(name, kind=kind))
        spec = template()
        spec["spec"]["nodeSelector"] = {"kind": "gpu"}
        await it.create(workload("DaemonSet", template=spec))
        await it.status(
            "DaemonSet", "web", desiredNumberScheduled=2, numberAvailable=2, updatedNumberScheduled=2
        )
        assert await where(it) == ["a", "b"]
        await it.patch("Node", "c", {"metadata": {"labels": {"kind": "gpu"}}})
        await it.patch("Node", "a", {"metadata": {"labels": {"kind": "old"}}})
        await it.status(
            "DaemonSet", "web", desiredNumberScheduled=2, numberAvailable=2, currentNumberScheduled=2
        )

        async def moved() -> bool:
            return await where(it) == ["b", "c"]

        await it.until(moved)


async def test_a_daemon_bears_a_cordon_but_not_a_taint() -> None:
    async with world() as it:
        await it.create(node("cordoned"))
        await it.call("PATCH", "/api/v1/nodes/cordoned", {"spec": {"unschedulable": True}})
        await it.create(node("tainted"))
        taint = {"key": "mine", "effect": "NoSchedule"}
        await it.call("PATCH", "/api/v1/nodes/tainted", {"spec": {"taints": [taint]}})
        await it.create(workload("DaemonSet"))
        await it.status("DaemonSet", "web", desiredNumberScheduled=2, numberAvailable=2)
        assert await where(it) == ["cordoned", "n1"]


async def test_a_daemon_update_takes_one_node_at_a_time() -> None:
    async with world() as it:
        for number in range(2, 5):
            await it.create(node(f"n{number}"))
        await it.create(workload("DaemonSet"))
        await it.status("DaemonSet", "web", numberAvailable=4)
        least = 4

        async def fewest() -> bool:
            nonlocal least
            pods = await it.list("Pod")
            least = min(least, sum(not pod["metadata"].get("deletionTimestamp") for pod in pods))
            return False

        watcher = asyncio.create_task(it.until(fewest, 60))
        await it.patch("DaemonSet", "web", {"spec": {"template": template("app:2")}})
        await it.status("DaemonSet", "web", numberAvailable=4, updatedNumberScheduled=4, numberUnavailable=0)
        watcher.cancel()
        assert least == 3


async def test_a_failed_daemon_pod_is_replaced() -> None:
    async with world() as it:
        await it.create(workload("DaemonSet"))
        await it.status("DaemonSet", "web", numberAvailable=1)
        (pod,) = await it.list("Pod")
        await it.mark(pod, "failed")

        async def replaced() -> bool:
            return it.pods_created == 2 and len(await it.list("Pod")) == 1

        await it.until(replaced)
