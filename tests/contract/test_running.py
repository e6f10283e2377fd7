"""A pod's life on a node, as `status` tells it."""

from __future__ import annotations

from typing import Any

from .kit import Kit, Object, config, container, pod, until
from .plugin import NODE


def status_of(found: Object, name: str = "c") -> Object:
    status = found["status"]
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((one for one in every if one["name"] == name), {"state": {}, "restartCount": 0})


def conditions(found: Object) -> dict[str, str]:
    return {one["type"]: one["status"] for one in found["status"]["conditions"]}


def waiting(found: Object, name: str = "c") -> Object:
    state: Object = status_of(found, name)["state"].get("waiting", {})
    return state


async def test_a_running_pod_says_so(k8s: Kit) -> None:
    await k8s.create("pods", pod("p"))
    found = await k8s.pod(
        "p",
        lambda p: "Ready" in {c["type"] for c in p["status"].get("conditions", []) if c["status"] == "True"},
        "is ready",
    )
    status = found["status"]
    assert status["phase"] == "Running"
    assert conditions(found) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    (c,) = status["containerStatuses"]
    assert (c["name"], c["ready"], c["started"], c["restartCount"]) == ("c", True, True, 0)
    assert c["state"]["running"]["startedAt"]
    assert "://" in c["containerID"]
    assert status["podIP"] == status["podIPs"][0]["ip"]
    assert status["hostIP"] and status["startTime"]
    assert status["qosClass"] == "BestEffort"


