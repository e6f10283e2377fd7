"""Every right of ours, tried with the token that has it: what is needed is allowed, and everything else is refused
with a sentence. Nothing is changed by it: all is asked for as a dry run.

That what is needed suffices is what all other tests of the installed chart show.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice import names

from . import truth
from .cluster import ApiError, Object, RealCluster
from .installation import NAMESPACE, Installation
from .test_lifecycle import on

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
HELD = "only gpuslice says what a pod holds of a GPU: leave out annotation "
BOUND = "only gpuslice and kube-scheduler say in a Binding what a pod holds of a GPU"
OTHER_NODE = "the agent of node node-1 may not change what is of node "
POD_BY_AGENT = "an agent changes nothing of a pod but the annotations that say what it holds"
NODE_BY_AGENT = "an agent changes nothing of a node but its own annotations and the labels of its GPUs"
STATUS_BY_AGENT = (
    "an agent changes nothing of a node's status but aliyun.com/gpu-count and the condition GPUUnhealthy"
)
SPEC_BY_AGENT = "an agent changes nothing in a pod's or node's spec"
POD_BY_SCHEDULER = (
    f"a scheduler changes nothing of a pod but the annotations {names.BIND_FENCE} and {names.WOKEN}"
)
STATUS_BY_SCHEDULER = (
    "a scheduler changes nothing of a pod's status but nominatedNodeName and the condition PodScheduled"
)
NODE_BY_SCHEDULER = "a scheduler changes nothing of a node but labels, taints, cordon"
WEBHOOK_BY_SCHEDULER = "a scheduler changes nothing of a webhook's configuration but caBundle"
REST = "changes nothing of an object but annotations and labels"

PODS = "/api/v1/namespaces/default/pods"
NODE_1, NODE_2 = "/api/v1/nodes/node-1", "/api/v1/nodes/node-2"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
TENANT = "system:serviceaccount:default:tenant"


def labelled(key: str, value: str | None) -> Object:
    return {"metadata": {"labels": {key: value}}}


def possessed(key: str, value: str | None = "9") -> Object:
    return {"metadata": {"annotations": {key: value}}}


def image(name: str) -> Object:
    return {"spec": {"containers": [{"name": "main", "image": name}]}}


def conditions(kind: str) -> Object:
    return {"status": {"conditions": [{"type": kind, "status": "False", "reason": "Tried", "message": "x"}]}}


# What is tried: the path, the change, and what the API server says; nothing is said to what is allowed.
AGENT: list[tuple[str, Object, str]] = [
    (f"{PODS}/here", possessed(names.ALLOCATION, "{}"), ""),
    (f"{PODS}/here", possessed(names.MEM_ASSIGNED, None), ""),
    (f"{PODS}/there", possessed(names.ALLOCATION, "{}"), OTHER_NODE + "node-2"),
    (f"{PODS}/waits", possessed(names.ALLOCATION, "{}"), OTHER_NODE + "none"),
    (f"{PODS}/here", possessed("mine", "x"), POD_BY_AGENT),
    (f"{PODS}/here", possessed(names.SHARES_ACROSS, "2"), "denied request"),
    (f"{PODS}/here", labelled("app", "other"), POD_BY_AGENT),
    (f"{PODS}/here", image("evil:1"), SPEC_BY_AGENT),
    (f"{PODS}/here", {"spec": {"activeDeadlineSeconds": 1}}, SPEC_BY_AGENT),
    (f"{PODS}/here", {"metadata": {"finalizers": ["example.com/stay"]}}, REST),
    (f"{PODS}/here/status", {"status": {"phase": "Failed"}}, "cannot patch"),
    (NODE_1, possessed(names.NODE_GPUS, "[]"), ""),
    (NODE_1, labelled("nvidia.com/gpu.product", "Tesla-T4"), ""),
    (NODE_1, labelled("nvidia.com/mig-1g.5gb.slices.gi", "1"), ""),
    (NODE_1, labelled(names.MIG_CONFIG_STATE, "success"), ""),
    (NODE_1, labelled(names.MIG_CONFIG, "all-1g.5gb"), NODE_BY_AGENT),
    (NODE_1, labelled("nvidia.com/gpu.deploy.driver", "false"), NODE_BY_AGENT),
    (NODE_1, labelled(names.LABEL_GPUSHARE, None), NODE_BY_AGENT),
    (NODE_1, possessed("mine", "x"), NODE_BY_AGENT),
    (NODE_1, {"spec": {"unschedulable": True}}, SPEC_BY_AGENT),
    (NODE_1, {"metadata": {"finalizers": ["example.com/stay"]}}, REST),
    (f"{NODE_1}/status", {"status": {"capacity": {names.GPU_COUNT: "7"}}}, ""),
    (f"{NODE_1}/status", conditions("GPUUnhealthy"), ""),
    (f"{NODE_1}/status", conditions("Ready"), STATUS_BY_AGENT),
    (f"{NODE_1}/status", {"status": {"capacity": {names.GPU_MEM: "999"}}}, STATUS_BY_AGENT),
    (f"{NODE_1}/status", {"status": {"allocatable": {"cpu": "999"}}}, STATUS_BY_AGENT),
    (
        f"{NODE_1}/status",
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
        STATUS_BY_AGENT,
    ),
    (NODE_2, possessed(names.NODE_GPUS, "[]"), OTHER_NODE + "node-2"),
    (f"{NODE_2}/status", {"status": {"capacity": {names.GPU_COUNT: "7"}}}, OTHER_NODE + "node-2"),
]
SCHEDULER: list[tuple[str, Object, str]] = [
    (f"{PODS}/waits", possessed(names.WOKEN), ""),
    (f"{PODS}/waits", possessed(names.BIND_FENCE), ""),
    (f"{PODS}/here", possessed(names.ALLOCATION, "{}"), POD_BY_SCHEDULER),
    (f"{PODS}/here", labelled(names.LABEL_LEADER, "true"), POD_BY_SCHEDULER),
    (f"{PODS}/here", image("evil:1"), POD_BY_SCHEDULER),
    (f"{PODS}/here", {"metadata": {"finalizers": ["example.com/stay"]}}, REST),
    (f"{PODS}/waits/status", {"status": {"nominatedNodeName": "node-1"}}, ""),
    (f"{PODS}/waits/status", conditions("PodScheduled"), ""),
    (f"{PODS}/waits/status", conditions("Ready"), STATUS_BY_SCHEDULER),
    (f"{PODS}/here/status", {"status": {"phase": "Failed"}}, STATUS_BY_SCHEDULER),
    (f"{PODS}/here/status", possessed(names.WOKEN), STATUS_BY_SCHEDULER),
    (NODE_1, possessed(names.MIG_WANTED, "{}"), ""),
    (NODE_1, labelled("agentpool", "gpus"), ""),
    (NODE_1, {"spec": {"unschedulable": True, "taints": [{"key": "x", "effect": "NoSchedule"}]}}, ""),
    (NODE_1, possessed(names.NODE_GPUS, "[]"), NODE_BY_SCHEDULER),
    (NODE_1, possessed("mine", "x"), NODE_BY_SCHEDULER),
    (NODE_1, {"spec": {"providerID": "example://1"}}, NODE_BY_SCHEDULER),
    (f"{NODE_1}/status", {"status": {"capacity": {names.GPU_COUNT: "7"}}}, "cannot patch"),
]
TENANTS: list[tuple[str, Object, str]] = [
    *(
        (f"{PODS}/here", possessed(key), HELD + key)
        for key in (names.ALLOCATION, *names.GPUSHARE_ANNOTATIONS)
    ),
    *((f"{PODS}/waits", possessed(key), HELD + key) for key in (names.ALLOCATION, names.GPUSHARE_ALLOCATION)),
    (f"{PODS}/here", possessed(names.ALLOCATION, None), HELD + names.ALLOCATION),
    (f"{PODS}/here", possessed(names.SHARES_ACROSS, "0"), "can be set only before it is bound"),
    (f"{PODS}/waits", possessed(names.SHARES_ACROSS, "2"), ""),
    *(
        (f"{PODS}/here", possessed(key, value), f"leave out annotation {key}")
        for key in ("cdi.k8s.io/mine", "nvidia.cdi.k8s.io/mine")
        for value in (
            "nvidia.com/gpu=all",
            "k8s.device-plugin.nvidia.com/gpu=GPU-1",
            "all",
            "a.example/x=1,0",
        )
    ),
    (f"{PODS}/here", possessed("cdi.k8s.io/mine", "vendor.example/nic=eth1, b.example/y=2"), ""),
    (f"{PODS}/here", possessed("mine", "x"), ""),
    (f"{PODS}/here", labelled("app", "other"), ""),
]


@pytest.fixture(scope="module")
def world(gpus: Installation) -> Iterator[Installation]:
    """A pod on each node, one that waits, and a tenant who may do what a namespace's administrator may."""
    cluster = gpus.cluster
    cluster.apply(
        [gpus.pod("here", 2, **on("node-1")), gpus.pod("there", 2, **on("node-2")), gpus.pod("waits", 999)]
    )
    cluster.kubectl("create", "serviceaccount", "tenant")
    cluster.kubectl(
        "create", "rolebinding", "tenant", "--clusterrole=admin", "--serviceaccount=default:tenant"
    )
    cluster.wait(lambda: gpus.events("waits", "FailedScheduling"), 60, "one pod to wait")
    gpus.cluster.wait(lambda: cluster.phase("here") == cluster.phase("there") == "Running", 60, "two to run")
    yield gpus
    cluster.kubectl("delete", "rolebinding,serviceaccount", "tenant")
    gpus.clear()


