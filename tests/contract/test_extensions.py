"""What others add to an API server: webhooks and kinds of their own."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuslice.admission.mutate import review
from gpuslice.clock import SystemClock
from gpuslice.local.apiserver.api.certificates import issue
from gpuslice.observe.serving import Tls, serving

from .custom import CRDS, definition, gadget, gadgets
from .kit import TABLE, Kit, Object, container, idle, until

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
Answer = Callable[[Object], Object]


class Hook:
    """A webhook over HTTPS: remembers the questions, gives the prepared answer."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[Object] = []
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = json.loads(body)["request"]
        self.asked.append(request)
        response = {"uid": request["uid"], **self._answer(request)}
        if raw := response.pop("raw", None):
            answer = raw
        else:
            kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            answer = json.dumps({**kind, "response": response}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def hooked(
    k8s: Kit, folder: Path, answer: Answer, *, collection: str = MUTATING, **more: Any
) -> AsyncIterator[Hook]:
    """A webhook that is asked about new pods of the test's namespace while the block runs."""
    hook = Hook(answer)
    certificates = issue(SystemClock(), addresses=(k8s.backend.host,))
    (cert := folder / "tls.crt").write_bytes(certificates.certificate)
    (key := folder / "tls.key").write_bytes(certificates.key)
    async with serving(
        hook, host=k8s.backend.host, port=0, clock=SystemClock(), tls=Tls(cert, key), grace_seconds=1
    ) as (host, port):
        webhook = {
            "name": "contract.example.io",
            "clientConfig": {
                "url": f"https://{host}:{port}/mutate",
                "caBundle": base64.b64encode(certificates.authority).decode(),
            },
            "rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": k8s.ns}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **more,
        }
        await k8s.global_(collection, {"metadata": {"name": f"{k8s.ns}-hook"}, "webhooks": [webhook]})
        try:
            yield hook
        finally:
            await k8s.api("DELETE", f"{collection}/{k8s.ns}-hook")


async def asked_once(k8s: Kit, hook: Hook, body: Object) -> Any:
    """Create until the webhook is asked: the real API server learns of it from a watch."""

    async def attempt() -> Any:
        answer = await k8s.api("POST", k8s.pods, body)
        if hook.asked:
            return answer
        await k8s.api("DELETE", f"{k8s.pods}/{body['metadata']['name']}", {"gracePeriodSeconds": 0})
        return None

    return await until(attempt, "the webhook to be asked")


def patching(*steps: Object, **more: Any) -> Answer:
    patch = base64.b64encode(json.dumps(steps).encode()).decode()
    return lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch, **more}


async def test_a_webhooks_patch_is_applied_and_its_warning_passed_on(k8s: Kit, tmp_path: Path) -> None:
    step = {"op": "add", "path": "/metadata/labels/x", "value": "y"}
    async with hooked(k8s, tmp_path, patching(step, warnings=["took it out"])) as hook:
        answer = await asked_once(k8s, hook, idle())
    assert (answer.status, answer.body["metadata"]["labels"]["x"]) == (201, "y")
    assert answer.warnings == ["took it out"]
    asked = hook.asked[0]
    assert (asked["operation"], asked["namespace"], asked["name"]) == ("CREATE", k8s.ns, "p")
    assert (asked["kind"]["kind"], asked["resource"]["resource"]) == ("Pod", "pods")
    assert asked["object"]["spec"]["restartPolicy"] == "Always", "defaults are there already"
    assert not asked["dryRun"]


async def test_our_own_webhook_takes_out_the_variable_that_shows_every_gpu(k8s: Kit, tmp_path: Path) -> None:
    """Our mutate.py, asked by each API server."""
    seen: list[Object] = []

    def ours(request: Object) -> Object:
        seen.append(request)
        question = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        return {"raw": review(json.dumps(question).encode())}

    c = container(
        "c", limits={"aliyun.com/gpu-mem": 1}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    )
    async with hooked(k8s, tmp_path, ours) as hook:
        answer = await asked_once(k8s, hook, idle("p", containers=[c]))
    assert answer.status == 201, answer.message
    assert not answer.body["spec"]["containers"][0].get("env")
    assert any("NVIDIA_VISIBLE_DEVICES" in warning for warning in answer.warnings)
    assert seen


async def test_a_webhooks_refusal_reaches_the_user(k8s: Kit, tmp_path: Path) -> None:
    refusal = {"allowed": False, "status": {"message": "no GPUs today", "code": 403}}
    async with hooked(k8s, tmp_path, lambda _: refusal, collection=VALIDATING) as hook:
        answer = await asked_once(k8s, hook, idle())
    assert answer.status == 403
    assert answer.message == 'admission webhook "contract.example.io" denied the request: no GPUs today'
    assert (await k8s.api("GET", f"{k8s.pods}/p")).status == 404


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_webhook_that_is_away_stops_the_request_or_is_passed_over(
    k8s: Kit, tmp_path: Path, policy: str
) -> None:
    away = {"url": f"https://{k8s.backend.host}:9/mutate", "caBundle": ""}
    rubbish = {"raw": b"{}"}
    async with hooked(k8s, tmp_path, lambda _: rubbish, failurePolicy=policy) as hook:
        answer = await asked_once(k8s, hook, idle())
        assert answer.status == {"Fail": 500, "Ignore": 201}[policy]
        if policy == "Fail":
            assert answer.reason == "InternalError"
            assert 'failed calling webhook "contract.example.io"' in answer.message
            path = f"{MUTATING}/{k8s.ns}-hook"
            change = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": away}]
            await k8s.api.patch(path, change, "json")
            answer = await k8s.api("POST", k8s.pods, idle("q"))
            assert answer.status == 500
            assert 'failed calling webhook "contract.example.io"' in answer.message


