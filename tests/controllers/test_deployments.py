"""Deployments and ReplicaSets against the embedded API server."""

import asyncio

from world import Json, World, start, template, workload, world


async def revisions(it: World) -> dict[str, int]:
    """ReplicaSet sizes by revision."""
    sets = await it.list("ReplicaSet")
    name = "deployment.kubernetes.io/revision"
    return {one["metadata"]["annotations"][name]: one["spec"]["replicas"] for one in sets}


def condition(item: Json, kind: str) -> Json:
    found: Json = next(one for one in item["status"]["conditions"] if one["type"] == kind)
    return found


async def test_a_new_deployment_becomes_available_and_says_so() -> None:
    async with world() as it:
        await it.create(workload("Deployment", replicas=3))
        item = await it.status("Deployment", "web", replicas=3, updatedReplicas=3, availableReplicas=3)
        assert condition(item, "Available")["status"] == "True"
        progressing = condition(item, "Progressing")
        assert (progressing["status"], progressing["reason"]) == ("True", "NewReplicaSetAvailable")
        (only,) = await it.list("ReplicaSet")
        assert only["metadata"]["ownerReferences"][0]["uid"] == item["metadata"]["uid"]
        pods = await it.list("Pod")
        assert {pod["metadata"]["labels"]["pod-template-hash"] for pod in pods} == {
            only["metadata"]["labels"]["pod-template-hash"]
        }
        assert all(pod["metadata"]["name"].startswith(only["metadata"]["name"] + "-") for pod in pods)
        scaled = await it.until(lambda: it.events("ScalingReplicaSet"))
        assert scaled == [f"Scaled up replica set {only['metadata']['name']} from 0 to 3"]


async def test_a_rolling_update_stays_within_its_bounds_and_keeps_history() -> None:
    """`kubectl rollout history` and `undo`: old ReplicaSets stay, and an old template gets a new number."""
    async with world() as it:
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        await it.create(workload("Deployment", replicas=4, strategy=rolling))
        await it.status("Deployment", "web", availableReplicas=4)
        most = 0

        async def watch_most() -> bool:
            nonlocal most
            living = [pod for pod in await it.list("Pod") if not pod["metadata"].get("deletionTimestamp")]
            most = max(most, len(living))
            return False

        watcher = asyncio.create_task(it.until(watch_most, 60))
        await it.patch("Deployment", "web", {"spec": {"template": template("app:2")}})
        await it.status("Deployment", "web", replicas=4, updatedReplicas=4, availableReplicas=4)
        watcher.cancel()
        assert most == 5
        assert await revisions(it) == {"1": 0, "2": 4}
        await it.patch("Deployment", "web", {"spec": {"template": template("app:1")}})
        await it.status("Deployment", "web", replicas=4, updatedReplicas=4, availableReplicas=4)
        assert await revisions(it) == {"2": 0, "3": 4}
        newest = next(one for one in await it.list("ReplicaSet") if one["spec"]["replicas"])
        assert newest["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"] == "1"


async def test_an_update_that_never_becomes_ready_keeps_the_old_pods_and_times_out() -> None:
    async with world(speed=50) as it:
        await it.create(workload("Deployment", replicas=4, progressDeadlineSeconds=20))
        await it.status("Deployment", "web", availableReplicas=4)
        it.decide = lambda _: "running"
        await it.patch("Deployment", "web", {"spec": {"template": template("app:broken")}})

        async def stuck() -> Json | None:
            item = await it.get("Deployment", "web")
            return item if condition(item, "Progressing")["reason"] == "ProgressDeadlineExceeded" else None

        item = await it.until(stuck)
        assert condition(item, "Progressing")["status"] == "False"
        assert item["status"]["availableReplicas"] == 3, "25 % of 4 may be missing, no more"


async def test_recreate_waits_for_the_last_old_pod() -> None:
    """Also for those that are still terminating: they hold what the new ones need."""
    async with world() as it:
        await it.create(workload("Deployment", replicas=3, strategy={"type": "Recreate"}))
        await it.status("Deployment", "web", availableReplicas=3)
        it.may_end.clear()
        await it.patch("Deployment", "web", {"spec": {"template": template("app:2")}})

        async def scaled_down() -> bool:
            return await revisions(it) == {"1": 0, "2": 0}

        await it.until(scaled_down)
        await it.patch("Deployment", "web", {"metadata": {"annotations": {"look": "again"}}})
        await it.patch("Deployment", "web", {"spec": {"minReadySeconds": 1}})
        await it.status("Deployment", "web", replicas=0)
        assert it.pods_created == 3
        await it.patch("Deployment", "web", {"spec": {"minReadySeconds": 0}})
        it.may_end.set()
        await it.status("Deployment", "web", replicas=3, updatedReplicas=3, availableReplicas=3)


async def test_a_paused_deployment_scales_but_does_not_roll() -> None:
    async with world() as it:
        await it.create(workload("Deployment", replicas=2))
        await it.status("Deployment", "web", availableReplicas=2)
        await it.patch("Deployment", "web", {"spec": {"paused": True, "template": template("app:2")}})
        await it.patch("Deployment", "web", {"spec": {"replicas": 4}})
        item = await it.status("Deployment", "web", availableReplicas=4, updatedReplicas=0)
        assert condition(item, "Progressing")["reason"] == "DeploymentPaused"
        assert await revisions(it) == {"1": 4}
        await it.patch("Deployment", "web", {"spec": {"paused": False}})
        await it.status("Deployment", "web", replicas=4, availableReplicas=4, updatedReplicas=4)
        assert await revisions(it) == {"1": 0, "2": 4}


