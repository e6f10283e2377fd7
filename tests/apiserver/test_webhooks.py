"""Admission webhooks: asked when their rules say so, obeyed, and survived."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from apikit import PODS, Api, StillClock, new_ids, pod

from gpuslice.admission.mutate import review
from gpuslice.errors import Unavailable
from gpuslice.local.apiserver.api.app import ApiServer

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
GPU_NAME = "alpha.kubernetes.io/nvidia-gpu-name"


class Hook:
    """A webhook in the process: remembers the questions, gives the prepared answer."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self.answer: Callable[[dict[str, Any]], dict[str, Any]] = lambda request: {"allowed": True}

    async def __call__(self, url: str, body: bytes, *, authority: bytes, timeout_s: float) -> bytes:
        request = msgspec.json.decode(body)["request"]
        self.asked.append(request)
        self.urls.append(url)
        response = {"uid": request["uid"], **self.answer(request)}
        return msgspec.json.encode(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )


@pytest.fixture
def hook() -> Hook:
    return Hook()


@pytest.fixture
async def server(clock: StillClock, hook: Hook) -> AsyncIterator[ApiServer]:
    made = ApiServer(clock=clock, new_uid=new_ids(), webhook_post=hook)
    await made.start()
    yield made
    await made.stop()


def configuration(**more: Any) -> dict[str, Any]:
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    webhook = {
        "name": "h.x.io",
        "clientConfig": {"service": {"name": "h", "namespace": "sys", "path": "/mutate", "port": 8443}},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }
    return {"metadata": {"name": "h"}, "webhooks": [webhook]}


def patching(*steps: dict[str, Any], **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    patch = base64.b64encode(msgspec.json.encode(steps)).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch, **more}


async def test_a_patch_is_applied_and_its_warning_passed_on(api: Api, hook: Hook) -> None:
    """The stored object is the patched one, and kubectl prints the warning."""
    await api.make(MUTATING, configuration())
    hook.answer = patching(
        {"op": "add", "path": "/metadata/labels/x", "value": "y"}, warnings=["took it out"]
    )
    answer = await api("POST", PODS, pod())
    assert (answer.status, answer.body["metadata"]["labels"]["x"]) == (201, "y")
    assert answer.warnings == ["took it out"]
    (asked,) = hook.asked
    assert (asked["operation"], asked["namespace"], asked["name"]) == ("CREATE", "default", "p")
    assert asked["object"]["spec"]["schedulerName"] == "default-scheduler"
    assert hook.urls == ["https://h.sys.svc:8443/mutate"]


async def test_a_refusal_reaches_the_user(api: Api, hook: Hook) -> None:
    """The webhook's sentence is the error, and nothing is stored."""
    await api.make(VALIDATING, configuration())
    hook.answer = lambda request: {"allowed": False, "status": {"message": "no GPUs today"}}
    answer = await api("POST", PODS, pod())
    assert (answer.status, answer.message) == (
        403,
        'admission webhook "h.x.io" denied the request: no GPUs today',
    )
    assert (await api("GET", f"{PODS}/p")).status == 404


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 201)])
async def test_failure_policy(api: Api, hook: Hook, policy: str, status: int) -> None:
    """A silent webhook stops the request or is passed over, as its configuration says."""

    def silent(request: dict[str, Any]) -> dict[str, Any]:
        raise Unavailable("connection refused")

    await api.make(MUTATING, configuration(failurePolicy=policy))
    hook.answer = silent
    answer = await api("POST", PODS, pod())
    assert answer.status == status
    if status == 500:
        assert 'failed calling webhook "h.x.io"' in answer.message and "connection refused" in answer.message


async def test_selectors_and_rules_decide_who_is_asked(api: Api, hook: Hook) -> None:
    """Other kinds, other verbs, other namespaces and other labels are none of its business."""
    await api.make(
        MUTATING,
        configuration(
            namespaceSelector={
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
                ]
            },
            objectSelector={"matchLabels": {"app": "p"}},
        ),
    )
    await api.make(
        "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "p", "labels": {"app": "p"}}}
    )
    await api.make("/api/v1/namespaces/kube-system/pods", pod())
    await api.make(PODS, pod("other"))
    assert hook.asked == []
    await api.make(PODS, pod())
    await api("PATCH", f"{PODS}/p", {"metadata": {"labels": {"x": "y"}}}, content="merge")
    assert len(hook.asked) == 1


async def test_a_change_while_the_webhook_thinks_is_not_lost(api: Api, hook: Hook) -> None:
    """An update that waited for its webhook starts again from what others wrote meanwhile."""
    rule = {"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    await api.make(MUTATING, configuration(rules=[rule]))
    await api.make(PODS, pod())
    pods = api.server.store.collection(("", "pods"))

    def meanwhile(request: dict[str, Any]) -> dict[str, Any]:
        if len(hook.asked) == 1:
            entry = pods.get("default", "p")
            assert entry is not None
            other = entry.decode()
            other["metadata"]["labels"]["other"] = "1"
            pods.put(other)
        return {"allowed": True}

    hook.answer = meanwhile
    done = await api("PATCH", f"{PODS}/p", {"metadata": {"labels": {"mine": "1"}}}, content="merge")
    assert done.body["metadata"]["labels"] == {"app": "p", "other": "1", "mine": "1"}


async def test_dry_run_does_not_reach_a_webhook_with_side_effects(api: Api, hook: Hook) -> None:
    """A dry run that could not be dry is refused."""
    await api.make(MUTATING, configuration(sideEffects="Some"))
    answer = await api("POST", PODS, pod(), dryRun="All")
    assert answer.status == 400 and "does not support dry run" in answer.message
    assert hook.asked == []


async def test_our_own_webhook_stores_a_pod_of_2017_in_todays_words(api: Api, hook: Hook) -> None:
    """What Kubernetes 1.6 to 1.9 told people to write about GPUs, sent to the API server as it stands there."""
    terms = [
        {"matchExpressions": [{"key": GPU_NAME, "operator": "In", "values": ["Tesla K80", "Tesla P100"]}]}
    ]
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    old = pod()
    old["metadata"]["annotations"] = {
        "scheduler.alpha.kubernetes.io/affinity": msgspec.json.encode(affinity).decode()
    }
    old["spec"]["containers"][0]["resources"] = {"limits": {"alpha.kubernetes.io/nvidia-gpu": 2}}
    await api.make(MUTATING, configuration())
    hook.answer = lambda request: msgspec.json.decode(review(msgspec.json.encode({"request": request})))[
        "response"
    ]
    answer = await api("POST", PODS, old)
    assert answer.status == 201, answer.body
    stored = answer.body
    assert stored["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "2"},
        "requests": {"nvidia.com/gpu": "2"},
    }
    (expression,) = stored["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression["values"][:2] == ["Tesla-K80", "Tesla-P100"]
    assert not stored["metadata"].get("annotations")
    assert len(answer.warnings) == 3