async def test_a_pod_that_has_ended_says_how(k8s: Kit) -> None:
    await k8s.create("pods", pod("good", command="true", restartPolicy="Never"))
    await k8s.create("pods", pod("bad", command="exit 3", restartPolicy="Never"))
    good, bad = await k8s.phase("good", "Succeeded"), await k8s.phase("bad", "Failed")
    ended = status_of(good)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert conditions(good)["Ready"] == "False"
    ready = next(c for c in good["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "PodCompleted"
    ended = status_of(bad)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    ready = next(c for c in bad["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "PodFailed"


async def test_a_container_that_fails_again_and_again_is_backed_off(k8s: Kit) -> None:
    made = await k8s.create("pods", pod("p", command="exit 1"))
    found = await k8s.pod("p", lambda p: waiting(p).get("reason") == "CrashLoopBackOff", "backs off")
    assert waiting(found)["message"].startswith("back-off 10s restarting failed container=c pod=p_")
    assert waiting(found)["message"].endswith(f"pod=p_{k8s.ns}({made['metadata']['uid']})")
    assert found["status"]["phase"] == "Running"
    assert status_of(found)["lastState"]["terminated"]["exitCode"] == 1
    event = await k8s.event("BackOff", "p")
    assert (event["type"], event["source"]["component"]) == ("Warning", "kubelet")
    assert "Back-off restarting failed container c in pod p_" in event["message"]


async def test_init_containers_run_one_after_the_other_before_the_app(k8s: Kit) -> None:
    inits = [container("one", "sleep 0.3"), container("two", "true")]
    await k8s.create("pods", pod("p", initContainers=inits))
    found = await k8s.phase("p", "Running")
    one, two, c = (status_of(found, name) for name in ("one", "two", "c"))
    assert one["state"]["terminated"]["finishedAt"] <= two["state"]["terminated"]["startedAt"]
    assert two["state"]["terminated"]["finishedAt"] <= c["state"]["running"]["startedAt"]
    assert one["state"]["terminated"]["reason"] == "Completed"


async def test_a_failing_init_container_ends_a_pod_that_is_not_restarted(k8s: Kit) -> None:
    await k8s.create("pods", pod("p", initContainers=[container("i", "exit 2")], restartPolicy="Never"))
    found = await k8s.phase("p", "Failed")
    assert status_of(found, "i")["state"]["terminated"]["exitCode"] == 2
    assert waiting(found) == {"reason": "PodInitializing"}


async def test_a_sidecar_runs_beside_the_app_and_ends_after_it(k8s: Kit) -> None:
    sidecar = container("side", restartPolicy="Always")
    await k8s.create("pods", pod("p", command="sleep 0.2", initContainers=[sidecar], restartPolicy="Never"))
    found = await k8s.phase("p", "Succeeded")
    assert status_of(found)["state"]["terminated"]["exitCode"] == 0
    assert "terminated" in status_of(found, "side")["state"]


async def test_a_missing_config_map_holds_the_container_until_it_is_there(k8s: Kit) -> None:
    reference = {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}}
    c = container("c", "echo $COLOUR", env=[reference])
    await k8s.create("pods", pod("p", c, restartPolicy="Never"))
    found = await k8s.pod("p", lambda p: waiting(p).get("reason") == "CreateContainerConfigError", "waits")
    assert waiting(found)["message"] == 'configmap "settings" not found'
    await k8s.create("configmaps", config("settings", colour="red"))
    await k8s.phase("p", "Succeeded")
    assert await k8s.kubectl("logs", "p") == "red\n"


async def test_a_pods_environment_knows_the_pod(k8s: Kit) -> None:
    def field(name: str, path: str) -> Object:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    limit = {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}
    env = [
        field("NAME", "metadata.name"),
        field("UID", "metadata.uid"),
        field("NODE", "spec.nodeName"),
        field("ANNOTATION", "metadata.annotations['gpuslice.io/note']"),
        {"name": "CPU", "valueFrom": limit},
        {"name": "JOINED", "value": "$(NAME)-$(NODE)-$$(NODE)-$(NONE)"},
    ]
    await k8s.create("configmaps", config("settings", FROM_MAP="yes"))
    whole = [{"configMapRef": {"name": "settings"}, "prefix": "P_"}]
    command = 'echo $NAME $UID $NODE $ANNOTATION $CPU $P_FROM_MAP; echo "$JOINED"'
    c = container("c", command, env=env, envFrom=whole, limits={"cpu": "250m"})
    body = pod("p", c, restartPolicy="Never", nodeName=NODE, annotations={"gpuslice.io/note": "here"})
    made = await k8s.create("pods", body)
    await k8s.phase("p", "Succeeded")
    assert (await k8s.kubectl("logs", "p")).splitlines() == [
        f"p {made['metadata']['uid']} {NODE} here 250 yes",
        f"p-{NODE}-$(NODE)-$(NONE)",
    ]


async def test_a_deleted_pod_gets_its_time_and_then_is_killed(k8s: Kit) -> None:
    polite = "trap 'echo bye; exit 0' TERM; echo set; while true; do sleep 0.1; done"
    await k8s.create("pods", pod("p", command=polite, terminationGracePeriodSeconds=30))
    await k8s.phase("p", "Running")

    async def listening() -> bool:
        return await k8s.kubectl("logs", "p") == "set\n"

    await until(listening, "the trap to be set")
    async with k8s.api.watch(k8s.pods, resourceVersion="0", fieldSelector="metadata.name=p") as following:
        await k8s.api("DELETE", f"{k8s.pods}/p")
        seen: list[Any] = [await following()]
        while seen[-1][0] != "DELETED":
            seen.append(await following())
    ended = [status_of(thing)["state"].get("terminated", {}) for _, thing in seen]
    assert any(one.get("exitCode") == 0 for one in ended), "that it ended is told before the object goes"
    assert await k8s.event("Killing", "p")


async def test_a_pod_bound_to_a_node_that_is_not_for_it_is_rejected(k8s: Kit) -> None:
    await k8s.create("pods", pod("p", nodeName=NODE, nodeSelector={"contract.example/none": "x"}))
    found = await k8s.phase("p", "Failed")
    assert found["status"]["reason"] == "NodeAffinity"
    assert found["status"]["message"].startswith("Pod was rejected: Predicate NodeAffinity failed")


async def test_a_pod_bound_to_a_node_that_is_too_small_is_rejected(k8s: Kit) -> None:
    await k8s.create("pods", pod("p", container("c", limits={"cpu": "5000"}), nodeName=NODE))
    found = await k8s.phase("p", "Failed")
    assert found["status"]["reason"] == "OutOfcpu"
    assert (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 5000000, used: "
        in (found["status"]["message"])
    )


async def test_a_node_does_not_ask_for_a_resource_that_it_has_never_heard_of(k8s: Kit) -> None:
    """Only a scheduler would; so a pod that names its node gets by without a plugin."""
    c = container("c", limits={"contract.example/none": 1})
    await k8s.create("pods", pod("p", c, nodeName=NODE))
    await k8s.phase("p", "Running")


async def test_a_node_tells_of_itself(k8s: Kit) -> None:
    node = await k8s.api.get(f"/api/v1/nodes/{NODE}")
    assert (
        node["metadata"]["labels"].items()
        >= {
            "kubernetes.io/hostname": NODE,
            "kubernetes.io/os": "linux",
        }.items()
    )
    status = node["status"]
    assert conditions(node) == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    assert {"cpu", "memory", "pods"} <= set(status["allocatable"]) <= set(status["capacity"])
    assert {address["type"] for address in status["addresses"]} == {"InternalIP", "Hostname"}
    assert status["nodeInfo"]["kubeletVersion"].startswith("v1.")
    lease = await k8s.api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}")
    assert lease["spec"]["holderIdentity"] == NODE
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