async def test_history_beyond_its_limit_is_forgotten() -> None:
    async with world() as it:
        await it.create(workload("Deployment", replicas=1, revisionHistoryLimit=1))
        for version in (2, 3, 4):
            await it.status("Deployment", "web", replicas=1, updatedReplicas=1, availableReplicas=1)
            await it.patch("Deployment", "web", {"spec": {"template": template(f"app:{version}")}})

        async def cleaned() -> bool:
            return await revisions(it) == {"3": 0, "4": 1}

        await it.until(cleaned)


async def test_scaling_down_takes_pods_that_are_not_ready_first() -> None:
    async with world() as it:
        it.decide = lambda _: "ready" if it.pods_created <= 2 else "running"
        await it.create(workload("ReplicaSet", replicas=4))
        await it.status("ReplicaSet", "web", replicas=4, readyReplicas=2)
        await it.patch("ReplicaSet", "web", {"spec": {"replicas": 2}})
        await it.status("ReplicaSet", "web", replicas=2, readyReplicas=2)


async def test_a_lost_pod_is_replaced() -> None:
    async with world() as it:
        await it.create(workload("ReplicaSet", replicas=2))
        await it.status("ReplicaSet", "web", readyReplicas=2)
        first, second = await it.list("Pod")
        await it.delete("Pod", first["metadata"]["name"])
        await it.mark(second, "failed")

        async def replaced() -> bool:
            pods = await it.list("Pod")
            fresh = [pod for pod in pods if pod["status"].get("phase") == "Running"]
            return len(fresh) == 2 and first["metadata"]["name"] not in [p["metadata"]["name"] for p in pods]

        await it.until(replaced)


async def test_free_pods_are_adopted_and_relabelled_ones_released() -> None:
    async with world() as it:
        free = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "free", "labels": {"app": "web"}}}
        await it.create({**free, "spec": template()["spec"]})
        await it.create(workload("ReplicaSet", replicas=2))
        item = await it.status("ReplicaSet", "web", readyReplicas=2)
        assert it.pods_created == 2, "one was there already"
        pod = await it.get("Pod", "free")
        assert pod["metadata"]["ownerReferences"][0]["uid"] == item["metadata"]["uid"]
        await it.patch("Pod", "free", {"metadata": {"labels": {"app": "debug"}}})

        async def let_go() -> bool:
            pod = await it.get("Pod", "free")
            return not pod["metadata"].get("ownerReferences") and it.pods_created == 3

        await it.until(let_go)


async def test_available_waits_for_min_ready_seconds() -> None:
    async with world(speed=20) as it:
        await it.create(workload("ReplicaSet", replicas=1, minReadySeconds=10))
        await it.status("ReplicaSet", "web", readyReplicas=1, availableReplicas=0)
        await it.status("ReplicaSet", "web", readyReplicas=1, availableReplicas=1)


async def test_a_refusal_is_told_and_not_asked_a_thousand_times() -> None:
    """Slow start: the first batch that fails ends the attempt. Once the quota is raised, all come."""
    async with world() as it:
        asked = 0

        def refuses(method: str, path: str) -> bool:
            nonlocal asked
            pods = method == "POST" and path.endswith("/pods")
            asked += pods
            return pods

        it.refuses = refuses
        await it.create(workload("ReplicaSet", replicas=500))

        async def told() -> Json | None:
            item = await it.get("ReplicaSet", "web")
            known = item.get("status", {}).get("conditions") and await it.events("FailedCreate")
            return condition(item, "ReplicaFailure") if known else None

        failure = await it.until(told)
        assert (failure["reason"], failure["message"]) == ("FailedCreate", "quota exceeded")
        assert asked < 20
        it.refuses = lambda method, path: False
        item = await it.status("ReplicaSet", "web", readyReplicas=500)
        assert not item["status"].get("conditions")


async def test_controllers_that_crash_and_start_again_make_no_pod_twice() -> None:
    """Killed at any moment, started again: exactly as many pods as asked for were ever made."""
    async with world(controllers=False) as it:
        await it.create(workload("Deployment", replicas=200))
        while it.pods_created < 200:
            before = it.pods_created
            task = asyncio.create_task(start(it))

            async def some() -> bool:
                return it.pods_created >= min(200, before + 30)  # noqa: B023

            await it.until(some)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        last = asyncio.create_task(start(it))
        await it.status("Deployment", "web", availableReplicas=200)
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)
        assert it.pods_created == 200


async def test_an_old_picture_of_the_pods_leads_to_no_second_one() -> None:
    """The watch is behind: what was created and deleted already is not created and deleted again."""
    async with world() as it:
        it.pods_visible.clear()
        await it.create(workload("ReplicaSet", replicas=5))

        async def made() -> bool:
            return it.pods_created == 5

        await it.until(made)
        await it.patch("ReplicaSet", "web", {"spec": {"minReadySeconds": 1}})
        await it.status("ReplicaSet", "web", replicas=0)
        assert it.pods_created == 5
        it.pods_visible.set()
        await it.status("ReplicaSet", "web", readyReplicas=5)
        it.pods_visible.clear()
        await it.patch("ReplicaSet", "web", {"spec": {"replicas": 3}})

        async def ended() -> bool:
            return len(it.pods_deleted) == 2

        await it.until(ended)
        await it.patch("ReplicaSet", "web", {"spec": {"minReadySeconds": 0}})
        await it.status("ReplicaSet", "web", replicas=5)
        it.pods_visible.set()
        await it.status("ReplicaSet", "web", replicas=3, readyReplicas=3)
        assert (it.pods_created, len(it.pods_deleted)) == (5, 2)


async def test_a_thousand_pods_are_created_once_each() -> None:
    async with world() as it:
        await it.create(workload("Deployment", replicas=1000))
        await it.status("Deployment", "web", availableReplicas=1000)
        assert it.pods_created == 1000