def token(cluster: RealCluster, account: str, namespace: str = NAMESPACE, pod: Object | None = None) -> str:
    """A token as kubelet gets it for a pod of the account."""
    spec: Object = {"expirationSeconds": 600}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made: str = cluster.request("POST", path, body)["status"]["token"]
    return made


def tried(cluster: RealCluster, token: str, path: str, change: Object, content: str = STRATEGIC) -> str:
    """What the API server says against the change; "" if it would make it."""
    try:
        cluster.request("PATCH", path, change, content, token=token, dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


def wrong(cluster: RealCluster, token: str, tries: list[tuple[str, Object, str]]) -> list[str]:
    """Where the answer is not the one that is expected."""
    found = []
    for path, change, expected in tries:
        said = tried(cluster, token, path, change)
        if bool(said) != bool(expected) or expected not in said:
            found.append(
                f"{path} {json.dumps(change)}: {said or 'allowed'}; expected: {expected or 'allowed'}"
            )
    return found


def test_an_agent_writes_what_its_own_node_holds_and_nothing_else(world: Installation) -> None:
    cluster = world.cluster
    pod = next(pod for pod in world.pods("agent") if pod["spec"]["nodeName"] == "node-1")
    account = f"{world.full}-agent"
    assert wrong(cluster, token(cluster, account, pod=pod), AGENT) == []
    nowhere = token(cluster, account)
    assert "(its token names none)" in tried(cluster, nowhere, NODE_1, possessed(names.NODE_GPUS, "[]"))


def test_annotations_without_number_keep_no_agent_from_its_work(world: Installation) -> None:
    """What looks at each of them costs the API server the square of their number, and beyond a bound it refuses."""
    cluster = world.cluster
    pod = next(pod for pod in world.pods("agent") if pod["spec"]["nodeName"] == "node-1")
    acts = token(cluster, f"{world.full}-agent", pod=pod)
    most = {f"k{number}": "" for number in range(1000)}
    more: Object = {"metadata": {"annotations": {f"k{number}": "" for number in range(2000)}}}
    assert "a pod has 1,024 annotations at most" in tried(cluster, "", f"{PODS}/here", more, MERGE)
    cluster.request("PATCH", f"{PODS}/here", {"metadata": {"annotations": most}}, MERGE)
    try:
        assert tried(cluster, acts, f"{PODS}/here", possessed(names.ALLOCATION, "{}"), MERGE) == ""
        assert POD_BY_AGENT in tried(cluster, acts, f"{PODS}/here", possessed("k0", "x"), MERGE)
        assert POD_BY_AGENT in tried(cluster, acts, f"{PODS}/here", possessed("k0", None), MERGE)
    finally:
        few = dict.fromkeys(most)
        cluster.request("PATCH", f"{PODS}/here", {"metadata": {"annotations": few}}, MERGE)


def test_no_device_comes_in_beside_more_annotations_than_are_looked_at(world: Installation) -> None:
    """A pod that is as full as its tenant may make it has one more when its agent has written into it."""
    cluster, here = world.cluster, f"{PODS}/here"
    pod = next(pod for pod in world.pods("agent") if pod["spec"]["nodeName"] == "node-1")
    acts = token(cluster, f"{world.full}-agent", pod=pod)
    there = cluster.request("GET", here)["metadata"]["annotations"]
    written = next(key for key in (names.GPUSHARE_ALLOCATION, names.MEM_DEV) if key not in there)
    full = {f"k{number}": "" for number in range(1024 - len(there))}
    cluster.request("PATCH", here, {"metadata": {"annotations": full}}, MERGE)
    try:
        cluster.request("PATCH", here, possessed(written, "{}"), MERGE, token=acts)
        instead: Object = {"metadata": {"annotations": {"k0": None, "cdi.k8s.io/a": "nvidia.com/gpu=all"}}}
        assert "a pod has 1,024 annotations at most" in tried(cluster, "", here, instead, MERGE)
        assert tried(cluster, "", here, labelled("still", "changes"), MERGE) == ""
        cluster.request("PATCH", here, possessed(written, None), MERGE, token=acts)
    finally:
        cluster.request("PATCH", here, {"metadata": {"annotations": dict.fromkeys(full)}}, MERGE)


def test_two_schedulers_run_on_two_nodes(world: Installation) -> None:
    """Also after an update, which begins with one more than there shall be."""
    deployment = f"deployment/{world.full}-scheduler"
    world.cluster.kubectl("rollout", "restart", deployment, f"--namespace={world.namespace}")
    world.wait_until_ready()
    assert sorted(pod["spec"]["nodeName"] for pod in world.pods("scheduler")) == ["node-1", "node-2"]


def test_a_scheduler_writes_what_it_must_and_nothing_else(world: Installation) -> None:
    cluster = world.cluster
    acts = token(cluster, f"{world.full}-scheduler")
    assert wrong(cluster, acts, SCHEDULER) == []
    own = f"/api/v1/namespaces/{world.namespace}/pods/{world.pods('scheduler')[0]['metadata']['name']}"
    assert tried(cluster, acts, own, labelled(names.LABEL_LEADER, "true")) == ""
    assert POD_BY_SCHEDULER in tried(cluster, acts, own, labelled("app", "other"))
    path = f"{HOOKS}/{world.full}"
    hook, _ = cluster.request("GET", path)["webhooks"]
    authority = base64.b64encode(cluster.plane.authority.certificate.read_bytes()).decode()
    named = {"name": hook["name"]}
    assert (
        tried(cluster, acts, path, {"webhooks": [{**named, "clientConfig": {"caBundle": authority}}]}) == ""
    )
    for change in (
        {"webhooks": [{**named, "rules": []}]},
        {"webhooks": [{**named, "failurePolicy": "Ignore"}]},
        {"webhooks": [{**named, "clientConfig": {"service": {"name": "other"}}}]},
        {"webhooks": [{**named, "$patch": "delete"}]},
        {"webhooks": [{**hook, "name": "second.example.com"}]},
        labelled("app", "other"),
    ):
        assert WEBHOOK_BY_SCHEDULER in tried(cluster, acts, path, change), change


def test_what_is_held_is_written_by_nobody_else(world: Installation) -> None:
    """Nor by those who may do everything: a copied manifest is no lie of its author, but one all the same."""
    cluster = world.cluster
    assert wrong(cluster, token(cluster, "tenant", "default"), TENANTS) == []
    assert wrong(cluster, "", TENANTS) == []
    assert "only gpuslice says what GPUs a node has" in tried(
        cluster, "", NODE_1, possessed(names.NODE_GPUS, "[]")
    )
    assert tried(cluster, "", NODE_1, possessed(names.NODE_GPUS, None)) == "", (
        "what is left over may be taken off"
    )


def test_a_pod_that_says_what_it_holds_is_not_made_without_the_webhook(world: Installation) -> None:
    """In our own namespace the API server does not ask the webhook, as if it were down."""
    pod = world.pod("liar", 2)
    pod["metadata"]["annotations"] = {names.ALLOCATION: "{}", names.MEM_IDX: "0", names.SHARES_ACROSS: "1"}
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    with pytest.raises(ApiError, match=f"{HELD}{names.ALLOCATION}, {names.MEM_IDX}"):
        world.cluster.request("POST", path, pod, dryRun="All")
    pod["metadata"]["annotations"] = {names.SHARES_ACROSS: "1"}
    world.cluster.request("POST", path, pod, dryRun="All")


@pytest.mark.parametrize("path", [f"{PODS}/waits/binding", "/api/v1/namespaces/default/bindings"])
def test_what_is_held_does_not_come_by_a_binding(world: Installation, path: str) -> None:
    """Not even from whoever may bind."""
    cluster = world.cluster
    binding: Object = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waits", "annotations": {names.ALLOCATION: "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }
    with pytest.raises(ApiError, match=BOUND):
        cluster.request("POST", path, binding, dryRun="All")
    if path.endswith("pods/waits/binding"):
        acts = token(cluster, f"{world.full}-scheduler")
        cluster.request("POST", path, binding, token=acts, dryRun="All")
        more: Object = {**binding, "metadata": {"name": "waits", "annotations": {"mine": "x"}}}
        with pytest.raises(ApiError, match="a scheduler says nothing in a Binding but"):
            cluster.request("POST", path, more, token=acts, dryRun="All")
    binding["metadata"]["annotations"] = {"cdi.k8s.io/a": "nvidia.com/gpu=all"}
    with pytest.raises(ApiError, match="a pod gets GPUs by asking for them"):
        cluster.request("POST", path, binding, dryRun="All")
    binding["metadata"].pop("annotations")
    cluster.request("POST", path, binding, dryRun="All")