async def test_a_custom_kind_is_served_with_defaults_and_checks(k8s: Kit) -> None:
    group = await gadgets(k8s)
    path = k8s.path("gadgets", group=group)
    made = await k8s.api.make(path, gadget(group, mode="fast"))
    assert made["spec"] == {"count": 1, "mode": "fast"}
    assert made["metadata"]["generation"] == 1
    changed = await k8s.api.patch(f"{path}/g", {"spec": {"count": 2}, "status": {"phase": "no"}})
    assert (changed["metadata"]["generation"], changed.get("status")) == (2, None)
    changed = await k8s.api.patch(f"{path}/g/status", {"spec": {"count": 3}, "status": {"phase": "yes"}})
    assert (changed["spec"]["count"], changed["status"]) == (2, {"phase": "yes"})
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec.mode: Required value"),
        ({"mode": "odd"}, 'spec.mode: Unsupported value: "odd": supported values: "fast", "slow"'),
        (
            {"mode": "fast", "count": "many"},
            'spec.count: Invalid value: "string": spec.count in body must be of type integer: "string"',
        ),
        (
            {"mode": "fast", "count": 11},
            "spec.count: Invalid value: 11: spec.count in body should be less than or equal to 10",
        ),
        (
            {"mode": "fast", "tags": ["A"]},
            "spec.tags[0]: Invalid value: \"A\": spec.tags[0] in body should match '^[a-z]+$'",
        ),
    ],
)
async def test_a_custom_object_that_breaks_its_schema_is_refused(
    k8s: Kit, spec: Object, message: str
) -> None:
    group = await gadgets(k8s)
    answer = await k8s.api("POST", k8s.path("gadgets", group=group), gadget(group, **spec))
    assert answer.refusal == (422, "Invalid")
    assert answer.message.startswith("Gadget.")
    assert message in answer.message


async def test_unknown_fields_of_custom_objects_are_pruned_with_a_warning(k8s: Kit) -> None:
    group = await gadgets(k8s)
    body = gadget(group, mode="fast", colour="red")
    answer = await k8s.api("POST", k8s.path("gadgets", group=group), body, fieldValidation="Warn")
    assert answer.status == 201
    assert answer.warnings == ['unknown field "spec.colour"']
    assert "colour" not in answer.body["spec"]
    strict = await k8s.api("POST", k8s.path("gadgets", group=group), body, fieldValidation="Strict")
    assert strict.refusal == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.colour"' in strict.message


async def test_a_custom_kind_has_columns_scale_and_no_strategic_patch(k8s: Kit) -> None:
    group = await gadgets(k8s)
    path = k8s.path("gadgets", group=group)
    await k8s.api.make(path, gadget(group, mode="fast", replicas=1))
    table = (await k8s.api("GET", path, accept=TABLE)).body
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Mode"]
    assert table["rows"][0]["cells"] == ["g", "fast"]
    scale = await k8s.api.get(f"{path}/g/scale")
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 1})
    await k8s.api.patch(f"{path}/g/scale", {"spec": {"replicas": 4}})
    assert (await k8s.api.get(f"{path}/g"))["spec"]["replicas"] == 4
    answer = await k8s.api("PATCH", f"{path}/g", {}, content="strategic")
    assert answer.refusal == (415, "UnsupportedMediaType")


async def test_a_definition_that_is_wrong_is_refused(k8s: Kit) -> None:
    body = definition(f"{k8s.ns}.example")
    body["metadata"]["name"] = "wrong"
    answer = await k8s.api("POST", CRDS, body)
    assert answer.refusal == (422, "Invalid")
    assert 'metadata.name: Invalid value: "wrong": must be spec.names.plural+"."+spec.group' in answer.message
    body = definition(f"{k8s.ns}.example")
    del body["spec"]["versions"][0]["schema"]
    answer = await k8s.api("POST", CRDS, body)
    assert answer.refusal == (422, "Invalid")
    assert "spec.versions[0].schema.openAPIV3Schema: Required value" in answer.message


async def test_with_the_definition_go_its_objects(k8s: Kit) -> None:
    group = await gadgets(k8s)
    await k8s.api.make(k8s.path("gadgets", group=group), gadget(group, mode="fast"))
    name = f"{CRDS}/gadgets.{group.partition('/')[0]}"
    assert (await k8s.api("DELETE", name)).status == 200
    await k8s.gone(name)
    await k8s.gone(k8s.path("gadgets", "g", group=group))
