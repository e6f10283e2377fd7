"""Garbage, namespaces, nodes, stranded pods and disruption budgets."""

import pytest
from world import Json, World, template, workload, world

from gpuslice.errors import NotFound


def owned(name: str, *owners: Json, blocks: bool = False) -> Json:
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": blocks,
        }
        for owner in owners
    ]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": references},
    }


def plain(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


async def there(it: World) -> set[str]:
    return {one["metadata"]["name"] for one in await it.list("ConfigMap")} - {"kube-root-ca.crt"}


async def test_deleting_a_deployment_takes_everything_below_it() -> None:
    async with world() as it:
        await it.create(workload("Deployment", replicas=3))
        await it.status("Deployment", "web", availableReplicas=3)
        await it.delete("Deployment", "web", "Background")

        async def gone() -> bool:
            return not await it.list("ReplicaSet") and not await it.list("Pod")

        await it.until(gone)


async def test_orphans_stay_and_are_adopted_again() -> None:
    """`kubectl delete --cascade=orphan`, then apply again: not one pod is restarted."""
    async with world() as it:
        await it.create(workload("Deployment", replicas=2))
        await it.status("Deployment", "web", availableReplicas=2)
        await it.delete("Deployment", "web", "Orphan")

        async def free() -> bool:
            (one,) = await it.list("ReplicaSet")
            return not await it.list("Deployment") and not one["metadata"].get("ownerReferences")

        await it.until(free)
        await it.create(workload("Deployment", replicas=2))
        await it.status("Deployment", "web", availableReplicas=2)
        assert (it.pods_created, it.pods_deleted) == (2, [])


async def test_foreground_deletion_waits_for_what_blocks_it() -> None:
    async with world() as it:
        owner = await it.create(plain("owner"))
        child = owned("child", owner, blocks=True)
        child["metadata"]["finalizers"] = ["example.com/busy"]
        await it.create(child)
        await it.delete("ConfigMap", "owner", "Foreground")

        async def asked() -> bool:
            return bool((await it.get("ConfigMap", "child"))["metadata"].get("deletionTimestamp"))

        await it.until(asked)
        assert await there(it) == {"owner", "child"}
        await it.patch("ConfigMap", "child", {"metadata": {"finalizers": None}})

        async def gone() -> bool:
            return not await there(it)

        await it.until(gone)


async def test_an_object_stays_while_one_of_its_owners_lives() -> None:
    async with world() as it:
        first, second = await it.create(plain("first")), await it.create(plain("second"))
        await it.create(owned("shared", first, second))
        await it.delete("ConfigMap", "first")

        async def let_go() -> bool:
            references = (await it.get("ConfigMap", "shared"))["metadata"]["ownerReferences"]
            return [one["name"] for one in references] == ["second"]

        await it.until(let_go)
        await it.delete("ConfigMap", "second")

        async def gone() -> bool:
            return not await there(it)

        await it.until(gone)


async def test_an_object_whose_owner_never_existed_is_collected() -> None:
    """Same name, other uid: not the owner."""
    async with world() as it:
        namesake = await it.create(plain("owner"))
        namesake["metadata"]["uid"] = "another-uid"
        await it.create(owned("lost", namesake))

        async def gone() -> bool:
            return await there(it) == {"owner"}

        await it.until(gone)


async def test_a_namespace_is_furnished_and_emptied() -> None:
    async with world() as it:
        await it.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})

        async def furnished() -> bool:
            await it.get("ServiceAccount", "default", "team")
            return (await it.get("ConfigMap", "kube-root-ca.crt", "team"))["data"] == {
                "ca.crt": "the certificate"
            }

        await it.until(furnished)
        body = workload("Deployment", replicas=2)
        body["metadata"]["namespace"] = "team"
        await it.create(body)

        async def running() -> bool:
            return len(await it.list("Pod", "team")) == 2

        await it.until(running)
        await it.call("DELETE", "/api/v1/namespaces/team")

        async def gone() -> bool:
            try:
                await it.call("GET", "/api/v1/namespaces/team")
            except NotFound:
                return True
            return False

        await it.until(gone)
        assert await it.list("Pod", "team") == []