def test_the_api_server_finds_nothing_wrong_with_the_policies(world: Installation) -> None:
    """It looks at their expressions with the types of what they are about."""

    def looked() -> list[Object] | None:
        found = world.cluster.request("GET", f"{HOOKS.rpartition('/')[0]}/validatingadmissionpolicies")[
            "items"
        ]
        return found if all("observedGeneration" in policy.get("status", {}) for policy in found) else None

    policies = world.cluster.wait(looked, 30, "the policies to be looked at")
    assert len(policies) == 5
    assert [policy["status"]["typeChecking"] for policy in policies] == [{}] * 5


# --- what RBAC gives ------------------------------------------------------------------------------------


EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
ANYWHERE = {
    "agent": {
        "nodes: list patch watch",
        "nodes/status: patch",
        "pods: get list patch watch",
        "events: create patch",
    },
    "scheduler": {
        "nodes: list patch watch",
        "gpunodepools.gpuslice.io: list watch",
        "gpunodepools.gpuslice.io/status: patch",
        "pods: get list patch watch",
        "pods/binding: create",
        "pods/eviction: create",
        "pods/status: patch",
        "events: create patch",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [gpuslice]: get patch",
    },
}
HERE = {
    "agent": set[str](),
    "scheduler": {
        "leases.coordination.k8s.io [gpuslice-scheduler]: get",
        "secrets [gpuslice-tls]: get patch",
    },
}
KUBE_SYSTEM = {"agent": set[str](), "scheduler": {"configmaps: list watch"}}