def conditions(item: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in item["status"].get("conditions", [])}


def taints(item: Json) -> set[tuple[str, str]]:
    return {(one["key"].rpartition("/")[2], one["effect"]) for one in item["spec"].get("taints", [])}


async def test_a_silent_node_becomes_unknown_and_loses_its_pods_in_time() -> None:
    async with world(speed=100) as it:
        spec = template()
        keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
        spec["spec"]["tolerations"] = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60} for key in keys
        ]
        await it.create(workload("ReplicaSet", replicas=1, template=spec))
        await it.status("ReplicaSet", "web", readyReplicas=1)

        async def unknown() -> Json | None:
            item = await it.get("Node", "n1")
            return item if conditions(item)["Ready"] == "Unknown" and taints(item) else None

        item = await it.until(unknown)
        assert taints(item) == {("unreachable", "NoSchedule"), ("unreachable", "NoExecute")}
        await it.status("ReplicaSet", "web", readyReplicas=0)
        it.decide = lambda _: "pending"

        async def replaced() -> bool:
            return bool(it.pods_deleted)

        await it.until(replaced)
        beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:10:00Z"}
        await it.call("PATCH", "/api/v1/nodes/n1/status", {"status": {"conditions": [beat]}})

        async def well() -> bool:
            return not taints(await it.get("Node", "n1"))

        await it.until(well)


async def test_a_node_that_renews_its_lease_stays() -> None:
    async with world(speed=100) as it:
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        meta = {"name": "n1", "namespace": "kube-node-lease"}
        await it.create({**lease, "metadata": meta, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
        begun = it.clock.monotonic()
        second = 0
        while it.clock.monotonic() < begun + 120:
            second += 1
            change = {"spec": {"renewTime": f"2026-01-01T00:00:{second % 60:02}.{second:06}Z"}}
            path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
            await it.call("PATCH", path, change)
            await it.clock.sleep(5)
        assert conditions(await it.get("Node", "n1"))["Ready"] == "True"


async def test_pods_of_a_vanished_node_are_removed_and_replaced() -> None:
    async with world(speed=20) as it:
        await it.create(workload("ReplicaSet", replicas=2))
        await it.status("ReplicaSet", "web", readyReplicas=2)
        it.decide = lambda _: "pending"
        await it.call("DELETE", "/api/v1/nodes/n1")

        async def replaced() -> bool:
            pods = await it.list("Pod")
            return (
                len(it.pods_deleted) == 2
                and len(pods) == 2
                and not any(p["spec"].get("nodeName") for p in pods)
            )

        await it.until(replaced)


async def test_a_cordoned_node_is_tainted() -> None:
    async with world() as it:
        await it.call("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}})

        async def tainted() -> bool:
            return taints(await it.get("Node", "n1")) == {("unschedulable", "NoSchedule")}

        await it.until(tainted)


@pytest.mark.parametrize(
    ("spec", "allowed", "desired"),
    [
        ({"minAvailable": 3}, 1, 3),
        ({"minAvailable": "50%"}, 2, 2),
        ({"maxUnavailable": 1}, 1, 3),
        ({"maxUnavailable": "50%"}, 2, 2),
        ({"maxUnavailable": 0}, 0, 4),
    ],
)
async def test_a_budget_says_how_many_evictions_it_allows(spec: Json, allowed: int, desired: int) -> None:
    async with world() as it:
        await it.create(workload("Deployment", replicas=4))
        await it.status("Deployment", "web", availableReplicas=4)
        selector = {"matchLabels": {"app": "web"}}
        await it.create(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "web"},
                "spec": {"selector": selector, **spec},
            }
        )
        wanted = {
            "currentHealthy": 4,
            "expectedPods": 4,
            "desiredHealthy": desired,
            "disruptionsAllowed": allowed,
        }
        item = await it.status("PodDisruptionBudget", "web", **wanted)
        assert conditions(item) == {"DisruptionAllowed": "True" if allowed else "False"}