@pytest.mark.parametrize("account", ANYWHERE)
def test_an_account_has_the_rights_that_are_written_down(world: Installation, account: str) -> None:
    """As `kubectl auth can-i --list` has them; docs/install.md says why each."""
    cluster = world.cluster
    name = f"{world.full}-{account}"
    for namespace, more in (
        ("default", set()),
        (world.namespace, HERE[account]),
        ("kube-system", KUBE_SYSTEM[account]),
    ):
        assert allowed(cluster, token(cluster, name), namespace) == ANYWHERE[account] | more, namespace


def test_the_extender_does_not_carry_the_rights_of_the_kube_scheduler_beside_it(world: Installation) -> None:
    """Each container of the pod reads its own account's token where every client looks for it."""
    cluster = world.cluster
    pod = world.pods("scheduler")[0]
    node = cluster.node(pod["spec"]["nodeName"])
    accounts = {}
    for status in pod["status"]["containerStatuses"]:
        process = truth.first_process(node, status["containerID"].rpartition("/")[2])
        file = Path(f"/proc/{process}/root/var/run/secrets/kubernetes.io/serviceaccount/token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = cluster.request("POST", path, body, token=file.read_text().strip())
        accounts[status["name"]] = answer["status"]["userInfo"]["username"]
    assert accounts == {
        name: f"system:serviceaccount:{world.namespace}:{world.full}-{account}"
        for name, account in (("extender", "scheduler"), ("kube-scheduler", "kube-scheduler"))
    }


def allowed(cluster: RealCluster, token: str, namespace: str) -> set[str]:
    """resource [names]: verbs."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    rules = cluster.request("POST", path, body, token=token)["status"]["resourceRules"]
    verbs: dict[str, set[str]] = {}
    for rule in rules:
        for group in rule.get("apiGroups", ()):
            for resource in set(rule.get("resources", ())) - EVERYBODY:
                verbs.setdefault(_say(rule, group, resource), set()).update(rule["verbs"])
    return {f"{what}: {' '.join(sorted(some))}" for what, some in verbs.items()}


def _say(rule: Mapping[str, Any], group: str, resource: str) -> str:
    plural, _, below = resource.partition("/")
    full = (f"{plural}.{group}" if group else plural) + (f"/{below}" if below else "")
    of = rule.get("resourceNames")
    return f"{full} [{' '.join(sorted(of))}]" if of else full
